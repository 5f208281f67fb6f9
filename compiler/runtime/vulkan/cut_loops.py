"""The word by which code tells that llvmpipe has ended a loop.

llvmpipe ends all loops of a thread after 65,536 iterations in sum, says nothing, and goes on behind the loop. Code for it remembers on the
way out of each loop whether the program has left it, and else writes into one word. llvmpipe computes in this process, so the word is one
of ours, at an address that code knows: an address that differs from process to process would be other code for the driver's cache.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache

from ...codegen.spirv.features import CUT_WORD
from ...errors import DeviceError

_NO_REPLACE = 0x100000  # MAP_FIXED_NOREPLACE, which the module ``mmap`` does not name


@cache
def cut_word() -> ctypes.c_uint32 | None:
    """The word, 0 if no loop was ended; None where the system has no memory at its address."""
    if not sys.platform.startswith("linux"):
        return None
    reserve = ctypes.CDLL(None, use_errno=True).mmap
    reserve.restype, reserve.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_REPLACE
    found = reserve(CUT_WORD, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    return ctypes.c_uint32.from_address(CUT_WORD) if found == CUT_WORD else None


def raise_if_cut(word: ctypes.c_uint32) -> None:
    """Raise what the word tells, once.

    Raises:
        DeviceError: a loop was ended.
    """
    if word.value:
        word.value = 0
        raise DeviceError(
            "llvmpipe has ended a loop: it ends all loops of a thread after 65,536 iterations in sum. What was computed since the host"
            " has last waited for the device is wrong\n"
            "  do: fewer iterations in each thread, or another device"
        )
