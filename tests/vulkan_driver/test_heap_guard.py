"""Random kernels on a device with Vulkan, between guard words: no thread writes outside of its row of the heap, whatever the plan."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))
from device_guard import guarded_on_device, padded
from heap_guard import launch_under, plan_with
from plan_kernels import PlanCase, plan_kernel

from qdrun.compiler.tape.levels import LoopPlan, fixed_capacity, full_tape, thinning, with_levels
from qdrun.compiler.tape.sizing import LoopSizing

from .conftest import NAME

COUNTS: Counter[str] = Counter()


def a_plan(r: random.Random, s: LoopSizing, count: int | None, source: str) -> LoopPlan:
    """A plan of a loop that nobody would choose."""
    if count is None or r.random() < 0.2:
        return thinning(r.randint(3, 9), 2 ** r.randint(0, 5) - 1 or 1, r.randint(8, 40), source=source)
    levels, segment = r.randint(1, 3), r.choice([None, 1, 2, 3, r.randint(1, 12)])
    return with_levels(count, levels, segment, s.words("ck1"), s.words("tape"), source) if count else full_tape(count, source)


def a_small_plan(r: random.Random, s: LoopSizing, count: int | None, source: str) -> LoopPlan:
    """One that may be too small, as if data had changed under it."""
    levels = r.randint(1, 3)
    if levels == 1:
        return fixed_capacity(r.randint(1, 4), source)
    less = max(1, (5 if count is None else count) - r.randint(0, 4))
    return with_levels(less, levels, r.choice([None, 1, 2]), s.words("ck1"), s.words("tape"), source)


def check(number: int, plans: int = 3) -> None:
    """One kernel: near the processor's gradient, whose sines are others; the same bits under random plans; those or an overflow under
    small ones; never a word outside of the rows.
    """
    source, r = plan_kernel(number), random.Random(number)
    here = PlanCase(source, number)
    expected = here.gradient()
    here.close()
    with guarded_on_device() as guard:
        case = PlanCase(source, number, arch=qd.vulkan, device=NAME)
        want = case.gradient()
        off = np.abs(want - expected) > 1e-6 * max(1.0, float(np.abs(expected[np.isfinite(expected)]).max()))
        COUNTS["components"] += off.size
        COUNTS["of which took another branch"] += int(off.sum())
        for way in (None, *[partial(a_plan, r)] * plans, *[partial(a_small_plan, r)] * plans):
            chosen = plan_with(case.k, case.args, way) if way else case.k.grad.plan(*case.args)
            plan, rows = padded(chosen)
            case.program.grow_heap(plan.planes)
            guard.arm(case.program)
            try:
                got = case.gradient(partial(launch_under, case.k, case.args, plan))
                np.testing.assert_array_equal(got, want)
            except qd.AdStackOverflow:
                assert way and way.func is a_small_plan
                COUNTS["overflows"] += 1
            COUNTS["plans"] += 1
            COUNTS["plans with writes"] += guard.check(case.program, plan, rows) > 0
        np.testing.assert_array_equal(case.gradient(), want, "after small plans")
        case.close()


@pytest.mark.parametrize("number", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 1000, 1001, 1002))])
def test_no_thread_of_a_random_kernel_leaves_its_rows(has_device, number):
    with np.errstate(all="ignore"):
        check(number)


@pytest.mark.slow
@pytest.mark.skipif("QDRUN_VULKAN_PLANS" not in os.environ, reason="a long search, for a person who starts it")
def test_no_thread_of_many_random_kernels_leaves_its_rows(has_device):
    count = int(os.environ["QDRUN_VULKAN_PLANS"])
    first = 2000 + int(os.environ.get("QDRUN_SEED", "0")) * count
    for number in range(first, first + count):
        if "serialize=True" in plan_kernel(number):
            continue  # llvmpipe ends all loops of its one thread after 65,536 iterations in sum
        try:
            with np.errstate(all="ignore"):
                check(number)
        except Exception as e:
            e.add_note(f"seed {number}:\n{plan_kernel(number)}")
            raise


def teardown_module() -> None:
    print(f"\nrandom plans: {dict(COUNTS)}")


def test_branches_that_other_sines_take_are_rare():
    assert COUNTS["of which took another branch"] <= 0.01 * COUNTS["components"], dict(COUNTS)


def test_the_guard_sees_a_write_outside_of_the_rows(has_device):
    with guarded_on_device() as guard, qd.init(arch=qd.vulkan, device=NAME, default_fp=qd.f64) as program:
        x, y = (qd.field(qd.f64, shape=20, needs_grad=True) for _ in range(2))

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                v = x[i]
                for _ in range(n):
                    v = v * (1.4 - v)
                y[i] = v

        x.fill(0.3)
        k.grad(3)
        plan, rows = padded(plan_with(k, (3,), lambda s, count, source: full_tape(count, source)))
        program.grow_heap(plan.planes)
        guard.arm(program)
        launch_under(k, (3,), plan)
        assert rows == {0: 20} and guard.check(program, plan, rows) == 20 * 3 * 8
        with pytest.raises(AssertionError, match=r"words \[19, 42, 65\] belong to no thread"):
            guard.check(program, plan, {0: 19})
        end = program.heap_address("f8") + plan.planes["f8"]
        for at, said in ((program.heap_address("f8") - 8, "before"), (end, "behind")):
            guard.arm(program)
            program.device.memset(at, 7, 2, 4)
            with pytest.raises(AssertionError, match=f"plane f8: a write {said} the heap"):
                guard.check(program, plan, rows)
