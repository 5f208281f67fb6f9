"""Memory of the host while launches are recorded: what Python writes becomes a part of the sequence, and reads are refused.

It takes the place of a device's mirror (``runtime.mirror``), which host memory does not have: every read and write of a field or an ndarray
goes through the mirror if there is one. Other threads wait until the recording has ended.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.trials import TrialLayout
from ..mirror import Mirror
from ..recording import RecordedWrite, Unrecordable
from ..runs import Runs, numbers_of, order_of, runs_of, tile_of

if TYPE_CHECKING:
    from ..base import Allocation


class SequenceRecorder:
    """Records what Python writes in the thread that makes it: the link of ``RecordedMemory``, see ``mirror.Link``.

    Attributes:
        lock: see ``mirror.Link``; the thread that records holds it.
        wrote: called with each write.
        trials: those of a batched program.

    Args:
        lock: see above.
        wrote: see above.
        memories: that Python may write to.
        trials: see above.
        per_trial: the serial numbers of the memories that each trial has its own part of.
    """

    name = "a recorded graph"
    dlpack: tuple[int, int] | None = None
    stream = 0

    def __init__(
        self,
        lock: Any,
        wrote: Callable[[RecordedWrite], None],
        memories: Iterable[Allocation],
        trials: TrialLayout | None = None,
        per_trial: Container[int] = (),
    ) -> None:
        self.lock, self.wrote, self.trials = lock, wrote, trials
        self._thread = threading.get_ident()
        self._ended = False
        self._memories = [m for m in memories if m.nbytes and m.view.nbytes and m.mirror is None]
        for memory in self._memories:
            groups = trials.padded // trials.width if trials is not None and memory.serial in per_trial else 0
            memory.mirror = RecordedMemory(self, memory, memory.nbytes // groups if groups else 0)

    def end(self) -> None:
        """Nothing is recorded any more."""
        self._ended = True
        for memory in self._memories:
            memory.mirror = None

    def records(self) -> bool:
        """Whether it records what this thread does."""
        return not self._ended and self._thread == threading.get_ident()

    # ---- see ``mirror.Link``
    def launches(self) -> int:
        """Nothing is launched."""
        return 0

    def download(self, to: int, source: int, nbytes: int) -> None:
        """A read: of other threads, once the recording has ended."""
        if self.records():
            raise Unrecordable(
                "Python reads memory, which launches that are not run yet may write, while a graph is recorded\n"
                "  do: read after the graph was launched"
            )
        ctypes.memmove(to, source, nbytes)

    def upload(self, to: int, source: int, nbytes: int) -> None:
        """A write that does not go through ``RecordedMemory``: of other threads, once the recording has ended."""
        if self.records():
            raise Unrecordable("another library's memory is written while a graph is recorded\n  do: write it before")
        ctypes.memmove(to, source, nbytes)

    def memset(self, to: int, word: int, count: int, width: int) -> None:
        """Record a write of equal words."""
        data = np.full(count, word, f"u{width}")
        self.upload(to, data.ctypes.data, data.nbytes)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Record a copy from memory of the program."""
        self.upload(to, source, nbytes)

    def download_rows(self, to: int, parts: Sequence[tuple[int, Runs]]) -> None:
        for source, runs in parts:
            for k in range(runs.rows):
                self.download(to + k * runs.nbytes, source + k * runs.step, runs.nbytes)
            to += runs.rows * runs.nbytes

    def upload_rows(self, to: int, source: int, runs: Runs) -> None:
        """A write of bytes that are there now."""
        for k in range(runs.rows):
            self.upload(to + k * runs.step, source + k * runs.nbytes, runs.nbytes)

    def fill_rows(self, to: int, row: bytes, runs: Runs) -> bool:
        """Left to ``upload_rows``."""
        return False

    def join(self) -> None:
        """Another library gets memory: what it does then is no part of the sequence."""

    def settle(self, stream: int = 0) -> None:
        """Nothing runs."""

    def arrived(self) -> None:
        """Nothing has run."""


