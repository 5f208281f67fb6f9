"""The largest trip count of a loop: exact by enumerating the enclosing indices it uses, else by interval arithmetic.

Everything is vectorised with numpy. Interval arithmetic takes both ends: ``range(N - i)`` uses the LOWER bound of i for its upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..ir.nodes import ArgDecl, Op, Place
from .sizeexpr import AnyOf, Arg, Bin, Extent, Index, Lit, Range, Read, SizeExpr, Unknown, parts

CHUNK = 1 << 20  # index tuples evaluated at a time
LIMIT = 1 << 26  # index tuples enumerated before interval arithmetic takes over
INF = float("inf")
Interval = tuple[float, float]
ANY: Interval = (-INF, INF)


class Host(Protocol):
    """What the host knows of a launch before it happens."""

    def scalar(self, arg: ArgDecl) -> int:
        """The value of an integer argument."""
        ...

    def extent(self, arg: ArgDecl, axis: int) -> int:
        """The extent of an ndarray argument along an axis."""
        ...

    def array(self, place: Place) -> np.ndarray:
        """The current content of an integer array, by its indices."""
        ...


@dataclass(frozen=True)
class Trips:
    """At most ``count`` iterations (None: unknown); ``source`` says how that is known."""

    count: int | None
    source: str


class _TooMany(Exception):
    pass


def max_trips(loop: Range, nest: tuple[Range, ...], host: Host) -> Trips:
    """The largest trip count of ``loop`` over all values of the indices around it (``nest``, outermost first)."""
    if loop.end is None:
        return Trips(None, "while")
    used = _used(loop, nest)
    bounds = [e for r in (loop, *used) for end in (r.begin, r.end) if end is not None for e in parts(end)]
    unknown = next((e for e in bounds if isinstance(e, Unknown)), None)
    if unknown or any(r.end is None for r in used):
        return Trips(None, unknown.why if unknown else "inside a while loop")
    if not any(isinstance(e, AnyOf) for e in bounds):
        try:
            return Trips(_enumerate(loop, used, host), _source(bounds, used))
        except _TooMany:
            pass
    return _by_intervals(loop, used, host)


def _used(loop: Range, nest: tuple[Range, ...]) -> tuple[Range, ...]:
    """The enclosing ranges whose indices the bounds use, closed over those ranges' own bounds."""
    wanted: set[Op] = set()

    def need(r: Range) -> None:
        for end in (r.begin, r.end):
            if end is not None:
                wanted.update(e.op for e in parts(end) if isinstance(e, Index))

    need(loop)
    for r in reversed(nest):
        if r.index in wanted:
            need(r)
    return tuple(r for r in nest if r.index in wanted)


def _source(exprs: list[SizeExpr], used: tuple[Range, ...]) -> str:
    kinds = {"Arg": "argument", "Extent": "shape", "Read": "array"}
    names = [kinds[k] for k in ("Arg", "Extent", "Read") if any(type(e).__name__ == k for e in exprs)]
    source = " and ".join(names) or "literal"
    return source + (", exact over the enclosing indices" if used else "")


