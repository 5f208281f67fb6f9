"""Subgroups: what ``qd.simt.subgroup`` and ``qd.simt.warp`` are made of, inside a kernel.

The threads of a block form subgroups of consecutive threads: of the size of a wave where its instructions exchange values, of 32 threads
on other GPUs, where values go through memory of the block and its barriers, and of one iteration on a backend without blocks.
All threads of a block come to an operation together, as to ``simt.block.sync()``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, Literal, NoReturn

from ...errors import QdrunRuntimeError, QdrunTypeError
from ...ir.meaning import identity
from ...ir.nodes import Const, Operand, Task
from ...ir.types import DType, i32, i64, u1, u8, u32, u64
from ...ir.walk import LANE_VALUES, fills_blocks
from ...passes.shuffles import attribute
from ..source.keywords import positional
from ..state.context import Context
from ..values import ops
from .block import loop_of_blocks, new_array, no_arguments, thread_number

LANES = 32
"""Threads of a subgroup on GPUs whose waves exchange nothing."""


def group_size() -> int:
    """Threads of a subgroup, a compile-time value: those of a wave, 32 or 64, and 1 on a backend without blocks."""
    _kernel_only("group_size")


def log2_group_size() -> int:
    """The binary logarithm of ``group_size()``, a compile-time value."""
    _kernel_only("log2_group_size")


def invocation_id() -> Any:
    """The lane of this thread: its number in its subgroup, i32."""
    _kernel_only("invocation_id")


def all_lanes() -> bool:
    """Whether every thread is known to have an iteration: the length of the loop is a multiple of its ``block_dim``, as a literal or as a
    product with one.
    """
    _kernel_only("all_lanes")


def exchanges() -> bool:
    """Whether instructions exchange values of lanes, and the blocks of the loop are a whole number of subgroups; a compile-time value."""
    _kernel_only("exchanges")


def from_lane(value: Any, lane: Any) -> Any:
    """The value that the thread of a lane gives, of any type; lanes count modulo ``group_size()``. One without an iteration gives
    an undefined value.
    """
    _kernel_only("from_lane")


def offset(lanes: Any) -> Any:
    """A lane, or a distance between lanes, as i32; a literal is 0 to ``group_size() - 1``."""
    _kernel_only("offset")


def warp(name: str) -> None:
    """Stop where subgroups are no warps of 32 threads. ``name``: what needs them."""
    _kernel_only("warp")


def votes(predicate: Any) -> Any:
    """A bit for each lane whose predicate is not 0, u64; 0 for a lane without an iteration."""
    _kernel_only("votes")


def sync() -> None:
    """A barrier of the subgroup: none of its threads continues before all have arrived. Their earlier writes are visible afterwards."""
    _kernel_only("sync")


def neutral(code: str, value: Any) -> Any:
    """The value of another value's type that changes nothing in an "add", "mul", "min", "max", "and", "or" or "xor" of two."""
    _kernel_only("neutral")


def fence(who: str) -> None:
    """Other threads see what this thread has written before the fence, if they see what it writes after it.

    ``who``: the threads of its "block", or those of the "grid".
    """
    _kernel_only("fence")


def _kernel_only(name: str) -> NoReturn:
    raise QdrunRuntimeError(f"simt.subgroup.{name}() was called outside of a kernel; do: call it inside a loop of a kernel")


def size_of(blocks: bool, lanes: int) -> int:
    """Threads of a subgroup. ``blocks``: threads meet in blocks; ``lanes``: those of a wave whose instructions exchange values."""
    return (lanes or LANES) if blocks else 1


def _size(cx: Context) -> int:
    return size_of(cx.options.blocks, cx.options.lanes)


def _loop(cx: Context, name: str) -> Task:
    """The loop around. If its blocks are no whole number of subgroups, the last one has fewer threads.

    Raises:
        QdrunTypeError: there is none.
    """
    return loop_of_blocks(cx, f"subgroup.{name}")


def _given(cx: Context, node: ast.Call, fn: Callable[..., Any]) -> list[Any]:
    nodes, _ = positional(fn, node.args, {str(k.arg): k.value for k in node.keywords})
    return [cx.expr(a) for a in nodes]


def _group_size(cx: Context, node: ast.Call) -> int:
    no_arguments(node, "subgroup.group_size")
    return _size(cx)


def _log2_group_size(cx: Context, node: ast.Call) -> int:
    no_arguments(node, "subgroup.log2_group_size")
    return _size(cx).bit_length() - 1


def _invocation_id(cx: Context, node: ast.Call) -> Operand:
    no_arguments(node, "subgroup.invocation_id")
    return _lane(cx, _loop(cx, "invocation_id"))


def _lane(cx: Context, task: Task) -> Operand:
    if _size(cx) == 1:
        return Const(0, i32)
    number = thread_number(cx, task) if task.block % _size(cx) else cx.b.op("iter", dtype=i64)
    return cx.b.cast(cx.b.op("and", number, Const(_size(cx) - 1, i64)), i32)


