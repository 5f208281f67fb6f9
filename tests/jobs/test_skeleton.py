"""The job that ``qdrun new job`` writes: gradients beside differences, batches, and what it computes beside numpy."""

import random

import numpy as np
import pytest
from gallery_checks import batch_is_alone, gradients_are_differences, run

from qdrun.jobs.skeleton import Skeleton, SkeletonParams


def some() -> SkeletonParams:
    u = random.SystemRandom().uniform
    return SkeletonParams(angle=u(0.3, 1.5), speed=u(-1, 1), length=u(0.5, 2), drag=u(0.05, 0.5), target=2.0, steps=40)


def test_gradients_equal_central_differences():
    gradients_are_differences(Skeleton, some())


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(Skeleton, [some() for _ in range(3)])


def test_the_path_is_that_of_numpy():
    p = some()
    a, v, path = p.angle, p.speed, [p.angle]
    for _ in range(p.steps):
        v += 0.01 * (-9.81 / p.length * np.sin(a) - p.drag * v)
        a += 0.01 * v
        path.append(a)
    found = run(Skeleton(p))
    np.testing.assert_allclose(found.outputs["path"], path, rtol=1e-12)
    assert found.loss == pytest.approx((a - p.target) ** 2, rel=1e-12)
