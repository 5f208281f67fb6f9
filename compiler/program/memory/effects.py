"""What the launches of a tape write, and read again in their gradients: regions of memory with the indices that arguments decide.

``PendingReads`` says, launch by launch, which writes overwrite an element that the gradient of an earlier launch reads again.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...ir.nodes import ArgDecl, Place
from ...passes.dependence.argument_forms import Form
from .memory_regions import IndexPattern, MemoryRegion, argument_region, may_meet, memory_base

if TYPE_CHECKING:
    from ...passes.dependence.access import Access
    from ..call import Call
    from ..variant import Variant


_SUMS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


PlaceForms = tuple[Place, tuple["Form | None", ...]]


class Part(NamedTuple):
    """One access of a launch. ``fixed``: its indices, where no scalar argument decides them."""

    spot: MemoryRegion
    place: Place
    forms: tuple[Form | None, ...]
    fixed: IndexPattern | None


class Numbers(NamedTuple):
    """The arguments that decide indices, as ``Form.value`` takes them."""

    scalars: Mapping[int, int | float]
    arrays: Mapping[int, np.ndarray]


@dataclass(frozen=True, eq=False)
class Effects:
    """The accesses of launches that differ in their scalar arguments only.

    Attributes:
        before: reads that the gradient repeats, of elements that the launch overwrites afterwards.
        after: all other reads that the gradient repeats.
        writes: everything that is stored to.
        scalars: numbers of the arguments that decide indices.
    """

    variant: Variant
    call: Call
    before: tuple[Part, ...]
    after: tuple[Part, ...]
    writes: tuple[Part, ...]
    scalars: frozenset[int]


class Accesses(NamedTuple):
    """The accesses of all launches of a variant: places with the indices as forms; see ``Effects``."""

    before: tuple[PlaceForms, ...]
    after: tuple[PlaceForms, ...]
    writes: tuple[PlaceForms, ...]

    @property
    def scalars(self) -> frozenset[int]:
        """Numbers of the arguments that decide indices."""
        return frozenset(arg for part in self for _, forms in part for form in forms if form for arg in form.arguments)


def accesses_of(variant: Variant, reverse: bool) -> Accesses:
    """The accesses of a variant, which keeps them. ``reverse``: its gradient will run; else only what it writes counts.

    Raises:
        DifferentiationError: no correct gradient exists, by name and line.
    """
    found = variant.accesses.get(reverse)
    if found is None:
        found = variant.accesses[reverse] = _accesses(variant, reverse and not variant.head.frees)  # else it is refused
    return found


def _accesses(variant: Variant, reverse: bool) -> Accesses:
    replayed = variant.replayed() if reverse else ()
    early = {k for k, _ in variant.before()} if reverse else set[int]()
    before = [a for k, a in enumerate(replayed) if k in early]
    after = [a for k, a in enumerate(replayed) if k not in early]

    def distinct(accesses: Iterable[Access]) -> tuple[PlaceForms, ...]:
        return tuple(dict.fromkeys((access[0], variant.compiled_kernel.forms(access)) for access in accesses))

    return Accesses(distinct(before), distinct(after), distinct(variant.compiled_kernel.writes))


def effects_of(variant: Variant, accesses: Accesses, call: Call) -> Effects:
    """The accesses of launches with these arrays."""
    before, after, writes = (_parts(variant, call, part) for part in accesses)
    return Effects(variant, call, before, after, writes, accesses.scalars)


def _parts(variant: Variant, call: Call, accesses: tuple[PlaceForms, ...]) -> tuple[Part, ...]:
    found: dict[tuple[object, ...], Part] = {}
    for place, forms in accesses:
        spot = spot_of(variant, call, place)
        if spot is not None and (spot, forms) not in found:
            fixed = None if any(f is not None and f.arguments for f in forms) else pattern_of(forms, call)
            found[spot, forms] = Part(spot, place, forms, fixed)
    return tuple(found.values())


def spot_of(variant: Variant, call: Call, place: Place) -> MemoryRegion | None:
    """The memory region of a place in a launch; None: an empty array, a temporary, the gradient of an argument."""
    owner = place.buffer.owner
    if place.buffer.kind == "arg" and isinstance(owner, ArgDecl):
        return argument_region(variant.program.device, call, owner.index, place.offset)
    memory = variant.owners.get(place.buffer)
    return None if memory is None else MemoryRegion(memory_base(memory), "", place.offset)


def pattern_of(forms: tuple[Form | None, ...], numbers: Any) -> IndexPattern:
    """The indices that are known in one launch."""
    return tuple(None if f is None else _value(f, numbers) for f in forms)


def _value(form: Form, numbers: Any) -> int:
    """``Form.value``; of sums and products of small signed integers, as most are, without numpy."""
    found = _small(form, numbers.scalars)
    return form.value(numbers) if found is None else found


def _small(form: Form, scalars: Mapping[int, int | float]) -> int | None:
    found: Any
    if form.op == "const":
        found = form.leaf[0]
    elif form.op == "arg":
        found = scalars[form.leaf[0]]
    elif form.op in _SUMS:
        a, b = (_small(x, scalars) for x in form.args)
        found = None if a is None or b is None else _SUMS[form.op](a, b)
    else:
        return None
    signed = type(found) is int and form.dtype.numpy.kind == "i" and form.dtype.size >= 4
    return found if signed and -(2**31) <= found < 2**31 else None


class PendingGroup:
    """Pending reads of one spot by the indices on the same axes.

    Attributes:
        keys: the indices.
        projections: some of their positions -> all indices that were ever entered, at these positions.
    """

    __slots__ = ("keys", "projections")

    def __init__(self) -> None:
        self.keys: set[tuple[int, ...]] = set()
        self.projections: dict[tuple[int, ...], set[tuple[int, ...]]] = {}

    def add(self, key: tuple[int, ...]) -> None:
        """Enter indices."""
        self.keys.add(key)
        for positions, found in self.projections.items():
            found.add(tuple(key[n] for n in positions))


class PendingReads:
    """The elements that gradients of earlier launches read again, and that were not kept since.

    Attributes:
        version: grows with each new group and projection of memory that ``groups`` was asked about before, or that has groups.
    """

    def __init__(self) -> None:
        # base -> (layout, offset) -> the axes that are known -> their indices
        self._of: dict[object, dict[tuple[object, int], dict[tuple[int, ...], PendingGroup]]] = {}
        self.version = 0

    def add(self, spot: MemoryRegion, pattern: IndexPattern) -> None:
        """A gradient will read these elements."""
        axes, key = _known(pattern)
        self.group(spot, axes).add(key)

    def group(self, spot: MemoryRegion, axes: tuple[int, ...]) -> PendingGroup:
        """Where reads with known indices on these axes are entered."""
        known = spot.base in self._of
        groups = self._of.setdefault(spot.base, {}).setdefault((spot.layout, spot.offset), {})
        found = groups.get(axes)
        if found is None:
            self.version += known
            found = groups[axes] = PendingGroup()
        return found

    def groups(self, spot: MemoryRegion) -> list[tuple[tuple[int, ...], PendingGroup]]:
        """Those of a spot, with their axes."""
        return list(self._of.setdefault(spot.base, {}).get((spot.layout, spot.offset), {}).items())

    def overlapping(self, spot: MemoryRegion) -> list[PendingGroup]:
        """Those of other views of the same memory that may have bytes in common with a spot."""
        return [
            group
            for (layout, _), groups in self._of.get(spot.base, {}).items()
            if layout != spot.layout and may_meet(layout, spot.layout)
            for group in groups.values()
        ]

    def projected(self, group: PendingGroup, positions: tuple[int, ...]) -> set[tuple[int, ...]]:
        """The indices of a group at some positions, those of elements that were kept since included."""
        found = group.projections.get(positions)
        if found is None:
            self.version += 1
            found = group.projections[positions] = {tuple(key[n] for n in positions) for key in group.keys}
        return found

    def meets(self, spot: MemoryRegion, pattern: IndexPattern) -> bool:
        """Whether a write to these elements may overwrite one of them."""
        if spot.base not in self._of:
            return False
        axes, key = _known(pattern)
        if any(_overlap(axes, key, known, group.keys) for known, group in self.groups(spot)):
            return True
        return any(group.keys for group in self.overlapping(spot))

    def kept(self, spot: MemoryRegion, pattern: IndexPattern) -> None:
        """All of these elements were copied: a later write to them overwrites nothing that is needed."""
        axes, key = _known(pattern)
        for known, group in self.groups(spot):
            keys = group.keys
            if axes == known:
                keys.discard(key)
            elif set(axes) <= set(known):
                at = [known.index(k) for k in axes]
                keys -= {k for k in keys if tuple(k[n] for n in at) == key}


def _known(pattern: IndexPattern) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes whose index is known, and the indices."""
    if None not in pattern:
        return tuple(range(len(pattern))), pattern  # type: ignore[return-value]
    axes = tuple(k for k, i in enumerate(pattern) if i is not None)
    return axes, tuple(pattern[k] for k in axes)  # type: ignore[misc]


def _overlap(axes: tuple[int, ...], key: tuple[int, ...], known: tuple[int, ...], keys: set[tuple[int, ...]]) -> bool:
    if axes == known:
        return key in keys
    shared = [(axes.index(k), known.index(k)) for k in axes if k in known]
    return any(all(key[m] == other[n] for m, n in shared) for other in keys)
