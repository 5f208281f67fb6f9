"""Checks the reads and writes of ``checkpointed_steps``: that steps can be run again, and that they fit the rest of the tape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....errors import DataAccessError
from ....ir.nodes import Loc
from ....program.memory.device_arrays import NearArray
from ....program.memory.effects import accesses_of, spot_of
from ....program.memory.kept import place_elements
from ....program.memory.memory_regions import MemoryRegion, memory_base, tensor_regions
from ....runtime.base import next_serial
from ....runtime.mirror import Mirror, copy, reading, store
from ...data.ndarray import Ndarray
from ..overwrites import HostWrite, Overwrites, Timed, Use, Uses, _Group, add_use, all_uses
from .steps_window import Window, name_of

if TYPE_CHECKING:
    from ....program.program import Program
    from ....program.variant import Variant

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


class Composite(ABC):
    """Several launches that a tape records as one step.

    Attributes:
        whole: False when the tape records its launches one by one, and this before them.
        told: whether a tape is told of all launches and assignments in it, but for those to ``arrays``.
    """

    whole = True
    told = False

    @abstractmethod
    def arrays(self) -> list[Any]:
        """What it writes besides, all of which a tape may have to keep."""

    def host_writes(self) -> list[HostWrite]:
        """What Python writes, or the steps copy, between the launches of ``sample``."""
        return []

    @abstractmethod
    def __call__(self) -> None:
        """Repeat what the tape has recorded as this."""

    @abstractmethod
    def record(self, tape: Any) -> None:
        """Run it while ``tape`` records."""

    @abstractmethod
    def join(self, found: Overwrites, when: int) -> None:
        """Check what it reads and writes, and enter it as launch ``when`` of the tape."""

    @abstractmethod
    def sample(self) -> list[Timed | Moved]:
        """Launches that stand for all of it."""

    @abstractmethod
    def grad(self) -> None:
        """Run its gradient."""

    def reserve(self, program: Program) -> int:
        """Compile and make what its gradient will need, as far as that is known; further bytes that this will allocate."""
        del program
        return 0

    @abstractmethod
    def release(self) -> None:
        """Give its memory back."""


class StepEnd(NamedTuple):
    """How much a window's tape had recorded at the end of a step, or at its beginning.

    Attributes:
        launches: launches.
        writes: assignments from Python.
        serial: memory that was allocated before has a smaller serial number.
    """

    launches: int
    writes: int
    serial: int


class _Seen:
    """Accesses of many launches, each index once."""

    def __init__(self) -> None:
        self._found: dict[Key, set[tuple[int, ...]]] = {}

    def add(self, uses: Uses, but: set[object]) -> None:
        """Add what is used, ``but`` memory of these bases."""
        for spot, use in all_uses(uses):
            if spot.base in but:
                continue
            known = [a.tolist() for a in use.axes if a is not None]
            key = spot, use.name, use.kernel, use.loc, tuple(a is not None for a in use.axes)
            self._found.setdefault(key, set()).update(zip(*known) if known else [()])

    def __contains__(self, spot: MemoryRegion) -> bool:
        return any(key[0] == spot for key in self._found)

    def read_all(self, where: Callable[[MemoryRegion], bool]) -> None:
        """Launches that are not seen have other indices, where memory is of a kind."""
        for spot, name, kernel, loc, known in list(self._found):
            if any(known) and where(spot):
                self._found.setdefault((spot, name, kernel, loc, (False,) * len(known)), {()})

    def uses(self, when: float) -> Iterator[tuple[MemoryRegion, Use]]:
        """As accesses of one launch."""
        for (spot, name, kernel, loc, known), indices in self._found.items():
            columns = iter(np.array(sorted(indices), np.int64).reshape(len(indices), sum(known)).T)
            axes = tuple(next(columns) if is_known else None for is_known in known)
            yield spot, Use(np.full(len(indices), float(when)), axes, name, kernel, loc)

    def table(self) -> Uses:
        """By base, as ``Overwrites`` keeps them."""
        out = Uses()
        for spot, use in self.uses(0):
            add_use(out, spot, use)
        return out


class WindowAccesses:
    """Collects what the launches of all windows read and write, where there are several.

    Args:
        window: the arrays.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._spots = {spot: tensor for tensor in window for spot, _ in tensor_regions(tensor)}
        self._handed_on = {spot for tensor in window.state for spot, _ in tensor_regions(tensor)}
        self._in_place = {spot for tensor in window.in_place for spot, _ in tensor_regions(tensor)}
        self._temporary = {spot for tensor in window.temporaries for spot, _ in tensor_regions(tensor)}
        self._begin = next_serial()
        self._ends: list[int] = []  # the first launch after each step
        self._slots: list[int] = []  # and the slot of that step
        self._serials: list[int] = [self._begin]  # where the memory of each step begins; one more for the end of the last
        self._done = 0  # steps that were looked at
        self._inner: list[tuple[int, Composite]] = []  # steps within steps
        self._timed: list[Timed] = []
        self._host_writes: list[HostWrite] = []
        self._next = 0
        self._skips = False  # windows were skipped
        self._reads, self._writes, self._loads, self._dropped = _Seen(), _Seen(), _Seen(), _Seen()
        self._variants: dict[int, Variant] = {}
        self._alive: list[Any] = []  # arrays of others: an address means an array only as long as it lives
        self.outside: dict[MemoryRegion, Outside] = {}  # what the steps write and the window does not hold
        self.sample: list[Timed | Moved] = []  # the launches of the first two windows
        self.host_writes: list[HostWrite] = []  # and what Python writes between them

    def add(
        self,
        number: int,
        timed: list[Timed],
        host_writes: list[HostWrite],
        inner: list[tuple[int, Composite]],
        ends: list[StepEnd],
    ) -> None:
        """Take the launches of window ``number``; they are checked later, when gradients have been compiled.

        Args:
            number: of the window.
            timed: its launches.
            host_writes: assignments from Python.
            inner: steps within its steps.
            ends: of its beginning, and of each step.

        Raises:
            DataAccessError: see ``finish``.
        """
        first, done = self._next, self._done + len(self._ends)
        moved = [Timed(t.when + first, t.launch, t.hidden, t.cut, number) for t in timed]
        self._timed += moved
        for step, (begin, end) in enumerate(pairwise(ends)):
            for write in host_writes[begin.writes : end.writes]:
                mine = done + step if self._is_temporary(write.tensor) else number
                self._host_writes.append(replace(write, before=write.before + first, window=mine))
        self._inner += [(when + first, steps) for when, steps in inner]
        self._ends += [first + end.launches for end in ends[1:]]
        self._slots += range(len(ends) - 1)
        self._serials[-1:] = [end.serial for end in ends]
        self._next += ends[-1].launches + 1
        if number < 2:
            spots = tuple(spot for t in self._window.state for spot, _ in tensor_regions(t))
            self.host_writes += [*host_writes, *(write for _, steps in inner for write in steps.host_writes())]
            self.sample += [*moved, *(t for _, steps in inner for t in steps.sample()), Moved(self._next, spots, len(ends) - 1)]
        allocates = ends[-1].serial - ends[0].serial >= len(ends)
        if (
            len(self._timed) >= BATCH or number == 1 or allocates
        ):  # the first where t is not k; arrays live until they were checked
            self._look()

    def skip(self, ends: list[StepEnd]) -> None:
        """A window whose launches are those of windows that were checked, but for numbers that decide no index in what steps write."""
        if self._timed:
            self._look()
        self._skips = True
        self._done += len(ends) - 1
        self._serials[-1:] = [end.serial for end in ends]
        self._next += ends[-1].launches + 1

    def _is_temporary(self, tensor: Any) -> bool:
        return any(spot in self._temporary for spot, _ in tensor_regions(tensor))

    def _own(self, when: np.ndarray) -> np.ndarray:
        """Which of the steps that are looked at make these launches."""
        return np.searchsorted(self._ends, when, side="right")

    def _look(self) -> None:
        found = Overwrites.of(self._timed, self._host_writes, unkept=set())  # copies are made by the tape of the window
        for when, steps in self._inner:
            self._enter(found, steps, when)
        within = [self._check_within(uses) for uses in (found.reads, found.writes, found.loads, found.dropped)]
        for uses in (found.loads, found.writes):
            for spot, use in all_uses(uses):
                self._check_slots(spot, use)
        found.check()
        self._reads.add(found.reads, within[0])
        self._writes.add(found.writes, within[1])
        self._loads.add(found.loads, within[2])
        self._dropped.add(found.dropped, within[3])
        self._variants.update((id(v), v) for v in found.variants)
        for group in found.groups:
            self._look_outside(group)
        for write in self._host_writes:
            for spot, _ in tensor_regions(write.tensor):
                if not self._inside(spot):
                    self.outside[spot] = Outside(write.tensor._form, write.tensor._mirror)
        self._done += len(self._ends)
        self._timed, self._host_writes, self._ends, self._slots, self._inner = [], [], [], [], []
        self._serials = self._serials[-1:]

    def _enter(self, found: Overwrites, steps: Composite, when: int) -> None:
        """Enter the accesses of steps within a step.

        Raises:
            DataAccessError: they write to an array that a repeated run would not put back.
        """
        own = Overwrites()
        steps.join(own, when)
        for spot, use in all_uses(own.writes):
            if not self._inside(spot):
                raise DataAccessError(
                    f"{steps!r} in a step of {STEPS} writes an array that is no part of the window: `{use.name}` in `{use.kernel}`",
                    use.loc,
                    "name all arrays that it writes in temporaries",
                )
        for mine, target in ((own.reads, found.reads), (own.writes, found.writes)):
            for spot, use in all_uses(mine):
                if spot in self._temporary:
                    use.window = self._done + self._own(np.full(len(use.when), when))
                add_use(target, spot, use)
        found.variants += own.variants

    def _inside(self, spot: MemoryRegion) -> bool:
        """Whether a run of the step sets all of this memory that it reads."""
        held = spot in self._spots or spot in self._in_place or spot in self._temporary
        return held or self._is_made(spot) or spot.base in self._kept_by_program()

    def _is_made(self, spot: MemoryRegion) -> bool:
        """Whether the memory was allocated by a step."""
        return isinstance(spot.base, int) and self._begin < spot.base < self._serials[-1]

    def _kept_by_program(self) -> set[object]:
        """The memory that the program's algorithms, and kernels in parts, use for values in between: each call sets what it reads."""
        program = self._window.program
        arrays = {spot.base for array in program_arrays(program) for spot, _ in tensor_regions(array)}
        return arrays | {memory_base(passed.memory) for passed in program.state.passed}

    def _check_within(self, uses: Uses) -> set[object]:
        """Each step has temporaries, and the arrays that it makes, to itself.

        Returns:
            The bases of what no later step finds: these arrays, and those that the program's algorithms keep.

        Raises:
            DataAccessError: a step uses an array that another one made.
        """
        within, made = self._kept_by_program(), set[object]()
        for spot, use in all_uses(uses):
            if spot in self._temporary and not use.by_host:
                use.window = self._done + self._own(use.when)
            elif spot.base not in within and self._is_made(spot):
                maker = bisect_right(self._serials, spot.base) - 1  # type: ignore[reportArgumentType]
                if not use.by_host and (self._own(use.when) != maker).any():
                    raise DataAccessError(
                        f"a step of {STEPS} reads or writes `{use.name}` in `{use.kernel}`, which another step made",
                        use.loc,
                        "make it before the steps, and name it in state or in temporaries",
                    )
                made.add(spot.base)
        return within | made

    def _check_slots(self, spot: MemoryRegion, use: Use) -> None:
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
        if tensor is not None and slots is not None and not use.by_host:  # when Python writes, it may be between two steps
            self._check_step(spot, use, slots)

    def _check_step(self, spot: MemoryRegion, use: Use, slots: np.ndarray) -> None:
        """Refuse the slot of another step: in a shorter window it would be another one, or none."""
        own = np.array(self._slots)[self._own(use.when)]
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
        for effect in accesses_of(group.variant, "writes"):
            place = effect.place
            spot = spot_of(group.variant, call, place)
            if place.is_grad or place.buffer.kind == "arg_grad":
                raise DataAccessError(
                    f"a step of {STEPS} launches `{group.kernel.source.name}`, which writes the gradient `{place.name}`: run again, it"
                    " would do so twice",
                    effect.loc,
                    "write gradients outside of the steps, or in a function with a gradient of its own (grad_for)",
                )
            if spot is not None and not self._inside(spot):
                self.outside[spot] = Outside(*place_elements(group.variant, group.bound.call, place))

    def finish(self) -> None:
        """Check all launches.

        Raises:
            DataAccessError: a gradient would read what a later launch of its window overwrote, or the steps read what they write, in an
                array that is no part of the window; names the array and the line.
        """
        self._look()
        for seen in (self._reads, self._loads) if self._skips else ():
            seen.read_all(lambda spot: not self._inside(spot) and spot not in self._writes)
        reads, loads = self._reads.table(), self._loads.table()
        for spot, write in self._writes.uses(0):
            if self._inside(spot):
                continue
            read = next((found[0] for uses in (loads, reads) for _, found, _ in uses.overlapping(spot)), None)
            if read is not None:
                who = "Python" if write.kernel == "Python" else f"`{write.kernel}`"
                name = write.name or read.name
                raise DataAccessError(
                    f"{who} writes `{name}` in a step of {STEPS} and `{read.kernel}` reads it here: recomputed steps would read"
                    " values of later steps",
                    read.loc,
                    f"give `{name}` a first axis of slots, and name it in state (handed from step to step) or in scratch (within a step);"
                    " or name it in temporaries, without slots (within a step), or in in_place (updated by each step)",
                )

    def join(self, found: Overwrites, when: int) -> None:
        """Enter the accesses as those of one launch of the tape around the steps."""
        for seen, target in ((self._reads, found.reads), (self._writes, found.writes), (self._dropped, found.dropped)):
            for spot, use in seen.uses(when):
                if target is found.writes or spot not in self._temporary:
                    add_use(target, spot, use)
        for spot, use in self._loads.uses(when):
            if not self._inside(spot):
                add_use(found.reads, spot, use)
        found.variants += self._variants.values()