class RecordedMemory(Mirror):
    """An allocation of the host while a recorder is at work.

    ``group``: bytes of a group of trials; 0: trials share it, or there are none.
    """

    def __init__(self, recorder: SequenceRecorder, memory: Allocation, group: int = 0) -> None:
        super().__init__(recorder, memory.ptr, memory.view, current=False)
        self._recorder, self._group = recorder, group

    @contextmanager
    def writing(self, array: np.ndarray) -> Iterator[np.ndarray]:
        """See ``Mirror``: writes to the returned array become part of the sequence."""
        with self.link.lock:
            if not self._recorder.records():
                yield array
                return
            content = np.zeros(array.shape, array.dtype)
            yield content
            self.assign(array, content)

    def assign(self, array: np.ndarray, source: np.ndarray) -> None:
        with self.link.lock:
            if not self._recorder.records():
                array[...] = source
                return
            content, one = np.empty(array.shape, array.dtype), self._one(array)
            content[...] = source
            order = order_of(one)
            if not self._group:
                self._record(array, content.transpose(order).tobytes())
                return
            groups = [group.transpose(order).tobytes() for group in content]
            if len(set(groups)) == 1:
                self._record(array, groups[0], all(lane.tobytes() == content[0, 0].tobytes() for lane in content[0]))
            else:
                self._record(array, b"".join(groups))

    def fill(self, array: np.ndarray, value: np.ndarray) -> None:
        with self.link.lock:
            if not self._recorder.records():
                array[...] = value
                return
            one, number = self._one(array), np.asarray(value)
            tile = tile_of(one, number)
            if runs_of(one) is None and (parts := numbers_of(array, number, 2 if self._group else 0)) is not None:
                for part, content in parts:
                    self._record(part, content, bool(self._group))
            elif tile is None:
                self.assign(array, np.broadcast_to(value, array.shape))
            else:
                self._record(array, tile, bool(self._group) and np.ndim(value) + 2 <= array.ndim)

    def copy_from(self, array: np.ndarray, other: Mirror | None, source: np.ndarray) -> None:
        with self.link.lock:
            same = array.dtype == source.dtype and array.shape == source.shape
            if not self._recorder.records() or not same or not isinstance(other, RecordedMemory):
                self.assign(array, source if other is None else other.read(source))
                return
            to, start = self._one(array), other._one(source)
            (rows, step, nbytes), (count, stride, bytes_there) = _runs(to), _runs(start)
            run = min(nbytes, bytes_there)  # one of them may lie without gaps, as one run
            if nbytes > run and rows == 1:
                rows, step = nbytes // run, run
            elif bytes_there > run and count == 1:
                count, stride = bytes_there // run, run
            if rows != count or order_of(to) != order_of(start) or array.size == 0 or bool(self._group) != bool(other._group):
                self.assign(array, other.read(source))
                return
            self._recorder.wrote(
                RecordedWrite(
                    self.device_address(array),
                    Runs(rows, step, run),
                    group=self._group,
                    source=(other.device_address(source), stride, other._group),
                )
            )

    def _one(self, array: np.ndarray) -> np.ndarray:
        """The written part of one group of trials, or all of it in a program that is not batched.

        Raises:
            Unrecordable: it is no array of all trials.
        """
        trials = self._recorder.trials
        if trials is None:
            return array
        groups = trials.padded // trials.width
        steps = self._group, array.itemsize
        if not self._group or array.shape[:2] != (groups, trials.width) or array.strides[:2] != steps:
            raise Unrecordable(
                "Python writes to memory that all trials share, while a graph of a batched program is recorded: trials run in sequence"
                " in it\n  do: write it before, or let each trial have its own (per_trial=True)"
            )
        return array[0]

    def _record(self, array: np.ndarray, content: bytes, same: bool = False) -> None:
        """``same``: for all trials of a batch."""
        if array.size == 0:
            return
        runs = _runs(self._one(array))
        self._recorder.wrote(RecordedWrite(self.device_address(array), runs, content, self._group, same))


def _runs(array: np.ndarray) -> Runs:
    """An array in memory as equal runs of bytes.

    Raises:
        Unrecordable: its elements have several distances from each other.
    """
    found = runs_of(array)
    if found is None:
        raise Unrecordable(
            "Python writes to a field that has others between its elements in memory, while a graph is recorded\n"
            "  do: write it in a kernel, or place it by itself"
        )
    return found
