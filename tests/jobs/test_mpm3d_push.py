"""The pushed block: a mean that flies as a stone does without contact, memory; gradients beside differences, batches, the picture."""

import numpy as np
import pytest
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
from pydantic import ValidationError

from qdrun.jobs.base import execute
from qdrun.jobs.gallery.mpm3d_push import Mpm3dPush, Mpm3dPushParams, Mpm3dPushPicture


def some(steps: int = 10, **more) -> Mpm3dPushParams:
    r = np.random.default_rng()
    push = (r.uniform(0.5, 2.0, (2, 2, 3)) * [1.0, 0.2, 0.2]).ravel().tolist()
    speed = r.uniform(-0.3, 0.3, 3).tolist()
    given = {"side": 4, "grid": 14, "steps": steps, "phases": 2, "push": push, "velocity": speed, "radius": 0.08, "dt": 2e-3}
    return Mpm3dPushParams(**{**given, "places": [0.38, 0.26, 0.47, 0.37, 0.3, 0.54], **more})


def by_numpy(p: Mpm3dPushParams) -> np.ndarray:
    """The mean at the end, by whole arrays."""
    n, side, count, unit = p.grid, p.side, p.side**3, np.eye(3)
    at = np.stack(np.meshgrid(*[np.arange(side) + 0.5] * 3, indexing="ij"), -1).reshape(-1, 3) - [side / 2, 0, side / 2]
    x, v, C, F = (
        at / (2 * n) + [0.5, 3 / n, 0.5],
        np.tile(p.velocity, (count, 1)),
        np.zeros((count, 3, 3)),
        np.tile(unit, (count, 1, 1)),
    )
    ball, push = np.reshape(p.places, (-1, 3)), np.reshape(p.push, (p.phases, -1, 3))
    cells, offsets = np.stack(np.indices((n, n, n)), -1), np.stack(np.indices((3, 3, 3)), -1).reshape(-1, 3)
    for t in range(p.steps):
        base = (x * n - 0.5).astype(int)
        f = x * n - base
        w = np.stack([0.5 * (1.5 - f) ** 2, 0.75 - (f - 1) ** 2, 0.5 * (f - 0.5) ** 2])
        F = (unit + p.dt * C) @ F
        stress = p.stiffness * (F @ F.transpose(0, 2, 1) - unit + np.log(np.linalg.det(F))[:, None, None] * unit)
        affine, mass, momentum = C - p.dt * 4 * n * n * stress, np.zeros((n, n, n)), np.zeros((n, n, n, 3))
        parts = [(tuple((base + o).T), np.prod([w[o[d], :, d] for d in range(3)], axis=0), o - f) for o in offsets]
        for where, weight, off in parts:
            np.add.at(mass, where, weight)
            np.add.at(momentum, where, weight[:, None] * (v + np.einsum("qab,qb->qa", affine, off / n)))
        u = momentum / np.where(mass > 1e-10, mass, 1.0)[..., None] + [0, p.dt * p.gravity, 0]
        for place, speed in zip(ball, push[t * p.phases // p.steps]):
            apart = cells / n - place
            distance = np.sqrt((apart**2).sum(-1) + 1e-12)[..., None]
            into = np.minimum(((u - speed) * apart).sum(-1, keepdims=True) / distance, 0)
            u = u - p.grip * np.exp(2 * n * np.minimum(0, p.radius - distance)) * into * apart / distance
        u = np.where(((cells < 3) & (u < 0)) | ((cells > n - 3) & (u > 0)) | (mass[..., None] <= 1e-10), 0.0, u)
        ball = ball + p.dt * push[t * p.phases // p.steps]
        v = sum(weight[:, None] * u[where] for where, weight, _ in parts)
        C = sum(4 * n * weight[:, None, None] * u[where][:, :, None] * off[:, None] for where, weight, off in parts)
        x = x + p.dt * v
    return x.mean(axis=0)


def test_the_mean_is_that_of_whole_arrays():
    p = some(25)
    np.testing.assert_allclose(run(Mpm3dPush(p)).outputs["centre"], by_numpy(p), rtol=1e-10)


def test_without_contact_the_mean_flies_as_a_stone():
    known = reference("mpm3d_push")
    found = run(Mpm3dPush(Mpm3dPushParams(**known["size"], grip=0.0, target=[0.0] * 3)))
    meets(found.outputs["centre"], known)
    time = known["size"]["steps"] * known["size"]["dt"]
    np.testing.assert_allclose(found.gradients["velocity"], 2 * time * np.array(known["value"]), rtol=1e-9)


def test_it_needs_no_adstack_on_any_backend():
    with Mpm3dPush(some()).opened(machine_code=False) as job:
        for arch in ("cpu", "cuda", "amdgpu", "metal", "vulkan"):
            assert job.plan(arch=arch).by_kind()["adstack"] == 0


def test_a_budget_changes_no_bit():
    params, outcomes = some(12), []
    for budget in (None, 1_000_000):
        done = execute(Mpm3dPush(params), backend="cpu", threads=1, memory_limit_bytes=None, memory_budget_bytes=budget)
        assert done.plan.bytes == done.peak_bytes and (budget is None or done.peak_bytes <= budget)
        outcomes.append(done.outcome)
    assert outcomes[0].loss == outcomes[1].loss
    assert outcomes[0].gradients["push"].tolist() == outcomes[1].gradients["push"].tolist()


def test_a_descent_pushes_the_block_nearer():
    losses = descend(Mpm3dPush(Mpm3dPushParams()), "adam", 20, learning_rate=0.3, params=["push"])
    assert losses[-1] < 0.3 * losses[0]


def test_gradients_equal_central_differences():
    gradients_are_differences(Mpm3dPush, some(), tolerance=2e-4)  # rounding; forward mode below is exact


def test_gradients_equal_those_of_forward_mode():
    gradients_are_tangents(Mpm3dPush, some())


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(Mpm3dPush, [some() for _ in range(2)], tolerance=1e-8)


def test_balls_without_all_their_numbers_are_refused():
    with pytest.raises(ValidationError, match="4 numbers are no places of balls: each has x, y and z"):
        some(places=[0.1] * 4)
    with pytest.raises(ValidationError, match="push has 5 numbers, the balls have 12 in all phases"):
        some(push=[0.0] * 5)


def test_its_picture_shows_the_block():
    leaves_a_picture(Mpm3dPushPicture(some()), "push.png")
