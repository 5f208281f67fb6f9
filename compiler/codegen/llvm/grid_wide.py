"""Accesses of up to 16 bytes, where a thread takes a few consecutive iterations at once and each of them reads and writes the next element.

What the code knows of an address (literal offsets, strides and bounds) must prove that it is a multiple of the access; what comes with
the launch (where memory begins, extents of arrays) is looked at once by each thread, which else takes one iteration at a time. A wrongly
aligned access would end the process's use of the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...ir.nodes import Axis, Const, GlobalStore, Op, Operand, Place, Stmt, Task
from ...ir.types import u1
from ...ir.walk import atomic_of, index_of, place_of, walk
from . import memory
from .prologue import constant
from .target import memory_type

if TYPE_CHECKING:
    from .grid import GridEmitter
    from .grid_copies import Copy

BYTES = 16
"""Bytes of the widest access; 0: each element is an access of its own."""

_SAME = frozenset(("arg", "param", "shape", "add", "sub", "mul", "cast", "neg"))


@dataclass(frozen=True, slots=True)
class Access:
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
    accesses: dict[Stmt, Access]


def plan(task: Task, plain: frozenset[Op]) -> Wide | None:
    """What can be wide. All that a body touches has to be, or be the same for consecutive iterations: other accesses would be
    scattered among the threads.
    """
    if not task.axes or not BYTES:
        return None
    body, top, found = set(walk(task.body)), set(task.body), {}
    last = task.axes[-1]
    for s in body:
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


def _access(place: Place, index: tuple[Operand, ...], last: Axis, body: set[Stmt]) -> Access | None:
    """The access of a statement, if the elements of consecutive iterations lie side by side."""
    size = place.dtype.size
    strides = place.strides if place.strides is not None else (*[None] * (place.ndim - 1), place.elem_bytes)
    fixed, steps, moving = place.offset, [], 0
    for x, stride in zip(index, strides):
        if isinstance(x, Const):
            fixed += int(x.value) * (stride or 0)  # other strides are looked at when the task starts
        elif _same(x, last, body):
            steps += [stride] if stride else []
        else:
            shift = _shift(x, last.index)
            if shift is None or stride != size:
                return None
            moving += 1
            fixed += (shift + (constant(last.begin) or 0)) * size
    begins = constant(last.begin) is None
    return Access(place, index, fixed, tuple(steps), begins) if moving == 1 else None


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


# -- code


def aligned(e: GridEmitter, wide: Wide, begin: str, size: str) -> str:
    """Whether what the launch supplies is aligned as well (i1). ``begin`` and ``size``: of the last axis, i64."""
    bits: list[str] = []
    seen: set[tuple[str, int, int]] = set()

    def multiple(x: str, by: int, of: int) -> None:
        """Note the low bits of ``x * by``."""
        if (x, by, of) not in seen:
            seen.add((x, by, of))
            bits.append(e.t(f"and i64 {x if by == 1 else e.t(f'mul i64 {x}, {by}')}, {of - 1}"))

    for access in wide.accesses.values():
        d, width = access.place.dtype, wide.group * access.place.dtype.size
        base = memory.buffer_base(e, access.place.buffer)
        multiple(e.hoist(("number", base), f"ptrtoint ptr {base} to i64"), 1, width)
        if access.begins:
            multiple(begin, d.size, width)
        for stride in memory.strides_of(e, access.place)[:-1]:
            if isinstance(stride, str):
                multiple(stride, 1, width)
    if len(e.task.axes) > 1 and size.startswith("%"):
        multiple(size, 1, wide.group)
    total = bits[0]
    for x in bits[1:]:
        total = e.t(f"or i64 {total}, {x}")
    return e.t(f"icmp eq i64 {total}, 0")


def emit(e: GridEmitter, wide: Wide, s: Stmt, copies: list[Copy]) -> None:
    """A statement of consecutive iterations by one access."""
    access = wide.accesses[s]
    d, n = access.place.dtype, wide.group
    copies[0].enter(e)
    ptr, kind = memory.address(e, access.place, access.index)
    assert kind == "uniform" and len(copies) == n
    m, align = memory_type(d), n * d.size
    if isinstance(s, GlobalStore):
        values: list[str] = []
        for copy in copies:
            copy.enter(e)
            values.append(e.operand(s.value, False))
        _write(e, s.place, values, ptr)
        return
    assert isinstance(s, Op)
    whole = e.t(f"load <{n} x {m}>, ptr {ptr}, align {align}")
    for k, copy in enumerate(copies):
        one = e.t(f"extractelement <{n} x {m}> {whole}, i64 {k}")
        copy.values[s] = (e.t(f"icmp ne i8 {one}, 0") if d is u1 else one, False)
    if s.op == "atomic":  # a plain one
        place, code = atomic_of(s)
        new: list[str] = []
        for copy in copies:
            copy.enter(e)
            values = [e.operand(x, False) for x in s.args[place.ndim :]]
            new.append(memory.combine(e, code, d, False, copy.values[s][0], values))
        _write(e, place, new, ptr)


def _write(e: GridEmitter, place: Place, values: list[str], ptr: str) -> None:
    """Elements side by side."""
    d, n = place.dtype, len(values)
    m, whole = memory_type(d), "poison"
    for k, value in enumerate(values):
        one = e.t(f"zext i1 {value} to i8") if d is u1 else value
        whole = e.t(f"insertelement <{n} x {m}> {whole}, {m} {one}, i64 {k}")
    e.put(f"store <{n} x {m}> {whole}, ptr {ptr}, align {n * d.size}")
