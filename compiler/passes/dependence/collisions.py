"""Rule 3 of data access: several iterations of a parallel loop may not store to one element with a gradient.

Which of them comes last is not determined, so the gradient is not defined. Each pair of writes is proven apart, in this order:

- by their form: sums of axis indices that hold every axis (``indexing.held_axes``), conditions that pick one iteration, values that are
  the same in all iterations;
- by evaluating the indices of all iterations (``store_maps``), here, or before each launch whose arguments decide;
- what an index reads from memory is the user's assertion that it does not repeat. Where launches are watched (``debug``, a tape with
  ``validation``) that is checked before each gradient. Reads that repeat (``y[c[i // 2]]``) are refused.

Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ...errors import DataAccessError
from ...ir.alias import same_array
from ...ir.nodes import Block, Const, GlobalStore, If, Kernel, Loc, Local, Loop, Op, Operand, Place, Stmt, Task
from ...ir.walk import loop_names, stored_value, walk
from ...tape.bounds.queries import HostInputs
from ...tape.bounds.row_predicates import Condition, distinct
from ...tape.bounds.sizeexpr import ElementRead, Index, Pick, Range, SizeExpr, UnknownExpr
from .access import Access, WriteSet, line_of, writes_of
from .indexing import Linear, axes_of, extents, held_axes, is_invariant, linear, own_element
from .store_maps import (
    Clash,
    FreeConditions,
    Spot,
    StoreReader,
    WritePair,
    addresses,
    computes_reals,
    find_clash,
    reads,
    used_ranges,
)

REMEDY = (
    "give each iteration its own element, add up with `+=` (qd.atomic_add), or run the loop in order: "
    "qd.loop_config(serialize=True)"
)


@dataclass(frozen=True)
class Collision:
    """Two writes that may name one element in two iterations. ``why``: more about it."""

    access: Access
    write: Stmt
    why: str = ""
    certain: bool = True


def check_stores(kernel: Kernel, task: Task, varied: set[Op | Local]) -> list[WritePair]:
    """Rule 3, for one task of a kernel. ``varied``: what a gradient can flow through.

    Returns what each launch has to prove.

    Raises:
        DataAccessError: naming the lines.
    """
    left: list[WritePair] = []
    for found in collisions(kernel, task, varied, lambda place: place.differentiable):
        if isinstance(found, Collision):
            raise _refusal(found)
        left.append(found)
    return left


def collisions(
    kernel: Kernel, task: Task, varied: set[Op | Local], kept: Callable[[Place], bool]
) -> Iterator[Collision | WritePair]:
    """The stores of varied values to ``kept`` places that may meet another write of the element, by another iteration."""
    stores = [a for a in writes_of(walk(task.body)) if isinstance(a[2], GlobalStore) and kept(a[0])]
    if not task.parallel or not stores:
        return
    found = _Collisions(kernel, task)
    seen: set[tuple[int, int]] = set()
    for access in stores:
        for write in found.writes.meeting(access[0], access[1]):
            pair = min(id(access[2]), id(write[2])), max(id(access[2]), id(write[2]))
            if (stored_value(access[2]) in varied or stored_value(write[2]) in varied) and pair not in seen:
                seen.add(pair)
                yield from found.between(access, write)


def shared_stores(task: Task) -> set[GlobalStore]:
    """The stores of a parallel task that are not proven by their form to have elements of their own.

    Two of them on one element store the same value, or a launch has proven that their elements differ, or the user asserts it. Reverse
    mode exchanges the element's adjoint with zero there, so that the first one to run takes all of it.
    """
    stores = [s for s in walk(task.body) if isinstance(s, GlobalStore) and s.place.differentiable]
    if not task.parallel or not stores:
        return set()
    written, ranges = WriteSet(task), extents(task)
    return {s for s in stores if not own_element(s.index, s.index, written, ranges)}


def _refusal(found: Collision) -> DataAccessError:
    place, _, store = found.access
    again = "" if found.write is store else line_of(found.write)
    return refusal(place.name, store.loc, again, found.why, found.certain)  # type: ignore[union-attr]


def refusal(name: str, loc: Loc | None, again: str, why: str, certain: bool = True) -> DataAccessError:
    """The error of rule 3.

    Args:
        name: of the array.
        loc: of the store.
        again: the line of the other write.
        why: how it is known, or why it is not known.
        certain: whether two iterations certainly meet.
    """
    other = f" ({again})" if again else ""
    detail = f": {why}" if why else ""
    if certain:
        what = f"several iterations write to one element of `{name}`{other}, and which of them comes last is not determined{detail}"
    else:
        what = f"several iterations may write to one element of `{name}`{other}, and which of them comes last is not determined{detail}"
    return DataAccessError(what, loc, REMEDY)


def check_meeting(meeting: WritePair, host: HostInputs) -> None:
    """Rule 3 for two writes in one launch.

    Raises:
        DataAccessError: two iterations name one element.
    """
    clash = find_clash(meeting, host)
    if clash is not None:
        why = told(clash, meeting.loop, meeting.shown)
        raise refusal(meeting.name, meeting.loc, meeting.again, why, not clash.too_many)


def told(clash: Clash, loc: Loc | None, shown: int) -> str:
    """A clash in words. ``loc``: of the loop; ``shown``: the numbers of ``clash.element`` that are the index."""
    if clash.too_many:
        return "there are too many iterations to look at each"
    names = loop_names(loc, len(clash.first))
    first, second = (", ".join(f"{n} = {k}" for n, k in zip(names, at)) for at in (clash.first, clash.second))
    element = f"both write element [{', '.join(map(str, clash.element[:shown]))}]" if shown else "both write it"
    element = "have the same index" if shown < 0 else element
    return f"iterations {first} and {second} {element}"


class _Nothing:
    """A launch that is not known."""

    def scalar(self, arg: object) -> int:
        raise LookupError(arg)

    def extent(self, arg: object, axis: int) -> int:
        raise LookupError(arg)

    def array(self, place: object) -> object:
        raise LookupError(place)


_Picked = frozenset[tuple[Op, Linear]]
"""Axes that conditions fix, each with what it is compared with."""


@dataclass(frozen=True)
class _Around:
    """What stands around a statement: the axes that conditions fix, the conditions, the loops."""

    picked: _Picked = frozenset()
    tests: tuple[tuple[Operand, bool], ...] = ()
    loops: tuple[Loop, ...] = ()


class _Collisions:
    def __init__(self, kernel: Kernel, task: Task) -> None:
        self.task, self.writes, self.ranges = task, WriteSet(task), extents(task)
        self._reader, self._undecided = StoreReader(kernel, task), FreeConditions()
        self._around: dict[int, _Around] = {}
        self._conditions(task.body, _Around())

    def between(self, a: Access, b: Access) -> Iterator[Collision | WritePair]:
        """What is not proven about ``a`` in one iteration and ``b`` in another naming two elements."""
        if not same_array(a[0], b[0]):
            yield Collision(a, b[2])
            return
        around, other = self._around[id(a[2])], self._around[id(b[2])]
        several = self.ranges.several
        held = held_axes(a[1], b[1], self.writes, self.ranges, gaps=bool(around.tests or other.tests))
        agreed = held | {axis for axis, _ in around.picked & other.picked}
        free = several - agreed
        if a[2] is b[2]:
            values = axes_of((stored_value(a[2]),), self.writes, self.ranges)
            free = free if values is None else free & values
        if free:
            yield from self._formulas(a, b, agreed)

    # ---- by formulas
    def _formulas(self, a: Access, b: Access, agreed: set[Op]) -> Iterator[Collision | WritePair]:
        """``agreed``: the axes on which two iterations agree where they name one element by both writes."""
        first, second = (tuple(map(self._undecided, self._index(x))) for x in (a, b))
        writes = [(a, first)] if a[2] is b[2] else [(a, first), (b, second)]
        if any(self._reads(x, index) for x, index in writes):
            one = a[2] is b[2] or (first == second and not any(map(self._changing, first)))
            yield from self._asserted(a, b, agreed) if one else [Collision(a, b[2])]
            return
        both = [not isinstance(x, UnknownExpr) and not isinstance(y, UnknownExpr) for x, y in zip(first, second)]
        spots = tuple(self._spot(x, tuple(e for e, known in zip(index, both) if known), agreed) for x, index in writes)
        meeting = self._meeting(a, b, spots, len(first) if all(both) else -1)
        why = next((e.why for e in (*first, *second) if isinstance(e, UnknownExpr)), "")
        if not all(both) and not (agreed or any(both)):
            yield self._unproven(a, b, why)
        elif meeting.unknown or any(isinstance(x, ElementRead) for e in meeting.exprs() for x in distinct(e)):
            yield self._unproven(a, b, meeting.unknown or "how many iterations there are is read from memory")
        elif any(computes_reals(e) for spot in spots for e in spot.index):
            yield self._unproven(a, b, "it is computed with real numbers")
        else:
            yield from self._decided(a, b, meeting, why)

    def _decided(self, a: Access, b: Access, meeting: WritePair, why: str = "") -> Iterator[Collision | WritePair]:
        """What evaluating the formulas says."""
        if meeting.asks:
            yield meeting
            return
        clash = find_clash(meeting, _Nothing())  # type: ignore[arg-type]
        if clash is not None:
            yield (
                self._unproven(a, b, why)
                if why
                else Collision(a, b[2], told(clash, self.task.loc, meeting.shown), not clash.too_many)
            )

    def _asserted(self, a: Access, b: Access, agreed: set[Op]) -> Iterator[Collision | WritePair]:
        """An index that is read from memory: refused if iterations read it at one place, else left to launches that are watched."""
        loops, writes = self._loops(a), [a] if a[2] is b[2] else [a, b]
        index = self._index(a)
        addressed = tuple(x for e in index for x in self._addresses(self._undecided(e), loops))
        axes = {x.op for x in addressed if isinstance(x, Index)} | agreed
        if not self.ranges.several <= axes:
            meeting = self._meeting(a, b, tuple(self._spot(x, addressed, agreed) for x in writes))
            if meeting.unknown or any(isinstance(x, ElementRead) for e in meeting.exprs() for x in distinct(e)):
                yield self._unproven(a, b, meeting.unknown or "how many iterations there are is read from memory")
                return
            yield from self._decided(a, b, meeting)
        spots = tuple(self._spot(x, index, agreed, reading=True) for x in writes)
        whole = self._meeting(a, b, spots, len(index), reads=True)
        yield self._unproven(a, b, whole.unknown) if whole.unknown else whole

    def _unproven(self, a: Access, b: Access, why: str) -> Collision:
        return Collision(a, b[2], f"its index is not proven to differ between iterations ({why})", certain=False)

    def _index(self, a: Access) -> tuple[SizeExpr, ...]:
        return tuple(map(self._reader.expr, a[1]))

    def _loops(self, a: Access) -> tuple[Range, ...]:
        return tuple(self._reader.loop(s) for s in self._around[id(a[2])].loops)

    def _changing(self, e: SizeExpr) -> bool:
        """Whether a value is read from an array that the task writes."""
        return any(x.place in self.writes for x in distinct(e) if isinstance(x, ElementRead))

    def _reads(self, a: Access, index: tuple[SizeExpr, ...]) -> bool:
        """Whether an index is read from memory: it, or where a loop begins whose index it uses."""
        begins = (r.begin for r in used_ranges(index, self._loops(a)))
        return any(map(reads, (*index, *begins)))

    def _addresses(self, e: SizeExpr, loops: tuple[Range, ...]) -> Iterator[SizeExpr]:
        """Values without reads that decide an index that is read from memory; what else decides it is left out."""
        for x in addresses(e):
            read = [r for r in used_ranges((x,), loops) if any(map(reads, r.ends))]
            if not read:
                yield x
            for r in read:
                if reads(r.begin):
                    yield from addresses(r.begin)

    def _spot(self, a: Access, index: tuple[SizeExpr, ...], agreed: set[Op], reading: bool = False) -> Spot:
        """A write as formulas. ``reading``: the content of arrays is known."""
        loops = self._loops(a)
        index = (*index, *(Index(axis) for axis in self.ranges if axis in agreed))
        tests = ((self._reader.expr(cond), holds) for cond, holds in self._around[id(a[2])].tests)
        known = tuple(Condition(e, holds) for e, holds in tests if self._evaluable(e, loops, reading))
        value = self._value(stored_value(a[2]), loops)
        exprs = (*index, *(t.cond for t in known), *(value or ()))
        return Spot(index, known, used_ranges(exprs, loops), value)

    def _evaluable(self, e: SizeExpr, loops: tuple[Range, ...], reading: bool) -> bool:
        """Whether a formula can be evaluated for each iteration."""
        parts = [e, *(end for r in used_ranges((e,), loops) for end in (r.begin, r.end))]
        if any(end is None or any(isinstance(x, UnknownExpr) for x in distinct(end)) for end in parts):
            return False
        return reading or not (computes_reals(e) or any(end is not None and reads(end) for end in parts))

    def _value(self, x: Operand, loops: tuple[Range, ...]) -> tuple[SizeExpr, ...] | None:
        """Formulas that decide a stored value; None: it may be another one in each iteration."""
        found = self._reader.expr(x)
        if self._changing(found) or any(isinstance(e, (UnknownExpr, Pick)) for e in distinct(found)):
            return None
        out = addresses(found)
        return out if all(self._evaluable(e, loops, False) for e in out) else None

    def _meeting(self, a: Access, b: Access, spots: tuple[Spot, ...], shown: int = -1, reads: bool = False) -> WritePair:
        loc = a[2].loc  # type: ignore[union-attr]
        again = "" if a[2] is b[2] else line_of(b[2])
        return WritePair(a[0].name, self._reader.axes(), spots, loc, again, self.task.loc, shown, reads)

    # ---- what stands around the writes
    def _conditions(self, block: Block, around: _Around) -> None:
        for s in block:
            self._around[id(s)] = around
            if isinstance(s, If):
                then = replace(around, picked=around.picked | self._fixed(s.cond), tests=(*around.tests, (s.cond, True)))
                self._conditions(s.then, then)
                self._conditions(s.orelse, replace(around, tests=(*around.tests, (s.cond, False))))
            elif isinstance(s, Loop):
                self._conditions(s.body, replace(around, loops=(*around.loops, s)))

    def _fixed(self, cond: Operand) -> _Picked:
        """The axes of which a true condition leaves one index: ``i == n``."""
        if isinstance(cond, Const):
            return frozenset()
        if cond.op == "and":
            return self._fixed(cond.args[0]) | self._fixed(cond.args[1])
        if cond.op != "eq" or cond.args[0].dtype.is_real:
            return frozenset()
        zero = linear(cond.args[0]).minus(linear(cond.args[1]))
        axes = [(leaf, c) for leaf, c in zero.leaves if isinstance(leaf, Op) and leaf in self.ranges]
        rest = (leaf for leaf, _ in zero.leaves if isinstance(leaf, Op) and leaf not in self.ranges)
        if len(axes) != 1 or not all(is_invariant(x, self.writes) for x in rest):
            return frozenset()
        axis, c = axes[0]
        return frozenset([(axis, zero if c > 0 else zero.times(-1))]) if abs(c) == 1 else frozenset()
