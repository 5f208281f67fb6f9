"""Checks the reads and writes of ``checkpointed_steps``: that steps can be run again, and that they fit the rest of the tape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DataAccessError
from ...ir.nodes import ArgDecl, Loc
from ...program.memory.device_arrays import NearArray, address_of
from ...program.memory.memory_regions import MemoryRegion, tensor_regions
from ...runtime.mirror import Mirror, copy, reading, store
from ..data.ndarray import Ndarray
from .overwrites import HostWrite, Overwrites, Timed, Uses, _Group, _meeting, _Use, add_use, all_uses
from .steps_window import Window, name_of

if TYPE_CHECKING:
    from ...passes.dependence.access import Access
    from ...program.variant import Variant

BATCH = 1 << 14
"""Launches that are checked together."""

STEPS = "checkpointed_steps"

Key = tuple[MemoryRegion, str, str, "Loc | None", tuple[bool, ...]]


@dataclass(frozen=True)
class Moved:
    """Between two launches, the last slot of a window became the first of the next."""

    when: float
    spots: tuple[MemoryRegion, ...]
    length: int


class _Seen:
    """Accesses of many launches, each index once."""

    def __init__(self) -> None:
        self._found: dict[Key, set[tuple[int, ...]]] = {}

    def add(self, uses: Uses) -> None:
        for spot, use in all_uses(uses):
            known = [a.tolist() for a in use.axes if a is not None]
            key = spot, use.name, use.kernel, use.loc, tuple(a is not None for a in use.axes)
            self._found.setdefault(key, set()).update(zip(*known) if known else [()])

    def uses(self, when: float) -> Iterator[tuple[MemoryRegion, _Use]]:
        """As accesses of one launch."""
        for (spot, name, kernel, loc, known), indices in self._found.items():
            columns = iter(np.array(sorted(indices), np.int64).reshape(len(indices), sum(known)).T)
            axes = tuple(next(columns) if is_known else None for is_known in known)
            yield spot, _Use(np.full(len(indices), float(when)), axes, name, kernel, loc)

    def table(self) -> Uses:
        """By base, as ``Overwrites`` keeps them."""
        out: Uses = {}
        for spot, use in self.uses(0):
            add_use(out, spot, use)
        return out


class Accesses:
    """Collects what the launches of all windows read and write, where there are several.

    Args:
        window: the arrays.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._spots = {spot: tensor for tensor in window for spot, _ in tensor_regions(tensor)}
        self._handed_on = {spot for tensor in window.state for spot, _ in tensor_regions(tensor)}
        self._ends: list[int] = []  # the first launch after each step
        self._slots: list[int] = []  # and the slot of that step
        self._timed: list[Timed] = []
        self._host_writes: list[HostWrite] = []
        self._next = 0
        self._reads, self._writes, self._loads, self._dropped = _Seen(), _Seen(), _Seen(), _Seen()
        self._variants: dict[int, Variant] = {}
        self._alive: list[Any] = []  # arrays of others: an address means an array only as long as it lives
        self.outside: dict[MemoryRegion, Outside] = {}  # what the steps write and the window does not hold
        self.sample: list[Timed | Moved] = []  # the launches of the first two windows

    def add(self, number: int, timed: list[Timed], host_writes: list[HostWrite], calls: int, ends: list[int]) -> None:
        """Take the launches of window ``number``, whose steps end before launches ``ends``; they are checked later, when gradients have
        been compiled.

        Raises:
            DataAccessError: see ``finish``.
        """
        first = self._next
        moved = [Timed(t.when + first, t.launch, t.hidden, t.cut, number) for t in timed]
        self._timed += moved
        self._host_writes += [replace(w, before=w.before + first, window=number) for w in host_writes]
        self._ends += [first + end for end in ends]
        self._slots += range(len(ends))
        self._next += calls + 1
        if number < 2:
            spots = tuple(spot for t in self._window.state for spot, _ in tensor_regions(t))
            self.sample += [*moved, Moved(self._next, spots, len(ends))]
        if len(self._timed) >= BATCH or number == 1:  # the first where t is not k
            self._look()

    def _look(self) -> None:
        found = Overwrites.of(self._timed, self._host_writes, loads=True)
        for uses in (found.loads, found.writes):
            for spot, use in all_uses(uses):
                self._check_slots(spot, use)
        found.check()
        self._reads.add(found.reads)
        self._writes.add(found.writes)
        self._loads.add(found.loads)
        self._dropped.add(found.dropped)
        self._variants.update((id(v), v) for v in found.variants)
        for group in found.groups:
            self._look_outside(group)
        for write in self._host_writes:
            for spot, _ in tensor_regions(write.tensor):
                if spot not in self._spots:
                    self.outside[spot] = Outside(write.tensor._form, write.tensor._mirror)
        self._timed, self._host_writes, self._ends, self._slots = [], [], [], []

    def _check_slots(self, spot: MemoryRegion, use: _Use) -> None:
        """Refuse an index beyond the window (t in the place of k), or the slot of another step, as far as arguments decide it."""
        tensor = self._spots.get(spot)
        slots = None if tensor is None or not use.axes else use.axes[_slot_axis(tensor)]
        if tensor is not None and slots is not None and (slots.min() < 0 or slots.max() >= tensor.shape[0]):
            wrong = int(slots.max() if slots.max() >= tensor.shape[0] else slots.min())
            raise DataAccessError(
                f"a step of {STEPS} reads or writes slot {wrong} of `{use.name or name_of(tensor)}`, which has {tensor.shape[0]}",
                use.loc,
                "index the window's arrays by the second argument of the step, its slot, and not by the number of the step",
            )
        if (
            tensor is not None and slots is not None and use.kernel != "Python"
        ):  # when Python writes, it may be between two steps
            self._check_step(spot, use, slots)

    def _check_step(self, spot: MemoryRegion, use: _Use, slots: np.ndarray) -> None:
        """Refuse the slot of another step: in a shorter window it would be another one, or none."""
        own = np.array(self._slots)[np.searchsorted(self._ends, use.when, side="right")]
        state = spot in self._handed_on
        wrong = np.flatnonzero((slots < own) | (slots > own + state))
        if wrong.size:
            k, slot = int(own[wrong[0]]), int(slots[wrong[0]])
            raise DataAccessError(
                f"a step of {STEPS} with slot k = {k} reads or writes slot {slot} of `{use.name}`, "
                + (f"a state: it has slots {k} and {k + 1}" if state else f"scratch: it has slot {k}"),
                use.loc,
                "pass values to later steps in a separate state array: before[k + 1] = x[k]",
            )

    def _look_outside(self, group: _Group) -> None:
        call = group.bound.call
        if call.arrays.keys() - call.own:
            self._alive.append(call)
        for access in group.variant.compiled_kernel.writes:
            spot = group.spot(access)
            if access[0].is_grad or access[0].buffer.kind == "arg_grad":
                raise DataAccessError(
                    f"a step of {STEPS} launches `{group.kernel.source.name}`, which writes the gradient `{access[0].name}`: run again, it"
                    " would do so twice",
                    getattr(access[2], "loc", None),
                    "write gradients outside of the steps, or in a function with a gradient of its own (grad_for)",
                )
            if spot is not None and spot not in self._spots:
                self.outside[spot] = _place_of(group, access)

    def finish(self) -> None:
        """Check all launches.

        Raises:
            DataAccessError: a gradient would read what a later launch of its window overwrote, or the steps read what they write, in an
                array that is no part of the window; names the array and the line.
        """
        self._look()
        reads, loads = self._reads.table(), self._loads.table()
        for spot, write in self._writes.uses(0):
            if spot in self._spots:
                continue
            read = next((use for uses in (loads, reads) for use, _ in _meeting(uses, spot)), None)
            if read is not None:
                who = "Python" if write.kernel == "Python" else f"`{write.kernel}`"
                name = write.name or read.name
                raise DataAccessError(
                    f"{who} writes `{name}` in a step of {STEPS} and `{read.kernel}` reads it here: recomputed steps would read"
                    " values of later steps",
                    read.loc,
                    f"give `{name}` a first axis of slots, and name it in state (handed from step to step) or in scratch (within a step)",
                )

    def join(self, found: Overwrites, when: int) -> None:
        """Enter the accesses as those of one launch of the tape around the steps."""
        for seen, target in ((self._reads, found.reads), (self._writes, found.writes), (self._dropped, found.dropped)):
            for spot, use in seen.uses(when):
                add_use(target, spot, use)
        for spot, use in self._loads.uses(when):
            if spot not in self._spots:
                add_use(found.reads, spot, use)
        found.variants += self._variants.values()


