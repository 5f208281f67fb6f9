"""Many values of a formula at once, with numpy, each in the type and to the bits that the kernel computes: see ``ir.meaning``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ir.meaning import cast, evaluate, scalar
from ...ir.nodes import Op
from ...ir.ops import TABLE
from ...ir.types import limits, u1
from .queries import HostInputs, reducer_of, single
from .sizeexpr import Bin, Cast, ElementRead, Extent, Index, Lit, Pick, Range, ScalarArgument, SizeExpr

Values = Any
"""An array that broadcasts to the points, or a numpy scalar for all."""

MOST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Run:
    """An index that takes the values ``first``, ``first + 1``, .. along one dimension of the points, and one value along all others."""

    dimension: int
    first: int
    count: int


@dataclass
class Points:
    """Index tuples: a list, or a block with a dimension for each of its ``runs``.

    Attributes:
        size: how many.
        values: of each index.
        runs: indices that count along a dimension of their own: what they read of an array is a part of it, and no copy.
    """

    host: HostInputs
    size: int = 1
    values: dict[Op, Values] = field(default_factory=dict)
    runs: Mapping[Op, Run] = field(default_factory=dict)
    _known: dict[int, tuple[Values, Values]] = field(default_factory=dict)

    def eval(self, e: SizeExpr) -> tuple[Values, Values]:
        """The values, and where they mean nothing because an array was read outside of its bounds (False: nowhere)."""
        found = self._known.get(id(e))
        if found is None:
            found = self._known[id(e)] = self._eval(e)
        return found

    def _eval(self, e: SizeExpr) -> tuple[Values, Values]:
        match e:
            case Lit():
                return scalar(e.value, e.dtype), False
            case ScalarArgument():
                return scalar(self.host.scalar(e.arg), e.dtype), False
            case Extent():
                return scalar(self.host.extent(e.arg, e.axis), e.dtype), False
            case Index():
                return self.values[e.op], False
            case Pick():
                return self.values[e.range.index], False
            case Cast():
                value, bad = self.eval(e.arg)
                return evaluate("cast", [value], e.dtype), bad
            case ElementRead():
                return self._read(e)
            case Bin():
                return self._bin(e)
        raise TypeError(e)

    def _bin(self, e: Bin) -> tuple[Values, Values]:
        args = [self.eval(a) for a in e.args]
        values = [v for v, _ in args]
        if e.op == "select":
            values = [cast(values[0], u1), *(v.astype(e.dtype.numpy, copy=False) for v in values[1:])]
            return evaluate("select", values, e.dtype), args[0][1] | _where(values[0], args[1][1], args[2][1])
        bad = args[0][1]
        for _, more in args[1:]:
            bad = bad | more
        if TABLE[e.op].result == "same":
            values = [v.astype(e.dtype.numpy, copy=False) for v in values]
        return evaluate(e.op, values, e.dtype), bad

    def _read(self, e: ElementRead) -> tuple[Values, Values]:
        reducer = reducer_of(self.host)
        if reducer is not None and reducer.far(e.place):
            one = single(self.host, e.place, [self.eval(x) for x in e.index])
            if one is not None:
                return one
        array = self.host.array(e.place)
        if array.size == 0:
            return e.dtype.numpy.type(0), True
        part = self._part(e, array) if self.runs else None
        if part is not None:
            return part, False
        at: list[Values] = []
        bad: Values = False
        for x, extent in zip(e.index, array.shape):
            value, outside = self.eval(x)
            over = (value < 0) | (value >= extent)
            bad = bad | outside | over
            at.append((np.where(over, 0, value) if np.any(over) else value).astype(np.int64, copy=False))
        return array[tuple(at)], bad if np.any(bad) else False

    def _part(self, e: ElementRead, array: np.ndarray) -> np.ndarray | None:
        """The read as a part of the array, without a copy: each index is fixed, or a run that no other index is."""
        where: list[int | slice] = []
        along: list[int] = []
        for x, extent in zip(e.index, array.shape):
            run = self._run(x)
            if run is None:
                value, outside = self.eval(x)
                if np.ndim(value) or np.any(outside) or not 0 <= value < extent:
                    return None
                where.append(int(value))
            elif run.dimension not in along and 0 <= run.first and run.first + run.count <= extent:
                where.append(slice(run.first, run.first + run.count))
                along.append(run.dimension)
            else:
                return None
        if not along:
            return None
        part = array[tuple(where)]
        if len(self.runs) == 1:
            return part
        shape = [1] * len(self.runs)
        for dimension, size in zip(along, part.shape):
            shape[dimension] = size
        return part.transpose(np.argsort(along)).reshape(shape)

    def _run(self, x: SizeExpr) -> Run | None:
        """The run that an index is: one of the points, or one plus something fixed."""
        match x:
            case Index(op=op) | Pick(range=Range(index=op)):
                return self.runs.get(op)
            case Cast(arg=inner) if x.dtype.is_int and inner.dtype.is_int and x.dtype.holds(inner.dtype):
                return self._run(inner)
            case Bin(op="add" | "sub" as code, args=(a, b)):
                run, other = self._run(a), b
                if run is None and code == "add":
                    run, other = self._run(b), a
                if run is None:
                    return None
                value, outside = self.eval(other)
                if np.ndim(value) or outside is not False:
                    return None
                first = run.first + (int(value) if code == "add" else -int(value))
                low, high = limits(x.dtype)
                return Run(run.dimension, first, run.count) if low <= first and first + run.count <= high else None
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
