"""Version counters of the writes to arrays, so that a gradient that would read a changed value is refused.

Kept with ``qd.init(debug=True)`` and while a ``Tape(validation=True)`` is open. Every launch, and every assignment from Python, gets a
number and is entered as the newest write of what it stores to. A launch is remembered by its kernel and arguments. When its gradient is
asked for, no write with a higher number may overlap what the gradient reads again. As on a tape, indices that are sums of literals,
scalar arguments and extents are compared; any other index counts as all elements.

What Python changes without a call of ours (numpy and torch arguments, views that ``x.view`` or a zero-copy conversion handed out) is found
by checksums: a content that is not what the last launch left is entered as a write.
"""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DataAccessError, user_frame
from ...ir.nodes import ArgDecl, Place
from ...runtime.mirror import reading
from .device_arrays import NearArray, address_of, host_content
from .effects import Kind, accesses_of, pattern_of, spot_of
from .memory_regions import (
    ANYWHERE,
    EXTERNAL,
    ExportedMemory,
    IndexPattern,
    MemoryRegion,
    RegionTable,
    base_of,
    memory_base,
    tensor_regions,
)

if TYPE_CHECKING:
    from ...runtime.base import Allocation
    from ..call import Call
    from ..state import ProgramState
    from ..variant import Variant

MOST = 1 << 16
"""Launches that are remembered; the oldest goes first, and its gradient is no longer checked."""

HINT = "launch `{}` again before its gradient, or write to another field (for time steps: give the field a leading time axis)"


@dataclass(frozen=True, slots=True)
class VersionEvent:
    """A launch or an assignment: its number, what it was, and the line of the user's program that asked for it."""

    clock: int
    what: str
    where: str
    decls: tuple[ArgDecl, ...] = ()
    scalars: dict[int, int | float] = field(default_factory=dict)

    def __str__(self) -> str:
        arguments = ", ".join(f"{d.name}={self.scalars[d.index]}" for d in self.decls if d.index in self.scalars)
        call = f"`{self.what}({arguments})`" if self.decls is not NOT_A_LAUNCH else self.what
        return f"{call} at {self.where}" if self.where else call


NOT_A_LAUNCH: tuple[ArgDecl, ...] = (ArgDecl("", "scalar", None),)  # type: ignore[arg-type]


class _Writes:
    """The newest write of each known part of one scalar-valued array."""

    def __init__(self) -> None:
        self._groups: dict[
            tuple[int, ...], dict[tuple[int, ...], VersionEvent]
        ] = {}  # axes that are known -> their indices -> write
        self._newest: dict[tuple[int, ...], int] = {}

    def add(self, region: IndexPattern, event: VersionEvent) -> None:
        axes = tuple(k for k, i in enumerate(region) if i is not None)
        if not axes:  # it covers all that came before
            self._groups.clear()
            self._newest.clear()
        self._groups.setdefault(axes, {})[tuple(region[k] for k in axes)] = event  # type: ignore[misc]
        self._newest[axes] = event.clock

    def after(self, region: IndexPattern, clock: int) -> VersionEvent | None:
        """A write newer than ``clock`` that may overlap the region."""
        for axes, found in self._groups.items():
            if self._newest[axes] <= clock:
                continue
            shared = [n for n, k in enumerate(axes) if k < len(region) and region[k] is not None]
            if len(shared) == len(axes) and axes:
                event = found.get(tuple(region[k] for k in axes))  # type: ignore[misc]
                if event is not None and event.clock > clock:
                    return event
                continue
            wanted = [region[axes[n]] for n in shared]
            for key, event in found.items():
                if event.clock > clock and [key[n] for n in shared] == wanted:
                    return event
        return None


