"""The membrane: its modes in closed form, no adstack, linearity, windows; gradients beside differences, batches, the picture."""

import numpy as np
import pytest
from gallery_checks import batch_is_alone, descend, gradients_are_differences, leaves_a_picture, meets, reference, run
from pydantic import ValidationError

from qdrun.jobs.gallery.wave import Wave, WaveParams, WavePicture


def some(steps: int = 20, grid: int = 9, **more) -> WaveParams:
    r = np.random.default_rng()
    shapes = {name: r.uniform(-1, 1, grid**2).tolist() for name in ("height", "target")}
    return WaveParams(**{"grid": grid, "steps": steps, "speed": float(r.uniform(0.2, 0.6)), "damping": 0.01, **shapes, **more})


def mode(p: WaveParams, a: int, b: int) -> np.ndarray:
    """The shape of a mode, (grid, grid)."""
    sine = [np.sin(np.pi * m * np.arange(p.grid) / (p.grid - 1)) for m in (a, b)]
    return np.outer(*sine)


def amplitude(p: WaveParams, a: int, b: int) -> float:
    """By which factor the steps multiply a mode: cos((t + 1/2) w) / cos(w / 2) with 2 - 2 cos w = speed^2 times the mode's eigenvalue."""
    eigenvalue = sum(4.0 * np.sin(0.5 * np.pi * m / (p.grid - 1)) ** 2 for m in (a, b))
    w = np.arccos(1.0 - 0.5 * p.speed**2 * eigenvalue)
    return float(np.cos((p.steps + 0.5) * w) / np.cos(0.5 * w))


def test_a_mode_meets_the_closed_form():
    known = reference("wave")
    p = WaveParams(**known["size"])
    shape = mode(p, *known["mode"])
    p = WaveParams(**known["size"], height=shape.ravel().tolist(), target=[0.0] * p.grid**2)
    job = Wave(p)
    meets(run(job).loss, known)
    assert known["value"] == pytest.approx(amplitude(p, *known["mode"]) ** 2 * (shape**2).mean(), rel=1e-12)


def test_any_mode_follows_the_closed_form():
    r = np.random.default_rng()
    a, b = r.integers(1, 12, 2)
    p = WaveParams(grid=16, steps=37, speed=float(r.uniform(0.2, 0.7)))
    shape = mode(p, a, b)
    p = p.model_copy(update={"height": shape.ravel().tolist(), "target": (amplitude(p, a, b) * shape).ravel().tolist()})
    assert run(Wave(p)).loss < 1e-24


@pytest.mark.parametrize("budget", [None, 500_000])
def test_it_needs_no_adstack(budget):
    with Wave(some(steps=60, grid=32)).opened(memory_budget_bytes=budget) as job:
        assert job.window == 60 if budget is None else 0 < job.window < 60
        assert job.plan().by_kind().get("adstack", 0) == 0


def test_the_gradient_is_affine_in_the_shape():
    p = some()
    shapes = [np.array(some().height) for _ in range(2)]
    at = lambda shape: run(Wave(p.model_copy(update={"height": shape.tolist()}))).gradients["height"]
    a, b = (at(shape) for shape in shapes)
    np.testing.assert_allclose(at(0.3 * shapes[0] + 0.7 * shapes[1]), 0.3 * a + 0.7 * b, rtol=1e-9, atol=1e-14)


def test_a_descent_finds_the_shape():
    losses = descend(Wave(WaveParams(grid=24, steps=20)), "lbfgs", 40, params=["height"], keep="best")
    assert losses[-1] < 1e-4 * losses[0]


def test_gradients_equal_central_differences():
    gradients_are_differences(Wave, some(), most=10)


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(Wave, [some() for _ in range(3)])


def test_a_shape_of_another_grid_is_refused():
    with pytest.raises(ValidationError, match="target has 2 numbers for 9 x 9 points\n  do: give 81"):
        some(target=[0.0, 1.0])


def test_its_pictures_show_the_membrane():
    leaves_a_picture(WavePicture(WaveParams(grid=32, steps=40)), "wave.png")
    leaves_a_picture(WavePicture(WaveParams(grid=32, steps=40)), "wave.gif")
