"""How many iterations of a task pass its gate: evaluated with numpy, each value in the type and to the bits that the kernel has.

Only the axes that the conditions use are walked, in blocks, and no further than until enough iterations are found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from ..ir.meaning import scalar
from ..ir.nodes import Axis, Const, Op, Operand, Place
from .evaluate import APPLY, Host, cast
from .far import reducer_of, single
from .gates import Gate

Values = Any
"""An array that broadcasts to the block, or a numpy scalar."""

FIRST_BLOCK, LARGEST_BLOCK = 1 << 12, 1 << 18  # iterations


@dataclass(frozen=True)
class Extent:
    """The iterations of a task: first index and number of indices of each axis; ``used``: the axes that the gate's conditions read."""

    begins: tuple[int, ...]
    sizes: tuple[int, ...]
    used: tuple[int, ...]

    @property
    def iterations(self) -> int:
        """All iterations."""
        return math.prod(self.sizes)

    @property
    def looked_at(self) -> int:
        """The index tuples that a full count evaluates."""
        return math.prod(self.sizes[k] for k in self.used)


def extent_of(gate: Gate, host: Host) -> Extent | None:
    """The iterations of a launch; None when a bound cannot be read (an index outside of an array)."""
    point = _Block(host, {})
    begins, sizes = [], []
    for axis in gate.axes:
        (begin, bad), (end, outside) = point.eval(axis.begin), point.eval(axis.end)
        if np.any(bad) or np.any(outside):
            return None
        begins.append(int(begin))
        sizes.append(max(0, int(end) - int(begin)))
    leaves = {op for t in gate.tests for op in _indices(t.cond)}
    return Extent(tuple(begins), tuple(sizes), tuple(k for k, a in enumerate(gate.axes) if a.index in leaves))


def count_passing(gate: Gate, extent: Extent, host: Host, enough: int) -> int:
    """How many iterations pass, or ``enough`` or more of them. One whose conditions read outside of an array counts as passing.

    Args:
        gate: its tests.
        extent: of the launch.
        host: the launch.
        enough: where the count may stop.
    """
    others = math.prod(n for k, n in enumerate(extent.sizes) if k not in extent.used)
    found = 0
    reducer = reducer_of(host)
    if reducer is not None and extent.iterations and extent.used:
        counted = reducer.passing(gate, extent)
        if counted is not None:
            return counted * others
    if extent.iterations:
        axes = [gate.axes[k] for k in extent.used]
        for windows in _windows([range(extent.begins[k], extent.begins[k] + extent.sizes[k]) for k in extent.used]):
            found += _passing(gate, axes, windows, host)
            if found * others >= enough:
                break
    return found * others


def _passing(gate: Gate, axes: list[Axis], windows: tuple[range, ...], host: Host) -> int:
    block = _Block(host, {a.index: (k, w) for k, (a, w) in enumerate(zip(axes, windows))})
    passes: Values = np.True_
    for t in gate.tests:
        value, bad = block.eval(t.cond)
        passes = passes & ((value if t.holds else ~value) | bad)
        if not np.any(passes):
            return 0
    return int(np.count_nonzero(np.broadcast_to(passes, tuple(map(len, windows)))))


