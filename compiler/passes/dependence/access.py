"""The data-access rules of reverse mode: the reads and writes of a kernel for which its gradient is correct.

1. A value that the backward pass must read again may not be overwritten afterwards, by the same task or a later task of the kernel.
   What was written before it was read is no conflict: ``passes.dependence.ordering``.
2. In a parallel loop, an element with a gradient may not be read by one iteration and written by another.
3. In a parallel loop, an element with a gradient may not be stored to by several iterations: ``passes.dependence.collisions``.

Two accesses whose indices can never meet (``x[t - 1, i]`` and ``x[t, i]`` with the same argument t) are no conflict. For rule 2, neither
are two whose indices name all axes of the loop in the same way (``x[i, j]`` and ``x[i, j + 1]`` in a loop over i): then equal elements
mean equal iterations. Different arguments are taken for different memory; the launch checks that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ...errors import DataAccessError
from ...ir.alias import Aliases, base, may_alias, same_array
from ...ir.nodes import GlobalStore, Loc, Op, Operand, Place, Stmt, Task
from ...ir.walk import atomic_of, index_of, loop_names, place_of, walk
from .indexing import differ_unless_wrapped, extents, linear, never_same, own_element

Access = tuple[Place, tuple[Operand, ...], Stmt]

IN_ORDER = "write to another field, split the loop into two kernels, or run it in order: qd.loop_config(serialize=True)"
IN_A_LOOP = (
    "write to another field (for time steps: give the field a leading time axis), or make a kernel of each inner loop, or of an iteration"
    " of the outer one: a qd.ad.Tape keeps elements between launches"
)
SPLIT = "write to another field (for time steps: give the field a leading time axis), or split the kernel in two"
IN_A_TAPE = f"{SPLIT}; a qd.ad.Tape keeps such values itself"


def writes_of(block: Iterable[Stmt]) -> list[Access]:
    """Every store and atomic: place, index, statement."""
    out: list[Access] = []
    for s in block:
        if isinstance(s, GlobalStore):
            out.append((s.place, s.index, s))
        elif isinstance(s, Op) and s.op == "atomic":
            out.append((atomic_of(s)[0], index_of(s), s))
    return out


def loads_of(block: Iterable[Stmt]) -> list[Access]:
    """Every load of memory: place, index, statement."""
    return [(place_of(s), s.args, s) for s in block if isinstance(s, Op) and s.op == "gload"]  # type: ignore[misc]


def overlap(p: Place, q: Place) -> bool:
    """Whether two places can share memory. Different arguments are taken for different memory."""
    return p is q or (base(p.buffer) == base(q.buffer) and may_alias(p, q))


class WriteSet:
    """The writes of some tasks. ``place in writes``: whether one of them may change the content of ``place``."""

    def __init__(self, *tasks: Task) -> None:
        self._of: dict[Place, list[Access]] = {}
        self._aliases: Aliases | None = None  # of all places that are written
        for task in tasks:
            self.add(task)

    def add(self, task: Task) -> None:
        """Add the writes of another task."""
        for access in writes_of(walk(task.body)):
            self._of.setdefault(access[0], []).append(access)
        self._aliases = None

    def __contains__(self, place: object) -> bool:
        return isinstance(place, Place) and bool(self._places(place))

    def _places(self, place: Place) -> list[Place]:
        if self._aliases is None:
            self._aliases = Aliases(self._of)
        return [q for q in self._aliases.of(place) if base(q.buffer) == base(place.buffer)]

    def meeting(self, place: Place, index: tuple[Operand, ...]) -> Iterator[Access]:
        """The writes that may change an element that ``index`` names in some iteration."""
        for other in self._places(place):
            for access in self._of[other]:
                if not same_array(place, other) or not never_same(index, access[1], self):
                    yield access


def overwritten_loads(
    loads: list[Access], writes: WriteSet, final: Callable[[Access, Access], bool]
) -> Iterator[tuple[Access, Access]]:
    """Rule 1: the loads whose element a write may change afterwards, each with the first such write.

    Args:
        loads: are repeated by the backward pass.
        writes: those of their own task and all later ones.
        final: whether a load certainly comes after a write of its element.

    Raises:
        DataAccessError: a load reads a gradient, which the backward pass changes itself.
    """
    for place, index, load in loads:
        if place.is_grad:
            raise DataAccessError(
                f"the gradient needs the value of `{place.name}` read here, and changes it itself",
                load.loc,  # type: ignore[union-attr]
                "copy it to another field in a kernel of its own, and read that",
            )
        for access in writes.meeting(place, index):
            if not final((place, index, load), access):
                yield (place, index, load), access
                break


class LostValueError(DataAccessError):
    """Memory lacks a value of ``place`` that the backward pass needs; elements in locals would keep it."""

    def __init__(self, place: Place, what: str, loc: Loc | None, hint: str) -> None:
        super().__init__(what, loc, hint)
        self.place = place

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.place, self.what, self.loc, self.hint)

    def final(self) -> DataAccessError:
        """The error where no local can keep it."""
        return DataAccessError(self.what, self.loc, self.hint)


def overwritten(load: Access, by: str, hint: str = SPLIT) -> LostValueError:
    """The error for a value that the backward pass reads again and the kernel overwrites. ``by``: what overwrites it."""
    what = f"the gradient needs the value of `{load[0].name}` read here, but {by} overwrites it"
    return LostValueError(load[0], what, getattr(load[2], "loc", None), hint)


def check_cross_iteration(task: Task) -> None:
    """Rule 2, for every place with a gradient that a parallel task both reads and writes.

    Raises:
        DataAccessError: naming both lines.
    """
    if not task.parallel:
        return
    statements = list(walk(task.body))
    writes, ranges = WriteSet(task), extents(task)
    for place, index, load in [*loads_of(statements), *_products(statements)]:
        if not place.differentiable:
            continue
        for other, where, write in writes.meeting(place, index):
            if not _commute(load, write) and not (same_array(place, other) and own_element(index, where, writes, ranges)):
                n = differ_unless_wrapped(index, where)
                first = (
                    f"take the remainder first, as `m = t % {n}`: (m + 1) % {n} is another element, while t + 1 may wrap around"
                )
                raise DataAccessError(
                    f"cross-iteration read-after-write: one iteration may read the element of `{place.name}` that another writes"
                    f" ({line_of(write)})",
                    load.loc,  # type: ignore[union-attr]
                    first if n else _in_order(task, index, where) or IN_ORDER,
                )


def _in_order(task: Task, read: tuple[Operand, ...], written: tuple[Operand, ...]) -> str:
    """The advice where each iteration reads what the one before it writes, as time steps do; empty: elsewhere."""
    names = loop_names(task.loc, len(task.axes))
    for x, y in zip(read, written):
        mine, theirs = linear(x), linear(y)
        apart = mine.minus(theirs)
        for axis, name in zip(task.axes, names):
            if axis.index in dict(mine.leaves) and not apart.leaves and apart.constant:
                return (
                    f"the outermost loop of a kernel runs in parallel, and an iteration of it needs what another one writes: put"
                    f" qd.loop_config(serialize=True) before it, or launch the kernel once for each `{name}`, which is its argument then"
                )
    return ""


def line_of(s: Stmt) -> str:
    """A statement as a message names it."""
    loc = getattr(s, "loc", None)
    return f"line {loc.line} (`{loc.text.strip()}`)" if loc else "a later statement"


def prologue_loads(task: Task) -> list[Access]:
    """The loads that decide the extent of a task."""
    return loads_of(task.prologue)


def _products(statements: list[Stmt]) -> list[Access]:
    """Atomic products: what they leave depends on the sums before them."""
    return [a for a in writes_of(statements) if isinstance(a[2], Op) and atomic_of(a[2])[1] == "mul"]


def _commute(a: Stmt, b: Stmt) -> bool:
    """Whether two atomics give the same result in any order: both are products."""
    return all(isinstance(s, Op) and s.op == "atomic" and atomic_of(s)[1] == "mul" for s in (a, b))
