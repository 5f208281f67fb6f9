"""The recorder, third part: fills, copies, time stamps, graphs; and what the host asks of a stream."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ....codegen.builder import I32, I64, Builder, NativeFunction, Ptr, Value, external, function
from ..results import NOT_PERMITTED
from . import words as w
from .launch_ir import finish, qd_launch, qd_memset
from .submit_ir import after, enter, leave, open_buffer, set_room, slot_at, submit, use_room

_fill_buffer = external("vkCmdFillBuffer", "void", "i64", "i64", "i64", "i64", "i32")
_copy_buffer = external("vkCmdCopyBuffer", "void", "i64", "i64", "i64", "i32", "ptr")
_update_buffer = external("vkCmdUpdateBuffer", "void", "i64", "i64", "i64", "i64", "i64")
_reset_queries = external("vkCmdResetQueryPool", "void", "i64", "i64", "i32", "i32")
_write_timestamp = external("vkCmdWriteTimestamp", "void", "i64", "i32", "i64", "i32")
_execute_commands = external("vkCmdExecuteCommands", "void", "i64", "i32", "ptr")
_END_OF_PIPELINE = 0x2000

_Emit = Callable[..., Value | int]


def _command(*, captured: bool = True) -> Callable[[_Emit], NativeFunction]:
    """Define the function that puts one command into a stream; its body returns how many commands it counts as.

    Args:
        captured: a graph may record it.
    """

    def define(emit: _Emit) -> NativeFunction:
        @functools.wraps(emit)
        def body(f: Builder, s: Value, *given: Value) -> None:
            with f.loop():
                enter(s)
                code = f.var(f.call(open_buffer, s))
                if not captured:
                    with f.if_(code.value == 0), f.if_(s[w.CAPTURE] != 0):
                        code.value = NOT_PERMITTED
                with f.if_(code.value == 0):
                    code.value = f.call(after, s, emit(f, s, *given))
                leave(s)
                finish(s, code.value)

        return function("i32")(body)

    return define


@_command()
def qd_fill(f: Builder, s: Ptr, to: I64, at: I64, n: I64, word: I32) -> int:
    """Fill words of a buffer."""
    f.call(_fill_buffer, s[w.BUFFER], to, at, n, word)
    return 1


@_command()
def qd_copy(f: Builder, s: Ptr, source: I64, source_at: I64, to: I64, to_at: I64, n: I64) -> int:
    """Copy from one buffer to another."""
    region = f.stack(3)
    region[0], region[1], region[2] = source_at, to_at, n
    f.call(_copy_buffer, s[w.BUFFER], source, to, 1, region)
    return 1


@_command()
def qd_update(f: Builder, s: Ptr, to: I64, at: I64, n: I64, data: I64) -> int:
    """Copy a few bytes of the host to a buffer."""
    f.call(_update_buffer, s[w.BUFFER], to, at, n, data)
    return 1


@_command(captured=False)
def qd_stamp(f: Builder, s: Ptr, pool: I64, query: I32) -> int:
    """Write a time stamp when all that is in the stream has run."""
    f.call(_reset_queries, s[w.BUFFER], pool, query, 1)
    f.call(_write_timestamp, s[w.BUFFER], _END_OF_PIPELINE, pool, query)
    return 0


@_command(captured=False)
def qd_execute(f: Builder, s: Ptr, graph: I64, weight: I64) -> Value:
    """Run a recorded graph."""
    graphs = f.stack()
    graphs[0] = graph
    f.call(_execute_commands, s[w.BUFFER], 1, graphs)
    s[w.BOUND] = 0
    return weight


@function("i32")
def qd_submit(f: Builder, s: Ptr) -> None:
    """Hand what is recorded to the device."""
    enter(s)
    result = f.call(submit, s)
    leave(s)
    f.ret(result)


@function("i64")
def qd_pending(f: Builder, s: Ptr) -> None:
    """The value of the stream's semaphore when all that is in the stream now has run."""
    enter(s)
    buffer = (s[w.CAPTURE] != 0).select(s[w.OUTER], s[w.BUFFER])
    value = s[w.LAST] + (buffer != 0).to("i64")
    leave(s)
    f.ret(value)


@function("i32")
def qd_exchange(f: Builder, s: Ptr, other: Ptr) -> None:
    """Exchange what is recorded into: words 0 to ``CAPTURE``."""
    enter(s)
    s[w.OUTER] = s[w.BUFFER]
    with f.range(w.SAVED) as k:
        mine, its = s[k], other[k]
        s[k], other[k] = its, mine
    leave(s)
    f.ret(0)


@function("i32")
def qd_room(f: Builder, s: Ptr, host: I64, device: I64) -> None:
    """Give room for words to all slots, or to the graph that is being recorded."""
    enter(s)
    with f.if_(s[w.CAPTURE] != 0):
        set_room(s, host, device, w.CHUNK)
    with f.else_():
        with f.range(w.SLOT_COUNT) as k:
            slot, offset = slot_at(s, k), k * w.CHUNK
            slot[w.SLOT_WORDS], slot[w.SLOT_WORDS_DEVICE] = host + offset, device + offset
        f.call(use_room, s, slot_at(s, s[w.SLOT]))
    leave(s)
    f.ret(0)


EXPORTS = (
    *(qd_launch, qd_memset, qd_fill, qd_copy, qd_update, qd_stamp, qd_execute, qd_submit, qd_pending),
    *(qd_exchange, qd_room),
)