def cleared(window: Window, when: float) -> Iterator[tuple[MemoryRegion, _Use]]:
    """The slots that every run of a window begins with clearing. Slot 0 of the state holds in the end what it held at first."""
    slots = np.arange(1, window.length + 1)
    at = np.full(slots.size, float(when))
    for tensor in window.state:
        for spot, ndim in tensor_regions(tensor):
            yield spot, _Use(at, _slot_axes(tensor, slots, ndim), "", STEPS, None)
    for tensor in window.scratch:
        for spot, ndim in tensor_regions(tensor):
            yield spot, _Use(at[:1], (None,) * ndim, "", STEPS, None)


def handed_over(window: Window) -> Iterable[tuple[MemoryRegion, _Use]]:
    """The write, before a window's launches, of what the window before left in slot 0."""
    for tensor in window.state:
        for spot, ndim in tensor_regions(tensor):
            yield spot, _Use(np.array([-1.0]), _slot_axes(tensor, np.array([0]), ndim), "", STEPS, None)


def _slot_axis(tensor: Any) -> int:
    """The position of the slot's index in accesses; the indices of an ndarray are in memory order."""
    return tensor.layout.index(0) if isinstance(tensor, Ndarray) and tensor.layout is not None else 0


def _slot_axes(tensor: Any, slots: np.ndarray, ndim: int) -> tuple[np.ndarray | None, ...]:
    at = _slot_axis(tensor)
    return tuple(slots if k == at else None for k in range(ndim))