def program_arrays(program: Program) -> Iterator[Ndarray]:
    """The arrays that a program keeps for the values in between of its algorithms."""
    for each in program.scratch.values():
        yield from each if isinstance(each, list) else [each]


def cleared(window: Window, when: float) -> Iterator[tuple[MemoryRegion, Use]]:
    """The slots that every run of a window begins with clearing. Slot 0 of the state holds in the end what it held at first."""
    slots = np.arange(1, window.length + 1)
    at = np.full(slots.size, float(when))
    for tensor in window.state:
        for spot, ndim in tensor_regions(tensor):
            yield spot, Use(at, _slot_axes(tensor, slots, ndim), "", STEPS, None)
    for tensor in (*window.scratch, *window.temporaries):
        for spot, ndim in tensor_regions(tensor):
            yield spot, Use(at[:1], (None,) * ndim, "", STEPS, None)


def handed_over(window: Window) -> Iterable[tuple[MemoryRegion, Use]]:
    """The writes, before a window's launches, of what the window before left in slot 0 and in place."""
    for tensor in window.state:
        for spot, ndim in tensor_regions(tensor):
            yield spot, Use(np.array([-1.0]), _slot_axes(tensor, np.array([0]), ndim), "", STEPS, None)
    for tensor in window.in_place:
        for spot, ndim in tensor_regions(tensor):
            yield spot, Use(np.array([-1.0]), (None,) * ndim, "", STEPS, None)


def _slot_axis(tensor: Any) -> int:
    """The position of the slot's index in accesses; the indices of an ndarray are in memory order."""
    return tensor.layout.index(0) if isinstance(tensor, Ndarray) and tensor.layout is not None else 0


def _slot_axes(tensor: Any, slots: np.ndarray, ndim: int) -> tuple[np.ndarray | None, ...]:
    at = _slot_axis(tensor)
    return tuple(slots if k == at else None for k in range(ndim))


def add_writes(found: Overwrites, uses: Iterable[tuple[MemoryRegion, Use]]) -> None:
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