class Versions:
    """The launches and writes of one program."""

    def __init__(self, program: ProgramState) -> None:
        self._device, self._arrays_of, self._shown = program.device, program.arrays.alive, program.arrays.shown
        self._clock = 0
        self._writes: RegionTable[_Writes] = RegionTable()
        self._records: OrderedDict[tuple[object, ...], VersionEvent] = OrderedDict()
        self._sums: dict[tuple[object, object], bytes] = {}  # (base, layout) -> checksum
        self._borrowed: dict[object, Allocation] = {}  # memory of others that kernels refer to by name

    # ---- what happens
    def launch(self, variant: Variant, call: Call, run: Callable[[], Any]) -> tuple[Any, VersionEvent]:
        """Run a launch, and remember when it was and what it wrote. One that fails is not remembered; what it may have written is."""
        self._borrowed.update((memory_base(m), m) for m in variant.owners.values() if m.category == EXTERNAL)
        self._look(call)
        key = self._key(variant, call)
        event = self._event(variant.head.name, variant.head.args, call)
        self._records.pop(key, None)
        try:
            result = run()
        finally:
            self._enter(variant, "writes", call, event)
        self._records[key] = event
        if len(self._records) > MOST:
            self._records.popitem(last=False)
        return result, event

    def wrote(self, tensor: Any, index: tuple[int, ...] | None = None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        """Python is about to write to a field or an ndarray."""
        del source, parts
        self._clock += 1
        event = VersionEvent(self._clock, "Python", user_line(), NOT_A_LAUNCH)
        spots = tensor_regions(tensor)
        # what others wrote since the last look cannot be told from this any more: all elements
        mixed = any(spot in shown.spots for spot, _ in spots[:1] for shown in self._shown.values())
        for spot, ndim in spots:
            mixed = mixed or spot.base in self._borrowed
            region = index if index is not None and len(index) == ndim and not mixed else (None,) * ndim
            self._table(spot).add(region, event)
            self._forget(spot)

    def show(self, shown: ExportedMemory) -> None:
        """The memory of a field or an ndarray was handed out: from now on its content is watched."""
        content = shown.content()
        if content is not None:
            self._sums[_key_of(shown)] = checksum(content)

    def newest(self, tensors: Iterable[Any]) -> dict[MemoryRegion, Any]:
        """What is known of the writes to some arrays, to be put back with their content."""
        return self.newest_at(spot for tensor in tensors for spot, _ in tensor_regions(tensor))

    def newest_at(self, spots: Iterable[MemoryRegion]) -> dict[MemoryRegion, Any]:
        """As ``newest``, of some memory."""
        return {spot: copy.deepcopy(self._table(spot)) for spot in spots}

    def put_back(self, known: dict[MemoryRegion, Any]) -> None:
        """Arrays have the content again that they had when ``newest`` gave this."""
        for spot, writes in known.items():
            self._writes.put(spot, copy.deepcopy(writes))
            self._forget(spot)

    # ---- queries
    def check(self, variant: Variant, call: Call, record: VersionEvent | None = None) -> None:
        """Refuse a gradient that would read what was changed since its launch: ``record``, or else the last with these arguments.

        Raises:
            DataAccessError: names the array, the launch, and what wrote.
        """
        self._look(call)
        launch = record or self._records.get(self._key(variant, call))
        if launch is None:  # a gradient without a launch: it is taken at what the fields hold now
            return
        for effect in accesses_of(variant, "repeats"):
            spot = self._spot(variant, effect.place, call)
            found = None if spot is None else self._after(spot, pattern_of(effect.forms, call), launch.clock)
            if found is not None:
                raise DataAccessError(
                    f"the gradient of `{launch.what}` needs the value of `{effect.place.name}` read here, but {found} changed it after the"
                    f" launch {launch}",
                    effect.loc,
                    HINT.format(launch.what),
                )

    def differentiated(self, variant: Variant, call: Call) -> None:
        """A gradient ran: what it wrote (the gradients of fields) may be data of other kernels."""
        event = self._event(f"{variant.head.name}.grad", variant.head.args, call)
        self._enter(variant, "adjoints", call, event)

    # ---- inside
    def _event(self, name: str, decls: Iterable[ArgDecl], call: Call) -> VersionEvent:
        self._clock += 1
        return VersionEvent(self._clock, name, user_line(), tuple(decls), dict(call.scalars))

    def _key(self, variant: Variant, call: Call) -> tuple[object, ...]:
        columns = (column.tobytes() for column in call.columns.values())
        return variant.serial, (*call.scalars.values(), *columns), tuple(key for key, _ in self._arrays(call))

    def _arrays(self, call: Call) -> list[tuple[tuple[object, object], Any]]:
        """The arrays of a launch, each with its base and layout."""
        given = {**call.arrays, **call.sources}
        return [(base_of(self._device, a, index in call.own), a) for index, a in given.items()]

    def _foreign(self, call: Call) -> Iterator[tuple[tuple[object, object], Any]]:
        """Those that other code may write to: views of our ndarrays are not among them."""
        for index, array in {**call.arrays, **call.sources}.items():
            if index not in call.own | call.parts and array.size:
                yield base_of(self._device, array), array

    def _spot(self, variant: Variant, place: Place, call: Call) -> MemoryRegion | None:
        owner = place.buffer.owner
        if place.buffer.kind != "arg_grad" or not isinstance(owner, ArgDecl):
            return spot_of(variant, call, place)
        array = call.arrays[owner.index]
        if not array.size:
            return None
        is_part, address = owner.index in call.parts, call.at.get(owner.index) or address_of(array)
        for a in self._arrays_of:
            if a.grad is not None and (a._memory.holds(address) if is_part else a.address == address):
                layout = f"from {address}, {array.shape}" if is_part else ""
                return MemoryRegion(memory_base(a.grad._memory), layout, place.offset)
        return None

    def _table(self, spot: MemoryRegion) -> _Writes:
        return self._writes.at(spot, _Writes)

    def _after(self, spot: MemoryRegion, region: IndexPattern, clock: int) -> VersionEvent | None:
        found = (writes.after(region if same else ANYWHERE, clock) for _, writes, same in self._writes.overlapping(spot))
        return next((event for event in found if event is not None), None)

    def _enter(self, variant: Variant, kind: Kind, call: Call, event: VersionEvent) -> None:
        """Enter the writes of a launch; what it wrote has new checksums."""
        written: dict[MemoryRegion, None] = {}
        for effect in accesses_of(variant, kind):
            spot = self._spot(variant, effect.place, call)
            if spot is not None:
                self._table(spot).add(pattern_of(effect.forms, call), event)
                written.setdefault(spot)
        for spot in written if self._sums else ():
            self._forget(spot)
        for key, array, _ in self._watched(call) if written else ():
            if key not in self._sums:
                self._sums[key] = checksum(array)

    def _forget(self, spot: MemoryRegion) -> None:
        """The content behind a spot changes: its checksums are out of date."""
        for key in [key for key in self._sums if key[0] == spot.base]:
            shown = self._shown.get(key[1]) if isinstance(key[1], MemoryRegion) else None
            if shown is None or spot in shown.spots or spot.layout != "":
                del self._sums[key]

    def _watched(self, call: Call) -> Iterator[tuple[tuple[object, object], Any, tuple[MemoryRegion, ...]]]:
        """The memory that others may write to: key of its checksum, content, and what a change is a write to."""
        for (base, layout), array in self._foreign(call):
            yield (base, layout), array, (MemoryRegion(base, "outside", 0),)  # its own layout, so that it meets every access
        for first, shown in list(self._shown.items()):
            content = shown.content()
            if content is None:
                del self._shown[first]
            else:
                yield _key_of(shown), content, shown.spots
        for base, memory in self._borrowed.items():
            yield (base, ""), reading(memory.mirror, memory.view), (MemoryRegion(base, "outside", 0),)

    def _look(self, call: Call) -> None:
        """Compare what others may have written with the last checksums; a difference is a write."""
        for key, array, spots in self._watched(call):
            now = checksum(array)
            if self._sums.setdefault(key, now) != now:
                self._sums[key] = now
                self._clock += 1
                what = "code outside of the kernels (a numpy or torch array, or a view)"
                event = VersionEvent(self._clock, what, "", NOT_A_LAUNCH)
                for spot in spots:
                    self._table(spot).add(ANYWHERE, event)


def _key_of(shown: ExportedMemory) -> tuple[object, object]:
    return shown.spots[0].base, shown.spots[0]


def checksum(array: np.ndarray | NearArray) -> bytes:
    """16 bytes that stand for the content of an array."""
    plain = np.ascontiguousarray(host_content(array))
    return hashlib.blake2b(plain.view(np.uint8).data if plain.ndim else plain.tobytes(), digest_size=16).digest()


def user_line() -> str:
    """``file:line`` of the innermost frame that is not ours."""
    frame = user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
