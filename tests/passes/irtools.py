"""Small kernels for the tests of passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import ArgDecl, Axis, Buffer, Const, Kernel, Op, Place, Task
from qdrun.compiler.ir.printer import print_block
from qdrun.compiler.ir.types import DType, f32, i32
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.ir.walk import place_of, task_blocks
from qdrun.compiler.passes.clone import clone_kernel


def field(name: str, shape: tuple[int, ...] = (8,), dtype: DType = f32) -> Place:
    """A field alone in its buffer, row-major."""
    strides = tuple(dtype.size * int(np.prod(shape[k + 1 :])) for k in range(len(shape)))
    return Place(name, dtype, Buffer("field"), len(shape), shape, strides)


def ndarray(name: str, ndim: int = 1, dtype: DType = f32) -> Place:
    """An ndarray argument of scalars."""
    decl = ArgDecl(name, "ndarray", dtype, ndim)
    return Place(name, dtype, Buffer("arg", decl), ndim, None, None, elem_bytes=dtype.size)


def axis(n: int = 4) -> Axis:
    """A parallel axis over [0, n)."""
    return Axis(Op("index", (), i32), const_i32(0), const_i32(n))


def arguments(task: Task) -> list[ArgDecl]:
    """What the task reads of the launch, in order of appearance."""
    found: dict[ArgDecl, None] = {}
    for s in task_blocks(task):
        owner = place.buffer.owner if (place := place_of(s)) else getattr(s, "attr", None)
        if isinstance(owner, ArgDecl):
            found.setdefault(owner)
    for number, decl in enumerate(found):
        decl.index = number
    return list(found)


def kernel(build, *axes: Axis, lowered: bool = True) -> Kernel:
    """A kernel of one task; ``build(b, *indices)`` fills its body."""
    task = Task("t", [], list(axes))
    build(StatementBuilder(task.body), *(a.index for a in axes))
    out = Kernel("k", arguments(task), [task])
    verify_kernel(out, lowered)
    return out


def body(k: Kernel, lowered: bool = True) -> list[str]:
    """The printed body of a verified kernel of one task, line by line."""
    verify_kernel(k, lowered)
    return print_block(k.tasks[0].body).split("\n")


def f(value: float) -> Const:
    """An f32 literal."""
    return Const(value, f32)


def on_copy(change: Callable[[Task], object]) -> Callable[[Kernel], Kernel]:
    """A pass that changes a task in place, as a function from a kernel to a changed copy."""

    def run(kernel: Kernel) -> Kernel:
        out = clone_kernel(kernel)
        for task in out.tasks:
            change(task)
        return out

    return run
