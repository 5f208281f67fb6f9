"""Adstacks on a GPU: the gradient of the sin recurrence over threads, on-chip bytes a thread, unrolling and launch bounds.

``python -m benchmarks.cuda_tuning [--json FILE] [--quick] [--emulated]``: a line for each choice with milliseconds, bytes of the heap,
registers and the error against f64. It decides the constants of ``tape/machine.py``, ``tape/placement.py``,
``codegen/gpu/grid/rows.py`` and ``codegen/cuda/hardware.py``. Times are those of one of many launches that the device runs without a
pause; one with a ``-`` before it has pauses.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import qdrun as qd
from benchmarks.cuda_clock import batch
from qdrun.compiler.codegen.cuda import hardware as cuda_code
from qdrun.compiler.codegen.gpu.grid import rows as grid_rows
from qdrun.compiler.program.state import ProgramState
from qdrun.compiler.tape import placement
from qdrun.compiler.tape.machine import cuda

ITERATIONS = 1 << 22
STEPS = (1024, 256, 64)
ALL = tuple(product((4, 8, 16), (4, 6, 8), (65_536, 131_072, 262_144), (184, 284, 368), ((4, 0), (8, 1))))
"""Unrolling, blocks a multiprocessor that registers are held for, threads, bytes on chip a thread, ``STEP`` and ``OVER``."""
QUICK = (
    *((8, 4, threads, 368, (4, 0)) for threads in (65_536, 131_072, 262_144)),
    *((8, 4, threads, 368, (8, 1)) for threads in (65_536, 262_144)),
    (8, 6, 131_072, 284, (8, 1)),
    (8, 6, 262_144, 284, (8, 1)),
    (8, 8, 131_072, 184, (8, 1)),
    (4, 4, 262_144, 368, (4, 0)),
)
_FILLER = 16_384  # steps of the forward kernel while launches are queued: about 18 ms
_SOURCE = """
import qdrun as qd

def make(x, y):
    @qd.kernel
    def {name}(n: qd.i32, c: qd.f32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = qd.sin(v) + c
            y[i] = v
    return {name}
"""


class Choices:
    """What the compiler and the planner are made to do."""

    def __init__(self) -> None:
        self.machine = cuda()
        ProgramState.own_machine = lambda program, lanes: self.machine  # type: ignore[method-assign]

    def code(self, unroll: int, blocks: int) -> None:
        """For the kernels that are compiled from now on."""
        grid_rows.OFTEN, cuda_code.SMALL_STACK_BLOCKS = unroll, blocks

    def plans(self, threads: int, shared: int, even: tuple[int, int]) -> None:
        """For the plans that are made from now on."""
        self.machine = replace(cuda(threads), shared=shared)
        placement.STEP, placement.OVER = even
        _forget()


def kernel_of(folder: str, name: str, x: Any, y: Any) -> Any:
    """The recurrence under a name of its own, so that nothing compiled is used twice."""
    path = Path(folder) / f"{name}.py"
    path.write_text(_SOURCE.format(name=name), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.make(x, y)


def error_of(kernel: Any, x: Any, y: Any, start: np.ndarray, steps: int) -> float:
    """The largest relative error of some gradients. Without the 0.1 they do not vanish."""
    y.grad.fill(1.0)
    x.grad.fill(0.0)
    kernel.grad(steps, 0.0)
    some = np.random.default_rng(2).choice(len(start), min(len(start), 2048), replace=False)
    v, slope = start[some].astype(float), np.ones(len(some))
    for _ in range(steps):
        v, slope = np.sin(v), slope * np.cos(v)
    return float(np.max(np.abs(x.grad.to_numpy()[some] / slope - 1)))


def registers_of(kernel: Any) -> int:
    """Registers a thread of the gradient's code."""
    executable = next(iter(qd.current_program().variants[kernel].values())).gradient
    functions = getattr(getattr(executable.compiled, "gpu", None), "functions", ())
    return max((getattr(f, "registers", 0) for f in functions), default=0)


def measured(kernel: Any, steps: int, stream: int | None, times: int) -> dict[str, Any]:
    """Time, bytes, placement of one choice."""
    plan = kernel.grad.plan(steps, 0.1)
    row = plan.rows()[0]
    kernel.grad(steps, 0.1)

    def once() -> float:
        return batch(stream or 0, qd.sync, lambda: kernel(_FILLER, 0.1), lambda: kernel.grad(steps, 0.1), times)

    ms = min((once() for _ in range(3)), key=abs) if stream is not None else 0.0
    return {"ms": ms, "bytes": plan.bytes, "segment": row["segment"], "levels": row["levels"]}


def main() -> None:
    """Measure all choices."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--emulated", action="store_true")
    options = parser.parse_args()
    choices, rows, begin = Choices(), [], time.perf_counter()
    n = 37 if options.emulated else ITERATIONS
    qd.init(arch=qd.cuda, device="emulated" if options.emulated else 0, fast_math=True, offline_cache=False)
    x, y = qd.field(qd.f32, n, needs_grad=True), qd.field(qd.f32, n, needs_grad=True)
    start = np.random.default_rng(1).uniform(-1, 1, n).astype(np.float32)
    x.from_numpy(start)
    stream = None if options.emulated else qd.current_program().device.stream
    made: dict[tuple[int, int], tuple[Any, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for unroll, blocks, threads, shared, even in QUICK if options.quick else ALL:
            code = {"unroll": unroll, "minctasm": blocks}
            choices.plans(threads, shared, even)
            if (unroll, blocks) not in made:
                choices.code(unroll, blocks)
                kernel = kernel_of(folder, f"march_{unroll}_{blocks}", x, y)
                kernel(8, 0.0)
                made[unroll, blocks] = kernel, error_of(kernel, x, y, start, 300)
            kernel, error = made[unroll, blocks]
            for steps in STEPS:
                found = measured(kernel, steps, stream, 10)
                chosen = code | {"threads": threads, "shared": shared, "even": f"{even[0]}+{even[1]}", "steps": steps}
                rows.append(chosen | found | {"registers": registers_of(kernel), "error": error})
    _show(rows)
    print(f"{time.perf_counter() - begin:.1f} s in all")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


def _forget() -> None:
    """Plans are made anew for another machine."""
    for variants in qd.current_program().variants.values():
        for variant in variants.values():
            gradient = variant.__dict__.get("gradient")
            if gradient is not None:
                gradient.replan()


def _show(rows: list[dict[str, Any]]) -> None:
    keys = ("unroll", "minctasm", "registers", "threads", "shared", "even")
    names = (*keys, "segment", "levels")
    print("  ".join(f"{name:>9}" for name in (*names, *(f"K={k} ms" for k in STEPS), "MB", "error")))
    groups: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in keys), {})[row["steps"]] = row
    for key, by_steps in groups.items():
        most = by_steps[STEPS[0]]
        cells = [*key, most["segment"], most["levels"], *(f"{by_steps[k]['ms']:.3f}" for k in STEPS)]
        cells += [f"{most['bytes'] / 1e6:.2f}", f"{most['error']:.1e}"]
        print("  ".join(f"{cell!s:>9}" for cell in cells))


if __name__ == "__main__":
    main()
