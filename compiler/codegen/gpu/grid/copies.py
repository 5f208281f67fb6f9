"""The code of iterations that run side by side: statement by statement, and by wide accesses where they share them (``side_by_side``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....ir.nodes import GlobalStore, Local, Op, Place, Stmt
from ....ir.types import u1
from ....ir.walk import atomic_of
from ...llvm import arith, memory
from ...llvm.target import memory_type
from ...sums.partial_sums import identity
from ..side_by_side import Wide
from .emitter import GridEmitter


@dataclass(slots=True)
class UnrolledCopy:
    """The emitter's state of one of the iterations."""

    values: dict[Op, tuple[str, bool]]
    wide: dict[Op, str]
    locals: dict[Local, str] = field(default_factory=dict)
    iteration: tuple[str, bool] = ("0", False)

    def enter(self, e: GridEmitter) -> None:
        """Let the emitter write this iteration."""
        e.values, e.wide, e.locals, e.iteration = self.values, self.wide, self.locals, self.iteration


def start(e: GridEmitter, n: int) -> list[UnrolledCopy]:
    """The iterations; each folds reductions on its own."""
    copies = [UnrolledCopy(dict(e.values), dict(e.wide), e.locals)]
    for _ in range(n - 1):
        copy = UnrolledCopy(dict(e.values), dict(e.wide))
        for r in e.task.reductions:
            ty = e.ty(r.local.dtype, False)
            copy.locals[r.local] = e.slot(ty)
            e.put(f"store {ty} {identity(r)}, ptr {copy.locals[r.local]}")
        copies.append(copy)
    return copies


def body(e: GridEmitter, copies: list[UnrolledCopy], unset: list[Local]) -> None:
    """Emit the body once for all iterations, with known indices."""
    for copy in copies:
        copy.enter(e)
        for x in unset:
            e.reset(x)
    wide = e.wide_accesses if len(copies) > 1 else None
    for s in e.task.body:
        if wide is not None and s in wide.accesses:
            for k in range(0, len(copies), wide.group):
                _emit_wide(e, wide, s, copies[k : k + wide.group])
            continue
        for copy in copies:
            copy.enter(e)
            e.block([s])
    copies[0].enter(e)


def join(e: GridEmitter, copies: list[UnrolledCopy]) -> None:
    """Fold what the iterations have folded into what the first one has."""
    for r in e.task.reductions:
        d, ty = r.local.dtype, e.ty(r.local.dtype, False)
        total = e.t(f"load {ty}, ptr {copies[0].locals[r.local]}")
        for copy in copies[1:]:
            total = arith.binary(e, r.code, d, False, total, e.t(f"load {ty}, ptr {copy.locals[r.local]}"))
        e.put(f"store {ty} {total}, ptr {copies[0].locals[r.local]}")


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


def _emit_wide(e: GridEmitter, wide: Wide, s: Stmt, copies: list[UnrolledCopy]) -> None:
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
