"""Mathematical functions on a GPU: the largest error against a longer float type, and evaluations a second.

    python -m benchmarks.cuda_math [--arch cuda] [--fast] [--json FILE]

Errors are over 2^20 random arguments of each range, in units of the last place (ulp), and absolute for fast functions of which the
relative error has no bound. Rates: 2^22 threads evaluate a chain of 256, each argument made of the last result with one multiply-add.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import qdrun as qd

POINTS, THREADS, CHAIN = 1 << 20, 1 << 22, 256
TWO = ("atan2", "pow", "div")
REFERENCE: dict[str, Callable[..., Any]] = {
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "exp": np.exp, "log": np.log, "tanh": np.tanh,
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "atan2": np.arctan2, "pow": np.power, "div": np.divide,
}  # fmt: skip
RANGES: dict[str, list[tuple[float, float]]] = {
    "sin": [(-10, 10), (-1e5, 1e5), (-1e15, 1e15)],
    "cos": [(-10, 10), (-1e5, 1e5), (-1e15, 1e15)],
    "tan": [(-10, 10), (-1e5, 1e5), (-1e15, 1e15)],
    "asin": [(-1, 1)],
    "acos": [(-1, 1)],
    "exp": [(-80, 80), (-1e-3, 1e-3)],
    "log": [(1e-3, 1e3), (0.99, 1.01)],
    "tanh": [(-6, 6), (-1e-3, 1e-3)],
    "sqrt": [(0, 1e6)],
    "rsqrt": [(1e-6, 1e6)],
    "atan2": [(-5, 5)],
    "pow": [(0, 5), (0.9, 1.1)],
    "div": [(-1e3, 1e3)],
}
# the next argument is a * result + b: it stays where the function has its usual cost
NEXT = {
    "sin": (3.0, 0.5), "cos": (3.0, 0.5), "tan": (0.1, 0.5), "asin": (0.5, 0.1), "acos": (0.3, -0.4), "exp": (0.3, -0.2),
    "log": (0.5, 2.0), "tanh": (1.5, 0.1), "sqrt": (0.9, 0.3),
    "rsqrt": (0.5, 0.7), "atan2": (0.7, 0.3), "pow": (0.4, 0.6), "div": (0.5, 0.8),
}  # fmt: skip


def function_of(name: str) -> Any:
    """The function of one or two kernel values."""
    if name == "div":
        return qd.func(_quotient)
    return getattr(qd, name)


def _quotient(a, b):  # a function of the kernel language
    return a / b


def apply_kernel(f: Any, dtype: Any, two: bool) -> Any:
    """``y = f(x)`` or ``f(x, z)``, element by element."""
    array = qd.types.ndarray(dtype, ndim=1)

    @qd.kernel
    def one(x: array, z: array, y: array):
        for i in range(x.shape[0]):
            y[i] = f(x[i])

    @qd.kernel
    def both(x: array, z: array, y: array):
        for i in range(x.shape[0]):
            y[i] = f(x[i], z[i])

    return both if two else one


def chain_kernel(f: Any, dtype: Any, two: bool, a: float, b: float, chain: int) -> Any:
    """Each thread evaluates ``chain`` times, one after the other."""
    array = qd.types.ndarray(dtype, ndim=1)

    @qd.kernel
    def one(y: array, n: int):
        for i in range(n):
            v = qd.cast(0.5, dtype) + qd.cast(i % 1024, dtype) * qd.cast(1e-4, dtype)
            for _ in range(chain):
                v = f(v) * qd.cast(a, dtype) + qd.cast(b, dtype)
            y[i] = v

    @qd.kernel
    def both(y: array, n: int):
        for i in range(n):
            v = qd.cast(0.5, dtype) + qd.cast(i % 1024, dtype) * qd.cast(1e-4, dtype)
            for _ in range(chain):
                v = f(v, qd.cast(1.3, dtype)) * qd.cast(a, dtype) + qd.cast(b, dtype)
            y[i] = v

    return both if two else one


def errors(name: str, dtype: Any, points: int) -> list[dict[str, Any]]:
    """The largest errors over each range."""
    rng = np.random.default_rng(7)
    single = dtype is qd.f32
    kind, longer = (np.float32, np.float64) if single else (np.float64, np.longdouble)
    run = apply_kernel(function_of(name), dtype, name in TWO)
    rows: list[dict[str, Any]] = []
    for low, high in RANGES[name]:
        xs = [rng.uniform(low, high, points).astype(kind) for _ in range(2)]
        out = np.empty(points, kind)
        run(xs[0], xs[1], out)
        with np.errstate(all="ignore"):
            want = REFERENCE[name](*(x.astype(longer) for x in xs[: 2 if name in TWO else 1]))
            rounded = want.astype(kind)
            off = np.abs(out.astype(longer) - want)
            good = np.isfinite(rounded) & (rounded != 0)
            ulp = off[good] / np.spacing(np.abs(rounded[good])).astype(longer)
        rows.append({"range": [low, high], "ulp": float(ulp.max()), "absolute": float(off[good].max())})
        strange = ~good & ~((out == rounded) | (np.isnan(out) & np.isnan(rounded)))
        rows[-1]["strange"] = int(strange.sum())
    return rows


def rate(name: str, dtype: Any, threads: int, chain: int) -> float:
    """Evaluations a second, in 10^9."""
    run = chain_kernel(function_of(name), dtype, name in TWO, *NEXT[name], chain)
    y = qd.ndarray(dtype, threads)
    run(y, threads)
    qd.sync()
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        run(y, threads)
        qd.sync()
        best = min(best, time.perf_counter() - begin)
    if not np.isfinite(y.to_numpy()).all():
        raise RuntimeError(f"the chain of {name} left its range")
    return threads * chain / best / 1e9


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", default="cuda", choices=["cuda", "emulated", "cpu"])
    parser.add_argument("--fast", action="store_true", help="fast_math=True")
    parser.add_argument("--small", action="store_true", help="fewer points and threads: to see that it runs")
    parser.add_argument("--json", help="write the results there too")
    given = parser.parse_args()
    device = {"device": "emulated"} if given.arch == "emulated" else {}
    warnings.simplefilter("ignore", qd.PerformanceWarning)
    qd.init(arch=qd.cpu if given.arch == "cpu" else qd.cuda, fast_math=given.fast, **device)
    points, threads, chain = (1 << 12, 1 << 8, 16) if given.small else (POINTS, THREADS, CHAIN)
    table: list[dict[str, Any]] = []
    print(f"{'':12}{'Geval/s':>9}  ulp (absolute) by range")
    for dtype in (qd.f32, qd.f64):
        for name in RANGES:
            found = errors(name, dtype, points)
            speed = rate(name, dtype, threads, chain)
            table.append({"name": name, "dtype": str(dtype), "fast": given.fast, "rate": speed, "errors": found})
            cells = "  ".join(
                f"{r['ulp']:.2f} ({r['absolute']:.1e}) in {r['range']}" + (f" {r['strange']} WRONG" if r["strange"] else "")
                for r in found
            )
            print(f"{name:6}{dtype!s:6}{speed:9.0f}  {cells}", flush=True)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as out:
            json.dump(table, out, indent=1)


if __name__ == "__main__":
    main()
