"""The guard of a native launch: checks that everything that was prepared for it is still valid.

A gradient runs on a heap that was planned from some of its arguments, and from arrays. The launcher compares the words of these
arguments, and counters that move when such an array may have been written, with those for which the heap was made; and it looks whether
array arguments that must not overlap lie apart. Where anything differs, the call goes to Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

from ...codegen.abi import arg_offsets
from ...ir.nodes import ArgDecl
from . import guard_ir

Pairs = Sequence[tuple[int, int]]


class Guard:
    """The memory that one native launcher reads. It is not armed at first: every call goes to Python.

    It is armed with the interpreter's lock held, as the launcher does while it checks.

    Args:
        args: of the kernel.
        apart: pairs of ``ArgDecl.index`` of arrays whose memory must not overlap.
    """

    def __init__(self, args: Sequence[ArgDecl], apart: Iterable[tuple[int, int]] = ()) -> None:
        self._head = (ctypes.c_int64 * guard_ir.G_WORDS)()
        at, decls = word_numbers(args), {d.index: d for d in args}
        rows = [row for pair in apart for k in pair for row in (at[k], decls[k].ndim, _element_bytes(decls[k]))]
        self._pairs = word_array(rows)
        self._head[guard_ir.G_PAIRS] = len(rows) // 6
        self._head[guard_ir.G_PAIRS_AT] = ctypes.addressof(self._pairs)
        self._compared = word_array(())

    @property
    def address(self) -> int:
        """The address of the guard's memory for the launcher."""
        return ctypes.addressof(self._head)

    @property
    def armed(self) -> bool:
        """Whether launches may pass."""
        return bool(self._head[guard_ir.G_ARMED])

    def arm(self, words: Pairs, counters: Pairs) -> None:
        """Let launches pass while these are what they are.

        Args:
            words: numbers of words of the argument buffer, and their values.
            counters: addresses of 8-byte words, and their values. The caller keeps their memory.
        """
        values = [x for number, value in words for x in (8 * number, value)]
        values += [x for pair in counters for x in pair]
        head = self._head
        if len(values) != len(self._compared):
            self._compared = word_array(values)
        else:
            self._compared[:] = values
        head[guard_ir.G_COMPARED], head[guard_ir.G_COMPARED_AT] = len(values) // 2, ctypes.addressof(self._compared)
        head[guard_ir.G_ARMED] = 1

    def disarm(self) -> None:
        """Send every call to Python."""
        self._head[guard_ir.G_ARMED] = 0


def word_numbers(args: Sequence[ArgDecl]) -> dict[int, int]:
    """The number of the first word of each argument in the argument buffer, by ``ArgDecl.index``."""
    return {d.index: at for d, at in zip(args, arg_offsets(list(args)))}


def _element_bytes(d: ArgDecl) -> int:
    size = d.dtype.size
    for extent in d.element:
        size *= extent
    return size


def word_array(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Memory of 8-byte words with these values; it has an address also where there are none."""
    return (ctypes.c_int64 * max(1, len(values)))(*values)
