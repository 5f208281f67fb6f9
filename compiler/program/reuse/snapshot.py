"""What the memory of a program holds at one moment, to be put back later: fields, ndarrays, their gradients and duals, random numbers.

What nobody has written by then holds zeros, and is put back by writing zeros. Of the rest a copy lies on the host, where no plan counts it,
up to ``MOST_COPIED`` bytes. What is larger is not copied: it is there still if nobody has written to it since, which its version tells;
else it cannot be put back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...runtime.base import Allocation
from ...runtime.mirror import clear, copied, store
from ..layout.tree import TreeLeaf
from ..memory.memory_regions import EXTERNAL, PlacedArray, memory_base, memory_of

if TYPE_CHECKING:
    from ..executable import Executable
    from ..state import ProgramState

MOST_COPIED = 1 << 26
"""Bytes of the host that the copies of one program take at most."""

Range = tuple[int, int]
"""Bytes of an allocation: the first, and one after the last."""


@dataclass
class _Part:
    """A run of bytes of an allocation that whole tensors lie in, interleaved perhaps, and those tensors."""

    first: int
    end: int
    tensors: list[TreeLeaf | PlacedArray]


@dataclass
class _Kept:
    """An allocation in which something was written.

    Attributes:
        copies: bytes with their content.
        watched: bytes that are not copied.
        versions: of the fields in these, with what they were.
        unknown: something else lies there, too, whose versions nobody knows.
    """

    copies: list[tuple[Range, np.ndarray]] = field(default_factory=list)
    watched: list[Range] = field(default_factory=list)
    versions: list[tuple[TreeLeaf, int]] = field(default_factory=list)
    unknown: bool = False


@dataclass(frozen=True)
class _Plan:
    """How one allocation is put back: bytes that get zeros, bytes that get their copy, and what ``DataVersions`` knows that as."""

    memory: Allocation
    zeros: tuple[Range, ...]
    copies: tuple[tuple[Range, np.ndarray], ...]
    writes: tuple[ctypes.c_int64, ...]


class Content:
    """The content of a program's memory now. Tensors that have no memory yet hold zeros.

    Args:
        program: no kernel runs in it.
        kernels: gives those that are compiled for it.

    Attributes:
        why: why it could not be put back; empty as long as it could.
    """

    def __init__(self, program: ProgramState, kernels: Callable[[], Sequence[Executable]]) -> None:
        self.why = ""
        self._program, self._kernels = program, kernels
        self._random = program.launches, program.last_seed, program.replay_seed
        self._fields = frozenset(program.root.fields())
        self._ndarrays = frozenset(a._memory.serial for a in program.ndarrays)
        self._kept: dict[int, _Kept] = {}
        self._room = MOST_COPIED
        self._plans: tuple[frozenset[int], list[_Plan]] = frozenset(), []
        anything = bool(kernels())  # one that was launched has written what nobody has counted: gradients, arguments
        for memory, parts in _memory_of(program):
            written = [p for p in parts if anything or program.was_shown(memory) or any(map(self._written, p.tensors))]
            if written:
                self._kept[memory.serial] = kept = _Kept()
                for part in sorted(written, key=lambda p: p.end - p.first):
                    self._keep(kept, memory, part)

    def _written(self, tensor: TreeLeaf | PlacedArray) -> bool:
        """Whether Python has written to it."""
        counts = self._program.data.from_python
        found = (counts.get(key) for key in (memory_base(memory_of(tensor)), *_writes_to(tensor)))
        return any(count is not None and count.value for count in found)

    def _keep(self, kept: _Kept, memory: Allocation, part: _Part) -> None:
        """Copy a part if there is room for it."""
        where, size = (part.first, part.end), part.end - part.first
        if size <= self._room:
            self._room -= size
            kept.copies.append((where, copied(memory.mirror, memory.view[part.first : part.end])))
            return
        kept.watched.append(where)
        for tensor in part.tensors:
            if isinstance(tensor, TreeLeaf) and not tensor.role:
                kept.versions.append((tensor, self._version(tensor)))
            else:  # launches count what they store to fields themselves alone
                kept.unknown = True

    def _version(self, tensor: TreeLeaf) -> int:
        """Never the same again once it was written to, unless its memory was handed out."""
        base, counters = memory_base(memory_of(tensor)), self._program.data.counters
        return sum(counter.value for place in tensor._places for counter in counters(base, place.offset))

    def put_back(self) -> bool:
        """Make the memory hold it again, and random numbers begin where they did.

        Returns:
            Whether that is possible. Else nothing has changed: tensors were made or freed since, memory of others is in use, something
            records launches, or a part that was not copied was written to.
        """
        program, kernels = self._program, self._kernels()
        with program.alone():
            plans = self._known_plans()
            self.why = self._refusal(kernels, plans)
            if plans is None or self.why:
                return False
            for plan in plans:
                self._apply(plan)
        program.launches, program.last_seed, program.replay_seed = self._random
        for kernel in kernels:
            kernel.last_seed = None
        return True

    def _refusal(self, kernels: Iterable[Executable], plans: list[_Plan] | None) -> str:
        program = self._program
        if program.closed or program.device.dead or program.records():
            return "the program is closed, or something in it is open that records launches"
        if self._lends(kernels):
            return "kernels use memory of other libraries, whose content nobody looks after"
        if plans is None:
            return "fields or ndarrays were made or freed since `build`"
        if not all(map(self._untouched, self._kept.values())):
            what = f"copies of what `build` has written take at most {MOST_COPIED:,} bytes"
            return f"{what}, and a larger part was written to since, or nobody counts the writes to it"
        return ""

    def _lends(self, kernels: Iterable[Executable]) -> bool:
        """Whether the program's kernels know memory of others, whose content is theirs."""
        if any(array._memory.category == EXTERNAL for array in self._program.ndarrays):
            return True
        return any(m.category == EXTERNAL for kernel in kernels for m in kernel.owners.values())

    def _untouched(self, kept: _Kept) -> bool:
        shown = self._program.was_shown
        return not kept.unknown and all(self._version(f) == was and not shown(memory_of(f)) for f, was in kept.versions)

    def _known_plans(self) -> list[_Plan] | None:
        """How each allocation is put back; None where tensors have come or gone."""
        program = self._program
        fields, ndarrays = program.root.fields(), frozenset(a._memory.serial for a in program.ndarrays)
        if len(fields) != len(self._fields) or not self._fields.issuperset(fields) or ndarrays != self._ndarrays:
            return None
        serials = frozenset(memory_of(f).serial for f in fields if f._view is not None) | ndarrays
        if self._plans[0] != serials or not self._plans[1]:
            self._plans = serials, [self._plan(memory, parts) for memory, parts in _memory_of(program)]
        return self._plans[1]

    def _plan(self, memory: Allocation, parts: list[_Part]) -> _Plan:
        kept = self._kept.get(memory.serial, _Kept())
        stays = sorted([*(where for where, _ in kept.copies), *kept.watched])
        writes = [
            self._program.data.writes(w)
            for p in parts
            if (p.first, p.end) not in kept.watched
            for t in p.tensors
            for w in _writes_to(t)
        ]
        return _Plan(memory, tuple(_around(stays, memory.nbytes)), tuple(kept.copies), tuple(writes))

    def _apply(self, plan: _Plan) -> None:
        memory = plan.memory
        for count in plan.writes:
            count.value += 1
        clear((memory.mirror, memory.view[first:end]) for first, end in plan.zeros)
        for (first, end), content in plan.copies:
            store(memory.mirror, memory.view[first:end], content)


