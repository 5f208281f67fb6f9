"""DiffTaichi's block: its loss curve, gradients beside differences, windows, batches, the picture."""

import numpy as np
import pytest
from gallery_checks import batch_is_alone, descend, gradients_are_differences, leaves_a_picture, meets, reference, run

from qdrun.jobs.gallery.diffmpm2d import Diffmpm2d, Diffmpm2dParams, Diffmpm2dPicture


class InF64(Diffmpm2d):
    precision = "f64"


def some(steps: int = 30) -> Diffmpm2dParams:
    r = np.random.default_rng()
    return Diffmpm2dParams(
        side=5, grid=32, steps=steps, dt=1e-3, velocity=r.uniform([-2, 3], [2, 4]).tolist(), stiffness=float(r.uniform(20, 60))
    )


@pytest.mark.slow
def test_the_descent_meets_the_reference_in_f64():
    known = reference("diffmpm2d")
    steps = 2  # of 29: a step takes seconds, and the loss has fallen by a quarter
    losses = descend(InF64(Diffmpm2dParams(**known["size"])), "sgd", steps, threads=2, learning_rate=10.0, params=["velocity"])
    at = [k for k in known["at"] if k <= steps]
    meets(losses[at], known | {"value": known["value"][: len(at)]})


@pytest.mark.slow
def test_the_first_loss_in_f32_is_the_published_one():
    known = reference("diffmpm2d")
    job = Diffmpm2d(Diffmpm2dParams(**known["size"]), wanted=())
    assert run(job, threads=2).loss == pytest.approx(known["published"], rel=known["published_tolerance"])


def test_gradients_equal_central_differences():
    gradients_are_differences(InF64, some())


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(InF64, [some(8) for _ in range(3)])


def test_its_picture_shows_the_block():
    leaves_a_picture(Diffmpm2dPicture(some(8)), "block.png")
