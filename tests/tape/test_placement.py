"""Tapes in on-chip memory: they fit, they do not overlap, the heap's bytes are the rest, and budgets hold."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from nests import Builder, kernels, literal_range, plan
from test_layout import live_sets, swapped

from qdrun.compiler.errors import OutOfMemory
from qdrun.compiler.ir.types import PLANES
from qdrun.compiler.tape.heap_plan import HeapPlan, debug_lines, spaces
from qdrun.compiler.tape.levels import full_tape, with_levels
from qdrun.compiler.tape.machine import CUDA_CACHE, CUDA_HEAP, CUDA_SHARED, cuda, machine
from qdrun.compiler.tape.options import REACH
from qdrun.compiler.tape.placement import OVER, STEP
from qdrun.compiler.tape.sizing import StackRegion, TaskSizing

GPU = cuda()
MANY = 1 << 22
SEGMENT = (CUDA_SHARED // 4 - OVER) // STEP * STEP + OVER  # of one 4-byte state
THREADS = st.sampled_from([1, 100, 65_536])


def one_loop(count, planes=None, rows=MANY, checkpoint=None) -> tuple[TaskSizing, ...]:
    tape = planes or {"f4": 1}
    return (
        TaskSizing(
            0, "t", (literal_range(rows),), True, StackRegion((Builder().loop(count, checkpoint or tape, tape, [1, 2]),))
        ),
    )


def smallest(tasks) -> int:
    try:
        return plan(tasks, GPU, budget=0).bytes
    except OutOfMemory as e:
        assert e.smallest is not None
        return e.smallest


def check(tasks, found: HeapPlan) -> None:
    """The rules of a placed plan."""
    for task, t in zip(tasks, found.tasks):
        plans = {p.number: p.plan for p in t.loops}
        assert 0 <= t.shared_bytes <= CUDA_SHARED
        assert all(name.startswith("tape.") for name in t.shared), "checkpoints lie in the heap"
        for one in swapped(task.region):
            for live in live_sets(one):
                spans = []
                for at, s in live:
                    if s.name in t.shared:
                        for plane, width in s.widths:
                            first, size = t.params[f"{s.name}.{plane}"], PLANES[plane]
                            assert first % size == 0
                            spans.append((first, first + plans[at.number].slots(s.kind) * width * size))
                            assert plans[at.number].slots(s.kind) == t.params[f"S.{at.number}"], "the launcher counts with S"
                spans.sort()
                assert all(a[1] <= b[0] for a, b in pairwise(spans))
        ends = [
            t.params[f"{s.name}.{plane}"] + plans[at.number].slots(s.kind) * width * PLANES[plane]
            for at in task.region.all_loops()  # ``live_sets`` does not meet every arm of deeply nested ifs
            for s in at.stacks
            if s.name in t.shared
            for plane, width in s.widths
        ]
        assert max(ends, default=0) == t.shared_bytes
        assert t.bytes == sum(t.rows * n * PLANES[p] for p, n in t.words.items())
        for plane, words in t.words.items():
            assert sum(s.words for s in spaces(t, plane)) == words
        far = {name.partition(":")[2] for name in found.far if name.startswith(f"{t.position}:")}
        assert far == {s.name for p in t.loops for s in p.stacks if s.kind == "tape"} - t.shared
    assert str(found) and found.to_json() and list(debug_lines(found))


@settings(max_examples=40, deadline=None)
@given(kernels(), st.sampled_from([1, 2, 3]), THREADS, st.sampled_from([0, 7, 50, 1000]))
def test_tapes_on_chip_fit_and_never_overlap(tasks, levels, threads, fixed):
    check(tasks, plan(tasks, cuda(threads), levels=levels, fixed_slots=fixed))


@settings(max_examples=40, deadline=None)
@given(kernels(), st.sampled_from([1, 2, 3]))
def test_plans_that_others_have_made_are_placed_too(tasks, n):
    def choose(s, k, source):
        if k is None or n == 1:
            return full_tape(40 if k is None else k, source)
        return with_levels(k, n, None, s.bytes("ck1"), s.bytes("tape"), source)

    check(tasks, plan(tasks, GPU, choose=choose))


@settings(max_examples=15, deadline=None)
@given(kernels(), st.floats(0, 1.2))
def test_a_budget_holds_and_the_smallest_one_works(tasks, share):
    least, whole = smallest(tasks), plan(tasks, GPU, budget=1 << 60).bytes
    assert plan(tasks, GPU).bytes <= whole
    found = plan(tasks, GPU, budget=least + int(share * (whole - least)))
    assert found.bytes <= least + int(share * (whole - least))
    check(tasks, found)
    assert plan(tasks, GPU, budget=least).bytes <= least
    if least:
        with pytest.raises(OutOfMemory, match=f"does not fit a budget of {least - 1:,} bytes"):
            plan(tasks, GPU, budget=least - 1)


# ---- what is chosen
def test_a_short_loop_needs_no_heap():
    for count in (1, 64, CUDA_SHARED // 4):
        found = plan(one_loop(count), GPU)
        assert found.bytes == 0 and found.far == frozenset()
        assert found.tasks[0].shared_bytes == 4 * count and found.rows()[0]["levels"] == 1
        assert found.tasks[0].params["threads"] == 262_144


def test_a_long_loop_of_many_rows_gets_checkpoints_in_the_heap_and_a_segment_on_chip():
    found = plan(one_loop(1024), GPU)
    segment = SEGMENT
    assert found.rows()[0]["slots"] == {"ck1": -(-1024 // segment), "ck2": 0, "tape": segment}
    assert found.bytes == 262_144 * 16 * 4 and found.rows()[0]["shared_bytes"] == 4 * SEGMENT
    assert found.planes == {"f4": 262_144 * 16 * 4, "f8": 0, "i4": 0, "i8": 0}


def test_a_tape_that_stays_in_the_cache_stays_whole():
    rows = CUDA_CACHE // (4 * 1024)
    for count, levels in ((rows, 1), (rows + 1, 2)):
        found = plan(one_loop(1024, rows=count), GPU)
        assert found.rows()[0]["levels"] == levels
        assert found.far == (frozenset({"0:tape.0"}) if levels == 1 else frozenset())


def test_more_threads_run_where_every_tape_lies_on_chip_and_the_heap_stays_small():
    slots = SEGMENT
    for count, threads in ((16 * slots, 262_144), (16 * slots + 1, 131_072), (32 * slots, 131_072), (32 * slots + 1, 65_536)):
        found = plan(one_loop(count, rows=1 << 22), GPU)
        assert found.tasks[0].params["threads"] == found.tasks[0].params["rows"] == found.tasks[0].rows == threads
        assert threads == 65_536 or found.bytes <= CUDA_HEAP
    wide = {"f8": CUDA_SHARED // 8 // 8 + 1}
    assert plan(one_loop(2, wide, rows=1 << 22), GPU, levels=2).tasks[0].workers == 65_536
    assert plan(one_loop(1024, rows=1 << 22), cuda(65_536)).tasks[0].workers == 65_536, "as many as were asked for"
    assert plan(one_loop(1024, rows=100_000), GPU).tasks[0].rows == 100_000


def test_states_of_several_planes_share_the_memory_of_a_thread():
    found = plan(one_loop(1000, {"f4": 1, "f8": 1, "i4": 1}), GPU)
    row = found.rows()[0]
    assert row["segment"] == 17 and row["shared_bytes"] == 17 * 16
    at = [found.tasks[0].params[f"tape.0.{p}"] for p in ("f4", "f8", "i4")]
    assert at == [0, 72, 208], "a plane begins at a multiple of its word"
    assert found.tasks[0].shared_bytes >= 208 + 17 * 4


def test_checkpoints_that_would_leave_the_cache_have_three_levels_unless_a_budget_has_room():
    tasks = one_loop(100_000)
    found, roomy = plan(tasks, GPU), plan(tasks, GPU, budget=1 << 40)
    assert found.rows()[0]["levels"] == 3 and roomy.rows()[0]["levels"] == 2
    assert 10 * found.bytes < roomy.bytes and found.far == roomy.far == frozenset()
    assert plan(one_loop(100_000, rows=100), GPU).rows()[0]["levels"] == 2


def test_a_state_too_wide_for_the_chip_lies_in_the_heap():
    wide = {"f8": CUDA_SHARED // 8 // 8 + 1}
    found = plan(one_loop(10_000, wide), GPU)
    assert found.far == {"0:tape.0"} and found.rows()[0]["levels"] == 3 and found.tasks[0].shared_bytes == 0
    assert plan(one_loop(10_000, wide), GPU, levels=2).rows()[0]["segment"] == 100, "the smallest with two levels"


def test_loops_that_are_live_together_share_by_their_needs():
    build = Builder()
    inner = build.loop(20, {"f4": 1}, {"f4": 1}, [1, 2])
    outer = build.loop(1000, {"f4": 1}, {"f4": 1}, [1, 2], StackRegion((inner,)))
    beside = build.loop(1000, {"f4": 1}, {"f4": 1}, [1, 2])
    found = plan((TaskSizing(0, "t", (literal_range(MANY),), True, StackRegion((outer, beside))),), GPU)
    slots = {row["slots"]["tape"]: row["levels"] for row in found.rows()}
    assert slots == {20: 1, 25: 2}, "the inner loop is whole; the others have what is left, in equal parts"
    assert found.tasks[0].shared_bytes == 4 * (20 + 25 + 25)


def test_a_loop_without_a_bound_reaches_as_far_as_on_the_cpu():
    for width in (1, 2, 5, 11, 13, 30):
        found = plan(one_loop(None, {"f4": width}), GPU)
        p = found.tasks[0].loops[0].plan
        assert p.capacity >= REACH and p.bound is None
        assert (found.tasks[0].shared_bytes > 0) == (8 * 4 * width <= CUDA_SHARED)


def test_slots_that_the_user_has_set_are_kept_on_chip_or_not():
    for slots, chip in ((50, 200), (CUDA_SHARED // 4 + 1, 0)):
        found = plan(one_loop(None), GPU, fixed_slots=slots)
        assert found.rows()[0]["slots"]["tape"] == slots and found.tasks[0].shared_bytes == chip


def test_levels_that_are_asked_for_are_given():
    assert [plan(one_loop(5000), GPU, levels=n).rows()[0]["levels"] for n in (1, 2, 3)] == [2, 2, 3]
    assert plan(one_loop(50), GPU, levels=3).bytes == 0


def test_a_budget_thins_the_checkpoints_before_it_gives_up_threads():
    tasks = one_loop(10_000)
    whole = plan(tasks, GPU, budget=1 << 40)
    half = plan(tasks, GPU, budget=whole.bytes // 2)
    assert half.tasks[0].workers == 65_536 and half.rows()[0]["levels"] == 3 and half.tasks[0].shared == whole.tasks[0].shared
    few = plan(tasks, GPU, budget=100_000)
    assert few.tasks[0].workers < 65_536


def test_how_it_is_shown():
    found = plan(one_loop(1024), GPU)
    text = str(found)
    assert "on chip a thread" in text
    assert "on chip, a block: 33,280 = 128 threads x 260 bytes (t: 65 slots of nests.py:7)" in text
    assert "4-byte reals: 16,777,216 = 262144 rows (workers) x 16 x 1 (checkpoints of nests.py:7) x 4 bytes" in text
    data = found.to_json()
    assert data["shared"] == [
        {
            "task": "t",
            "bytes": 33_280,
            "thread_bytes": 260,
            "formula": "33,280 = 128 threads x 260 bytes (t: 65 slots of nests.py:7)",
        }
    ]
    assert "plane=on-chip bytes=33,280 = 128 threads x 260 bytes" in list(debug_lines(found))[-1]
    same = plan(one_loop(1024), machine("vulkan")).tasks[0]
    assert same.shared_bytes == 260 and same.rows == 262_144
    there = plan(one_loop(1024), machine("amdgpu"))
    assert "on chip" not in str(there) and "shared" not in there.to_json() and "shared_bytes" not in there.rows()[0]
    assert there.bytes == 65_536 * 1024 * 4
