"""SizeExpr: a loop bound as an integer expression that the host can evaluate before a launch.

Leaves are literals, scalar arguments, ndarray extents, indices of enclosing loops and axes, and elements of integer fields and ndarrays
that the kernel does not write. What only running can tell is ``Unknown``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Union

from ..ir.nodes import ArgDecl, Const, GlobalStore, Kernel, Loc, Local, LocalStore, Loop, Op, Operand, Place, Task
from ..ir.walk import walk, written_places


@dataclass(frozen=True)
class Lit:
    """A literal."""

    value: int


@dataclass(frozen=True)
class Arg:
    """A scalar argument of the launch."""

    arg: ArgDecl


@dataclass(frozen=True)
class Extent:
    """``array.shape[axis]`` of an ndarray argument."""

    arg: ArgDecl
    axis: int


@dataclass(frozen=True)
class Index:
    """The current index of an enclosing loop or axis."""

    op: Op


@dataclass(frozen=True)
class Read:
    """An element of an integer array."""

    place: Place
    index: tuple[SizeExpr, ...]


@dataclass(frozen=True)
class Bin:
    """An integer operation of ``OPS``."""

    op: str
    args: tuple[SizeExpr, ...]


@dataclass(frozen=True)
class AnyOf:
    """One of several values, depending on the path taken: only bounds are known."""

    options: tuple[SizeExpr, ...]


@dataclass(frozen=True)
class Unknown:
    """Only running can tell. ``why`` is shown in plans."""

    why: str


SizeExpr = Union[Lit, Arg, Extent, Index, Read, Bin, AnyOf, Unknown]

OPS = frozenset(
    "add sub mul floordiv mod cdiv crem min max neg abs and or xor shl shr sar select lt le gt ge eq ne not".split()
)


MOST_PARTS = 400
"""A plan evaluates its formulas for every launch: larger ones are treated as known only while running."""

DEEPEST = 100


def parts(e: SizeExpr) -> Iterator[SizeExpr]:
    """The expression and everything inside it."""
    yield e
    for x in _inner(e):
        yield from parts(x)


def _inner(e: SizeExpr) -> tuple[SizeExpr, ...]:
    if isinstance(e, Read):
        return e.index
    if isinstance(e, Bin):
        return e.args
    return e.options if isinstance(e, AnyOf) else ()


@dataclass(frozen=True)
class Range:
    """The values of an index: begin, begin + step, .. before end. ``end`` None: for ever."""

    index: Op
    begin: SizeExpr
    end: SizeExpr | None
    step: int
    loc: Loc | None = None


@dataclass
class Reader:
    """Turns IR values of one task into SizeExprs."""

    kernel: Kernel
    task: Task
    _stores: dict[Local, list[Operand]] = field(default_factory=dict)
    _visiting: set[object] = field(default_factory=set)
    _known: dict[tuple[Operand, frozenset[object]], SizeExpr] = field(default_factory=dict)
    _depth: int = 0
    _sizes: dict[int, int] = field(default_factory=dict)  # of the expressions in ``_known``

    def __post_init__(self) -> None:
        self._written = set().union(*(written_places(t.body) for t in self.kernel.tasks))
        for s in walk(self.task.body):
            if isinstance(s, LocalStore):
                self._stores.setdefault(s.local, []).append(s.value)

    def expr(self, x: Operand) -> SizeExpr:
        """The SizeExpr of a value. One that would be larger than ``MOST_PARTS`` is unknown: a value that is used twice counts twice."""
        key = x, frozenset(self._visiting)
        known = self._known.get(key)
        if known is None:
            if self._depth >= DEEPEST:
                return Unknown(f"a formula of more than {DEEPEST} operations one inside the other")
            self._depth += 1
            found = self._expr(x)
            self._depth -= 1
            self._sizes[id(found)] = size = 1 + sum(self._sizes.get(id(e), 1) for e in _inner(found))
            known = found if size <= MOST_PARTS else Unknown(f"a formula of more than {MOST_PARTS} operations")
            self._known[key] = known
        return known

    def _expr(self, x: Operand) -> SizeExpr:
        if isinstance(x, Const):
            return Lit(int(x.value))
        if x.op == "arg":
            assert isinstance(x.attr, ArgDecl)
            if not x.dtype.is_int or (x.dtype.kind == "u" and x.dtype.bits == 64):
                return Unknown(f"an argument of type {x.dtype}")
            return Arg(x.attr)
        if x.op == "shape":
            assert isinstance(x.attr, tuple)
            return Extent(x.attr[0], x.attr[1])
        if x.op == "index":
            return Index(x)
        if x.op == "cast":
            if not x.args[0].dtype.is_int:
                return Unknown("a cast of a real value")
            return self.expr(x.args[0]) if x.dtype.holds(x.args[0].dtype) else Unknown(f"a cast to {x.dtype}, which may wrap")
        if x.op == "gload":
            return self._read(x)
        if x.op == "load":
            return self._local(x)
        if x.op in ("add", "sub", "mul", "neg", "shl") and (x.dtype.bits < 32 or x.dtype.kind == "u"):
            return Unknown(f"arithmetic in {x.dtype}, which may wrap")
        if x.op in OPS and all(a.dtype.is_int for a in x.args):
            return Bin(x.op, tuple(self.expr(a) for a in x.args))
        return Unknown(f"`{x.op}` of a value known only while running")

    def _read(self, x: Op) -> SizeExpr:
        place = x.attr
        assert isinstance(place, Place)
        if place.dtype.is_real:
            return Unknown("a real element")
        if place in self._written:
            return self._temporary(place)
        return Read(place, tuple(self.expr(a) for a in x.args))

    def _temporary(self, place: Place) -> SizeExpr:
        """A kernel-level variable that is set once, at the top of a serial task: its value."""
        stores = [(t, s) for t in self.kernel.tasks for s in walk(t.body) if isinstance(s, GlobalStore) and s.place is place]
        atomics = any(
            isinstance(s, Op) and s.op == "atomic" and s.attr[0] is place  # type: ignore[index]
            for t in self.kernel.tasks
            for s in walk(t.body)
        )
        if place.buffer.kind == "tmp" and len(stores) == 1 and not atomics:
            task, store = stores[0]
            if not task.axes and any(s is store for s in task.body):
                return Reader(self.kernel, task).expr(store.value)
        return Unknown(f"`{place.name}` is written by the same kernel")

    def _local(self, x: Op) -> SizeExpr:
        local = x.attr
        assert isinstance(local, Local)
        if local in self._visiting:
            return Unknown(f"`{local.name}` is counted in a loop")
        self._visiting.add(local)
        options = tuple(dict.fromkeys(self.expr(v) for v in self._stores.get(local, ())))
        self._visiting.discard(local)
        unknown = next((e for o in options for e in parts(o) if isinstance(e, Unknown)), None)
        if unknown:
            return unknown
        return AnyOf(options) if len(options) != 1 else options[0]

    def loop(self, s: Loop) -> Range:
        """The range of a loop."""
        return Range(s.index, self.expr(s.begin), None if s.end is None else self.expr(s.end), s.step, s.loc)

    def axes(self) -> tuple[Range, ...]:
        """The ranges of the task's axes."""
        return tuple(Range(a.index, self.expr(a.begin), self.expr(a.end), 1, self.task.loc) for a in self.task.axes)
