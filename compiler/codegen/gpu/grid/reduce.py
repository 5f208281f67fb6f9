"""Reductions of a device function: the same bits for the same grid, whatever the order in which blocks run.

Each thread folds its own iterations; a block folds its threads' values by a tree in on-chip memory and leaves one word in the scratch
memory; the block that arrives last folds the blocks' words, thread t those of blocks t, t + threads, .., then its threads' values by the
same tree, and then into the place.
"""

from __future__ import annotations

from ....ir.nodes import Reduction
from ....ir.types import DType
from ...abi import SCRATCH_ARRIVED, SCRATCH_PARTIALS
from ...llvm import arith, memory
from ...sums.partial_sums import differs, identity
from .emitter import GridEmitter, to_word


def start(e: GridEmitter) -> None:
    """Every thread begins with the identity."""
    for r in e.task.reductions:
        e.put(f"store {e.ty(r.local.dtype, False)} {identity(r)}, ptr {e.local(r.local)}")


def finish(e: GridEmitter) -> None:
    """After the iterations, by all threads of a block."""
    if not e.task.reductions:
        return
    for k, r in enumerate(e.task.reductions):
        value = _tree(e, r, e.t(f"load {e.ty(r.local.dtype, False)}, ptr {e.local(r.local)}"))
        with_first = _first_thread(e)
        _leave(e, r.local.dtype, value, _partial(e, k, e.t(f"zext i32 {e.hardware.block_number(e)} to i64")))
        _join(e, with_first)
    last, out = e.label("last"), e.label("out")
    e.branch(_arrive(e), last, out)
    e.at(last)
    _fence(e)  # what the other blocks have left is read after they have arrived
    for k, r in enumerate(e.task.reductions):
        _fold_blocks(e, k, r)
    first = _first_thread(e)
    e.put(f"store atomic i32 0, ptr {e.scratch(SCRATCH_ARRIVED)} {e.scope}monotonic, align 4")
    _join(e, first)
    e.jump(out)
    e.at(out)


def _first_thread(e: GridEmitter) -> str:
    """Begin code that one thread of the block runs; the label after it."""
    one, join = e.label("one"), e.label("join")
    e.branch(e.t(f"icmp eq i32 {e.hardware.thread_in_block(e)}, 0"), one, join)
    e.at(one)
    return join


def _join(e: GridEmitter, label: str) -> None:
    e.jump(label)
    e.at(label)


def _fence(e: GridEmitter) -> None:
    e.put(f"fence {e.scope}seq_cst")


def _partial(e: GridEmitter, k: int, block: str) -> str:
    """The address of a block's word for a reduction."""
    blocks = e.hoist("blocks64", f"zext i32 {e.hardware.blocks(e)} to i64")
    word = e.t(f"add i64 {e.t(f'mul i64 {blocks}, {k}')}, {block}")
    return e.t(f"getelementptr i64, ptr {e.scratch(SCRATCH_PARTIALS)}, i64 {word}")


def _leave(e: GridEmitter, d: DType, value: str, ptr: str) -> None:
    """Leave a block's value for the last one."""
    if e.target.coherent:
        memory.write(e, d, value, ptr, "uniform", 8)
    else:
        e.publish(to_word(e, value, d), ptr)


def _found(e: GridEmitter, d: DType, ptr: str) -> str:
    """The value that a block has left."""
    if e.target.coherent:
        return memory.read(e, d, ptr, "uniform", 8)
    bits = e.collect(ptr)
    bits = bits if d.bits == 64 else e.t(f"trunc i64 {bits} to i{d.bits}")
    return e.t(f"bitcast i{d.bits} {bits} to {e.ty(d, False)}") if d.is_real else bits


