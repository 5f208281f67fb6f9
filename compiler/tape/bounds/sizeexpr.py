"""SizeExpr: a loop bound as an integer expression that the host can evaluate before a launch.

Leaves are literals, scalar arguments, ndarray extents, indices of enclosing loops and axes, and elements of fields and ndarrays
that the kernel does not write. A value that depends on the path taken is a ``Pick``. What is known only at run time is ``UnknownExpr``.

Every expression has the type that the kernel computes it in, and wraps as it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Union

from ...ir.nodes import ArgDecl, Loc, Op, Place
from ...ir.types import DType, i64, limits, u1


@dataclass(frozen=True)
class Lit:
    """A literal."""

    value: int | float | bool
    dtype: DType = i64


@dataclass(frozen=True)
class ScalarArgument:
    """A scalar argument of the launch."""

    arg: ArgDecl

    @property
    def dtype(self) -> DType:
        """Its type."""
        return self.arg.dtype


@dataclass(frozen=True)
class Extent:
    """``array.shape[axis]`` of an ndarray argument."""

    arg: ArgDecl
    axis: int
    dtype: DType = i64


@dataclass(frozen=True)
class Index:
    """The current index of an enclosing loop or axis."""

    op: Op

    @property
    def dtype(self) -> DType:
        """Its type."""
        return self.op.dtype


@dataclass(frozen=True)
class ElementRead:
    """An element of an array."""

    place: Place
    index: tuple[SizeExpr, ...]

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.place.dtype


@dataclass(frozen=True)
class Bin:
    """An operation of ``OPS``; its operands have one type."""

    op: str
    args: tuple[SizeExpr, ...]
    dtype: DType = i64


@dataclass(frozen=True)
class Cast:
    """The value as another integer type, or a real as an integer."""

    arg: SizeExpr
    dtype: DType


@dataclass(frozen=True)
class Pick:
    """A value of a range; which one is known only at run time. Two with one ``range.index`` are the same value."""

    range: Range

    @property
    def dtype(self) -> DType:
        """Its type."""
        return self.range.index.dtype


@dataclass(frozen=True)
class UnknownExpr:
    """Known only at run time. ``why`` is shown in plans."""

    why: str

    @property
    def dtype(self) -> DType:
        """Any."""
        return i64


SizeExpr = Union[Lit, ScalarArgument, Extent, Index, ElementRead, Bin, Cast, Pick, UnknownExpr]

OPS = frozenset(
    "add sub mul floordiv mod cdiv crem min max neg abs sgn pow and or xor bitnot shl shr sar popcnt clz"
    " select lt le gt ge eq ne not".split()
)


@dataclass(frozen=True)
class Range:
    """The values of an index: begin, begin + step, .. before end. ``end`` None: for ever."""

    index: Op
    begin: SizeExpr
    end: SizeExpr | None
    step: int
    loc: Loc | None = None

    @property
    def ends(self) -> tuple[SizeExpr, ...]:
        """Begin and end, as far as there are any."""
        return (self.begin,) if self.end is None else (self.begin, self.end)


def inner(e: SizeExpr) -> tuple[SizeExpr, ...]:
    """The expressions that an expression is made of."""
    match e:
        case ElementRead():
            return e.index
        case Bin():
            return e.args
        case Cast():
            return (e.arg,)
        case Pick():
            return e.range.ends
    return ()


def parts(e: SizeExpr) -> Iterator[SizeExpr]:
    """The expression and everything inside it."""
    yield e
    for x in inner(e):
        yield from parts(x)


def depends(r: Range) -> bool:
    """Whether the ends of a range use an index."""
    return any(isinstance(x, (Index, Pick)) for end in r.ends for x in parts(end))


def rebuilt(e: SizeExpr, f: Callable[[SizeExpr], SizeExpr]) -> SizeExpr:
    """The expression with ``f`` of each of the expressions it is made of; itself when they stay."""
    old = inner(e)
    new = tuple(map(f, old))
    if all(a is b for a, b in zip(old, new)):
        return e
    match e:
        case ElementRead():
            return replace(e, index=new)
        case Bin():
            return replace(e, args=new)
        case Cast():
            return replace(e, arg=new[0])
        case Pick(range=r):
            return Pick(replace(r, begin=new[0], end=new[1] if len(new) > 1 else None))
    return e


def substituted(e: SizeExpr, values: Mapping[Op, SizeExpr]) -> SizeExpr:
    """The expression at other values of some indices. Its picks become picks of their own: they belong to another moment."""
    fresh: dict[Op, Op] = {}

    def at(x: SizeExpr) -> SizeExpr:
        if isinstance(x, Index):
            return values.get(x.op, x)
        x = rebuilt(x, at)
        if isinstance(x, Pick):
            index = fresh.setdefault(x.range.index, Op("index", (), x.dtype))
            return Pick(replace(x.range, index=index))
        return x

    return at(e)


# ---- making expressions
def pick(begin: SizeExpr, end: SizeExpr, dtype: DType = i64) -> Pick:
    """An unknown value from ``begin`` to ``end`` - 1."""
    return Pick(Range(Op("index", (), dtype), begin, end, 1))


def any_of(dtype: DType) -> Pick:
    """Any value of a type."""
    low, high = limits(dtype)
    return pick(Lit(low), Lit(high + 1), dtype)


def truth() -> Pick:
    """A condition that is known only at run time."""
    return any_of(u1)


def wide(e: SizeExpr) -> SizeExpr:
    """The value as an i64."""
    if isinstance(e, Lit):
        return Lit(int(e.value))
    return e if e.dtype is i64 else Cast(e, i64)


def plus(a: SizeExpr, b: SizeExpr) -> SizeExpr:
    """The sum of two i64."""
    if isinstance(a, Lit) and isinstance(b, Lit):
        return Lit(a.value + b.value)
    if isinstance(a, Lit):
        a, b = b, a
    return a if b == Lit(0) else Bin("add", (a, b))


def times(a: SizeExpr, b: SizeExpr) -> SizeExpr:
    """The product of two i64."""
    if isinstance(a, Lit) and isinstance(b, Lit):
        return Lit(a.value * b.value)
    if isinstance(a, Lit):
        a, b = b, a
    return a if b == Lit(1) else b if b == Lit(0) else Bin("mul", (a, b))


def minus(a: SizeExpr, b: SizeExpr) -> SizeExpr:
    """The difference of two i64."""
    return plus(a, Lit(-b.value)) if isinstance(b, Lit) else Bin("sub", (a, b))


def quotient(a: SizeExpr, step: int) -> SizeExpr:
    """An i64 divided by a positive number, rounded down."""
    return a if step == 1 else Lit(int(a.value) // step) if isinstance(a, Lit) else Bin("floordiv", (a, Lit(step)))


def position(r: Range) -> SizeExpr:
    """The number of iterations before the current one of a range."""
    begin, index = wide(r.begin), wide(Index(r.index))
    return quotient(minus(index, begin) if r.step > 0 else minus(begin, index), abs(r.step))


def length(r: Range) -> SizeExpr:
    """The number of iterations of a range."""
    assert r.end is not None
    begin, end = wide(r.begin), wide(r.end)
    span = minus(end, begin) if r.step > 0 else minus(begin, end)
    n = quotient(plus(span, Lit(abs(r.step) - 1)), abs(r.step))
    return Lit(max(0, int(n.value))) if isinstance(n, Lit) else Bin("max", (n, Lit(0)))


def item(r: Range, k: SizeExpr) -> SizeExpr:
    """The index of iteration ``k`` of a range."""
    return as_type(plus(wide(r.begin), times(k, Lit(r.step))), r.index.dtype)


def as_type(e: SizeExpr, dtype: DType) -> SizeExpr:
    """An i64 in another type; it wraps."""
    return e if e.dtype is dtype else Cast(e, dtype)
