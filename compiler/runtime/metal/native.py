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

_TEXT = """
@msgSend = external global i8
@sel_pipeline = external global i8
@sel_shared = external global i8
@sel_bytes = external global i8
@sel_buffer = external global i8
@sel_dispatch = external global i8
@sel_barrier = external global i8
@fill_function = external global i8
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i32 @qd_slow(ptr, i32, i32, i32, ptr, ptr, i64)

define internal i64 @word(ptr %base, i64 %k) alwaysinline {
  %p = getelementptr i64, ptr %base, i64 %k
  %v = load i64, ptr %p
  ret i64 %v
}
define internal void @set(ptr %base, i64 %k, i64 %v) alwaysinline {
  %p = getelementptr i64, ptr %base, i64 %k
  store i64 %v, ptr %p
  ret void
}

; 0, or 1 where the ring has no room: then nothing was sent
define i32 @qd_encode(ptr %s, ptr %encoder, ptr %f, i32 %blocks, i32 %threads, i32 %shared, ptr %words, i64 %bytes) {
  %grid = alloca [3 x i64], align 8
  %block = alloca [3 x i64], align 8
  %address = alloca i64
  %by_address_i = call i64 @word(ptr %f, i64 $F_ADDRESS$)
  %by_address = icmp ne i64 %by_address_i, 0
  %large = icmp ugt i64 %bytes, $MOST_BYTES$
  %through_ring = or i1 %by_address, %large
  %used = call i64 @word(ptr %s, i64 $S_RING_USED$)
  %size = call i64 @word(ptr %s, i64 $S_RING_SIZE$)
  %end_exact = add i64 %used, %bytes
  %end_more = add i64 %end_exact, $RING_ALIGN_LESS$
  %end = and i64 %end_more, -$RING_ALIGN$
  %over = icmp ugt i64 %end, %size
  %no_room = and i1 %over, %through_ring
  br i1 %no_room, label %full, label %begin
full:
  ret i32 1
begin:
  %pipeline = call i64 @word(ptr %f, i64 $F_PIPELINE$)
  %pipeline_now = call i64 @word(ptr %s, i64 $S_PIPELINE$)
  %same = icmp eq i64 %pipeline, %pipeline_now
  br i1 %same, label %on_chip, label %set_pipeline
set_pipeline:
  %pipeline_p = inttoptr i64 %pipeline to ptr
  call void @msgSend(ptr %encoder, ptr @sel_pipeline, ptr %pipeline_p)
  call void @set(ptr %s, i64 $S_PIPELINE$, i64 %pipeline)
  br label %on_chip
on_chip:
  %asked = zext i32 %shared to i64
  %own = call i64 @word(ptr %f, i64 $F_SHARED$)
  %both = add i64 %asked, %own
  %both_15 = add i64 %both, 15
  %total = and i64 %both_15, -16
  %total_now = call i64 @word(ptr %s, i64 $S_SHARED$)
  %none = icmp eq i64 %total, 0
  %known = icmp eq i64 %total, %total_now
  %skip = or i1 %none, %known
  br i1 %skip, label %give, label %set_shared
set_shared:
  call void @msgSend(ptr %encoder, ptr @sel_shared, i64 %total, i64 0)
  call void @set(ptr %s, i64 $S_SHARED$, i64 %total)
  br label %give
give:
  br i1 %through_ring, label %ring, label %plain
plain:
  %nothing = icmp eq i64 %bytes, 0
  br i1 %nothing, label %dispatch, label %set_bytes
set_bytes:
  call void @msgSend(ptr %encoder, ptr @sel_bytes, ptr %words, i64 %bytes, i64 0)
  br label %dispatch
ring:
  %host = call i64 @word(ptr %s, i64 $S_RING_HOST$)
  %to_i = add i64 %host, %used
  %to = inttoptr i64 %to_i to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %words, i64 %bytes, i1 false)
  call void @set(ptr %s, i64 $S_RING_USED$, i64 %end)
  br i1 %by_address, label %set_address, label %set_buffer
set_address:
  %device = call i64 @word(ptr %s, i64 $S_RING_DEVICE$)
  %there = add i64 %device, %used
  store i64 %there, ptr %address
  call void @msgSend(ptr %encoder, ptr @sel_bytes, ptr %address, i64 8, i64 0)
  br label %dispatch
set_buffer:
  %buffer_i = call i64 @word(ptr %s, i64 $S_RING$)
  %buffer = inttoptr i64 %buffer_i to ptr
  call void @msgSend(ptr %encoder, ptr @sel_buffer, ptr %buffer, i64 %used, i64 0)
  br label %dispatch
dispatch:
  %blocks_64 = zext i32 %blocks to i64
  %threads_64 = zext i32 %threads to i64
  call void @set(ptr %grid, i64 0, i64 %blocks_64)
  call void @set(ptr %grid, i64 1, i64 1)
  call void @set(ptr %grid, i64 2, i64 1)
  call void @set(ptr %block, i64 0, i64 %threads_64)
  call void @set(ptr %block, i64 1, i64 1)
  call void @set(ptr %block, i64 2, i64 1)
  call void @msgSend(ptr %encoder, ptr @sel_dispatch, $SIZE$ %grid, $SIZE$ %block)
  call void @msgSend(ptr %encoder, ptr @sel_barrier, i64 $BUFFERS$)
  %left = call i64 @word(ptr %s, i64 $S_LEFT$)
  %fewer = sub i64 %left, 1
  call void @set(ptr %s, i64 $S_LEFT$, i64 %fewer)
  ret i32 0
}

; the open encoder, which nothing else uses until it is given back; null where there is none, or something else uses it
define ptr @qd_take(ptr %s) {
  %p = getelementptr i64, ptr %s, i64 $S_ENCODER$
  %taken = atomicrmw xchg ptr %p, i64 0 acquire
  %encoder = inttoptr i64 %taken to ptr
  ret ptr %encoder
}
define void @qd_give(ptr %s, ptr %encoder) {
  %p = getelementptr i64, ptr %s, i64 $S_ENCODER$
  %given = ptrtoint ptr %encoder to i64
  store atomic i64 %given, ptr %p release, align 8
  ret void
}

define internal i32 @launch(ptr %f, i32 %blocks, i32 %threads, i32 %shared, ptr %s, ptr %words, i64 %bytes) {
  %encoder = call ptr @qd_take(ptr %s)
  %closed = icmp eq ptr %encoder, null
  br i1 %closed, label %slow, label %open
open:
  %left = call i64 @word(ptr %s, i64 $S_LEFT$)
  %over = icmp sle i64 %left, 0
  br i1 %over, label %give_back, label %fast
fast:
  %full = call i32 @qd_encode(ptr %s, ptr %encoder, ptr %f, i32 %blocks, i32 %threads, i32 %shared, ptr %words, i64 %bytes)
  %done = icmp eq i32 %full, 0
  br i1 %done, label %out, label %give_back
out:
  call void @qd_give(ptr %s, ptr %encoder)
  ret i32 0
give_back:
  call void @qd_give(ptr %s, ptr %encoder)
  br label %slow
slow:
  %code = call i32 @qd_slow(ptr %f, i32 %blocks, i32 %threads, i32 %shared, ptr %s, ptr %words, i64 %bytes)
  ret i32 %code
}

define i32 @qd_launch(ptr %f, i32 %gx, i32 %gy, i32 %gz, i32 %bx, i32 %by, i32 %bz, i32 %shared, ptr %s, ptr %p, ptr %extra) {
  %no_words = icmp eq ptr %extra, null
  br i1 %no_words, label %bare, label %packed
bare:
  %r0 = call i32 @launch(ptr %f, i32 %gx, i32 %bx, i32 %shared, ptr %s, ptr null, i64 0)
  ret i32 %r0
packed:
  %words_i = call i64 @word(ptr %extra, i64 1)
  %words = inttoptr i64 %words_i to ptr
  %size_i = call i64 @word(ptr %extra, i64 3)
  %size_p = inttoptr i64 %size_i to ptr
  %bytes = load i64, ptr %size_p
  %r1 = call i32 @launch(ptr %f, i32 %gx, i32 %bx, i32 %shared, ptr %s, ptr %words, i64 %bytes)
  ret i32 %r1
}

define i32 @qd_memset(ptr %to, i32 %value, i64 %count, ptr %s) {
  %words = alloca [5 x i64], align 8
  %to_i = ptrtoint ptr %to to i64
  %value_64 = zext i32 %value to i64
  call void @set(ptr %words, i64 0, i64 %to_i)
  call void @set(ptr %words, i64 1, i64 0)
  call void @set(ptr %words, i64 2, i64 %value_64)
  call void @set(ptr %words, i64 3, i64 %count)
  call void @set(ptr %words, i64 4, i64 1)
  %function_i = load i64, ptr @fill_function
  %f = inttoptr i64 %function_i to ptr
  %more = add i64 %count, $FILL_THREADS_LESS$
  %blocks_64 = udiv i64 %more, $FILL_THREADS$
  %few = icmp ult i64 %blocks_64, $FILL_BLOCKS$
  %most = select i1 %few, i64 %blocks_64, i64 $FILL_BLOCKS$
  %blocks = trunc i64 %most to i32
  %none = icmp eq i64 %count, 0
  br i1 %none, label %nothing, label %some
nothing:
  ret i32 0
some:
  %r = call i32 @launch(ptr %f, i32 %blocks, i32 $FILL_THREADS$, i32 0, ptr %s, ptr %words, i64 40)
  ret i32 %r
}

; the launches of a table from number %from on, up to %count: the number of the first one that was not encoded
define i64 @qd_replay(ptr %s, ptr %encoder, ptr %at, i64 %from, i64 %count, ptr %next_p) {
entry:
  br label %test
test:
  %k = phi i64 [%from, %entry], [%k1, %again]
  %here = phi ptr [%at, %entry], [%next, %again]
  store ptr %here, ptr %next_p
  %left = call i64 @word(ptr %s, i64 $S_LEFT$)
  %more = icmp slt i64 %k, %count
  %open = icmp sgt i64 %left, 0
  %go = and i1 %more, %open
  br i1 %go, label %one, label %out
one:
  %f_i = call i64 @word(ptr %here, i64 $G_FUNCTION$)
  %f = inttoptr i64 %f_i to ptr
  %blocks_64 = call i64 @word(ptr %here, i64 $G_BLOCKS$)
  %threads_64 = call i64 @word(ptr %here, i64 $G_THREADS$)
  %shared_64 = call i64 @word(ptr %here, i64 $G_SHARED$)
  %bytes = call i64 @word(ptr %here, i64 $G_BYTES$)
  %blocks = trunc i64 %blocks_64 to i32
  %threads = trunc i64 %threads_64 to i32
  %shared = trunc i64 %shared_64 to i32
  %words = getelementptr i64, ptr %here, i64 $G_WORDS$
  %full = call i32 @qd_encode(ptr %s, ptr %encoder, ptr %f, i32 %blocks, i32 %threads, i32 %shared, ptr %words, i64 %bytes)
  %done = icmp eq i32 %full, 0
  br i1 %done, label %again, label %out
again:
  %k1 = add i64 %k, 1
  %next = getelementptr i8, ptr %words, i64 %bytes
  br label %test
out:
  ret i64 %k
}
"""

