"""Plans of time steps: the schedule reaches the optimum, the search finds the best plan, refusals name a budget that works."""

import functools
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qdrun as qd
from qdrun.compiler.lang.autograd.time_steps.steps_plan import StepsPlan, advances, extra_runs, fewest, schedule


@functools.cache
def fewest_advances(windows: int, snapshots: int) -> int:
    """By trying every place of the next snapshot."""
    if windows == 1 or snapshots == 1:
        return windows * (windows - 1) // 2
    return min(
        first + fewest_advances(windows - first, snapshots - 1) + fewest_advances(first, snapshots)
        for first in range(1, windows)
    )


def follow(windows: int, snapshots: int) -> tuple[int, list[int]]:
    """Carry a schedule out; the windows advanced, and how often each was run."""
    held: dict[int, int] = {}
    place, recorded, done, runs, advanced = 0, -1, [], [0] * windows, 0
    for action in schedule(windows, snapshots):
        match action.kind:
            case "store":
                assert action.window == place and 0 <= action.slot < snapshots
                held[action.slot] = place
            case "restore":
                assert held[action.slot] == action.window
                place = action.window
            case "advance":
                assert place == action.window
                runs[place] += 1
                place, advanced = place + 1, advanced + 1
            case "record":
                assert place == action.window
                runs[place] += 1
                recorded = place
            case "gradient":
                assert recorded == action.window
                done.append(recorded)
    assert done == list(range(windows))[::-1]
    return advanced, runs


@pytest.mark.parametrize("windows", [1, 2, 3, 4, 7, 10, 23, 36])
def test_the_schedule_is_right_and_the_shortest(windows):
    for snapshots in range(1, windows + 2):
        advanced, runs = follow(windows, snapshots)
        assert advanced == advances(windows, snapshots) == fewest_advances(windows, snapshots)
        assert max(runs) - 1 == extra_runs(windows, snapshots)
        assert sum(runs) == advanced + windows


def test_a_long_schedule():
    advanced, runs = follow(3000, 2999)
    assert advanced == 2999 and max(runs) == 2
    assert max(follow(2000, 20)[1]) - 1 == extra_runs(2000, 20) == 4


def test_the_planned_replays_are_those_of_the_schedule():
    for n, window, snapshots in itertools.product((7, 10, 23), (1, 2, 3, 5), (1, 2, 4)):
        plan = StepsPlan(n, window, snapshots, 1, 1)
        _, runs = follow(plan.windows, snapshots)
        short = n - (plan.windows - 1) * window
        assert plan.replays == (runs[0] - 1) * short + sum(r - 1 for r in runs[1:]) * window


def every_plan(n: int, state: int, slot: int, fixed: int, levels: int | None) -> list[StepsPlan]:
    out = [StepsPlan(n, n, 0, state, slot, fixed)]
    for window in range(1, n):
        windows = -(-n // window)
        out += [StepsPlan(n, window, c, state, slot, fixed) for c in range(1, windows)]
    return [p for p in out if levels is None or p.levels <= levels]


sizes = st.integers(0, 50), st.integers(1, 200), st.integers(0, 300)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 25), *sizes, st.sampled_from([None, 2, 3]), st.integers(0, 5000))
def test_the_search_finds_the_best_plan(n, state, slot, fixed, levels, budget):
    plans = every_plan(n, state, slot, fixed, levels)
    fitting = [p for p in plans if p.bytes <= budget]
    if not fitting:
        with pytest.raises(qd.OutOfMemory) as error:
            qd.ad.plan_steps(n, state, slot, budget, fixed_bytes=fixed, levels=levels)
        smallest = error.value.smallest
        assert smallest == min(p.bytes for p in plans)
        assert f"budget={smallest}" in str(error.value)
        found = qd.ad.plan_steps(n, state, slot, smallest, fixed_bytes=fixed, levels=levels)
        assert found.bytes == smallest
    else:
        found = qd.ad.plan_steps(n, state, slot, budget, fixed_bytes=fixed, levels=levels)
        assert found.bytes <= budget
        assert found.replays == min(p.replays for p in fitting)


@settings(max_examples=40, deadline=None)
@given(st.integers(2049, 100_000), st.integers(1, 50), st.integers(1, 200), st.floats(0.001, 1.0))
def test_plans_of_many_steps_fit_and_get_no_slower_with_more_budget(n, state, slot, part):
    budget = int(part * n * slot) + 10 * (state + slot)
    plan = qd.ad.plan_steps(n, state, slot, budget)
    assert plan.bytes <= budget
    assert plan.replays >= qd.ad.plan_steps(n, state, slot, 2 * budget).replays
    # no window length beats it by more than a few steps in a thousand
    for window in range(1, min(n - 1, (budget - 2 * state) // slot) + 1, max(1, n // 500)):
        snapshots = min(-(-n // window) - 1, (budget - window * slot) // state - 1)
        if snapshots >= 1:
            assert plan.replays <= StepsPlan(n, window, snapshots, state, slot).replays * 1.005


def test_memory_grows_with_a_root_of_the_steps():
    for levels, power in ((2, 2), (3, 3), (4, 4)):
        few, many = (_smallest(n, levels) for n in (10_000, 10_000 * 2**power))
        assert 1.7 < many / few < 2.3


def _smallest(n: int, levels: int) -> int:
    with pytest.raises(qd.OutOfMemory) as error:
        qd.ad.plan_steps(n, 100, 100, 0, levels=levels)
    assert error.value.smallest is not None
    return error.value.smallest


def test_the_fewest_snapshots():
    for windows in range(2, 40):
        for runs in (1, 2, 3):
            found = fewest(windows, runs)
            assert extra_runs(windows, found) <= runs and (found == 1 or extra_runs(windows, found - 1) > runs)


def test_without_a_budget_one_window_holds_everything():
    plan = qd.ad.plan_steps(100, 8, 32)
    assert (plan.window, plan.windows, plan.levels, plan.replays, plan.bytes) == (100, 1, 1, 0, 3200)
    assert str(plan) == "100 steps in 1 windows of 100, 0 snapshots, 0 steps run again, 3,200 bytes"


def test_numbers_that_are_none():
    for args in ((-1, 8, 8), (1, -8, 8), (1, 8, -8)):
        with pytest.raises(qd.QdrunRuntimeError, match="not negative"):
            qd.ad.plan_steps(*args)
    with pytest.raises(qd.QdrunRuntimeError, match="at least 1"):
        qd.ad.plan_steps(1, 8, 8, 8, levels=0)
