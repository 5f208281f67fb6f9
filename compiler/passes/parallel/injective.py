"""Atomics that need not be atomic: no two iterations of the parallel loop touch the same element.

The proof: every access of the task to the place has every axis index of the task, bare or plus one same literal, in the same
positions of its index. Then equal elements mean equal iterations. What stands in the other positions does not matter. Run it
after ``simplify``, which replaces the variables that hold axis indices by the indices themselves.
"""

from __future__ import annotations

from collections.abc import Container

from ...ir.alias import Aliases, base, same_array
from ...ir.nodes import Const, Op, Operand, Place, Stmt, Task
from ...ir.walk import atomic_of, cooperates, index_of, place_of, walk

_ANY_ORDER = ("min", "max", "xchg", "cas")
"""Of reals. The order of exchanges is the user's: what runs between them decides it."""

Position = tuple[int, Op, object]


def race_free(task: Task) -> set[Op]:
    """The atomics of a task that may be a plain load, an operation and a plain store. In a task of one thread, all are."""
    if not task.parallel:
        return {s for s in walk(task.body) if isinstance(s, Op) and s.op == "atomic"}
    accesses: dict[Place, list[Stmt]] = {}
    for s in walk(task.body):
        place = place_of(s)
        if place is not None:
            accesses.setdefault(place, []).append(s)
    axes = {a.index for a in task.axes}
    reduced, aliases = Aliases(r.place for r in task.reductions), Aliases(accesses)
    out: set[Op] = set()
    for place, own in accesses.items():
        atomics = {s for s in own if isinstance(s, Op) and s.op == "atomic"}
        others = {other: accesses[other] for other in aliases.of(place)} if atomics else {}
        if atomics and not reduced.of(place) and _private(place, others, axes):
            out |= atomics
    return out


def ordered(task: Task, plain: Container[Op]) -> frozenset[Op]:
    """The atomics of a parallel task whose order decides bits: sums and products of reals. ``plain``: those of ``race_free``."""
    if not task.parallel or cooperates(task):
        return frozenset()
    atomics = (s for s in walk(task.body) if isinstance(s, Op) and s.op == "atomic" and s not in plain)
    return frozenset(s for s in atomics if s.dtype.is_real and atomic_of(s)[1] not in _ANY_ORDER)


def _private(place: Place, accesses: dict[Place, list[Stmt]], axes: set[Op]) -> bool:
    """Whether each iteration alone touches the elements of ``place`` that it touches; ``accesses``: those that may touch them."""
    common: set[Position] | None = None
    for other, statements in accesses.items():
        if base(place.buffer) != base(other.buffer):
            # two arguments that may be one array: reads of it elsewhere race with or without atomics, writes must not collide
            statements = [s for s in statements if not (isinstance(s, Op) and s.op == "gload")]
        elif not same_array(place, other):
            return False
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
