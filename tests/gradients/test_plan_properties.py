"""Random kernels under random plans: allocated as planned to the byte, no word touched beyond the plan, one gradient whatever the plan."""

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

sys.path.insert(0, str(Path(__file__).parent))
from heap_guard import Guard, guarded, launch_under, plan_with
from plan_kernels import PlanCase, plan_kernel

from qdrun.compiler.ir.types import PLANES
from qdrun.compiler.tape.levels import LoopPlan, fixed_capacity, full_tape, thinning, with_levels
from qdrun.compiler.tape.sizing import LoopSizing

COUNTS: Counter[str] = Counter()
PARTS, EACH = 8, int(os.environ.get("QDRUN_RANDOM_PLANS", "32")) // 8


WILD = 1e6


def same(name: str, got: np.ndarray, want: np.ndarray) -> None:
    assert np.array_equal(got, want, equal_nan=True), f"{name}: {got[got != want][:4]} is not {want[got != want][:4]}"


def check(source: str, number: int) -> None:
    """Everything that is asked of one kernel."""
    COUNTS["kernels"] += 1
    with np.errstate(all="ignore"), guarded() as guard:
        case = PlanCase(source, number)
        planned = case.k.grad.plan(*case.args)
        want = case.gradient()
        touched = guard.check(case.program, planned)
        if planned.bytes and all(row["bound"] is not None for row in planned.rows()):
            words = sum(t.rows * n * PLANES[p] for t in planned.tasks for p, n in t.words.items())
            COUNTS["heaps with known bounds"] += 1
            COUNTS["of which every word was used"] += words == sum(touched.values())
        check_differences(case, want)
        check_random_plans(case, guard, want, random.Random(number))
        check_small_plans(case, guard, want, random.Random(number))
        case.close()
    with np.errstate(all="ignore"):
        check_allocation(source, number, want)
        check_threads(source, number, want)
        check_budgets(source, number, want)
        if number % 2 == 0:
            check_changes(source, number)


def check_differences(case: PlanCase, got: np.ndarray) -> None:
    """Against central differences at two steps. They say nothing where they disagree, and of iterations that grow beyond all measure."""
    coarse, fine = case.differences(1e-5), case.differences(1e-6)
    values = np.tile(case.values(), 2)
    usable = np.isfinite(coarse) & np.isfinite(fine) & (np.abs(values) < WILD) & (np.abs(got) < WILD)
    scale = max(1.0, float(np.abs(fine[usable]).max(initial=0.0)))
    usable &= np.abs(coarse - fine) <= 1e-7 * scale
    COUNTS["components"] += usable.size
    COUNTS["components that differences cannot check"] += int((~usable).sum())
    error = np.abs(got - coarse)[usable] / scale
    assert error.size == 0 or error.max() <= 1e-6, f"relative error {error.max()}"


def check_random_plans(case: PlanCase, guard: Guard, want: np.ndarray, r: random.Random) -> None:
    """The compiled gradient under plans that nobody would choose: same bits, and no word beyond any of them."""

    def choose(s: LoopSizing, count: int | None, source: str) -> LoopPlan:
        if count is None or r.random() < 0.2:
            return thinning(r.randint(3, 9), 2 ** r.randint(0, 5) - 1 or 1, r.randint(8, 40), source=source)
        levels = r.randint(1, 3)
        segment = r.choice([None, 1, 2, 3, r.randint(1, 12)])
        return (
            with_levels(count, levels, segment, s.words("ck1"), s.words("tape"), source) if count else full_tape(count, source)
        )

    for _ in range(4):
        guard.arm()
        plan = plan_with(case.k, case.args, choose)
        same("a random plan", case.gradient(partial(launch_under, case.k, case.args, plan)), want)
        touched = guard.check(case.program, plan)
        COUNTS["plans"] += 1
        COUNTS["plans with bytes"] += bool(sum(touched.values()))


