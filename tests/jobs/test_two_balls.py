"""Control through a collision: the published optimum with and without the time of impact, differences, batches, the picture."""

import numpy as np
import pytest
from gallery_checks import batch_is_alone, descend, gradients_are_differences, leaves_a_picture, meets, reference
from pydantic import ValidationError

from qdrun.jobs.gallery.two_balls import TwoBalls, TwoBallsParams, TwoBallsPicture


def some(steps: int = 24) -> TwoBallsParams:
    r = np.random.default_rng()
    return TwoBallsParams(steps=steps, control=r.uniform(2.8, 3.2, 2 * steps).tolist(), effort=float(r.uniform(0.05, 0.2)))


@pytest.mark.slow
def test_descents_meet_the_published_losses():
    known = reference("two_balls")
    losses = [
        descend(
            TwoBalls(TwoBallsParams(**known["size"], time_of_impact=toi)), "sgd", 999, learning_rate=10.0, params=["control"]
        )
        for toi in (True, False)
    ]
    meets([one[-1] for one in losses], known)


def test_gradients_equal_central_differences():
    gradients_are_differences(TwoBalls, some(), most=6)


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(TwoBalls, [some() for _ in range(3)])


def test_a_control_of_another_length_is_refused():
    with pytest.raises(ValidationError, match="3 numbers are no control of 2 steps: each has x and y"):
        TwoBallsParams(steps=2, control=[1.0, 2.0, 3.0])


def test_its_picture_shows_the_paths():
    leaves_a_picture(TwoBallsPicture(some()), "paths.png")
