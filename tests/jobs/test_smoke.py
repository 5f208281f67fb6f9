"""Smoke: losses beside a program in numpy, gradients beside differences, batches, the picture."""

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

from qdrun.jobs.gallery.smoke import Smoke, SmokeParams, SmokePicture


def some(steps: int = 3, grid: int = 10, seed: int | None = None) -> SmokeParams:
    r = np.random.default_rng(seed)
    return SmokeParams(
        grid=grid,
        steps=steps,
        sweeps=4,
        spin=float(r.uniform(0.05, 0.15)),
        push=r.uniform(-1, 1, 2).tolist(),
        wind=r.uniform(-0.5, 0.5, 2 * grid**2).tolist(),
    )


def by_numpy(p):
    """The loss, by whole arrays."""
    n = p.grid
    i, j = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    x, y = i + 0.5 - n / 2, j + 0.5 - n / 2
    out = np.hypot(x, y) / n - p.radius
    smoke, wanted = 1 / (1 + np.exp(out * n)), np.exp(-((n * out / 4) ** 2))
    v = np.reshape(p.wind, (n, n, 2)) + np.stack([p.push[0] - p.spin * y, p.push[1] + p.spin * x], axis=2)
    pressure = np.zeros((n, n))
    for _ in range(p.steps):
        u = np.stack([bilinear(v[..., d], v) for d in (0, 1)], axis=2)
        source = -0.5 / n * (central(u[..., 0], 0) + central(u[..., 1], 1))
        for _ in range(p.sweeps):
            pressure = (source + sum(np.roll(pressure, s, axis) for s in (1, -1) for axis in (0, 1))) / 4
        v = u - 0.5 * n * np.stack([central(pressure, 0), central(pressure, 1)], axis=2)
        smoke = bilinear(smoke, v)
    return float(((smoke - wanted) ** 2).mean())


def central(a, axis):
    return np.roll(a, -1, axis) - np.roll(a, 1, axis)


def bilinear(field, v):
    """A periodic field at the places that the velocities v come from."""
    n = len(field)
    i, j = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    x, y = i - v[..., 0], j - v[..., 1]
    i0, j0 = np.floor(x).astype(int), np.floor(y).astype(int)
    a, b = x - i0, y - j0
    weights = {(0, 0): (1 - a) * (1 - b), (1, 0): a * (1 - b), (0, 1): (1 - a) * b, (1, 1): a * b}
    return sum(w * field[(i0 + s) % n, (j0 + t) % n] for (s, t), w in weights.items())


def test_the_loss_is_that_of_whole_arrays():
    params = some(5, 16)
    assert run(Smoke(params)).loss == pytest.approx(by_numpy(params), rel=1e-12)


def test_the_loss_is_that_of_the_reference():
    known = reference("smoke")
    params = SmokeParams(**known["size"])
    meets(run(Smoke(params)).loss, known)
    assert by_numpy(params) == pytest.approx(known["value"], rel=1e-13)


def test_gradients_equal_tangents_at_any_point():
    gradients_are_tangents(Smoke, some())


def test_gradients_equal_central_differences():
    """At one point: interpolation has kinks where a cell takes its value from exactly another cell, and a difference may cross one."""
    gradients_are_differences(Smoke, some(seed=3), most=20)


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(Smoke, [some() for _ in range(3)])


def test_it_needs_no_adstack():
    with Smoke(some()).opened() as job:
        assert job.plan().by_kind()["adstack"] == 0


def test_a_wind_of_another_grid_is_refused():
    with pytest.raises(ValueError, match="wind has 3 numbers for 8 x 8 cells"):
        SmokeParams(grid=8, wind=[0.0] * 3)


def test_its_picture_shows_the_smoke():
    leaves_a_picture(SmokePicture(some()), "smoke.png")