def enter(found: Overwrites, uses: Iterable[tuple[MemoryRegion, _Use]]) -> None:
    """Add writes."""
    for spot, use in uses:
        add_use(found.writes, spot, use)


@dataclass(frozen=True, eq=False)
class Outside:
    """Memory that the steps write and the window does not hold: ``array`` shows it, ``mirror`` looks after it where it has one."""

    array: Any
    mirror: Mirror | None

    def get(self, mirror: Mirror | None, content: np.ndarray) -> None:
        """Copy the memory to ``content``, which has the mirror ``mirror``."""
        if isinstance(self.array, NearArray):
            store(mirror, content, self.array.copy())
        else:
            copy(mirror, content, self.mirror, self.array)

    def put(self, mirror: Mirror | None, content: np.ndarray) -> None:
        """Copy it back."""
        if isinstance(self.array, NearArray):
            self.array.write(reading(mirror, content))
        else:
            copy(self.mirror, self.array, mirror, content)


def _place_of(group: _Group, access: Access) -> Outside:
    """The memory that a write goes to, of all of its elements."""
    place, call, program = access[0], group.bound.call, group.variant.program
    owner = place.buffer.owner
    if place.buffer.kind == "arg" and isinstance(owner, ArgDecl):
        array = call.sources.get(owner.index, call.arrays[owner.index])
        if owner.per_trial:
            address = call.at.get(owner.index) or address_of(array)
            array = next(a for a in program.ndarrays if a.address == address)._view
        return Outside(array, call.mirrors.get(owner.index))
    assert place.shape is not None and place.strides is not None
    memory, trials, dtype = group.variant.owners[place.buffer], program.trials, place.dtype.numpy
    if trials is not None and place.per_trial:
        parts = place.trial_bytes, place.offset, place.shape, place.strides
        return Outside(trials.view(memory.view, dtype, *parts), memory.mirror)
    return Outside(np.ndarray(place.shape, dtype, memory.view.data, place.offset, place.strides), memory.mirror)
