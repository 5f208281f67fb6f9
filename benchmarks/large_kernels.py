"""Compile and run time of large kernels by the pipeline of LLVM: the one that `runtime.jit` chooses, and level 0 without passes.

    python -m benchmarks.large_kernels [--kinds chemistry,matrices,sines,memory,branches] [--lines 8000,20000,40000,60000] [--batch 8]

Each kernel is one unrolled loop, with its gradient. CPU seconds and microseconds of one thread; each pipeline has its own process. The
last column is how many times faster the code of the chosen pipeline is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import qdrun as qd
from qdrun.compiler.runtime import jit

SPECIES = 40
PER_LINE = {"chemistry": 1 / 17, "matrices": 1 / 4.4, "sines": 1 / 10, "memory": 1 / 5, "branches": 1 / 76}
"""Statements of a kernel for a line of LLVM."""


def _build(kind: str, n: int, x: Any, y: Any, loss: Any) -> Any:
    r = np.random.default_rng(0)
    reactions = [tuple(int(k) for k in r.integers(SPECIES, size=3)) for _ in range(n)]
    size = round(n ** (1 / 3))

    @qd.kernel
    def chemistry():
        for _ in range(1):
            s = [x[i] for i in qd.static(range(SPECIES))]
            d = [0.0 * s[i] for i in qd.static(range(SPECIES))]
            for k in qd.static(range(n)):
                a, b, c = qd.static(reactions[k])
                q = (0.5 + k / n) * s[a] * s[b] / (1.0 + s[c])
                d[a] = d[a] - q
                d[b] = d[b] - q
                d[c] = d[c] + q
            for i in qd.static(range(SPECIES)):
                y[i] = s[i] + 0.001 * d[i]

    @qd.kernel
    def matrices():
        for _ in range(1):
            a = [[x[(i * 7 + j) % 64] for j in range(size)] for i in range(size)]
            b = [[a[i][j] * 0.5 + x[j] for j in range(size)] for i in range(size)]
            for i in qd.static(range(size)):
                for j in qd.static(range(size)):
                    t = 0.0 * x[0]
                    for k in qd.static(range(size)):
                        t = t + a[i][k] * b[k][j]
                    y[i * size + j] = t

    @qd.kernel
    def sines():
        for _ in range(1):
            v = x[0]
            for i in qd.static(range(n)):
                v = qd.sin(v + x[i % 60]) + 0.1 * v
            loss[None] = v

    @qd.kernel
    def memory():
        for _ in range(1):
            for i in qd.static(range(n)):
                y[i % 4096] = y[(i * 13 + 5) % 4096] * 0.5 + x[i % 64]

    @qd.kernel
    def branches():
        for _ in range(1):
            v, w = x[0], x[1]
            for i in qd.static(range(n)):
                if v < x[i % 60]:
                    v = v * 0.9 + w * 0.2
                else:
                    w = w * 0.99 + 0.01 * v
            loss[None] = v + w

    return {k.__name__: k for k in (chemistry, matrices, sines, memory, branches)}[kind]


def _seconds(run: Callable[[], None]) -> float:
    best = float("inf")
    for _ in range(40):
        begin = time.process_time()
        run()
        best = min(best, time.process_time() - begin)
    return best


def _one(kind: str, lines: int, batch: int, slow: bool) -> dict[str, Any]:
    """Lines, compile seconds, and microseconds of a kernel or its gradient."""
    found: dict[str, Any] = {"lines": 0, "compile": 0.0}
    original = jit._compile
    if slow:
        jit.PIPELINES = jit.PIPELINES[-1:]

    def timed(text: str, name: str, opt_level: int) -> bytes:
        begin, size = time.process_time(), jit.size_of(text)
        code = original(text, name, opt_level)
        if size.lines > found["lines"]:
            found.update(lines=size.lines, compile=time.process_time() - begin)
        return code

    jit._compile = timed
    options: dict[str, Any] = {"batch": batch} if batch else {}
    with qd.init(default_fp=qd.f64, cpu_max_num_threads=1, offline_cache=False, **options):
        x, y = (qd.field(qd.f64, n, needs_grad=True) for n in (64, 4096))
        loss = qd.field(qd.f64, (), needs_grad=True)
        x.fill(0.3)
        kernel = _build(kind, max(1, int(lines * PER_LINE[kind])), x, y, loss)
        kernel()
        run = kernel
        if kind != "memory":
            loss.grad.fill(1.0)
            y.grad.fill(1.0)
            run = kernel.grad
        run()
        found["us"] = 1e6 * _seconds(run)
    return found


def main() -> None:
    """Print a line for each kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="chemistry,matrices,sines,memory,branches")
    parser.add_argument("--lines", default="8000,20000,40000,60000")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        warnings.simplefilter("ignore")
        kind, lines, slow = args.one
        print(json.dumps(_one(kind, int(lines), args.batch, slow == "slow")))
        return
    print("kernel      lines  compile s: level 0, chosen   run us: level 0, chosen   ratio")
    for kind in args.kinds.split(","):
        for lines in args.lines.split(","):
            own = [sys.executable, "-m", "benchmarks.large_kernels", "--batch", str(args.batch), "--one", kind, lines]
            slow, fast = (
                json.loads(subprocess.run([*own, how], capture_output=True, text=True, check=True).stdout)
                for how in ("slow", "fast")
            )
            print(
                f"{kind:<10} {fast['lines']:>6}  {slow['compile']:>10.1f} {fast['compile']:>10.1f}"
                f"       {slow['us']:>10.1f} {fast['us']:>10.1f}     {slow['us'] / fast['us']:>5.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
