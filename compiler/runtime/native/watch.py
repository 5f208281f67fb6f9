"""Watches an object with per-launch ndarrays and numbers, such as the ``self`` of a method, for a native launch.

The launcher looks at the dict of the object, and at those of the objects and the lists inside that are looked into. A dict that was not
written to since (interpreters that count say so) is not read again. Another ndarray of the same type, and another number, are taken as
they are; where anything else differs, Python looks at the object and fills the watch anew.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from .watch_ir import (
    E_WORDS,
    ENTRY_AGAIN,
    ENTRY_NUMBER,
    ENTRY_SAME,
    ENTRY_TYPE,
    W_ALIASES,
    W_ARGS_AT,
    W_ARRAYS,
    W_ARRAYS_AT,
    W_MISSED,
    W_NUMBERS,
    W_NUMBERS_AT,
    W_ROWS,
    W_ROWS_AT,
    W_WORDS,
)


@dataclass(frozen=True, slots=True)
class WatchEntry:
    """One value of a row.

    Attributes:
        kind: ``watch_ir.ENTRY_*``.
        key: of the dict.
        value: the type or the object that it must be, or the number of the array or of the number that it is.
    """

    kind: int
    key: object = None
    value: object = None


@dataclass(frozen=True, slots=True)
class WatchRow:
    """An object with a dict, a dict, or a list.

    Attributes:
        kind: ``watch_ir.ROW_*``.
        dict_at: see ``dict_offset``, or ``ITSELF``.
    """

    kind: int
    owner: object
    entries: tuple[WatchEntry, ...]
    dict_at: int = 0


ITSELF = -1
"""In the place of ``dict_offset``: the object is the dict."""
_BEFORE = -3 * ctypes.sizeof(ctypes.c_void_p)


def dict_offset(owner: object) -> int | None:
    """The offset of the address of an object's dict from the object: in front of it, or as its class defines. None: elsewhere."""
    held = id(vars(owner))  # the object has one from now on
    places = (type(owner).__dictoffset__, _BEFORE)
    return next((k for k in places if k and ctypes.c_void_p.from_address(id(owner) + k).value == held), None)


class Watch:
    """The memory that a native launcher reads and writes, for one object. It is filled with the interpreter's lock held.

    Args:
        value: the object. It is not kept alive, nor is anything that may refer to it: the launch goes with it.
    """

    def __init__(self, value: object) -> None:
        self.owner = id(value)
        self._head = (ctypes.c_int64 * W_WORDS)()
        self._head[W_MISSED] = 1
        self._kept: tuple[object, ...] = ()

    @property
    def address(self) -> int:
        """The address of the watch's memory for the launcher."""
        return ctypes.addressof(self._head)

    @property
    def arrays(self) -> int:
        """The number of arrays, constant for one specialisation."""
        return int(self._head[W_ARRAYS])

    @property
    def missed(self) -> bool:
        """Whether something was not as expected since the watch was filled."""
        return bool(self._head[W_MISSED])

    def fill(
        self, rows: Sequence[WatchRow], arrays: Sequence[tuple[object, Sequence[int]]], numbers: Sequence[Sequence[int]]
    ) -> None:
        """Set the expected content.

        Args:
            rows: the compared values, outer objects before inner ones.
            arrays: those that the object holds now, and how each is packed (``pack_ir.A_*``), in the order of the words.
            numbers: how each is packed.
        """
        array_words, number_args = _words([x for _, row in arrays for x in row]), [_words(row) for row in numbers]
        kept: list[object] = [array_words, number_args]
        row_words: list[int] = []
        for row in rows:
            entries = _words([x for e in row.entries for x in _entry_words(e, number_args)])
            kept += [entries, [(e.key, *_kept(e)) for e in row.entries]]
            row_words += [row.kind, id(row.owner), row.dict_at, 0, len(row.entries), ctypes.addressof(entries)]
        packed, values, current = _words(row_words), _words([0] * len(numbers)), _words([id(a) for a, _ in arrays])
        head = self._head
        head[W_MISSED] = 1  # other threads do not read it meanwhile
        head[W_ROWS], head[W_ROWS_AT] = len(rows), ctypes.addressof(packed)
        head[W_ARRAYS], head[W_ARRAYS_AT] = len(arrays), ctypes.addressof(current)
        head[W_ARGS_AT] = ctypes.addressof(array_words)
        head[W_NUMBERS], head[W_NUMBERS_AT] = len(numbers), ctypes.addressof(values)
        head[W_ALIASES] = int(any(e.kind == ENTRY_AGAIN for row in rows for e in row.entries))
        self._kept = (*kept, packed, values, current)
        head[W_MISSED] = 0


def _kept(entry: WatchEntry) -> tuple[object, ...]:
    """Whose address must not become that of something else: types, and tuples, which have no row."""
    if entry.kind == ENTRY_SAME:
        return type(entry.value), entry.value if isinstance(entry.value, tuple) else None
    return (entry.value,) if entry.kind == ENTRY_TYPE else ()


def _entry_words(entry: WatchEntry, number_args: Sequence[ctypes.Array[ctypes.c_int64]]) -> tuple[int, ...]:
    value, arg = entry.value, 0
    if entry.kind == ENTRY_SAME:  # another object of the type may come to lie there: its content is compared in its own row
        value, arg = id(value), id(type(value))
    elif entry.kind == ENTRY_TYPE:
        value = id(value)
    elif entry.kind == ENTRY_NUMBER:
        assert isinstance(value, int)
        arg = ctypes.addressof(number_args[value])
    words = entry.kind, id(entry.key), value if isinstance(value, int) else 0, arg
    assert len(words) == E_WORDS
    return words


def _words(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * max(1, len(values)))(*values)
