"""The cloth: a centre that flies as a stone does, one step beside numpy, windows; gradients beside differences, batches, the picture."""

import numpy as np
from gallery_checks import (
    batch_is_alone,
    descend,
    gradients_are_differences,
    gradients_are_tangents,
    leaves_a_picture,
    meets,
    reference,
    run,
)

from qdrun.jobs.base import execute
from qdrun.jobs.gallery.cloth import Cloth, ClothParams, ClothPicture, sheet


def some(steps: int = 12, **more) -> ClothParams:
    r = np.random.default_rng()
    vectors = {"velocity": r.uniform(-2, 2, 3).tolist(), "wind": r.uniform(-3, 3, 3).tolist()}
    return ClothParams(**{"side": 4, "steps": steps, "stiffness": float(r.uniform(50, 100)), **vectors, **more})


def by_numpy(p: ClothParams) -> np.ndarray:
    """The centre at the end, by whole arrays."""
    x, springs, triangles = sheet(p.side)
    rest, v, masses = (
        np.linalg.norm(x[springs[:, 0]] - x[springs[:, 1]], axis=1),
        np.tile(p.velocity, (p.side**2, 1)),
        p.side**2,
    )
    for _ in range(p.steps):
        force, (a, b) = np.zeros_like(x), springs.T
        length = np.linalg.norm(x[a] - x[b], axis=1)
        along = (x[a] - x[b]) / length[:, None]
        size = p.stiffness * (length - rest) + p.damping * ((v[a] - v[b]) * along).sum(axis=1)
        np.add.at(force, a, -size[:, None] * along)
        np.add.at(force, b, size[:, None] * along)
        normal = np.cross(x[triangles[:, 1]] - x[triangles[:, 0]], x[triangles[:, 2]] - x[triangles[:, 0]])
        unit, area = normal / np.linalg.norm(normal, axis=1)[:, None], np.linalg.norm(normal, axis=1) / 2
        across = ((v[triangles].mean(axis=1) - p.wind) * unit).sum(axis=1)
        for corner in triangles.T:
            np.add.at(force, corner, -(p.drag * area * across / 3)[:, None] * unit)
        v = v + p.dt * (force * masses - [0, p.gravity, 0])
        x = x + p.dt * v
    return x.mean(axis=0)


def test_without_air_the_centre_flies_as_a_stone():
    known = reference("cloth")
    found = run(Cloth(ClothParams(**known["size"], drag=0.0, velocity=known["velocity"], target=[0.0] * 3)))
    meets(found.outputs["centre"], known)
    p = ClothParams(**known["size"])
    np.testing.assert_allclose(found.gradients["velocity"], 2 * p.steps * p.dt * np.array(known["value"]), rtol=1e-10)
    assert abs(found.gradients["stiffness"]) < 1e-12


def test_the_centre_is_that_of_whole_arrays():
    p = some(30)
    np.testing.assert_allclose(run(Cloth(p)).outputs["centre"], by_numpy(p), rtol=1e-10, atol=1e-12)


def test_a_budget_changes_no_bit():
    params, outcomes = some(40), []
    for budget in (None, 40_000):
        done = execute(Cloth(params), backend="cpu", threads=1, memory_limit_bytes=None, memory_budget_bytes=budget)
        assert done.plan.bytes == done.peak_bytes and (budget is None or done.peak_bytes <= budget)
        outcomes.append(done.outcome)
    assert outcomes[0].loss == outcomes[1].loss
    assert outcomes[0].gradients["wind"].tolist() == outcomes[1].gradients["wind"].tolist()


def test_a_descent_meets_the_target():
    losses = descend(Cloth(ClothParams(side=5, steps=100)), "sgd", 30, learning_rate=10.0, params=["velocity"])
    assert losses[-1] < 1e-6 < losses[0]


def test_gradients_equal_central_differences():
    gradients_are_differences(Cloth, some(), tolerance=3e-4)  # rounding; forward mode below is exact


def test_gradients_equal_those_of_forward_mode():
    gradients_are_tangents(Cloth, some())


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(Cloth, [some() for _ in range(3)], tolerance=1e-9)


def test_its_picture_shows_the_cloth():
    leaves_a_picture(ClothPicture(some()), "cloth.png")
