"""Follows the launches of a tape, and copies the elements that a launch is about to overwrite while an earlier gradient needs them.

The times of copies are even before what Python writes between two launches, and odd before a launch: ``2 * number + 1``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import QdrunRuntimeError
from ...ir.nodes import ArgDecl
from .effects import Effects, Numbers, Part, PendingReads, pattern_of
from .kept import Elements, KeptElements, Region, elements_of, tensor_elements
from .memory_regions import EXTERNAL, IndexPattern, MemoryRegion, tensor_regions
from .quick_checks import QuickCheck, quick_check

if TYPE_CHECKING:
    from ..call import Call

_NUMBERS = frozenset((int, float, bool))
_SEVERAL = 3
"""Launches of a kind after which a function is made for the next ones."""


@dataclass(eq=False)
class _Alike:
    """Launches of one kernel that differ in their numbers only.

    Attributes:
        used: which arguments decide indices: ``ArgDecl.index`` and the position.
        held: what their key names by identity.
        launches: that were looked at closely and overwrote nothing.
    """

    effects: Effects
    used: tuple[tuple[int, int], ...]
    held: tuple[Any, ...]
    launches: int = 0


@dataclass(slots=True)
class QuickChecks:
    """Functions that look at launches of a kernel by ``flat``, see ``Overwritten.launching``: a launch that passes need not be told.

    Attributes:
        plain: where ``flat`` are the arguments themselves, see ``quick_check``.
        objects: where other objects are among the arguments.
        writes: of launches whose gradient the tape does not run.
    """

    plain: QuickCheck | None = None
    objects: QuickCheck | None = None
    writes: QuickCheck | None = None


class Overwritten:
    """The overwritten elements of one tape.

    Attributes:
        kept: their copies.
        quick: of each kernel, what looks at its launches first.
        unkept: launches and assignments, by their time, of elements that cannot be copied.
        bound: the last launch whose arguments only binding tells apart.

    Args:
        program: whose launches they are.
        run: False to count bytes only, while nothing runs or no gradient will.
        puts_back: see ``KeptElements``.
    """

    def __init__(self, program: Any, run: bool = True, puts_back: bool = True) -> None:
        self._program, self._run = program, run
        self.kept = KeptElements(program, puts_back)
        self.unkept: set[int] = set()
        self.bound: tuple[Any, Call] | None = None
        self._pending = PendingReads()
        self._alike: dict[object, _Alike] = {}
        self._regions: dict[object, _Regions] = {}
        self._same: dict[object, Effects] = {}  # by variant and arrays, which they keep alive
        self._now: list[tuple[MemoryRegion, IndexPattern]] = []  # what the gradient of the launch that runs reads again
        self._of_types: dict[object, _OfTypes | None] = {}
        self._held: list[Any] = []  # what these keys name by identity
        self._seen: set[object] = set()  # keys of launches that ``_other_arrays`` has answered for
        self.quick: defaultdict[Any, QuickChecks] = defaultdict(QuickChecks)
        self._version = 0  # of the pending reads, when these functions were made

    # ---- launches
    @property
    def reads_now(self) -> set[MemoryRegion]:
        """What the gradient of the launch that runs reads again."""
        return {spot for spot, _ in self._now}

    def launching(
        self,
        number: int,
        kernel: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        flat: tuple[Any, ...] | None = None,
        reverse: bool = True,
    ) -> None:
        """A kernel is about to run.

        Args:
            number: of the launch, or of the step that it is a part of.
            kernel: it.
            args: its arguments.
            kwargs: and those by name.
            flat: all of them, and the ndarrays of objects after them. Launches are alike where the numbers in it have the same types, and
                all else is the same object. None: only binding them tells.
            reverse: the tape will run its gradient.

        Raises:
            DifferentiationError: no correct gradient exists, by name and line.
            OutOfMemory: the device has no room for the copies.
            QdrunRuntimeError: a graph is recorded, which cannot keep elements.
        """
        reads = self._other_arrays(kernel, args) if flat is args and reverse else None
        if reads is not None:
            self._now = reads
            return
        effects, numbers, alike = self._effects(kernel, args, kwargs, flat, reverse)
        self._now = [(part.spot, _pattern(part, numbers)) for part in effects.after]
        for part in effects.before:
            self._pending.add(part.spot, _pattern(part, numbers))
        found: list[tuple[Part, IndexPattern]] = []
        for part in effects.writes:
            pattern = _pattern(part, numbers)
            if self._pending.meets(part.spot, pattern):
                found.append((part, pattern))
        if found:
            self._copy(2 * number + 1, effects, found)
        elif alike is not None and flat is not None and self._run:
            self._make_quick("writes" if not reverse else "plain" if flat is args else "objects", kernel, flat, alike)
        if effects.before and 2 * number + 1 not in self.unkept:
            self.kept.before.add(number)

    def launched(self) -> None:
        """It has run, and ``quick`` did not answer for it."""
        for spot, pattern in self._now:
            self._pending.add(spot, pattern)
        self._forget_stale()

    def _forget_stale(self) -> None:
        """Drop the functions that do not know all pending reads."""
        if self._version != self._pending.version:
            self._version = self._pending.version
            self.quick.clear()

    def _make_quick(self, which: str, kernel: Any, flat: tuple[Any, ...], alike: _Alike) -> None:
        """Have the next launches of the kernel looked at quickly: several were alike."""
        alike.launches += 1
        if alike.launches % _SEVERAL:
            return
        check = quick_check(alike.effects, flat, dict(alike.used), self._pending)
        self._forget_stale()
        if check is not None:
            setattr(self.quick[kernel], which, check)

    def _effects(
        self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], flat: tuple[Any, ...] | None, reverse: bool
    ) -> tuple[Effects, Any, _Alike | None]:
        if flat is None or any(type(x) in _NUMBERS for x, compiled in zip(flat, kernel.binder.is_template) if compiled):
            # a kernel for each number
            variant, bound = kernel.variant(args, kwargs)
            self.bound = variant, bound.call
            return self._of_variant(variant, bound.call, reverse), bound.call, None
        key = _key(kernel, reverse, flat)
        alike = self._alike.get(key)
        if alike is None:
            variant, bound = kernel.variant(args, kwargs)
            effects, params = self._of_variant(variant, bound.call, reverse), kernel.binder.params
            at = {p.name: k for k, p in enumerate(params)}
            used = tuple((d.index, at[d.name]) for d in variant.head.args if d.index in effects.scalars and d.name in at)
            if len(args) != len(params) or len(used) < len(effects.scalars):
                return effects, bound.call, None
            alike = self._alike[key] = _Alike(effects, used, (kernel, flat))
            if flat is args and reverse and not all(type(a) in _NUMBERS for a in args):
                self._of_types.setdefault(_types_key(kernel, args), _of_types(alike, at, args))
        return alike.effects, Numbers({index: flat[k] for index, k in alike.used}, alike.effects.call.arrays), alike

    def _other_arrays(self, kernel: Any, args: tuple[Any, ...]) -> list[tuple[MemoryRegion, IndexPattern]] | None:
        """What the gradient of a launch reads again that takes ndarrays like those of an earlier one, for the first time.

        None: it may overwrite what is needed, or a closer look is worth while, as the same arrays come again.
        """
        known = self._of_types.get(_types_key(kernel, args)) if self._of_types else None
        if known is None:
            return None
        key = _key(kernel, True, args)
        if (
            key in self._seen
            or key in self._alike
            or not all(type(a) in _NUMBERS or (a._memory.nbytes and a._memory.category != EXTERNAL) for a in args)
        ):
            return None
        numbers = Numbers({index: args[k] for index, k in known.used}, {})
        for at, part in known.writes:
            if self._pending.meets(_spot(at, part, args), _pattern(part, numbers)):
                return None
        self._seen.add(key)
        self._held.append(args)
        return [(_spot(at, part, args), _pattern(part, numbers)) for at, part in known.after]

    def _of_variant(self, variant: Any, call: Any, reverse: bool) -> Effects:
        """The effects of launches of a variant with the same arrays."""
        if not _are_ours(call):
            return Effects(variant, call, reverse)
        key = id(variant), reverse, *map(id, call.arrays.values())
        found = self._same.get(key)
        if found is None:
            found = self._same[key] = Effects(variant, call, reverse)
        return found

    def _copy(self, time: int, effects: Effects, found: list[tuple[Part, IndexPattern]]) -> None:
        self._refuse_recording(effects.variant.head.name)
        key = effects, *[(id(part), pattern) for part, pattern in found]
        regions = self._regions.get(key)
        if regions is None:
            regions = _regions(effects, found)
            if _are_ours(effects.call):  # the effects of later launches, too
                self._regions[key] = regions
        for part, pattern in found:
            if regions.missing and part in regions.missing:
                self.unkept.add(time)
            else:
                self._pending.kept(part.spot, pattern)
        self.kept.keep(time, regions.found, self._run)

    def _refuse_recording(self, name: str) -> None:
        if self._program.recorders.recording is not None:
            raise QdrunRuntimeError(
                f"`{name}` overwrites elements that the gradient of an earlier launch needs: a tape keeps them, and a graph cannot\n"
                "  do: call the function itself, or give the field a leading time axis"
            )

    # ---- Python, and what runs several launches
    def writing(self, time: int, tensor: Any, index: tuple[int, ...] | None = None) -> None:
        """Python, or what runs several launches, is about to write one element of an array, or all."""
        regions = tensor_regions(tensor)
        patterns = [(spot, index if index is not None and len(index) == ndim else (None,) * ndim) for spot, ndim in regions]
        if not any(self._pending.meets(spot, pattern) for spot, pattern in patterns):
            return
        self._refuse_recording("Python")
        found = tensor_elements(tensor, index)
        if found is None:
            self.unkept.add(time)
            return
        for spot, pattern in patterns:
            self._pending.kept(spot, pattern)
        self.kept.keep(time, [found], self._run)

    def forget(self, tensors: Iterable[Any]) -> None:
        """Arrays are set anew, and something else puts back what earlier gradients read."""
        for tensor in tensors:
            for spot, ndim in tensor_regions(tensor):
                self._pending.kept(spot, (None,) * ndim)

    def reads(self, found: Iterable[tuple[MemoryRegion, Iterable[IndexPattern]]]) -> None:
        """What the gradient of several launches reads again."""
        for spot, patterns in found:
            for pattern in patterns:
                self._pending.add(spot, pattern)
        self._forget_stale()


class _OfTypes(NamedTuple):
    """The accesses of launches of one kernel with arguments of the same types, each with the position of the ndarray that it is to."""

    writes: list[tuple[int | None, Part]]
    after: list[tuple[int | None, Part]]
    used: tuple[tuple[int, int], ...]


def _of_types(alike: _Alike, at: dict[str, int], args: tuple[Any, ...]) -> _OfTypes | None:
    """Those of launches of which one is given; None: they differ in more than the arrays."""
    effects = alike.effects
    if effects.before or any(f and f.has_shape for part in (*effects.after, *effects.writes) for f in part.forms):
        return None

    def placed(parts: tuple[Part, ...]) -> list[tuple[int | None, Part]]:
        owners = [p.place.buffer.owner for p in parts]
        return [(at[owner.name] if isinstance(owner, ArgDecl) else None, part) for owner, part in zip(owners, parts)]

    found = _OfTypes(placed(effects.writes), placed(effects.after), alike.used)
    known = all(_spot(k, part, args) == part.spot for k, part in (*found.writes, *found.after))
    return found if known and _are_ours(effects.call) else None


def _key(kernel: Any, reverse: bool, flat: tuple[Any, ...]) -> object:
    """Equal for launches that are alike."""
    return (id(kernel), reverse, *[type(a) if type(a) in _NUMBERS else id(a) for a in flat])


def _types_key(kernel: Any, args: tuple[Any, ...]) -> object:
    """Equal for launches with numbers of the same types, and ndarrays for which the kernel is compiled alike."""
    return (id(kernel), *[type(a) if type(a) in _NUMBERS else id(a._key) for a in args])


def _spot(at: int | None, part: Part, args: tuple[Any, ...]) -> MemoryRegion:
    """The region of a part in a launch with other ndarrays."""
    return part.spot if at is None else MemoryRegion(args[at]._memory.serial, "", part.spot.offset)


class _Regions(NamedTuple):
    """What is copied before a launch. ``missing``: its writes that cannot be."""

    found: list[tuple[Region, tuple[MemoryRegion, ...]]]
    missing: list[Part]


def _regions(effects: Effects, found: list[tuple[Part, IndexPattern]]) -> _Regions:
    """The elements of some writes, those of one memory with the same indices together.

    Apart from the others are those that the gradient reads as the launch leaves them, where it reads others as the launch found them.
    """
    groups: dict[tuple[bool, *tuple[object, ...]], tuple[dict[object, Elements], list[MemoryRegion]]] = {}
    before = {
        part.spot for part in effects.before
    }  # of these the gradient reads what it found, or elements that the launch leaves
    late = {part.spot for part in effects.after} - before if before else set[MemoryRegion]()
    missing: list[Part] = []
    for part, pattern in found:
        there = elements_of(effects.variant, effects.call, part.place, pattern)
        if there is None:
            missing.append(part)
            continue
        array = there.array
        parts, spots = groups.setdefault((part.spot in late, part.spot.base, part.spot.layout, pattern), ({}, []))
        parts[array.__array_interface__["data"][0], array.shape, array.strides] = there
        spots.append(part.spot)
    regions = [Region(list(parts.values()), late=key[0]) for key, (parts, _) in groups.items()]
    return _Regions([(region, tuple(spots)) for region, (_, spots) in zip(regions, groups.values())], missing)


def _are_ours(call: Call) -> bool:
    """Whether all arrays are ndarrays of the program: memory of others may be laid out anew."""
    return len(call.own) == len(call.arrays)


def _pattern(part: Part, numbers: Any) -> IndexPattern:
    return pattern_of(part.forms, numbers) if part.fixed is None else part.fixed


__all__ = ["Overwritten"]
