"""The recorder: launches from machine code, put into the open encoder of a stream.

A kernel's entry calls ``qd_launch`` and ``qd_memset`` by address (``codegen.gpu.grid.entry``). Where the stream has an open encoder,
machine code takes it, sends its messages, and puts it back: threads exclude one another by that. Where there is none, where it is to be
committed, or where the stream records a graph, ``qd_slow`` is called, which is Python: ``stream.Stream.launch``.

A function's handle is the address of words F_*, a stream's that of words S_*. Words of a launch go along by ``setBytes``. More than that
takes, or where the function wants their address, they are copied into the stream's ring, which is memory of the device.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

from ...codegen.builder import I32, I64, Builder, NativeModule, Ptr, Value, external, function
from ...ir.threads import new_lock
from ..cache import load_cached

F_PIPELINE, F_SHARED, F_ADDRESS, F_WORDS = 0, 1, 2, 3
"""Words of a function: its pipeline; its own on-chip bytes; whether its one word is the address of the words."""

S_ENCODER, S_PIPELINE, S_SHARED, S_LEFT, S_RING, S_RING_HOST, S_RING_DEVICE, S_RING_USED, S_RING_SIZE, S_WORDS = range(10)
"""Words of a stream: the open encoder, or 0 while it is used; the pipeline and the on-chip bytes that are set in it; how many more launches
it takes; the ring: its buffer, its addresses on both sides, bytes used and in all."""

G_FUNCTION, G_BLOCKS, G_THREADS, G_SHARED, G_BYTES, G_WORDS = range(6)
"""Words of a launch in a graph; the words of the launch follow."""

MOST_BYTES = 4096
"""What ``setBytes`` takes."""
RING_ALIGN = 256
BUFFERS = 1
"""``MTLBarrierScopeBuffers``"""

FILL_THREADS, FILL_BLOCKS = 256, 1024
"""Threads of a block, and most blocks, of our own kernels that fill and copy; see ``transfers``."""
_SLOW = external("qd_slow", "i32", "ptr", "i32", "i32", "i32", "ptr", "ptr", "i64")


def _send(f: Builder, encoder: Value, selector: str, *args: Value | int | tuple[str, Value]) -> None:
    f.call_address(f.symbol("msgSend"), "void", encoder, f.symbol(selector), *args)


def _give_words(f: Builder, s: Value, encoder: Value, words: Value, nbytes: Value, end: Value, by_address: Value) -> None:
    """Copy the words into the ring, which then is used up to ``end``, and give the encoder their address, or their buffer."""
    used = s[S_RING_USED]
    f.copy(s[S_RING_HOST] + used, words, nbytes)
    s[S_RING_USED] = end
    with f.if_(by_address):
        address = f.stack()
        address[0] = s[S_RING_DEVICE] + used
        _send(f, encoder, "sel_bytes", address, 8, 0)
    with f.else_():
        _send(f, encoder, "sel_buffer", s[S_RING].to("ptr", "inttoptr"), used, 0)


@function("i32")
def qd_encode(
    f: Builder, s: Ptr, encoder: Ptr, fn: Ptr, blocks: I32, threads: I32, shared: I32, words: Ptr, nbytes: I64
) -> None:
    """Encode a launch. Returns 0, or 1 where the ring has no room: then nothing was sent."""
    by_address = fn[F_ADDRESS] != 0
    through_ring = by_address | nbytes.above(MOST_BYTES)
    end = (s[S_RING_USED] + nbytes + (RING_ALIGN - 1)) & -RING_ALIGN
    f.ret(1, when=through_ring & end.above(s[S_RING_SIZE]))
    pipeline = fn[F_PIPELINE]
    with f.if_(pipeline != s[S_PIPELINE]):
        _send(f, encoder, "sel_pipeline", pipeline.to("ptr", "inttoptr"))
        s[S_PIPELINE] = pipeline
    total = (shared.to("i64") + fn[F_SHARED] + 15) & -16
    with f.if_((total != 0) & (total != s[S_SHARED])):
        _send(f, encoder, "sel_shared", total, 0)
        s[S_SHARED] = total
    with f.if_(through_ring):
        _give_words(f, s, encoder, words, nbytes, end, by_address)
    with f.else_(), f.if_(nbytes != 0):
        _send(f, encoder, "sel_bytes", words, nbytes, 0)
    grid, block = f.stack(3), f.stack(3)
    grid[0], grid[1], grid[2] = blocks.to("i64"), 1, 1
    block[0], block[1], block[2] = threads.to("i64"), 1, 1
    size = _SIZE_ON_STACK if f.constants["SIZES_ON_STACK"] else "ptr"
    _send(f, encoder, "sel_dispatch", (size, grid), (size, block))
    _send(f, encoder, "sel_barrier", BUFFERS)
    s[S_LEFT] = s[S_LEFT] - 1
    f.ret(0)


@function("ptr")
def qd_take(f: Builder, s: Ptr) -> None:
    """The open encoder, which nothing else uses until it is given back; null where there is none, or something else uses it."""
    f.ret(s.words(S_ENCODER).update("xchg", 0, "acquire"))


@function("void")
def qd_give(f: Builder, s: Ptr, encoder: Ptr) -> None:
    """Give it back."""
    s.words(S_ENCODER).store(encoder, "i64", order="release")


@function("i32")
def launch(f: Builder, fn: Ptr, blocks: I32, threads: I32, shared: I32, s: Ptr, words: Ptr, nbytes: I64) -> None:
    """Launch by the open encoder, or else by ``qd_slow``."""
    encoder = f.call(qd_take, s)
    with f.if_(encoder != 0):
        with f.if_(s[S_LEFT] > 0):
            full = f.call(qd_encode, s, encoder, fn, blocks, threads, shared, words, nbytes)
            with f.if_(full == 0):
                f.call(qd_give, s, encoder)
                f.ret(0)
        f.call(qd_give, s, encoder)
    f.ret(f.call(_SLOW, fn, blocks, threads, shared, s, words, nbytes))


@function("i32")
def qd_launch(
    f: Builder, fn: Ptr, gx: I32, gy: I32, gz: I32, bx: I32, by: I32, bz: I32, shared: I32, s: Ptr, p: Ptr, extra: Ptr
) -> None:
    """What kernels call: the signature of ``cuLaunchKernel``."""
    with f.if_(extra == 0):
        f.ret(f.call(launch, fn, gx, bx, shared, s, 0, 0))
    f.ret(f.call(launch, fn, gx, bx, shared, s, extra[1], extra[3][0]))


@function("i32")
def qd_memset(f: Builder, to: Ptr, value: I32, count: I64, s: Ptr) -> None:
    """Fill 4-byte words, by the function that fills: address, bytes to the next row, word, words of a row, rows."""
    f.ret(0, when=count == 0)
    words = f.stack(5)
    for k, x in enumerate((to, 0, value.to("i64"), count, 1)):
        words[k] = x
    blocks = (count + (FILL_THREADS - 1)) // FILL_THREADS
    blocks = blocks.below(FILL_BLOCKS).select(blocks, FILL_BLOCKS).to("i32")
    f.ret(f.call(launch, f.symbol("fill_function")[0], blocks, FILL_THREADS, 0, s, words, 5 * 8))


@function("i64")
def qd_replay(f: Builder, s: Ptr, encoder: Ptr, at: Ptr, start: I64, count: I64, following: Ptr) -> None:
    """Encode the launches of a table from number ``start`` on, up to ``count``. Returns the number of the first one that is not encoded."""
    k, here = f.var(start), f.var(at)
    with f.loop():
        row = here.value
        following[0] = row
        f.leave(unless=(k.value < count) & (s[S_LEFT] > 0))
        words, nbytes = row.words(G_WORDS), row[G_BYTES]
        blocks, threads, shared = (row[x].to("i32") for x in (G_BLOCKS, G_THREADS, G_SHARED))
        f.leave(unless=f.call(qd_encode, s, encoder, row[G_FUNCTION], blocks, threads, shared, words, nbytes) == 0)
        k.value, here.value = k.value + 1, words + nbytes
    f.ret(k.value)


_EXPORTS = qd_launch, qd_memset, qd_encode, qd_replay, qd_take, qd_give
_SIZE_ON_STACK = "ptr byval([3 x i64]) align 8"


@dataclass(frozen=True, slots=True)
class Imports:
    """What the recorder calls: ``objc_msgSend``, the selectors of a launch by the names in the text, ``qd_slow``, and the address of the
    word with the handle of the function that fills.
    """

    message: int
    selectors: tuple[tuple[str, int], ...]
    slow: int
    fill: int


SELECTORS = {
    "sel_pipeline": "setComputePipelineState:",
    "sel_shared": "setThreadgroupMemoryLength:atIndex:",
    "sel_bytes": "setBytes:length:atIndex:",
    "sel_buffer": "setBuffer:offset:atIndex:",
    "sel_dispatch": "dispatchThreadgroups:threadsPerThreadgroup:",
    "sel_barrier": "memoryBarrierWithScope:",
}


@dataclass(frozen=True, slots=True)
class RecorderAddresses:
    """Addresses of the functions."""

    launch: int
    memset: int
    encode: int
    replay: int
    take: int
    give: int


_made: dict[Imports, RecorderAddresses] = {}
_lock = new_lock(sys.modules[__name__], "_lock")


def recorder_module(machine: str) -> NativeModule:
    """The module. ``machine``: the processor, which decides how ``MTLSize`` is passed: 24 bytes on the stack of x86-64; on ARM the address
    of a copy.
    """
    return NativeModule(_EXPORTS, {"SIZES_ON_STACK": machine.lower() in ("x86_64", "amd64")})


def recorder(found: Imports) -> RecorderAddresses:
    """The functions, made once and never unloaded: kernels' code calls them until the process ends."""
    with _lock:
        if found not in _made:
            imports = {"msgSend": found.message, "qd_slow": found.slow, "fill_function": found.fill, **dict(found.selectors)}
            made = recorder_module(platform.machine())
            code = load_cached(made.text, "launch", list(made.exports), imports, 1)[0]
            code.make_immortal()
            _made[found] = RecorderAddresses(*(code.addresses[name] for name in made.exports))
        return _made[found]
