"""Memory of the host while launches are recorded: what Python writes becomes a part of the sequence, and reads are refused.

It takes the place of a device's mirror (``runtime.mirror``), which host memory has none of: whoever reads or writes a field or an ndarray
goes through the mirror where there is one. Other threads wait until the recording has ended, and then do what they were about to.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ..mirror import Mirror
from ..recording import Unrecordable
from ..runs import Runs, order_of, packed, runs_of, tile_of
from .sequence import SequenceMaker

if TYPE_CHECKING:
    from ..base import Allocation


class Recorder:
    """Records one sequence in the thread that makes it: the link of ``RecordedMemory``, see ``mirror.Link``.

    Attributes:
        lock: see ``mirror.Link``; the thread that records holds it.
        maker: the sequence.
    """

    dlpack: tuple[int, int] | None = None
    stream = 0

    def __init__(self, lock: Any, memories: Iterable[Allocation]) -> None:
        self.lock, self.maker = lock, SequenceMaker()
        self._thread = threading.get_ident()
        self._ended = False
        self._memories = [m for m in memories if m.nbytes and m.view.nbytes and m.mirror is None]
        self._expected: list[tuple[int, int, str]] = []
        for memory in self._memories:
            memory.mirror = RecordedMemory(self, memory)

    def end(self) -> None:
        """Nothing is recorded any more."""
        self._ended = True
        for memory in self._memories:
            memory.mirror = None

    def records(self) -> bool:
        """Whether it records what this thread does."""
        return not self._ended and self._thread == threading.get_ident()

    # ---- writes that go past the recorder
    def expect(self, form: np.ndarray, name: str) -> None:
        """Python is about to write to an array."""
        low, high = np.lib.array_utils.byte_bounds(form)
        self._expected.append((low, high, name))

    def settled(self) -> None:
        """All that was about to be written was recorded.

        Raises:
            Unrecordable: somebody has kept an element from before, and has written to it.
        """
        if self._expected:
            name = self._expected[0][2]
            raise Unrecordable(
                f"Python has written to `{name}` through an element, or a view, that it had before the recording, while a graph is"
                " recorded\n  do: write to the field itself, as in x[i] = ..; what was written is in the field"
            )

    def wrote(self, low: int, high: int) -> None:
        """Bytes are written by the sequence."""
        self._expected = [e for e in self._expected if e[1] <= low or high <= e[0]]

    # ---- see ``mirror.Link``
    def launches(self) -> int:
        """What is recorded so far."""
        return len(self.maker)

    def download(self, to: int, source: int, nbytes: int) -> None:
        """A read: of other threads, once the recording has ended."""
        if self.records():
            raise Unrecordable(
                "Python reads memory, which launches that are not run yet may write, while a graph is recorded\n"
                "  do: read after the graph was launched"
            )
        ctypes.memmove(to, source, nbytes)

    def upload(self, to: int, source: int, nbytes: int) -> None:
        """A write of bytes that are there now."""
        if self.records():
            self.wrote(to, to + nbytes)
            self.maker.write(to, nbytes, ctypes.string_at(source, nbytes))
        else:
            ctypes.memmove(to, source, nbytes)

    def memset(self, to: int, word: int, count: int, width: int) -> None:
        """A write of equal words."""
        data = np.full(count, word, f"u{width}")
        self.upload(to, data.ctypes.data, data.nbytes)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """A copy of what is there then."""
        if self.records():
            self.wrote(to, to + nbytes)
            self.maker.copy(to, source, nbytes)
        else:
            ctypes.memmove(to, source, nbytes)

    def download_rows(self, to: int, source: int, runs: Runs) -> None:
        """A read."""
        for k in range(runs.rows):
            self.download(to + k * runs.nbytes, source + k * runs.step, runs.nbytes)

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
    """An allocation of the host while a recorder is at work."""

    def __init__(self, recorder: Recorder, memory: Allocation) -> None:
        super().__init__(recorder, memory.ptr, memory.view, current=False)
        self._recorder = recorder

    @contextmanager
    def writing(self, array: np.ndarray) -> Iterator[np.ndarray]:
        """See ``Mirror``: what is written to the array that this gives is a part of the sequence."""
        with self.link.lock:
            if not self._recorder.records():
                yield array
                return
            content = np.empty(array.shape, array.dtype)
            yield content
            self.assign(array, content)

    def assign(self, array: np.ndarray, source: np.ndarray) -> None:
        """See ``Mirror``."""
        with self.link.lock:
            if self._recorder.records():
                self._record(array, packed(source, array).tobytes())
            else:
                array[...] = source

    def fill(self, array: np.ndarray, value: np.ndarray) -> None:
        """See ``Mirror``."""
        with self.link.lock:
            if not self._recorder.records():
                array[...] = value
                return
            tile = tile_of(array, np.asarray(value))
            if tile is None:
                self.assign(array, np.broadcast_to(value, array.shape))
            else:
                self._record(array, tile)

    def copy_from(self, array: np.ndarray, other: Mirror | None, source: np.ndarray) -> None:
        """See ``Mirror``."""
        with self.link.lock:
            same = array.dtype == source.dtype and array.shape == source.shape and order_of(array) == order_of(source)
            if not self._recorder.records() or other is None or not same:
                self.assign(array, source if other is None else other.read(source))
                return
            (rows, step, nbytes), (count, stride, bytes_there) = _runs(array), _runs(source)
            run = min(nbytes, bytes_there)  # one of them may lie without gaps, as one run
            if nbytes > run and rows == 1:
                rows, step = nbytes // run, run
            elif bytes_there > run and count == 1:
                count, stride = bytes_there // run, run
            if rows != count or array.size == 0:
                self.assign(array, other.read(source))
                return
            first = self.device_address(array)
            self._recorder.wrote(first, first + (rows - 1) * step + run)
            self._recorder.maker.copy(first, other.device_address(source), run, rows, step, stride)

    def _record(self, array: np.ndarray, content: bytes) -> None:
        if array.size == 0:
            return
        rows, step, nbytes = _runs(array)
        first = self.device_address(array)
        self._recorder.wrote(first, first + (rows - 1) * step + nbytes)
        self._recorder.maker.write(first, nbytes, content, rows, step)


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
