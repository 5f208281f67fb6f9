"""Memory that the host cannot touch, and its copy on the host: fields and arrays of a device with memory of its own.

The rule: *the device's memory is the content, the mirror is a copy of it*. Every write of the host goes to the device at once. A block
of the mirror is current when no kernel was launched since it was last equal to the device's memory: ``Link.launches`` counts launches,
and a block remembers the count. A reader of the mirror requests its blocks first (``pull``). Nothing is kept back, so nothing must be
written before a launch, and launches need not know of mirrors.

Why it holds. The count moves after a launch is in the queue, and a block notes the count that it saw *before* its bytes were copied: a
launch that comes in between leaves a count that is too old, and the block is copied again. Copies and launches run in the order of one
queue. What the host does with a mirror, it does under the device's lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from ..ir.byte_bounds import byte_bounds
from .recording import Unrecordable
from .runs import Runs, elements_of, numbers_of, packed, runs_of, spans_of, tile_of, unpacked

SMALL = 1 << 16
"""A write of so many bytes keeps a current mirror current; a larger one goes to the device alone."""

ROW = 32
"""Runs of so many bytes are copied by themselves. Of shorter ones what lies between them is copied, too, unless that is a lot."""

PEEK_BYTES = 1 << 16
"""Bytes that take about as long to copy as it takes to ask for one element: a block that is read in single elements is copied as a whole
once as many elements were asked for as it has times this."""


class Link(Protocol):
    """The calls of a device that mirrors use. Addresses are plain integers.

    Attributes:
        lock: a reentrant lock.
        name: of the device, for messages.
        dlpack: type and number of the device in DLPack; None: other libraries cannot use its memory.
        stream: the queue's handle for other libraries.
    """

    lock: Any
    name: str
    dlpack: tuple[int, int] | None
    stream: int

    def launches(self) -> int:
        """Kernels launched so far: it moves after a launch is in the queue."""
        ...

    def download(self, to: int, source: int, nbytes: int) -> None:
        """Device to host, after all that is in the queue; it has ended on return."""
        ...

    def upload(self, to: int, source: int, nbytes: int) -> None:
        """Host to device, in the order of the queue; the host's bytes may change on return."""
        ...

    def memset(self, to: int, word: int, count: int, width: int) -> None:
        """``count`` words of 1, 2 or 4 bytes, in the order of the queue."""
        ...

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Device to device, in the order of the queue."""
        ...

    def download_rows(self, to: int, parts: Sequence[tuple[int, Runs]]) -> None:
        """As ``download``, of runs of bytes from several addresses. They come one after another."""
        ...

    def upload_rows(self, to: int, source: int, runs: Runs) -> None:
        """As ``upload``, to runs of bytes, which come one after another."""
        ...

    def fill_rows(self, to: int, row: bytes, runs: Runs) -> bool:
        """Write the same bytes to each run, in the order of the queue. False: too many values, nothing was written."""
        ...

    def join(self) -> None:
        """Memory is shared with another library: from now on the queue is ordered with the library's queue."""
        ...

    def settle(self, stream: int = 0) -> None:
        """Wait for all that was begun on the device, here and by other libraries that memory is shared with. ``stream``: one of theirs
        that is not in order with the default one.
        """
        ...

    def arrived(self) -> None:
        """The host has waited for the queue: raise what launches have reported."""
        ...


