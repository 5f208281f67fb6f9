"""The data-access rules of reverse mode: what may be read and written in one kernel so that its gradient is right.

1. A value that the backward pass must read again may not be overwritten by the same task or a later task of the kernel.
2. In a parallel loop, an element with a gradient may not be read by one iteration and written by another.

Two accesses whose indices can never meet (``x[t - 1, i]`` and ``x[t, i]`` with the same argument t) are no conflict. For rule 2, neither
are two whose indices name all axes of the loop in the same way (``x[i, j]`` and ``x[i, j + 1]`` in a loop over i): then equal elements
mean equal iterations.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import DataAccessError
from ..ir.nodes import GlobalStore, Op, Operand, Place, Stmt, Task
from ..ir.walk import atomic_of, place_of, walk, written_places
from .indexing import Extents, extents, never_same, own_element

Access = tuple[Place, tuple[Operand, ...], Stmt]


def writes_of(block: Iterable[Stmt]) -> list[Access]:
    """Every store and atomic: place, index, statement."""
    out: list[Access] = []
    for s in block:
        if isinstance(s, GlobalStore):
            out.append((s.place, s.index, s))
        elif isinstance(s, Op) and s.op == "atomic":
            out.append((atomic_of(s)[0], s.args[:-1], s))
    return out


def loads_of(block: Iterable[Stmt]) -> list[Access]:
    """Every load of memory: place, index, statement."""
    return [(place_of(s), s.args, s) for s in block if isinstance(s, Op) and s.op == "gload"]  # type: ignore[misc]


def check_replayed_loads(loads: list[Access], tasks: list[Task]) -> None:
    """Rule 1: ``loads`` are repeated by the backward pass; ``tasks`` are their own task and all later ones.

    Raises:
        DataAccessError: naming both lines.
    """
    written = set().union(*(written_places(t.body) for t in tasks)) if tasks else set()
    writes: dict[Place, list[Access]] = {}
    for t in tasks:
        for access in writes_of(walk(t.body)):
            writes.setdefault(access[0], []).append(access)
    for place, index, load in loads:
        for _, where, write in writes.get(place, ()):
            if not never_same(index, where, written):
                raise DataAccessError(
                    f"the gradient needs the value of `{place.name}` read here, but {_line(write)} overwrites it",
                    load.loc,  # type: ignore[union-attr]
                    "write to another field (for time steps: give the field a leading time axis), or split the kernel in two",
                )


def check_cross_iteration(task: Task) -> None:
    """Rule 2, for every place with a gradient that a parallel task both reads and writes.

    Raises:
        DataAccessError: naming both lines.
    """
    if not task.parallel:
        return
    statements = list(walk(task.body))
    written = written_places(task.body)
    ranges = extents(task)
    loads: dict[Place, list[Access]] = {}
    for access in [*loads_of(statements), *_products(statements)]:
        if access[0].differentiable:
            loads.setdefault(access[0], []).append(access)
    for place, where, write in writes_of(statements):
        for _, index, load in loads.get(place, ()):
            if not (_commute(load, write) or _apart(index, where, written, ranges)):
                raise DataAccessError(
                    f"cross-iteration read-after-write: one iteration may read the element of `{place.name}` that another writes"
                    f" ({_line(write)})",
                    load.loc,  # type: ignore[union-attr]
                    "write to another field, or split the loop into two kernels",
                )


def _apart(index: tuple[Operand, ...], where: tuple[Operand, ...], written: set[Place], ranges: Extents) -> bool:
    return never_same(index, where, written) or own_element(index, where, written, ranges)


def _products(statements: list[Stmt]) -> list[Access]:
    """Atomic products: what they leave depends on the sums before them."""
    return [a for a in writes_of(statements) if isinstance(a[2], Op) and atomic_of(a[2])[1] == "mul"]


def _commute(a: Stmt, b: Stmt) -> bool:
    """Whether two atomics give the same result in any order: both are products."""
    return all(isinstance(s, Op) and s.op == "atomic" and atomic_of(s)[1] == "mul" for s in (a, b))


def _line(s: Stmt) -> str:
    loc = getattr(s, "loc", None)
    return f"line {loc.line} (`{loc.text.strip()}`)" if loc else "a later statement"


def prologue_loads(task: Task) -> list[Access]:
    """The loads that decide the extent of a task."""
    return loads_of(task.prologue)
