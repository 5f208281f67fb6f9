"""Smoke in a budget: losses beside numpy, the plan at full size, windows that change no bit; differences, batches, the picture."""

import numpy as np
import pytest
from gallery_checks import (
    batch_is_alone,
    gradients_are_differences,
    gradients_are_tangents,
    leaves_a_picture,
    meets,
    reference,
    run,
)
from pydantic import ValidationError

from qdrun.jobs.base import execute
from qdrun.jobs.gallery.fluid_checkpoint import FluidCheckpoint, FluidCheckpointParams, FluidCheckpointPicture


class InF64(FluidCheckpoint):
    precision = "f64"


def some(steps: int = 4, grid: int = 10, sweeps: int = 5) -> FluidCheckpointParams:
    r = np.random.default_rng()
    push, wind = r.uniform(-0.5, 0.5, 2).tolist(), r.uniform(-0.5, 0.5, 2 * grid**2).tolist()
    return FluidCheckpointParams(grid=grid, steps=steps, sweeps=sweeps, push=push, wind=wind)


def by_numpy(p):
    """The loss, by whole arrays."""
    n = p.grid
    v = np.reshape(p.wind, (n, n, 2)) + p.push
    i, j = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    smoke = np.exp(-((20 * (i + 0.5) / n - 10) ** 2) / 2)
    roll = lambda a, d: np.roll(a, -1, d) - np.roll(a, 1, d)
    for _ in range(p.steps):
        x, y = (i - v[..., 0]) % n, (j - v[..., 1]) % n
        u, smoke = (np.stack([interpolated(a, x, y) for a in np.moveaxis(b, -1, 0)], -1) for b in (v, smoke[..., None]))
        smoke, pressure = smoke[..., 0], np.zeros((n, n))
        spread = roll(u[..., 0], 0) + roll(u[..., 1], 1)
        for _ in range(p.sweeps):
            pressure = (sum(np.roll(pressure, s, d) for s in (-1, 1) for d in (0, 1)) - spread / 2) / 4
        v = u - np.stack([roll(pressure, 0), roll(pressure, 1)], -1) / 2
    ring = np.exp(-((16 * (np.hypot((i + 0.5) / n - 0.5, (j + 0.5) / n - 0.5) - 0.25)) ** 2))
    return ((smoke - ring) ** 2).mean()


def interpolated(a, x, y):
    """A periodic array at places (x, y) by its four nearest points: linear along each axis, one after the other."""
    n = len(a)
    left, low = np.floor(x).astype(int), np.floor(y).astype(int)
    along = [(1 - (y - low)) * a[(left + s) % n, low % n] + (y - low) * a[(left + s) % n, (low + 1) % n] for s in (0, 1)]
    return along[0] + (x - left) * (along[1] - along[0])


def test_the_loss_is_that_of_whole_arrays():
    params = some(5, 16, 9)
    assert run(InF64(params)).loss == pytest.approx(by_numpy(params), rel=1e-12)


def test_the_loss_at_the_small_size_is_that_of_the_reference():
    known = reference("fluid_checkpoint")["small"]
    params = FluidCheckpointParams(**known["size"])
    meets(run(FluidCheckpoint(params)).loss, known)
    assert by_numpy(params) == pytest.approx(known["value"], rel=1e-13)


def test_at_full_size_the_plan_fits_the_budget():
    known = reference("fluid_checkpoint")
    n, steps, sweeps = (known["size"][name] for name in ("grid", "steps", "sweeps"))
    assert known["value"] == n * n * sweeps * steps * 4 * 2
    job = FluidCheckpoint(FluidCheckpointParams(**known["size"]))
    with job.opened(threads=1, memory_budget_bytes=known["budget"], machine_code=False) as opened:
        kept = opened.plan()
        slots = opened.pressure.shape[0] * sweeps * n * n * 4 * 2
        assert slots < kept.bytes <= known["budget"] < 0.04 * known["value"]
        assert opened.steps_plan.levels == 2 and slots * steps == known["value"] * opened.window


def test_a_budget_changes_no_bit():
    params, outcomes = some(12), []
    for budget in (None, 60_000):
        done = execute(FluidCheckpoint(params), backend="cpu", threads=1, memory_limit_bytes=None, memory_budget_bytes=budget)
        assert done.plan.bytes == done.peak_bytes and (budget is None or done.peak_bytes <= budget)
        outcomes.append(done.outcome)
    whole, windows = outcomes
    assert whole.loss == windows.loss
    for name, value in whole.gradients.items():
        np.testing.assert_array_equal(value, windows.gradients[name])


def test_gradients_equal_central_differences():
    gradients_are_differences(InF64, some(), tolerance=1e-4, most=20)  # rounding; forward mode below is exact


def test_gradients_equal_those_of_forward_mode():
    gradients_are_tangents(InF64, some())


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(InF64, [some() for _ in range(3)])


def test_a_wind_of_another_grid_is_refused():
    with pytest.raises(ValidationError, match="wind has 3 numbers for 8 x 8 cells\n  do: give 128"):
        FluidCheckpointParams(grid=8, wind=[0.0] * 3)


def test_its_picture_shows_the_smoke():
    leaves_a_picture(FluidCheckpointPicture(some()), "smoke.png")
