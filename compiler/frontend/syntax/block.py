"""Blocks of threads: the names of ``qd.simt.block``, and what they are inside a kernel.

The threads of a block take one iteration each of the parallel loop around: iteration n is thread ``n % block_dim`` of its block. A shared
array is memory of the block, laid out as a field; ``sync()`` is a barrier.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, NoReturn

from ...errors import QdrunRuntimeError, QdrunTypeError
from ...ir.nodes import Buffer, Const, Operand, Place, Task
from ...ir.types import DType, i32, i64
from ..source.keywords import positional
from ..state.context import Context, describe
from ..values import ops
from ..values.tensor import TensorRef
from ..values.values import count

BLOCK, MOST_THREADS = 128, 1024
"""Threads of a block where the loop does not say how many, and the most that there may be."""

SHARED_BYTES = 48 << 10
"""Memory that the threads of a block may share."""


class SharedArray:
    """``SharedArray(shape, dtype)``: memory that the threads of a block share, inside a parallel loop. Its content is undefined at first.

    ``shape``: an int or a tuple of them; ``dtype``: a scalar type, or one of vectors or matrices.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: Any) -> None:
        _kernel_only("SharedArray")

    def __getitem__(self, index: Any) -> Any:
        _kernel_only("SharedArray")

    def __setitem__(self, index: Any, value: Any) -> None:
        _kernel_only("SharedArray")


def sync() -> None:
    """A barrier: no thread of the block continues before all have arrived. Their earlier writes are visible afterwards."""
    _kernel_only("sync")


def grid_sync() -> None:
    """A barrier of all threads of the loop: none continues before all have arrived. Their earlier writes are visible afterwards."""
    raise QdrunRuntimeError("simt.grid.sync() was called outside of a kernel; do: call it inside a parallel loop of a kernel")


def thread_idx() -> Any:
    """The number of this thread in its block, i32."""
    _kernel_only("thread_idx")


def global_thread_idx() -> Any:
    """The number of this thread among those of the loop, i32: that of its iteration."""
    _kernel_only("global_thread_idx")


def block_size() -> int:
    """The number of threads in a block of the enclosing loop, a compile-time value."""
    _kernel_only("block_size")


def _kernel_only(name: str) -> NoReturn:
    raise QdrunRuntimeError(
        f"simt.block.{name}() was called outside of a kernel; do: call it inside a parallel loop of a kernel"
    )


def block_dim(value: Any) -> int:
    """The value of ``loop_config(block_dim=..)``, 0 if there is none.

    Raises:
        QdrunTypeError: it is no valid number of threads in a block.
    """
    value = value.value if isinstance(value, Const) else value
    if value is None:
        return 0
    if type(value) is not int or not 1 <= value <= MOST_THREADS:
        raise QdrunTypeError(f"block_dim is a number from 1 to {MOST_THREADS:,}, not {value!r}", hint="give 128, say")
    return value


def loop_of_blocks(cx: Context, name: str) -> Task:
    """The parallel loop around, whose iterations are the threads of blocks. ``name``: what asks for it, below ``qd.simt``.

    Raises:
        QdrunTypeError: there is none.
    """
    task = cx.tasks.kernel.tasks[-1] if cx.where == "parallel" else None
    if task is None or task.serialize:
        why = "the loop around it runs in order" if task is not None else "there is no parallel loop around it"
        raise QdrunTypeError(
            f"`simt.{name}` stands where there are no blocks of threads: {why}",
            hint="use it inside an outermost `for` of the kernel",
        )
    task.block = task.block or BLOCK
    return task


def _together(cx: Context, name: str) -> Task:
    """The same for functions that need concurrent threads.

    Raises:
        QdrunTypeError: the backend has none.
    """
    if not cx.options.blocks:
        raise QdrunTypeError(
            f"`simt.{name}` needs a GPU: on this backend, iterations do not run side by side in blocks",
            hint="use qd.init(arch=qd.gpu), or write the loop with fields",
        )
    return loop_of_blocks(cx, name)


def no_arguments(node: ast.Call, name: str) -> None:
    """Stop where a call has arguments.

    Raises:
        QdrunTypeError: it has.
    """
    if node.args or node.keywords:
        raise QdrunTypeError(f"simt.{name}() takes no arguments")


def _sync(cx: Context, node: ast.Call) -> None:
    no_arguments(node, "block.sync")
    _together(cx, "block.sync")
    cx.b.op("barrier", dtype=i32)