class Mirror:
    """The host's copy of one allocation, in blocks that are copied as a whole.

    Attributes:
        link: the device.
        ptr: the address of the device's memory.
        owner: keeps memory alive that is not ours.
        shared: other libraries have the device's memory: no block is ever current.
        recorder: while launches of a batch are recorded, of memory that each trial has its own part of: bytes of a group of trials, and
            what takes fills of all trials: the address of the first one's elements, which are the runs, that number, and their value.
        view: the bytes.
    """

    def __init__(self, link: Link, ptr: int, view: np.ndarray[Any, np.dtype[np.uint8]], *, current: bool = True) -> None:
        self.link, self.ptr, self.view, self.shared = link, ptr, view, False
        self.owner: object = None
        self.recorder: tuple[int, Callable[[int, Runs, int, bytes], None]] | None = None
        self._base, self._size = view.ctypes.data, view.nbytes
        self._starts, self._seen, self._peeks = [0], [link.launches() if current else -1], [0]
        self._used: list[int] = []

    def split(self, starts: Sequence[int], used: Sequence[int] = ()) -> None:
        """Make blocks; all are as current as the whole was.

        Args:
            starts: where they begin, in rising order from 0.
            used: bytes of each that hold something; the others are gaps.
        """
        self._starts, self._seen, self._peeks = list(starts), [self._seen[0]] * len(starts), [0] * len(starts)
        self._used = list(used)

    # ---- reading
    def pull(self, first: int = 0, end: int | None = None) -> None:
        """Make the blocks that hold bytes ``first`` to ``end`` current.

        Raises:
            QdrunRuntimeError: a launch that ended since then reports a failure.
        """
        end = self._size if end is None else end
        if first >= end:
            return
        with self.link.lock:
            if self.shared:
                self.link.settle()
            count = self.link.launches()
            blocks = range(self._block(first), self._block(end - 1) + 1)
            stale = [k for k in blocks if self.shared or self._seen[k] != count]
            for begin, last in spans_of(stale):
                low, high = self._starts[begin], self._end(last)
                self.link.download(self._base + low, self.ptr + low, high - low)
            for k in stale:
                self._seen[k], self._peeks[k] = count, 0
        if stale:
            self.link.arrived()

    def read(self, array: np.ndarray) -> np.ndarray:
        """A part of the mirror, current."""
        first, end, _ = self.bounds(array)
        self.pull(first, end)
        return array

    def peek(self, array: np.ndarray) -> np.ndarray:
        """A few bytes of the mirror, current; what lies around them need not be."""
        first, end, dense = self.bounds(array)
        if first >= end:
            return array
        with self.link.lock:
            k = self._block(first)
            if not dense or self.shared or self._block(end - 1) != k:
                return self.read(array)
            if self._seen[k] == self.link.launches():
                return array
            self._peeks[k] += 1
            if self._peeks[k] * PEEK_BYTES >= self._end(k) - self._starts[k]:
                return self.read(array)
            self.link.download(self._base + first, self.ptr + first, end - first)
        self.link.arrived()
        return array

    def copied(self, array: np.ndarray) -> np.ndarray:
        """The content of a part as an array of its own, row-major; it does not pass through the mirror if that is not current."""
        first, end, _ = self.bounds(array)
        runs = self._runs(array)
        if first >= end or not (array.flags.c_contiguous or runs):
            return np.array(self.read(array), order="C")
        out = np.empty(array.shape, array.dtype)
        with self.link.lock:
            count = self.link.launches()
            blocks = range(self._block(first), self._block(end - 1) + 1)
            if not self.shared and all(self._seen[k] == count for k in blocks):
                out[...] = array
                return out
            if self.shared:
                self.link.settle()
            if runs is None:
                self.link.download(out.ctypes.data, self.ptr + first, end - first)
            else:
                self.link.download_rows(out.ctypes.data, [(self.ptr + first, runs)])
                out = np.ascontiguousarray(unpacked(out, array))
        self.link.arrived()
        return out

    # ---- writing
    def writing(self, array: np.ndarray) -> AbstractContextManager[np.ndarray]:
        """A block of code that writes all of a part of the mirror; at its end the device has it."""
        return _Writing(self, array)

    def assign(self, array: np.ndarray, source: np.ndarray) -> None:
        """Write an array of the same shape to a part; values are cast."""
        first, end, dense = self.bounds(array)
        runs = self._runs(array)
        if runs is None and (not (dense and array.flags.c_contiguous) or end - first <= SMALL):
            with self.writing(array):
                array[...] = source
            return
        plain = np.ascontiguousarray(source, array.dtype) if runs is None else packed(source, array)
        with self.link.lock:
            self._begin_foreign()
            if runs is None:
                self.link.upload(self.ptr + first, plain.ctypes.data, plain.nbytes)
            else:
                self.link.upload_rows(self.ptr + first, plain.ctypes.data, runs)
            self.forget(first, end)

    def fill(self, array: np.ndarray, value: np.ndarray) -> None:
        """Write a number, or one element of ``array``'s last axes, everywhere in a part."""
        if self.recorder is not None:
            self._fill_trials(array, value)
            return
        first, end, dense = self.bounds(array)
        tile = tile_of(array, value) if dense else None
        if tile is None:
            try:
                self._fill_rows(array, value)
            except Unrecordable:  # a graph has fills, and nothing else
                if not self._fill_elements(array, value):
                    raise
            return
        with self.link.lock:
            count = self.link.launches()
            self._begin_foreign()
            self._fill(self.ptr + first, end - first, tile)
            if end - first <= SMALL:  # the mirror has it, too: an element that is read next needs no copy
                array[...] = value
                self._covered(first, end, count)
            else:
                self.forget(first, end)

    def _fill_trials(self, array: np.ndarray, value: np.ndarray) -> None:
        """Record that all trials get a number, or an element."""
        assert self.recorder is not None
        group, record = self.recorder
        batched = array.ndim >= 2 and array.strides[:2] == (group, array.itemsize)
        parts = numbers_of(array, value, 2) if batched and array.size else None
        if parts is None:
            raise Unrecordable(
                "Python writes to one trial, or to elements that lie at very many distances, while a graph is recorded\n"
                "  do: write before, or in a kernel"
            )
        for part, number in parts:
            runs = elements_of(part[0, 0])
            assert runs is not None
            record(self.device_address(part), runs, group, number)

    def _fill_rows(self, array: np.ndarray, value: np.ndarray) -> None:
        """As ``fill``, of an array that has others between its elements, or an element that is no tile."""
        (first, end, _), runs = self.bounds(array), self._runs(array)
        if runs is not None and value.ndim == 0:
            row = np.full(runs.nbytes // array.itemsize, value, array.dtype).tobytes()
            with self.link.lock:
                self._begin_foreign()
                if self.link.fill_rows(self.ptr + first, row, runs):
                    self.forget(first, end)
                    return
        self.assign(array, np.broadcast_to(value, array.shape))

    def _fill_elements(self, array: np.ndarray, value: np.ndarray) -> bool:
        """As ``fill``, by fills of single numbers at one distance. False: too many, nothing was written."""
        parts = numbers_of(array, value)
        with self.link.lock:
            self._begin_foreign()
            for part, number in parts or ():
                runs = elements_of(part)
                assert runs is not None
                self.link.fill_rows(self.device_address(part), number, runs)
            self.forget(*self.bounds(array)[:2])
        return parts is not None

    def clear(self, arrays: Sequence[np.ndarray]) -> None:
        """Write zeros to parts; where they fill blocks together, gaps aside, to all of these at once."""
        if self.recorder is not None:
            for array in arrays:
                self.fill(array, np.asarray(0))
            return
        of_blocks: dict[tuple[int, int], list[np.ndarray]] = {}
        for array in arrays:
            low, high, _ = self.bounds(array)
            of_blocks.setdefault((self._block(low), self._block(max(low, high - 1))), []).append(array)
        for (first, last), parts in of_blocks.items():
            if len(parts) > 1 and self._used and sum(a.nbytes for a in parts) == sum(self._used[first : last + 1]):
                whole = self.view[self._starts[first] : self._end(last)]
                self.fill(whole, np.asarray(0))
            else:
                for array in parts:
                    self.fill(array, np.asarray(0))

    def _fill(self, to: int, nbytes: int, tile: bytes) -> None:
        for width in (1, 2, 4):
            if len(tile) % width == 0 and tile == tile[:width] * (len(tile) // width):
                self.link.memset(to, int.from_bytes(tile[:width], "little"), nbytes // width, width)
                return
        done = min(nbytes, len(tile) * max(1, SMALL // len(tile)))
        chunk = np.frombuffer(tile * (done // len(tile)), np.uint8)
        self.link.upload(to, chunk.ctypes.data, done)
        while done < nbytes:  # each copy doubles what is there
            more = min(done, nbytes - done)
            self.link.copy(to + done, to, more)
            done += more

    def copy_from(self, array: np.ndarray, other: Mirror | None, source: np.ndarray) -> None:
        """Copy a part of another mirror (None: of the host's memory), of the same shape; within the device where both lie alike."""
        if other is None:
            self.assign(array, source)
            return
        (first, end, dense), (begin, _, packed) = self.bounds(array), other.bounds(source)
        alike = array.dtype == source.dtype and array.shape == source.shape and array.strides == source.strides
        if not (alike and dense and packed and other.link is self.link):
            self.assign(array, other.copied(source))
            return
        with self.link.lock:
            self._begin_foreign()
            self.link.copy(self.ptr + first, other.ptr + begin, end - first)
            self.forget(first, end)

    def overwrite(self, array: np.ndarray, source: int) -> None:
        """Copy memory of the device, at address ``source``, to a part that is row-major."""
        first, end, _ = self.bounds(array)
        with self.link.lock:
            self._begin_foreign()
            self.link.copy(self.ptr + first, source, end - first)
            self.forget(first, end)

    def forget(self, first: int = 0, end: int | None = None) -> None:
        """The device's memory was written past the mirror."""
        end = self._size if end is None else end
        if first < end:
            begin, last = self._block(first), self._block(end - 1)
            self._seen[begin : last + 1] = [-1] * (last + 1 - begin)

    # ---- inside
    def bounds(self, array: np.ndarray) -> tuple[int, int, bool]:
        """The bytes of a part of the mirror: first, one after the last, and whether all in between belong to it."""
        if array.size == 0:
            return 0, 0, True
        if array.flags.c_contiguous:
            first = array.__array_interface__["data"][0] - self._base
            return first, first + array.nbytes, True
        low, high = byte_bounds(array)
        return low - self._base, high - self._base, high - low == array.nbytes

    def _runs(self, array: np.ndarray) -> Runs | None:
        """The runs of a large array that has others between them, where they are worth a copy of rows."""
        first, end, dense = self.bounds(array)
        if dense or end - first <= SMALL:
            return None
        found = runs_of(array)
        worth = found is not None and (found.nbytes >= ROW or found.step >= 2 * ROW * found.nbytes)
        return found if worth else None

    def spread(self, array: np.ndarray) -> int:
        """Bytes that are copied when a part is read as a whole, unless they are current: those of its blocks."""
        first, end, _ = self.bounds(array)
        return 0 if first >= end else self._end(self._block(end - 1)) - self._starts[self._block(first)]

    def device_address(self, array: np.ndarray) -> int:
        """The device address of the first element of a part of the mirror."""
        return self.ptr + array.__array_interface__["data"][0] - self._base

    def covers(self, array: np.ndarray) -> bool:
        """Whether an array lies in the mirror."""
        return self.holds(array.__array_interface__["data"][0])

    def holds(self, address: int) -> bool:
        """Whether an address of the host lies in the mirror."""
        return 0 <= address - self._base < self._size

    def _block(self, at: int) -> int:
        return bisect_right(self._starts, at) - 1

    def _end(self, block: int) -> int:
        return self._starts[block + 1] if block + 1 < len(self._starts) else self._size

    def _begin_foreign(self) -> None:
        """Before a write to memory that other libraries have: what they have begun comes first."""
        if self.shared:
            self.link.settle()

    def _written(self, first: int, end: int, count: int) -> None:
        """Send bytes of the mirror to the device. Blocks that they cover are current as of ``count``; others are what they were."""
        if first >= end:
            return
        self._begin_foreign()
        self.link.upload(self.ptr + first, self._base + first, end - first)
        self._covered(first, end, count)

    def _covered(self, first: int, end: int, count: int) -> None:
        """Both sides have the same bytes now."""
        for k in range(self._block(first), self._block(end - 1) + 1):
            if first <= self._starts[k] and self._end(k) <= end:
                self._seen[k] = count


class _Writing:
    """See ``Mirror.writing``. What lies between the bytes of a part that is not dense is made current first: it is sent, too."""

    def __init__(self, mirror: Mirror, array: np.ndarray) -> None:
        self._mirror, self._array = mirror, array

    def __enter__(self) -> np.ndarray:
        mirror = self._mirror
        mirror.link.lock.acquire()
        try:
            self._first, self._end, dense = mirror.bounds(self._array)
            self._count = mirror.link.launches()
            if not dense:
                mirror.pull(self._first, self._end)
        except Unrecordable:
            mirror.link.lock.release()
            raise Unrecordable(
                "Python writes to a field that has others between its elements in memory, while a graph is recorded\n"
                "  do: write it in a kernel, or place it by itself"
            ) from None
        except BaseException:
            mirror.link.lock.release()
            raise
        return self._array

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._mirror._written(self._first, self._end, self._count)
            else:
                self._mirror.forget(self._first, self._end)
        finally:
            self._mirror.link.lock.release()


# ---- the same for memory that has a mirror and memory that needs none (``mirror`` is None)
def reading(mirror: Mirror | None, array: np.ndarray) -> np.ndarray:
    """A part of some memory, with its content of now."""
    return array if mirror is None else mirror.read(array)


def copied(mirror: Mirror | None, array: np.ndarray) -> np.ndarray:
    """The content of a part as an array of its own; of what lies around it nothing is copied from the device."""
    return np.array(array, order="C") if mirror is None else mirror.copied(array)


def writing(mirror: Mirror | None, array: np.ndarray) -> AbstractContextManager[np.ndarray]:
    """A block of code that writes all of a part of some memory."""
    return nullcontext(array) if mirror is None else mirror.writing(array)


def changing(mirror: Mirror | None, array: np.ndarray) -> AbstractContextManager[np.ndarray]:
    """A block of code that reads a part of some memory and writes to it."""
    if mirror is None:
        return nullcontext(array)
    mirror.read(array)
    return mirror.writing(array)


def store(mirror: Mirror | None, array: np.ndarray, value: Any) -> None:
    """Write what numpy can broadcast to a part of some memory."""
    if mirror is None:
        array[...] = value
        return
    new = np.asarray(value)
    if new.shape == array.shape and new.ndim:
        mirror.assign(array, new)
    else:
        mirror.fill(array, new)


def clear(parts: Iterable[tuple[Mirror | None, np.ndarray]]) -> None:
    """Write zeros to parts of several memories."""
    of_mirror: dict[Mirror, list[np.ndarray]] = {}
    for mirror, array in parts:
        if mirror is None:
            array[...] = 0
        else:
            of_mirror.setdefault(mirror, []).append(array)
    for mirror, arrays in of_mirror.items():
        mirror.clear(arrays)


def copy(mirror: Mirror | None, array: np.ndarray, other: Mirror | None, source: np.ndarray) -> None:
    """Copy a part of some memory to another one of the same shape."""
    if mirror is None:
        array[...] = reading(other, source)
    else:
        mirror.copy_from(array, other, source)
