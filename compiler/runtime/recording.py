"""The protocol of launches, copies and allocations during the recording of a graph."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import QdrunRuntimeError


class Unrecordable(QdrunRuntimeError):
    """An operation cannot be part of the graph that is being recorded."""


@dataclass(frozen=True, slots=True)
class RecordedWrite:
    """A write or a copy of Python in recorded launches of a batched program.

    Attributes:
        rows: its places among the recorded launches and writes.
        begin, end: the addresses, in the first group of trials, of the first byte that it touches and of the one after the last.
        same: it writes each byte between them, and the same content to every trial.
    """

    rows: range
    begin: int
    end: int
    same: bool


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
        """Whether a write touches nothing else."""
        return self.address <= write.begin and write.end <= self.address + self.nbytes

    def meets(self, write: RecordedWrite) -> bool:
        """Whether a write touches some of it."""
        return write.begin < self.address + self.nbytes and self.address < write.end


@dataclass(frozen=True, slots=True)
class RunOnce:
    """Rows of a recorded sequence that the first group of trials runs for all of them, before the others begin.

    Attributes:
        rows: launches, and the writes of Python to ``parts``.
        parts: memory that they fill, read or write; other groups copy it.
    """

    rows: frozenset[int] = frozenset()
    parts: tuple[SharedPart, ...] = ()


ALL_TRIALS = RunOnce()
"""Every row runs for each trial."""
