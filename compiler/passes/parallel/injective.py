"""Atomics that need not be atomic: no two iterations of the parallel loop touch the same element.

The proof is ``held_axes``: equal elements mean equal iterations. Run it after ``simplify``, which replaces the variables that hold axis
indices by the indices themselves.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from ...ir.alias import Aliases, base, same_array
from ...ir.nodes import Const, GlobalStore, Op, Operand, Place, Stmt, Task
from ...ir.threads import once
from ...ir.walk import any_order, atomic_of, cooperates, index_of, place_of, walk
from ..dependence.access import WriteSet
from ..dependence.indexing import Extents, distance, held_axes, never_same

Position = tuple[int, Op, object]
_MOST_PAIRS = 2000
"""Accesses of one array are compared pair by pair up to this number of pairs."""


def race_free(task: Task) -> set[Op]:
    """The atomics of a task that may be a plain load, an operation and a plain store. In a task of one thread, all are."""
    if not task.parallel:
        return {s for s in walk(task.body) if isinstance(s, Op) and s.op == "atomic"}
    accesses = accesses_of(task)
    reduced, aliases = Aliases(r.place for r in task.reductions), Aliases(accesses)
    proof = Iterations(task)
    out: set[Op] = set()
    for place, own in accesses.items():
        atomics = {s for s in own if isinstance(s, Op) and s.op == "atomic"}
        others = {other: accesses[other] for other in aliases.of(place)} if atomics else {}
        if atomics and not reduced.of(place) and _private(place, others, proof):
            out |= atomics
    return out


def ordered(task: Task, plain: Container[Op]) -> frozenset[Op]:
    """The atomics of a parallel task whose order decides bits: sums and products of reals. ``plain``: those of ``race_free``.

    The order of exchanges is the user's: what runs between them decides it.
    """
    if not task.parallel or cooperates(task):
        return frozenset()
    atomics = (s for s in walk(task.body) if isinstance(s, Op) and s.op == "atomic" and s not in plain)
    return frozenset(s for s in atomics if not any_order(s) and atomic_of(s)[1] not in ("xchg", "cas"))


def accesses_of(task: Task) -> dict[Place, list[Stmt]]:
    """The loads, stores and atomics of a task, by place."""
    out: dict[Place, list[Stmt]] = {}
    for s in walk(task.body):
        place = place_of(s)
        if place is not None:
            out.setdefault(place, []).append(s)
    return out


def writes(s: Stmt) -> bool:
    """Whether an access writes."""
    return isinstance(s, GlobalStore) or (isinstance(s, Op) and s.op == "atomic")


class Iterations:
    """What the iterations of a task have in common. ``inside``: see ``Extents``."""

    def __init__(self, task: Task, inside: frozenset[Op] | None = None) -> None:
        self.axes = {a.index for a in task.axes}
        self._task, self._inside = task, inside
        self._each = {id(s) for s in task.body}

    @once
    def _written(self) -> WriteSet:
        return WriteSet(self._task)

    @once
    def _ranges(self) -> Extents:
        return Extents(self._task, self._inside)

    def one(self, s: Stmt, t: Stmt) -> bool:
        """Whether only one iteration touches an element that two accesses of an array name."""
        return self._apart(s, t) or self._held(s, t) >= self._ranges.several

    def distance_in_row(self, s: Stmt, t: Stmt, exact: bool = False) -> int | str | None:
        """How far apart two iterations of a row are in which two accesses of an array name one element, see ``indexing.distance``."""
        a, b, last = index_of(s), index_of(t), self._task.axes[-1].index
        if a == b and last in a:
            return 0
        return distance(a, b, last, self._written, self._ranges, self._gaps(s, t), exact)

    def is_certain(self, s: Stmt) -> bool:
        """Whether every iteration executes a statement."""
        return id(s) in self._each

    def _apart(self, s: Stmt, t: Stmt) -> bool:
        return never_same(index_of(s), index_of(t), self._written)

    def _held(self, s: Stmt, t: Stmt) -> set[Op]:
        return held_axes(index_of(s), index_of(t), self._written, self._ranges, self._gaps(s, t))

    def _gaps(self, s: Stmt, t: Stmt) -> bool:
        return not (self.is_certain(s) and self.is_certain(t))


def _private(place: Place, accesses: dict[Place, list[Stmt]], proof: Iterations) -> bool:
    """Whether each iteration alone touches the elements of ``place`` that it touches; ``accesses``: those that may touch them."""
    touching: list[Stmt] = []
    for other, statements in accesses.items():
        if base(place.buffer) != base(other.buffer):
            # two arguments that may be one array: reads of it elsewhere race with or without atomics, writes must not collide
            statements = [s for s in statements if not (isinstance(s, Op) and s.op == "gload")]
        elif not same_array(place, other):
            return False
        touching += statements
    different = list({(index_of(s), proof.is_certain(s)): s for s in touching}.values())
    if _in_common(different, proof.axes):
        return True
    if len(different) ** 2 > 2 * _MOST_PAIRS:
        return False
    return all(proof.one(s, t) for k, s in enumerate(different) for t in different[k:])


def _in_common(statements: Iterable[Stmt], axes: set[Op]) -> bool:
    """Whether all accesses have every axis index in the same positions, bare or plus one same literal: a proof in linear time."""
    common: set[Position] | None = None
    for s in statements:
        positions = _positions(index_of(s), axes)
        common = positions if common is None else common & positions
    return common is not None and {axis for _, axis, _ in common} == axes


def _positions(index: tuple[Operand, ...], axes: set[Op]) -> set[Position]:
    """The position of an axis index in the index tuple, and the literal that is added to it."""
    out: set[Position] = set()
    for k, x in enumerate(index):
        shift: object = 0
        x = _widened(x)
        if isinstance(x, Op) and x.op in ("add", "sub") and isinstance(x.args[1], Const):
            shift = (x.op, x.args[1].value, x.dtype)  # the type says where it wraps
            x = _widened(x.args[0])
        if isinstance(x, Op) and x in axes:
            out.add((k, x, shift))
    return out


def _widened(x: Operand) -> Operand:
    """``x`` before casts between integers that keep different values different."""
    while isinstance(x, Op) and x.op == "cast" and x.dtype.kind in "iu" and x.args[0].dtype.kind in "iu":
        if x.dtype.bits < x.args[0].dtype.bits:
            break
        x = x.args[0]
    return x
