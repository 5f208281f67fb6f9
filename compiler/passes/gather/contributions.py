"""Finds the adds of a parallel loop whose target names the iteration: ``index = axis + constant``, piece by piece, along each axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ...errors import DifferentiationError
from ...ir.alias import may_alias
from ...ir.nodes import Block, GlobalStore, If, LocalStore, Loop, Op, Operand, Place, Stmt, Task
from ...ir.ops import TABLE
from ...ir.types import u1
from ...ir.walk import atomic_of, index_of, operands, place_of, walk
from ..dependence.access import WriteSet, overlap
from ..dependence.indexing import Linear, extents, is_invariant, never_same, own_element
from ..parallel.injective import race_free
from ..reverse.slices import PlainSlicer
from .pieces import AxisPieces, IndexPiece, IterationSpan, shifted
from .prepare import Path

MOST = 64
"""A task has at most so many contributions."""
Facts = dict[Op, tuple[bool, tuple[Op, ...]]]
"""Conditions around a statement: whether they hold, if the operations besides hold, too."""


@dataclass(frozen=True, eq=False)
class Contribution:
    """What one add gives to the elements of a box.

    Attributes:
        root: the add.
        spans: the iterations that make it, along each axis of the task.
        shifts: the element is the iteration plus these, along each axis.
        facts: the conditions around it that hold in all these iterations.
        axes: the number of the axis that each position of its index follows; None: it is the same for all.
        keep: the statements that it needs, by identity.
        sure: all these iterations make it.
    """

    root: Op
    spans: tuple[IterationSpan, ...]
    shifts: tuple[Linear, ...]
    facts: Facts
    axes: tuple[int | None, ...]
    keep: frozenset[int]
    sure: bool

    def box(self, k: int) -> IterationSpan:
        """The elements along an axis."""
        span, shift = self.spans[k], self.shifts[k]
        return IterationSpan(span.axis, shifted(span.lows, shift), shifted(span.highs, shift))


class Scatters:
    """The adds of one task, and what they need."""

    def __init__(self, task: Task) -> None:
        self.task, self.pieces = task, AxisPieces(task.axes)
        self._numbers = {a.index: k for k, a in enumerate(task.axes)}
        self._statements = walk(task.body)
        self._order = {id(s): n for n, s in enumerate(self._statements)}
        self._looped = {id(x) for s in self._statements if isinstance(s, Loop) for x in walk(s.body)}
        self._used = {x for s in self._statements for x in operands(s) if isinstance(x, Op)}
        self._writes, self._ranges = WriteSet(task), extents(task)
        self._paths: dict[int, Path] = {}
        self._find_paths(task.body, ())

    def contributions(self) -> list[Contribution]:
        """The contributions of all adds that can be gathered; none where all other adds are free of races."""
        if not all(map(_is_simple, self._statements)) or not self._launch_decides():
            return []
        found = {s: parts for s in self._statements if isinstance(s, Op) and (parts := self._parts(s))}
        while found:
            wrong = {s for s, parts in found.items() if not self._is_apart(s, parts[0], found)}
            if not wrong:
                break
            found = {s: parts for s, parts in found.items() if s not in wrong}
        free = race_free(self.task)
        meeting = {atomic_of(s)[0] for s in found if s not in free}
        out = [part for s, parts in found.items() if atomic_of(s)[0] in meeting for part in parts]
        return out if len(out) <= MOST else []

    def _launch_decides(self) -> bool:
        """Whether the bounds of all axes are literals, arguments and extents."""
        bounds = [x for span in self.pieces.axes.values() for x in (*span.lows, *span.highs)]
        return all(a.index.dtype.kind == "i" and a.index.dtype.bits >= 32 for a in self.task.axes) and not any(
            isinstance(leaf, Op) for x in bounds for leaf, _ in x.leaves
        )

    def _find_paths(self, block: Block, path: Path) -> None:
        for s in block:
            self._paths[id(s)] = path
            if isinstance(s, If):
                self._find_paths(s.then, (*path, (s.cond, True)))
                self._find_paths(s.orelse, (*path, (s.cond, False)))

    # ---- one add
    def _parts(self, s: Op) -> list[Contribution]:
        if s.op != "atomic" or atomic_of(s)[1] not in ("add", "sub") or s in self._used or id(s) in self._looped:
            return []
        if s.dtype is u1:
            return []
        axes, choices = self._index(s)
        keep = self._slice(s)
        if keep is None or sorted(k for k in axes if k is not None) != list(range(len(self.task.axes))):
            return []
        out = []
        for pieces, (spans, facts) in product(product(*choices), self._around(s)):
            mine = {self._numbers[p.span.axis]: p for p in pieces}
            whole = [mine[k].span.within(spans[k]) if k in spans else mine[k].span for k in range(len(mine))]
            if not any(span.empty for span in whole):
                sure = all(isinstance(x, Op) and x in facts and not facts[x][1] for x, _ in self._paths[id(s)])
                shifts = tuple(mine[k].shift for k in range(len(mine)))
                out.append(Contribution(s, tuple(whole), shifts, facts, tuple(axes), frozenset(keep), sure))
        return out

    def _index(self, s: Op) -> tuple[list[int | None], list[list[IndexPiece]]]:
        """The axes of the positions of an index, and the pieces of each."""
        axes: list[int | None] = []
        choices: list[list[IndexPiece]] = []
        for x in index_of(s):
            found = self.pieces.of(x)
            if found:
                axes.append(self._numbers[found[0].span.axis])
                choices.append(found)
            elif is_invariant(x, self._writes):
                axes.append(None)
            else:
                return [], []
        return axes, choices

    def _around(self, s: Op) -> Iterator[tuple[dict[int, IterationSpan], Facts]]:
        """The conditions around a statement: intervals along axes, and what they leave to be tested."""
        facts: Facts = {}
        choices: list[list[IterationSpan]] = []
        for cond, holds in self._paths[id(s)]:
            tests = []
            for part in _parts_of(cond, holds):
                spans = self.pieces.where(part, holds)
                if spans is not None and all(map(self.pieces.is_near, spans)):
                    choices.append(spans)
                else:
                    tests.append(part)
            if isinstance(cond, Op) and (holds or not tests):
                facts[cond] = holds, tuple(tests)
        for spans in product(*choices):
            out: dict[int, IterationSpan] = {}
            for span in spans:
                k = self._numbers[span.axis]
                out[k] = out[k].within(span) if k in out else span
            yield out, facts

    # ---- what it needs
    def _slice(self, s: Op) -> set[int] | None:
        keep: set[int] = set()
        try:
            PlainSlicer(frozenset([id(s)])).slice_plain(self.task.body, set(), set(), keep)
        except DifferentiationError:  # the old value of an atomic
            return None
        return keep

    def _is_apart(self, s: Op, c: Contribution, gathered: dict[Op, list[Contribution]]) -> bool:
        """Whether an add can move in front of whatever else the task does."""
        place, index = atomic_of(s)[0], index_of(s)
        for other in self._statements:
            there = place_of(other)
            if there is None or other is s or not may_alias(place, there):
                continue
            mate = gathered.get(other) if isinstance(other, Op) else None
            if mate is not None and mate[0].axes == c.axes and (there is place or not overlap(place, there)):
                continue  # the same elements, in the loop over them
            if mate is None and not _may_meet(place, there):
                continue
            if not (overlap(place, there) and never_same(index, index_of(other), self._writes)):
                return False
        return all(self._early(x, gathered) for x in self._statements if id(x) in c.keep and x is not s)

    def _early(self, s: Stmt, gathered: dict[Op, list[Contribution]]) -> bool:
        """Whether a statement of a slice has the same value in front of whatever else the task does."""
        if not isinstance(s, Op) or s.op == "load":
            return True
        if s.op != "gload":
            return TABLE[s.op].pure and s.op not in ("iter", "seed")
        place = place_of(s)
        assert place is not None
        for other in self._statements:
            there = None if isinstance(other, Op) and other.op == "gload" else place_of(other)
            if there is None or not _may_meet(place, there):
                continue
            where = index_of(other)
            if overlap(place, there) and never_same(s.args, where, self._writes):
                continue
            own = overlap(place, there) and own_element(s.args, where, self._writes, self._ranges)
            if not own or not self._comes_before(s, other) or other in gathered:
                return False
        return True

    def _comes_before(self, s: Stmt, other: Stmt) -> bool:
        """Whether no iteration runs a statement after another one."""
        if {id(s), id(other)} & self._looped:
            return False
        mine, theirs = dict(self._paths[id(s)]), dict(self._paths[id(other)])
        return self._order[id(s)] < self._order[id(other)] or any(
            theirs.get(cond, holds) != holds for cond, holds in mine.items()
        )


def _may_meet(p: Place, q: Place) -> bool:
    """Whether two places may share memory. The launch of a gradient checks that its arguments do not."""
    return overlap(p, q) or (may_alias(p, q) and p.buffer.kind == q.buffer.kind == "arg")


def _is_simple(s: Stmt) -> bool:
    """Whether a statement may stand in a gathered task."""
    if isinstance(s, If):
        return not s.site
    if isinstance(s, Loop):
        return s.exit is None and s.end is not None
    place = place_of(s)
    if place is not None and place.pool is not None:
        return False
    return isinstance(s, (LocalStore, GlobalStore)) or (isinstance(s, Op) and (s.op == "atomic" or s.op in _PLAIN))


_PLAIN = frozenset(code for code, info in TABLE.items() if info.pure or code in ("load", "gload"))


def _parts_of(cond: Operand, holds: bool) -> Iterator[Operand]:
    """Conditions that hold together where one holds, or that do not hold where it does not."""
    if isinstance(cond, Op) and cond.op == ("and" if holds else "or") and cond.dtype is u1:
        for x in cond.args:
            yield from _parts_of(x, holds)
    else:
        yield cond
