"""Sweeps expand in order, the same for the same seed; ids and seeds do not depend on the order."""

import json
import math

import numpy as np
import pytest
from fakes import Quadratic, QuadraticParams
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from runner_helpers import write_config

from qdrun.jobs.base import Job
from qdrun.runner.config import sweep as sweep_module
from qdrun.runner.config.model import ConfigError, SweepSection
from qdrun.runner.config.sweep import Point, SweepError, SweepPoints, expand
from qdrun.runner.study.prepare import prepare
from qdrun.runner.study.trial_file import read_trials, trial_lines
from qdrun.runner.study.trial_list import Trial, Trials, texts
from qdrun.runner.study.trials import RowsRefusedError, resolve, resolved_together, trial_id, trial_ids, trial_seed
from qdrun.runner.value_columns import ValueColumn

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines of tests are shared
NAMES = st.sampled_from(["a", "b", "c", "d"])
AXES = st.dictionaries(NAMES, st.lists(st.integers(-50, 50), min_size=1, max_size=4, unique=True), min_size=1, max_size=4)


def sweep(**keys):
    return SweepSection.model_validate(keys)


def values(**keys):
    return [point.values for point in expand(sweep(**keys))]


def test_no_sweep_is_one_trial():
    assert [point.values for point in expand(None)] == [{}]


@RELAXED
@given(AXES, st.integers(1, 3))
def test_a_grid_has_every_combination_once_per_repetition(axes, repeat):
    points = expand(sweep(params=axes, repeat=repeat))
    assert len(points) == math.prod(len(axis) for axis in axes.values()) * repeat
    assert len({(tuple(sorted(p.values.items())), p.replicate) for p in points}) == len(points)
    assert all(p.values[name] in axis for p in points for name, axis in axes.items())


@RELAXED
@given(st.integers(0, 2**32), st.integers(1, 20))
def test_draws_are_the_same_for_the_same_seed_and_do_not_depend_on_other_axes(seed, count):
    axis = {"uniform": [-1, 1, count]}
    alone = [v["a"] for v in values(seed=seed, params={"a": axis})]
    again = [v["a"] for v in values(seed=seed, params={"b": [1], "a": axis})]
    assert alone == again
    assert all(-1 <= v <= 1 for v in alone)
    assert alone != [v["a"] for v in values(seed=seed + 1, params={"a": axis})]


@RELAXED
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


DRAWN = {
    "uniform": ([-1, 3], lambda v: -1 <= v < 3),
    "loguniform": ([1e-3, 10], lambda v: 1e-3 <= v <= 10),
    "normal": ([5, 2], math.isfinite),
    "randint": ([-3, 9], lambda v: isinstance(v, int) and -3 <= v < 9),
    "choice": (["u", "v", 3, [1, 2]], lambda v: v in ("u", "v", 3, [1, 2])),
}


@RELAXED
@given(st.sampled_from(sorted(DRAWN)), st.integers(0, 2**40), st.integers(1, 30), st.integers(1, 30), NAMES)
def test_draws_follow_from_seed_and_name_alone_in_every_method_and_more_of_them_begin_alike(form, seed, count, more, name):
    parts, belongs = DRAWN[form]
    axis = {form: parts}
    alone = [v[name] for v in values(seed=seed, samples=count, params={name: axis})]
    assert len(alone) == count and all(map(belongs, alone))
    assert alone == [v[name] for v in values(seed=seed, params={name: axis | {"samples": count}})]
    other = {"z": [1]} | {name: axis}
    assert alone == [v[name] for v in values(seed=seed, samples=count, params=other)]
    assert alone == [v[name] for v in values(seed=seed, samples=count, method="random", params=other)]
    longer = values(seed=seed, samples=count + more, method="zip", params={name: axis})
    assert alone == [v[name] for v in longer][:count]
    if form != "choice":
        assert alone == [v[name] for v in values(seed=seed, params={name: {form: [*parts, count]}})]


def test_draws_of_other_names_and_seeds_differ_and_have_their_distribution():
    def draws(name, seed, form):
        return [v[name] for v in values(seed=seed, samples=4000, params={name: {form: DRAWN[form][0]}})]

    for form in ("uniform", "loguniform", "normal"):
        assert draws("a", 1, form) != draws("b", 1, form)
        assert draws("a", 1, form) != draws("a", 2, form)
    mean = lambda found: sum(found) / len(found)
    assert mean(draws("a", 1, "uniform")) == pytest.approx(1.0, abs=0.08)
    assert mean([math.log10(v) for v in draws("a", 1, "loguniform")]) == pytest.approx(-1.0, abs=0.08)
    assert mean(draws("a", 1, "normal")) == pytest.approx(5.0, abs=0.15)
    assert set(draws("a", 1, "randint")) == set(range(-3, 9))
    assert {json.dumps(v) for v in draws("a", 1, "choice")} == {'"u"', '"v"', "3", "[1, 2]"}