def _tree(e: GridEmitter, r: Reduction, value: str) -> str:
    """The values of all threads of the block, folded; right in thread 0 only."""
    d, half = r.local.dtype, e.threads_of_block // 2
    if not half:
        return value
    words = e.hardware.shared_words(e, e.threads_of_block)
    mine32 = e.hardware.thread_in_block(e)
    mine = e.t(f"getelementptr i64, ptr {words}, i32 {mine32}")
    total = e.slot(e.ty(d, False))
    e.hardware.barrier(e)  # the last use of these words is over
    e.put(f"store {e.ty(d, False)} {value}, ptr {total}")
    memory.write(e, d, value, mine, "uniform", 8)
    while half:
        e.hardware.barrier(e)
        low, join = e.label("low"), e.label("folded")
        e.branch(e.t(f"icmp ult i32 {mine32}, {half}"), low, join)
        e.at(low)
        other = memory.read(e, d, e.t(f"getelementptr i64, ptr {mine}, i64 {half}"), "uniform", 8)
        new = arith.binary(e, r.code, d, False, e.t(f"load {e.ty(d, False)}, ptr {total}"), other)
        e.put(f"store {e.ty(d, False)} {new}, ptr {total}")
        memory.write(e, d, new, mine, "uniform", 8)
        _join(e, join)
        half //= 2
    return e.t(f"load {e.ty(d, False)}, ptr {total}")


def _arrive(e: GridEmitter) -> str:
    """Whether this block is the last, which every thread of it learns (i1)."""
    flag = e.hardware.shared_words(e, 1) if e.threads_of_block > 1 else e.slot("i64")
    first = _first_thread(e)
    _fence(e)  # this block's words are there before it counts
    before = e.t(f"atomicrmw add ptr {e.scratch(SCRATCH_ARRIVED)}, i32 1 {e.scope}monotonic")
    last = e.t(f"icmp eq i32 {before}, {e.t(f'sub i32 {e.hardware.blocks(e)}, 1')}")
    e.put(f"store i64 {e.t(f'zext i1 {last} to i64')}, ptr {flag}")
    _fence(e)
    _join(e, first)
    e.hardware.barrier(e)
    return e.t(f"icmp ne i64 {e.t(f'load i64, ptr {flag}')}, 0")


def _fold_blocks(e: GridEmitter, k: int, r: Reduction) -> None:
    """The blocks' words in order, then into the place, unless an iteration has failed."""
    d = r.local.dtype
    ty, total, at = e.ty(d, False), e.slot(e.ty(d, False)), e.slot("i32")
    body, out = e.label("fold"), e.label("folded")
    mine, blocks = e.hardware.thread_in_block(e), e.hardware.blocks(e)
    e.put(f"store {ty} {identity(r)}, ptr {total}")
    e.put(f"store i32 {mine}, ptr {at}")
    e.branch(e.t(f"icmp slt i32 {mine}, {blocks}"), body, out)
    e.at(body)
    n = e.t(f"load i32, ptr {at}")
    part = _found(e, d, _partial(e, k, e.t(f"zext i32 {n} to i64")))
    e.put(f"store {ty} {arith.binary(e, r.code, d, False, e.t(f'load {ty}, ptr {total}'), part)}, ptr {total}")
    following = e.t(f"add i32 {n}, {e.threads_of_block}")
    e.put(f"store i32 {following}, ptr {at}")
    e.branch(e.t(f"icmp slt i32 {following}, {blocks}"), body, out)
    e.at(out)
    whole = _tree(e, r, e.t(f"load {ty}, ptr {total}"))
    first = _first_thread(e)
    if e.count and e.where != "host":  # the host launches nothing where it knows that there are no iterations
        some = e.label("some")
        e.branch(e.t(f"icmp sgt i64 {e.count}, 0"), some, first)
        e.at(some)
    if e.failures.sets or e.failures.looks:
        fine = e.label("fine")
        e.branch(e.failed(), first, fine, unlikely=True)
        e.at(fine)
    if not r.sure:
        exists = e.label("exists")
        e.branch(differs(e, r, whole), exists, first)
        e.at(exists)
    ptr, _ = memory.address(e, r.place, r.index)
    memory.update(e, r.code, r.place, ptr, [whole])
    _join(e, first)
