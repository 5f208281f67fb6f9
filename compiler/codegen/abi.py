"""What a compiled kernel and its launcher agree on. All buffers are arrays of 8-byte words.

A kernel is ``void entry(ptr args)``. ``args[0]`` points to the launch context; then, for each ``ArgDecl`` in order, a scalar takes
one word (its own bytes, low end first) and an ndarray takes ``1 + ndim`` words (address, extents), one more for the address of
its gradient when ``needs_grad``, and one more for that of its dual when ``needs_dual``.

The context belongs to one program and one compiled kernel and outlives its launches::

    word  0  status record (see STATUS_WORDS)     word  6..9   heap base of each plane (PLANES)
    word  1  thread pool                          word 10..13  reserved
    word  2  temporaries                          word 14      launch seed (u64)
    word  3  returned values (8 bytes each)       word 15      launches that have ended, of a kernel that stores to fields
    word  4  tangents of the temporaries
    word  5  adjoints of the temporaries          word 16..    launch parameters of every task, then the field buffers

The status record is zero when all is well. The first failure stores its code (1 + position in ``messages(kernel)``) in word 0 with a
compare-and-swap and then up to 7 operand values (each as f64 or i64 bits, by its type) in the words after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.nodes import ArgDecl, Assert, Buffer, ClaimRow, Kernel, Overflow
from ..ir.types import PLANES as PLANE_BYTES
from ..ir.types import DType
from ..ir.walk import kernel_buffers, walk

PLANES = tuple(PLANE_BYTES)
CTX_STATUS, CTX_POOL, CTX_TMP, CTX_RET, CTX_TMP_DUAL, CTX_TMP_GRAD, CTX_HEAP, CTX_SEED, CTX_LAUNCHES, CTX_FIXED = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    14,
    15,
    16,
)
STATUS_WORDS = 8


def plane_of(dtype: DType) -> str:
    """The heap plane of a state word: narrow types widen to 4 bytes."""
    return dtype.plane


def arg_words(arg: ArgDecl) -> int:
    """How many words of the argument buffer an argument takes."""
    return 1 if arg.kind == "scalar" else 1 + arg.ndim + arg.needs_grad + arg.needs_dual


def address_word(buffer: Buffer) -> int:
    """Which of the words of its argument holds the address of an ndarray's data, gradient or dual."""
    arg = buffer.owner
    assert isinstance(arg, ArgDecl)
    return {"arg": 0, "arg_grad": 1 + arg.ndim, "arg_dual": 1 + arg.ndim + arg.needs_grad}[buffer.kind]


def arg_offsets(args: list[ArgDecl]) -> list[int]:
    """First word of each argument (word 0 is the context), and at the end the total number of words."""
    out = [1]
    for a in args:
        out.append(out[-1] + arg_words(a))
    return out


@dataclass(frozen=True)
class ContextLayout:
    """Word numbers in the context: launch parameters by (task number, name), field buffers in order of first use."""

    params: dict[tuple[int, str], int]
    buffers: dict[Buffer, int]
    words: int


def context_layout(kernel: Kernel) -> ContextLayout:
    """The context of a kernel. Deterministic: equal printed IR gives equal layouts."""
    params: dict[tuple[int, str], int] = {}
    word = CTX_FIXED
    for number, task in enumerate(kernel.tasks):
        for name in task.params:
            params[number, name] = word
            word += 1
    buffers: dict[Buffer, int] = {}
    for buffer in kernel_buffers(kernel):
        if buffer.kind == "field":
            buffers[buffer] = word
            word += 1
    return ContextLayout(params, buffers, word)


Message = Assert | Overflow | ClaimRow
"""What can stop a launch."""


def messages(kernel: Kernel) -> list[Message]:
    """What each status code (minus 1) stands for, in program order."""
    return [s for t in kernel.tasks for s in walk(t.body) if isinstance(s, Message)]
