"""Interval arithmetic on SizeExprs: the least and the most that a value can be while indices lie in intervals, in whole numbers.

What may wrap may be anything of its type. Both ends are kept: ``range(N - i)`` uses the LEAST i for its largest count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...ir.meaning import cast
from ...ir.nodes import Op
from ...ir.types import DType, limits
from .evaluate import Points
from .queries import HostInputs, Interval, reducer_of, shape_of
from .sizeexpr import Bin, Cast, ElementRead, Extent, Index, Lit, Pick, Range, ScalarArgument, SizeExpr

Linear = dict[SizeExpr | None, int]
"""A sum of leaves, each times a number; that of None is the constant."""

TRUTH: Interval = (0, 1)


@dataclass
class Intervals:
    """Intervals of expressions.

    Attributes:
        host: answers queries about the launch.
        of_index: the interval of each index that was ``add``ed.
    """

    host: HostInputs
    of_index: dict[Op, Interval] = field(default_factory=dict)
    _known: dict[int, Interval] = field(default_factory=dict)

    def add(self, r: Range) -> Interval:
        """Take note of an index; those that its range is made of come first. An empty interval: the range may have no values."""
        assert r.end is not None
        begin, end = self.of(r.begin), self.of(r.end)
        low, high = (begin[0], end[1] - 1) if r.step > 0 else (end[0] + 1, begin[1])
        self.of_index[r.index] = low, max(low, high)
        return low, high

    def trips(self, r: Range) -> int:
        """The most iterations that a range can have."""
        assert r.end is not None
        begin, end = self.of(r.begin), self.of(r.end)
        span = end[1] - begin[0] if r.step > 0 else begin[1] - end[0]
        first, last = self._linear(r.begin), self._linear(r.end)
        if first is not None and last is not None:
            sign = 1 if r.step > 0 else -1
            span = min(span, self._most(_sum(last, first, -1), sign))
        return max(0, -(-span // abs(r.step)))

    # ---- values
    def of(self, e: SizeExpr) -> Interval:
        """The interval of an expression."""
        found = self._known.get(id(e))
        if found is None:
            found = self._of(e)
            low, high = limits(e.dtype)
            if found[0] < low or found[1] > high:
                found = low, high
            self._known[id(e)] = found
        return found

    def _of(self, e: SizeExpr) -> Interval:
        match e:
            case Lit() | ScalarArgument() | Extent():
                value = int(Points(self.host).eval(e)[0])
                return value, value
            case Index(op=op) | Pick(range=Range(index=op)):
                return self.of_index[op]
            case Cast():
                return self._cast(e)
            case ElementRead():
                return self._ends(e, e.dtype)
            case Bin():
                return self._bin(e)
        raise TypeError(e)

    def _cast(self, e: Cast) -> Interval:
        if e.arg.dtype.is_int:
            low, high = self.of(e.arg)
            return (low, high) if e.dtype.kind != "b" else (int(low > 0 or high < 0), int((low, high) != (0, 0)))
        if isinstance(e.arg, ElementRead):
            return self._ends(e.arg, e.dtype)
        value = int(cast(Points(self.host).eval(e.arg)[0], e.dtype))
        return value, value

    def _ends(self, e: ElementRead, dtype: DType) -> Interval:
        """The least and the most of the elements that a read may meet, in an integer type; 0 where there are none."""
        reducer = reducer_of(self.host)
        elsewhere = reducer is not None and reducer.far(e.place)
        array = None if elsewhere else self.host.array(e.place)
        window = []
        for x, extent in zip(e.index, shape_of(self.host, e.place) if array is None else array.shape):
            low, high = self.of(x)
            window.append((max(0, low), max(0, min(extent, high + 1))))
        if any(first >= end for first, end in window):
            return 0, 0
        if reducer is not None and elsewhere and (found := reducer.ends(e, tuple(window), dtype)) is not None:
            return found
        array = self.host.array(e.place) if array is None else array
        values = cast(array[tuple(slice(*w) for w in window)], dtype)
        return int(values.min()), int(values.max())

    def _bin(self, e: Bin) -> Interval:
        if e.op in _COMPARE:
            if any(a.dtype.is_real for a in e.args):
                return TRUTH
            return _COMPARE[e.op](self.of(e.args[0]), self.of(e.args[1]))
        if e.op == "select":
            cond, a, b = map(self.of, e.args)
            if cond == (1, 1):
                return a
            return b if cond == (0, 0) else (min(a[0], b[0]), max(a[1], b[1]))
        args = [self.of(a) for a in e.args]
        if all(low == high for low, high in args):
            value = int(
                Points(self.host).eval(replace(e, args=tuple(Lit(low, a.dtype) for (low, _), a in zip(args, e.args))))[0]
            )
            return value, value
        rule = _RULES.get(e.op)
        return limits(e.dtype) if rule is None else rule(*args, e.dtype)

    # ---- sums: what cancels, cancels
    def _linear(self, e: SizeExpr) -> Linear | None:
        """A value as a sum in which nothing wraps; None: something may."""
        match e:
            case Lit() if e.dtype.is_int:
                return {None: self.of(e)[0]}
            case Cast(arg=arg) if arg.dtype.is_int and e.dtype.kind != "b":
                low, high = limits(e.dtype)
                least, most = self.of(arg)
                return self._linear(arg) if low <= least and most <= high else None
            case Bin(op="add" | "sub" as code, args=(a, b)):
                left, right = self._linear(a), self._linear(b)
                if left is None or right is None or not self._stays(e, code, a, b):
                    return None
                return _sum(left, right, 1 if code == "add" else -1)
            case Bin(op="mul", args=(a, Lit() as factor)) | Bin(op="mul", args=(Lit() as factor, a)):
                left, n = self._linear(a), self.of(factor)[0]
                low, high = (n * x for x in self.of(a))
                return None if left is None or not _inside(min(low, high), max(low, high), e.dtype) else _sum({}, left, n)
        return {e: 1}

    def _stays(self, e: Bin, code: str, a: SizeExpr, b: SizeExpr) -> bool:
        (l0, h0), (l1, h1) = self.of(a), self.of(b)
        low, high = (l0 + l1, h0 + h1) if code == "add" else (l0 - h1, h0 - l1)
        return _inside(low, high, e.dtype)

    def _most(self, total: Linear, sign: int) -> int:
        """The most that a sum, times ``sign``, can be."""
        out = 0
        for leaf, factor in total.items():
            factor *= sign
            low, high = (1, 1) if leaf is None else self.of(leaf)
            out += factor * (high if factor > 0 else low)
        return out


def _sum(a: Linear, b: Linear, factor: int) -> Linear:
    out = dict(a)
    for leaf, n in b.items():
        out[leaf] = out.get(leaf, 0) + factor * n
    return out


def _inside(low: int, high: int, dtype: DType) -> bool:
    least, most = limits(dtype)
    return least <= low and high <= most


# ---- rules: intervals of the operands, the type of the result
Rule = Callable[..., Interval]


def _corners(f: Callable[[int, int], int]) -> Rule:
    """The interval of an operation that is monotone in each operand."""

    def rule(a: Interval, b: Interval, dtype: DType) -> Interval:
        found = [f(x, y) for x in a for y in b]
        return min(found), max(found)

    return rule


def _divided(f: Callable[[int, int], int]) -> Rule:
    """A quotient: monotone while the divisor keeps its sign; nothing divided by 0 is 0."""

    def rule(a: Interval, b: Interval, dtype: DType) -> Interval:
        signs = [(max(b[0], 1), b[1]), (b[0], min(b[1], -1))]
        found = [f(x, y) for part in signs if part[0] <= part[1] for x in a for y in part]
        if b[0] <= 0 <= b[1]:
            found.append(0)
        return min(found), max(found)

    return rule


def _mod(a: Interval, b: Interval, dtype: DType) -> Interval:
    if b[0] == b[1] > 0 and a[0] // b[0] == a[1] // b[0]:
        return a[0] % b[0], a[1] % b[0]
    if a[0] >= 0 and b[0] > 0:
        return 0, min(b[1] - 1, a[1])
    return min(0, b[0] + 1), max(0, b[1] - 1)


def _crem(a: Interval, b: Interval, dtype: DType) -> Interval:
    most = max(0, abs(b[0]) - 1, abs(b[1]) - 1)
    return max(min(0, a[0]), -most), min(max(0, a[1]), most)


def _abs(a: Interval, dtype: DType) -> Interval:
    low = 0 if a[0] <= 0 <= a[1] else min(map(abs, a))
    return low, max(map(abs, a))


def _and(a: Interval, b: Interval, dtype: DType) -> Interval:
    """A number without a sign bit is the most that an ``and`` with it can be."""
    bounds = [high for low, high in (a, b) if low >= 0]
    return (0, min(bounds)) if bounds else limits(dtype)


def _or(a: Interval, b: Interval, dtype: DType) -> Interval:
    if a[0] < 0 or b[0] < 0:
        return limits(dtype)
    return 0, (1 << max(a[1], b[1]).bit_length()) - 1


def _shl(a: Interval, b: Interval, dtype: DType) -> Interval:
    if not 0 <= b[0] <= b[1] < dtype.bits:
        return limits(dtype)
    return _corners(lambda x, n: x << n)(a, b, dtype)


def _sar(a: Interval, b: Interval, dtype: DType) -> Interval:
    if not 0 <= b[0] <= b[1] < dtype.bits:
        b = 0, dtype.bits - 1
    return _corners(lambda x, n: x >> n)(a, b, dtype)


def _shr(a: Interval, b: Interval, dtype: DType) -> Interval:
    return _sar(a, b, dtype) if a[0] >= 0 else limits(dtype)


def _pow(a: Interval, b: Interval, dtype: DType) -> Interval:
    if a[0] < 1 or b[0] < 0 or b[1] * a[1].bit_length() > 512:
        return limits(dtype)
    return a[0] ** b[0], a[1] ** b[1]


def _compare(surely: Callable[[Interval, Interval], bool], never: Callable[[Interval, Interval], bool]) -> Rule:
    def rule(a: Interval, b: Interval) -> Interval:
        return (1, 1) if surely(a, b) else (0, 0) if never(a, b) else TRUTH

    return rule


def _apart(a: Interval, b: Interval) -> bool:
    return a[1] < b[0] or b[1] < a[0]


def _one(a: Interval, b: Interval) -> bool:
    return a[0] == a[1] == b[0] == b[1]


_COMPARE: dict[str, Rule] = {
    "lt": _compare(lambda a, b: a[1] < b[0], lambda a, b: a[0] >= b[1]),
    "le": _compare(lambda a, b: a[1] <= b[0], lambda a, b: a[0] > b[1]),
    "gt": _compare(lambda a, b: a[0] > b[1], lambda a, b: a[1] <= b[0]),
    "ge": _compare(lambda a, b: a[0] >= b[1], lambda a, b: a[1] < b[0]),
    "eq": _compare(_one, _apart),
    "ne": _compare(_apart, _one),
}

_RULES: dict[str, Rule] = {
    "add": lambda a, b, _: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b, _: (a[0] - b[1], a[1] - b[0]),
    "neg": lambda a, _: (-a[1], -a[0]),
    "not": lambda a, _: (1 - a[1], 1 - a[0]),
    "bitnot": lambda a, dtype: (~a[1], ~a[0]) if dtype.kind == "i" else limits(dtype),
    "sgn": lambda a, _: ((a[0] > 0) - (a[0] < 0), (a[1] > 0) - (a[1] < 0)),
    "min": lambda a, b, _: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b, _: (max(a[0], b[0]), max(a[1], b[1])),
    "mul": _corners(lambda x, y: x * y),
    "floordiv": _divided(lambda x, y: x // y),
    "cdiv": _divided(lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)),
    "mod": _mod,
    "crem": _crem,
    "abs": _abs,
    "and": _and,
    "or": _or,
    "xor": _or,
    "shl": _shl,
    "sar": _sar,
    "shr": _shr,
    "pow": _pow,
}
