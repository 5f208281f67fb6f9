"""The top level of a kernel: loops become parallel tasks, what stands between them becomes serial tasks (``tasks``)."""

from __future__ import annotations

import ast
from typing import Any

from ...errors import QdrunSyntaxError, QdrunTypeError
from ...ir.nodes import (
    Assert,
    Axis,
    Block,
    Const,
    Op,
    Operand,
    Place,
    Task,
)
from ...ir.types import i32, i64, limits, u64
from ...ir.walk import inner_blocks, walk
from ...passes.clone import clone_block
from ...passes.dependence.access import writes_of
from ...passes.dependence.indexing import most_trips
from ..markers import RangeSpec
from ..source.trees import nodes_in
from ..state.bindings import can_repeat, clone
from ..state.context import Context
from ..values import ops
from ..values.levels import LevelRef
from .block import block_dim
from .conditions import emit_condition
from .loops import (
    IterationSpace,
    bind_index,
    bound_as,
    iterable,
    no_else,
    own_breaks,
    own_exits,
    own_returns,
    serial_for,
    space_of,
    unrolled,
)
from .statements import emit_if


def top_if(cx: Context, node: ast.If) -> str | None:
    """An ``if`` at the top level: when its condition is known now, its statements stand at the top level, too."""
    with cx.tasks.serial():
        cond = emit_condition(cx, node.test)
        if not isinstance(cond, bool):
            return emit_if(cx, node, cond)
        body = node.body if cond else node.orelse
        if any(isinstance(s, ast.For) and own_breaks(s.body) for s in body) and not _is_unrolled_break(cx, body):
            return cx.block(body)  # a loop that is left early runs in order
    return cx.top_block(body)


def _is_unrolled_break(cx: Context, body: list[ast.stmt]) -> bool:
    """Whether all loops with breaks of their own among ``body`` are unrolled."""
    return all(_is_unrolled(cx, s) for s in body if isinstance(s, ast.For) and own_breaks(s.body))


def top_for(cx: Context, node: ast.For) -> str | None:
    """A ``for`` at the top level: a parallel task, or unrolled.

    Raises:
        QdrunSyntaxError: it has an ``else``, or its steps cannot be numbered.
        QdrunTypeError: kernels cannot run over its iterable.
    """
    no_else(node)
    config = dict(cx.next_loop)
    cx.next_loop.clear()
    if (own_breaks(node.body) or own_returns(node.body)) and (config.get("serialize") or _runs_once(cx, node)):
        with cx.tasks.serial():
            over, unroll = iterable(cx, node.iter)
            if not unroll:
                serial_for(cx, node, over)
                return None
    if _is_unrolled(cx, node):
        with cx.tasks.serial():
            over, _ = iterable(cx, node.iter)
            if _leaves_at_run_time(node.body):
                return unrolled(cx, node, over, cx.block)
        return unrolled(cx, node, over, cx.top_block)
    cx.tasks.close(cx.frames)
    _parallel_for(cx, node, bool(config.get("serialize")), block_dim(config.get("block_dim")))
    return None


