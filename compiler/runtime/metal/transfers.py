"""Our own kernels that fill and copy memory. Metal's blit commands fill with bytes and copy whole words only, and end the open encoder."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from .native import FILL_BLOCKS, FILL_THREADS

_TYPES = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}
_HEAD = """#include <metal_stdlib>
using namespace metal;
"""
_ARGUMENTS = (
    "constant ulong* w [[buffer(0)]], uint t [[thread_position_in_threadgroup]], uint b [[threadgroup_position_in_grid]],"
    " uint g [[threadgroups_per_grid]]"
)
_KERNEL = """
kernel void NAME(ARGUMENTS)
{
  ulong count = COUNT;
  ulong rows = ROWS;
  for (ulong k = ulong(b) * THREADSul + ulong(t); k < count * rows; k += ulong(g) * THREADSul) {
    ulong row = rows == 1ul ? 0ul : k / count;
    ulong at = (k - row * count) * SIZEul;
    *reinterpret_cast<device TYPE*>(w[0] + row * w[1] + at) = VALUE;
  }
}
"""


def source() -> str:
    """Metal Shading Language of all of them.

    ``qd_fill_4`` and its like have the words address, bytes from row to row, value, values of a row, rows; ``qd_copy_4`` and its like:
    where to, bytes from row to row there, where from, bytes from row to row there, words of a row, rows.
    """
    parts = [_HEAD]
    for size, ty in _TYPES.items():
        read = f"*reinterpret_cast<device {ty}*>(w[2] + row * w[3] + at)"
        for name, value, count, rows in (("fill", f"{ty}(w[2])", "w[3]", "w[4]"), ("copy", read, "w[4]", "w[5]")):
            if name == "fill" and size == 8:
                continue
            text = _KERNEL.replace("NAME", f"qd_{name}_{size}").replace("ARGUMENTS", _ARGUMENTS).replace("TYPE", ty)
            text = text.replace("COUNT", count).replace("ROWS", rows).replace("VALUE", value)
            parts.append(text.replace("THREADS", str(FILL_THREADS)).replace("SIZE", str(size)))
    return "".join(parts)


def names() -> list[str]:
    """The kernels in ``source``."""
    return [f"qd_{kind}_{size}" for kind in ("fill", "copy") for size in _TYPES if (kind, size) != ("fill", 8)]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A launch of one of them."""

    name: str
    blocks: int
    words: ctypes.Array[ctypes.c_uint64]


def fill(ptr: int, step: int, word: int, count: int, width: int, rows: int) -> Transfer:
    """``count`` words of ``width`` bytes in each row; rows begin ``step`` bytes apart."""
    return _transfer(f"qd_fill_{width}", count * rows, (ptr, step, word & (1 << 8 * width) - 1, count, rows))


def copy(dst: int, dst_step: int, src: int, src_step: int, nbytes: int, rows: int) -> Transfer:
    """Rows of ``nbytes``, by words as large as everything is a multiple of."""
    steps = (dst_step, src_step) if rows > 1 else ()
    size = next(n for n in sorted(_TYPES, reverse=True) if not any(x % n for x in (dst, src, nbytes, *steps)))
    return _transfer(f"qd_copy_{size}", nbytes // size * rows, (dst, dst_step, src, src_step, nbytes // size, rows))


def _transfer(name: str, total: int, words: Sequence[int]) -> Transfer:
    return Transfer(name, min(FILL_BLOCKS, -(-total // FILL_THREADS)), (ctypes.c_uint64 * len(words))(*words))
