"""What the predictions of a launch's time are worth: predicted over measured, for kernels of many kinds and their gradients.

    python -m benchmarks.launch_time [--arch cpu|cuda] [--repeats 5] [--only NAME,..] [--limit 55] [--json]

On a CPU one thread runs, and a figure is the least processor time of some launches, so that other work on the machine counts little. On a
GPU it is the mean wall time of launches in a row, the wait for the last one included; kernels are 16 times as large there. Each line is
printed when it is known; after ``--limit`` seconds no other kernel begins, and those that are left out are named. ``--json`` has a line
for each with what the constants in ``compiler/tape/launch_time.py`` are multiplied with: iterations, nanoseconds of one alone, its
share, bytes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

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
AT_LEAST_S = 0.005
"""Of the launches that are timed together."""
MOST = 1024
"""Of them."""
JOBS = {
    "mass_spring": ("qdrun.jobs.mass_spring", "MassSpring", {"steps": 50}),
    "mpm88": ("qdrun.jobs.mpm88", "Mpm88", {"particles": 2048, "grid": 48, "steps": 8}),
}


def kernels(folder: Path, arch: str, real: Any, only: set[str], clock: Clock) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """The kernels, each in a program of its own."""
    for name, (body, n) in KERNELS.items():
        if (only and name not in only) or clock.over(f"{name} {real}"):
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
    many, alone = 1, 0.0
    while alone < AT_LEAST_S and many < MOST:  # a GPU's launches return at once: only a wait says what they take
        many = min(MOST, 2 * many if alone < AT_LEAST_S / 16 else int(many * 1.2 * AT_LEAST_S / alone) + 1)
        alone = timed(launch, many, clock)
    return min(timed(launch, many, clock) for _ in range(repeats if alone < 10 * AT_LEAST_S else 1)) / many


def timed(launch: Callable[[], None], many: int, clock: Callable[[], float]) -> float:
    """Seconds of so many launches in a row, and of the wait for the last one."""
    start = clock()
    for _ in range(many):
        launch()
    qd.sync()
    return clock() - start


def row(name: str, what: str, kernel: Any, args: tuple[Any, ...], how: tuple[str, int]) -> dict[str, Any]:
    """One launch, predicted and measured."""
    arch, repeats = how
    gradient = what == "gradient"
    made = qd.current_program().launch_time(kernel, args, gradient=gradient)
    launched = kernel.grad if gradient else kernel
    measured = seconds(lambda: launched(*args), arch, repeats)
    tasks = [{**vars(t), **({} if t.load is None else {"load": vars(t.load)})} for t in made.tasks]
    return {"kernel": name, "what": what, "predicted": made.seconds, "measured": measured, "tasks": tasks}


class Clock:
    """Seconds that are left."""

    def __init__(self, limit_s: float) -> None:
        self.end, self.left_out = time.perf_counter() + limit_s, list[str]()

    def over(self, name: str) -> bool:
        """Whether there is no time for this one."""
        if time.perf_counter() < self.end:
            return False
        self.left_out.append(name)
        return True


def rows(arch: str, repeats: int, only: set[str], clock: Clock) -> Iterator[dict[str, Any]]:
    """All of them: those of the jobs before the second precision."""
    with tempfile.TemporaryDirectory() as folder:
        for real in (qd.f32, qd.f64):
            for name, kernel, args in kernels(Path(folder), arch, real, only, clock):
                for what in ("forward", "gradient"):
                    yield row(f"{name} {real}", what, kernel, args, (arch, repeats))
            if real is qd.f32:
                yield from rows_of_jobs(arch, repeats, only, clock)


def rows_of_jobs(arch: str, repeats: int, only: set[str], clock: Clock) -> Iterator[dict[str, Any]]:
    """The kernels of whole simulations."""
    for name, (module, job_name, given) in JOBS.items():
        if (only and name not in only) or clock.over(name):
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


COLUMNS = ("kernel", "what", "predicted us", "measured us", "ratio", "by")


def line(*cells: str) -> str:
    """A line of the table."""
    return f"{cells[0]:28} {cells[1]:9} {cells[2]:>13} {cells[3]:>13} {cells[4]:>7}  {cells[5]}"


def shown(found: Iterable[dict[str, Any]], as_json: bool) -> list[dict[str, Any]]:
    """Print each when it is there."""
    out = []
    print(*([] if as_json else [line(*COLUMNS)]), sep="\n", end="" if as_json else "\n", flush=True)
    for r in found:
        out.append(r)
        by = max(r["tasks"], key=lambda t: t["nanoseconds"])["by"] if r["tasks"] else ""
        us = [f"{1e6 * r[k]:.4g}" for k in ("predicted", "measured")]
        text = (
            json.dumps(r, default=str)
            if as_json
            else line(r["kernel"], r["what"], *us, f"{r['predicted'] / r['measured']:.2f}", by)
        )
        print(text, flush=True)
    return out


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="cpu", choices=["cpu", "cuda", "emulated"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--limit", type=float, default=55.0, help="seconds after which no other kernel begins")
    parser.add_argument("--json", action="store_true", help="a document a line")
    options = parser.parse_args()
    clock = Clock(options.limit)
    found = shown(rows(options.arch, options.repeats, set(filter(None, options.only.split(","))), clock), options.json)
    for what in () if options.json else ("forward", "gradient"):
        off = sorted(abs(np.log2(r["predicted"] / r["measured"])) for r in found if r["what"] == what and r["predicted"])
        if off:
            within, middle = sum(x <= 1 for x in off), 2 ** statistics.median(off)
            most = f"{2 ** off[-1]:.1f} at the most; {within} of {len(off)} within 2"
            print(f"{what}: off by a factor of {middle:.2f} in the middle, {most}")
    if clock.left_out:
        print(f"left out after {options.limit:g} s: {', '.join(clock.left_out)}", file=sys.stderr)


if __name__ == "__main__":
    main()