@RELAXED
@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-7, 7).filter(bool))
def test_range_of_whole_numbers_is_that_of_python(first, end, step):
    expected = list(range(first, end, step))
    if expected:
        assert [v["a"] for v in values(params={"a": {"range": [first, end, step]}})] == expected
    else:
        with pytest.raises(ValidationError):
            sweep(params={"a": {"range": [first, end, step]}})


@RELAXED
@given(st.floats(-100, 100), st.floats(0.01, 10), st.integers(1, 50))
def test_range_of_reals_leaves_its_end_out_for_all_its_rounding(first, step, count):
    found = [v["a"] for v in values(params={"a": {"range": [first, first + count * step, step]}})]
    assert found == [first + k * step for k in range(count)]


@RELAXED
@given(AXES, st.data())
def test_exclude_leaves_out_what_it_describes_and_nothing_else(axes, data):
    everything = values(params=axes)
    rules = data.draw(st.lists(st.sampled_from(everything), min_size=1, max_size=3))
    rules = [{name: point[name] for name in data.draw(st.sets(st.sampled_from(sorted(point)), min_size=1))} for point in rules]
    kept = [point for point in everything if not any(all(point[n] == v for n, v in rule.items()) for rule in rules)]
    if not kept:
        with pytest.raises(SweepError, match="all trials are excluded"):
            expand(sweep(params=axes, exclude=rules))
    else:
        assert values(params=axes, exclude=rules) == kept  # in their order


def test_exclude_works_in_every_method_and_sees_through_rounding():
    third = {"linspace": [0, 1, 11]}
    assert len(values(params={"a": third}, exclude=[{"a": 0.3}])) == 10
    assert values(method="zip", params={"a": [1, 2], "b": [3, 4]}, exclude=[{"a": 1}]) == [{"a": 2, "b": 4}]
    assert values(method="list", trials=[{"a": 1}, {"b": 2}], exclude=[{"a": 1}]) == [{"b": 2}]
    random = {"method": "random", "samples": 40, "params": {"a": {"randint": [0, 3]}}}
    assert [v["a"] for v in values(**random, exclude=[{"a": 1}])] == [v["a"] for v in values(**random) if v["a"] != 1]
    assert values(params={"a": [True, 1]}, exclude=[{"a": 1}]) == [{"a": True}]


def test_equal_draws_in_a_grid_are_repetitions():
    points = expand(sweep(samples=30, params={"a": {"randint": [0, 3]}, "b": [1, 2]}))
    assert len(points) == 60
    assert len({(p.values["a"], p.values["b"], p.replicate) for p in points}) == 60


def test_an_error_in_a_list_names_the_item_that_it_is_in_although_others_are_excluded(tmp_path):
    section = {"method": "list", "trials": [{"x": 1}, {"x": 2}, {"scale": -1}], "exclude": [{"x": 1}], "repeat": 2}
    path = write_config(tmp_path)
    text = path.read_text()
    start, end = text.index("sweep:"), text.index("limits:")
    path.write_text(text[:start] + f"sweep: {json.dumps(section)}\n" + text[end:])
    with pytest.raises(ConfigError, match=r"`sweep.trials\[2\].scale`"):
        prepare(path)


def test_dotted_names_lead_into_nested_models_and_lists():
    assert resolve(Quadratic, {}, {"target.1": 7.5})["target"] == [0.0, 7.5]
    assert resolve(Quadratic, {"target": [1, 2, 3]}, {"target.2": 9.0})["target"] == [1.0, 2.0, 9.0]
    assert resolve(Quadratic, {"target.0": 4.0}, {"target.1": 5.0})["target"] == [4.0, 5.0]
    assert resolve(Quadratic, {}, {})["target"] == [0.0, 1.0]  # the default was not changed in place


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
        ({"params": {"a": {"uniform": [0, 1]}}}, "nothing says how many"),
        ({"params": {"a": [1, 2]}, "samples": 3}, "nothing is drawn with `samples`"),
        ({"method": "random", "samples": 3, "params": {"a": {"uniform": [0, 1, 9]}}}, "takes no number of values of its own"),
        ({"params": {"a": [1, 2]}, "exclude": [{"b": 1}]}, "`b` is not a swept parameter"),
        ({"params": {"a": [1, 2]}, "exclude": [{"a": 3}]}, 'no trial has {"a": 3}'),
        ({"params": {"a": [1, 2]}, "exclude": [{"a": 1}, {"a": 2}]}, "all trials are excluded"),
        ({"params": {"a": {"range": [0, 1, 1e-8]}}}, "100000000 values, more than 10000000"),
        ({"method": "random", "params": {"a": [1]}}, "`samples` is needed"),
        ({"method": "list", "params": {"a": [1]}}, "method `list` needs one of `trials` and `table`"),
        (
            {"params": {"a": {"linspace": [0, 1, 10000]}, "b": {"linspace": [0, 1, 10000]}}},
            "100000000 trials are more than 10000000",
        ),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(keys, said):
    with pytest.raises(SweepError, match=said):
        expand(sweep(**keys))


