"""The recorder, second part: launches, by the pipeline of their size; fills by a kernel."""

from __future__ import annotations

from ....codegen.builder import I32, I64, Builder, Ptr, Value, external, function
from ..results import VALIDATION_FAILED
from . import words as w
from .submit_ir import after, enter, leave, open_buffer, submit

_bind_pipeline = external("vkCmdBindPipeline", "void", "i64", "i32", "i64")
_push_constants = external("vkCmdPushConstants", "void", "i64", "i64", "i32", "i32", "i32", "ptr")
_dispatch = external("vkCmdDispatch", "void", "i64", "i32", "i32", "i32")
_serve = external("qd_serve", "i32", "i32", "ptr", "ptr", "i32", "i32")
_COMPUTE_BIND_POINT, _COMPUTE_STAGE = 1, 0x20


@function("i64")
def find_pipeline(f: Builder, fn: Ptr, size: I64) -> None:
    """The pipeline of a size, 0 if there is none yet."""
    with f.range(fn.words(w.SIZES).load(order="acquire")) as i:
        pair = fn.words(w.PIPELINES).words(i << 1)
        with f.if_(pair[0] == size):
            f.ret(pair[1])
    f.ret(0)


@function("i32")
def serve(f: Builder, s: Ptr, want: I32) -> None:
    """Have Python do what recording lacks: ``SERVE_*``, or nothing before it is tried again."""
    f.ret(0, when=want == w.RETRY)
    f.ret(f.call(_serve, want, s, 0, 0, 0))


def finish(s: Value, code: Value) -> None:
    """Return the code of a command, unless it asks for something that Python does, and that lets it be tried again."""
    f = s.f
    f.ret(code, unless=code < 0)
    served = f.call(serve, s, 0 - code)
    f.ret(served, unless=served == 0)


def _place(f: Builder, s: Value, data: Value, nbytes: Value) -> Value:
    """Copy words to the room for them; returns their address on the device."""
    at, room = s[w.WORDS_AT], s[w.WORDS_SIZE]
    end = at + nbytes
    with f.if_(end.above(room)):
        f.ret(VALIDATION_FAILED, when=nbytes.above(w.CHUNK))
        f.ret(-w.SERVE_WORDS, when=(room == 0) | (s[w.CAPTURE] != 0))
        sent = f.call(submit, s)
        f.ret(sent, unless=sent == 0)
        f.ret(-w.RETRY)
    f.copy(s[w.WORDS] + at, data, nbytes)
    s[w.WORDS_AT] = (end + 63) & -64
    return s[w.WORDS_DEVICE] + at


@function("i32")
def record(f: Builder, s: Ptr, fn: Ptr, pipeline: I64, blocks: I32, extra: Ptr) -> None:
    """Record a launch; with the lock."""
    opened = f.call(open_buffer, s)
    f.ret(opened, unless=opened == 0)
    address, data, nbytes = f.stack(), f.var(0), f.var(0)
    with f.if_(extra != 0):
        data.value, nbytes.value = extra[1], extra[3][0]
    f.ret(VALIDATION_FAILED, unless=fn[w.BYTES] == nbytes.value)
    buffer = s[w.BUFFER]
    with f.if_(fn[w.BY_ADDRESS] != 0):
        address[0] = _place(f, s, data.value, nbytes.value)
        data.value, nbytes.value = address, 8
    with f.if_(s[w.BOUND] != pipeline):
        f.call(_bind_pipeline, buffer, _COMPUTE_BIND_POINT, pipeline)
        s[w.BOUND] = pipeline
    with f.if_(nbytes.value != 0):
        f.call(_push_constants, buffer, fn[w.LAYOUT], _COMPUTE_STAGE, 0, nbytes.value.to("i32"), data.value)
    f.call(_dispatch, buffer, blocks, 1, 1)
    f.ret(f.call(after, s, 1))


@function("i32")
def qd_launch(
    f: Builder, fn: Ptr, gx: I32, gy: I32, gz: I32, bx: I32, by: I32, bz: I32, shared: I32, s: Ptr, p: Ptr, extra: Ptr
) -> None:
    """Launch a function: what kernels call."""
    f.ret(0, when=gx == 0)
    size, pipeline = (shared.to("i64") << 32) | bx.to("i64"), f.var()
    with f.loop():
        pipeline.value = f.call(find_pipeline, fn, size)
        f.leave(unless=pipeline.value == 0)
        made = f.call(_serve, w.SERVE_PIPELINE, s, fn, bx, shared)
        f.ret(made, unless=made == 0)
    with f.loop():
        enter(s)
        code = f.call(record, s, fn, pipeline.value, gx, extra)
        leave(s)
        finish(s, code)


@function("i32")
def qd_memset(f: Builder, address: I64, word: I32, n: I64, s: Ptr) -> None:
    """Fill 4-byte words, by the function that fills: address, bytes to the next row, word, words of a row, rows."""
    words, size, extra = f.stack(5), f.stack(), f.stack(5)
    for k, x in enumerate((address, 0, word.to("i64"), n, 1)):
        words[k] = x
    size[0] = 5 * 8
    extra[1], extra[3] = words, size
    blocks = (n + (w.FILL_BLOCK - 1)) // w.FILL_BLOCK
    blocks = blocks.below(w.MOST_BLOCKS).select(blocks, w.MOST_BLOCKS).to("i32")
    f.ret(f.call(qd_launch, s[w.FILL], blocks, 1, 1, w.FILL_BLOCK, 1, 1, 0, s, 0, extra))
