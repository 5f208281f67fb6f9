"""Copies of elements that a later launch, or Python, overwrites, while the gradient of an earlier launch needs them.

Copies stay on the device. A region is copied run by run where it has few runs, as bytes: all components of a vector field are one run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...ir.nodes import ArgDecl, Place
from ...ir.threads import once
from ...ir.trials import ONE
from ...runtime.base import Allocation
from ...runtime.mirror import Mirror, copy
from ...runtime.native.log import KeptRun, KeptRuns, TapeCopies
from .device_arrays import NearArray, address_of
from .memory_regions import IndexPattern, MemoryRegion, tensor_regions

if TYPE_CHECKING:
    from ..call import Call
    from ..variant import Variant

TAPE = "tape"
"""The category of these copies in ``Program.usage()``."""
MOST_LOGGED = 64
"""Runs of one array that native launches copy."""
MOST_RUNS = 1 << 12
"""Runs that are copied one by one; a region of more goes through the host on a device with memory of its own."""


class _ManyRuns(Exception):
    """Native launches do not copy a region."""


class Elements(NamedTuple):
    """An array in memory, and the mirror that looks after it, where it has one."""

    array: Any
    mirror: Mirror | None


def place_memory(variant: Variant, call: Call, place: Place) -> Elements | None:
    """As ``place_elements``; None: memory of another library's device, or blocks of a level with a budget."""
    found = None if place.pool is not None else place_elements(variant, call, place)
    return None if found is None or isinstance(found.array, NearArray) else found


def place_elements(variant: Variant, call: Call, place: Place) -> Elements:
    """All elements of a place in a launch, of all trials. The place is in no blocks of a level with a budget."""
    owner, program = place.buffer.owner, variant.program
    if isinstance(owner, ArgDecl):
        array: Any = call.sources.get(owner.index, call.arrays[owner.index])
        if owner.per_trial:
            address = call.at.get(owner.index) or address_of(array)
            array = next(a for a in program.arrays.alive if a.address == address)._view
        return Elements(array, call.mirrors.get(owner.index))
    assert place.shape is not None and place.strides is not None
    memory, layout = variant.owners[place.buffer], program.batch.layout if place.per_trial else ONE
    array = layout.view(memory.view, place.dtype.numpy, place.trial_bytes, place.offset, place.shape, place.strides)
    return Elements(array, memory.mirror)


def elements_of(variant: Variant, call: Call, place: Place, pattern: IndexPattern) -> Elements | None:
    """The elements of a place that a pattern names, see ``place_memory``."""
    found = place_memory(variant, call, place)
    if found is None:
        return None
    array, owner = found.array, place.buffer.owner
    # axes of trials come first, those of an element last
    first = array.ndim - len(pattern) - (len(owner.element) if isinstance(owner, ArgDecl) else 0)
    return Elements(array[(*(slice(None),) * first, *map(_slice, pattern, array.shape[first:]), ...)], found.mirror)


def _slice(index: int | None, extent: int) -> slice:
    return slice(index, index + 1) if index is not None and 0 <= index < extent else slice(None)


class Region:
    """Arrays of one memory, which are copied together.

    Attributes:
        nbytes: of a copy.
        key: equal for the same memory.
        late: the gradient of the launch that overwrites it reads what the launch leaves there.
    """

    def __init__(self, parts: list[Elements], late: bool = False) -> None:
        self.late = late
        self._parts = sorted(parts, key=lambda e: -e.array.itemsize)  # wider types first, so that all are aligned
        self.nbytes = sum(e.array.nbytes for e in parts)
        self._runs = _runs([e.array for e in parts]) if len({id(e.mirror) for e in parts}) == 1 else None
        self.key = tuple((e.array.__array_interface__["data"][0], e.array.shape, e.array.strides) for e in self._parts)

    def store(self, kept: Elements) -> None:
        """Copy what the arrays hold to ``kept``, which has as many bytes."""
        for mine, other in self._pairs(kept):
            copy(other.mirror, other.array, mine.mirror, mine.array)

    def restore(self, kept: Elements) -> None:
        """Copy it back."""
        for mine, other in self._pairs(kept):
            copy(mine.mirror, mine.array, other.mirror, other.array)

    def runs(self, at: int, late: bool) -> Iterator[KeptRun]:
        """The runs of a copy that begins at an offset, in the order of ``store``.

        Raises:
            _ManyRuns: there are many.
        """
        for piece in self._pieces:
            array, nbytes, axes = piece.array, piece.array.itemsize, piece.array.ndim
            while axes and (array.shape[axes - 1] == 1 or array.strides[axes - 1] == nbytes):
                axes -= 1
                nbytes *= array.shape[axes]
            outer = array.shape[:axes]
            if np.prod(outer, dtype=float) > MOST_LOGGED:
                raise _ManyRuns
            mirror = piece.mirror
            begin = array.__array_interface__["data"][0] if mirror is None else mirror.device_address(array)
            for index in np.ndindex(outer) if array.size else ():
                yield KeptRun(begin + sum(i * stride for i, stride in zip(index, array.strides)), at, nbytes, late)
                at += nbytes

    def _pairs(self, kept: Elements) -> Iterator[tuple[Elements, Elements]]:
        at = 0
        for mine in self._pieces:
            array = mine.array
            there = kept.array[at : at + array.nbytes]
            if array.dtype != np.uint8 or array.ndim != 1:
                there = there.view(array.dtype).reshape(array.shape)
            yield mine, Elements(there, kept.mirror)
            at += array.nbytes

    @once
    def _pieces(self) -> list[Elements]:
        """What is copied one by one: runs of bytes, or arrays."""
        mirror = self._parts[0].mirror
        if self._runs is not None and (mirror is not None or len(self._runs) == 1):
            return [Elements(_bytes_at(address, nbytes), mirror) for address, nbytes in self._runs]
        return self._parts


