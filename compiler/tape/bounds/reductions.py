"""Kernels that evaluate a plan's queries on a device: each is one parallel task that reduces integers into returned words.

The words are zero before a launch, and every fold is one that zero changes nothing of: a sum, or the most of what is not negative.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.builder import StatementBuilder
from ...ir.nodes import Axis, Block, Buffer, Const, Kernel, Op, Operand, Place, Task
from ...ir.types import DType, i64, u64
from .evaluate import MOST
from .formulas import FALSE, FormulaArguments, Formulas, NotReducible, Value
from .row_predicates import RowPredicate
from .sizeexpr import ElementRead, Range, depends

SIGN = 1 << 63
ZERO, ONE = Const(0, i64), Const(1, i64)


@dataclass(frozen=True, eq=False)
class ReductionKernel:
    """A kernel, what it takes, and how many words it returns."""

    kernel: Kernel
    inputs: FormulaArguments
    results: int


class _Making:
    """A kernel while it is made: the prologue with the bounds of its axes, and the body."""

    def __init__(self) -> None:
        self.inputs = FormulaArguments()
        self.prologue: Block = []
        self.body: Block = []
        self.before = Formulas(StatementBuilder(self.prologue), self.inputs)
        self.b = StatementBuilder(self.body)
        self.f = Formulas(self.b, self.inputs)
        self.axes: list[Axis] = []
        self._returned = Buffer("ret")
        self._returns: list[DType] = []

    def axis(self, begin: str, end: str) -> Op:
        """Add an axis from one number to another ("" is 0). Returns its index, an i64."""
        index = Op("index", (), i64)
        self.axes.append(Axis(index, self.before.number(begin) if begin else ZERO, self.before.number(end)))
        return index

    def fold(self, code: str, value: Operand) -> None:
        """Fold a value into one more returned word."""
        k = len(self._returns)
        place = Place(f"word_{k}", value.dtype, self._returned, 0, (), (), 8 * k, 8)
        self._returns.append(value.dtype)
        self.b.atomic(code, place, (), value)

    def made(self, name: str) -> ReductionKernel:
        """The kernel."""
        task = Task(f"{name}_0", self.body, self.axes, self.prologue)
        return ReductionKernel(Kernel(name, self.inputs.args, [task], self._returns), self.inputs, len(self._returns))


def passing(name: str, gate: RowPredicate, used: tuple[int, ...]) -> ReductionKernel:
    """How many index tuples pass a gate; one whose conditions read outside of an array passes.

    The numbers ``begin{k}`` and ``end{k}`` are the indices of axis k, for each of ``used``.

    Raises:
        NotReducible: the kernel could count otherwise than numpy.
    """
    m = _Making()
    for k in used:
        axis = gate.axes[k]
        m.f.indices[axis.index] = m.b.cast(m.axis(f"begin{k}", f"end{k}"), axis.index.dtype)
    passes: Operand | None = None
    for t in gate.tests:
        value, bad = m.f.value(t.cond)
        mine = m.f.either(value if t.holds else m.b.op("not", value), bad)
        passes = mine if passes is None else m.b.op("and", passes, mine)
    assert passes is not None
    m.fold("add", m.b.cast(passes, i64))
    return m.made(name)


def ends(name: str, read: ElementRead, dtype: DType) -> ReductionKernel:
    """The least and the most element of a part of an array, in an integer type, as ``decoded`` reads them.

    The numbers ``begin{k}`` and ``end{k}`` are the indices along axis k; they lie inside.
    """
    m = _Making()
    at = tuple(m.axis(f"begin{k}", f"end{k}") for k in range(read.place.ndim))
    value: Operand = m.b.cast(m.b.gload(m.inputs.place(read.place), at), dtype)
    if dtype is not u64:  # in the order of unsigned numbers
        value = m.b.op("xor", m.b.cast(m.b.cast(value, i64), u64), Const(SIGN, u64))
    m.fold("max", m.b.op("bitnot", value))
    m.fold("max", value)
    return m.made(name)


def decoded(words: list[int], dtype: DType) -> tuple[int, int]:
    """The least and the most from the words of ``ends``, as unsigned numbers."""
    low, high = (1 << 64) - 1 - words[0], words[1]
    return (low, high) if dtype is u64 else (low - SIGN, high - SIGN)


def trips(name: str, loop: Range, used: tuple[Range, ...]) -> ReductionKernel:
    """The largest trip count of a loop over all tuples of ``used`` indices, and the sum of all counts, which may have wrapped.

    Ranges that use no index are axes; the others are loops, outermost first, the first of which is shared by ``lanes`` threads. Numbers,
    for a range k that is an axis: ``begin{k}``, how many values of it there are (``count{k}``), and that the values from the ``first{k}``th
    on lie ``jump{k}`` further. For all others: ``few``, how many values from both ends of a range count.

    Raises:
        NotReducible: the kernel could count otherwise than numpy.
    """
    m = _Making()
    inside: list[int] = []
    for k, r in enumerate(used):
        if depends(r):
            inside.append(k)
            continue
        position = m.axis("", f"count{k}")
        first, jump = m.f.number(f"first{k}"), m.f.number(f"jump{k}")
        _take(m, r, m.f.number(f"begin{k}"), position, first, jump)
    lane = m.axis("", "lanes") if inside else None
    _nest(m, loop, used, inside, lane)
    return m.made(name)


def _take(m: _Making, r: Range, begin: Operand, position: Operand, first: Operand, jump: Operand) -> None:
    """The value of a range at one of the positions that count is that of its index from now on."""
    b = m.b
    further = b.op("select", b.op("ge", position, first), jump, ZERO)
    far = b.op("mul", b.op("add", position, further), Const(r.step, i64))
    m.f.indices[r.index] = b.cast(b.op("add", begin, far), r.index.dtype)


def _nest(m: _Making, loop: Range, used: tuple[Range, ...], inside: list[int], lane: Op | None) -> None:
    """The loops over the ranges ``inside``, and in their middle the trip count."""
    b = m.b
    if not inside:
        _, count = _trips(m, loop)
        m.fold("max", count)
        m.fold("add", count)
        return
    k, *rest = inside
    r = used[k]
    begin, count = _trips(m, r)
    few = m.f.number("few")
    taken = b.op("min", count, b.op("mul", few, Const(2, i64)))
    first, jump = b.op("min", count, few), b.op("sub", count, taken)
    turns: Operand = taken
    if lane is not None:
        lanes = m.f.number("lanes")
        turns = b.op("max", b.op("floordiv", b.op("sub", b.op("add", taken, b.op("sub", lanes, ONE)), lane), lanes), ZERO)
    with b.loop(ZERO, turns) as turn:
        position: Operand = turn.index
        if lane is not None:
            position = b.op("add", b.op("mul", turn.index, m.f.number("lanes")), lane)
        _take(m, r, begin, position, first, jump)
        _nest(m, loop, used, rest, None)


def _trips(m: _Making, r: Range) -> Value:
    """First value and number of values of a range, i64: ``Points.trips``."""
    assert r.end is not None
    b = m.b
    (begin, bad), (end, outside) = m.f.value(r.begin), m.f.value(r.end)
    low, high = (begin, end) if r.step > 0 else (end, begin)
    kinds = {low.dtype, high.dtype}
    if u64 in kinds and len(kinds) > 1:
        raise NotReducible("bounds of two types")
    span = b.op("sub", b.cast(high, i64), b.cast(low, i64))
    if any(d.bits == 64 for d in kinds):
        if len(kinds) > 1:
            low, high = b.cast(low, i64), b.cast(high, i64)
        wrapped = b.op("select", b.op("lt", span, ZERO), Const(int(MOST), i64), span)
        span = b.op("select", b.op("gt", high, low), wrapped, ZERO)
    count = b.op("max", span, ZERO)
    if abs(r.step) != 1:
        whole = b.op("add", b.op("floordiv", b.op("sub", span, ONE), Const(abs(r.step), i64)), ONE)
        count = b.op("select", b.op("gt", span, ZERO), whole, ZERO)
    bad = m.f.either(bad, outside)
    return b.cast(begin, i64), count if bad == FALSE else b.op("select", bad, ZERO, count)