def check_small_plans(case: PlanCase, guard: Guard, want: np.ndarray, r: random.Random) -> None:
    """Plans that are too small, as if data had changed under them: the same bits, or an overflow. Never a word beyond, and the next launch
    is right.
    """

    def choose(s: LoopSizing, count: int | None, source: str) -> LoopPlan:
        known = 5 if count is None else count
        levels = r.randint(1, 3)
        if levels == 1:
            return fixed_capacity(r.randint(1, 4), source)
        return with_levels(
            max(1, known - r.randint(0, 4)), levels, r.choice([None, 1, 2]), s.words("ck1"), s.words("tape"), source
        )

    for _ in range(3):
        guard.arm()
        plan = plan_with(case.k, case.args, choose)
        try:
            same("a small plan", case.gradient(partial(launch_under, case.k, case.args, plan)), want)
            COUNTS["small plans that were enough"] += 1
        except qd.AdStackOverflow as e:
            assert "in kernel `k`" in str(e)
            assert "\n  do: " in str(e)
            COUNTS["overflows"] += 1
        guard.check(case.program, plan)
    same("after small plans", case.gradient(), want)


def check_allocation(source: str, number: int, want: np.ndarray) -> None:
    """At each level the heap is allocated as planned, and the gradient has the same bits."""
    for levels in (1, 2, 3):
        case = PlanCase(source, number, ad_checkpoint_levels=levels)
        planned = case.k.grad.plan(*case.args).bytes
        assert case.program.usage().get("adstack", 0) == 0, "a plan allocates nothing"
        same(f"{levels} levels", case.gradient(), want)
        assert case.program.usage().get("adstack", 0) == planned
        COUNTS["heaps of the planned bytes"] += 1
        case.close()


def check_threads(source: str, number: int, want: np.ndarray) -> None:
    """Any number of threads gives the same bits; SIMD lanes give them up to our own sines."""
    lanes = [{"cpu_max_num_threads": 2, "cpu_lanes": 4}] if number % 3 == 0 else []
    for options in ({"cpu_max_num_threads": 2}, {"cpu_max_num_threads": 3}, *lanes):
        with guarded() as guard:
            case = PlanCase(source, number, **options)
            got = case.gradient()
            plan = case.k.grad.plan(*case.args)
            guard.check(case.program, plan)
            COUNTS["heaps of several rows"] += plan.bytes > 0 and plan.tasks[-1].rows > 1
            case.close()
        if "cpu_lanes" not in options:
            same(f"{options}", got, want)
        elif np.isfinite(want).all():
            off = np.abs(got - want) > 1e-8 * max(1.0, float(np.abs(want).max()))
            COUNTS["components in lanes"] += off.size
            COUNTS["of which took another branch"] += int(off.sum())


def check_budgets(source: str, number: int, want: np.ndarray) -> None:
    """Any budget from the smallest on: the plan fits, more bytes are never predicted slower, the gradient has the same bits. One byte less
    than the smallest is refused.
    """
    r = random.Random(number)
    with guarded(pad=0) as guard:
        case = PlanCase(source, number, cpu_max_num_threads=2)
        whole = case.k.grad.plan(*case.args)
        if whole.bytes:
            smallest = smallest_budget(case)
            before = None
            for budget in sorted({smallest, whole.bytes, *(r.randint(smallest, max(smallest, whole.bytes)) for _ in range(2))}):
                plan = case.k.grad.plan(*case.args, budget=budget)
                assert plan.bytes <= budget
                assert before is None or plan.seconds <= before
                before = plan.seconds
                guard.arm()
                same(f"a budget of {budget}", case.gradient(partial(case.k.grad, *case.args, budget=budget)), want)
                guard.check(case.program, plan)
                COUNTS["budgets"] += 1
            check_memory_budget(source, number, want, smallest)
        case.close()


def check_memory_budget(source: str, number: int, want: np.ndarray, smallest: int) -> None:
    """A program may hold what it holds beside its heap, and the smallest heap: it never holds more, and the gradient has the same bits."""
    whole = PlanCase(source, number, cpu_max_num_threads=2)
    whole.gradient()
    rest = sum(n for kind, n in whole.program.usage().items() if kind != "adstack")
    whole.close()
    case = PlanCase(source, number, cpu_max_num_threads=2, memory_budget=rest + smallest)
    same("a memory budget", case.gradient(), want)
    assert case.program.peak_bytes <= rest + smallest
    assert case.program.usage()["adstack"] <= smallest
    COUNTS["memory budgets"] += 1
    case.close()


