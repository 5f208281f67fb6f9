"""Where stacks lie in a row: two that are live together never overlap, and a row is no longer than what is live together at most."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from qdrun.compiler.ir.nodes import Op
from qdrun.compiler.ir.types import i32
from qdrun.compiler.tape.bounds.sizeexpr import Lit, Range
from qdrun.compiler.tape.layout import RowLayout
from qdrun.compiler.tape.levels import LoopPlan
from qdrun.compiler.tape.sizing import LoopSizing, StackRegion, StackSizing

PLANES = ("f4", "f8", "i4")


@st.composite
def regions(draw, numbers=None, depth: int = 0) -> StackRegion:
    """Loops with and without stacks, in one another and in arms of ifs."""
    numbers = itertools.count() if numbers is None else numbers
    loops = tuple(draw(loop(numbers, depth)) for _ in range(draw(st.integers(0, 2))))
    arms = ()
    if depth < 3:
        arms = tuple(
            (draw(regions(numbers, depth + 1)), draw(regions(numbers, depth + 1))) for _ in range(draw(st.integers(0, 1)))
        )
    return StackRegion(loops, arms)


@st.composite
def loop(draw, numbers, depth: int) -> LoopSizing:
    number = next(numbers)
    stacks = []
    if draw(st.booleans()):
        for kind in ("ck1", "ck2", "tape"):
            widths = {p: draw(st.integers(1, 3)) for p in PLANES if draw(st.booleans())}
            stacks.append(StackSizing(f"{kind}.{number}", kind, tuple(sorted(widths.items()))))
    inner = draw(regions(numbers, depth + 1)) if depth < 3 else StackRegion()
    index = Op("index", (), i32)
    return LoopSizing(number, Range(index, Lit(0), Lit(1), 1), False, (), tuple(stacks), inner)


def live_sets(region: StackRegion) -> Iterator[list[tuple[LoopSizing, StackSizing]]]:
    """Every set of stacks that are live at one time: all loops of a block, one arm of each if, and one body that runs now."""
    for chosen in itertools.product(*region.arms):
        parts = [(loop, s) for loop in region.loops for s in loop.stacks]
        blocks = [region.loops]
        for arm in chosen:
            for own, loops in _own(arm):
                parts, blocks = parts + own, [*blocks, loops]
        inner = [one.inner for loops in blocks for one in loops if one.inner.all_loops()]
        if not inner:
            yield parts
        for body in inner:
            for live in live_sets(body):
                yield parts + live


def _own(region: StackRegion) -> list[tuple[list[tuple[LoopSizing, StackSizing]], tuple[LoopSizing, ...]]]:
    """The stacks of a region's loops; of nested ifs, the first arms (the others are met when the roles are swapped)."""
    out = [([(loop, s) for loop in region.loops for s in loop.stacks], region.loops)]
    for first, _ in region.arms:
        out += _own(first)
    return out


def swapped(region: StackRegion) -> Iterator[StackRegion]:
    """The region, and with the arms of its nested ifs the other way round."""
    yield region
    yield StackRegion(region.loops, tuple((_swap(a), _swap(b)) for a, b in region.arms))


def _swap(region: StackRegion) -> StackRegion:
    return StackRegion(region.loops, tuple((b, a) for a, b in region.arms))


@settings(max_examples=60, deadline=None)
@given(regions(), st.randoms(use_true_random=False))
def test_stacks_that_are_live_together_do_not_overlap_and_a_row_is_no_longer_than_they_need(region, random):
    plans = {
        s.number: LoopPlan(random.randint(0, 4), random.randint(0, 3), random.randint(1, 9), 1, 3, 9)
        for s in region.all_loops()
    }
    layout = RowLayout(plans)
    words = layout.place(region, {})
    for plane in PLANES:
        for one in swapped(region):
            for live in live_sets(one):
                spans = []
                for at, s in live:
                    width = dict(s.widths).get(plane, 0)
                    first = layout.offsets.get(f"{s.name}.{plane}", 0)
                    spans.append((first, first + width * plans[at.number].slots(s.kind)))
                spans = sorted(x for x in spans if x[0] < x[1])
                assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
                assert not spans or spans[-1][1] <= words[plane]


@settings(max_examples=50, deadline=None)
@given(regions(), st.randoms(use_true_random=False))
def test_a_row_without_ifs_is_as_long_as_the_longest_live_set(region, random):
    region = _without_ifs(region)
    plans = {s.number: LoopPlan(0, 0, random.randint(1, 9), 1, 1, None) for s in region.all_loops()}
    words = RowLayout(plans).place(region, {})
    for plane in PLANES:
        sizes = [
            sum(dict(s.widths).get(plane, 0) * plans[at.number].slots(s.kind) for at, s in live) for live in live_sets(region)
        ]
        assert words.get(plane, 0) == max(sizes, default=0)


def _without_ifs(region: StackRegion) -> StackRegion:
    loops = tuple(LoopSizing(s.number, s.range, s.exits, s.nest, s.stacks, _without_ifs(s.inner), s.work) for s in region.loops)
    return StackRegion(loops)
