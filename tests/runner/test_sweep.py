"""Sweeps expand in order, the same for the same seed; ids and seeds do not depend on the order."""

import math

import pytest
from fakes import Quadratic
from hypothesis import given
from hypothesis import strategies as st

from qdrun.runner.config import SweepSection
from qdrun.runner.sweep import SweepError, expand
from qdrun.runner.trials import resolve, trial_id, trial_seed

NAMES = st.sampled_from(["a", "b", "c", "d"])
AXES = st.dictionaries(NAMES, st.lists(st.integers(-50, 50), min_size=1, max_size=4, unique=True), min_size=1, max_size=4)


def sweep(**keys):
    return SweepSection.model_validate(keys)


def values(**keys):
    return [point.values for point in expand(sweep(**keys))]


def test_no_sweep_is_one_trial():
    assert [point.values for point in expand(None)] == [{}]


@given(AXES, st.integers(1, 3))
def test_a_grid_has_every_combination_once_per_repetition(axes, repeat):
    points = expand(sweep(params=axes, repeat=repeat))
    assert len(points) == math.prod(len(axis) for axis in axes.values()) * repeat
    assert len({(tuple(sorted(p.values.items())), p.replicate) for p in points}) == len(points)
    assert all(p.values[name] in axis for p in points for name, axis in axes.items())


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_draws_are_the_same_for_the_same_seed_and_do_not_depend_on_other_axes(seed, count):
    axis = {"uniform": [-1, 1, count]}
    alone = [v["a"] for v in values(seed=seed, params={"a": axis})]
    again = [v["a"] for v in values(seed=seed, params={"b": [1], "a": axis})]
    assert alone == again
    assert all(-1 <= v <= 1 for v in alone)
    assert alone != [v["a"] for v in values(seed=seed + 1, params={"a": axis})]


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.integers(2, 50))
def test_linspace_has_its_ends_and_its_number(first, last, count):
    if first == last:
        return
    points = [
        p.values["a"] for p in expand(sweep(method="random", samples=1, params={"a": {"linspace": [first, last, count]}}))
    ]
    assert len(points) == 1
    assert min(first, last) <= points[0] <= max(first, last)


def test_the_forms_give_their_values():
    assert [v["a"] for v in values(params={"a": {"linspace": [0, 4, 5]}})] == [0, 1, 2, 3, 4]
    assert [v["a"] for v in values(params={"a": {"linspace": [0, 1, 3]}})] == [0.0, 0.5, 1.0]
    assert [v["a"] for v in values(params={"a": {"logspace": [2, 4, 3]}})] == pytest.approx([100, 1000, 10000])
    assert [v["a"] for v in values(params={"a": {"list": [[1, 2], [3]]}})] == [[1, 2], [3]]
    assert len({v["a"] for v in values(params={"a": {"normal": [0, 1, 9]}})}) == 9
    assert values(method="list", trials=[{"a": 1}, {"b": 2}]) == [{"a": 1}, {"b": 2}]


def test_zipped_axes_advance_together():
    assert values(params={"a": [1, 2], "b": [5, 6], "c": [7, 8]}, zip=[["a", "b"]]) == [
        {"a": 1, "b": 5, "c": 7},
        {"a": 1, "b": 5, "c": 8},
        {"a": 2, "b": 6, "c": 7},
        {"a": 2, "b": 6, "c": 8},
    ]
    assert values(method="zip", params={"a": [1, 2], "b": [5, 6]}) == [{"a": 1, "b": 5}, {"a": 2, "b": 6}]


def test_equal_random_draws_are_repetitions():
    points = expand(sweep(method="random", samples=20, params={"a": ["x", "y"]}))
    assert len({(p.values["a"], p.replicate) for p in points}) == 20


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"params": {}}, "the sweep is empty"),
        ({"params": {"a": [1, 1]}}, "two trials are equal"),
        ({"params": {"a": [1, 2], "b": [1]}, "zip": [["a", "b"]]}, "equally many values: a 2, b 1"),
        ({"params": {"a": [1], "b": [1]}, "zip": [["a", "z"]]}, "`z` is not a swept parameter"),
        ({"params": {"a": {"uniform": [0, 1]}}}, "needs how many values"),
        ({"method": "random", "params": {"a": [1]}}, "`samples` is needed"),
        ({"method": "list", "params": {"a": [1]}}, "method `list` needs `trials`"),
        ({"params": {"a": {"linspace": [0, 1, 1000]}, "b": {"linspace": [0, 1, 1000]}}}, "1000000 trials are more than 100000"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(keys, said):
    with pytest.raises(SweepError, match=said):
        expand(sweep(**keys))


@given(st.permutations(["x", "scale", "size"]))
def test_ids_depend_on_the_values_and_not_on_their_order(order):
    point = {"x": 1, "scale": 2.0, "size": 3}
    params = resolve(Quadratic, {}, {name: point[name] for name in order})
    reference = trial_id(resolve(Quadratic, point, {}), 0)
    assert trial_id(params, 0) == reference
    assert trial_id(params, 1) != reference
    assert trial_seed(7, reference) != trial_seed(8, reference)
    assert 0 <= trial_seed(7, reference) < 2**63