def _grid_sync(cx: Context, node: ast.Call) -> None:
    no_arguments(node, "grid.sync")
    if not cx.options.grid_barrier:
        raise QdrunTypeError(
            "`simt.grid.sync` is not available on this backend: the blocks of a loop cannot wait for each other",
            hint="end the outermost loop there and begin another one: it starts when all iterations of the first are done",
        )
    loop_of_blocks(cx, "grid.sync")
    cx.b.op("barrier", dtype=i32, attr="grid")


def _thread_idx(cx: Context, node: ast.Call) -> Any:
    no_arguments(node, "block.thread_idx")
    return cx.b.cast(thread_number(cx, loop_of_blocks(cx, "block.thread_idx")), i32)


def thread_number(cx: Context, task: Task) -> Operand:
    """The number of this thread in its block, i64."""
    power = task.block & (task.block - 1) == 0
    by = Const(task.block - power, i64)
    return cx.b.op("and" if power else "crem", cx.b.op("iter", dtype=i64), by)


def _global_thread_idx(cx: Context, node: ast.Call) -> Any:
    no_arguments(node, "block.global_thread_idx")
    loop_of_blocks(cx, "block.global_thread_idx")
    return cx.b.cast(cx.b.op("iter", dtype=i64), i32)


def _block_size(cx: Context, node: ast.Call) -> int:
    no_arguments(node, "block.block_size")
    return loop_of_blocks(cx, "block.block_size").block


def _shared_array(cx: Context, node: ast.Call) -> TensorRef:
    """A new array of the block.

    Raises:
        QdrunTypeError: wrong arguments, or more memory than a block has.
    """
    task = _together(cx, "block.SharedArray")
    given, _ = positional(SharedArray, node.args, {str(k.arg): k.value for k in node.keywords})
    extents, of = map(cx.static_expr, given)
    shape = _shape(extents)
    element, dtype = _element(cx, of)
    return new_array(cx, task, "shared array", shape, element, dtype)


def new_array(cx: Context, task: Task, name: str, shape: tuple[int, ...], element: tuple[int, ...], dtype: DType) -> TensorRef:
    """One more array of the blocks of a loop, row-major.

    Each component of vectors and matrices has a plane of its own, so that neighbours lie in different banks.

    Raises:
        QdrunTypeError: the arrays take more memory than a block has.
    """
    used = vars(cx.b).setdefault("shared_bytes", {}).setdefault(task, [])
    used.append(-(-count(shape) * count(element) * dtype.size // 16) * 16)
    if sum(used) > SHARED_BYTES:
        raise QdrunTypeError(
            f"the shared arrays of this loop take {sum(used):,} bytes; a block has {SHARED_BYTES:,}",
            hint="take smaller tiles, or a smaller type",
        )
    name = f"{name} {len(used)}"
    strides, step = [], dtype.size
    for n in reversed(shape):
        strides.insert(0, step)
        step *= n
    buffer = Buffer("block")
    places = tuple(
        Place(name, dtype, buffer, len(shape), shape, tuple(strides), k * step, dtype.size) for k in range(count(element))
    )
    return TensorRef(name, places, element, len(shape), shape)


def _shape(value: Any) -> tuple[int, ...]:
    parts = value if isinstance(value, (tuple, list)) else (value,)
    out: list[int] = []
    for part in parts:
        n = part.value if isinstance(part, Const) else part
        if type(n) is int and n > 0:
            out.append(n)
    if not out or len(out) < len(parts):
        raise QdrunTypeError(
            f"the shape of a shared array is known at compile time: an int or a tuple of ints above 0, not {_said(value)}"
        )
    return tuple(out)


def _said(value: Any) -> str:
    return repr(value) if isinstance(value, (int, float, str, tuple, list)) else describe(value)


def _element(cx: Context, dtype: Any) -> tuple[tuple[int, ...], DType]:
    """Shape and scalar type of an element."""
    element = getattr(dtype, "shape", ())
    if element:
        dtype = dtype.dtype or cx.b.default_fp
    try:
        return tuple(element), ops.as_dtype(cx.b, dtype)
    except (TypeError, KeyError):
        raise QdrunTypeError(f"a shared array holds numbers, vectors or matrices, not {_said(dtype)}") from None


SPECIAL: dict[Any, Callable[[Context, ast.Call], Any]] = {
    SharedArray: _shared_array,
    sync: _sync,
    grid_sync: _grid_sync,
    thread_idx: _thread_idx,
    global_thread_idx: _global_thread_idx,
    block_size: _block_size,
}
"""The function that lowers a call."""
