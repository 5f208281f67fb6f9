"""What launches read, read again in their gradients, and write: regions of memory with the indices that arguments decide.

All that asks who wrote what asks here: ``accesses_of`` for a kernel, ``Effects`` for launches of it, ``access_region`` for one access.
``PendingReads`` says, launch by launch, which writes overwrite an element that the gradient of an earlier launch reads again.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ...ir.nodes import ArgDecl, Loc, Op, Place
from ...ir.threads import once
from ...ir.walk import atomic_of
from ...passes.dependence.argument_forms import Form
from .memory_regions import IndexPattern, MemoryRegion, RegionTable, argument_region, memory_base

if TYPE_CHECKING:
    from ...passes.dependence.access import Access
    from ..call import Call
    from ..variant import Variant


_SUMS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}

Kind = Literal["reads", "repeats", "writes", "adjoints"]
"""Accesses of a kernel: all that it reads; the reads that its gradient repeats; what it, or its gradient, stores to."""


class Effect(NamedTuple):
    """The accesses of a kernel with the same indices to one place.

    Attributes:
        place: it.
        forms: the indices as functions of the arguments.
        adds: they are sums, past which the gradient of what was there flows unchanged.
        early: they are reads that the gradient repeats, of elements that the kernel overwrites afterwards.
        loc: where the first of them is.
    """

    place: Place
    forms: tuple[Form | None, ...]
    adds: bool
    early: bool
    loc: Loc | None


class Part(NamedTuple):
    """An effect in launches with the same arrays. ``fixed``: its indices, where no scalar argument decides them."""

    spot: MemoryRegion
    place: Place
    forms: tuple[Form | None, ...]
    fixed: IndexPattern | None
    effect: Effect


class Numbers(NamedTuple):
    """The arguments that decide indices, as ``Form.value`` takes them."""

    scalars: Mapping[int, int | float]
    arrays: Mapping[int, np.ndarray]


@dataclass(frozen=True, eq=False)
class Effects:
    """The accesses of launches that differ in their scalar arguments only. Each kind is found when it is first asked for.

    Attributes:
        variant: the kernel.
        call: one of the launches.
        reverse: their gradient will run; else only what they write counts.
    """

    variant: Variant
    call: Call
    reverse: bool = True

    @once
    def reads(self) -> tuple[Part, ...]:
        """Everything that is read."""
        return self._parts(accesses_of(self.variant, "reads"))

    @once
    def repeats(self) -> tuple[Part, ...]:
        """The reads that the gradient repeats."""
        return self._parts(self._repeats)

    @once
    def before(self) -> tuple[Part, ...]:
        """Those among ``repeats`` of elements that the launch overwrites afterwards."""
        return tuple(part for part in self.repeats if part.effect.early)

    @once
    def after(self) -> tuple[Part, ...]:
        """All others among ``repeats``."""
        return tuple(part for part in self.repeats if not part.effect.early)

    @once
    def writes(self) -> tuple[Part, ...]:
        """Everything that is stored to."""
        return self._parts(accesses_of(self.variant, "writes"))

    @property
    def scalars(self) -> frozenset[int]:
        """Numbers of the arguments that decide indices."""
        found = (*self._repeats, *accesses_of(self.variant, "writes"))
        return frozenset(arg for effect in found for form in effect.forms if form for arg in form.arguments)

    @property
    def _repeats(self) -> tuple[Effect, ...]:
        # a kernel that frees memory is refused later
        return accesses_of(self.variant, "repeats") if self.reverse and not self.variant.head.frees else ()

    def _parts(self, accesses: Iterable[Effect]) -> tuple[Part, ...]:
        found: dict[tuple[object, ...], Part] = {}
        for effect in accesses:
            forms, spot = effect.forms, spot_of(self.variant, self.call, effect.place)
            key = spot, forms, effect.adds, effect.early
            if spot is not None and key not in found:
                fixed = None if any(f is not None and f.arguments for f in forms) else pattern_of(forms, self.call)
                found[key] = Part(spot, effect.place, forms, fixed, effect)
        return tuple(found.values())


def accesses_of(variant: Variant, kind: Kind) -> tuple[Effect, ...]:
    """The accesses of all launches of a variant, which keeps them.

    Raises:
        DifferentiationError: no correct gradient exists, by name and line.
    """
    found = variant.accesses.get(kind)
    if found is None:
        found = variant.accesses[kind] = _distinct(variant, kind)
    return found


def _distinct(variant: Variant, kind: Kind) -> tuple[Effect, ...]:
    kernel, early = variant.compiled_kernel, set[int]()
    if kind == "repeats":
        accesses, early = variant.replayed(), {k for k, _ in variant.before()}
    elif kind == "adjoints":
        accesses = variant.adjoints()
    else:
        accesses = kernel.loads if kind == "reads" else kernel.writes
    found: dict[tuple[object, ...], Effect] = {}
    for k, access in enumerate(accesses):
        effect = Effect(access[0], kernel.forms(access), _adds(access), k in early, getattr(access[2], "loc", None))
        found.setdefault(effect[:4], effect)
    return tuple(found.values())


def _adds(access: Access) -> bool:
    s = access[2]
    return isinstance(s, Op) and s.op == "atomic" and atomic_of(s)[1] == "add"


def spot_of(variant: Variant, call: Call, place: Place) -> MemoryRegion | None:
    """The memory region of a place in a launch; None: an empty array, a temporary, the gradient of an argument."""
    owner = place.buffer.owner
    if place.buffer.kind == "arg" and isinstance(owner, ArgDecl):
        return argument_region(variant.program.device, call, owner.index, place.offset)
    memory = variant.owners.get(place.buffer)
    return None if memory is None else MemoryRegion(memory_base(memory), "", place.offset)


def access_region(variant: Variant, call: Call, access: Access) -> tuple[MemoryRegion | None, IndexPattern]:
    """Where an access of a launch goes, and which indices of it are known; no spot for an empty array."""
    return spot_of(variant, call, access[0]), pattern_of(variant.compiled_kernel.forms(access), call)


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
        self._of: RegionTable[dict[tuple[int, ...], PendingGroup]] = RegionTable()  # the axes that are known -> their indices
        self.version = 0

    def add(self, spot: MemoryRegion, pattern: IndexPattern) -> None:
        """A gradient will read these elements."""
        axes, key = _known(pattern)
        self.group(spot, axes).add(key)

    def group(self, spot: MemoryRegion, axes: tuple[int, ...]) -> PendingGroup:
        """Where reads with known indices on these axes are entered."""
        known = spot.base in self._of
        groups = self._of.at(spot, dict)
        found = groups.get(axes)
        if found is None:
            self.version += known
            found = groups[axes] = PendingGroup()
        return found

    def groups(self, spot: MemoryRegion) -> list[tuple[tuple[int, ...], PendingGroup]]:
        """Those of a spot, with their axes."""
        return list(self._of.at(spot, dict).items())

    def overlapping(self, spot: MemoryRegion) -> list[PendingGroup]:
        """Those of other views of the same memory that may have bytes in common with a spot."""
        return [group for _, groups, same in self._of.overlapping(spot) if not same for group in groups.values()]

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
