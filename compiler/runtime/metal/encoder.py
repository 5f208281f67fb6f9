"""Machine code that encodes launches for Metal, by messages to its objects: what ``gpu.commands`` lacks.

Work of a stream is in order: within an encoder a barrier stands behind each launch, and a fence orders one encoder behind the other, for
Metal does not track the memory (``heaps``). Arguments of a launch go along by ``setBytes``. More than that takes, or where the function
wants their address, they are copied to the stream's room for arguments.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

from ...codegen.builder import I64, Builder, Ptr, Value, external, function
from ..gpu.commands import words as w
from ..gpu.commands.record_ir import enter, leave, place, slot_at
from .results import NO_OBJECT

F_PIPELINE, F_SHARED, F_ADDRESS, F_WORDS = 0, 1, 2, 3
"""Words of a function: its pipeline; its own on-chip bytes; whether its one word is the address of the words."""
QUEUE, FENCE, HEAPS, PIPELINE, SHARED, FAILED_BUFFER, ENDED = range(w.ENCODER, w.ENCODER + 7)
"""Words of a stream: its objects; a table of the heaps that launches may use, their number in front; the pipeline and the on-chip bytes
that are set in the open encoder; a command buffer that has failed; when the last one has ended, in seconds.
"""
MOST_BYTES = 4096
"""What ``setBytes`` takes."""
COMPLETED, FAILED = 4, 5
"""``MTLCommandBufferStatus``"""
BUFFERS = 1
"""``MTLBarrierScopeBuffers``"""
_push_pool = external("objc_autoreleasePoolPush", "ptr")
_pop_pool = external("objc_autoreleasePoolPop", "void", "ptr")
_SIZE_ON_STACK = "ptr byval([3 x i64]) align 8"


def machine_constants() -> dict[str, int]:
    """How ``MTLSize`` is passed: 24 bytes on the stack of x86-64; on ARM the address of a copy."""
    return {"SIZES_ON_STACK": platform.machine().lower() in ("x86_64", "amd64")}


def _send(f: Builder, receiver: Value, selector: str, *args: Value | int | tuple[str, Value], result: str = "void") -> Value:
    """Send a message. Objects are words."""
    name = f"sel_{selector.replace(':', '_')}"  # see ``Objc.address_of``
    return f.call_address(f.symbol("objc_msgSend"), result, receiver, f.symbol(name), *args)


@contextmanager
def _pool(f: Builder) -> Iterator[None]:
    """A block whose autoreleased objects end with it."""
    pool = f.call(_push_pool)
    yield
    f.call(_pop_pool, pool)


# ---- what ``record_ir`` declares
@function("i32")
def qd_begin(f: Builder, s: Ptr, slot: Ptr) -> None:
    """Make a command buffer with an encoder that comes after the one before and may use all heaps."""
    with _pool(f):
        buffer = _send(f, s[QUEUE], "commandBuffer", result="i64")
        encoder = _send(f, buffer, "computeCommandEncoder", result="i64")
        _send(f, buffer, "retain", result="i64")
        _send(f, encoder, "retain", result="i64")
    with f.if_(encoder == 0):
        _send(f, buffer, "release")
        f.ret(NO_OBJECT)
    with f.if_(s[w.LAST] != 0):
        _send(f, encoder, "waitForFence:", s[FENCE])
    heaps = s.words(HEAPS).load("ptr")
    with f.if_(heaps[0] != 0):
        _send(f, encoder, "useHeaps:count:", heaps.words(1), heaps[0])
    slot[0], s[w.OPEN], s[PIPELINE], s[SHARED] = buffer, encoder, 0, 0
    f.ret(0)


@function("i32")
def qd_hand_over(f: Builder, s: Ptr, slot: Ptr) -> None:
    """End the encoder, and commit its command buffer."""
    encoder = s[w.OPEN]
    s[w.OPEN] = 0
    with _pool(f):
        _send(f, encoder, "updateFence:", s[FENCE])
        _send(f, encoder, "endEncoding")
        _send(f, encoder, "release")
        _send(f, slot[0], "commit")
    f.ret(0)


@function("i32")
def qd_look(f: Builder, s: Ptr) -> None:
    """Release the command buffers that have ended, in order, and keep the first one that has failed."""
    with f.loop():
        value = s[w.DONE] + 1
        f.ret(0, when=value > s[w.LAST])
        slot = slot_at(s, value)
        buffer = slot[0]
        status = _send(f, buffer, "status", result="i64")
        f.ret(0, when=status.below(COMPLETED))
        with f.if_((status == FAILED) & (s[FAILED_BUFFER] == 0)):
            s[FAILED_BUFFER] = _send(f, buffer, "retain", result="i64")
        s.words(ENDED).store(_send(f, buffer, "GPUEndTime", result="double"))
        slot[0], s[w.DONE] = 0, value
        with _pool(f):
            _send(f, buffer, "release")


@function("i32")
def qd_encode(f: Builder, s: Ptr, row: Ptr, words: Ptr) -> None:
    """Encode a launch, and a barrier behind it."""
    fn, nbytes, encoder = row.load("ptr"), row[w.ROW_BYTES], s[w.OPEN]
    by_address, offset = fn[F_ADDRESS] != 0, f.var(0)
    through_room = by_address | nbytes.above(MOST_BYTES)
    with f.if_(through_room):
        offset.value = place(s, words, nbytes)
    pipeline = fn[F_PIPELINE]
    with f.if_(pipeline != s[PIPELINE]):
        _send(f, encoder, "setComputePipelineState:", pipeline)
        s[PIPELINE] = pipeline
    total = (row[w.ROW_SHARED] + fn[F_SHARED] + 15) & -16
    with f.if_((total != 0) & (total != s[SHARED])):
        _send(f, encoder, "setThreadgroupMemoryLength:atIndex:", total, 0)
        s[SHARED] = total
    with f.if_(through_room):
        with f.if_(by_address):
            address = f.stack()
            address[0] = s[w.ROOM_DEVICE] + offset.value
            _send(f, encoder, "setBytes:length:atIndex:", address, 8, 0)
        with f.else_():
            _send(f, encoder, "setBuffer:offset:atIndex:", s[w.ROOM_HANDLE], offset.value, 0)
    with f.else_(), f.if_(nbytes != 0):
        _send(f, encoder, "setBytes:length:atIndex:", words, nbytes, 0)
    grid, block = f.stack(3), f.stack(3)
    for size, x in ((grid, row[w.ROW_BLOCKS]), (block, row[w.ROW_THREADS])):
        size[0], size[1], size[2] = x, 1, 1
    passed = _SIZE_ON_STACK if f.constants["SIZES_ON_STACK"] else "ptr"
    _send(f, encoder, "dispatchThreadgroups:threadsPerThreadgroup:", (passed, grid), (passed, block))
    _send(f, encoder, "memoryBarrierWithScope:", BUFFERS)
    f.ret(0)


# ---- what the host asks of a stream
@function("i32")
def qd_use(f: Builder, s: Ptr, heaps: Ptr, added: Ptr, count: I64) -> None:
    """Set the table of heaps. The open encoder may use the added ones, too."""
    enter(s)
    s[HEAPS] = heaps
    with f.if_((s[w.OPEN] != 0) & (count != 0)):
        _send(f, s[w.OPEN], "useHeaps:count:", added, count)
    leave(s)
    f.ret(0)


@function("i64")
def qd_hold(f: Builder, s: Ptr, value: I64) -> None:
    """The command buffer of a submission, retained; 0: it has ended."""
    enter(s)
    buffer = f.var(0)
    with f.if_(value > s[w.DONE]):
        buffer.value = slot_at(s, value)[0]
        _send(f, buffer.value, "retain", result="i64")
    leave(s)
    f.ret(buffer.value)


ENCODER = qd_begin, qd_hand_over, qd_look, qd_encode, qd_use, qd_hold