# ---- exact
@dataclass
class _Rows:
    """A table of index tuples. ``bad`` marks tuples whose bound reads outside an array: the loop cannot run there."""

    host: Host
    size: int
    values: dict[Op, np.ndarray] = field(default_factory=dict)
    bad: np.ndarray = field(default_factory=lambda: np.zeros(1, bool))

    def eval(self, e: SizeExpr) -> np.ndarray:
        match e:
            case Lit():
                return np.full(self.size, e.value, np.int64)
            case Arg():
                return np.full(self.size, self.host.scalar(e.arg), np.int64)
            case Extent():
                return np.full(self.size, self.host.extent(e.arg, e.axis), np.int64)
            case Index():
                return self.values[e.op]
            case Read():
                return self._read(e)
            case Bin():
                return _APPLY[e.op](*(self.eval(a) for a in e.args))
        raise TypeError(e)

    def _read(self, e: Read) -> np.ndarray:
        array = self.host.array(e.place)
        index = []
        for axis, x in enumerate(e.index):
            at = self.eval(x)
            self.bad |= (at < 0) | (at >= array.shape[axis])
            index.append(np.clip(at, 0, max(0, array.shape[axis] - 1)))
        if array.size == 0:
            self.bad[:] = True
            return np.zeros(self.size, np.int64)
        return np.broadcast_to(array[tuple(index)].astype(np.int64), self.size)

    def trips(self, r: Range) -> tuple[np.ndarray, np.ndarray]:
        """First index and trip count of a range, for each row."""
        assert r.end is not None
        begin, end = self.eval(r.begin), self.eval(r.end)
        span = end - begin if r.step > 0 else begin - end
        count = np.maximum(0, -(-span // abs(r.step)))
        count[self.bad] = 0
        return begin, count

    def expand(self, r: Range, begin: np.ndarray, count: np.ndarray) -> _Rows:
        """One row for each value of the range."""
        total = int(count.sum())
        source = np.repeat(np.arange(self.size), count)
        offset = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
        values = {op: v[source] for op, v in self.values.items()}
        values[r.index] = begin[source] + offset * r.step
        return _Rows(self.host, total, values, np.zeros(total, bool))


def _enumerate(loop: Range, used: tuple[Range, ...], host: Host) -> int:
    best, seen = 0, 0
    todo: list[tuple[_Rows, int]] = [(_Rows(host, 1), 0)]
    while todo:
        rows, depth = todo.pop()
        if depth == len(used):
            count = rows.trips(loop)[1]
            best = max(best, int(count.max(initial=0)))
            seen += rows.size
            if seen > LIMIT:
                raise _TooMany
            continue
        begin, count = rows.trips(used[depth])
        for part, first, n in _pieces(rows, begin, count, used[depth].step):
            todo.append((part.expand(used[depth], first, n), depth + 1))
            if len(todo) > LIMIT // CHUNK + len(used):
                raise _TooMany
    return best


def _pieces(rows: _Rows, begin: np.ndarray, count: np.ndarray, step: int) -> list[tuple[_Rows, np.ndarray, np.ndarray]]:
    """Split an expansion so that no piece has many more than CHUNK rows."""
    total = int(count.sum())
    if total <= CHUNK:
        return [(rows, begin, count)]
    if total > LIMIT:
        raise _TooMany
    out = []
    for row in range(rows.size) if rows.size <= LIMIT // CHUNK else ():
        one = _Rows(rows.host, 1, {op: v[row : row + 1] for op, v in rows.values.items()})
        for start in range(0, int(count[row]), CHUNK):
            n = min(CHUNK, int(count[row]) - start)
            out.append((one, begin[row : row + 1] + start * step, np.array([n])))
    if not out:
        cuts = np.searchsorted(np.cumsum(count), np.arange(CHUNK, total + CHUNK, CHUNK), side="left") + 1
        for a, z in zip([0, *cuts[:-1].tolist()], cuts.tolist()):
            part = _Rows(rows.host, len(count[a:z]), {op: v[a:z] for op, v in rows.values.items()})
            out.append((part, begin[a:z], count[a:z]))
    return out


def _floordiv(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, 0, a // np.where(b == 0, 1, b))


def _mod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, 0, a % np.where(b == 0, 1, b))


def _cdiv(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    q = np.abs(a) // np.where(b == 0, 1, np.abs(b))
    return np.where(b == 0, 0, np.where((a < 0) != (b < 0), -q, q))


_APPLY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": _floordiv,
    "mod": _mod,
    "cdiv": _cdiv,
    "crem": lambda a, b: np.where(b == 0, 0, a - _cdiv(a, b) * b),
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "sar": np.right_shift,
    "select": lambda c, a, b: np.where(c != 0, a, b),
    "lt": lambda a, b: (a < b).astype(np.int64),
    "le": lambda a, b: (a <= b).astype(np.int64),
    "gt": lambda a, b: (a > b).astype(np.int64),
    "ge": lambda a, b: (a >= b).astype(np.int64),
    "eq": lambda a, b: (a == b).astype(np.int64),
    "ne": lambda a, b: (a != b).astype(np.int64),
    "not": lambda a: (a == 0).astype(np.int64),
}


# ---- intervals
def _by_intervals(loop: Range, used: tuple[Range, ...], host: Host) -> Trips:
    env: dict[Op, Interval] = {}
    for r in used:
        env[r.index] = _index_interval(r, host, env)
    assert loop.end is not None
    begin, end = _interval(loop.begin, host, env), _interval(loop.end, host, env)
    span = end[1] - begin[0] if loop.step > 0 else begin[1] - end[0]
    if not np.isfinite(span):
        return Trips(None, "no finite bound")
    return Trips(max(0, -(-int(span) // abs(loop.step))), "interval bound")


def _index_interval(r: Range, host: Host, env: dict[Op, Interval]) -> Interval:
    assert r.end is not None
    begin, end = _interval(r.begin, host, env), _interval(r.end, host, env)
    return (begin[0], max(begin[0], end[1] - 1)) if r.step > 0 else (min(end[0] + 1, begin[1]), begin[1])


def _interval(e: SizeExpr, host: Host, env: dict[Op, Interval]) -> Interval:
    match e:
        case Lit():
            return e.value, e.value
        case Arg():
            value = float(host.scalar(e.arg))
            return value, value
        case Extent():
            value = float(host.extent(e.arg, e.axis))
            return value, value
        case Index():
            return env.get(e.op, ANY)
        case Read():
            return _read_interval(e, host, env)
        case AnyOf():
            ends = [_interval(o, host, env) for o in e.options]
            return min(lo for lo, _ in ends), max(hi for _, hi in ends)
        case Bin():
            return _bin_interval(e.op, [_interval(a, host, env) for a in e.args])
    return ANY


def _read_interval(e: Read, host: Host, env: dict[Op, Interval]) -> Interval:
    array = host.array(e.place)
    window = []
    for axis, x in enumerate(e.index):
        lo, hi = _interval(x, host, env)
        window.append(slice(int(max(0.0, lo)), int(min(float(array.shape[axis]), hi + 1))))
    part = array[tuple(window)]
    return (float(part.min()), float(part.max())) if part.size else (0.0, 0.0)


def _bin_interval(op: str, a: list[Interval]) -> Interval:
    if op == "select":
        return min(a[1][0], a[2][0]), max(a[1][1], a[2][1])
    if any(abs(x) == INF for pair in a for x in pair):
        return ANY
    (l0, h0), (l1, h1) = a[0], a[-1]
    if op == "add":
        return l0 + l1, h0 + h1
    if op == "sub":
        return l0 - h1, h0 - l1
    if op == "neg":
        return -h0, -l0
    if op in ("min", "max"):
        pick = min if op == "min" else max
        return pick(l0, l1), pick(h0, h1)
    if op == "mul":
        corners = [p * q for p in (l0, h0) for q in (l1, h1)]
        return min(corners), max(corners)
    if op == "floordiv" and (l1 > 0 or h1 < 0):
        corners = [p // q for p in (l0, h0) for q in (l1, h1)]
        return min(corners), max(corners)
    if op == "mod" and l1 > 0:
        if l1 == h1 and l0 >= 0 and h0 < l1:
            return l0, h0
        return 0.0, min(h1 - 1, h0) if l0 >= 0 else h1 - 1
    if op in ("lt", "le", "gt", "ge", "eq", "ne", "not"):
        return 0.0, 1.0
    return ANY
