"""Kernels with loops that the device counts (``kernel(graph=True)``), ours and the peer's: what an iteration takes.

``python -m benchmarks.graph_kernels --arch cuda [--iterations 10,1000] [--peer quadrants]``

Both run the same source in this process, one after the other: a loop with one stage, one with three, and a loop in a loop. The time is that
of a call with the wait for its end, divided by the iterations; the best of several calls. ``host``: the same of ours where the host reads
the flags, as it does when a stage prints.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

from qdrun.compiler.runtime.gpu.graphs import GpuGraphs

SOURCE = """
import {package} as qd

I0 = qd.types.ndarray(qd.i32, ndim=0)
F1 = qd.types.ndarray(qd.f32, ndim=1)


@qd.kernel(graph=True)
def one(c: I0, x: F1):
    while qd.graph_do_while(c):
        for i in range(x.shape[0]):
            x[i] = x[i] * 0.5 + 1.0
            if i == 0:
                c[()] -= 1


@qd.kernel(graph=True)
def three(c: I0, x: F1):
    while qd.graph_do_while(c):
        for i in range(x.shape[0]):
            x[i] = x[i] * 0.5 + 1.0
        for i in range(x.shape[0]):
            x[i] = x[i] - 0.25
        for i in range(1):
            c[()] -= 1


@qd.kernel(graph=True)
def nested(c: I0, inner: I0, x: F1):
    while qd.graph_do_while(c):
        for i in range(1):
            inner[()] = 4
        while qd.graph_do_while(inner):
            for i in range(x.shape[0]):
                x[i] = x[i] * 0.5 + 1.0
                if i == 0:
                    inner[()] -= 1
        for i in range(1):
            c[()] -= 1
"""


def loaded(package: str, folder: str) -> ModuleType:
    """The kernels as a module that imports this package."""
    path = Path(folder) / f"kernels_of_{package}.py"
    path.write_text(SOURCE.format(package=package))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured(module: Any, counts: list[int], size: int, repeats: int) -> dict[tuple[str, int], tuple[float, np.ndarray]]:
    """Seconds of an iteration, and what the array holds at the end, by kernel and iterations."""
    qd, found = module.qd, {}
    for name in ("one", "three", "nested"):
        for count in counts:
            c, inner, x = qd.ndarray(qd.i32, shape=()), qd.ndarray(qd.i32, shape=()), qd.ndarray(qd.f32, shape=(size,))
            arguments = (c, inner, x) if name == "nested" else (c, x)
            kernel = getattr(module, name)

            def call(kernel: Callable[..., Any] = kernel, c: Any = c, arguments: Any = arguments, count: int = count) -> float:
                c[()] = count
                qd.sync()
                begin = time.perf_counter()
                kernel(*arguments)
                qd.sync()
                return time.perf_counter() - begin

            x.fill(0.0)
            best = min(call() for _ in range(repeats))
            found[name, count] = best / count, x.to_numpy()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="cuda")
    parser.add_argument("--iterations", default="1,10,1000")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--peer", default="", help="a package with the same API, as quadrants")
    args = parser.parse_args()
    counts = [int(n) for n in args.iterations.split(",")]
    sides: dict[str, dict[tuple[str, int], tuple[float, np.ndarray]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        ours = loaded("qdrun", folder)
        for side, decides in (("graph", nullcontext()), ("host", patch.object(GpuGraphs, "conditional", False))):
            with decides, ours.qd.init(arch=getattr(ours.qd, args.arch)):
                sides[side] = measured(ours, counts, args.size, args.repeats)
        if args.peer:
            theirs = loaded(args.peer, folder)
            theirs.qd.init(arch=getattr(theirs.qd, args.arch))
            sides[args.peer] = measured(theirs, counts, args.size, args.repeats)
    for key in sides["graph"]:
        seconds = {side: found[key][0] for side, found in sides.items()}
        same = all(np.array_equal(found[key][1], sides["graph"][key][1]) for found in sides.values())
        row = ", ".join(f"{side} {1e6 * s:.2f} us ({s / seconds['graph']:.2f})" for side, s in seconds.items())
        print(f"{key[0]}, {key[1]:,} iterations: {row}{'' if same else '; DIFFERENT NUMBERS'}")


if __name__ == "__main__":
    main()
