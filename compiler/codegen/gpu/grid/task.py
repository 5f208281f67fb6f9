"""A task as a device function: every thread takes the iterations ``thread, thread + threads, ..``.

The function has one 8-byte parameter for each word of the context and of the arguments that its code reads, and for what the host
has computed of the prologue. A failed iteration leaves by a jump to the function's end, so that all threads of a block reach its barriers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.nodes import Block, ClaimRow, Local, Loop, Op, Operand, Print, Stack, Task
from ....ir.types import i64
from ....ir.walk import conditional_locals, meets_in_grid
from ...abi import SCRATCH_PARTIALS, SCRATCH_VALUES
from ...llvm.target import Unsupported
from .. import ring, side_by_side
from ..hardware import DeviceFunction, ParamWord
from ..indices import is_narrow, start_iteration
from ..prologue import begin_and_size, constant, literal_count, wanted
from . import block as grid_block
from . import copies as grid_copies
from . import reduce as grid_reduce
from . import rows as grid_rows
from . import warp as grid_warp
from .emitter import GridEmitter


class GridTaskEmitter(GridEmitter):
    """Emits the statements of one task, or its prologue, into one device function."""

    def block(self, block: Block) -> None:
        """See ``TaskEmitter``; where threads meet, those without an iteration go along."""
        if self.meeting is None or id(block) not in self.meeting.open:
            super().block(block)
            return
        for s in block:
            grid_block.run(self, s, self.meeting, id(block) in self.meeting.waves)

    def atomic(self, s: Op, ptr: str, values: list[str]) -> str:
        """Together with the other threads of the wave where all of them mean one element."""
        together = grid_warp.atomic(self, s, ptr, values)
        return super().atomic(s, ptr, values) if together is None else together

    def claim_row(self, s: ClaimRow) -> None:
        if not self.claimed:
            grid_rows.claim(self, s)

    def said_of(self, s: Loop) -> str:
        """What LLVM is told of a loop."""
        return grid_rows.unrolling(self, s) or super().said_of(s)

    def copies_of(self, s: Loop) -> int:
        """As many as LLVM would make, up to the number of the target."""
        most = self.target.loop_copies
        return min(grid_rows.copies(self, s), most) if most > 1 else 1

    def stack_word(self, stack: Stack, field: int, slot: Operand) -> tuple[str, str]:
        return grid_rows.word(self, stack, field, slot), "uniform"

    def printed(self, s: Print, values: list[str]) -> None:
        """Append a record to the print ring."""
        ring.append(self, s, values)


def emit_task(e: GridTaskEmitter, name: str) -> DeviceFunction:
    """Add the device function of a task to its module."""
    unset = conditional_locals(e.task)
    compute_prologue(e)
    grid_reduce.start(e)
    bounds = bounds_of(e)
    e.count = bounds[2]
    if e.failures.looks:
        _skip_after_failure(e)
    grid_rows.start(e)
    if e.meeting is not None:
        grid_block.iterations(e, e.meeting, unset, *bounds)
    elif e.task.axes:
        _iterations(e, unset, *bounds)
    else:
        for x in unset:
            e.reset(x)
        e.block(e.task.body)
    e.jump(e.finish)
    e.at(e.finish)
    grid_reduce.finish(e)
    e.put("ret void")
    return _define(e, name, False)


def emit_before(e: GridTaskEmitter, name: str) -> DeviceFunction:
    """Add the function of one thread that leaves the values of the prologue in the scratch memory."""
    values = wanted(e.task)
    if len(values) > SCRATCH_PARTIALS - SCRATCH_VALUES:
        raise Unsupported(f"a parallel loop with {len(values)} bounds that are read from memory")
    e.threads_of_block, e.where, e.flexible = 1, "thread", False
    compute_prologue(e)
    for k, x in enumerate(values):
        word = e.convert(e.operand(x, False), x.dtype, i64, False)
        e.put(f"store i64 {word}, ptr {e.scratch(SCRATCH_VALUES + k)}")
    e.put("ret void")
    return _define(e, name, True)


def _define(e: GridTaskEmitter, name: str, before: bool) -> DeviceFunction:
    size = 8 * len(e.words)
    if size > e.target.most_bytes:
        raise Unsupported(f"a task that uses {len(e.words)} fields and arguments; a GPU takes {e.target.most_bytes // 8}")
    e.module.functions.append(e.hardware.define(e, name))
    wide = e.copies if e.wide_accesses is not None and not before else 1
    return DeviceFunction(name, e.task, e.number, list(e.words), before, e.flexible, wide)


def _skip_after_failure(e: GridTaskEmitter) -> None:
    """No iteration runs after a task that has failed, as on the CPU. The blocks of this one still arrive: it may be failing as well. Where
    all of them meet, all have looked before any goes on.
    """
    go = e.label("go")
    failed = e.failed()
    if meets_in_grid(e.task):
        e.meet_in_grid()
    e.branch(failed, e.finish, go, unlikely=True)
    e.at(go)


def compute_prologue(e: GridTaskEmitter) -> None:
    """Compute the prologue's values in every thread, or read what one thread has left."""
    if e.where == "thread":
        for x in conditional_locals(Task("", e.task.prologue)):
            e.reset(x)
        e.block(e.task.prologue)
    elif e.where == "before":
        for k, x in enumerate(wanted(e.task)):
            if isinstance(x, Op) and x.op != "param" and x not in e.values:
                word = e.t(f"load i64, ptr {e.scratch(SCRATCH_VALUES + k)}")
                e.values[x] = (e.convert(word, i64, x.dtype, False), False)


