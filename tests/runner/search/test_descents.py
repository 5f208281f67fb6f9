"""Which descents go on, and how many steps they get."""

import math

import numpy as np
import pytest

from qdrun.runner.search.descents import FASTEST, Descent, go_on, steps_of


def falling(end, height, ratio, steps=21, **more):
    """A descent whose distance from its end shrinks by a factor with each step."""
    history = [end + height * ratio**k for k in range(steps)]
    return Descent({}, history[-1], history, **more)


def test_a_geometric_fall_is_predicted_to_its_end():
    rng = np.random.default_rng()
    end, height, ratio = rng.normal(), rng.uniform(1, 5), rng.uniform(0.5, 0.9)
    assert falling(end, height, ratio).predicted == pytest.approx(end, abs=1e-9 * height)


def test_what_does_not_fall_any_more_is_predicted_where_it_is():
    assert falling(1.0, 2.0, 0.9, over=True).predicted == falling(1.0, 2.0, 0.9).loss
    assert Descent({}, 3.0, [5.0, 4.0, 3.0, 3.0, 3.0]).predicted == 3.0
    assert Descent({}, 3.0, [3.0]).predicted == 3.0
    assert Descent({}, 1.0, [math.inf, 2.0, 1.0]).predicted == 1.0


def test_a_fall_that_does_not_shrink_is_predicted_as_a_slow_one():
    line = Descent({}, 0.0, [4.0, 3.0, 2.0, 1.0, 0.0])
    assert line.predicted == pytest.approx(-2.0 * FASTEST / (1 - FASTEST))


def test_steps_up_in_between_do_not_count():
    assert (
        Descent({}, 1.0, [9.0, 5.0, 7.0, 3.0, 8.0, 1.0]).predicted == Descent({}, 1.0, [9.0, 5.0, 5.0, 3.0, 3.0, 1.0]).predicted
    )


def test_those_go_on_that_are_predicted_lowest_and_not_those_that_are_lowest_now():
    slow, fast = falling(0.0, 3.0, 0.97), falling(0.5, 0.4, 0.8)
    assert slow.loss > fast.loss and go_on([fast, slow], 0.5) == [slow]
    assert go_on([fast, slow], 0.9) == [slow, fast]
    assert go_on([falling(0.0, 1.0, 0.5, over=True), Descent({}, math.nan), Descent({}, math.inf)], 0.5) == []
    assert len(go_on([fast] * 5, 0.01)) == 1


def test_each_round_costs_as_much_as_the_first_one_within_what_is_left():
    assert steps_of(25, 32, 32, 10_000) == 25
    assert steps_of(25, 32, 8, 10_000) == 100
    assert steps_of(25, 32, 8, 400) == 49
    assert steps_of(25, 32, 8, 8) == 0
