"""Counts what each copy of a loop's body does, for the cost model of plans."""

from __future__ import annotations

from collections.abc import Callable
from operator import mul

from ...ir.nodes import Assert, Block, GlobalStore, If, Local, LocalStore, Loop, Op, Stmt
from ...ir.ops import is_function
from ...ir.walk import stored_locals
from ...tape.work import CLASSES, NO_WORK, Inner, LoopWork, Work
from .task import Reverse

_DIVISIONS = frozenset("div sqrt rsqrt floordiv mod cdiv crem".split())
_FREE = frozenset("load index arg shape param seed".split())
_SIMPLE, _DIVISION, _FUNCTION, _LOAD, _UPDATE = range(len(CLASSES))
Counts = list[float]


class Costs:
    """The work of one task's reverse program.

    Args:
        rev: the reverse program.
        inner: names a loop inside a copy, see ``work.Inner``; told whether the loop has a plan of its own.
    """

    def __init__(self, rev: Reverse, inner: Callable[[Loop, bool], Inner]) -> None:
        self._rev, self._inner = rev, inner
        self._planned: set[Loop] = set()
        self._find_planned(rev.task.body)

    def _find_planned(self, block: Block) -> bool:
        """Whether a block holds loops with stacks; collects them and the loops around them."""
        found = False
        for s in block:
            if isinstance(s, If):
                both = self._find_planned(s.then), self._find_planned(s.orelse)
                found |= any(both)
            elif isinstance(s, Loop):
                inside = self._find_planned(s.body)
                if inside or (s in self._rev.drivers and self._rev.drivers[s].stacks):
                    self._planned.add(s)
                    found = True
        return found

    def loop(self, s: Loop) -> LoopWork:
        info = self._rev.slices.info[s]
        sweep = self._plain(s.body, info.keep_fwd) if info.sweep else NO_WORK
        return LoopWork(sweep, self._plain(s.body, info.keep_refill), self._back(s.body))

    def rest(self) -> Work:
        """The work of a parallel iteration outside of the planned loops."""
        return self._back(self._rev.task.body)

    # ---- copies
    def _plain(self, block: Block, keep: set[int]) -> Work:
        """The work of code that only runs forward. ``keep``: the statements that are run, by identity."""
        counts, loops = [0.0] * len(CLASSES), []
        for s, weight in _statements(block):
            if id(s) in keep:
                if isinstance(s, Loop):
                    loops.append((self._inner(s, s in self._planned), weight, self._plain(s.body, keep)))
                else:
                    _count_forward(s, weight, counts)
        return Work(tuple(counts), _path(block, keep), tuple(loops))

    def _back(self, block: Block) -> Work:
        """The last replay of a block, and its backward code."""
        counts, loops = [0.0] * len(CLASSES), []
        keep, activity = self._rev.slices.keep, self._rev.activity
        for s, weight in _statements(block):
            if isinstance(s, Loop):
                if s in self._planned:
                    continue
                if s in self._rev.drivers:
                    work = self.loop(s)
                    loops += [(self._inner(s, s in self._planned), weight, w) for w in (work.sweep, work.back)]
                elif id(s) in keep:
                    loops.append((self._inner(s, s in self._planned), weight, self._plain(s.body, keep)))
                continue
            if id(s) in keep:
                _count_forward(s, weight, counts)
            if activity.is_active(s):
                _count_backward(s, weight, counts)
        return Work(tuple(counts), loops=tuple(loops))


def _statements(block: Block, weight: float = 1.0) -> list[tuple[Stmt, float]]:
    """The statements of a block and of the arms of its ifs, not those inside loops, each with its weight."""
    out: list[tuple[Stmt, float]] = []
    for s in block:
        out.append((s, weight))
        if isinstance(s, If):
            out += _statements(s.then, weight / 2)
            out += _statements(s.orelse, weight / 2)
    return out


_LATENCY = (4.0, 14.0, 40.0, 5.0, 5.0)  # cycles by ``CLASSES``, to tell which of two ways through the code is longer
_Way = tuple[float, Counts]


def _path(block: Block, keep: set[int]) -> tuple[float, ...]:
    """The operations on the longest way through a block, by class. Loops inside it are ways of their own."""
    ways: dict[Op | Local, _Way] = {}
    _follow(block, keep, ways)
    start: _Way = 0.0, [0.0] * len(CLASSES)
    return tuple(max((way for x, way in ways.items() if isinstance(x, Local)), key=lambda way: way[0], default=start)[1])


def _follow(block: Block, keep: set[int], ways: dict[Op | Local, _Way]) -> None:
    start: _Way = 0.0, [0.0] * len(CLASSES)
    for s in block:
        if isinstance(s, If):
            before: dict[Op | Local, _Way] = {x: ways.get(x, start) for x in stored_locals([s])}
            _follow(s.then, keep, ways)
            then = {x: ways.get(x, start) for x in before}
            ways.update(before)
            _follow(s.orelse, keep, ways)
            ways.update({x: max(way, ways[x], key=lambda w: w[0]) for x, way in then.items()})
        elif id(s) in keep and isinstance(s, LocalStore):
            ways[s.local] = ways.get(s.value, start) if isinstance(s.value, Op) else start
        elif id(s) in keep and isinstance(s, Op):
            reads = [s.attr] if s.op == "load" else s.args
            longest = max((ways.get(x, start) for x in reads if isinstance(x, (Op, Local))), key=lambda w: w[0], default=start)
            own = [0.0] * len(CLASSES)
            _count_forward(s, 1.0, own)
            ways[s] = longest[0] + sum(map(mul, own, _LATENCY)), [a + b for a, b in zip(longest[1], own)]


def _count_forward(s: Stmt, weight: float, counts: Counts) -> None:
    match s:
        case Op(op="gload"):
            counts[_LOAD] += weight
        case Op(op="atomic") | GlobalStore():
            counts[_UPDATE] += weight
        case Op(op=code) if code in _DIVISIONS:
            counts[_DIVISION] += weight
        case Op(op=code) if is_function(code):
            counts[_FUNCTION] += weight
        case Op(op=code) if code not in _FREE:
            counts[_SIMPLE] += weight
        case If() | Assert():
            counts[_SIMPLE] += weight


def _count_backward(s: Stmt, weight: float, counts: Counts) -> None:
    match s:
        case Op(op="gload"):
            counts[_UPDATE] += weight
        case Op(op="atomic"):
            counts[_LOAD] += weight
        case GlobalStore():
            counts[_LOAD] += weight
            counts[_UPDATE] += weight
        case Op(op=code) if is_function(code):
            counts[_FUNCTION] += weight
            counts[_SIMPLE] += 2 * weight
        case Op(op=code) if code in _DIVISIONS:
            counts[_DIVISION] += weight
            counts[_SIMPLE] += 2 * weight
        case Op():
            counts[_SIMPLE] += weight * max(1, len(s.args))
        case LocalStore():
            counts[_SIMPLE] += weight
