"""The binary interface between a compiled kernel and its launcher. All buffers are arrays of 8-byte words.

A kernel is ``void entry(ptr args)``. ``args[0]`` points to the launch context; then, for each ``ArgDecl`` in order, a scalar takes
one word (its own bytes, low end first) and an ndarray takes ``1 + ndim`` words (address, extents), one more for the address of
its gradient when ``needs_grad``, and one more for that of its dual when ``needs_dual``.

The context belongs to one program and one compiled kernel and outlives its launches::

    word  0  status record (see STATUS_WORDS)     word  6..9   heap base of each plane (PLANES)
    word  1  thread pool (of a GPU: CTX_WEIGHT)   word 10..13  of a GPU (CTX_GPU ..), see below
    word  2  temporaries                          word 14      launch seed (u64)
    word  3  returned values (8 bytes each)       word 15      launches that have ended, of a kernel that stores to fields
    word  4  tangents of the temporaries
    word  5  adjoints of the temporaries          word 16      the status record, as the device sees it
                                                  word 17..    launch parameters of every task, then the field buffers

On a GPU the context is host memory, and so are the status record and the returned values, which the device sees, too, at an address
that may be another one than the host's: word 0 is the host's, word 3 the device's. All other addresses are the device's. Word 1:
microseconds that a launch is thought to take, for native launchers; 10: the device's ``LaunchTable``; 11: the function handles of the
kernel's device functions; 12: the print ring (0: none); 13: scratch. All are 8-byte words::

    launch table (host)                          scratch (device), zero at the start
    0  stream handle                             0  blocks of a reduction that have arrived (the last one zeroes it)
    1  number of multiprocessors                 1  adstack rows that have been claimed
    2  most resident threads of one              2  number of the last launch in which an iteration failed
    3  launches that host entries have made      3  blocks that have come to a barrier of the grid, in this launch
    4  bytes of the scratch memory               4  the checkpoint that has paused the graph that runs (0: none)
    5  launches that host entries have begun     16..   values of a prologue that ran on the device (SCRATCH_VALUES)
                                                 64..   partial results of reductions, one for each block (SCRATCH_PARTIALS)
    8..   the contexts of the last launches: number n is at word 8 + n mod 256 (TABLE_RECENT, RECENT)

    print ring (device): 0 words that were asked for, 1 words that there are, 2 prints that found no room, 3 unused, 4.. the records:
    context address, site number, number of values, the values. Words that no record has taken are zero.

Word 3 of the launch table grows after the last launch of a kernel: what the device's memory holds may have changed since it grew. A
launcher that reads a nonzero status record also zeroes word 2 of the scratch memory: a graph launches with the number that it was made
with. A negative code in the status record is a launch that the driver refused: minus its error code.

Device code changes counters, codes and locks by atomics of their lower 4 bytes, as not every GPU has atomics of 8 bytes. No counter
exceeds them: there are fewer threads.

The status record is zero when all is well. A failure writes it if none of an earlier iteration of the task has, while it holds the lock,
the lower half of word 2: its code (1 + position in ``messages(kernel)``) to word 0, the complement of the iteration's number to word 1,
and operand values (each as f64 or i64 bits, by its type) to the words from 3 on, as many as there is room for. So of a task whose
iterations run at the same time, the failure of the first iteration is left. The upper half of word 2 is the lower half of word 1, if the
number fits into 4 bytes: later iterations that read it do not wait for the lock.

The log of a chunk of a CPU's loop whose sums of reals are made in order: LOG_COUNT, the number of its entries; LOG_CAME, whether the
chunk's turn has come; from LOG_HEAD on an address and a value for each entry, LOG_ENTRIES at most (32 KiB of the thread's stack).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.nodes import ArgDecl, Assert, Buffer, ClaimRow, Kernel, Overflow
from ..ir.types import PLANES as PLANE_BYTES
from ..ir.types import DType
from ..ir.walk import kernel_buffers, walk

PLANES = tuple(PLANE_BYTES)
CTX_STATUS, CTX_POOL, CTX_TMP, CTX_RET, CTX_TMP_DUAL, CTX_TMP_GRAD, CTX_HEAP = 0, 1, 2, 3, 4, 5, 6
ALL_THREADS = (1 << 63) - 1  # a limit of workers that none reaches
LOG_COUNT, LOG_CAME, LOG_HEAD, LOG_ENTRIES = 0, 1, 2, 2048
CTX_WEIGHT, CTX_GPU, CTX_FUNCTIONS, CTX_PRINT, CTX_SCRATCH = 1, 10, 11, 12, 13
CTX_SEED, CTX_LAUNCHES, CTX_STATUS_DEVICE, CTX_FIXED = 14, 15, 16, 17
STATUS_WORDS, STATUS_ITERATION, STATUS_LOCK, STATUS_VALUES = 16, 1, 2, 3
TABLE_STREAM, TABLE_PROCESSORS, TABLE_RESIDENT, TABLE_LAUNCHES, TABLE_SCRATCH, TABLE_BEGUN = 0, 1, 2, 3, 4, 5
TABLE_RECENT, RECENT, TABLE_WORDS = 8, 256, 264
WAYS = 16
"""A chunk of a CPU's loop has so many partial results of a reduction of reals: one for the iterations ``n % WAYS``."""
SCRATCH_ARRIVED, SCRATCH_CLAIMS, SCRATCH_FAILED, SCRATCH_MET, SCRATCH_PAUSED, SCRATCH_VALUES, SCRATCH_PARTIALS = (
    0,
    1,
    2,
    3,
    4,
    16,
    64,
)
RING_USED, RING_SIZE, RING_LOST, RING_RECORDS = 0, 1, 2, 4
RECORD_CONTEXT, RECORD_SITE, RECORD_COUNT, RECORD_VALUES = 0, 1, 2, 3


def plane_of(dtype: DType) -> str:
    """The heap plane of a state word: narrow types widen to 4 bytes."""
    return dtype.plane


def arg_words(arg: ArgDecl) -> int:
    """The number of words of an argument in the argument buffer."""
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
"""The reasons that stop a launch."""


def messages(kernel: Kernel) -> list[Message]:
    """The reports by status code (minus 1), in program order."""
    return [s for t in kernel.tasks for s in walk(t.body) if isinstance(s, Message)]
