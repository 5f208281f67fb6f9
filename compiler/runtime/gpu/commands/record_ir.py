"""The recorder: machine code that puts launches into a stream's command buffers and submits them."""

from __future__ import annotations

from ....codegen.builder import I32, I64, Builder, Ptr, Value, external, function
from . import words as w

begin = external("qd_begin", "i32", "ptr", "ptr")
"""Begin the command buffer of a slot, and set ``OPEN``. Arguments: stream, slot."""
hand_over = external("qd_hand_over", "i32", "ptr", "ptr")
"""End the open command buffer of a slot and submit it as number ``LAST + 1``; clears ``OPEN``."""
look = external("qd_look", "i32", "ptr")
"""Set ``DONE`` to the number of the last submission that has ended."""
encode = external("qd_encode", "i32", "ptr", "ptr", "ptr")
"""Encode a launch into ``OPEN``, and what makes later commands wait for it. Arguments: stream, row, arguments.

These four return 0, the code of a failure, or ``-SERVE_..`` or ``-RETRY`` if nothing was encoded.
"""
_serve = external("qd_serve", "i32", "i32", "ptr", "ptr", "ptr")
_yield = external("qd_yield", "i32")


# ---- locks
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


# ---- submissions; the caller has the lock
def slot_at(s: Value, value: Value) -> Value:
    """The slot of a submission."""
    return s[w.SLOTS].words(value % w.SLOT_COUNT)


@function("i32")
def submit(f: Builder, s: Ptr) -> None:
    """Submit what is recorded."""
    f.ret(s[w.FAILED].to("i32"), when=s[w.OPEN] == 0)
    value = s[w.LAST] + 1
    sent = f.call(hand_over, s, slot_at(s, value))
    f.ret(sent, unless=sent == 0)
    s[w.LAST] = value
    f.ret(0)


@function("i32")
def open_buffer(f: Builder, s: Ptr) -> None:
    """See that there is a command buffer to record into."""
    before = s[w.FAILED]
    f.ret(before.to("i32"), unless=before == 0)
    f.ret(0, unless=s[w.OPEN] == 0)
    value = s[w.LAST] + 1
    with f.if_(value > s[w.DONE] + w.SLOT_COUNT):
        looked = f.call(look, s)
        f.ret(looked, unless=looked == 0)
        f.ret(-w.SERVE_SLOT, when=value > s[w.DONE] + w.SLOT_COUNT)
    begun = f.call(begin, s, slot_at(s, value))
    f.ret(begun, unless=begun == 0)
    s[w.COUNT], s[w.ROOM_AT] = 0, 0
    f.ret(0)


@function("i32")
def after(f: Builder, s: Ptr, weight: I64) -> None:
    """Count commands, and submit them if it is time to."""
    count = s[w.COUNT] + weight
    s[w.COUNT] = count
    f.ret(0, when=count.below(w.FEW))
    with f.if_(count.below(w.MOST)):
        f.ret(0, unless=(count % w.FEW).below(weight))
        looked = f.call(look, s)
        f.ret(looked, unless=looked == 0)
        f.ret(0, when=s[w.DONE].below(s[w.LAST]))
    f.ret(f.call(submit, s))


def place(s: Value, words: Value, nbytes: Value) -> Value:
    """Copy arguments to the room for them; returns their offset. An encoder calls it before it encodes anything."""
    f = s.f
    at, size = s[w.ROOM_AT], s[w.ROOM_SIZE]
    end = at + nbytes
    with f.if_(end.above(size)):
        f.ret(-w.SERVE_ROOM, when=nbytes.above(size))
        sent = f.call(submit, s)
        f.ret(sent, unless=sent == 0)
        f.ret(-w.RETRY)
    offset = (s[w.LAST] + 1) % w.SLOT_COUNT * size + at
    f.copy(s[w.ROOM] + offset, words, nbytes)
    s[w.ROOM_AT] = (end + (w.ROOM_ALIGN - 1)) & -w.ROOM_ALIGN
    return offset


# ---- launches
@function("i32")
def record(f: Builder, s: Ptr, row: Ptr, words: Ptr) -> None:
    """Record a launch; with the lock."""
    f.ret(-w.SERVE_RECORD, unless=s[w.CAPTURE] == 0)
    opened = f.call(open_buffer, s)
    f.ret(opened, unless=opened == 0)
    code = f.call(encode, s, row, words)
    f.ret(code, unless=code == 0)
    f.ret(f.call(after, s, 1))


def finish(s: Value, code: Value, row: Value | int = 0, words: Value | int = 0) -> None:
    """Return the code of a command, unless it asks for something that Python does, and that lets it be tried again."""
    f = s.f
    f.ret(code, unless=code < 0)
    with f.if_(code != -w.RETRY):
        served = f.call(_serve, 0 - code, s, row, words)
        f.ret(served, when=(served != 0) | (code == -w.SERVE_RECORD))


