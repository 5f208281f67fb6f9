"""The recorder, first part: locks, command buffers that take turns, and when they are submitted."""

from __future__ import annotations

from ....codegen.builder import I32, I64, Builder, Ptr, Value, external, function
from ..results import NOT_PERMITTED
from . import words as w

_begin_buffer = external("vkBeginCommandBuffer", "i32", "i64", "i64")
_end_buffer = external("vkEndCommandBuffer", "i32", "i64")
_queue_submit = external("vkQueueSubmit", "i32", "i64", "i32", "i64", "i64")
_get_counter = external("vkGetSemaphoreCounterValue", "i32", "i64", "i64", "ptr")
_pipeline_barrier = external(
    "vkCmdPipelineBarrier", "void", "i64", "i32", "i32", "i32", "i32", "i64", "i32", "i64", "i32", "i64"
)
_yield = external("qd_yield", "i32")
_COMPUTE_AND_TRANSFER, _HOST = 0x1800, 0x4000
"""Stages of a pipeline, ``VkPipelineStageFlagBits``."""


@function("void")
def lock(f: Builder, at: Ptr) -> None:
    """Take the lock in a word."""
    with f.loop():
        f.leave(when=at.exchange_if(0, 1, "acquire monotonic"))
        f.call(_yield)


def unlock(at: Value) -> None:
    """Give the lock in a word back."""
    at.store(0, order="release")


def enter(s: Value) -> None:
    """Take the lock of a stream."""
    s.f.call(lock, s.words(w.LOCK))


def leave(s: Value) -> None:
    """Give it back."""
    unlock(s.words(w.LOCK))


def slot_at(s: Value, number: Value) -> Value:
    """The record of a slot of a stream."""
    return s[w.SLOTS].words(number * w.SLOT_WORDS_COUNT)


def set_room(s: Value, host: Value, device: Value, size: Value | int) -> None:
    """Set the room for words of launches."""
    s[w.WORDS], s[w.WORDS_DEVICE], s[w.WORDS_AT], s[w.WORDS_SIZE] = host, device, 0, size


@function("i32")
def failed(f: Builder, s: Ptr, result: I32) -> None:
    """Note that a call has failed, and return its code. The stream has failed with it, as what it was to run is lost."""
    code = 0 - result
    s[w.FAILED] = code.to("i64")
    f.ret(code)


def check(s: Value, result: Value) -> None:
    """Return if a call of the driver has failed."""
    with s.f.if_(result != 0):
        s.f.ret(s.f.call(failed, s, result))


@function("i32")
def look(f: Builder, s: Ptr) -> None:
    """Look how far the device is."""
    value = f.stack()
    check(s, f.call(_get_counter, s[w.DEVICE], s[w.SEMAPHORE], value))
    s[w.DONE] = value[0]
    f.ret(0)


@function("i32")
def submit(f: Builder, s: Ptr) -> None:
    """Hand what is recorded to the device; with the lock."""
    f.ret(NOT_PERMITTED, unless=s[w.CAPTURE] == 0)
    buffer = s[w.BUFFER]
    with f.if_(buffer == 0):
        f.ret(s[w.FAILED].to("i32"))
    f.call(_pipeline_barrier, buffer, _COMPUTE_AND_TRANSFER, _HOST, 0, 1, s[w.ENDING], 0, 0, 0, 0)
    s[w.BUFFER] = 0
    check(s, f.call(_end_buffer, buffer))
    value, queue = s[w.LAST] + 1, s[w.QUEUE]
    s[w.VALUE][0], s[w.COMMANDS][0] = value, buffer
    f.call(lock, queue)
    sent = f.call(_queue_submit, queue[1], 1, s[w.SUBMIT], 0)
    unlock(queue)
    check(s, sent)
    s[w.LAST] = value
    slot_at(s, s[w.SLOT])[w.SLOT_VALUE] = value
    f.ret(0)


@function("i32")
def open_buffer(f: Builder, s: Ptr) -> None:
    """See that there is a command buffer to record into; with the lock."""
    before = s[w.FAILED]
    f.ret(before.to("i32"), unless=before == 0)
    f.ret(0, unless=s[w.BUFFER] == 0)
    number = (s[w.SLOT] + 1) % w.SLOT_COUNT
    slot = slot_at(s, number)
    value = slot[w.SLOT_VALUE]
    with f.if_(value.above(s[w.DONE])):
        looked = f.call(look, s)
        f.ret(looked, unless=looked == 0)
        f.ret(-w.SERVE_SLOT, when=value.above(s[w.DONE]))
    commands = slot[w.SLOT_COMMANDS]
    check(s, f.call(_begin_buffer, commands, s[w.BEGIN]))
    s[w.SLOT], s[w.BUFFER], s[w.BOUND], s[w.COUNT] = number, commands, 0, 0
    f.call(use_room, s, slot)
    f.ret(0)


@function("void")
def use_room(f: Builder, s: Ptr, slot: Ptr) -> None:
    """Use the room for words that a slot has."""
    host = slot[w.SLOT_WORDS]
    set_room(s, host, slot[w.SLOT_WORDS_DEVICE], (host != 0).select(w.CHUNK, 0))


@function("i32")
def after(f: Builder, s: Ptr, weight: I64) -> None:
    """End a command: what comes later waits for it; perhaps it is time to submit."""
    f.call(_pipeline_barrier, s[w.BUFFER], _COMPUTE_AND_TRANSFER, _COMPUTE_AND_TRANSFER, 0, 1, s[w.BARRIER], 0, 0, 0, 0)
    count = s[w.COUNT] + weight
    s[w.COUNT] = count
    f.ret(0, when=(s[w.CAPTURE] != 0) | count.below(w.FEW))
    with f.if_(count.below(w.MOST)):
        f.ret(0, unless=(count % w.FEW).below(weight))
        looked = f.call(look, s)
        f.ret(looked, unless=looked == 0)
        f.ret(0, when=s[w.DONE].below(s[w.LAST]))
    f.ret(f.call(submit, s))
