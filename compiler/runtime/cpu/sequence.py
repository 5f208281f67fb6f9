"""Launches of the CPU recorded as a list that native code walks, see ``replay_ir``.

Each launch has its own argument words, and a launch context of its own where the plan, or the seed, is another one: what other launches
do to the context of a kernel afterwards does not concern the list. Status records, temporaries and the heap are the program's.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...codegen.abi import CTX_LAUNCHES, CTX_SEED
from ...ir.threads import new_lock
from .. import jit
from ..cache import load_cached
from ..host_memory import zeroed
from . import replay_ir

TILE = 4096
"""Bytes that are kept of a value that fills more of them."""

_lock = new_lock(sys.modules[__name__], "_lock")
_code: jit.LoadedCode | None = None


def _functions() -> dict[str, int]:
    """The addresses of the native functions, compiled once in a process."""
    global _code
    with _lock:
        if _code is None:
            imports = {n: ctypes.cast(getattr(jit.libc(), n), ctypes.c_void_p).value or 0 for n in replay_ir.IMPORTS}
            _code, _ = load_cached(replay_ir.REPLAY_IR, "replay", list(replay_ir.EXPORTS), imports)
            _code.make_immortal()
        return _code.addresses


class SequenceMaker:
    """A sequence while it is recorded."""

    def __init__(self) -> None:
        self._functions = _functions()
        self._data = bytearray(8)  # the words of everything; the first one is the status of what cannot fail
        self._rows: list[tuple[int, int, int]] = []  # code, where its words begin in ``_data``, status record (0: cannot fail)
        self._pointers: list[tuple[int, int]] = []  # words that shall hold the address of a byte of ``_data``
        self._contexts: dict[tuple[int, bytes], int] = {}
        self._seeds: list[tuple[int, int]] = []  # words that shall hold a seed, and the number of that

    def __len__(self) -> int:
        return len(self._rows)

    def launch(self, code: int, words: bytes | bytearray, context: np.ndarray, status: int, seed: int | None) -> int:
        """Add a launch.

        Args:
            code: the address of the kernel's entry.
            words: its argument words; the first one is the context's.
            context: the launch context.
            status: the address of the status record.
            seed: the number of the seed of its random numbers, among those of the sequence; None: it draws none.

        Returns:
            The number of the row.
        """
        if seed is None:
            kept = context.copy()
            kept[CTX_LAUNCHES] = kept[CTX_SEED] = 0  # others launch the same kernel meanwhile
            key = id(context), kept.tobytes()
            if key not in self._contexts:
                self._contexts[key] = self._put(key[1])
            own = self._contexts[key]
        else:
            own = self._put(context.tobytes())
            self._seeds.append((own + 8 * CTX_SEED, seed))
        at = self._put(words)
        self._pointers.append((at, own))
        self._rows.append((code, at, status))
        return len(self._rows) - 1

    def write(self, to: int, nbytes: int, content: bytes, rows: int = 1, step: int = 0) -> None:
        """Add a write of bytes: ``rows`` runs of ``nbytes``, the first one at ``to``, each ``step`` after the one before. ``content``: of
        all runs together; or shorter, and repeated in each of them.
        """
        if not (rows and nbytes):
            return
        if not any(content):
            self._add("qd_clear", rows, nbytes, to, step)
        elif len(content) == rows * nbytes:
            self._add("qd_write", rows, nbytes, to, step, nbytes, content=content)
        else:
            for row in range(rows):
                self._repeat(to + row * step, nbytes, content)

    def copy(self, to: int, source: int, nbytes: int, rows: int = 1, step: int = 0, stride: int = 0) -> None:
        """Add a copy of memory as it is then; ``step`` and ``stride``: bytes from one run to the next of ``to`` and of ``source``."""
        if rows and nbytes:
            at = self._add("qd_write", rows, nbytes, to, step, stride)
            self._set(at + 32, source)

    def _repeat(self, to: int, nbytes: int, tile: bytes) -> None:
        block = tile * max(1, min(TILE, nbytes) // len(tile))
        whole, rest = divmod(nbytes, len(block))
        at = self._add("qd_write", whole, len(block), to, len(block), 0, content=block)
        if rest:
            more = self._add("qd_write", 1, rest, to + whole * len(block), 0, 0)
            self._pointers.append((more + 32, dict(self._pointers)[at + 32]))

    def _add(self, name: str, rows: int, nbytes: int, to: int, step: int, stride: int = 0, content: bytes = b"") -> int:
        words = np.array([rows, nbytes, to, step, 0, stride], np.int64)
        source = self._put(content)
        at = self._put(words.tobytes())
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

    def made(self) -> RecordedSequence:
        """The sequence."""
        data = zeroed(len(self._data))
        data[:] = np.frombuffer(self._data, np.uint8)
        words, base = data.view(np.uint64), data.ctypes.data
        for at, target in self._pointers:
            words[at // 8] = base + target
        rows = [(code, base + at, status or base) for code, at, status in self._rows]
        table = np.array(rows, np.uint64).reshape(-1, replay_ir.ROW_WORDS)
        return RecordedSequence(self._functions["qd_replay"], table, words, self._seeds)


class RecordedSequence:
    """A list of launches and writes that runs as one."""

    def __init__(self, code: int, table: np.ndarray, words: np.ndarray, seeds: Sequence[tuple[int, int]]) -> None:
        self._table, self._words = table, words
        self._run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(code)
        self._at = np.array([at // 8 for at, _ in seeds], np.int64)
        self._which = np.array([number for _, number in seeds], np.int64)

    def run(self, seeds: np.ndarray[Any, np.dtype[np.uint64]]) -> int:
        """Run it; other Python threads go on meanwhile.

        Args:
            seeds: of its random numbers, see ``SequenceMaker.launch``.

        Returns:
            The number of the row that has written to its status record, behind which nothing ran; -1: none has.
        """
        self._words[self._at] = seeds[self._which]
        return self._run(self._table.ctypes.data, len(self._table))
