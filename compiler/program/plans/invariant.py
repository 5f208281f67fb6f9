"""Finds the launches of a recorded batch that compute the same for every trial: they run once for a batch.

A launch is *invariant* if what it reads is the same in all trials, and so is what it writes then. Python code decides what is launched, so
only fields, random numbers, failures and numbers per trial can make a difference. The first group of trials runs invariant launches before
all others, and each group begins with a copy of what they have written. That gives what the recorded order gives, if

- each field that they use is first filled, with the same content for all trials, and by nothing else after that but invariant launches;
- no other launch has read an element before an invariant launch writes to it (a field that each step overwrites is not moved).

All launches of a kernel are invariant, or none: a launch that cannot be moved leaves the others of its kernel where they are, too. Adjoints
are those of single trials, so gradients are never moved; they read what was copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.byte_bounds import byte_bounds
from ...ir.nodes import Buffer, Op, Place
from ...ir.walk import index_of, place_of, task_blocks
from ...passes.dependence.argument_forms import Form, forms
from ...runtime.recording import ALL_TRIALS, RecordedLaunch, RecordedWrite, RunOnce, SharedPart
from ..call import Call
from ..memory.data_versions import Stored, stored_keys
from ..memory.memory_regions import memory_base, memory_of

if TYPE_CHECKING:
    from ..recording import Launchable, Recording

_KINDS = ("field", "arg", "tmp")
"""The kinds of memory that an invariant launch may use; its arguments are shared by all trials."""


@dataclass(frozen=True)
class Invariant:
    """The invariant launches of a recording.

    Attributes:
        once: for the device.
        kernels: how many launches of each kernel run once, by name.
        assumes: the fields of ``TrialBatch.same`` that these launches read.
    """

    once: RunOnce = ALL_TRIALS
    kernels: Mapping[str, int] = field(default_factory=dict)
    assumes: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class _Access:
    key: Stored | None  # None: of an argument, or of the launch itself
    place: Place
    index: tuple[Form | None, ...]
    loads: bool
    stores: bool

    def region(self, call: Call) -> tuple[int | slice, ...]:
        """The elements that it may touch in one launch."""
        assert self.place.shape is not None
        found: list[int | slice] = []
        for form, extent in zip(self.index, self.place.shape):
            at = -1 if form is None else form.value(call)
            found.append(at if 0 <= at < extent else slice(None))
        return tuple(found)


def find_invariant(program: Any, recording: Recording) -> Invariant:
    """The invariant launches of a recording, which has ended. ``TrialBatch.same`` tells which fields are the same in all trials."""
    layout = program.batch.layout
    if layout.padded == layout.width or not recording.launches:
        return Invariant()
    return _Search(program, recording).found()


class _Search:
    """Drops what is not invariant, until nothing is left to drop."""

    def __init__(self, program: Any, recording: Recording) -> None:
        steps = list(enumerate(recording.steps))
        self._writes = writes = [(k, step) for k, step in steps if isinstance(step, RecordedWrite)]
        self._launches = [(k, step) for k, step in steps if isinstance(step, RecordedLaunch)]
        self._accesses: dict[Launchable, list[_Access]] = {}
        gradients = {gradient for gradient, *_ in recording.gradients}
        every = dict.fromkeys(launch.executable for _, launch in self._launches)
        self._stored = {e: {(memory_base(e.owners[b]), offset) for b, offset in e.lazy.stores} for e in every}
        self._kernels = {e for e in every if e not in gradients and _may_be(e)}
        mine = [f for f in program.root.fields() if not f.role and f.per_trial]
        begin = min(k for k, _ in self._launches)
        self._parts: dict[Stored, SharedPart] = {}
        for tensor in mine:
            part = _part(tensor)
            if part is not None and _filled(part, writes, begin):
                self._parts |= dict.fromkeys(stored_keys(tensor), part)
        touched = set().union(*self._stored.values()) if self._stored else set[Stored]()
        self._same: dict[Stored, Any] = {}
        for tensor in program.batch.same:
            part = _part(tensor)
            if (
                touched.isdisjoint(stored_keys(tensor))
                and part is not None
                and not any(part.meets(write) for _, write in writes)
            ):
                self._same |= dict.fromkeys(stored_keys(tensor), tensor)

    def found(self) -> Invariant:
        """What is left."""
        while self._kernels and (self._drop_by_places() or self._drop_by_order()):
            pass
        if not self._kernels:
            return Invariant()
        launches = [(k, launch.executable) for k, launch in self._launches if launch.executable in self._kernels]
        used = {a.key for e in self._kernels for a in self._of(e)}
        parts = tuple(sorted({p for key, p in self._parts.items() if key in used}, key=lambda part: part.address))
        assumes = {id(x): x for key, x in self._same.items() if key in used}
        writes = [k for k, write in self._writes if any(part.meets(write) for part in parts)]
        once = RunOnce(frozenset([*writes, *(k for k, _ in launches)]), parts)
        return Invariant(once, Counter(e.name for _, e in launches), tuple(assumes.values()))

    def _drop_by_places(self) -> bool:
        """Drop kernels that read or write a place that others write, or that is not known to be the same in all trials."""
        varying = set().union(*(found for e, found in self._stored.items() if e not in self._kernels))
        parts = self._whole_parts(varying)
        found = {e for e in self._kernels if not self._stored[e] <= parts.keys()}
        for e in self._kernels - found:  # whose accesses take longer to find
            for a in self._of(e):
                fixed = not a.place.per_trial or a.key in self._same or a.key in parts
                if not fixed or a.place.buffer.kind not in _KINDS:
                    found.add(e)
        self._kernels -= found
        return bool(found)

    def _whole_parts(self, varying: Collection[Stored]) -> dict[Stored, SharedPart]:
        """The filled memory of which no component varies."""
        mixed = {self._parts[key] for key in varying if key in self._parts}
        return {key: part for key, part in self._parts.items() if part not in mixed}

    def _drop_by_order(self) -> bool:
        """Drop a kernel that writes to an element after another launch may have read it."""
        moved = {key for e in self._kernels for key in self._stored[e]}
        seen: dict[Stored, np.ndarray] = {}
        for _, launch in self._launches:
            stays = launch.executable not in self._kernels
            for a in self._of(launch.executable):
                if a.key not in moved or not (a.loads if stays else a.stores):
                    continue
                assert a.key is not None
                if a.key not in seen:
                    seen[a.key] = np.zeros(a.place.shape or (), bool)
                region = a.region(launch.call)
                if stays:
                    seen[a.key][region] = True
                elif seen[a.key][region].any():
                    self._kernels.discard(launch.executable)
                    return True
        return False

    def _of(self, executable: Launchable) -> list[_Access]:
        if executable not in self._accesses:
            self._accesses[executable] = list(_accesses(executable))
        return self._accesses[executable]


def _may_be(executable: Launchable) -> bool:
    """Whether all launches of a kernel with the same memory behave alike: none fails, draws, or is given numbers per trial."""
    lazy = executable.lazy
    if executable.draws or executable.returns or executable.compiled.messages or lazy.written or not lazy.kernel.tasks:
        return False
    return not any(d.per_trial for d in lazy.head.args)


def _accesses(executable: Launchable) -> Iterable[_Access]:
    """Each load and store of a kernel."""
    owners = executable.owners
    for task in executable.lazy.kernel.tasks:
        for s in task_blocks(task):
            place = place_of(s)
            if place is not None:
                atomic = isinstance(s, Op) and s.op == "atomic"
                loads = isinstance(s, Op)
                yield _Access(_key(place, owners), place, forms(index_of(s)), loads, atomic or not loads)
        for r in task.reductions:
            yield _Access(_key(r.place, owners), r.place, forms(r.index), True, True)


def _key(place: Place, owners: Mapping[Buffer, Any]) -> Stored | None:
    return (memory_base(owners[place.buffer]), place.offset) if place.buffer.kind == "field" else None


def _part(tensor: Any) -> SharedPart | None:
    """The memory of a field; None: other fields lie between its elements."""
    memory, whole = memory_of(tensor), tensor._all
    if not whole.size:
        return None
    low, high = byte_bounds(whole[0])
    if high - low != whole[0].nbytes:
        return None
    address = memory.ptr + low - memory.view.ctypes.data
    return SharedPart(address, whole[0].nbytes, whole.itemsize, whole.strides[0])


def _filled(part: SharedPart, writes: Sequence[tuple[int, RecordedWrite]], begin: int) -> bool:
    """Whether all of it is filled before step ``begin``, with the same content for all trials, and never again."""
    end = part.address
    for k, write in sorted((x for x in writes if part.meets(x[1])), key=lambda x: x[1].to):
        if not (write.is_uniform and k < begin and part.holds(write)) or write.to > end:
            return False
        end = max(end, next(write.spans)[1])
    return end == part.address + part.nbytes