def smallest_budget(case: PlanCase) -> int:
    """From the refusal of a budget of nothing."""
    with pytest.raises(qd.OutOfMemory) as e:
        case.k.grad.plan(*case.args, budget=0)
    smallest = e.value.smallest
    assert smallest is not None
    assert str(smallest) in str(e.value)
    with pytest.raises(qd.OutOfMemory):
        case.k.grad(*case.args, budget=smallest - 1)
    return smallest


def check_changes(source: str, number: int) -> None:
    """Bounds and gates that change between launches: the next launch is planned for what is there then, as a fresh program would."""
    with guarded() as guard:
        case = PlanCase(source, number, cpu_max_num_threads=2)
        case.gradient()
        for way in range(3):
            case.redraw(3 * number + way)
            fresh = PlanCase(source, number)
            fresh.fill({name: f.to_numpy() for name, f in case.data.items()}, case.lens.to_numpy())
            want, rows = fresh.gradient(), [row["bound"] for row in fresh.k.grad.plan(*fresh.args).rows()]
            fresh.close()
            case.program.activate()
            guard.arm()
            same(f"after change {way}", case.gradient(), want)
            plan = case.k.grad.plan(*case.args)
            guard.check(case.program, plan)
            assert [row["bound"] for row in plan.rows()] == rows
            COUNTS["changes"] += 1
        case.close()


def check_one_heap(numbers: range) -> None:
    """Several kernels of one program, launched in any order and under any budget: one heap serves them all, and holds what the largest plan
    so far asked for, to the byte and by plane.
    """
    r = random.Random(numbers[0])
    wanted = {}
    for number in numbers:
        alone = PlanCase(plan_kernel(number), numbers[0])
        wanted[number] = alone.gradient()
        alone.close()
    with guarded(pad=0) as guard:
        case = PlanCase(plan_kernel(numbers[0]), numbers[0], cpu_max_num_threads=2)
        kernels = {number: case.k if number == numbers[0] else case.another(plan_kernel(number)) for number in numbers}
        held = dict.fromkeys(PLANES, 0)
        for number in r.choices(numbers, k=12):
            case.k = kernels[number]
            whole = case.k.grad.plan(*case.args)
            budget = r.choice([None, whole.bytes, smallest_budget(case) if whole.bytes else 0])
            options = {} if budget is None else {"budget": budget}
            plan = case.k.grad.plan(*case.args, **options)
            guard.arm()
            same(f"kernel {number}", case.gradient(partial(case.k.grad, *case.args, **options)), wanted[number])
            guard.check(case.program, plan)
            held = {plane: max(held[plane], plan.planes[plane]) for plane in PLANES}
            assert case.program.usage().get("adstack", 0) == sum(held.values())
        case.close()


@pytest.mark.parametrize("first", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_one_heap_serves_several_kernels(first):
    with np.errstate(all="ignore"):
        check_one_heap(range(first, first + 3))


@pytest.mark.parametrize("number", [*range(1, 5), *(pytest.param(n, marks=pytest.mark.slow) for n in (0, *range(5, 12)))])
def test_a_random_kernel_keeps_to_its_plans(number):
    check(plan_kernel(number), number)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_random_kernels_keep_to_their_plans(part):
    first = (int(os.environ.get("QDRUN_SEED", "0")) * PARTS + part) * EACH + 1000
    for number in range(first, first + EACH):
        try:
            check(plan_kernel(number), number)
        except Exception as e:
            e.add_note(f"seed {number}:\n{plan_kernel(number)}")
            raise


@pytest.fixture(scope="module", autouse=True)
def differences_can_check_almost_every_component():
    """In each process that has run some."""
    yield
    print(f"\nrandom plans: {dict(COUNTS)}")
    assert COUNTS["of which took another branch"] <= 0.01 * COUNTS["components in lanes"] + 50, dict(COUNTS)
    assert COUNTS["components that differences cannot check"] <= 0.05 * COUNTS["components"] + 100, dict(COUNTS)
