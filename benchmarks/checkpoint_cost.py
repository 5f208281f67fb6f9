"""Measures gradients under many checkpoint plans, fits the coefficients of the cost model to them, and prints how far off it is.

    python -m benchmarks.checkpoint_cost [--repeats 5] [--json]

Each kernel of ``KERNELS`` runs on one thread under one-, two- and three-level plans; a figure is the least CPU time of some launches. The
fitted coefficients belong into ``compiler/tape/cost.py``. Errors are those of predicted over measured: of the time itself, and of
its ratio to the one-level plan of the same kernel, which is what picks plans.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import qdrun as qd
from benchmarks.written import imported
from qdrun.compiler.tape import cost
from qdrun.compiler.tape.heap_plan import HeapPlan
from qdrun.compiler.tape.levels import LoopPlan, full_tape, thinning, three_levels, two_levels, with_levels
from qdrun.compiler.tape.sizing import LoopSizing

Choose = Callable[[LoopSizing, int | None, str], LoopPlan]

# Bodies of `for i in x`, with v = x[i] before and y[i] = v after them; iterations n and m.
KERNELS: dict[str, tuple[str, int, int]] = {
    "sine": ("for j in range(n):\n    v = qd.sin(v) + 0.1", 1000, 0),
    "logistic": ("for j in range(n):\n    v = 3.5 * v * (1.0 - v)", 2000, 0),
    "newton": ("for j in range(n):\n    v = 0.5 * (v + 2.0 / v)", 1000, 0),
    "pendulum": ("w = 0.0\nfor j in range(n):\n    w -= 0.01 * qd.sin(v)\n    v += 0.01 * w", 1000, 0),
    "lorenz": (
        "p = v + 1.0\nq = v - 1.0\nfor j in range(n):\n    a = p * (28.0 - q) - v\n    b = v * p - 2.6 * q\n"
        "    p += 0.001 * (v - p)\n    v += 0.001 * a\n    q += 0.001 * b",
        1000,
        0,
    ),
    "loads": ("for j in range(n):\n    v = v * x[(i + j) % 64] + 0.5 * x[j % 64]", 1000, 0),
    "exponential": ("for j in range(n):\n    v = qd.exp(-v * v) + qd.sqrt(v + 1.0)", 600, 0),
    "branches": ("for j in range(n):\n    if v > 0.5:\n        v = v * v\n    else:\n        v = v + 0.3 * v * v", 1500, 0),
    "generator": (
        "k = i\nfor j in range(n):\n    k = (k * 1103515245 + 12345) % 2147483647\n"
        "    v = v * (1.0 + 0.000000001 * k) - 0.1 * v * v",
        1000,
        0,
    ),
    "sums inside": (
        "for j in range(n):\n    s = 0.0\n    for k in range(m):\n        s += x[k] * v\n    v = 0.1 * qd.tanh(s)",
        200,
        20,
    ),
    "states inside": (
        "for j in range(n):\n    u = v\n    for k in range(m):\n        u = qd.sin(u) + 0.01 * v\n    v = 0.5 * u + 0.1 * v * v",
        60,
        60,
    ),
    "one after another": ("for j in range(n):\n    v = qd.sin(v)\nfor k in range(m):\n    v = v * (1.5 - v)", 600, 600),
    "leaves early": ("for j in range(n):\n    v = v * (1.8 - v)\n    if v < 0.0001:\n        break", 1500, 0),
    "while": ("c = 0\nwhile c < n:\n    v = v * (1.7 - v)\n    c += 1", 4096, 0),
}

PLANS: dict[str, Choose] = {
    "L1": lambda s, k, src: full_tape(k) if k is not None else thinning(64, 63, 4096),
    "L2": lambda s, k, src: (
        with_levels(k, 2, None, s.bytes("ck1"), s.bytes("tape")) if k is not None else thinning(64, 63, 1024)
    ),
    "L2 S=K/2": lambda s, k, src: two_levels(k, max(1, k // 2)) if k else thinning(64, 63, 256),
    "L2 S=K/5": lambda s, k, src: two_levels(k, max(1, k // 5)) if k else thinning(64, 127, 128),
    "L3 r=3": lambda s, k, src: three_levels(k, max(1, round((k / 3) ** 0.5)), 3) if k else thinning(64, 127, 64),
    "L3": lambda s, k, src: (
        with_levels(k, 3, None, s.bytes("ck1"), s.bytes("tape")) if k is not None else thinning(128, 127, 64)
    ),
}


PRIOR = np.array(
    [
        *(1.2, 4.5, 9.0, 1.5, 2.0),
        *(0.1, 1.0, 2.0, 0.2, 0.5),
        *(0.1, 1.0, 3.0, 0.4, 1.5),
        *(1.0, 1.0, 1.0, 0.03, 0.03),
    ]
)
"""Coefficients by the latencies and throughputs of processors. The fit is pulled towards them and takes a tenth at least."""
PULL = 1.0


@dataclass
class Measured:
    """One kernel under one plan. ``features``: what each coefficient of the model is multiplied with."""

    kernel: str
    plan: str
    nanoseconds: float
    features: np.ndarray


@contextmanager
def coefficients(values: dict[str, float]) -> Iterator[None]:
    """The model with other coefficients."""
    before = dict(cost.NANOSECONDS)
    cost.NANOSECONDS.update(values)
    try:
        yield
    finally:
        cost.NANOSECONDS.update(before)


def compiled(folder: Path, name: str, body: str, real: Any) -> Any:
    """A kernel over 64 iterations in a program of its own, and what it writes."""
    qd.init(default_fp=real, cpu_max_num_threads=1, cpu_lanes=1, offline_cache=False)
    lines = "\n".join(f"            {line}" for line in body.splitlines())
    text = (
        "import qdrun as qd\n\n\ndef make(x, y):\n    @qd.kernel\n    def k(n: qd.i32, m: qd.i32):\n        for i in x:\n"
        f"            v = x[i]\n{lines}\n            y[i] = v\n\n    return k\n"
    )
    path = folder / f"{name.replace(' ', '_')}_{real}.py"
    module = imported(path, text)
    x, y = (qd.field(real, shape=64, needs_grad=True) for _ in range(2))
    x.from_numpy(np.random.default_rng(1).uniform(0.3, 0.9, 64))
    return module.make(x, y), y


def measure(name: str, real: Any, folder: Path, repeats: int) -> list[Measured]:
    """A kernel under every plan."""
    body, n, m = KERNELS[name]
    kernel, y = compiled(folder, name, body, real)
    variant, bound = kernel.variant((n, m), {})
    gradient, call = variant.gradient, bound.call
    out = []
    for plan, choose in PLANS.items():

        def planned(choose: Choose = choose) -> HeapPlan:
            return gradient.plans.plan_with(call, choose=choose)

        gradient._apply(planned(), call)
        times = []
        for _ in range(repeats):
            y.grad.fill(1.0)
            start = time.thread_time_ns()
            gradient.launch(call)
            times.append(time.thread_time_ns() - start)
        features = []
        for one in cost.FEATURES:
            with coefficients({f: float(f == one) for f in cost.FEATURES}):
                features.append(planned().seconds * 1e9)
        out.append(Measured(f"{name} {real}", plan, float(min(times)), np.array(features)))
    return out


def fitted(rows: list[Measured], rounds: int = 4000) -> np.ndarray:
    """Positive coefficients with the least squares of relative errors, of the times and of the ratios to one level."""
    a = [row.features / row.nanoseconds for row in rows]
    b = [1.0] * len(rows)
    first = {row.kernel: row for row in rows if row.plan == "L1"}
    for row in rows:
        base = first[row.kernel]
        if row is not base:  # row / base as measured: the difference of both sides over the measured time
            a.append(3 * (row.features / row.nanoseconds - base.features / base.nanoseconds))
            b.append(0.0)
    matrix = np.concatenate([np.array(a), PULL * np.diag(1 / PRIOR)])
    target = np.concatenate([b, np.full(len(PRIOR), PULL)])
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1
    matrix = matrix / scale
    floor = 0.1 * PRIOR * scale
    out, gram, right = np.zeros(matrix.shape[1]), matrix.T @ matrix, matrix.T @ target
    for _ in range(rounds):  # coordinate descent: each in its turn takes its best value that is not too small
        for k in range(len(out)):
            if gram[k, k] > 0:
                out[k] = max(floor[k], out[k] + (right[k] - gram[k] @ out) / gram[k, k])
    return out / scale


def errors(rows: list[Measured], values: np.ndarray) -> list[tuple[Measured, float, float]]:
    """Each figure with predicted over measured: of its time, and of its ratio to one level."""
    first = {row.kernel: row for row in rows if row.plan == "L1"}
    out = []
    for row in rows:
        base = first[row.kernel]
        ratio = (row.features @ values) / (base.features @ values)
        out.append((row, row.features @ values / row.nanoseconds, ratio / (row.nanoseconds / base.nanoseconds)))
    return out


def held_out(rows: list[Measured]) -> list[float]:
    """The errors of the ratios of each kernel, with coefficients fitted to the other kernels."""
    out = []
    for kernel in dict.fromkeys(row.kernel for row in rows):
        values = fitted([row for row in rows if row.kernel != kernel], 400)
        out += [ratio for row, _, ratio in errors([r for r in rows if r.kernel == kernel], values) if row.plan != "L1"]
    return out


def summary(found: list[float]) -> dict[str, float]:
    """Median, 90th percentile and maximum of |predicted / measured - 1|."""
    off = sorted(abs(x - 1) for x in found)
    return {"median": statistics.median(off), "p90": off[int(0.9 * (len(off) - 1))], "max": off[-1]}


def main() -> None:
    """Measure, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in KERNELS:
            for real in (qd.f32, qd.f64):
                rows += measure(name, real, Path(folder), args.repeats)
    values = fitted(rows)
    built_in = np.array([cost.NANOSECONDS[f] for f in cost.FEATURES])
    found, now = errors(rows, values), errors(rows, built_in)
    report = {
        "coefficients": dict(zip(cost.FEATURES, (round(float(v), 3) for v in values))),
        "fitted": {"time": summary([t for _, t, _ in found]), "ratio": summary([r for row, _, r in found if row.plan != "L1"])},
        "kernel held out": {"ratio": summary(held_out(rows))},
        "built in": {"time": summary([t for _, t, _ in now]), "ratio": summary([r for row, _, r in now if row.plan != "L1"])},
    }
    if args.json:
        print(json.dumps(report))
        return
    console = Console(width=110)
    table = Table(
        "kernel", "plan", "measured us", "ratio to L1", "predicted", "time: model / measured", title="Checkpoint plans"
    )
    first = {row.kernel: row.nanoseconds for row in rows if row.plan == "L1"}
    for row, off, ratio in now:
        real = row.nanoseconds / first[row.kernel]
        table.add_row(row.kernel, row.plan, f"{row.nanoseconds / 1e3:.0f}", f"{real:.2f}", f"{real * ratio:.2f}", f"{off:.2f}")
    console.print(table)
    console.print_json(json.dumps(report))


if __name__ == "__main__":
    main()
