"""The loops over the elements: the interior, without conditions on the iterations, and for each axis the rim around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...ir.builder import StatementBuilder
from ...ir.nodes import Axis, Const, Op, Operand, Task
from ...ir.ops import COMPARE
from ...ir.types import i64, u1
from ...ir.walk import atomic_of, index_of, walk
from ..dependence.indexing import Linear
from ..parallel.reduce import element_key
from ..reverse.copies import Env
from ..simplify.simplify import simplify_in_place
from .bounds import Bound, compare, emit_bound, highest, lowest, moved
from .contributions import Contribution
from .pieces import AxisPieces, IterationSpan, distance, main_piece, shifted
from .slices import emit_slice

_CHOICES = frozenset(("mod", "min", "max", "select"))
Usual = tuple[IterationSpan, Linear | bool]
"""The iterations of an axis in which a value is the index plus a number, or in which a condition holds or does not."""


class Boxes:
    """Makes the loops of the contributions of one task."""

    def __init__(self, task: Task, pieces: AxisPieces, found: list[Contribution]) -> None:
        self.task, self._pieces = task, pieces
        order = {id(s): n for n, s in enumerate(walk(task.body))}
        found = sorted(found, key=lambda c: (*(_size(x.times(-1)) for x in c.shifts), order[id(c.root)]))
        self._groups: dict[object, list[Contribution]] = {}  # contributions to one element, in the order of the iterations
        for c in found:
            same = element_key([x for x, k in zip(index_of(c.root), c.axes) if k is None])
            self._groups.setdefault((atomic_of(c.root)[0], c.axes, same), []).append(c)
        self._axes = range(len(task.axes))
        self.usual = {c: self._usual(c) for c in found}
        self._rim = {c: rim for c in found if (rim := self._rim_of(c)) is not None}
        self._guarded = {c for c in found if c not in self._rim and self._lies_anywhere(c)}
        self._lows, self._highs = self._limits(found)
        self._first = [lowest(highest(c.box(k).lows) for c in found) for k in self._axes]
        self._end = [highest(lowest(c.box(k).highs) for c in found) for k in self._axes]
        lows = [x if x else [self._end[k]] for k, x in enumerate(self._lows)]
        self._low = [lowest([self._end[k], highest([self._first[k], *lows[k]])]) for k in self._axes]
        self._high = [highest([self._low[k], lowest([self._end[k], *self._highs[k]])]) for k in self._axes]

    # ---- the interior
    def _usual(self, c: Contribution) -> dict[Op, Usual]:
        """The periodic and clamped indices and the conditions of a slice, each as it is in nearly all iterations."""
        out: dict[Op, Usual] = {}
        for s in walk(self.task.body):
            if id(s) not in c.keep or not isinstance(s, Op):
                continue
            if s.op in _CHOICES and s.dtype.is_int:
                piece = main_piece(self._pieces.of(s) or [])
                if piece is not None:
                    out[s] = piece.span, piece.shift
            for holds in (True, False) if s.op in COMPARE else ():
                spans = self._pieces.where(s, holds) or []
                if len(spans) == 1 and self._pieces.is_near(spans[0]) and not self._pieces.is_thin(self._whole(spans[0])):
                    out[s] = spans[0], holds
        return out

    def _whole(self, span: IterationSpan) -> IterationSpan:
        return self._pieces.axes[span.axis].within(span)

    def number(self, span: IterationSpan) -> int:
        """The number of the axis of an interval."""
        return next(k for k, a in enumerate(self.task.axes) if a.index is span.axis)

    def _rim_of(self, c: Contribution) -> tuple[int, Linear | None, Linear | None] | None:
        """The axis along which a contribution goes to a few elements at an end, and where they end or begin."""
        for k in self._axes:
            box, whole = c.box(k), self._pieces.axes[self.task.axes[k].index]
            if not self._pieces.is_thin(c.spans[k]):
                continue
            before = [(abs(n), x) for x in box.highs for y in whole.lows if (n := distance(y, x)) is not None]
            behind = [(abs(n), x) for x in box.lows for y in whole.highs if (n := distance(x, y)) is not None]
            if before and (not behind or min(n for n, _ in before) <= min(n for n, _ in behind)):
                return k, min(before, key=lambda end: end[0])[1], None
            if behind:
                return k, None, min(behind, key=lambda end: end[0])[1]
        return None

    def _lies_anywhere(self, c: Contribution) -> bool:
        """Whether a contribution goes to a few elements of which it is not known where they are."""
        return any(map(self._pieces.is_thin, c.spans))

    def _limits(self, found: list[Contribution]) -> tuple[list[list[Linear]], list[list[Linear]]]:
        """What bounds the interior along each axis."""
        lows: list[list[Linear]] = [[] for _ in self._axes]
        highs: list[list[Linear]] = [[] for _ in self._axes]
        for c in found:
            if c in self._rim:
                k, low, high = self._rim[c]
                lows[k] += [] if low is None else [low]
                highs[k] += [] if high is None else [high]
                continue
            spans = [] if c in self._guarded else [(k, c.spans[k]) for k in self._axes]
            for k, span in (*spans, *((self.number(span), span) for span, _ in self.usual[c].values())):
                lows[k] += shifted(span.lows, c.shifts[k])
                highs[k] += shifted(span.highs, c.shifts[k])
        if all(c in self._rim or c in self._guarded for c in found):
            lows = [[] for _ in self._axes]  # no interior
        return lows, highs

    def interior(self) -> Task:
        """The loop over the elements for which no iteration is missing."""
        prologue = StatementBuilder([])
        axes = []
        for k, axis in enumerate(self.task.axes):
            index = Op("index", (), axis.index.dtype, None, axis.index.loc)
            ends = (prologue.cast(emit_bound(prologue, x), index.dtype) for x in (self._low[k], self._high[k]))
            axes.append(Axis(index, *ends))
        body = _Body(self, [a.index for a in axes])
        for members in self._groups.values():
            inside = [c for c in members if c not in self._rim]
            if any(c.sure and c not in self._guarded for c in inside):  # then the element exists
                body.total(inside)
            else:
                for c in inside:
                    body.update(c, self._conditions(c, None) if c in self._guarded else [], known=True)
        return self._task("interior", body, axes, prologue)

    def guards(self, c: Contribution) -> list[tuple[str, int, Linear]]:
        """What is tested of a contribution in the interior."""
        return self._conditions(c, None) if c in self._guarded else []

    # ---- the rim
    def rims(self) -> list[Task]:
        """For each axis the loop over the elements before and behind the interior; those of the axes before it are left out."""
        return [task for k in self._axes if (task := self._rim_task(k)) is not None]

    def _rim_task(self, k: int) -> Task | None:
        prologue = StatementBuilder([])
        axes = []
        for j, axis in enumerate(self.task.axes):
            index = Op("index", (), axis.index.dtype, None, axis.index.loc)
            low, high = (self._low, self._high) if j < k else (self._first, self._end)
            begin, end = emit_bound(prologue, low[j]), emit_bound(prologue, high[j])
            if j == k:
                before, behind = self._rim_lengths(prologue, k)
                begin, end = Const(0, i64), _fold(prologue, "add", before, behind)
            if isinstance(begin, Const) and isinstance(end, Const) and begin.value >= end.value:
                return None
            axes.append(Axis(index, prologue.cast(begin, index.dtype), prologue.cast(end, index.dtype)))
        body = _Body(self, [a.index for a in axes])
        body.point[k] = self._behind(body.b, axes[k].index, k)
        for members in self._groups.values():
            for c in members:
                body.update(c, self._conditions(c, k), known=False)
        return self._task(f"rim_{k}", body, axes, prologue)

    def _rim_lengths(self, b: StatementBuilder, k: int) -> tuple[Operand, Operand]:
        first, low, high, end = (emit_bound(b, x[k]) for x in (self._first, self._low, self._high, self._end))
        return _fold(b, "sub", low, first), _fold(b, "sub", end, high)

    def _behind(self, b: StatementBuilder, index: Op, k: int) -> Op:
        """The element of an iteration of a rim: those before the interior come first."""
        before, _ = self._rim_lengths(b, k)
        first, high = emit_bound(b, self._first[k]), emit_bound(b, self._high[k])
        r = b.cast(index, i64)
        at = b.op(
            "select",
            b.op("lt", r, before),
            b.op("add", first, r),
            b.op("add", _fold(b, "sub", high, before), r),
        )
        found = b.cast(at, index.dtype)
        assert isinstance(found, Op)
        return found

    def _conditions(self, c: Contribution, k: int | None) -> list[tuple[str, int, Linear]]:
        """The bounds of the iterations of a contribution that the loop does not imply: comparison, axis, bound. ``k``: of which rim."""
        out: list[tuple[str, int, Linear]] = []
        for j in self._axes:
            box = c.box(j)
            inside = k is None or j < k
            lows = [] if j == k else self._lows[j] if inside else [self._first[j]]
            highs = [] if j == k else self._highs[j] if inside else [self._end[j]]
            out += [("ge", j, x) for x in box.lows if not any(_reaches(x, y) for y in lows)]
            out += [("lt", j, x) for x in box.highs if not any(_reaches(y, x) for y in highs)]
        return out

    def _task(self, name: str, body: _Body, axes: list[Axis], prologue: StatementBuilder) -> Task:
        task = replace(
            self.task, name=f"{self.task.name}_{name}", body=body.b.block, axes=axes, prologue=prologue.block, cost=0
        )
        simplify_in_place(task)
        return task


class _Body:
    """Emits the body of a loop over elements."""

    def __init__(self, boxes: Boxes, point: Sequence[Op]) -> None:
        self._boxes = boxes
        self.b = StatementBuilder([])
        self.point = list(point)

    def total(self, members: list[Contribution]) -> None:
        """Add all contributions to an element that exists."""
        b, c = self.b, members[0]
        place, index = atomic_of(c.root)[0], self._element(c)
        total = b.local(b.gload(place, index), "total")
        for c in members:

            def put(value: Operand, env: Env, c: Contribution = c) -> None:
                b.store(total, b.op(atomic_of(c.root)[1], b.load(total), value))

            self._emit(c, self._boxes.guards(c), put, known=True)
        b.gstore(place, index, b.load(total))

    def update(self, c: Contribution, conditions: list[tuple[str, int, Linear]], known: bool) -> None:
        """Add one contribution where its iteration makes it."""
        b, place = self.b, atomic_of(c.root)[0]

        def put(value: Operand, env: Env) -> None:
            index = self._element(c)
            b.gstore(place, index, b.op(atomic_of(c.root)[1], b.gload(place, index), value))

        self._emit(c, conditions, put, known)

    def _emit(
        self,
        c: Contribution,
        conditions: list[tuple[str, int, Linear]],
        put: Callable[[Operand, Env], None],
        known: bool,
    ) -> None:
        """``known``: indices and conditions are as usual."""
        b = self.b
        b.loc = c.root.loc
        tests = [compare(b, code, self.point[k], bound) for code, k, bound in conditions]
        if not tests:
            self._slice(c, put, known)
            return
        cond = tests[0]
        for x in tests[1:]:
            cond = b.op("and", cond, x)
        with b.if_(cond):
            self._slice(c, put, known)

    def _slice(self, c: Contribution, put: Callable[[Operand, Env], None], known: bool) -> None:
        b, task = self.b, self._boxes.task
        iteration = [moved(b, x, shift.times(-1)) for x, shift in zip(self.point, c.shifts)]
        env: dict[Op, Operand] = {a.index: i for a, i in zip(task.axes, iteration)}
        if known:
            for s, (span, value) in self._boxes.usual[c].items():
                is_cond = isinstance(value, bool)
                env[s] = Const(value, u1) if is_cond else b.cast(moved(b, iteration[self._boxes.number(span)], value), s.dtype)
        emit_slice(b, task, c, env, put)

    def _element(self, c: Contribution) -> tuple[Operand, ...]:
        return tuple(self._again(x, {}) if k is None else self.point[k] for x, k in zip(index_of(c.root), c.axes))

    def _again(self, x: Operand, env: Env) -> Operand:
        """A value that is the same in all iterations."""
        if isinstance(x, Const):
            return x
        if x not in env:
            env[x] = self.b.op(x.op, *(self._again(a, env) for a in x.args), dtype=x.dtype, attr=x.attr)
        return env[x]


def _fold(b: StatementBuilder, code: str, x: Operand, y: Operand) -> Operand:
    """A sum or difference of bounds."""
    if isinstance(x, Const) and isinstance(y, Const):
        return Const(x.value + y.value if code == "add" else x.value - y.value, i64)
    return b.op(code, x, y)


def _reaches(x: Bound, y: Bound) -> bool:
    """Whether ``y`` is certainly at least ``x``."""
    apart = distance(x, y) if isinstance(y, Linear) and isinstance(x, Linear) else None
    return apart is not None and apart >= 0


def _size(shift: Linear) -> int:
    """Orders shifts; extents and arguments are taken for large numbers."""
    return shift.constant + sum(c << 40 for _, c in shift.leaves)
