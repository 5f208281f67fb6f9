"""Loads, stores and atomic operations of the lanes while a wave runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..memory import Memory
from ..wave import Wave
from .floats import maximum, minimum

Array = np.ndarray
Part = tuple[Array, int, str]
"""A register, the offset of its bytes in a lane's access, and the type in memory."""


def load(w: Wave, memory: Memory, addresses: Array, more: int, nbytes: int, parts: Sequence[Part]) -> None:
    """Registers become what is in memory. No register is written before all addresses are known."""
    for region, offsets, lanes in list(memory.pieces(addresses, more, nbytes, w.lanes)):
        for register, skip, kind in parts:
            register[lanes] = region.view(kind)[offsets + skip if skip else offsets]


def store(w: Wave, memory: Memory, addresses: Array, more: int, nbytes: int, parts: Sequence[Part]) -> None:
    """Memory becomes what is in registers. Of several lanes at an address, the last one wins."""
    for region, offsets, lanes in memory.pieces(addresses, more, nbytes, w.lanes):
        for register, skip, kind in parts:
            region.view(kind)[offsets + skip if skip else offsets] = register[lanes]


def from_base(registers: Array, base: int) -> Array:
    """64-bit addresses: a base that all lanes share, and 32-bit offsets."""
    return np.add(registers, np.uint64(base & 0xFFFF_FFFF_FFFF_FFFF), dtype=np.uint64)


def own_addresses(w: Wave, offsets: Array | int, nbytes: int) -> Array:
    """Addresses in the memory of each lane's own, one lane's behind the other's."""
    return (w.numbers * nbytes).astype(np.uint64) + np.asarray(offsets).astype(np.uint64)


def _swap(old: Any, new: Any) -> Any:
    return new


def _increment(old: Any, limit: Any) -> Any:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _decrement(old: Any, limit: Any) -> Any:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


CHANGES: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "add": ("uq", np.add), "sub": ("uq", np.subtract), "and": ("uq", np.bitwise_and), "or": ("uq", np.bitwise_or),
    "xor": ("uq", np.bitwise_xor), "swap": ("uq", _swap), "umin": ("uq", np.minimum), "umax": ("uq", np.maximum),
    "smin": ("il", np.minimum), "smax": ("il", np.maximum), "inc": ("uq", _increment), "dec": ("uq", _decrement),
    "fadd": ("fd", np.add), "fmin": ("fd", minimum), "fmax": ("fd", maximum),
}  # fmt: skip
"""What an atomic operation makes of the old value: its types of 32 and 64 bits, and the function."""


def change(
    w: Wave,
    memory: Memory,
    addresses: Array,
    more: int,
    kind: str,
    function: Callable[[Any, Any], Any],
    data: Array,
    out: Array | None,
) -> None:
    """An atomic operation: lane after lane, unless all of them have places of their own."""
    for region, offsets, lanes in list(memory.pieces(addresses, more, data.itemsize, w.lanes)):
        view, given = region.view(kind), data[lanes]
        if offsets.size == 1 or np.unique(offsets).size == offsets.size:
            old = view[offsets]
            view[offsets] = function(old, given)
        else:
            old = np.empty_like(given)
            for k, place in enumerate(offsets.tolist()):
                old[k] = view[place]
                view[place] = function(old[k], given[k])
        if out is not None:
            out[lanes] = old


def compare_exchange(
    w: Wave, memory: Memory, addresses: Array, more: int, kind: str, new: Array, expected: Array, out: Array | None
) -> None:
    """Where memory has what is expected, it becomes the new value; lane after lane."""
    for region, offsets, lanes in list(memory.pieces(addresses, more, new.itemsize, w.lanes)):
        view, wanted, given = region.view(kind), expected[lanes], new[lanes]
        old = np.empty_like(given)
        for k, place in enumerate(offsets.tolist()):
            old[k] = view[place]
            if old[k] == wanted[k]:
                view[place] = given[k]
        if out is not None:
            out[lanes] = old