@RELAXED
@given(st.permutations(["x", "scale", "size"]))
def test_ids_depend_on_the_values_and_not_on_their_order(order):
    point = {"x": 1, "scale": 2.0, "size": 3}
    params = resolve(Quadratic, {}, {name: point[name] for name in order})
    reference = trial_id(resolve(Quadratic, point, {}), 0)
    assert trial_id(params, 0) == reference
    assert trial_id(params, 1) != reference
    assert trial_seed(7, reference) != trial_seed(8, reference)
    assert 0 <= trial_seed(7, reference) < 2**63


def test_many_excludes_leave_out_what_each_of_them_describes():
    axes = {"a": {"linspace": [0.1, 0.9, 40]}, "b": list(range(20))}
    points = values(params=axes)
    rules = [{"a": point["a"] * (1 + 5e-10), "b": point["b"]} for point in points[1:]]
    assert values(params=axes, exclude=rules) == points[:1]


@given(
    st.lists(st.floats(allow_nan=False, width=64) | st.integers(), min_size=1, max_size=6),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6),
    st.sampled_from([-9e-10, 0.0, 9e-10, 2e-9]),
)
def test_the_rows_that_have_a_value_are_those_with_the_same_one(mixed, floats, part):
    for numbers in (mixed, floats, [number for number in mixed if isinstance(number, int)]):
        column = ValueColumn(numbers)
        for number in numbers:
            other = number * (1 + part) if isinstance(number, float) else number
            found = sweep_module._rows_with(column, column.distinct_numbers(), other)
            assert found.tolist() == [sweep_module._same(other, value) for value in numbers]


def test_a_range_without_end_is_refused():
    for parts in ([0, 1e308, 1e-308], [-1e308, 1e308, 1e-300], [0, 1, 1e-9]):
        with pytest.raises(SweepError, match=r"`range` has (endlessly many|\d+) values, more than"):
            values(params={"a": {"range": parts}})
    with pytest.raises(ValidationError):
        values(params={"a": {"range": [0, float("inf"), 1]}})


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    depth: float = 1.0
    names: list[str] = ["a%", 'b"']
    layers: list[float] = [1.0, -0.0, 3.5]


class PlainParams(QuadraticParams):
    inner: Inner = Inner()
    text: str = "x"
    count: int | None = None
    flag: bool = False
    rounded: float = 0.0
    endless: float = math.inf


class Plain(Job[PlainParams]):
    """Parameters of all kinds, which the schema alone decides."""


class MixedParams(PlainParams):
    @field_validator("rounded")
    @classmethod
    def whole(cls, value):
        return float(round(value))


class Mixed(Job[MixedParams]):
    """The same with code of the job."""


VALUES = {
    "x": st.floats(-1e300, 1e300) | st.integers(-5, 5),
    "inner.depth": st.floats(-1.0, 1.0) | st.just(-0.0),
    "inner.layers.1": st.floats(0.0, 1e-300),
    "inner.names.0": st.text(max_size=4),
    "text": st.text(max_size=4),
    "count": st.integers(0, 3) | st.none(),
    "flag": st.booleans(),
    "rounded": st.floats(-5.0, 5.0),
    "size": st.integers(1, 5),
}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_trials_made_together_are_those_made_one_by_one(data):
    job = data.draw(st.sampled_from([Mixed, Plain]))
    kinds = data.draw(st.sampled_from([sorted(VALUES), ["inner.depth", "inner.layers.1", "rounded", "size", "x"]]))
    names = data.draw(st.lists(st.sampled_from(kinds), min_size=1, unique=True))
    values = data.draw(st.lists(st.fixed_dictionaries({name: VALUES[name] for name in names}), min_size=1, max_size=6))
    points = [Point(one, number % 2) for number, one in enumerate(values)]
    base = data.draw(st.sampled_from([{}, {"text": "base"}, {"inner.depth": 0.25}, {"inner": {"depth": 2.0}}]))
    base = {name: value for name, value in base.items() if name != "inner" or not any(n.startswith("inner.") for n in names)}
    together = resolved_together(job, base, points)
    single = [resolve(job, base, point.values) for point in points]
    assert repr([{name: column[k] for name, column in together.items()} for k in range(len(points))]) == repr(single)
    ids = trial_ids(together, [point.replicate for point in points])
    assert ids == [trial_id(params, point.replicate) for params, point in zip(single, points)]
    seeds, found = list(range(len(points))), SweepPoints.of(points)
    made = Trials(ids, seeds, [point.replicate for point in points], seeds, found.columns, together)
    assert repr(list(read_trials(trial_lines(made)).trials)) == repr(list(made)) == repr(list(Trials.of(list(made))))


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ([{"x": 1.0}, {"text": "other"}], None),
        ([{"inner.layers": [1.0]}, {"inner.layers": [1.0, 2.0]}], None),
        ([{}], None),
        ([{"x": 1.0}, {"x": "no"}], [1]),
        ([{"inner.nothing.more": 1.0}], [0]),
        ([{"nothing": 1.0}], [0]),
    ],
)
@pytest.mark.parametrize("job", [Mixed, Plain])
def test_what_cannot_be_made_together_is_left_to_one_by_one_or_refused_by_row(job, values, refused):
    points = [Point(one) for one in values]
    if refused is None:
        assert resolved_together(job, {}, points) is None
    else:
        with pytest.raises(RowsRefusedError) as error:
            resolved_together(job, {}, points)
        assert error.value.rows == refused


