"""Where the values that a kernel stores come from, and where a gradient is cut on the way.

A derivative reaches an operand only through an operation with a rule. A value also depends on what a cast to an integer, a rounding, a
comparison, an index or a condition looked at; the derivative of these is zero. ``task_flows`` finds both for each task of a kernel:
the arrays that a store depends on with a derivative, and the statement that cuts each of the other dependences.

A set of dependences is one integer, see ``DependenceSets``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from ...ir.nodes import Block, Const, GlobalStore, If, Kernel, Loc, Local, LocalStore, Loop, Op, Operand, Place, Task
from ...ir.walk import atomic_of, index_of, place_of, stored_value, task_blocks
from ..reverse.derivatives import FLAT, carries, rules_of

Kind = Literal[
    "cast",  # a real number becomes an integer or a truth value
    "rounding",  # floor, ceil, round, trunc, sign
    "array",  # a real array without a gradient
    "stop_grad",
    "no_grad",  # a function that a tape takes for constant
    "python",  # read in Python, and passed on from there
    "overwritten",
    "comparison",
    "index",
    "loop",  # how often a loop runs
]

RANK: tuple[Kind, ...] = (
    *("array", "cast", "rounding", "no_grad", "python", "overwritten", "stop_grad", "comparison", "index", "loop"),
)
"""The kinds of cuts; the likeliest mistakes first."""

KEPT = 4
"""Cuts of one kind that are remembered for each source: messages name one."""


@dataclass(frozen=True)
class Cut:
    """A statement behind which a value goes on and its derivative does not. ``name``: of the operation, the type or the array."""

    kind: Kind
    loc: Loc | None = None
    name: str = ""


class DependenceSets:
    """Sets of dependences on numbered sources, as integers.

    Bit k says that source k is reached with a derivative; each bit from ``sources`` on stands for a source that is reached behind a cut.
    The union of two sets is their bitwise or.
    """

    def __init__(self, sources: int) -> None:
        self.sources = sources
        self.live = (1 << sources) - 1
        self._bits: dict[tuple[int, Cut], int] = {}
        self._meaning: list[tuple[int, Cut]] = []
        self._arrays = 0  # the bits of arrays without a gradient
        self._kept: dict[tuple[int, Kind], int] = {}
        self._known: dict[tuple[int, Cut], int] = {}

    def cut(self, flows: int, by: Cut) -> int:
        """The same dependences behind a cut. Those that are cut already keep their first one, but an array without a gradient gives way:
        where a comparison or ``stop_grad`` follows, no gradient is lost in the array.
        """
        cut = flows & (self.live | (self._arrays if by.kind != "array" else 0))
        if not cut:
            return flows
        known = self._known.get((cut, by))
        if known is None:
            sources = set(bits_of(cut & self.live)) | {source for source, _ in self.cuts(cut)}
            known = 0
            for source in sources:
                known |= self._bit(source, by)
            self._known[cut, by] = known
        return (flows & ~cut) | known

    def _bit(self, source: int, by: Cut) -> int:
        found = self._bits.get((source, by))
        if found is None:
            kind = source, by.kind
            if self._kept.get(kind, 0) >= KEPT:  # one of the first ones stands for it
                found = next(bit for (s, cut), bit in self._bits.items() if s == source and cut.kind == by.kind)
            else:
                self._kept[kind] = self._kept.get(kind, 0) + 1
                found = 1 << (self.sources + len(self._meaning))
                self._meaning.append((source, by))
                self._arrays |= found if by.kind == "array" else 0
            self._bits[source, by] = found
        return found

    def cuts(self, flows: int) -> Iterator[tuple[int, Cut]]:
        """The sources behind cuts, each with its cut."""
        for k in bits_of(flows >> self.sources):
            yield self._meaning[k]


def bits_of(flows: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while flows:
        low = flows & -flows
        yield low.bit_length() - 1
        flows ^= low


At = TypeVar("At")
"""How a memory is named: a place of a kernel, or where it lies in a launch."""


@dataclass(frozen=True)
class Edge(Generic[At]):
    """What is stored to ``target`` depends on ``source``, or on the real numbers that Python passes (None).

    ``live``: with a derivative; ``cuts``: the ways on which the derivative is cut.
    """

    target: At
    source: At | None
    live: bool
    cuts: tuple[Cut, ...]


@dataclass(frozen=True)
class TaskFlow:
    """The dependences of one task.

    Attributes:
        edges: by target and source.
        stores: the first store to each place.
        replaced: 0-d places that the task overwrites whatever happens.
    """

    edges: tuple[Edge[Place], ...]
    stores: tuple[tuple[Place, Loc | None], ...]
    replaced: tuple[tuple[Place, Loc | None], ...]


def task_flows(kernel: Kernel) -> tuple[TaskFlow, ...]:
    """The dependences of each task of a kernel, in their order."""
    return tuple(_FlowAnalysis(task).found() for task in kernel.tasks)


def passes_on(place: Place) -> bool:
    """Whether a gradient can go through what is stored in a place. Temporaries get an adjoint where they need one."""
    return place.differentiable or place.buffer.kind in ("tmp", "block", "trial", "ret")


class _FlowAnalysis:
    def __init__(self, task: Task) -> None:
        self.task = task
        self.loaded: dict[Place | None, int] = {None: 0}
        for s in task_blocks(task):
            place = place_of(s)
            if place is not None:
                self.loaded.setdefault(place, len(self.loaded))
        self.flows = DependenceSets(len(self.loaded))
        self.of: dict[Op | Local, int] = {}
        self.stored: dict[Place, int] = {}
        self.where: dict[Place, Loc | None] = {}
        self.changed = False

    def found(self) -> TaskFlow:
        """Follow the values until nothing new is found: those of loops come round."""
        self.changed = True
        while self.changed:
            self.changed = False
            self._block(self.task.prologue, 0)
            ends = [end for axis in self.task.axes for end in (axis.begin, axis.end)]
            self._block(self.task.body, self._used(ends, Cut("loop", self.task.loc)))
        sources = list(self.loaded)
        edges: list[Edge[Place]] = []
        for target, flows in self.stored.items():
            cuts: dict[int, list[Cut]] = {}
            for source, cut in self.flows.cuts(flows):
                cuts.setdefault(source, []).append(cut)
            live = set(bits_of(flows & self.flows.live))
            edges += [Edge(target, sources[k], k in live, tuple(cuts.get(k, ()))) for k in sorted(live | cuts.keys())]
        return TaskFlow(tuple(edges), tuple(self.where.items()), tuple(_replaced(self.task)))

    def _block(self, block: Block, around: int) -> None:
        """Follow the statements of a block. ``around``: what decides whether it runs."""
        for s in block:
            if isinstance(s, If):
                inner = around | self._used((s.cond,), Cut("comparison", s.loc))
                self._block(s.then, inner)
                self._block(s.orelse, inner)
            elif isinstance(s, Loop):
                ends = (s.begin,) if s.end is None else (s.begin, s.end)
                inner = around | self._used(ends, Cut("loop", s.loc))
                if s.exit is not None:
                    inner |= self.flows.cut(self.of.get(s.exit, 0), Cut("loop", s.loc))
                self._block(s.body, inner)
            elif isinstance(s, LocalStore):
                self._add(s.local, self._value(s.value) | around)
            elif isinstance(s, GlobalStore):
                self._store(s, s.place, around)
            elif isinstance(s, Op):
                self._op(s, around)

    def _op(self, s: Op, around: int) -> None:
        if s.op == "load":
            assert isinstance(s.attr, Local)
            self._add(s, self.of.get(s.attr, 0))
        elif s.op in ("gload", "atomic"):
            if s.op == "atomic":
                self._store(s, atomic_of(s)[0], around)
            place = place_of(s)
            assert place is not None
            found = 1 << self.loaded[place]
            if place.dtype.is_real and not passes_on(place):
                found = self.flows.cut(found, Cut("array", s.loc, place.name))
            self._add(s, found | self._used(index_of(s), Cut("index", s.loc)))
        elif s.op == "arg":
            if s.dtype.is_real:  # an integer that Python passes is a counter, more often than not
                self._add(s, 1 << self.loaded[None])
        else:
            self._add(s, self._through(s))

    def _through(self, s: Op) -> int:
        """The dependences of the result of an operation without memory."""
        rules: Sequence[object] = rules_of(s) if carries(s) else [None] * len(s.args)
        found = 0
        for k, (a, rule) in enumerate(zip(s.args, rules)):
            flows = self._value(a)
            if rule is not None or not a.dtype.is_real:
                found |= flows
            elif not (s.op == "attach" and k == 0):  # its derivative is that of the other operand
                found |= self.flows.cut(flows, _cut_by(s))
        return found

    def _store(self, s: GlobalStore | Op, place: Place, around: int) -> None:
        loc = s.loc
        flows = self._value(stored_value(s)) | around | self._used(index_of(s), Cut("index", loc))
        if isinstance(s, Op):
            for extra in s.args[len(index_of(s)) : -1]:  # what a compare-and-swap compares with
                flows |= self._used((extra,), Cut("comparison", loc))
        if not passes_on(place) and place.dtype.is_real:
            flows = self.flows.cut(flows, Cut("array", loc, place.name))
        self.where.setdefault(place, loc)
        before = self.stored.get(place, 0)
        if flows & ~before or place not in self.stored:
            self.stored[place], self.changed = before | flows, True

    def _used(self, operands: Iterable[Operand], by: Cut) -> int:
        """The dependences of values that decide something only."""
        found = 0
        for a in operands:
            found |= self.flows.cut(self._value(a), by)
        return found

    def _value(self, a: Operand) -> int:
        return self.of.get(a, 0) if isinstance(a, Op) else 0

    def _add(self, x: Op | Local, flows: int) -> None:
        before = self.of.get(x, 0)
        if flows & ~before:
            self.of[x], self.changed = before | flows, True


def _cut_by(s: Op) -> Cut:
    """The cut that an operation on reals without a derivative is."""
    if s.op == "detach":
        return Cut("stop_grad", s.loc)
    if s.op in FLAT and s.dtype.is_real:
        return Cut("rounding", s.loc, {"sgn": "sign", "floordiv": "//"}.get(s.op, s.op))
    if s.dtype.kind == "b" or s.op == "select":
        return Cut("comparison", s.loc)
    return Cut("cast", s.loc, str(s.dtype))


def _replaced(task: Task) -> Iterator[tuple[Place, Loc | None]]:
    """The 0-d places that a task overwrites whatever happens."""
    for axis in task.axes:
        ends = axis.begin, axis.end
        if not all(isinstance(e, Const) for e in ends) or int(ends[1].value) <= int(ends[0].value):  # type: ignore[union-attr]
            return
    for s in task.body:
        if isinstance(s, GlobalStore) and s.place.ndim == 0:
            yield s.place, s.loc
