"""The bouncing ball: derivatives in closed form and as published, beside differences; batches; the picture."""

import numpy as np
import pytest
from gallery_checks import batch_is_alone, gradients_are_differences, leaves_a_picture, meets, reference, run

from qdrun.jobs.gallery.bounce_once import BounceOnce, BounceOnceParams, BounceOncePicture


def some(**more) -> BounceOnceParams:
    r = np.random.default_rng()
    return BounceOnceParams(
        steps=30,
        position=[float(r.uniform(-1, 1)), float(r.uniform(0.9, 1.1))],
        velocity=[float(r.uniform(-2, 2)), float(r.uniform(-2.5, -1.5))],
        push=r.uniform(-1, 1, 2).tolist(),
        **more,
    )


def test_derivatives_meet_the_closed_form_and_the_published_numbers():
    known = reference("bounce_once")
    found = run(BounceOnce(BounceOnceParams(**known["size"])))
    ours = [found.gradients[name][1] for name in ("position", "velocity", "push")]
    meets(ours, known)
    np.testing.assert_allclose(ours, known["published"], rtol=known["published_tolerance"])
    assert found.loss == pytest.approx(1.2, rel=1e-12)


def test_without_the_time_of_impact_the_derivative_has_the_wrong_sign():
    found = run(BounceOnce(some(time_of_impact=False)))
    assert found.gradients["position"][1] > 0.99


def test_gradients_equal_central_differences():
    gradients_are_differences(BounceOnce, some(), tolerance=1e-6)


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(BounceOnce, [some() for _ in range(3)])


def test_its_picture_shows_the_path():
    leaves_a_picture(BounceOncePicture(some()), "path.png")