def _all_lanes(cx: Context, node: ast.Call) -> bool:
    no_arguments(node, "subgroup.all_lanes")
    task = _loop(cx, "all_lanes")
    return _size(cx) == 1 or (fills_blocks(task) and task.block % _size(cx) == 0)


def _exchanges(cx: Context, node: ast.Call) -> bool:
    no_arguments(node, "subgroup.exchanges")
    return cx.options.lanes > 0 and _loop(cx, "exchanges").block % cx.options.lanes == 0


def _from_lane(cx: Context, node: ast.Call) -> Any:
    value, lane = _given(cx, node, from_lane)
    task = _loop(cx, "shuffle")
    lane = cx.b.op("and", _number(cx, lane), Const(_size(cx) - 1, i32))  # also -1: the lane before
    return ops.elementwise(lambda x: _exchanged(cx, task, x, lane), ops.as_value(cx.b, value))


def _offset(cx: Context, node: ast.Call) -> Operand:
    value, size = _number(cx, _given(cx, node, offset)[0]), _size(cx)
    if isinstance(value, Const) and not 0 <= value.value < size:
        raise QdrunTypeError(
            f"there is no lane {value.value}: on this backend, a subgroup has {size} lane{'s' * (size > 1)}",
            hint="make lanes of simt.subgroup.group_size() and invocation_id()",
        )
    return value


def _number(cx: Context, lane: Any) -> Operand:
    """A number of a lane, or of lanes between two, as i32.

    Raises:
        QdrunTypeError: it is no integer.
    """
    value = ops.to_operand(cx.b, lane)
    if not value.dtype.is_int:
        raise QdrunTypeError(f"the lane of another thread is an integer, not {value.dtype}", hint="convert it: int(x)")
    return ops.cast_scalar(cx.b, value, i32)


def _warp(cx: Context, node: ast.Call) -> None:
    name = _given(cx, node, warp)[0]
    if _size(cx) != LANES:
        raise QdrunTypeError(
            f"`simt.warp.{name}` needs warps of {LANES} threads; on this backend, a subgroup has {_size(cx)}",
            hint="use qd.simt.subgroup, with group_size()",
        )


def _exchanged(cx: Context, task: Task, value: Operand, lane: Operand) -> Operand:
    if _size(cx) == 1:
        return value
    if not cx.options.lanes:
        _count_memory(cx, task, u8 if value.dtype is u1 else value.dtype, -(-task.block // LANES) * LANES)
    return cx.b.op("shuffle", value, lane, dtype=value.dtype, attr=_attribute(cx, task))


def _attribute(cx: Context, task: Task) -> str:
    return attribute(_size(cx), fills_blocks(task), not cx.options.lanes)


def _count_memory(cx: Context, task: Task, dtype: DType, n: int) -> None:
    """Count the array of the block that all exchanges of one type in a loop will share (``passes.shuffle_lowering``)."""
    known = vars(cx.b).setdefault("exchanges", set())
    if (task, dtype, n) not in known:
        known.add((task, dtype, n))
        new_array(cx, task, LANE_VALUES, (n,), (), dtype)


def _votes(cx: Context, node: ast.Call) -> Operand:
    task = _loop(cx, "ballot")
    flag = ops.truth(cx.b, _given(cx, node, votes)[0])
    if _size(cx) == 1:
        return cx.b.cast(flag, u64)
    if not cx.options.lanes:
        _count_memory(cx, task, u32, -(-task.block // LANES))
    return cx.b.op("ballot", flag, dtype=u64, attr=_attribute(cx, task))


def _sync(cx: Context, node: ast.Call) -> None:
    no_arguments(node, "subgroup.sync")
    if cx.where != "parallel":
        return  # one thread runs here
    _loop(cx, "sync")
    if _size(cx) > 1:
        cx.b.op("barrier", dtype=i32, attr="wave" if cx.options.lanes else "exchange")


def _neutral(cx: Context, node: ast.Call) -> Any:
    code, value = _given(cx, node, neutral)

    def one(x: Operand) -> Operand:
        return Const(_identity(code, x.dtype), x.dtype)

    return ops.elementwise(one, ops.as_value(cx.b, value))


def _identity(code: str, dtype: DType) -> int | float:
    if code in ("add", "or", "xor", "mul"):
        return int(code == "mul")
    if code == "and":
        return -1 if dtype.kind == "i" else (1 << dtype.bits) - 1
    end: Literal["min", "max"] = "min" if code == "min" else "max"
    return identity(end, dtype).item()


def _fence(cx: Context, node: ast.Call) -> None:
    cx.b.op("fence", dtype=i32, attr=_given(cx, node, fence)[0])


SPECIAL: dict[Any, Callable[[Context, ast.Call], Any]] = {
    group_size: _group_size,
    log2_group_size: _log2_group_size,
    invocation_id: _invocation_id,
    all_lanes: _all_lanes,
    exchanges: _exchanges,
    from_lane: _from_lane,
    offset: _offset,
    warp: _warp,
    votes: _votes,
    sync: _sync,
    neutral: _neutral,
    fence: _fence,
}
"""The function that lowers a call."""