def _windows(ranges: list[range]) -> Iterator[tuple[range, ...]]:
    """The index space in blocks. The first ones are small: most gates pass often, and then a few iterations are enough."""
    room = FIRST_BLOCK
    first = ranges[0] if ranges else range(1)
    rest = ranges[1:]
    at = 0
    while at < len(first):
        inner = math.prod(map(len, rest))
        step = max(1, room // max(1, inner))
        window = first[at : at + step]
        parts = [[window]] + [
            _pieces(r, max(1, LARGEST_BLOCK // math.prod(map(len, rest[k + 1 :])))) for k, r in enumerate(rest)
        ]
        yield from product(*parts) if ranges else [()]
        at += step
        room = min(LARGEST_BLOCK, 4 * room)


def _pieces(r: range, most: int) -> list[range]:
    return [r[k : k + most] for k in range(0, len(r), most)]


@dataclass
class _Block:
    """Values of formulas over a block of index tuples. ``indices``: of each index its dimension in the block and its values."""

    host: Host
    indices: dict[Op, tuple[int, range]]
    _known: dict[Op, tuple[Values, Values]] = field(default_factory=dict)

    def eval(self, x: Operand) -> tuple[Values, Values]:
        """The values, and where they mean nothing because an array was read outside of its bounds."""
        if isinstance(x, Const):
            return scalar(x.value, x.dtype), np.False_
        if x not in self._known:
            with np.errstate(all="ignore"):
                self._known[x] = self._op(x)
        return self._known[x]

    def _op(self, x: Op) -> tuple[Values, Values]:
        attr: Any = x.attr
        if x.op == "index":
            return self._along(x), np.False_
        if x.op == "arg":
            return scalar(self.host.scalar(attr), x.dtype), np.False_
        if x.op == "shape":
            return scalar(self.host.extent(*attr), x.dtype), np.False_
        if x.op == "gload":
            return self._read(x)
        args = [self.eval(a) for a in x.args]
        values = [v for v, _ in args]
        if x.op == "select":
            return np.where(*values), args[0][1] | np.where(values[0], args[1][1], args[2][1])
        bad: Values = np.False_
        for _, more in args:
            bad = bad | more
        if x.op == "cast":
            return cast(values[0], x.dtype), bad
        rule = REAL.get(x.op) if x.args[0].dtype.is_real else None
        return (rule or APPLY[x.op])(*values).astype(x.dtype.numpy, copy=False), bad

    def _along(self, index: Op) -> np.ndarray:
        dimension, window = self.indices[index]
        shape = [1] * len(self.indices)
        shape[dimension] = len(window)
        return np.arange(window.start, window.stop).astype(index.dtype.numpy).reshape(shape)

    def _read(self, x: Op) -> tuple[Values, Values]:
        assert isinstance(x.attr, Place)
        reducer = reducer_of(self.host)
        if reducer is not None and reducer.far(x.attr):
            one = single(self.host, x.attr, [self.eval(i) for i in x.args])
            if one is not None:
                return one
        array = self.host.array(x.attr)
        if array.size == 0:
            return x.dtype.numpy.type(0), np.True_
        part = self._window(x, array)
        if part is not None:
            return part, np.False_
        at, bad = [], np.False_
        for i, n in zip(x.args, array.shape):
            value, outside = self.eval(i)
            over = (value < 0) | (value >= n)
            bad = bad | outside | over
            at.append(np.where(over, 0, value).astype(np.int64))
        return array[tuple(at)], bad

    def _window(self, x: Op, array: np.ndarray) -> np.ndarray | None:
        """The read as a part of the array, without a copy: each index is fixed or an axis of its own."""
        where: list[int | slice] = []
        dimensions: list[int] = []
        for i, n in zip(x.args, array.shape):
            if isinstance(i, Op) and i in self.indices:
                dimension, window = self.indices[i]
                if dimension in dimensions or window.start < 0 or window.stop > n:
                    return None
                dimensions.append(dimension)
                where.append(slice(window.start, window.stop))
            else:
                value, outside = self.eval(i)
                if np.ndim(value) or np.any(outside) or not 0 <= value < n:
                    return None
                where.append(int(value))
        order = np.argsort(dimensions) if dimensions else []
        part = array[tuple(where)].transpose(order) if len(dimensions) > 1 else array[tuple(where)]
        shape = [1] * len(self.indices)
        for k, size in zip(sorted(dimensions), np.shape(part)):
            shape[k] = size
        return part.reshape(shape) if dimensions else part


def _indices(x: Operand) -> set[Op]:
    found, todo, seen = set(), [x], set()
    while todo:
        op = todo.pop()
        if isinstance(op, Op) and op not in seen:
            seen.add(op)
            todo += op.args
            if op.op == "index":
                found.add(op)
    return found


# where reals differ from integers
REAL: dict[str, Callable[..., Values]] = {
    "div": np.divide,
    "sqrt": np.sqrt,
    "min": lambda a, b: np.where(a < b, a, b),  # the second, when one is a NaN
    "max": lambda a, b: np.where(a > b, a, b),
    "isnan": np.isnan,
    "isinf": np.isinf,
    "detach": lambda a: a,
}
