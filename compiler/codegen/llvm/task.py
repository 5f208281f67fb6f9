"""A task's function: ``void task(ptr frame, i64 begin, i64 end, i64 worker)`` runs the iterations [begin, end).

Frame words: 0 the arguments, 1 the partial results, 2 the chunk length, 3 the claims of adstack rows, 4 the first
iteration of the chunk whose turn it is to make its ordered sums, then begin and extent of each axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...ir.nodes import Const, Local, Loop, Op, Operand, Task
from ...ir.types import i64
from ...ir.walk import conditional_locals, walk
from ..block_skipping.loops import run_tiles
from ..block_skipping.tiling import Tiling, tiling
from ..sums.loops import emit_loop
from ..sums.partial_sums import PartialSums
from ..sums.row_sums import RowSums
from . import arith, memory, rows
from .emitter import KernelInfo
from .function import IN_PARALLEL, PARALLEL, LlvmModule
from .in_order import FRAME_TURN, counting, emit_turn, nothing, start_windows
from .task_emitter import TaskEmitter
from .uniform import Shapes, SharedElements, analyse

FRAME_ARGS, FRAME_PARTIALS, FRAME_CHUNK, FRAME_CLAIMS, FRAME_AXES = 0, 1, 2, rows.FRAME_CLAIMS, FRAME_TURN + 1
_ROW = 16  # iterations of the last axis for which a loop of its own pays
_TWO_COPIES = 1500  # statements; above this a vectorised task has only the masked copy of its body


def emit_task(module: LlvmModule, info: KernelInfo, task: Task, name: str) -> None:
    """Add the function of one task to the module."""
    lanes = module.target.lanes_of(info.kernel.tasks.index(task), task)
    alone, deferred = not task.parallel or task in info.order.alone, task in info.order.deferred
    e = TaskEmitter(module, info, task, analyse(task) if lanes > 1 else Shapes(), lanes, alone)
    unset = conditional_locals(task)
    for loop, order in info.loops.items() if lanes == 1 else ():
        if _has_no_atomics(e, loop):
            e.in_vectors[loop] = partial(emit_loop, e, order=order)
    cells = tiling(task) if lanes == 1 and task.axes else None
    sums = PartialSums(e, cells is None)
    start_windows(e)
    rows.claim_at_once(e)
    if task.axes:
        _iterations(e, unset, cells, sums)
    else:
        for x in unset:
            e.reset(x)
        e.block(task.body)
    _end_windows(e)
    if task.reductions:
        sums.store(e.t(f"udiv i64 %begin, {_frame(e, FRAME_CHUNK)}"), _frame(e, FRAME_PARTIALS, "ptr"))
    e.put("ret void")
    attributes = "nounwind" + (' "prefer-vector-width"="512"' if lanes > 1 else "")
    head = [
        f"define internal void @{name}{'.body' if deferred else ''}(ptr %frame, i64 %begin, i64 %end, i64 %worker"
        f"{', ptr noalias %log' if deferred else ''}) {attributes} {{",
        "entry:",
        *e.slots,
        "  %args = load ptr, ptr %frame",
        "  %ctx = load ptr, ptr %args, !invariant.load !0",
    ]
    module.functions.append("\n".join([*head, *e.head, *e.lines, "}"]))
    if deferred:
        emit_turn(module, task, info.order.atomics, name, f"{name}.body")


def _has_no_atomics(e: TaskEmitter, loop: Loop) -> bool:
    """Whether all sums of a loop are loads, additions and stores, and none is logged."""
    order = e.info.order
    apart = {s for s in loop.body if isinstance(s, Op) and s.op == "atomic" and s not in e.info.plain}
    return e.serial or not apart or (apart <= order.atomics and e.task in order.alone)


def _frame(e: TaskEmitter, word: int, ty: str = "i64") -> str:
    p = e.hoist(("frame*", word), f"getelementptr i64, ptr %frame, i64 {word}")
    return e.hoist(("frame", word), f"load {ty}, ptr {p}")


def _lane_numbers(e: TaskEmitter) -> str:
    return "<" + ", ".join(f"i64 {k}" for k in range(e.lanes)) + ">"


def _iterations(e: TaskEmitter, unset: list[Local], cells: Tiling | None, sums: PartialSums) -> None:
    """The loop over the flat iterations. ``cells``: what they skip."""
    if cells is not None:
        run_tiles(e, unset, cells, sums)
        return
    long = len(e.task.axes) == 1 or _has_rows(e.task)
    known = e.lanes == 1 and long and e.task not in e.info.order.deferred
    order = e.info.rows.get(e.task) if known else None
    _in_blocks(e, _LoopBody(e, unset, sums, RowSums(e, order), IN_PARALLEL if order else ""))


@dataclass(frozen=True, slots=True)
class _LoopBody:
    """What the loops over the iterations of a task are written with. ``access``: what LLVM is told of loads and stores."""

    e: TaskEmitter
    unset: list[Local]
    sums: PartialSums
    waiting: RowSums
    access: str

    def body(self, now: str, counters: list[str], begin: str, row: str) -> None:
        """One iteration, or one of each lane. ``begin``: the first iteration of the block; ``row``: of the row."""
        e = self.e
        _indices(e, now, counters)
        e.access = self.access
        self.sums.begin()
        if e.lanes == 1:
            _one_body(e, self.unset)
        else:
            _vector_body(e, now, self.unset)
        if self.sums.most:
            self.sums.keep(e.t(f"sub nsw i64 {now}, {begin}"))
        if self.waiting.longest:
            self.waiting.keep(e.t(f"sub nsw i64 {now}, {row}"))
        e.access = ""

    @property
    def said(self) -> str:
        """What LLVM is told of the loop over a row."""
        return PARALLEL if self.access else ""


def _in_blocks(e: TaskEmitter, loop: _LoopBody) -> None:
    """The iterations of a chunk, block by block if there are buffers for so many only."""
    limits = [n for n in (loop.sums.most, loop.waiting.longest) if n]
    run = _rows if loop.waiting.longest or (e.lanes == 1 and _has_rows(e.task)) else _flat
    e.waiting = loop.waiting
    if not limits:
        run(loop, "%begin", "%end")
        return
    e.module.declare("llvm.smin.i64", "declare i64 @llvm.smin.i64(i64, i64)")
    first, block, out = e.slot("i64"), e.label("block"), e.label("blocks")
    e.put(f"store i64 %begin, ptr {first}")
    e.branch(e.t("icmp slt i64 %begin, %end"), block, out)
    e.at(block)
    begin = e.t(f"load i64, ptr {first}")
    end = e.t(f"call i64 @llvm.smin.i64(i64 {e.t(f'add nsw i64 {begin}, {min(limits)}')}, i64 %end)")
    run(loop, begin, end)
    loop.sums.flush(e.t(f"sub nsw i64 {end}, {begin}"))
    e.put(f"store i64 {end}, ptr {first}")
    e.branch(e.t(f"icmp slt i64 {end}, %end"), block, out)
    e.at(out)


def _flat(loop: _LoopBody, begin: str, end: str) -> None:
    """The loop over the iterations of a block."""
    e = loop.e
    body, out = e.label("iteration"), e.label("done")
    counters = _start_counters(e, begin) if len(e.task.axes) > 1 else []
    it = e.slot("i64")
    e.put(f"store i64 {begin}, ptr {it}")
    e.branch(e.t(f"icmp slt i64 {begin}, {end}"), body, out)
    e.at(body)
    now = e.t(f"load i64, ptr {it}")
    loop.body(now, counters, begin, begin)
    _advance(e, counters)
    following = e.t(f"add nsw i64 {now}, {e.lanes}")
    e.put(f"store i64 {following}, ptr {it}")
    e.again(e.t(f"icmp slt i64 {following}, {end}"), body, out, loop.said)
    e.at(out)


def _has_rows(task: Task) -> bool:
    """Whether the last of several axes is long, as far as is known: a loop over a short one costs more than it saves."""
    if len(task.axes) < 2:
        return False
    begin, end = task.axes[-1].begin, task.axes[-1].end
    return not (isinstance(begin, Const) and isinstance(end, Const)) or int(end.value) - int(begin.value) >= _ROW


def _rows(loop: _LoopBody, begin: str, end: str) -> None:
    """The loop over rows of the last axis, and in it the loop over a row: LLVM moves what a row has in common out of it, and makes vectors
    of loops without branches.
    """
    e = loop.e
    row, body, ended, out = (e.label(name) for name in ("row", "iteration", "ended", "done"))
    counters = _start_counters(e, begin)
    it, last = e.slot("i64"), counters[-1]
    e.put(f"store i64 {begin}, ptr {it}")
    e.branch(e.t(f"icmp slt i64 {begin}, {end}"), row, out)
    e.at(row)
    extent, first = _frame(e, FRAME_AXES + 2 * len(counters) - 1), e.t(f"load i64, ptr {last}")
    e.module.declare("llvm.smin.i64", "declare i64 @llvm.smin.i64(i64, i64)")
    before = e.t(f"load i64, ptr {it}")
    whole = e.t(f"add i64 {before}, {e.t(f'sub i64 {extent}, {first}')}")
    stop = e.t(f"call i64 @llvm.smin.i64(i64 {whole}, i64 {end})")
    e.jump(body)
    e.at(body)
    now = e.t(f"load i64, ptr {it}")
    loop.body(now, counters, begin, before)
    count = e.t(f"load i64, ptr {last}")
    e.put(f"store i64 {e.t(f'add nsw i64 {count}, 1')}, ptr {last}")
    following = e.t(f"add nsw i64 {now}, 1")
    e.put(f"store i64 {following}, ptr {it}")
    e.again(e.t(f"icmp slt i64 {following}, {stop}"), body, ended, loop.said)
    e.at(ended)
    if loop.waiting.longest:
        begins = _frame(e, FRAME_AXES + 2 * len(counters) - 2)
        loop.waiting.add(e.t(f"add nsw i64 {first}, {begins}"), e.t(f"sub nsw i64 {stop}, {before}"))
    e.put(f"store i64 0, ptr {last}")
    _advance(e, counters[:-1])
    e.branch(e.t(f"icmp slt i64 {following}, {end}"), row, out)
    e.at(out)


def _one_body(e: TaskEmitter, unset: list[Local]) -> None:
    for x in unset:
        e.reset(x)
    e.block(e.task.body)


def _vector_body(e: TaskEmitter, now: str, unset: list[Local]) -> None:
    """The body without masks for whole vectors and once more with a mask for the last one."""
    join = e.label("join")
    wide = dict(e.wide)
    free_masks = bool(e.task.stacks) and "+avx512vl" in e.module.target.features  # a second copy is half of LLVM's time
    if not free_masks and sum(1 for _ in walk(e.task.body)) <= _TWO_COPIES:
        whole, part = e.label("whole"), e.label("part")
        fits = e.t(f"icmp sle i64 {e.t(f'add i64 {now}, {e.lanes}')}, %end")
        if e.in_turns:
            fits = e.t(f"and i1 {fits}, {e.hoist('whole', f'icmp eq i64 {e.side}, {e.lanes}')}")
        e.branch(fits, whole, part)
        e.at(whole)
        _one_body(e, unset)
        e.jump(join)
        e.at(part)
    e.wide = wide
    left = e.t(f"sub i64 %end, {now}")
    e.mask = e.t(f"icmp sgt {e.vec('i64', True)} {e.broadcast(left, 'i64')}, {_lane_numbers(e)}")
    some = _first_turn(e) if e.in_turns else None
    e.there = e.mask
    for x in unset:
        e.put(f"store {e.ty(x.dtype, x in e.shapes.varying)} zeroinitializer, ptr {e.local(x)}")
    e.block(e.task.body)
    e.mask = e.there = ""
    if some:
        _next_turn(e, some, left, join)
    else:
        e.jump(join)
    e.at(join)


def _first_turn(e: TaskEmitter) -> tuple[str, str]:
    """The loop over the turns of a vector, in each of which ``lanes`` (a launch parameter) of its iterations have adstacks: the mask of
    those, and where their words begin. Gives its label and the slot of the first lane of a turn.
    """
    ty, first, body = e.vec("i64", True), e.slot("i64"), e.label("turn")
    all_lanes, side = e.mask, e.broadcast(e.side, "i64")
    e.put(f"store i64 0, ptr {first}")
    e.jump(body)
    e.at(body)
    now = e.t(f"load i64, ptr {first}")
    ahead = e.t(f"sub {ty} {_lane_numbers(e)}, {e.broadcast(now, 'i64')}")
    e.mask = e.t(f"and {e.vec('i1', True)} {all_lanes}, {e.t(f'icmp ult {ty} {ahead}, {side}')}")
    e.turn = e.t(f"sub i64 0, {now}")
    return body, first


def _next_turn(e: TaskEmitter, some: tuple[str, str], left: str, join: str) -> None:
    body, first = some
    e.turn = ""
    now = e.t(f"add i64 {e.t(f'load i64, ptr {first}')}, {e.side}")
    e.put(f"store i64 {now}, ptr {first}")
    last = e.t(f"call i64 @llvm.smin.i64(i64 {left}, i64 {e.lanes})")
    e.module.declare("llvm.smin.i64", "declare i64 @llvm.smin.i64(i64, i64)")
    e.branch(e.t(f"icmp slt i64 {now}, {last}"), body, join)


# -- indices


def _start_counters(e: TaskEmitter, begin: str) -> list[str]:
    """One counter per axis, relative to its begin: computed once by division, then incremented with carry."""
    v = e.lanes > 1
    ty = e.vec("i64", v)
    left = begin
    if v:
        left = e.t(f"add {ty} {e.broadcast(begin, 'i64')}, {_lane_numbers(e)}")
    slots: list[str] = []
    for k in range(len(e.task.axes) - 1, -1, -1):
        slot = e.slot(ty)
        n = _frame(e, FRAME_AXES + 2 * k + 1)
        by = e.broadcast(n, "i64") if v else n
        count = left if k == 0 else e.t(f"urem {ty} {left}, {by}")
        left = left if k == 0 else e.t(f"udiv {ty} {left}, {by}")
        e.put(f"store {ty} {count}, ptr {slot}")
        slots.append(slot)
    return slots[::-1]


def _indices(e: TaskEmitter, now: str, counters: list[str]) -> None:
    """The values of the axes' indices in this iteration."""
    v = e.lanes > 1
    ty = e.vec("i64", v)
    flat = e.t(f"add {ty} {e.broadcast(now, 'i64')}, {_lane_numbers(e)}") if v else now
    e.iteration = (flat, v)
    for k, axis in enumerate(e.task.axes):
        begin = _frame(e, FRAME_AXES + 2 * k)
        relative = e.t(f"load {ty}, ptr {counters[k]}") if counters else flat
        wide = e.t(f"add nsw {ty} {relative}, {e.broadcast(begin, 'i64') if v else begin}")
        if not v:
            e.wide[axis.index] = wide
        elif not counters:
            e.wide[axis.index] = e.t(f"add nsw i64 {now}, {begin}")
        d = axis.index.dtype
        # bounds of this type enclose the index, so the truncation loses nothing (and LLVM may know it)
        flag = " nuw" if d.kind == "u" else " nsw"
        narrow = wide if d.bits == 64 else e.t(f"trunc{'' if v else flag} {ty} {wide} to {e.ty(d, v)}")
        e.values[axis.index] = (narrow, v)