FILL_THREADS, FILL_BLOCKS = 256, 1024
"""Threads of a block, and most blocks, of our own kernels that fill and copy; see ``transfers``."""


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
class Recorder:
    """Addresses of the functions of the text."""

    launch: int
    memset: int
    encode: int
    replay: int
    take: int
    give: int


_made: dict[Imports, Recorder] = {}
_lock = new_lock(sys.modules[__name__], "_lock")


def text(machine: str) -> str:
    """The module. ``machine``: the processor, which decides how ``MTLSize`` is passed: 24 bytes on the stack of x86-64; on ARM the address
    of a copy.
    """
    size = "ptr byval([3 x i64]) align 8" if machine.lower() in ("x86_64", "amd64") else "ptr"
    values = {name: value for name, value in globals().items() if name[:2] in ("F_", "S_", "G_")}
    values |= {"MOST_BYTES": MOST_BYTES, "BUFFERS": BUFFERS, "RING_ALIGN": RING_ALIGN, "RING_ALIGN_LESS": RING_ALIGN - 1}
    values |= {"FILL_THREADS": FILL_THREADS, "FILL_THREADS_LESS": FILL_THREADS - 1, "FILL_BLOCKS": FILL_BLOCKS, "SIZE": size}
    out = _TEXT
    for name, value in values.items():
        out = out.replace(f"${name}$", str(value))
    return out


def recorder(found: Imports) -> Recorder:
    """The functions, made once and never unloaded: kernels' code calls them until the process ends."""
    with _lock:
        if found not in _made:
            imports = {"msgSend": found.message, "qd_slow": found.slow, "fill_function": found.fill, **dict(found.selectors)}
            exports = ["qd_launch", "qd_memset", "qd_encode", "qd_replay", "qd_take", "qd_give"]
            code = load_cached(text(platform.machine()), "launch", exports, imports, 1)[0]
            code.make_immortal()
            _made[found] = Recorder(*(code.addresses[name] for name in exports))
        return _made[found]