def _bytes_at(address: int, nbytes: int) -> np.ndarray:
    """Bytes of memory, which something else keeps alive."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _runs(arrays: list[np.ndarray]) -> list[tuple[int, int]] | None:
    """The runs of bytes of some arrays, which have none in common, as address and length; None: there are many."""
    starts, lengths = [], []
    for array in arrays:
        order = sorted(range(array.ndim), key=lambda k: array.strides[k])
        nbytes, outer = array.itemsize, []
        for axis in order:
            extent, stride = array.shape[axis], array.strides[axis]
            if extent == 1:
                continue
            if not outer and stride == nbytes:
                nbytes *= extent
            else:
                outer.append((extent, stride))
        if np.prod([extent for extent, _ in outer], dtype=float) * len(arrays) > 64 * MOST_RUNS or not array.size:
            return None
        at = np.array([array.__array_interface__["data"][0]])
        for extent, stride in reversed(outer):
            at = (at[:, None] + stride * np.arange(extent)).ravel()
        starts.append(at)
        lengths.append(np.full(at.size, nbytes))
    start, length = np.concatenate(starts), np.concatenate(lengths)
    order_ = np.argsort(start)
    start, length = start[order_], length[order_]
    first = np.flatnonzero(np.concatenate([[True], start[1:] != start[:-1] + length[:-1]]))
    if first.size > MOST_RUNS:
        return None
    return list(zip(start[first].tolist(), np.add.reduceat(length, first).tolist()))


@dataclass(eq=False)
class _Copy:
    """A region, and what it held before a launch or an assignment."""

    region: Region
    spots: tuple[MemoryRegion, ...]
    kept: Elements
    known: dict[MemoryRegion, Any] | None  # the versions of the writes, where they are kept


class KeptElements:
    """The copies of one tape, in the order in which they were made.

    Attributes:
        nbytes: of all of them, and of one more copy of each region, for what it holds at the end.
        missing: bytes that did not fit the program's memory budget, from the first copy on that did not.
        before: launches whose gradient runs when memory holds what it held before the launch.

    Args:
        program: whose memory it is.
        puts_back: whether regions shall hold, after all gradients, what they held before them.
    """

    def __init__(self, program: Any, puts_back: bool = True) -> None:
        self._program, self._puts_back = program, puts_back
        self._copies: list[tuple[int, list[_Copy]]] = []  # when, and what was copied at that time
        self._memory: list[Allocation] = []
        self._regions: dict[object, tuple[Region, tuple[MemoryRegion, ...]]] = {}
        self._last: list[_Copy] = []
        self._adopted: Elements | None = None
        self.nbytes = self.missing = 0
        self.before: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._regions)

    @contextmanager
    def adopting(self, memory: Allocation | None) -> Iterator[None]:
        """What is kept inside was copied already, to this memory, in the same order."""
        if memory is not None:
            self._memory.append(memory)
        self._adopted = None if memory is None else Elements(memory.view, memory.mirror)
        try:
            yield
        finally:
            self._adopted = None

    def logged(self) -> TapeCopies | None:
        """The copies as native launches make them. None: one is not of a few runs, or a budget counts them."""
        if self._regions and (self.missing or self._program.options.memory_budget):
            return None
        at, found = 0, dict[int, list[KeptRun]]()
        counters: dict[int, list[ctypes.c_int64]] = {}
        try:
            for when, copies in self._copies:
                number = when // 2
                for each in copies:
                    late = number not in self.before or each.region.late
                    found.setdefault(number, []).extend(each.region.runs(at, late))
                    counters.setdefault(number, []).extend(self._counters(each.spots))
                    at += each.region.nbytes
            last, of_last = list[KeptRun](), list[ctypes.c_int64]()
            for region, spots in self._regions.values() if self._puts_back else ():
                last += region.runs(at, False)
                of_last += self._counters(spots)
                at += region.nbytes
        except _ManyRuns:
            return None
        bases = frozenset(spot.base for _, spots in self._regions.values() for spot in spots)
        return TapeCopies(
            {n: KeptRuns(runs, counters[n], n in self.before) for n, runs in found.items()}, KeptRuns(last, of_last), at, bases
        )

    def _counters(self, spots: tuple[MemoryRegion, ...]) -> list[ctypes.c_int64]:
        return [self._program.data.writes(base) for base in dict.fromkeys(spot.base for spot in spots)]

    def keep(self, when: int, regions: list[tuple[Region, tuple[MemoryRegion, ...]]], run: bool = True) -> None:
        """Copy some regions now; ``when``: the number of the launch that is about to overwrite them. ``run``: False to count only.

        Raises:
            OutOfMemory: the device has no more memory.
        """
        fresh = [r for r in regions if r[0].key not in self._regions]
        self._regions.update((region.key, (region, spots)) for region, spots in fresh)
        nbytes, last = sum(r.nbytes for r, _ in regions), sum(r.nbytes for r, _ in fresh) if self._puts_back else 0
        self.nbytes += nbytes + last
        if not run:
            return
        if self._adopted is not None:
            content, mirror = self._adopted
            self._adopted = Elements(content[nbytes:], mirror)
            self._add(when, regions, Elements(content[:nbytes], mirror), copied=True)
            return
        room = self._program.heap.room()
        if self.missing or (room is not None and nbytes + self.last_bytes > room):
            self.missing += nbytes
            return
        kept = self._allocate(nbytes)
        self._add(when, regions, Elements(kept.view, kept.mirror), copied=False)

    def _add(self, when: int, regions: list[tuple[Region, tuple[MemoryRegion, ...]]], kept: Elements, copied: bool) -> None:
        """Remember the copies of some regions. ``copied``: they are in ``kept``."""
        versions, copies, at = self._program.recorders.versions, list[_Copy](), 0
        for region, spots in regions:
            there = Elements(kept.array[at : at + region.nbytes], kept.mirror)
            if not copied:
                region.store(there)
            copies.append(_Copy(region, spots, there, None if versions is None else versions.newest_at(spots)))
            at += region.nbytes
        self._copies.append((when, copies))

    @property
    def last_bytes(self) -> int:
        """Bytes of the copy of each region that is made at the end of the tape."""
        return sum(region.nbytes for region, _ in self._regions.values()) if self._puts_back else 0

    def _allocate(self, nbytes: int) -> Allocation:
        self._memory.append(self._program.allocate(nbytes, TAPE))
        return self._memory[-1]

    # ---- on the way back
    def begin(self) -> None:
        """Copy what the regions hold now, at the end of the tape."""
        if not self._copies or not self._puts_back:
            return
        memory, at, versions = self._allocate(self.last_bytes), 0, self._program.recorders.versions
        for region, spots in self._regions.values():
            there = Elements(memory.view[at : at + region.nbytes], memory.mirror)
            region.store(there)
            self._last.append(_Copy(region, spots, there, None if versions is None else versions.newest_at(spots)))
            at += region.nbytes

    def restore(self, when: int) -> None:
        """Put back what was there before launch ``when`` and what came after it."""
        while self._copies and self._copies[-1][0] >= when:
            for each in reversed(self._copies.pop()[1]):
                self._put_back(each)

    def restore_before(self, number: int) -> None:
        """Put back what launch ``number`` found, for its own gradient: all but what this reads as the launch left it."""
        if self._copies and self._copies[-1][0] == 2 * number + 1:
            copies = self._copies[-1][1]
            for each in reversed(copies):
                if not each.region.late:
                    self._put_back(each)
            copies[:] = [each for each in copies if each.region.late]

    def end(self) -> None:
        """Put back what the regions held at the end of the tape."""
        for each in self._last:
            self._put_back(each)
        self._last = []

    def release(self) -> None:
        """Give the memory back."""
        self._copies, self._last, self._regions = [], [], {}
        for memory in self._memory:
            self._program.device.free(memory)
        self._memory = []

    def _put_back(self, each: _Copy) -> None:
        each.region.restore(each.kept)
        versions = self._program.recorders.versions
        for spot in each.spots:
            self._program.data.writes(spot.base).value += 1
        if versions is not None and each.known is not None:
            versions.put_back(each.known)


def tensor_elements(tensor: Any, index: tuple[int, ...] | None) -> tuple[Region, tuple[MemoryRegion, ...]] | None:
    """What Python writes in a field or an ndarray: one element, or all; None: it lies in blocks of a level with a budget."""
    if not hasattr(tensor, "_memory") and any(place.pool is not None for place in tensor._places):  # a field
        return None
    array = tensor._in_memory_order
    part = array if index is None else array[(*tensor._at(index), ...)]
    return Region([Elements(part, tensor._mirror)]), tuple(spot for spot, _ in tensor_regions(tensor))


__all__ = ["TAPE", "Elements", "KeptElements", "Region", "elements_of", "place_memory", "tensor_elements"]