def _advance(e: TaskEmitter, counters: list[str]) -> None:
    """Add to the last counter and carry."""
    if not counters:
        return
    if e.lanes > 1:
        _advance_lanes(e, counters)
        return
    out = e.label("counted")
    for k in range(len(counters) - 1, -1, -1):
        new = e.t(f"add nsw i64 {e.t(f'load i64, ptr {counters[k]}')}, 1")
        if k == 0:
            e.put(f"store i64 {new}, ptr {counters[k]}")
            e.jump(out)
            break
        carry, stay = e.label("carry"), e.label("stay")
        e.branch(e.t(f"icmp sge i64 {new}, {_frame(e, FRAME_AXES + 2 * k + 1)}"), carry, stay)
        e.at(stay)
        e.put(f"store i64 {new}, ptr {counters[k]}")
        e.jump(out)
        e.at(carry)
        e.put(f"store i64 0, ptr {counters[k]}")
    e.at(out)


def _advance_lanes(e: TaskEmitter, counters: list[str]) -> None:
    """Each lane carries until it is inside its axis: several times when the axis is shorter than the vector."""
    ty, flags = e.vec("i64", True), e.vec("i1", True)
    last = counters[-1]
    count = e.t(f"load {ty}, ptr {last}")
    e.put(f"store {ty} {e.t(f'add {ty} {count}, splat (i64 {e.lanes})')}, ptr {last}")
    for k in range(len(counters) - 1, 0, -1):
        test, carry, out = e.label("test"), e.label("carry"), e.label("counted")
        n = e.broadcast(_frame(e, FRAME_AXES + 2 * k + 1), "i64")
        e.jump(test)
        e.at(test)
        count = e.t(f"load {ty}, ptr {counters[k]}")
        over = e.t(f"icmp sge {ty} {count}, {n}")
        e.branch(e.any(over), carry, out)
        e.at(carry)
        less = arith.select(e, i64, True, over, n, "zeroinitializer")
        e.put(f"store {ty} {e.t(f'sub {ty} {count}, {less}')}, ptr {counters[k]}")
        one = e.t(f"zext {flags} {over} to {ty}")
        above = e.t(f"load {ty}, ptr {counters[k - 1]}")
        e.put(f"store {ty} {e.t(f'add {ty} {above}, {one}')}, ptr {counters[k - 1]}")
        e.jump(test)
        e.at(out)


