"""Machine code that encodes commands for Vulkan: what ``gpu.commands`` lacks, and commands of Vulkan's own that copy, fill and time."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ...codegen.builder import I32, I64, Builder, NativeFunction, Ptr, Value, external, function
from ..gpu.commands import words as w
from ..gpu.commands.record_ir import after, enter, finish, leave, lock, open_buffer, place, unlock
from .results import NOT_PERMITTED, VALIDATION_FAILED

# Words of a stream: the pipeline that is bound; handles; structures that calls are given, and what these point to.
BOUND, SEMAPHORE, QUEUE, DEVICE, SUBMIT, VALUE, BEGIN, COMMANDS, BARRIER, ENDING = range(w.ENCODER, w.ENCODER + 10)
# Words of a function: layout of its pipelines, bytes of its words, whether they are passed by address; how many pipelines; pairs of the
# size (threads of a block, bytes of on-chip memory in the upper half) and the pipeline.
LAYOUT, BYTES, BY_ADDRESS, SIZES, PIPELINES = range(5)
MOST_SIZES = 64
FUNCTION_WORDS = PIPELINES + 2 * MOST_SIZES

_begin_buffer = external("vkBeginCommandBuffer", "i32", "i64", "i64")
_end_buffer = external("vkEndCommandBuffer", "i32", "i64")
_queue_submit = external("vkQueueSubmit", "i32", "i64", "i32", "i64", "i64")
_get_counter = external("vkGetSemaphoreCounterValue", "i32", "i64", "i64", "ptr")
_pipeline_barrier = external(
    "vkCmdPipelineBarrier", "void", "i64", "i32", "i32", "i32", "i32", "i64", "i32", "i64", "i32", "i64"
)
_bind_pipeline = external("vkCmdBindPipeline", "void", "i64", "i32", "i64")
_push_constants = external("vkCmdPushConstants", "void", "i64", "i64", "i32", "i32", "i32", "ptr")
_dispatch = external("vkCmdDispatch", "void", "i64", "i32", "i32", "i32")
_fill_buffer = external("vkCmdFillBuffer", "void", "i64", "i64", "i64", "i64", "i32")
_copy_buffer = external("vkCmdCopyBuffer", "void", "i64", "i64", "i64", "i32", "ptr")
_update_buffer = external("vkCmdUpdateBuffer", "void", "i64", "i64", "i64", "i64", "i64")
_reset_queries = external("vkCmdResetQueryPool", "void", "i64", "i64", "i32", "i32")
_write_timestamp = external("vkCmdWriteTimestamp", "void", "i64", "i32", "i64", "i32")
_COMPUTE_BIND_POINT, _COMPUTE_STAGE = 1, 0x20
_COMPUTE_AND_TRANSFER, _HOST, _END_OF_PIPELINE = 0x1800, 0x4000, 0x2000
"""Stages of a pipeline, ``VkPipelineStageFlagBits``."""


@function("i32")
def failed(f: Builder, s: Ptr, result: I32) -> None:
    """Note that a call has failed, and return its code. The stream has failed with it, as what it was to run is lost."""
    code = 0 - result
    s[w.FAILED] = code.to("i64")
    f.ret(code)


def _check(s: Value, result: Value) -> None:
    """Return if a call of the driver has failed."""
    with s.f.if_(result != 0):
        s.f.ret(s.f.call(failed, s, result))


def _barrier(s: Value) -> None:
    """Have later commands wait for those before."""
    s.f.call(_pipeline_barrier, s[w.OPEN], _COMPUTE_AND_TRANSFER, _COMPUTE_AND_TRANSFER, 0, 1, s[BARRIER], 0, 0, 0, 0)


# ---- what ``record_ir`` declares
@function("i32")
def qd_begin(f: Builder, s: Ptr, slot: Ptr) -> None:
    """Begin the command buffer of a slot."""
    commands = slot[0]
    _check(s, f.call(_begin_buffer, commands, s[BEGIN]))
    s[w.OPEN], s[BOUND] = commands, 0
    f.ret(0)


@function("i32")
def qd_hand_over(f: Builder, s: Ptr, slot: Ptr) -> None:
    """End the open command buffer, and submit it."""
    buffer = s[w.OPEN]
    f.call(_pipeline_barrier, buffer, _COMPUTE_AND_TRANSFER, _HOST, 0, 1, s[ENDING], 0, 0, 0, 0)
    s[w.OPEN] = 0
    _check(s, f.call(_end_buffer, buffer))
    queue = s[QUEUE]
    s[VALUE][0], s[COMMANDS][0] = s[w.LAST] + 1, buffer
    f.call(lock, queue)
    sent = f.call(_queue_submit, queue[1], 1, s[SUBMIT], 0)
    unlock(queue)
    _check(s, sent)
    f.ret(0)


@function("i32")
def qd_look(f: Builder, s: Ptr) -> None:
    """Read the semaphore."""
    value = f.stack()
    _check(s, f.call(_get_counter, s[DEVICE], s[SEMAPHORE], value))
    s[w.DONE] = value[0]
    f.ret(0)


@function("i64")
def find_pipeline(f: Builder, fn: Ptr, size: I64) -> None:
    """The pipeline of a size, 0 if there is none yet."""
    with f.range(fn.words(SIZES).load(order="acquire")) as i:
        pair = fn.words(PIPELINES).words(i << 1)
        with f.if_(pair[0] == size):
            f.ret(pair[1])
    f.ret(0)


@function("i32")
def qd_encode(f: Builder, s: Ptr, row: Ptr, words: Ptr) -> None:
    """Encode a launch, by the pipeline of its size."""
    fn, nbytes, data = row[w.ROW_FUNCTION], f.var(row[w.ROW_BYTES]), f.var(words)
    pipeline = f.call(find_pipeline, fn, (row[w.ROW_SHARED] << 32) | row[w.ROW_THREADS])
    f.ret(-w.SERVE_ENCODER, when=pipeline == 0)
    f.ret(VALIDATION_FAILED, unless=fn[BYTES] == nbytes.value)
    address, buffer = f.stack(), s[w.OPEN]
    with f.if_(fn[BY_ADDRESS] != 0):
        address[0] = s[w.ROOM_DEVICE] + place(s, words, nbytes.value)
        data.value, nbytes.value = address, 8
    with f.if_(s[BOUND] != pipeline):
        f.call(_bind_pipeline, buffer, _COMPUTE_BIND_POINT, pipeline)
        s[BOUND] = pipeline
    with f.if_(nbytes.value != 0):
        f.call(_push_constants, buffer, fn[LAYOUT], _COMPUTE_STAGE, 0, nbytes.value.to("i32"), data.value)
    f.call(_dispatch, buffer, row[w.ROW_BLOCKS].to("i32"), 1, 1)
    _barrier(s)
    f.ret(0)


# ---- commands of Vulkan's own
_Emit = Callable[..., int]


def _command(emit: _Emit) -> NativeFunction:
    """Define the function that puts one command into a stream; its body returns how many launches it counts as. No graph records it."""

    @functools.wraps(emit)
    def body(f: Builder, s: Value, *given: Value) -> None:
        with f.loop():
            enter(s)
            code = f.var(NOT_PERMITTED, "i32")
            with f.if_(s[w.CAPTURE] == 0):
                code.value = f.call(open_buffer, s)
            with f.if_(code.value == 0):
                weight = emit(f, s, *given)
                _barrier(s)
                code.value = f.call(after, s, weight)
            leave(s)
            finish(s, code.value)

    return function("i32")(body)


@_command
def qd_fill(f: Builder, s: Ptr, to: I64, at: I64, n: I64, word: I32) -> int:
    """Fill ``n`` bytes of a buffer with a word."""
    f.call(_fill_buffer, s[w.OPEN], to, at, n, word)
    return 1


@_command
def qd_copy(f: Builder, s: Ptr, source: I64, source_at: I64, to: I64, to_at: I64, n: I64) -> int:
    """Copy from one buffer to another."""
    region = f.stack(3)
    region[0], region[1], region[2] = source_at, to_at, n
    f.call(_copy_buffer, s[w.OPEN], source, to, 1, region)
    return 1


@_command
def qd_update(f: Builder, s: Ptr, to: I64, at: I64, n: I64, data: I64) -> int:
    """Copy at most 64 KiB of the host to a buffer."""
    f.call(_update_buffer, s[w.OPEN], to, at, n, data)
    return 1


@_command
def qd_stamp(f: Builder, s: Ptr, pool: I64, query: I32) -> int:
    """Write a time stamp when all that is in the stream has run."""
    f.call(_reset_queries, s[w.OPEN], pool, query, 1)
    f.call(_write_timestamp, s[w.OPEN], _END_OF_PIPELINE, pool, query)
    return 0


ENCODER = qd_begin, qd_hand_over, qd_look, qd_encode, qd_fill, qd_copy, qd_update, qd_stamp
