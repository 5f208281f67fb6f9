"""Coalesces accesses: chooses the iterations that a thread runs together, and which of their accesses become one wide access.

A short body has one or two loads, and as many threads as the device holds do not keep enough of them on their way to use its bandwidth.
So a thread takes a few iterations at once, statement by statement: all of them load before any stores. The iterations of a parallel loop
may run at the same time, so that nothing needs to be known of where the pointers point.

Where consecutive iterations read and write consecutive elements, they share accesses of up to 16 bytes.
What the code knows of an address (literal offsets, strides and bounds) must prove that it is a multiple of the access; what comes with
the launch (where memory begins, extents of arrays) is looked at once by each thread, which else takes one iteration at a time. A wrongly
aligned access would end the process's use of the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.nodes import Axis, Const, GlobalStore, If, LocalStore, Op, Operand, Place, Stmt, Task
from ...ir.walk import cooperates, index_of, is_fence, place_of, walk
from .prologue import constant

TILED = True
"""Whether the iterations of a thread lie a block's threads apart, or a grid's."""

MOST_COPIES, LOADS, STATEMENTS = 4, 8, 48
"""Iterations side by side, where an access is one element; loads on their way that are enough; statements of a body that is short."""

BYTES = 16
"""Bytes of the widest access; 0: each element is an access of its own."""

_SAME = frozenset(("arg", "param", "shape", "add", "sub", "mul", "cast", "neg"))


@dataclass(frozen=True, slots=True)
class VectorAccess:
    """Elements side by side. Their address is ``fixed`` bytes after a sum of multiples of ``steps`` and, where the first index is a
    register (``begins``), that many elements.
    """

    place: Place
    index: tuple[Operand, ...]
    fixed: int
    steps: tuple[int, ...]
    begins: bool

    def fits(self, group: int) -> bool:
        """Whether accesses of so many elements are aligned, as far as it is known here."""
        size = group * self.place.dtype.size
        return not any(step % size for step in (self.fixed, *self.steps))


@dataclass(frozen=True, slots=True)
class Wide:
    """``group``: consecutive iterations that share the accesses of these statements."""

    group: int
    accesses: dict[Stmt, VectorAccess]


def plan_wide(task: Task, plain: frozenset[Op]) -> Wide | None:
    """The conditions of wide accesses.

    All accesses of a body must be wide, or the same for consecutive iterations: others would be scattered among the threads.
    """
    if not task.axes or not BYTES:
        return None
    statements = list(walk(task.body))  # in program order, so that the same kernel has the same text each time
    body, top, found = set(statements), set(task.body), {}
    last = task.axes[-1]
    for s in statements:
        place = place_of(s)
        if place is None or all(_same(x, last, body) for x in index_of(s)):
            continue
        access = _access(place, index_of(s), last, body)
        shared = isinstance(s, Op) and s.op == "atomic" and s not in plain
        if access is None or shared or s not in top:
            return None
        found[s] = access
    if not found:
        return None
    group = BYTES // max(a.place.dtype.size for a in found.values())
    begin, end = constant(last.begin), constant(last.end)
    row = end - begin if len(task.axes) > 1 and begin is not None and end is not None else 0
    while group > 1:
        if row % group == 0 and all(a.fits(group) for a in found.values()):
            return Wide(group, found)
        group //= 2
    return None


def _access(place: Place, index: tuple[Operand, ...], last: Axis, body: set[Stmt]) -> VectorAccess | None:
    """The access of a statement, if the elements of consecutive iterations lie side by side."""
    size = place.dtype.size
    strides = place.strides if place.strides is not None else (*[None] * (place.ndim - 1), place.elem_bytes)
    fixed, steps, moving = place.offset, [], 0
    for x, stride in zip(index, strides):
        if isinstance(x, Const):
            fixed += int(x.value) * (stride or 0)  # other strides are checked when the task starts
        elif _same(x, last, body):
            steps += [stride] if stride else []
        else:
            shift = _shift(x, last.index)
            if shift is None or stride != size:
                return None
            moving += 1
            fixed += (shift + (constant(last.begin) or 0)) * size
    begins = constant(last.begin) is None
    return VectorAccess(place, index, fixed, tuple(steps), begins) if moving == 1 else None


def _same(x: Operand, last: Axis, body: set[Stmt]) -> bool:
    """Whether an index is the same for iterations that differ in the last axis only."""
    open_values = [x]
    for v in open_values:
        if v is last.index:
            return False
        if isinstance(v, Op) and v in body:
            if v.op not in _SAME:
                return False
            open_values += v.args
    return True


def _shift(x: Operand, index: Op) -> int | None:
    """How far an index lies beyond that of the iteration, if it always lies as far. Types that wrap around are left alone."""
    shift = 0
    while x is not index:
        if not isinstance(x, Op) or x.dtype.kind != "i" or x.dtype.bits < 32 or not x.args:
            return None
        a, b = x.args[0], x.args[-1]
        if x.op == "cast" and a.dtype.kind == "i" and a.dtype.bits <= x.dtype.bits:
            x = a
        elif x.op in ("add", "sub") and isinstance(b, Const):
            x, shift = a, shift + int(b.value) * (1 if x.op == "add" else -1)
        elif x.op == "add" and isinstance(a, Const):
            x, shift = b, shift + int(a.value)
        else:
            return None
    return shift


def copies_of(task: Task, plain: frozenset[Op], merge: bool = True) -> tuple[int, Wide | None]:
    """The number of iterations that a thread runs together, and their merged accesses, if they may be merged."""
    body = list(walk(task.body))
    if not task.parallel or task.stacks or cooperates(task) or any(map(is_fence, body)) or len(body) > STATEMENTS:
        return 1, None
    if not all(isinstance(s, (Op, LocalStore, GlobalStore, If)) for s in body):
        return 1, None
    loads = sum(isinstance(s, Op) and (s.op == "gload" or s in plain) for s in body)
    if not loads:
        return 1, None
    n = max(1, min(MOST_COPIES, LOADS // loads))
    wide = plan_wide(task, plain) if merge and TILED and loads <= LOADS else None
    if wide is None or wide.group * len(body) > MOST_COPIES * STATEMENTS:
        return n, None
    return max(n, wide.group), wide
