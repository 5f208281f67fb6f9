"""Launches of the CPU recorded as a list that native code walks, see ``replay_ir``.

Each launch has its own argument words, and a launch context of its own where the plan, or the seed, is another one: what other launches
do to the context of a kernel afterwards does not concern the list. Status records, temporaries and the heap are the program's.

In a batched program the list is walked for each group of trials: what Python writes is written to a group when its turn comes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ...codegen.abi import CTX_LAUNCHES, CTX_SEED
from ...codegen.builder import NativeModule
from ...ir.threads import new_lock
from ...ir.trials import TrialLayout
from .. import jit
from ..cache import load_cached
from ..host_memory import zeroed
from ..recording import ALL_TRIALS, RecordedWrite, RunOnce
from . import replay_ir
from .pool import parallel_for_addresses

TILE = 4096
"""Bytes that are kept of a value that fills more of them."""

Row = tuple[int, int, int]
"""A step of a sequence: code, where its words begin in the data, status record (0: cannot fail)."""

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


class SequenceMaker:
    """A sequence while it is recorded. ``trials``: those of a batched program. ``writes``: what Python writes."""

    def __init__(self, trials: TrialLayout | None = None) -> None:
        self._functions, self.trials = _functions(), trials
        self.writes: list[RecordedWrite] = []
        self._data = bytearray(8)  # the words of everything; the first one is the status of what cannot fail
        self._rows: list[Row] = []
        self._pointers: list[tuple[int, int]] = []  # words that shall hold the address of a byte of ``_data``
        self._contexts: dict[tuple[int, bytes], int] = {}
        self._seeds: list[tuple[int, int]] = []  # words that shall hold a seed, and the number of that
        self._strides: dict[
            int, tuple[str, int]
        ] = {}  # where words say how far adstack rows are apart: of which plane, and in how many lanes

    def __len__(self) -> int:
        return len(self._rows)

    def launch(
        self,
        code: int,
        words: bytes | bytearray,
        context: np.ndarray,
        status: int,
        seed: int | None,
        strides: Mapping[int, tuple[str, int]],
    ) -> int:
        """Add a launch.

        Args:
            code: the address of the kernel's entry.
            words: its argument words; the first one is the context's.
            context: the launch context.
            status: the address of the status record.
            seed: the number of the seed of its random numbers, among those of the sequence; None: it draws none.
            strides: words of the context that say how far adstack rows are apart: the plane, and the lanes of a row.

        Returns:
            The number of the row.
        """
        if seed is None:
            kept = context.copy()
            kept[CTX_LAUNCHES] = kept[CTX_SEED] = 0  # others launch the same kernel meanwhile
            key = id(context), kept.tobytes()
            new, own = key not in self._contexts, self._contexts.get(key, 0)
            if new:
                own = self._contexts[key] = self._put(key[1])
        else:
            new, own = True, self._put(context.tobytes())
            self._seeds.append((own + 8 * CTX_SEED, seed))
        if new:
            self._strides |= {own + 8 * word: where for word, where in strides.items()}
        at = self._put(words)
        self._pointers.append((at, own))
        self._rows.append((code, at, status))
        return len(self._rows) - 1

    def write(
        self, to: int, nbytes: int, content: bytes, rows: int = 1, step: int = 0, apart: int = 0, same: bool = False
    ) -> None:
        """Add a write of bytes: ``rows`` runs of ``nbytes``, the first one at ``to``, each ``step`` after the one before.

        Args:
            to: see above.
            nbytes: see above.
            content: the bytes of all runs together, or of one run, repeated in each. In a batched program of those of one group of trials,
                or of all groups, one after another.
            rows: see above.
            step: see above.
            apart: bytes from one group of trials to the next.
            same: all trials are given the same.
        """
        if not (rows and nbytes):
            return
        before = len(self._rows)
        if not any(content):
            self._add("qd_clear", rows, nbytes, to, step, apart=apart)
        elif len(content) >= rows * nbytes:
            source = rows * nbytes if len(content) > rows * nbytes else 0
            self._add("qd_write", rows, nbytes, to, step, nbytes, content, apart, source)
        else:
            for row in range(rows):
                self._repeat(to + row * step, nbytes, content, apart)
        dense = rows == 1 or step == nbytes
        self.writes.append(self._wrote(before, to, rows, nbytes, step, same and dense))

    def _wrote(self, before: int, to: int, rows: int, nbytes: int, step: int, same: bool = False) -> RecordedWrite:
        return RecordedWrite(range(before, len(self._rows)), to, to + (rows - 1) * step + nbytes, same)

    def copy(self, to: int, source: int, nbytes: int, rows: int, steps: tuple[int, int], aparts: tuple[int, int]) -> None:
        """Add a copy of memory as it is then. ``steps``, ``aparts``: as in ``write``, of ``to`` and of ``source``."""
        if rows and nbytes:
            before = len(self._rows)
            at = self._add("qd_write", rows, nbytes, to, *steps, b"", *aparts)
            self._set(at + 32, source)
            self.writes += (self._wrote(before, at, rows, nbytes, step) for at, step in zip((to, source), steps))

    def _repeat(self, to: int, nbytes: int, tile: bytes, apart: int) -> None:
        block = tile * max(1, min(TILE, nbytes) // len(tile))
        whole, rest = divmod(nbytes, len(block))
        at = self._add("qd_write", whole, len(block), to, len(block), 0, block, apart)
        if rest:
            more = self._add("qd_write", 1, rest, to + whole * len(block), 0, 0, b"", apart)
            self._pointers.append((more + 32, dict(self._pointers)[at + 32]))

    def _add(
        self,
        name: str,
        rows: int,
        nbytes: int,
        to: int,
        step: int,
        stride: int = 0,
        content: bytes = b"",
        apart: int = 0,
        source_apart: int = 0,
    ) -> int:
        words = [rows, nbytes, to, step, 0, stride]
        if self.trials is not None:
            words += [self.trials.width, apart, source_apart]
            name += "_trials"
        source = self._put(content)
        at = self._put(np.array(words, np.int64).tobytes())
        if content:
            self._pointers.append((at + 32, source))
        self._rows.append((self._functions[name], at, 0))
        return at

    def _set(self, at: int, value: int) -> None:
        self._data[at : at + 8] = value.to_bytes(8, "little")

    def _put(self, data: bytes | bytearray) -> int:
        at = len(self._data)
        self._data += data
        self._data += bytes(-len(data) % 8)
        return at

    def row_words(self) -> dict[str, int]:
        """Words from one worker's adstack row to the next, by plane, in a batched program: workers are in different launches at one
        time, so all of them have the rows of the launch that needs most.
        """
        words, out = memoryview(self._data).cast("q"), dict[str, int]()
        for at, (plane, lanes) in self._strides.items():
            out[plane] = max(out.get(plane, 0), words[at // 8] * lanes)
        most = max((lanes for _, lanes in self._strides.values()), default=1)
        return {plane: -(-n // most) * most for plane, n in out.items()}

    def made(self, once: RunOnce = ALL_TRIALS) -> RecordedSequence:
        """The sequence. ``once``: what runs once for all trials."""
        first, others = self._parted(once)
        data = zeroed(len(self._data))
        data[:] = np.frombuffer(self._data, np.uint8)
        words, base = data.view(np.uint64), data.ctypes.data
        for at, target in self._pointers:
            words[at // 8] = base + target
        apart = self.row_words()
        for at, (plane, lanes) in self._strides.items():
            words[at // 8] = apart[plane] // lanes
        table, head = (self._table(rows, base) for rows in (others, first))
        if self.trials is None:
            return RecordedSequence(self._functions["qd_replay"], table, words, self._seeds)
        return TrialSequence(self._functions["qd_replay_trials"], table, head, words, self._seeds, self.trials, apart)

    @staticmethod
    def _table(rows: list[Row], base: int) -> np.ndarray:
        """Rows as native code reads them. ``base``: the address of the data."""
        found = [(code, base + at, status or base) for code, at, status in rows]
        return np.array(found, np.uint64).reshape(-1, replay_ir.ROW_WORDS)

    def _parted(self, once: RunOnce) -> tuple[list[Row], list[Row]]:
        """The rows that the first group of trials runs before all others; the rows of each group, which begin with copies of that."""
        if not once.rows:
            return [], self._rows
        recorded = len(self._rows)
        for part in once.parts:
            self.copy(part.address, part.address, part.nbytes, 1, (0, 0), (part.group, 0))
        first = [row for k, row in enumerate(self._rows[:recorded]) if k in once.rows]
        others = [row for k, row in enumerate(self._rows[:recorded]) if k not in once.rows]
        return first, self._rows[recorded:] + others


class RecordedSequence:
    """A list of launches and writes that runs as one. ``row_words``: see ``SequenceMaker``; empty: one launch runs at a time."""

    row_words: Mapping[str, int] = MappingProxyType({})

    def __init__(self, code: int, table: np.ndarray, words: np.ndarray, seeds: Sequence[tuple[int, int]]) -> None:
        self._code, self._table, self._words = code, table, words
        self._at = np.array([at // 8 for at, _ in seeds], np.int64)
        self._which = np.array([number for _, number in seeds], np.int64)

    def run(self, seeds: np.ndarray[Any, np.dtype[np.uint64]], pool: int, workers: int) -> int:
        """Run it; other Python threads go on meanwhile.

        Args:
            seeds: of its random numbers, see ``SequenceMaker.launch``.
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
        words: np.ndarray,
        seeds: Sequence[tuple[int, int]],
        trials: TrialLayout,
        row_words: Mapping[str, int],
    ) -> None:
        super().__init__(code, table, words, seeds)
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
