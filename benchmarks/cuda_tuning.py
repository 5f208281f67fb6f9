"""Adstacks on a GPU: the gradient of the sin recurrence over threads, on-chip bytes a thread, unrolling and launch bounds.

``python -m benchmarks.cuda_tuning [--json FILE] [--quick] [--emulated]``: a line for each choice with milliseconds, bytes of the heap,
registers and the error against f64. It decides the constants of ``adstack/machine.py``, ``codegen/llvm/grid_rows.py`` and
``codegen/llvm/cuda.py``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import qdrun as qd
from benchmarks.cuda_clock import Clock
from qdrun.compiler.adstack.machine import cuda
from qdrun.compiler.lang.program import Program
from qdrun.compiler.runtime.cuda import device as device_module

ITERATIONS = 1 << 22
STEPS = (1024, 256, 64)
THREADS, SHARED, CODES = (65_536, 131_072, 262_144), (184, 256, 368), tuple(product((4, 8, 16), (0, 4, 7)))
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


def edited(text: str, unroll: int, blocks: int) -> str:
    """The device code with other unrolling and launch bounds."""
    text = re.sub(r'"llvm.loop.unroll.count", i32 4\b', f'"llvm.loop.unroll.count", i32 {unroll}', text)
    return re.sub(r' "nvvm.minctasm"="\d+"', f' "nvvm.minctasm"="{blocks}"' if blocks else "", text)


class Choices:
    """What the compiler and the planner are made to do."""

    def __init__(self) -> None:
        self.unroll, self.blocks, self.machine = 4, 4, cuda()
        emit = device_module.emit_grid

        def emitted(*args: Any, **kwargs: Any) -> Any:
            grid = emit(*args, **kwargs)
            return replace(grid, device=edited(grid.device, self.unroll, self.blocks))

        device_module.emit_grid = emitted
        Program.own_machine = lambda program, lanes: self.machine  # type: ignore[method-assign]


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


def measured(kernel: Any, clock: Clock, steps: int, seconds: float) -> dict[str, Any]:
    """Time, bytes, placement of one choice."""
    plan = kernel.grad.plan(steps, 0.1)
    row = plan.rows()[0]
    kernel.grad(steps, 0.1)
    took = clock.measure(lambda: kernel.grad(steps, 0.1), seconds, least=3, most=5)
    return {"ms": took["least_ms"], "bytes": plan.bytes, "segment": row["segment"], "levels": row["levels"]}


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
    clock = Clock(qd.sync, None if options.emulated else qd.current_program().device.stream)
    codes = ((4, 4), (8, 4)) if options.quick else CODES
    with tempfile.TemporaryDirectory() as folder:
        for unroll, blocks in codes:
            choices.unroll, choices.blocks, choices.machine = unroll, blocks, cuda()
            kernel = kernel_of(folder, f"march_{unroll}_{blocks}", x, y)
            kernel(8, 0.0)
            error = error_of(kernel, x, y, start, 300)
            for threads, shared, steps in product(THREADS, SHARED, STEPS):
                choices.machine = replace(cuda(threads), shared=shared, cache=0)
                _forget()
                found = measured(kernel, clock, steps, 0.02)
                rows.append(
                    {"unroll": unroll, "minctasm": blocks, "threads": threads, "shared": shared, "steps": steps}
                    | found
                    | {"registers": registers_of(kernel), "error": error}
                )
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
                gradient._plans.clear()
                gradient._set = None
    # native launches of a gradient know one plan
    for kernel in qd.current_program().variants:
        kernel.grad._launched = None


def _show(rows: list[dict[str, Any]]) -> None:
    names = ("unroll", "minctasm", "registers", "threads", "shared", "segment")
    print("  ".join(f"{name:>9}" for name in (*names, *(f"K={k} ms" for k in STEPS), "MB", "error")))
    groups: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in ("unroll", "minctasm", "registers", "threads", "shared")), {})[row["steps"]] = (
            row
        )
    for key, by_steps in groups.items():
        most = by_steps[STEPS[0]]
        cells = [*key, most["segment"], *(f"{by_steps[k]['ms']:.3f}" for k in STEPS)]
        cells += [f"{most['bytes'] / 1e6:.2f}", f"{most['error']:.1e}"]
        print("  ".join(f"{cell!s:>9}" for cell in cells))


if __name__ == "__main__":
    main()