# -- sums into windows


def _end_windows(e: TaskEmitter) -> None:
    """Add the copies to the elements, lane by lane in a fixed order."""
    for window, copies in e.window_sums.items():
        place = window.place
        ty = e.ty(place.dtype, True)
        for x in window.fixed:
            _again(e, x)
        with counting(e, window.elements) as k:
            value = e.t(f"load {ty}, ptr {e.t(f'getelementptr {ty}, ptr {copies}, i64 {k}')}")
            total = memory.sum_of_lanes(e, place.dtype, value)
            some, none = e.label("some"), e.label("none")
            e.branch(e.t(f"fcmp une {e.ty(place.dtype, False)} {total}, {nothing(e, place.dtype, False)}"), some, none)
            e.at(some)
            ptr, _ = memory.address(e, place, _element(e, window, k))
            memory.add_in_order(e, place, ptr, total)
            e.jump(none)
            e.at(none)


def _again(e: TaskEmitter, x: Operand | None) -> None:
    """Emit an invariant value once more, here."""
    if isinstance(x, Op) and x.op != "param":
        for y in x.args:
            _again(e, y)
        e.op(x)


def _element(e: TaskEmitter, window: SharedElements, k: str) -> tuple[Operand, ...]:
    """The index of the element number ``k`` of a window."""
    index: list[Operand] = []
    for x, n in zip(window.fixed[::-1], (window.place.shape or ())[::-1]):
        if x is None:
            number = Op("iter", (), i64)
            e.values[number] = (e.t(f"urem i64 {k}, {n}"), False)
            k = e.t(f"udiv i64 {k}, {n}")
            x = number
        index.append(x)
    return tuple(index[::-1])
