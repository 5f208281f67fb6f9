"""Budgets: what is found fits, nothing better was overlooked, more bytes are never predicted slower, and the smallest budget works."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from nests import MACHINES, Builder, all_levels, kernels, literal_range, plan

from qdrun.compiler.errors import OutOfMemory
from qdrun.compiler.tape.cost import refills
from qdrun.compiler.tape.machine import cpu, machine
from qdrun.compiler.tape.options import REACH
from qdrun.compiler.tape.plan import fewer
from qdrun.compiler.tape.sizing import StackRegion, TaskSizing


def smallest(tasks, where) -> int:
    """The smallest budget, as the refusal of an empty one names it; 0 when nothing is kept."""
    try:
        return plan(tasks, where, budget=0).bytes
    except OutOfMemory as e:
        assert e.smallest is not None
        return e.smallest


def runs_of_refills(n: int, s: int, r: int) -> int:
    """Body runs of all refills, by walking over blocks and segments as ``passes.reverse`` does."""
    d = s * r
    pad = -n % d
    total, end = 0, n + pad
    for b1 in reversed(range(0, end, d)):
        hi1 = min(end, b1 + d)
        segments = -(-(hi1 - b1) // s)
        for m in reversed(range(segments)):
            b2, hi2 = max(b1 + m * s, pad), min(hi1, b1 + (m + 1) * s)
            if hi2 < end and b2 < hi2:
                start = max(b1, pad) if m == segments - 1 else b2
                total += hi2 - start - 1
    return total


@given(st.integers(1, 400), st.integers(1, 60), st.integers(1, 9))
@example(1000, 36, 1)
@example(27, 3, 3)
def test_refills_are_counted_as_the_reverse_program_runs_them(n, s, r):
    assert int(refills(n, min(s, n), r)) == runs_of_refills(n, min(s, n), r)


def test_two_levels_refill_all_segments_but_the_last():
    assert int(refills(4096, 64, 1)) == (4096 // 64 - 1) * (64 - 1)
    assert refills(np.array([64, 64]), np.array([8, 64]), np.array([1, 1])).tolist() == [49, 0]


@settings(max_examples=30, deadline=None)
@given(kernels(), MACHINES, st.floats(0, 1.2))
def test_a_plan_fits_its_budget_and_the_smallest_budget_works(tasks, where, share):
    least, whole = smallest(tasks, where), plan(tasks, where).bytes
    budget = least + int(share * (whole - least))
    found = plan(tasks, where, budget=budget)
    assert found.bytes <= budget
    assert plan(tasks, where, budget=least).bytes <= least
    if least:
        with pytest.raises(OutOfMemory, match=f"does not fit a budget of {least - 1:,} bytes"):
            plan(tasks, where, budget=least - 1)


@settings(max_examples=30, deadline=None)
@given(kernels(), MACHINES, st.lists(st.floats(0, 1.1), min_size=2, max_size=8))
def test_more_bytes_are_never_predicted_slower(tasks, where, shares):
    least, whole = smallest(tasks, where), plan(tasks, where).bytes
    found = [plan(tasks, where, budget=least + int(share * (whole - least))) for share in sorted(shares)]
    times = [p.seconds for p in found]
    for earlier, later in pairwise(times):
        assert later <= earlier * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(kernels(most=4, planes=("f8",)), st.floats(0, 1))
def test_no_combination_of_levels_that_fits_is_faster(tasks, share):
    assume(all(s.range.end is not None for t in tasks for s in t.region.all_loops()))
    where = cpu(2)
    least, whole = smallest(tasks, where), plan(tasks, where).bytes
    budget = least + int(share * (whole - least))
    fits = [p for p in all_levels(tasks, where) if p.bytes <= budget]
    if fits:
        best = min(p.seconds for p in fits)
        assert plan(tasks, where, budget=budget).seconds <= best * 1.02  # a long front is thinned out


@settings(max_examples=25, deadline=None)
@given(kernels(), MACHINES)
def test_a_budget_of_all_bytes_is_the_plan_without_one_or_a_faster_one(tasks, where):
    whole = plan(tasks, where)
    same, more = (plan(tasks, where, budget=n * whole.bytes) for n in (1, 10))
    if all(s.range.end is not None for t in tasks for s in t.region.all_loops()):
        assert same == more == whole
    else:  # loops without a bound have the smallest plan unless a budget has room for another
        assert same.bytes <= whole.bytes
        assert more.seconds <= same.seconds * (1 + 1e-9) <= whole.seconds * (1 + 2e-9)


@settings(max_examples=20, deadline=None)
@given(kernels(), MACHINES, st.floats(0, 1))
def test_a_plan_is_deterministic_and_covers_every_iteration(tasks, where, share):
    least, whole = smallest(tasks, where), plan(tasks, where).bytes
    budget = least + int(share * (whole - least))
    found = plan(tasks, where, budget=budget)
    assert found == plan(tasks, where, budget=budget)
    for task in found.tasks:
        for loop in task.loops:
            p = loop.plan
            assert p.capacity >= (REACH if p.bound is None else p.bound)
            assert p.C1 == 0 or p.D1 % p.S == 0


def one_loop(count, words=1, rows=None, **more) -> tuple[TaskSizing, ...]:
    loop = Builder().loop(count, {"f4": words}, {"f4": words}, [2, 1, 1], **more)
    axes = () if rows is None else (literal_range(rows),)
    return (TaskSizing(0, "t", axes, rows is not None, StackRegion((loop,))),)


@pytest.mark.parametrize("budget", [512, 800, 1600, 4000, 6000, 7600, 7999])
def test_a_two_level_loop_spends_its_budget(budget):
    found = plan(one_loop(1000, 2), cpu(1), budget=budget).tasks[0].loops[0]
    assert found.plan.levels == 2
    assert budget - 2 * 8 < found.row_bytes <= budget


def test_levels_go_up_as_the_budget_goes_down():
    tasks = one_loop(1000)
    levels = [plan(tasks, cpu(1), budget=b).tasks[0].loops[0].plan.levels for b in (4000, 3999, 300, 256, 240, 120)]
    assert levels == [1, 2, 2, 2, 3, 3]
    times = [plan(tasks, cpu(1), budget=b).seconds for b in (4000, 3000, 2000, 1000, 256, 200, 150, 120)]
    assert times == sorted(times)


def test_a_million_iterations_of_a_while_fit_299_slots():
    tasks = one_loop(None)
    found = plan(tasks, cpu(1), budget=4 * 299)
    p = found.tasks[0].loops[0].plan
    assert (p.C1, p.C2, p.S, p.D1) == (100, 99, 100, 2500)
    assert found.bytes == 4 * 299
    assert p.capacity == 1_000_000
    assert smallest(tasks, cpu(1)) == 4 * 299


def test_a_stack_size_of_the_user_is_kept_under_a_budget():
    tasks = one_loop(None)
    assert plan(tasks, cpu(1), budget=4 * 50, fixed_slots=50).bytes == 4 * 50
    with pytest.raises(OutOfMemory):
        plan(tasks, cpu(1), budget=4 * 50 - 1, fixed_slots=50)


def test_fewer_workers_are_the_last_resort():
    tasks = one_loop(1000, rows=500)
    least = smallest(tasks, cpu(4))
    assert least == smallest(tasks, cpu(1))
    assert plan(tasks, cpu(4), budget=least).tasks[0].workers == 1
    assert plan(tasks, cpu(4), budget=4 * least).tasks[0].workers == 4
    assert plan(tasks, cpu(4), budget=4 * least - 1).tasks[0].workers == 3


def test_the_loop_that_gains_least_time_gives_way():
    cheap, dear = Builder(), Builder(5)
    loops = cheap.loop(1000, {"f4": 1}, {"f4": 1}, [1, 0]), dear.loop(1000, {"f4": 1}, {"f4": 1}, [90, 9])
    tasks = (TaskSizing(0, "t", (), False, StackRegion(loops)),)
    first, second = plan(tasks, cpu(1), budget=4300).tasks[0].loops
    assert (first.plan.levels, second.plan.levels) == (2, 1)


def test_each_task_has_the_whole_budget():
    a, b = one_loop(1000)[0], one_loop(700)[0]
    found = plan((a, replace(b, position=1)), cpu(1), budget=4000)
    assert [t.loops[0].plan.levels for t in found.tasks] == [1, 1]
    assert found.bytes == 4000


def test_tasks_in_different_planes_share_the_budget():
    build = Builder()
    loops = [build.loop(1000, {p: 1}, {p: 1}, [2, 1]) for p in ("f4", "i4")]
    tasks = tuple(TaskSizing(k, "t", (), False, StackRegion((s,))) for k, s in enumerate(loops))
    assert plan(tasks, cpu(1)).bytes == 8000
    found = plan(tasks, cpu(1), budget=5000)
    assert 4000 < found.bytes <= 5000
    assert max(t.loops[0].plan.S for t in found.tasks) > 500


def test_a_refusal_names_the_loop_and_the_smallest_budget():
    with pytest.raises(OutOfMemory) as e:
        plan(one_loop(1000, 2, rows=50), cpu(2), budget=100)
    assert str(e.value) == (
        "the gradient `k_grad` does not fit a budget of 100 bytes: its smallest plan needs an adstack heap of 232 bytes\n"
        "  at nests.py:7: 1 rows (workers) x 232 bytes, 1000 iterations (literal)\n"
        "  do: give a budget of 232 bytes or more, or keep fewer or smaller variables from one iteration of this loop to the next"
    )
    assert isinstance(e.value, MemoryError)
    assert e.value.smallest == 232


def test_a_plan_for_a_gpu_gives_up_threads_by_halves():
    where = machine("cuda")
    assert fewer(where.workers)[:3] == [65536, 32768, 16384]
    tasks = one_loop(1000, rows=1 << 20)
    found = plan(tasks, where, budget=4 << 20)
    assert found.bytes <= 4 << 20


@pytest.mark.parametrize("count", [10**6, 10**8])
def test_long_loops_are_planned(count):
    tasks = one_loop(count)
    for budget in (count, count // 10, 40_000):
        assert plan(tasks, cpu(1), budget=budget).bytes <= budget


def test_many_loops_are_planned():
    build = Builder()
    region = StackRegion(tuple(build.loop(100 + 37 * k, {"f4": 2}, {"f4": 1}, [k % 5, 1]) for k in range(20)))
    tasks = (TaskSizing(0, "t", (literal_range(64),), True, region),)
    least, whole = smallest(tasks, cpu(2)), plan(tasks, cpu(2)).bytes
    times = [plan(tasks, cpu(2), budget=b).seconds for b in np.linspace(least, whole, 12).astype(int).tolist()]
    assert times == sorted(times, reverse=True)