def bounds_of(e: GridTaskEmitter) -> tuple[list[str], list[str], str]:
    """Begin and size of each axis and the number of iterations, each a literal or an i64 register."""
    begins, sizes, product = [], [], ""
    for k, axis in enumerate(e.task.axes):
        begin, end = constant(axis.begin), constant(axis.end)
        if e.where == "host":
            begins.append(str(begin) if begin is not None else e.parameter(ParamWord("begin", k)))
            known = begin is not None and end is not None
            sizes.append(str(max(0, end - begin)) if known else e.parameter(ParamWord("size", k)))  # type: ignore[operator]
            continue
        if begin is not None and end is not None:  # the prologue has something else, the place of a reduction
            begins.append(str(begin))
            sizes.append(str(max(0, end - begin)))
        else:
            first, size = begin_and_size(e, axis)
            begins.append(first)
            sizes.append(size)
        product = e.t(f"mul i64 {product}, {sizes[-1]}") if product else sizes[-1]
    count = literal_count(e.task)
    if not e.task.axes:
        product = ""
    elif count is not None:
        product = str(count)
    elif e.where == "host":
        product = e.parameter(ParamWord("count"))
    return begins, sizes, product


def _iterations(e: GridTaskEmitter, unset: list[Local], begins: list[str], sizes: list[str], count: str) -> None:
    """The loop of one thread over its iterations."""
    ty = "i32" if is_narrow(e, begins) else "i64"
    first, stride = (e.thread_narrow(), e.threads_narrow()) if ty == "i32" else (e.thread(), e.threads())
    if e.task.stacks and e.task.parallel:  # as many threads as the plan has: each has at most one row
        stride = e.param("threads")
        over = e.t(f"icmp sge i64 {first}, {stride}")
        stay = e.label("stay")
        e.branch(over, e.finish, stay)
        e.at(stay)
    it = e.slot(ty)
    e.put(f"store {ty} {first}, ptr {it}")
    copies = grid_copies.start(e, e.copies)
    if len(copies) > 1:
        (_tiles if side_by_side.TILED else _pass)(e, GridStride(it, ty, stride, count, begins, sizes), copies, unset)
        grid_copies.join(e, copies)
    _pass(e, GridStride(it, ty, stride, count, begins, sizes), copies[:1], unset)