def test_a_bad_row_of_many_is_told_without_a_look_at_the_rows_before_it(tmp_path, monkeypatch):
    from qdrun.runner.study import trials as module

    looked, real = [], module.resolve
    monkeypatch.setattr(module, "resolve", lambda job, base, swept: looked.append(swept["stiffness"]) or real(job, base, swept))
    job = "job: {target: qdrun.jobs.mass_spring:MassSpring}"
    text = f"version: 1\nname: many\n{job}\nsweep: {{method: list, table: {{file: points.csv}}}}\n"
    path = write_config(tmp_path, text=text)
    lines = ["stiffness", *map(str, range(1, 20_001))]
    for bad, again in (
        (-1.0, r"greater than 0, got -1\.0 \(row 14999, column `stiffness` of points.csv\)"),
        (5, "two trials are equal: .* 5"),
    ):
        lines[15_000] = str(bad)
        (tmp_path / "points.csv").write_text("\n".join(lines))
        with pytest.raises(ConfigError, match=again):
            prepare(path)
    assert looked in ([-1.0], [-1.0, 1]), "the bad row, and perhaps one of those that are right"


def test_points_within_the_limits_of_a_schema_share_what_the_sweep_does_not_set():
    points = [Point({"x": 0.5 * k, "inner.layers.0": 1.0 * k}) for k in range(3)]
    made = resolved_together(Plain, {"inner.depth": 2.0}, points)
    assert all(one["names"] is made["inner"][0]["names"] for one in made["inner"])
    assert [one["layers"][0] for one in made["inner"]] == [0.0, 1.0, 2.0] and {one["depth"] for one in made["inner"]} == {2.0}


class DerivedParams(PlainParams):
    half: float = Field(default_factory=lambda data: 0.5 * data["x"])


class Derived(Job[DerivedParams]):
    """A default that follows another parameter."""


def test_defaults_that_follow_swept_parameters_are_those_of_each_trial():
    made = resolved_together(Derived, {}, [Point({"x": float(k)}) for k in range(3)])
    assert made["half"] == [0.0, 0.5, 1.0]


def test_trials_of_different_names_keep_their_own():
    trials = [
        Trial(id=str(k), index=k, replicate=0, seed=k, swept={}, params=one)
        for k, one in enumerate([{"a": 1}, {"a": 2, "b": 3}])
    ]
    made = Trials.of(trials)
    assert list(made) == trials and made[1:] == trials[1:] and made.named["1"] == trials[1]
    assert trial_lines(made) == trial_lines(trials) and list(read_trials(trial_lines(made)).trials) == trials


def test_texts_of_reals_are_those_of_python():
    r = np.random.default_rng()
    bits = r.integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64)
    plain = np.concatenate([r.choice((-1.0, 1.0), 20_000) * 10.0 ** r.uniform(-4, 16, 20_000), r.uniform(-1, 1, 1000).round(3)])
    ends = [0.0, -0.0, 1e-4, 1e16, *np.nextafter([1e-4, 1e-4, 1e16, 1e16], [0, 1, 0, np.inf]), 5e-324, 123456789012345680.0]
    for column in (bits[np.isfinite(bits)].tolist(), plain[np.abs(plain) >= 1e-4].tolist(), [1.5, *map(float, ends[:3])], ends):
        column = list(map(float, column))
        assert texts(column, repr) == list(map(repr, column))
        assert texts([[value, 1.0] for value in column], repr) == [f"[{value!r},1.0]" for value in column]
