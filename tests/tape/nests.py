"""Random nests of loops as the planner sees them, without a kernel behind them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from hypothesis import strategies as st

from qdrun.compiler.ir.nodes import Loc, Op
from qdrun.compiler.ir.types import i32
from qdrun.compiler.tape.bounds.sizeexpr import Lit, Range
from qdrun.compiler.tape.heap_plan import HeapPlan
from qdrun.compiler.tape.levels import full_tape, with_levels
from qdrun.compiler.tape.machine import Machine, cpu
from qdrun.compiler.tape.plan import PlanOptions, make_plan
from qdrun.compiler.tape.sizing import LoopSizing, StackRegion, StackSizing, TaskSizing
from qdrun.compiler.tape.work import CLASSES, LoopWork, Work

HERE = Loc("nests.py", 7, 0, 4, "for", "k")


class NoHost:
    """Bounds of these nests are literals: nothing is asked."""

    def scalar(self, arg):
        raise AssertionError(arg)

    extent = array = scalar


def literal_range(count: int | None) -> Range:
    return Range(Op("index", (), i32), Lit(0), None if count is None else Lit(count), 1, HERE)


def work_of(amounts: list[float]) -> Work:
    counts = tuple(amounts[k % len(amounts)] for k in range(len(CLASSES)))
    return Work(counts, tuple(c / 2 for c in counts))


@dataclass
class Builder:
    """Makes loops with numbers of their own."""

    next: int = 0

    def loop(self, count, x, t, amounts, inner=StackRegion(), nest=()) -> LoopSizing:  # noqa: B008
        """``x``, ``t``: words by plane of a checkpoint and of a slot of the tape."""
        number, self.next = self.next, self.next + 1
        stacks = tuple(
            StackSizing(f"{kind}.{number}", kind, tuple(sorted(widths.items())))
            for kind, widths in (("ck1", x), ("ck2", x), ("tape", t))
        )
        work = LoopWork(work_of(amounts), work_of(amounts), work_of([2 * a for a in amounts]))
        return LoopSizing(number, literal_range(count), False, nest, stacks if t else (), inner, work)


@st.composite
def widths(draw, planes):
    t = {p: draw(st.integers(0, 3)) for p in planes}
    if not any(t.values()):
        t[planes[0]] = 1
    x = {p: n + draw(st.integers(0, 2)) for p, n in t.items()}
    return {p: n for p, n in x.items() if n}, {p: n for p, n in t.items() if n}


COUNTS = st.one_of(st.integers(0, 40), st.integers(40, 3000), st.none())


@st.composite
def regions(draw, build, planes, left, depth=0):
    """A region of at most ``left[0]`` loops."""
    loops, arms = [], []
    for _ in range(draw(st.integers(1, 2))):
        if left[0] <= 0:
            break
        left[0] -= 1
        inner = (
            draw(regions(build, planes, left, depth + 1)) if depth < 2 and left[0] and draw(st.booleans()) else StackRegion()
        )
        x, t = draw(widths(planes))
        loops.append(build.loop(draw(COUNTS), x, t, draw(st.lists(st.integers(0, 9), min_size=2, max_size=3)), inner))
    if left[0] >= 2 and draw(st.booleans()):
        arms.append((draw(regions(build, planes, left, depth + 1)), draw(regions(build, planes, left, depth + 1))))
    return StackRegion(tuple(loops), tuple(arms))


@st.composite
def kernels(draw, most=5, planes=None, tasks=2):
    """The tasks of a reverse kernel."""
    build, left = Builder(), [most]
    planes = planes or draw(st.sampled_from([("f4",), ("f8",), ("f8", "i4"), ("f4", "i8")]))
    out = []
    for k in range(draw(st.integers(1, tasks))):
        parallel = draw(st.booleans())
        axes = (literal_range(draw(st.integers(1, 500))),) if parallel else ()
        out.append(TaskSizing(k, f"t{k}", axes, parallel, draw(regions(build, planes, left))))
    return tuple(out)


MACHINES = st.builds(cpu, st.integers(1, 4), st.sampled_from([1, 4]))


def plan(tasks: tuple[TaskSizing, ...], machine: Machine, **options) -> HeapPlan:
    return make_plan("k_grad", tasks, NoHost(), PlanOptions(machine, **options))


def all_levels(tasks: tuple[TaskSizing, ...], machine: Machine) -> list[HeapPlan]:
    """The plans of every combination of levels, each loop with its smallest segments."""
    loops = [s for t in tasks for s in t.region.all_loops() if s.stacks and s.range.end is not None]
    out = []
    for combination in product((1, 2, 3), repeat=len(loops)):
        level = {s.number: n for s, n in zip(loops, combination)}

        def choose(s, k, source, level=level):
            if level[s.number] == 1:
                return full_tape(k, source)
            return with_levels(k, level[s.number], None, s.bytes("ck1"), s.bytes("tape"), source)

        out.append(plan(tasks, machine, choose=choose))
    return out
