"""CPU time of parallel loops with SIMD lanes and without, and which of the two `codegen.llvm.cost` chooses.

    python -m benchmarks.lanes [--kinds nbody,lorenz,..] [--types f64,f32]

Prints for each loop the microseconds of one thread without lanes and with them, the choice, and its time over the better one. Each
measurement has its own process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

import qdrun as qd
from qdrun.compiler.codegen.llvm import cost

N, SIDE = 4096, 64


def _fields(real: Any) -> SimpleNamespace:
    r = np.random.default_rng(0)
    f = SimpleNamespace(**{name: qd.field(real, N) for name in ("x", "y", "table")})
    f.at, f.out = (qd.field(qd.i32, N) for _ in range(2))
    f.bodies, f.pull = (qd.Vector.field(3, real, shape=SIDE) for _ in range(2))
    for one in (f.x, f.table):
        one.from_numpy(r.uniform(0.1, 0.9, N))
    f.at.from_numpy(r.integers(0, N, N).astype(np.int32))
    f.bodies.from_numpy(r.normal(size=(SIDE, 3)))
    return f


def _computing(real: Any, f: SimpleNamespace) -> list[Any]:
    """Loops whose iterations wait for one another."""
    x, y, table, at, out, bodies, pull = f.x, f.y, f.table, f.at, f.out, f.bodies, f.pull

    @qd.kernel
    def nbody():
        for i in range(SIDE):
            a = qd.Vector([0.0, 0.0, 0.0])
            for j in range(SIDE):
                d = bodies[j] - bodies[i]
                r2 = d.dot(d) + 0.05
                a += d / (r2 * qd.sqrt(r2))
            pull[i] = a

    @qd.kernel
    def lorenz():
        for i in range(N):
            u, v, w = x[i], 1.0, 1.0
            for _ in range(200):
                du, dv, dw = 10.0 * (v - u), u * (14.0 - w) - v, u * v - 2.6 * w
                u += 0.002 * du
                v += 0.002 * dv
                w += 0.002 * dw
            y[i] = u + v + w

    @qd.kernel
    def mandelbrot():
        for i in range(N):
            cr, ci = x[i] * 3.0 - 2.0, table[i % N] * 2.0 - 1.0
            a, b, k = 0.0, 0.0, 0
            while k < 200 and a * a + b * b < 4.0:
                a, b = a * a - b * b + cr, 2.0 * a * b + ci
                k += 1
            out[i] = k

    @qd.kernel
    def horner():
        for i in range(N):
            v, s = x[i], 0.0
            for _ in range(32):
                s = s * v + 0.5
            y[i] = s

    @qd.kernel
    def hashing():
        for i in range(N):
            v = qd.cast(at[i], qd.u32)
            for _ in range(16):
                v = v ^ (v << 13)
                v = v ^ (v >> 17)
                v = v ^ (v << 5)
            out[i] = qd.cast(v & 0x7FFFFFFF, qd.i32)

    @qd.kernel
    def newton():
        for i in range(N):
            v = 1.0
            for _ in range(20):
                v = 0.5 * (v + x[i] / v)
            y[i] = v

    @qd.kernel
    def sqrts():
        for i in range(N):
            v = x[i]
            for _ in range(20):
                v = qd.sqrt(v + 0.1) - 0.2
            y[i] = v

    @qd.kernel
    def triangle():
        for i in range(N):
            s = 0.0
            for _ in range(i % 64):
                s = s * 0.9 + x[i]
            y[i] = s

    @qd.kernel
    def sines():
        for i in range(N):
            v = x[i]
            for _ in range(10):
                v = qd.sin(v) + 0.1
            y[i] = v

    @qd.kernel
    def bisect():
        for i in range(N):
            lo, hi = 0, 4095
            while lo < hi:
                m = (lo + hi) // 2
                if table[m] * 0.0 + qd.cast(m, real) / 4096.0 < x[i]:
                    lo = m + 1
                else:
                    hi = m
            out[i] = lo

    return [nbody, lorenz, mandelbrot, horner, hashing, newton, sqrts, triangle, sines, bisect]


def _reading(real: Any, f: SimpleNamespace) -> list[Any]:
    """Loops that read and write memory, and short ones."""
    x, y, table, at = f.x, f.y, f.table, f.at

    @qd.kernel
    def lookups():
        for i in range(N):
            s = 0.0
            for k in range(32):
                s += table[(at[i] + k * 37) % N]
            y[i] = s

    @qd.kernel
    def chase():
        for i in range(N):
            k, s = at[i], 0.0
            for _ in range(32):
                s = s * 0.5 + table[k] * x[i]
                k = (k * 5 + 17) & 4095
            y[i] = s

    @qd.kernel
    def rowsum():
        for i in range(SIDE):
            s = 0.0
            for j in range(SIDE):
                s += x[i * SIDE + j] * table[j]
            y[i] = s

    @qd.kernel
    def column():
        for i in range(SIDE):
            s = 0.0
            for j in range(SIDE):
                s += x[j * SIDE + i] * table[j]
            y[i] = s

    @qd.kernel
    def maprow():
        for i in range(SIDE):
            for j in range(SIDE):
                a = x[i * SIDE + j]
                y[i * SIDE + j] = a * (a * (a * (a * (a * 0.5 + 0.1) + 0.2) + 0.3) + 0.4) + table[j]

    @qd.kernel
    def short():
        for i in range(N):
            s = x[i]
            for _ in range(3):
                s = s * 0.5 + table[i % N]
            y[i] = s

    @qd.kernel
    def smooth():
        for i in range(N):
            y[i] = x[i] * 0.5 + table[i % N]

    @qd.kernel
    def stencil():
        for i in range(N):
            s = 0.0
            for k in range(9):
                s += x[(i + k) % N] * table[k]
            y[i] = s

    @qd.kernel
    def springs():
        for i in range(N):
            f = 0.0
            for k in range(8):
                j = (at[i] * 3 + k * 11) & 4095
                d = x[j] - x[i]
                f += d / (qd.abs(d) + 0.1) * 0.5
            y[i] = f

    @qd.kernel
    def scatter():
        for i in range(N):
            for k in range(16):
                w = x[i] * (0.5 + k * 0.01)
                y[(at[i] + k) & 4095] += w * w * 0.1 + w

    return [lookups, chase, rowsum, column, maprow, short, smooth, stencil, springs, scatter]


def _measure(kind: str, real: str, how: str) -> dict[str, Any]:
    """Microseconds of a launch, and whether lanes were chosen."""
    chosen: list[bool] = []
    choose = cost._lanes_pay

    def pay(task: Any, plain: Any) -> bool:
        chosen.append(choose(task, plain) if how == "chosen" else how == "on" and task.parallel)
        return chosen[-1]

    cost._lanes_pay = pay
    with qd.init(default_fp=getattr(qd, real), cpu_max_num_threads=1, offline_cache=False):
        kind_of = getattr(qd, real)
        fields = _fields(kind_of)
        kernels = _computing(kind_of, fields) + _reading(kind_of, fields)
        kernel = next(k for k in kernels if k.__name__ == kind)
        kernel()
        best = float("inf")
        for _ in range(15):
            begin = time.process_time()
            for _ in range(40):
                kernel()
            best = min(best, (time.process_time() - begin) / 40)
    return {"us": 1e6 * best, "lanes": chosen[-1]}


KINDS = (
    "nbody lorenz mandelbrot horner hashing newton sqrts triangle sines bisect "
    "lookups chase rowsum column maprow short smooth stencil springs scatter"
)


def main() -> None:
    """Print a line for each loop and type."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS.split()))
    parser.add_argument("--types", default="f64,f32")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(_measure(*args.one)))
        return
    print("loop        type   us: scalar      lanes  chosen   chosen / best")
    for kind in args.kinds.split(","):
        for real in args.types.split(","):
            command = [sys.executable, "-m", "benchmarks.lanes", "--one", kind, real]
            found = {
                how: json.loads(subprocess.run([*command, how], capture_output=True, text=True, check=True).stdout)
                for how in ("off", "on", "chosen")
            }
            off, on, chosen = (found[how]["us"] for how in ("off", "on", "chosen"))
            name = "lanes" if found["chosen"]["lanes"] else "scalar"
            print(f"{kind:<11} {real:>4} {off:>12.2f} {on:>10.2f}  {name:<8} {chosen / min(off, on):>9.2f}", flush=True)


if __name__ == "__main__":
    main()
