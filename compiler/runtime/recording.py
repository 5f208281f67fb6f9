"""The steps of a graph: launches, and what Python writes between them. A program records them, and a device makes a graph of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import QdrunRuntimeError
from .compiled import Compiled
from .runs import Runs


class Unrecordable(QdrunRuntimeError):
    """An operation cannot be part of the graph that is being recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedLaunch:
    """A launch of a graph.

    Attributes:
        executable: the kernel in its program.
        compiled: its code.
        call: the arguments.
        words: of the arguments; the first one is the context's.
        context: the launch context as it was then. Launches that find the same there share it.
        plan: of a gradient.
        seed: the number of the seed of its random numbers, among those of the graph; None: it draws none.
        place: what tells an error where a launch is in a tape, and its number; None: no tape recorded it.
    """

    executable: Any
    compiled: Compiled
    call: Any
    words: bytes
    context: np.ndarray
    plan: Any = None
    seed: int | None = None
    place: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class RecordedWrite:
    """What Python writes to equal runs of bytes; in a batched program, to those of each group of trials.

    Attributes:
        to: the address of the first run, in the first group.
        runs: those of a group.
        content: of all runs, or bytes that repeat in each of them; of one group, or of all groups, one after another.
        group: bytes from one group to the next.
        same: all trials are given the same.
        size: bytes of an element.
        source: of a copy, in place of the content: an address, bytes from one run to the next, and from one group to the next.
    """

    to: int
    runs: Runs
    content: bytes = b""
    group: int = 0
    same: bool = False
    size: int = 1
    source: tuple[int, int, int] | None = None

    @property
    def spans(self) -> Iterator[tuple[int, int]]:
        """In the first group: the first byte that it writes, and the one after the last; then those that it copies."""
        rows, step, nbytes = self.runs
        yield self.to, self.to + (rows - 1) * step + nbytes
        if self.source is not None:
            begin, step, _ = self.source
            yield begin, begin + (rows - 1) * step + nbytes

    @property
    def is_uniform(self) -> bool:
        """Whether it writes each byte of its first span, and the same content to every trial."""
        return self.same and (self.runs.rows == 1 or self.runs.step == self.runs.nbytes)


Steps = Sequence[RecordedLaunch | RecordedWrite]
"""The steps of a graph, in their order."""


@dataclass(frozen=True, slots=True)
class SharedPart:
    """Memory that each trial has its own of, and whose content is the same in all trials of a batch.

    Attributes:
        address: in the first group of trials.
        nbytes: of a group; all of them belong to it.
        size: bytes of an element.
        group: bytes from one group of trials to the next.
    """

    address: int
    nbytes: int
    size: int
    group: int

    def holds(self, write: RecordedWrite) -> bool:
        """Whether a write writes nothing else."""
        begin, end = next(write.spans)
        return self.address <= begin and end <= self.address + self.nbytes

    def meets(self, write: RecordedWrite) -> bool:
        """Whether a write touches some of it."""
        return any(begin < self.address + self.nbytes and self.address < end for begin, end in write.spans)


@dataclass(frozen=True, slots=True)
class RunOnce:
    """Steps of a graph that the first group of trials runs for all of them, before the others begin.

    Attributes:
        steps: the numbers of launches, and of the writes of Python to ``parts``.
        parts: memory that they fill, read or write; other groups copy it.
    """

    steps: frozenset[int] = frozenset()
    parts: tuple[SharedPart, ...] = ()

    def divide(self, steps: Steps) -> tuple[Steps, Steps]:
        """The steps that the first group runs before; those of each group, which begin with copies of the parts."""
        first = [step for k, step in enumerate(steps) if k in self.steps]
        copies = [
            RecordedWrite(p.address, Runs(1, 0, p.nbytes), group=p.group, size=p.size, source=(p.address, 0, 0))
            for p in self.parts
        ]
        return first, [*copies, *(step for k, step in enumerate(steps) if k not in self.steps)]


ALL_TRIALS = RunOnce()
"""Every step runs for each trial."""
