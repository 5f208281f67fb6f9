"""Uniformity analysis: finds the values that are the same in every lane, by a least fixed point over one task.

A value varies when it comes from the index of an axis, from memory at a varying index or of which each trial of a batch has its own,
from an atomic, an adstack or another thread, or from a local that varies. A local varies when a varying value, or any value under control
that varies, is stored to it. A loop varies when its bounds or its exit do; the index of a loop that all its lanes enter together is the
same in all lanes that still run.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import prod

from ...ir.alias import Aliases
from ...ir.nodes import Block, Const, If, Local, LocalStore, Loop, Op, Operand, Place, Task
from ...ir.walk import atomic_of, is_invariant, operands, place_of, walk


@dataclass(frozen=True, slots=True)
class Shapes:
    """The varying values, locals and loops. Empty when there is one lane."""

    varying: set[Op | Local | Loop] = field(default_factory=set)


def analyse(task: Task, same: frozenset[Op] = frozenset(), apart: frozenset[Op] = frozenset()) -> Shapes:
    """The shapes of a parallel task. ``same``: operations whose result does not vary, whatever their operands do; ``apart``: others
    whose result does.
    """
    shapes = Shapes({*(a.index for a in task.axes), *(r.local for r in task.reductions), *apart})
    size = -1
    while size != len(shapes.varying):
        size = len(shapes.varying)
        _block(task.body, False, shapes.varying, same)
    return shapes


_VARYING = frozenset(("iter", "atomic", "stack_get", "shuffle", "ballot"))


def _per_trial(s: Op) -> bool:
    return isinstance(s.attr, Place) and s.attr.per_trial


def _block(block: Block, control: bool, varying: set[Op | Local | Loop], same: frozenset[Op]) -> None:
    def varies(x: Operand) -> bool:
        return not isinstance(x, Const) and x in varying

    for s in block:
        match s:
            case Op():
                if s in varying:  # as an earlier round has found
                    continue
                if s.op == "load":
                    own = s.attr in varying
                else:
                    own = s.op in _VARYING or (s.op == "gload" and _per_trial(s))
                if not own:
                    for x in s.args:
                        own = own or (isinstance(x, Op) and x in varying)
                if own and s not in same:
                    varying.add(s)
            case LocalStore():
                if control or varies(s.value):
                    varying.add(s.local)
            case If():
                inner = control or varies(s.cond)
                _block(s.then, inner, varying, same)
                _block(s.orelse, inner, varying, same)
            case Loop():
                if varies(s.begin):
                    varying.add(s.index)
                if varies(s.begin) or (s.end is not None and varies(s.end)) or s.exit in varying:
                    varying.add(s)
                _block(s.body, control or s in varying, varying, same)


# -- sums into few elements that all iterations share


MOST_ELEMENTS = 1024
"""Elements of the windows of a task: with 8 lanes of f64, 64 KiB of the thread's stack."""


@dataclass(frozen=True, slots=True)
class SharedElements:
    """The elements of a place to which a sum adds whose index has nothing of the parallel axes: ``weights[t, k] += ..``.

    Attributes:
        fixed: by axis, the operand that is the same in the whole launch, or None where the window has all indices of the axis.
    """

    place: Place
    fixed: tuple[Operand | None, ...]

    @property
    def elements(self) -> int:
        """How many there are."""
        return prod(n for n, x in zip(self.place.shape or (), self.fixed) if x is None)


def free_sums(task: Task, atomics: Collection[Op]) -> set[Op]:
    """Those of some atomics that add reals to what the task touches in no other way, and give no result: they may be made later."""
    read = {x for s in walk(task.body) for x in operands(s)}
    sums = {s for s in atomics if s.dtype.is_real and atomic_of(s)[1] in ("add", "sub") and s not in read}
    others = {place_of(s) for s in walk(task.body) if s not in sums} | {r.place for r in task.reductions}  # type: ignore[operator]
    aliases = Aliases(p for p in others if p is not None)
    return {s for s in sums if not aliases.of(atomic_of(s)[0])}


def windows_of(task: Task, sums: Collection[Op]) -> dict[Op, SharedElements]:
    """The windows of the free sums of a task that have one; together they have at most ``MOST_ELEMENTS``."""
    varying = analyse(task).varying if sums else set()
    found: dict[Op, SharedElements] = {}
    left, known = MOST_ELEMENTS, set[SharedElements]()
    for s in (s for s in walk(task.body) if s in sums):  # type: ignore[operator]
        place, _ = atomic_of(s)  # type: ignore[arg-type]
        index = s.args[: place.ndim]  # type: ignore[union-attr]
        if place.shape is None or place.pool is not None or place.per_trial or any(i in varying for i in index):
            continue
        window = SharedElements(place, tuple(i if is_invariant(i) else None for i in index))
        if window in known or window.elements <= left:
            left -= 0 if window in known else window.elements
            known.add(window)
            found[s] = window  # type: ignore[index]
    return found
