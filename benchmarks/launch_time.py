"""What the predictions of a launch's time are worth: predicted over measured, for kernels of many kinds and their gradients.

    python -m benchmarks.launch_time [--arch cpu|cuda] [--repeats 5] [--only NAME,..] [--json]

On a CPU one thread runs, and a figure is the least processor time of some launches, so that other work on the machine counts little. On a
GPU it is the mean wall time of launches in a row, the wait for the last one included; kernels are 16 times as large there. ``--json``
has what the constants in ``compiler/adstack/launch_time.py`` are multiplied with: iterations, nanoseconds of one alone, its share, bytes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import qdrun as qd
from benchmarks.written import imported

# Bodies after `def k(n: qd.i32):`; x, y, w of 64 Ki elements, A of 256 x 256, c (i32) of numbers, s () of one, N elements, R rows.
KERNELS: dict[str, tuple[str, int]] = {
    "nothing much": ("for i in range(8):\n    y[i] = 2.0 * x[i]", 0),
    "saxpy": ("for i in range(N):\n    y[i] += 0.5 * x[i]", 0),
    "polynomial": ("for i in range(N):\n    v = x[i]\n    y[i] = ((((v + 0.1) * v + 0.2) * v + 0.3) * v + 0.4) * v + 0.5", 0),
    "functions": ("for i in range(N):\n    y[i] = qd.sin(x[i]) * qd.exp(-x[i]) + qd.log(1.0 + x[i])", 0),
    "roots": ("for i in range(N):\n    y[i] = qd.sqrt(x[i] + 1.0) / (2.0 + w[i])", 0),
    "sum": ("for i in range(N):\n    s[None] += x[i] * x[i]", 0),
    "histogram": ("for i in range(N):\n    y[c[i]] += x[i]", 0),
    "stencil": (
        "for i, j in qd.ndrange((1, R - 1), (1, R - 1)):\n"
        "    B[i, j] = A[i, j] + 0.1 * (A[i - 1, j] + A[i + 1, j] + A[i, j - 1] + A[i, j + 1] - 4.0 * A[i, j])",
        0,
    ),
    "rows": ("for i in range(R):\n    t = 0.0\n    for j in range(R):\n        t += A[i, j] * x[j]\n    y[i] = t", 0),
    "triangle": ("for i in range(R):\n    t = 0.0\n    for j in range(i):\n        t += A[i, j] * x[j]\n    y[i] = t", 0),
    "sine": ("for i in range(N):\n    v = x[i]\n    for _ in range(n):\n        v = qd.sin(v) + 0.1\n    y[i] = v", 64),
    "pendulum": (
        "for i in range(N):\n    v, u = x[i], 0.0\n    for _ in range(n):\n"
        "        u -= 0.01 * qd.sin(v)\n        v += 0.01 * u\n    y[i] = v",
        64,
    ),
    "logistic": (
        "for i in range(N):\n    v = x[i]\n    for _ in range(n):\n        v = 3.5 * v * (1.0 - v)\n    y[i] = v",
        128,
    ),
    "newton": ("for i in range(N):\n    v = x[i]\n    for _ in range(n):\n        v = 0.5 * (v + 2.0 / v)\n    y[i] = v", 64),
    "loads": (
        "for i in range(N):\n    v = x[i]\n    for j in range(n):\n        v = v * w[(i + 64 * j) % N] + 0.5 * x[j]\n    y[i] = v",
        64,
    ),
    "gate": (
        "for i in range(N):\n    if x[i] > 0.85:\n        v = x[i]\n        for _ in range(n):\n            v = qd.sin(v) + 0.1\n"
        "        y[i] = v",
        64,
    ),
    "chain": (
        "for i in range(1):\n    v = x[i]\n    for _ in range(n):\n        v = 3.5 * v * (1.0 - v)\n    y[i] = v",
        20_000,
    ),
}
JOBS = {
    "mass_spring": ("qdrun.jobs.mass_spring", "MassSpring", {"steps": 50}),
    "mpm88": ("qdrun.jobs.mpm88", "Mpm88", {"particles": 2048, "grid": 48, "steps": 8}),
}


def kernels(folder: Path, arch: str, real: Any, only: set[str]) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """The kernels, each in a program of its own."""
    for name, (body, n) in KERNELS.items():
        if only and name not in only:
            continue
        size = 1 << (20 if arch == "cuda" else 16)
        rows = 1024 if arch == "cuda" else 256
        _program(arch, real)
        x, y, w = (qd.field(real, shape=size, needs_grad=True) for _ in range(3))
        A, B = (qd.field(real, shape=(rows, rows), needs_grad=True) for _ in range(2))
        c, s = qd.field(qd.i32, shape=size), qd.field(real, shape=(), needs_grad=True)
        random = np.random.default_rng(1)
        for f in (x, w):
            f.from_numpy(random.uniform(0.3, 0.9, size))
        A.from_numpy(random.uniform(0.3, 0.9, (rows, rows)))
        c.from_numpy(random.integers(0, 1000, size).astype(np.int32))
        yield name, _compiled(folder, f"{name}_{real}".replace(" ", "_"), body, (x, y, w, A, B, c, s, size, rows)), (n,)


def _program(arch: str, real: Any) -> None:
    where = {"cpu_max_num_threads": 1} if arch == "cpu" else {"device": "emulated"} if arch == "emulated" else {}
    qd.init(arch=qd.cpu if arch == "cpu" else qd.cuda, default_fp=real, offline_cache=False, **where)


def _compiled(folder: Path, name: str, body: str, given: tuple[Any, ...]) -> Any:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    text = f"import qdrun as qd\n\n\ndef make(x, y, w, A, B, c, s, N, R):\n    @qd.kernel\n    def k(n: qd.i32):\n{lines}\n\n    return k\n"
    path = folder / f"{name}.py"
    module = imported(path, text)
    return module.make(*given)


def seconds(launch: Callable[[], None], arch: str, repeats: int) -> float:
    """Of one launch."""
    clock = time.process_time if arch == "cpu" else time.perf_counter
    launch()
    launch()
    qd.sync()
    start, many = clock(), 0
    while many < 3 or clock() - start < 0.005:
        launch()
        many += 1
    qd.sync()
    found = []
    for _ in range(repeats):
        start = clock()
        for _ in range(many):
            launch()
        qd.sync()
        found.append((clock() - start) / many)
    return min(found)


def row(name: str, what: str, kernel: Any, args: tuple[Any, ...], how: tuple[str, int]) -> dict[str, Any]:
    """One launch, predicted and measured."""
    arch, repeats = how
    gradient = what == "gradient"
    made = qd.current_program().launch_time(kernel, args, gradient=gradient)
    launched = kernel.grad if gradient else kernel
    measured = seconds(lambda: launched(*args), arch, repeats)
    tasks = [{**vars(t), **({} if t.load is None else {"load": vars(t.load)})} for t in made.tasks]
    return {"kernel": name, "what": what, "predicted": made.seconds, "measured": measured, "tasks": tasks}


def rows(arch: str, repeats: int, only: set[str]) -> Iterator[dict[str, Any]]:
    """All of them."""
    with tempfile.TemporaryDirectory() as folder:
        for real in (qd.f32, qd.f64):
            for name, kernel, args in kernels(Path(folder), arch, real, only):
                for what in ("forward", "gradient"):
                    yield row(f"{name} {real}", what, kernel, args, (arch, repeats))
    for name, (module, job_name, given) in JOBS.items():
        if only and name not in only:
            continue
        found = importlib.import_module(module)
        job = getattr(found, job_name)
        made = job(job.Params(**given))
        backend, device = ("cuda", "emulated") if arch == "emulated" else (arch, None)
        with made.opened(backend=backend, device=device, threads=1):
            made.run()
            for kernel, args in made.launches():
                for what in ("forward", "gradient"):
                    yield row(f"{name}.{kernel.__name__}", what, kernel, args, (arch, repeats))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="cpu", choices=["cpu", "cuda", "emulated"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = list(rows(options.arch, options.repeats, set(filter(None, options.only.split(",")))))
    if options.json:
        print(json.dumps(found, default=str))
        return
    table = Table("kernel", "what", "predicted us", "measured us", "ratio", "by", title=options.arch)
    for r in found:
        by = max(r["tasks"], key=lambda t: t["nanoseconds"])["by"] if r["tasks"] else ""
        us = [f"{1e6 * r[k]:.4g}" for k in ("predicted", "measured")]
        table.add_row(r["kernel"], r["what"], *us, f"{r['predicted'] / r['measured']:.2f}", by)
    Console(width=110).print(table)
    for what in ("forward", "gradient"):
        off = sorted(abs(np.log2(r["predicted"] / r["measured"])) for r in found if r["what"] == what and r["predicted"])
        within = sum(x <= 1 for x in off)
        middle = 2 ** statistics.median(off)
        print(
            f"{what}: off by a factor of {middle:.2f} in the middle, {2 ** off[-1]:.1f} at the most; {within} of {len(off)} within 2"
        )


if __name__ == "__main__":
    main()
