"""Builds blocks: typed emission into a current block, with the constant folding that costs nothing here."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from math import isnan
from numbers import Integral

from .nodes import Block, Const, GlobalStore, If, Loc, Local, LocalStore, Loop, Op, Operand, Place, Stmt
from .ops import TABLE
from .types import DType, i32, i64, limits, u1


class StatementBuilder:
    """Emits statements into the innermost open block. While ``loc`` is set, it is the location of emitted statements.

    ``marks``: copies of the user's loops say at which index they are, for messages. ``smooth``: where tangents are made that will be
    differentiated again, the values that have one; see ``derivatives.zero_stays_zero``.
    """

    marks = False

    def __init__(self, block: Block, smooth: Container[object] | None = None) -> None:
        self._blocks: list[Block] = [block]
        self.smooth = smooth
        self.loc: Loc | None = None

    @property
    def block(self) -> Block:
        """The block that statements go to."""
        return self._blocks[-1]

    @contextmanager
    def into(self, block: Block) -> Iterator[Block]:
        """Emit into ``block`` for a while."""
        self._blocks.append(block)
        try:
            yield block
        finally:
            self._blocks.pop()

    def put(self, s: Stmt) -> Stmt:
        """Append a statement."""
        if self.loc is not None and getattr(s, "loc", self) is None:
            s.loc = self.loc  # type: ignore[union-attr]
        self.block.append(s)
        return s

    def op(self, code: str, *args: Operand, dtype: DType | None = None, attr: object = None) -> Op:
        """Emit one operation. The result type follows ``ops.TABLE`` unless it is given."""
        if dtype is None:
            dtype = u1 if TABLE[code].result == "bool" else args[1 if code == "select" else 0].dtype
        op = Op(code, args, dtype, attr, self.loc)
        self.block.append(op)
        return op

    def cast(self, x: Operand, dtype: DType) -> Operand:
        """``x`` as ``dtype``; a literal is converted in place (a float literal keeps its full precision)."""
        if x.dtype is dtype:
            return x
        if isinstance(x, Const):
            return Const(convert(x.value, dtype), dtype, x.exact)
        return self.op("cast", x, dtype=dtype)

    def load(self, local: Local) -> Op:
        """Read a local."""
        return self.op("load", dtype=local.dtype, attr=local)

    def store(self, local: Local, value: Operand) -> None:
        """Write a local (same type)."""
        self.put(LocalStore(local, value))

    def local(self, value: Operand, name: str = "v") -> Local:
        """A new local that starts as ``value``."""
        var = Local(value.dtype, name)
        self.store(var, value)
        return var

    def gload(self, place: Place, index: tuple[Operand, ...]) -> Op:
        """Read memory."""
        return self.op("gload", *index, dtype=place.dtype, attr=place)

    def gstore(self, place: Place, index: tuple[Operand, ...], value: Operand) -> None:
        """Write memory."""
        self.put(GlobalStore(place, index, value))

    def atomic(self, code: str, place: Place, index: tuple[Operand, ...], value: Operand) -> Op:
        """Update memory atomically; the result is the old content."""
        return self.op("atomic", *index, value, dtype=place.dtype, attr=(place, code))

    @contextmanager
    def if_(self, cond: Operand) -> Iterator[If]:
        """``with b.if_(c) as s:`` emits into the ``then`` arm; ``with b.into(s.orelse):`` into the other."""
        s = If(cond)
        self.put(s)
        with self.into(s.then):
            yield s

    @contextmanager
    def loop(self, begin: Operand, end: Operand | None, step: int = 1) -> Iterator[Loop]:
        """``with b.loop(lo, hi) as lp:`` emits into the body; ``lp.index`` is the loop index."""
        s = Loop(Op("index", (), begin.dtype, None, self.loc), begin, end, step=step)
        self.put(s)
        with self.into(s.body):
            yield s


def convert(value: int | float | bool, dtype: DType) -> int | float | bool:
    """A Python number as ``dtype`` would hold it: as a cast that a kernel computes, but floats are not rounded here.

    Integers wrap. A real that becomes an integer loses its fraction and stays within the ends of the type; NaN gives 0.
    """
    if dtype.kind == "f":
        return float(value)
    if dtype.kind == "b":
        return bool(value)
    if not isinstance(value, Integral):
        low, high = limits(dtype)
        return 0 if isnan(value) else int(min(max(value, low), high))
    whole = int(value) & ((1 << dtype.bits) - 1)
    return whole - (1 << dtype.bits) if dtype.kind == "i" and whole >> (dtype.bits - 1) else whole


def const_i32(value: int) -> Const:
    """An i32 literal."""
    return Const(value, i32)


def const_i64(value: int) -> Const:
    """An i64 literal."""
    return Const(value, i64)
