"""Launches of the CPU recorded as a list that native code walks, see ``replay_ir``.

Each launch has its own argument words and its own launch context, see ``recording``: what other launches do to the context of a kernel
afterwards does not concern the list. Status records, temporaries and the heap are the program's.

In a batched program the list is walked for each group of trials: what Python writes is written to a group when its turn comes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ...codegen.abi import CTX_SEED, CTX_STATUS
from ...codegen.builder import NativeModule
from ...ir.threads import new_lock
from ...ir.trials import TrialLayout
from .. import jit
from ..cache import load_cached
from ..host_memory import zeroed
from ..recording import ALL_TRIALS, RecordedLaunch, RecordedWrite, RunOnce, Steps
from . import replay_ir
from .pool import parallel_for_addresses

TILE = 4096
"""Bytes that are kept of a value that fills more of them."""

STRIDE = "stride."
"""Launch parameters of this name say how far adstack rows are apart, in words of a plane, divided by the lanes of a row."""

Row = tuple[int, int, int]
"""A step of a sequence: code, where its words begin in the data, status record (0: cannot fail)."""

Held = tuple[np.ndarray, list[bytes]]
"""The words of a sequence, and the contents of its writes."""

_WALK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
_WALK_TRIALS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *(ctypes.c_int64,) * 3)
_PARALLEL_FOR = ctypes.CFUNCTYPE(None, *(ctypes.c_void_p,) * 3, *(ctypes.c_int64,) * 3)
_lock = new_lock(sys.modules[__name__], "_lock")
_code: jit.LoadedCode | None = None


def _functions() -> dict[str, int]:
    """The addresses of the native functions, compiled once in a process."""
    global _code
    with _lock:
        if _code is None:
            made = NativeModule(replay_ir.EXPORTS)
            imports = {n: ctypes.cast(getattr(jit.libc(), n), ctypes.c_void_p).value or 0 for n in made.imports}
            _code, _ = load_cached(made.text, "replay", list(made.exports), imports)
            _code.make_immortal()
        return _code.addresses


class _Words:
    """The words of a sequence while it is made.

    Attributes:
        seeds: words that shall hold a seed, and its number.
        contents: what writes refer to.
    """

    def __init__(self, trials: TrialLayout | None) -> None:
        self._functions, self._trials = _functions(), trials
        self._data = bytearray(8)  # the first word is the status of what cannot fail
        self._pointers: list[tuple[int, int]] = []  # bytes of ``_data`` that shall hold the address of another one
        self._contexts: dict[int, int] = {}
        self.seeds: list[tuple[int, int]] = []
        self.contents: list[bytes] = []

    def rows(self, steps: Steps) -> list[Row]:
        """Put the words of steps. A kernel of a batch without tasks has no code, and does nothing."""
        return [
            self._write(s) if isinstance(s, RecordedWrite) else self._launch(s)
            for s in steps
            if self._trials is None or isinstance(s, RecordedWrite) or s.compiled.chunk
        ]

    def _launch(self, launch: RecordedLaunch) -> Row:
        context = self._contexts.get(id(launch.context))
        if context is None:
            context = self._contexts[id(launch.context)] = self._put(launch.context.tobytes())
            if launch.seed is not None:
                self.seeds.append((context // 8 + CTX_SEED, launch.seed))
        at = self._put(launch.words)
        self._pointers.append((at, context))
        return launch.compiled.chunk or launch.compiled.address, at, int(launch.context[CTX_STATUS])

    def _write(self, write: RecordedWrite) -> Row:
        (rows, step, nbytes), content, tile = write.runs, write.content, write.runs.nbytes
        name, source, stride, source_group = "qd_write", 0, 0, 0
        if write.source is not None:
            source, stride, source_group = write.source
        elif not any(content):
            name = "qd_clear"
        else:
            if len(content) >= rows * nbytes:
                stride, source_group = nbytes, rows * nbytes if len(content) > rows * nbytes else 0
            else:
                content *= max(1, min(TILE, nbytes) // len(content))
                tile = len(content)
            self.contents.append(content)
            source = np.frombuffer(content, np.uint8).ctypes.data
        words = [rows, nbytes, write.to, step, source, stride, tile]
        if self._trials is not None:
            words += [self._trials.width, write.group, source_group]
            name += "_trials"
        return self._functions[name], self._put(np.array(words, np.int64).tobytes()), 0

    def _put(self, data: bytes) -> int:
        at = len(self._data)
        self._data += data
        self._data += bytes(-len(data) % 8)
        return at

    def placed(self) -> tuple[np.ndarray, int]:
        """The words, and their address."""
        data = zeroed(len(self._data))
        data[:] = np.frombuffer(self._data, np.uint8)
        words, base = data.view(np.uint64), data.ctypes.data
        for at, target in self._pointers:
            words[at // 8] = base + target
        return words, base


def sequence_of(steps: Steps, trials: TrialLayout | None = None, once: RunOnce = ALL_TRIALS) -> RecordedSequence:
    """The sequence of some steps. ``trials``: those of a batched program; ``once``: what runs once for all of them."""
    apart = {} if trials is None else _lay_rows_alike(s for s in steps if isinstance(s, RecordedLaunch) and s.compiled.chunk)
    made = _Words(trials)
    first, others = map(made.rows, once.divide(steps))
    words, base = made.placed()
    head, table = (
        np.array([(c, base + at, s or base) for c, at, s in rows], np.uint64).reshape(-1, replay_ir.ROW_WORDS)
        for rows in (first, others)
    )
    functions, held = _functions(), (words, made.contents)
    if trials is None:
        return RecordedSequence(functions["qd_replay"], table, held, made.seeds)
    return TrialSequence(functions["qd_replay_trials"], table, head, held, made.seeds, trials, apart)


def _lay_rows_alike(launches: Iterable[RecordedLaunch]) -> dict[str, int]:
    """Give all launches the adstack rows of the one that needs most: workers are in different launches at one time.

    Returns:
        Words from one worker's adstack row to the next, by plane.
    """
    found = [stride for context in {id(x.context): x for x in launches}.values() for stride in _strides(context)]
    out = dict[str, int]()
    for context, word, plane, lanes in found:
        out[plane] = max(out.get(plane, 0), int(context[word]) * lanes)
    most = max((lanes for *_, lanes in found), default=1)
    out = {plane: -(-n // most) * most for plane, n in out.items()}
    for context, word, plane, lanes in found:
        context[word] = out[plane] // lanes
    return out


def _strides(launch: RecordedLaunch) -> Iterator[tuple[np.ndarray, int, str, int]]:
    """Where a context says how far adstack rows are apart: of which plane, and in how many lanes."""
    for (_, name), word in launch.compiled.layout.params.items():
        if name.startswith(STRIDE):
            yield launch.context, word, name[len(STRIDE) :], launch.compiled.lanes


class RecordedSequence:
    """A list of launches and writes that runs as one. ``row_words``: see ``_lay_rows_alike``; empty: one launch runs at a time."""

    row_words: Mapping[str, int] = MappingProxyType({})

    def __init__(self, code: int, table: np.ndarray, held: Held, seeds: Sequence[tuple[int, int]]) -> None:
        self._code, self._table, (self._words, self._contents) = code, table, held
        self._at = np.array([at for at, _ in seeds], np.int64)
        self._which = np.array([number for _, number in seeds], np.int64)

    def run(self, seeds: np.ndarray[Any, np.dtype[np.uint64]], pool: int, workers: int) -> int:
        """Run it; other Python threads go on meanwhile.

        Args:
            seeds: of its random numbers.
            pool: the address of the thread pool.
            workers: how many threads may take part.

        Returns:
            The number of the row that has written to its status record, behind which nothing ran; -1: none has.
        """
        if len(seeds):
            self._words[self._at] = seeds[self._which]
        return self._walk(pool, workers)

    def _walk(self, pool: int, workers: int) -> int:
        return _WALK(self._code)(self._table.ctypes.data, len(self._table))


class TrialSequence(RecordedSequence):
    """The same for the trials of a batched program, one group after another. A trial that fails stops no other one, and no row.

    ``head``: rows that the first group runs before.
    """

    def __init__(
        self,
        code: int,
        table: np.ndarray,
        head: np.ndarray,
        held: Held,
        seeds: Sequence[tuple[int, int]],
        trials: TrialLayout,
        row_words: Mapping[str, int],
    ) -> None:
        super().__init__(code, table, held, seeds)
        self.row_words = row_words
        self._tables = table, head  # their memory
        self._frame, self._head = (np.array([rows.ctypes.data, len(rows), trials.width], np.int64) for rows in self._tables)
        self._trials, self._frame_address = trials, self._frame.ctypes.data
        self._parallel_for = _PARALLEL_FOR(parallel_for_addresses()["qd_parallel_for_up_to"])

    def _walk(self, pool: int, workers: int) -> int:
        if len(self._tables[1]):
            _WALK_TRIALS(self._code)(self._head.ctypes.data, 0, self._trials.width, 0)
        self._parallel_for(pool, self._code, self._frame_address, self._trials.count, self._trials.width, workers)
        return -1
