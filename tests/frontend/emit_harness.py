"""Emits front-end operations on inputs, verifies the IR and runs it with the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qdrun.compiler.frontend.state.builder import FrontBuilder
from qdrun.compiler.frontend.values.values import MatrixValue
from qdrun.compiler.ir.nodes import Axis, Buffer, Const, Kernel, Op, Place, Task
from qdrun.compiler.ir.types import DType, f32, i32, i64
from qdrun.compiler.ir.types import from_numpy as dtype_of
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel


def place(name: str, dtype: DType, shape: tuple[int, ...]) -> Place:
    """A place alone in its buffer."""
    strides = tuple(dtype.size * int(np.prod(shape[k + 1 :])) for k in range(len(shape)))
    return Place(name, dtype, Buffer("field", name), len(shape), shape, strides)


def emit(
    f: Callable[..., Any], *inputs: Any, fp: DType = f32, ip: DType = i32, seed: int = 0, check: bool = False, n: int = 0
) -> Any:
    """The value of ``f(b, *inputs)``: numpy arrays come as loaded scalars, vectors or matrices; the result as numpy.

    With ``n`` the task runs ``n`` iterations and the results are stacked.
    """
    task = Task("t", [])
    index = Op("index", (), i64)
    if n:
        task.axes = [Axis(index, Const(0, i64), Const(n, i64))]
    b = FrontBuilder(task.body, fp, ip, check_bounds=check)
    memory: dict[Place, np.ndarray] = {}
    values = []
    for number, given in enumerate(inputs):
        if not isinstance(given, (np.ndarray, np.generic)):
            values.append(given)
            continue
        data = np.asarray(given)
        flat = np.array(data.reshape(-1))
        source = place(f"in{number}", dtype_of(data.dtype), flat.shape)
        memory[source] = flat
        items = tuple(b.gload(source, (Const(k, i32),)) for k in range(flat.size))
        values.append(MatrixValue(data.shape, items) if data.ndim else items[0])
    out = f(b, *values)
    items = out.items if isinstance(out, MatrixValue) else (out,)
    rows = max(n, 1)
    target = place("out", items[0].dtype, (rows, len(items)))
    memory[target] = np.zeros((rows, len(items)), items[0].dtype.numpy)
    for k, item in enumerate(items):
        b.gstore(target, (index if n else Const(0, i32), Const(k, i32)), item)
    kernel = Kernel("k", [], [task])
    verify_kernel(kernel)
    run_kernel(kernel, Memory.of(memory), seed=seed)
    shape = out.shape if isinstance(out, MatrixValue) else ()
    return memory[target].reshape((n, *shape) if n else shape)[()]