@dataclass(frozen=True, slots=True)
class GridStride:
    """How a thread walks: the slot of its next iteration, the type of iteration numbers, and registers of that type."""

    it: str
    ty: str
    stride: str
    count: str
    begins: list[str]
    sizes: list[str]


def _pass(e: GridTaskEmitter, w: GridStride, copies: list[grid_copies.UnrolledCopy], unset: list[Local]) -> None:
    """Iterations while there are enough left for all copies of the body."""
    ty, body, out = w.ty, e.label("iteration"), e.label("done")
    ahead = e.t(f"mul nsw {ty} {w.stride}, {len(copies) - 1}") if len(copies) > 1 else ""

    def enough(now: str) -> str:
        last = e.t(f"add nsw {ty} {now}, {ahead}") if ahead else now
        return e.t(f"icmp slt {ty} {last}, {w.count}")

    e.branch(enough(e.t(f"load {ty}, ptr {w.it}")), body, out)
    e.at(body)
    now = e.t(f"load {ty}, ptr {w.it}")
    for copy in copies:
        copy.enter(e)
        start_iteration(e, now, ty, w.begins, w.sizes)
        copy.iteration = e.iteration
        now = e.t(f"add nsw {ty} {now}, {w.stride}")
    grid_copies.body(e, copies, unset)
    e.put(f"store {ty} {now}, ptr {w.it}")
    e.branch(enough(now), body, out)
    e.at(out)


def _tiles(e: GridTaskEmitter, w: GridStride, copies: list[grid_copies.UnrolledCopy], unset: list[Local]) -> None:
    """Blocks take whole tiles, as many iterations as the block has threads for each copy of the body, where that leaves no thread idle.
    The rest begins after the last of them. Copies lie a block's threads apart, but those that share accesses follow one another.
    """
    ty, n, body, out = w.ty, len(copies), e.label("tile"), e.label("tiled")
    group = e.wide_accesses.group if e.wide_accesses is not None else 1
    size = n * e.threads_of_block
    whole = e.t(f"udiv {ty} {w.count}, {size}")
    use = e.t(f"icmp sge {ty} {w.count}, {e.t(f'mul nsw {ty} {w.stride}, {n}')}")
    if e.wide_accesses is not None:
        use = e.t(f"and i1 {use}, {grid_copies.aligned(e, e.wide_accesses, w.begins[-1], w.sizes[-1])}")
    tiles = e.t(f"select i1 {use}, {ty} {whole}, {ty} 0")
    at, wide = e.slot(ty), ty == "i64"
    block, blocks, mine = (
        e.t(f"zext i32 {x} to i64") if wide else x
        for x in (e.hardware.block_number(e), e.hardware.blocks(e), e.hardware.thread_in_block(e))
    )
    e.put(f"store {ty} {block}, ptr {at}")
    e.branch(e.t(f"icmp slt {ty} {block}, {tiles}"), body, out)
    e.at(body)
    tile = e.t(f"load {ty}, ptr {at}")
    if group > 1:
        mine = e.t(f"mul nuw nsw {ty} {mine}, {group}")
    first = e.t(f"add nuw nsw {ty} {e.t(f'mul nuw nsw {ty} {tile}, {size}')}, {mine}")
    for k, copy in enumerate(copies):
        copy.enter(e)
        beyond = k // group * group * e.threads_of_block + k % group
        start_iteration(e, e.t(f"add nuw nsw {ty} {first}, {beyond}"), ty, w.begins, w.sizes)
        copy.iteration = e.iteration
    grid_copies.body(e, copies, unset)
    following = e.t(f"add nuw nsw {ty} {tile}, {blocks}")
    e.put(f"store {ty} {following}, ptr {at}")
    e.branch(e.t(f"icmp slt {ty} {following}, {tiles}"), body, out)
    e.at(out)
    first, done = e.t(f"load {ty}, ptr {w.it}"), e.t(f"mul nsw {ty} {tiles}, {size}")
    e.put(f"store {ty} {e.t(f'add nsw {ty} {first}, {done}')}, ptr {w.it}")
