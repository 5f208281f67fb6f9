"""Finds the object layouts of this interpreter and numpy that the native launcher reads, and checks them on known objects."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from . import pack_ir

TYPE_SLOTS = {"basicsize": 32, "call": 128, "flags": 168, "base": 256, "descr_get": 272, "dictoffset": 288}
"""Their offset in a class, in bytes."""
_HEAD = object.__basicsize__


def pointer(address: int) -> int:
    """The address that stands in memory; 0: none."""
    return ctypes.c_void_p.from_address(address).value or 0


def slot_offset(cls: type, name: str) -> int | None:
    """The offset of a slot in instances, found by a search in an instance of a subclass without a destructor. None: no such plain slot."""
    probe_type: Any = type("Probe", (cls,), {"__slots__": (), "__del__": lambda self: None})
    probe, mark = object.__new__(probe_type), object()
    object.__setattr__(probe, name, mark)
    words = (ctypes.c_void_p * (cls.__basicsize__ // 8)).from_address(id(probe))[_HEAD // 8 :]
    hits = [k for k, word in enumerate(words) if word == id(mark)]
    return _HEAD + 8 * hits[0] if len(hits) == 1 else None


def offsets() -> dict[str, int]:
    """The offsets that the launcher reads, if this interpreter's headers have the known layout."""
    names = ("ARRAY_ND", "ARRAY_DIMS", "ARRAY_DESCR", "ARRAY_FLAGS_AT")
    known = dict(zip(names, (_HEAD + 8, _HEAD + 16, _HEAD + 40, _HEAD + 48)))
    return known | {
        "HEAD": _HEAD,
        "TYPE": _HEAD - 8,
        "TUPLE_ITEMS": tuple.__basicsize__,
        "BYTES_DATA": bytes.__basicsize__ - 1,
        "LIST_ITEMS": _HEAD + 8,
        "TAG_AT": _tag_offset(),
    }


def _tag_offset() -> int:
    """The offset of a dict's version number, which changes with every write; 0: dicts of this interpreter have none."""
    at, probe = _HEAD + 8, dict[str, object]()

    def tag() -> int:
        return ctypes.c_uint64.from_address(id(probe) + at).value

    seen = [tag()]
    for value in (1.5, 2.5, None):
        probe["a"] = value
        seen.append(tag())
    probe.clear()
    seen.append(tag())
    return at if len(set(seen)) == len(seen) else 0


def layout_problem() -> str | None:
    """Which object does not look as the native launcher expects; None when all do."""
    at = offsets()
    array, text, number = np.zeros((3, 5), np.float32), b"known bytes", 1.5
    pair, items, names = (text, array), [text, array], {text: 1, number: 2}

    class Probe(dict[Any, Any]):
        """Has attributes, and a base of its own."""

    def i64(address: int) -> int:
        return ctypes.c_int64.from_address(address).value

    array_flags = pack_ir.ARRAY_FLAGS
    checks: dict[str, Callable[[], bool]] = {
        "pointer size": lambda: struct.calcsize("P") == 8 and _HEAD == 16,
        "ob_type": lambda: all(pointer(id(x) + at["TYPE"]) == id(type(x)) for x in (array, text, number, pair, True, 7)),
        "float": lambda: ctypes.c_double.from_address(id(number) + _HEAD).value == number,
        "bytes": lambda: (
            i64(id(text) + _HEAD) == len(text) and ctypes.string_at(id(text) + at["BYTES_DATA"], len(text)) == text
        ),
        "list": lambda: i64(id(items) + _HEAD) == 2 and pointer(pointer(id(items) + at["LIST_ITEMS"]) + 8) == id(array),
        "type": lambda: (
            all(
                i64(id(c) + TYPE_SLOTS[n]) == getattr(c, f"__{n}__")
                for c in (dict, Probe)
                for n in ("basicsize", "flags", "dictoffset")
            )
            and pointer(id(Probe) + TYPE_SLOTS["base"]) == id(dict)
        ),
        "dict": lambda: i64(id(names) + _HEAD) == 2,
        "tuple": lambda: [pointer(id(pair) + at["TUPLE_ITEMS"] + 8 * k) for k in (0, 1)] == [id(text), id(array)],
        "ndarray.data": lambda: pointer(id(array) + _HEAD) == array.ctypes.data,
        "ndarray.nd": lambda: ctypes.c_int.from_address(id(array) + at["ARRAY_ND"]).value == 2,
        "ndarray.dims": lambda: [i64(pointer(id(array) + at["ARRAY_DIMS"]) + 8 * k) for k in (0, 1)] == [3, 5],
        "ndarray.descr": lambda: pointer(id(array) + at["ARRAY_DESCR"]) == id(array.dtype) == id(np.dtype(np.float32)),
        "ndarray.flags": lambda: (
            ctypes.c_int.from_address(id(array) + at["ARRAY_FLAGS_AT"]).value & array_flags == array_flags
            and ctypes.c_int.from_address(id(_read_only()) + at["ARRAY_FLAGS_AT"]).value & array_flags != array_flags
        ),
    }
    return next((name for name, check in checks.items() if not check()), None)


@functools.cache
def _read_only() -> np.ndarray:
    array = np.zeros(1, np.float32)
    array.flags.writeable = False
    return array
