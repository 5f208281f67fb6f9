"""Many values of a SizeExpr at once, with numpy, each in the type that the kernel computes it in: what wraps there wraps here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..ir.meaning import scalar
from ..ir.nodes import ArgDecl, Op, Place
from ..ir.types import DType, limits
from .far import reducer_of, single
from .sizeexpr import Arg, Bin, Cast, Extent, Index, Lit, Pick, Range, Read, SizeExpr

Values = Any
"""An array with one item for each point, or a numpy scalar for all."""

MOST = np.iinfo(np.int64).max


class Host(Protocol):
    """What the host knows of a launch before it happens. With an attribute ``reducer``, some arrays lie elsewhere: see ``far.py``."""

    def scalar(self, arg: ArgDecl) -> int | float:
        """The value of a scalar argument."""
        ...

    def extent(self, arg: ArgDecl, axis: int) -> int:
        """The extent of an ndarray argument along an axis."""
        ...

    def array(self, place: Place) -> np.ndarray:
        """The current content of an array, by its indices."""
        ...


@dataclass
class Points:
    """A table of index tuples.

    Attributes:
        size: how many.
        values: of each index.
        run: an index that goes up by one from each point to the next while all others stay, and its first value.
    """

    host: Host
    size: int = 1
    values: dict[Op, Values] = field(default_factory=dict)
    run: tuple[Op, int] | None = None
    _known: dict[int, tuple[Values, Values]] = field(default_factory=dict)

    def eval(self, e: SizeExpr) -> tuple[Values, Values]:
        """The values, and where they mean nothing because an array was read outside of its bounds (False: nowhere)."""
        found = self._known.get(id(e))
        if found is None:
            with np.errstate(all="ignore"):
                found = self._known[id(e)] = self._eval(e)
        return found

    def _eval(self, e: SizeExpr) -> tuple[Values, Values]:
        match e:
            case Lit():
                return scalar(e.value, e.dtype), False
            case Arg():
                return scalar(self.host.scalar(e.arg), e.dtype), False
            case Extent():
                return scalar(self.host.extent(e.arg, e.axis), e.dtype), False
            case Index():
                return self.values[e.op], False
            case Pick():
                return self.values[e.range.index], False
            case Cast():
                value, bad = self.eval(e.arg)
                return cast(value, e.dtype), bad
            case Read():
                return self._read(e)
            case Bin():
                return self._bin(e)
        raise TypeError(e)

    def _bin(self, e: Bin) -> tuple[Values, Values]:
        args = [self.eval(a) for a in e.args]
        values = [v for v, _ in args]
        if e.op == "select":
            cond = cast_bool(values[0])
            bad = args[0][1] | _where(cond, args[1][1], args[2][1])
            return np.where(cond, *(v.astype(e.dtype.numpy, copy=False) for v in values[1:])), bad
        bad = args[0][1]
        for _, more in args[1:]:
            bad = bad | more
        if e.op not in COMPARISONS and e.op not in COUNTS:
            values = [v.astype(e.dtype.numpy, copy=False) for v in values]
        return APPLY[e.op](*values).astype(e.dtype.numpy, copy=False), bad

    def _read(self, e: Read) -> tuple[Values, Values]:
        reducer = reducer_of(self.host)
        if reducer is not None and reducer.far(e.place):
            one = single(self.host, e.place, [self.eval(x) for x in e.index])
            if one is not None:
                return one
        array = self.host.array(e.place)
        if array.size == 0:
            return e.dtype.numpy.type(0), True
        window = self._window(e, array)
        if window is not None:
            return window, False
        at: list[Values] = []
        bad: Values = False
        for x, extent in zip(e.index, array.shape):
            value, outside = self.eval(x)
            over = (value < 0) | (value >= extent)
            bad = bad | outside | over
            at.append(np.where(over, 0, value) if np.any(over) else value)
        return array[tuple(at)], bad if np.any(bad) else False

    def _window(self, e: Read, array: np.ndarray) -> np.ndarray | None:
        """The read as a part of the array, without a copy: each index is fixed, but for one that runs through neighbours."""
        if self.run is None:
            return None
        where: list[int | slice] = []
        runs = 0
        for x, extent in zip(e.index, array.shape):
            shift = self._shift(x)
            if shift is None:
                value, outside = self.eval(x)
                if np.ndim(value) or np.any(outside) or not 0 <= value < extent:
                    return None
                where.append(int(value))
            elif 0 <= shift and shift + self.size <= extent:
                where.append(slice(shift, shift + self.size))
                runs += 1
            else:
                return None
        return array[tuple(where)] if runs == 1 else None

    def _shift(self, x: SizeExpr) -> int | None:
        """The first value of an index that is the running one plus something fixed."""
        assert self.run is not None
        match x:
            case Index(op=op) | Pick(range=Range(index=op)):
                return self.run[1] if op is self.run[0] else None
            case Cast(arg=inner) if x.dtype.holds(inner.dtype):
                return self._shift(inner)
            case Bin(op="add" | "sub" as code, args=(a, b)):
                first, other = self._shift(a), b
                if first is None and code == "add":
                    first, other = self._shift(b), a
                if first is None:
                    return None
                value, outside = self.eval(other)
                if np.ndim(value) or outside is not False:
                    return None
                first += int(value) if code == "add" else -int(value)
                low, high = limits(x.dtype)
                return first if low <= first and first + self.size <= high else None
        return None

    def trips(self, r: Range) -> tuple[Values, Values]:
        """First index and trip count (int64) of a range, at each point."""
        assert r.end is not None
        (begin, bad), (end, outside) = self.eval(r.begin), self.eval(r.end)
        low, high = (begin, end) if r.step > 0 else (end, begin)
        span = np.subtract(high, low, dtype=np.int64)
        if max(low.dtype.itemsize, high.dtype.itemsize) == 8:  # the difference may have wrapped
            span = np.where(high > low, np.where(span < 0, MOST, span), 0)
        step = abs(r.step)
        count = np.maximum(span, 0) if step == 1 else np.where(span > 0, (span - 1) // step + 1, 0)
        if bad is False and outside is False:
            return begin, count
        return begin, np.where(np.logical_or(bad, outside), 0, count)


def _where(cond: Values, a: Values, b: Values) -> Values:
    return False if a is False and b is False else np.where(cond, a, b)


def cast_bool(x: Values) -> Values:
    """Which values are true."""
    return x if x.dtype == np.bool_ else x != 0


def cast(x: Values, dtype: DType) -> Values:
    """Values in another type; reals become integers as in the kernel: truncated, at the ends of the type saturated, a NaN 0."""
    if dtype.kind == "b":
        return cast_bool(x)
    if dtype.is_real or x.dtype.kind != "f":
        return x.astype(dtype.numpy, copy=False)
    low, high = limits(dtype)
    whole = x.astype(np.float64)
    inside = (whole > low - 1) & (whole < high + 1)
    found = np.where(inside, whole, 0.0).astype(dtype.numpy)
    none, least, most = (np.asarray(end, dtype.numpy) for end in (0, low, high))  # numpy 1 makes C longs of Python's integers
    ends = np.where(np.isnan(whole), none, np.where(whole < 0, least, most))
    return np.where(inside, found, ends)


# literals have the type of the values: numpy 1 makes C longs of Python's integers, and a C long and a u64 meet in float64
def _or_zero(b: Values, found: Values) -> Values:
    """``found``, but 0 where the divisor is."""
    return np.where(b == 0, found.dtype.type(0), found)


def _divisor(b: Values) -> Values:
    return np.where(b == 0, b.dtype.type(1), b)


def _floordiv(a: Values, b: Values) -> Values:
    return _or_zero(b, a // _divisor(b))


def _mod(a: Values, b: Values) -> Values:
    return _or_zero(b, a % _divisor(b))


def _cdiv(a: Values, b: Values) -> Values:
    safe = _divisor(b)
    down = a // safe
    up = down + ((down * safe != a) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return _or_zero(b, up)


def _crem(a: Values, b: Values) -> Values:
    return _or_zero(b, a - b * _cdiv(a, b))


def _unsigned(a: Values) -> np.ndarray:
    a = np.asarray(a)
    return a.view(f"u{a.dtype.itemsize}")


def _count(a: Values, b: Values) -> Values:
    """A shift count modulo the width."""
    return b & b.dtype.type(8 * a.dtype.itemsize - 1)


def _shr(a: Values, b: Values) -> Values:
    return (_unsigned(a) >> _unsigned(_count(a, b))).view(a.dtype)


def _pow(a: Values, b: Values) -> Values:
    """By squaring, as wrapping multiplications give; a negative exponent gives 0, except for the bases 1 and -1."""
    zero, one = a.dtype.type(0), a.dtype.type(1)
    out, base, left = np.ones_like(a + b), a, np.maximum(b, zero)
    for _ in range(int(np.max(left, initial=zero)).bit_length()):
        out = np.where(left & one, out * base, out)
        base, left = base * base, left >> one
    if a.dtype.kind == "u":
        return out
    inverse = np.where(a == one, one, np.where(a == -one, np.where(b & one, -one, one), zero))
    return np.where(b < zero, inverse, out)


def _popcnt(a: Values) -> Values:
    left = _unsigned(a).astype(np.uint64)
    out = np.zeros(np.shape(left), np.int64)
    for _ in range(8 * np.asarray(a).dtype.itemsize):
        out = out + (left & np.uint64(1)).astype(np.int64)
        left = left >> np.uint64(1)
    return out


def _clz(a: Values) -> Values:
    width = 8 * np.asarray(a).dtype.itemsize
    left = _unsigned(a).astype(np.uint64)
    out = np.full(np.shape(left), width, np.int64)
    for _ in range(width):
        out = out - (left != 0)
        left = left >> np.uint64(1)
    return out


COMPARISONS: dict[str, Callable[..., Values]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
COUNTS: dict[str, Callable[..., Values]] = {"popcnt": _popcnt, "clz": _clz, "not": lambda a: ~cast_bool(a)}
"""Operations whose result need not have the type of the operand."""

APPLY: dict[str, Callable[..., Values]] = {
    **COMPARISONS,
    **COUNTS,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": _floordiv,
    "mod": _mod,
    "cdiv": _cdiv,
    "crem": _crem,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "sgn": np.sign,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "bitnot": np.invert,
    "shl": lambda a, b: np.left_shift(a, _count(a, b)),
    "shr": _shr,
    "sar": lambda a, b: np.right_shift(a, _count(a, b)),
    "pow": _pow,
}
