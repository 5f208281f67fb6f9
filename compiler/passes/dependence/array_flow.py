"""The data flow of a kernel between arrays, with which a gradient over several launches detects a broken path."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.nodes import GlobalStore, Kernel, Local, LocalStore, Op, Place, Stmt
from ...ir.walk import place_of, stored_value, walk
from ..reverse.derivatives import carries, rules_of
from .access import Access, loads_of, writes_of

VARIED = 1


@dataclass(frozen=True)
class StoredValues:
    """The real values that a kernel stores.

    Attributes:
        writes: each store or atomic of a real number, and what its value depends on: a mask of ``VARIED`` (an array with a gradient) and of
            ``2 << n`` for the n-th array without one.
        places: the arrays without a gradient that are read.
        loads: the reads of each of them.
    """

    writes: tuple[tuple[Access, int], ...]
    places: tuple[Place, ...]
    loads: dict[Place, list[Access]]

    @property
    def loses(self) -> bool:
        """Whether the kernel itself stores a differentiable value to an array without a gradient."""
        return any(mask & VARIED and not a[0].differentiable for a, mask in self.writes)


def flows_of(kernel: Kernel) -> StoredValues:
    """Follow the real values of a kernel from its loads to its stores."""
    statements = [s for task in kernel.tasks for s in walk(task.body)]
    loads: dict[Place, list[Access]] = {}
    for access in loads_of(statements):
        if access[0].dtype.is_real and not access[0].differentiable and access[0].buffer.kind != "tmp":
            loads.setdefault(access[0], []).append(access)
    bits = {place: 2 << n for n, place in enumerate(loads)}
    masks: dict[Op | Local | Place, int] = {}
    changed = True
    while changed:
        changed = False
        for s in statements:
            for target, mask in _step(s, masks, bits):
                if mask & ~masks.get(target, 0):
                    masks[target] = masks.get(target, 0) | mask
                    changed = True
    stores = [a for a in writes_of(statements) if a[0].dtype.is_real and a[0].buffer.kind != "tmp"]
    out = [(a, masks.get(stored_value(a[2]), 0)) for a in stores]  # type: ignore[arg-type]
    return StoredValues(tuple((a, mask) for a, mask in out if mask), tuple(loads), loads)


def _step(s: Stmt, masks: dict[Op | Local | Place, int], bits: dict[Place, int]) -> list[tuple[Op | Local | Place, int]]:
    """Add the dependences of a statement."""
    if isinstance(s, LocalStore):
        return [(s.local, masks.get(s.value, 0))]  # type: ignore[arg-type]
    if isinstance(s, GlobalStore):
        return [(s.place, masks.get(s.value, 0))] if s.place.buffer.kind == "tmp" else []  # type: ignore[arg-type]
    if not isinstance(s, Op) or not s.dtype.is_real:
        return []
    if s.op in ("gload", "atomic"):
        place = place_of(s)
        assert place is not None
        if place.buffer.kind == "tmp":
            kept = masks.get(place, 0)
            return [(s, kept)] if s.op == "gload" else [(place, masks.get(s.args[-1], 0)), (s, kept)]  # type: ignore[arg-type]
        return [(s, VARIED if place.differentiable else bits.get(place, 0))]
    if s.op == "load":
        return [(s, masks.get(s.attr, 0))]  # type: ignore[arg-type]
    if not carries(s):
        return []
    mask = 0
    for a, rule in zip(s.args, rules_of(s)):
        mask |= masks.get(a, 0) if rule is not None else 0  # type: ignore[arg-type]
    return [(s, mask)]