def _memory_of(program: ProgramState) -> list[tuple[Allocation, list[_Part]]]:
    """The allocations that tensors lie in, and the parts of each in rising order."""
    found: dict[int, tuple[Allocation, list[_Part]]] = {}
    placed = [f for f in program.root.fields() if f._view is not None]
    for tensor in (*placed, *program.ndarrays):
        memory = memory_of(tensor)
        if memory.nbytes and memory.category != EXTERNAL:
            first, end = _bounds(tensor, memory)
            found.setdefault(memory.serial, (memory, []))[1].append(_Part(first, end, [tensor]))
    return [(memory, _joined(parts)) for memory, parts in found.values()]


def _joined(parts: Iterable[_Part]) -> list[_Part]:
    """Parts that overlap as one."""
    out: list[_Part] = []
    for part in sorted(parts, key=lambda p: p.first):
        if out and part.first < out[-1].end:
            out[-1].end = max(out[-1].end, part.end)
            out[-1].tensors += part.tensors
        else:
            out.append(part)
    return out


def _bounds(tensor: TreeLeaf | PlacedArray, memory: Allocation) -> Range:
    view = tensor._view
    assert view is not None
    first = view.__array_interface__["data"][0] - memory.view.__array_interface__["data"][0]
    return first, first + sum((n - 1) * step for n, step in zip(view.shape, view.strides)) + view.itemsize


def _around(ranges: Iterable[Range], end: int) -> list[Range]:
    """What is left of the bytes up to ``end`` without these ranges, which rise and do not overlap."""
    out, at = [], 0
    for first, last in ranges:
        if at < first:
            out.append((at, first))
        at = last
    return [*out, (at, end)] if at < end else out


def _writes_to(tensor: TreeLeaf | PlacedArray) -> list[object]:
    """What the writes of Python to it are counted under, see ``DataVersions``."""
    base = memory_base(memory_of(tensor))
    return [(base, place.offset) for place in tensor._places] if isinstance(tensor, TreeLeaf) else [base]