@function("i32")
def qd_put(f: Builder, s: Ptr, row: Ptr, words: Ptr) -> None:
    """Put a launch into a stream, or into the graph that it records."""
    with f.loop():
        enter(s)
        code = f.call(record, s, row, words)
        leave(s)
        finish(s, code, row, words)


def _row(f: Builder, fn: Value, blocks: Value, threads: Value | int, shared: Value | int, nbytes: Value | int) -> Value:
    row = f.stack(w.ROW_WORDS)
    for k, x in enumerate((fn, blocks, threads, shared, nbytes)):
        row[k] = x
    return row


@function("i32")
def qd_launch(
    f: Builder, fn: Ptr, gx: I32, gy: I32, gz: I32, bx: I32, by: I32, bz: I32, shared: I32, s: Ptr, p: Ptr, extra: Ptr
) -> None:
    """Launch a function: what kernels call, with the signature of ``cuLaunchKernel``."""
    f.ret(0, when=gx == 0)
    words, nbytes = f.var(0), f.var(0)
    with f.if_(extra != 0):
        words.value, nbytes.value = extra[1], extra[3][0]
    row = _row(f, fn, gx.to("i64"), bx.to("i64"), shared.to("i64"), nbytes.value)
    f.ret(f.call(qd_put, s, row, words.value))


def _help(f: Builder, s: Value, fn: Value, arguments: tuple[Value | int, ...]) -> None:
    """Launch a function of ours on one row of values, and return the code; the last two arguments are the values of a row, and rows."""
    n, words = arguments[-2], f.stack(len(arguments))
    assert isinstance(n, Value)
    for k, x in enumerate(arguments):
        words[k] = x
    blocks = (n + (w.FILL_BLOCK - 1)) // w.FILL_BLOCK
    blocks = blocks.below(w.MOST_BLOCKS).select(blocks, w.MOST_BLOCKS)
    f.ret(f.call(qd_put, s, _row(f, fn, blocks, w.FILL_BLOCK, 0, 8 * len(arguments)), words))


@function("i32")
def qd_memset(f: Builder, address: I64, word: I32, n: I64, s: Ptr) -> None:
    """Fill 4-byte words, by the function that fills: address, bytes to the next row, word, words of a row, rows."""
    f.ret(0, when=n == 0)
    _help(f, s, s[w.FILL], (address, 0, word.to("i64"), n, 1))


@function("i32")
def qd_copy_run(f: Builder, to: I64, source: I64, nbytes: I64, s: Ptr) -> None:
    """Copy bytes within the device, by the functions that copy: as ``own_kernels.copy_of_rows`` says."""
    f.ret(0, when=nbytes == 0)
    by_words = ((to | source | nbytes) & 3) == 0
    n = by_words.select(nbytes >> 2, nbytes)
    _help(f, s, by_words.select(s[w.COPY_4], s[w.COPY_1]), (to, 0, source, 0, n, 1))


@function("i32")
def qd_replay(f: Builder, s: Ptr, rows: Ptr, end: Ptr) -> None:
    """Put recorded launches into a stream: rows, each with its arguments behind it."""
    here = f.var(rows)
    with f.loop():
        row = here.value
        f.leave(unless=row.below(end))
        words = row.words(w.ROW_WORDS)
        code = f.call(qd_put, s, row, words)
        f.ret(code, unless=code == 0)
        here.value = words + row[w.ROW_BYTES]
    f.ret(0)


# ---- what the host asks of a stream
@function("i32")
def qd_submit(f: Builder, s: Ptr) -> None:
    """Submit what is recorded."""
    enter(s)
    result = f.call(submit, s)
    leave(s)
    f.ret(result)


@function("i32")
def qd_done(f: Builder, s: Ptr) -> None:
    """Set ``DONE``."""
    enter(s)
    result = f.call(look, s)
    leave(s)
    f.ret(result)


@function("i64")
def qd_pending(f: Builder, s: Ptr) -> None:
    """The number of the submission after which all that is in the stream now has run."""
    enter(s)
    value = s[w.LAST] + (s[w.OPEN] != 0).to("i64")
    leave(s)
    f.ret(value)


@function("i32")
def qd_room(f: Builder, s: Ptr, host: I64, device: I64, handle: I64, size: I64) -> None:
    """Give room for arguments, ``size`` bytes for each slot."""
    enter(s)
    s[w.ROOM], s[w.ROOM_DEVICE], s[w.ROOM_HANDLE], s[w.ROOM_SIZE], s[w.ROOM_AT] = host, device, handle, size, 0
    leave(s)
    f.ret(0)


EXPORTS = qd_launch, qd_memset, qd_copy_run, qd_put, qd_replay, qd_submit, qd_done, qd_pending, qd_room