def _leaves_at_run_time(body: list[ast.stmt]) -> bool:
    """Whether an unrolled loop is left under a condition that is perhaps not known now, and has no loops or calls that run in parallel."""
    nodes = nodes_in(body)
    calls = [n.value.func for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
    if any(isinstance(n, (ast.For, ast.With)) for n in nodes) or not all(_name(f).startswith("atomic_") for f in calls):
        return False
    tests = [s.test for s in body if isinstance(s, ast.If) and own_exits([s])]
    return not all(isinstance(t, ast.Call) and _name(t.func) == "static" for t in tests)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _runs_once(cx: Context, node: ast.For) -> bool:
    """Whether a loop has one iteration, as its text says."""
    with cx.scratch():
        before, cx.where = cx.where, "prologue"
        try:
            over, unroll = iterable(cx, node.iter)
            if unroll:
                return False
            space = space_of(cx, over)
            return space.step == 1 and all(most_trips(*ends) in (0, 1) for ends in space.axes)
        finally:
            cx.where = before


def _is_unrolled(cx: Context, node: ast.For) -> bool:
    """Whether a loop's iterable is static; what the question emits is thrown away."""
    with cx.scratch():
        before, cx.where = cx.where, "prologue"
        try:
            return iterable(cx, node.iter)[1]
        finally:
            cx.where = before


def _parallel_for(cx: Context, node: ast.For, serialize: bool, block: int) -> None:
    """Lower one task: bounds to its prologue, the body to its body."""
    task = cx.tasks.new(cx.b.loc)
    task.serialize, task.block = serialize, block
    before = cx.where
    try:
        cx.where = "prologue"
        with cx.b.into(task.prologue):
            over, _ = iterable(cx, node.iter)
            with cx.at(node.iter):
                space = space_of(cx, over)
            task.axes = [Axis(Op("index", (), lo.dtype, None, cx.b.loc), lo, hi) for lo, hi in _unit_step(cx, space)]
            going = cx.tasks.going()
            if going is not None and task.axes:
                first = task.axes[0]
                first.end = cx.b.op("select", going, first.end, first.begin)
        _check_before(cx, task)
        if not task.axes:
            raise QdrunTypeError("a loop needs at least one axis", hint="use x[None] without a loop, or loop over grouped(..)")
        cx.where = "parallel"
        with cx.b.into(task.body), cx.frame.scope(), cx.frame.loop("parallel"):
            indices = _indices(cx, over, space, task)
            with space.active(cx, indices, parallel=True) as decides:
                bind_index(cx, node, space, indices)
                cx.block(node.body)
        if space.level is not None:
            _visit_as_at_begin(cx, task, space.level, decides)
    finally:
        cx.where = before


def _visit_as_at_begin(cx: Context, task: Task, level: LevelRef, decides: list[Op]) -> None:
    """Have a loop that changes the activity of what it runs over visit the cells that are active at its begin: tasks before it copy the
    activity, and the loop asks the copies. ``decides``: the loads that it asks by.
    """
    changed = {place for place, _, _ in writes_of(walk(task.body))}
    copies = {each.flags: each.visited for each in level.upward() if each.flags in changed}
    for load in decides:
        flags = load.attr
        visited = copies.get(flags) if isinstance(flags, Place) else None
        if not isinstance(flags, Place) or visited is None:
            continue
        load.attr = visited
        extents = flags.shape or ()
        axes = [Axis(Op("index", (), i32, None, task.loc), Const(0, i32), Const(n, i32)) for n in extents]
        copy = Task(f"{task.name}_visited", [], axes)
        with cx.b.into(copy.body):
            where = tuple(a.index for a in copy.axes)
            cx.b.gstore(visited, where, cx.b.gload(flags, where))
        tasks = cx.tasks.kernel.tasks
        tasks.insert(len(tasks) - 1, copy)


def _check_before(cx: Context, task: Task) -> None:
    """Checks in what bounds read belong to a serial task of their own: a prologue cannot stop a launch."""
    if not any(isinstance(s, Assert) for s in walk(task.prologue)):
        return
    check = Task(f"{task.name}_check", clone_block(task.prologue, {}), loc=task.loc)
    tasks = cx.tasks.kernel.tasks
    tasks.insert(len(tasks) - 1, check)
    _drop_checks(task.prologue)


def _drop_checks(block: Block) -> None:
    block[:] = [s for s in block if not isinstance(s, Assert)]
    for s in block:
        for inner in inner_blocks(s):
            _drop_checks(inner)


def _unit_step(cx: Context, space: IterationSpace) -> list[tuple[Operand, Operand]]:
    """The axes of a task: a range with a step is counted from 0."""
    if space.step == 1:
        return space.axes
    begin, end = space.axes[0]
    low, high = (begin, end) if space.step > 0 else (end, begin)
    wide, step = begin.dtype.bits == 64, abs(space.step)
    low, high = (ops.cast_scalar(cx.b, x, i64) for x in (low, cx.b.op("max", low, high)))
    # 64-bit ends may lie further apart than i64 can say; as u64 the distance is exact
    distance = ops.cast_scalar(cx.b, cx.b.op("sub", high, low), u64 if wide else i64)
    more = cx.b.op("ne", cx.b.op("mod", distance, Const(step, distance.dtype)), Const(0, distance.dtype))
    whole = cx.b.op("floordiv", distance, Const(step, distance.dtype))
    trips = cx.b.op("add", whole, cx.b.cast(more, distance.dtype))
    most = Const(limits(begin.dtype)[1], distance.dtype)
    return [(Const(0, begin.dtype), ops.cast_scalar(cx.b, cx.b.op("min", trips, most), begin.dtype))]


def _indices(cx: Context, over: Any, space: IterationSpace, task: Task) -> list[Operand]:
    """The loop's indices inside the body."""
    if space.step == 1:
        return [a.index for a in task.axes]
    begin = over.begin if isinstance(over, RangeSpec) else over.start
    begin = ops.to_operand(cx.b, begin)
    if not can_repeat(begin):
        hint = "start a range with a step at a literal, an argument or a shape"
        raise QdrunSyntaxError("a parallel loop with a step cannot start at a value that is read from memory", hint=hint)
    start = bound_as(cx, clone(cx.b, begin, {}), task.axes[0].index.dtype)
    return [ops.to_operand(cx.b, ops.binary(cx.b, "+", start, ops.binary(cx.b, "*", task.axes[0].index, space.step)))]
