"""The break shot: the loss and the descent of DiffTaichi's program; gradients beside differences, batches, the picture."""

import numpy as np
from gallery_checks import batch_is_alone, descend, gradients_are_differences, leaves_a_picture, meets, reference, run

from qdrun.jobs.billiards import Billiards, BilliardsParams, BilliardsPicture


def some(steps: int = 60) -> BilliardsParams:
    r = np.random.default_rng()
    position, velocity = r.uniform([0.4, 0.49], [0.43, 0.51]).tolist(), r.uniform([1.6, -0.1], [2.2, 0.1]).tolist()
    return BilliardsParams(layers=3, steps=steps, position=position, velocity=velocity, softening=float(r.uniform(0, 1e-3)))


def test_the_descent_is_that_of_the_original():
    known = reference("billiards")
    job = Billiards(BilliardsParams(**known["size"]))
    meets(descend(job, "sgd", max(known["at"]), learning_rate=0.01, params=["position", "velocity"])[known["at"]], known)


def test_without_softening_the_loss_is_that_of_the_original_without_it():
    known = reference("billiards")
    loss = run(Billiards(BilliardsParams(**known["size"] | {"softening": 0.0}))).loss
    np.testing.assert_allclose(loss, known["exact"], rtol=known["exact_tolerance"])


def test_gradients_equal_central_differences():
    gradients_are_differences(Billiards, some())


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(Billiards, [some() for _ in range(3)], tolerance=1e-9)


def test_its_picture_shows_the_shot():
    leaves_a_picture(BilliardsPicture(some()), "shot.png")
