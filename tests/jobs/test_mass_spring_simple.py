"""The triangle of springs: DiffTaichi's loss curve, gradients beside differences, batches, the picture."""

import numpy as np
from gallery_checks import batch_is_alone, descend, gradients_are_differences, leaves_a_picture, meets, reference

from qdrun.jobs.mass_spring_simple import MassSpringSimple, MassSpringSimpleParams, MassSpringSimplePicture


class InF32(MassSpringSimple):
    precision = "f32"


def some(steps: int = 40) -> MassSpringSimpleParams:
    r = np.random.default_rng()
    return MassSpringSimpleParams(
        steps=steps,
        lengths=(np.array([0.1, 0.1, 0.14]) * r.uniform(0.6, 1.4, 3)).tolist(),
        stiffness=float(r.uniform(50, 100)),
        dt=0.01,
    )


def test_descent_meets_the_published_loss_curve():
    known = reference("mass_spring_simple")
    losses = descend(
        MassSpringSimple(MassSpringSimpleParams(**known["size"])), "sgd", 24, learning_rate=5.0, params=["lengths"]
    )
    meets(losses[known["at"]], known)


def test_in_f32_the_descent_has_the_digits_of_the_original():
    known, params = reference("mass_spring_simple"), MassSpringSimpleParams(**reference("mass_spring_simple")["size"])
    losses = descend(InF32(params), "sgd", max(known["at"]), learning_rate=5.0, params=["lengths"])
    np.testing.assert_allclose(losses[known["at"]], known["value"], rtol=known["tolerance"])


def test_gradients_equal_central_differences():
    gradients_are_differences(MassSpringSimple, some())


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(MassSpringSimple, [some() for _ in range(3)])


def test_its_picture_shows_the_paths():
    leaves_a_picture(MassSpringSimplePicture(some()), "paths.png")
