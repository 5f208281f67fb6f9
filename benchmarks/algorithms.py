"""Algorithms on arrays beside numpy, Quadrants and, on a GPU, torch (CUB): milliseconds, and how many times slower or faster than ours.

python -m benchmarks.algorithms [--arch cpu] [--n 1000000,16000000] [--sides numpy,quadrants,torch] [--plain] [--core] [--json]

Each side runs in a process of its own, one after the other, on the same numbers; a time is the best of several calls with the wait for
their end, and every result is compared with numpy's. ``--plain``: our kernels for other backends on CUDA and AMD, too.
``--core``: every side on one core, and its CPU time: for machines on which other programs run.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

BINS = 256
Calls = dict[str, tuple[Callable[[], object], Callable[[], np.ndarray]]]
"""By case: a call, and its result."""


def data(n: int) -> dict[str, np.ndarray]:
    """The numbers of all sides."""
    rng = np.random.default_rng(1)
    return {
        "real": rng.random(n, np.float32),
        "whole": rng.integers(-100, 100, n).astype(np.int32),
        "flags": rng.integers(0, 2, n).astype(np.int32),
        "order": np.arange(n, dtype=np.int32),
    }


def numpy_calls(d: dict[str, np.ndarray], arch: str) -> Calls:
    """One thread of numpy."""
    del arch
    real, whole, chosen = d["real"], d["whole"], d["flags"] != 0
    calls: dict[str, Callable[[], np.ndarray]] = {
        "reduce": lambda: np.sum(real, keepdims=True),
        "scan": lambda: np.cumsum(whole, dtype=np.int32),
        "sort pairs": lambda: real[np.argsort(real, kind="stable")],
        "compact": lambda: real[chosen],
        "unique": lambda: np.unique(whole),
        "histogram": lambda: np.histogram(real, BINS, (0.0, 1.0))[0],
    }
    return {name: (f, f) for name, f in calls.items()}


def our_calls(d: dict[str, np.ndarray], arch: str) -> Calls:
    """This package."""
    import qdrun as qd

    qd.init(arch=getattr(qd, arch), offline_cache=False)
    n, a = len(d["real"]), qd.algorithms

    def array(values: np.ndarray, dtype: Any) -> Any:
        out = qd.ndarray(dtype, len(values))
        out.from_numpy(values)
        return out

    real, whole, flags = array(d["real"], qd.f32), array(d["whole"], qd.i32), array(d["flags"], qd.i32)
    some, ints, order, counts = (qd.ndarray(t, k) for t, k in ((qd.f32, n), (qd.i32, n), (qd.i32, n), (qd.i32, BINS)))
    one, count = qd.ndarray(qd.f32, 1), qd.ndarray(qd.i32, 1)

    def timed(f: Callable[[], None], result: Callable[[], np.ndarray]) -> tuple[Callable[[], object], Callable[[], np.ndarray]]:
        return lambda: (f(), qd.sync()), result

    return {
        "reduce": timed(lambda: a.reduce(real, one), one.to_numpy),
        "scan": timed(lambda: a.inclusive_scan(whole, ints), ints.to_numpy),
        "sort pairs": timed(lambda: a.argsort(real, order), lambda: d["real"][order.to_numpy()]),
        "compact": timed(lambda: a.compact(real, flags, some, count), lambda: some.to_numpy()[: count[0]]),
        "unique": timed(lambda: a.unique(whole, ints, count), lambda: ints.to_numpy()[: count[0]]),
        "histogram": timed(lambda: a.histogram(real, counts, 0.0, 1.0), counts.to_numpy),
    }


def plain_calls(d: dict[str, np.ndarray], arch: str) -> Calls:
    """This package without blocks of threads."""
    from qdrun.library.algorithms import choosing, combine, sorting

    for module in (choosing, combine, sorting):
        module.usable = lambda *arrays: False
    return our_calls(d, arch)


def quadrants_calls(d: dict[str, np.ndarray], arch: str) -> Calls:
    """Quadrants' functions of device code, each in a kernel, and on a CPU its merge sort; it has neither ``unique`` nor histograms."""
    import quadrants as qd

    qd.init(arch=getattr(qd, arch), offline_cache=False, log_level="error")
    n, a = len(d["real"]), qd.algorithms
    log = max(1, math.ceil(math.log(n, 256)))

    def field(dtype: Any, size: int, values: np.ndarray | None = None) -> Any:
        out = qd.field(dtype, shape=size)
        if values is not None:
            out.from_numpy(values)
        return out

    real, whole, flags = field(qd.f32, n, d["real"]), field(qd.i32, n, d["whole"]), field(qd.i32, n, d["flags"])
    keys, other, values, moved = (field(t, n) for t in (qd.f32, qd.f32, qd.i32, qd.i32))
    some, ints, one, count = field(qd.f32, n), field(qd.i32, n), field(qd.f32, 1), field(qd.i32, 1)
    slots = [a.reduce_scratch_slots(n, log), a.exclusive_scan_scratch_slots(n, log), a.sort_scratch_slots(n, log)]
    scratch = field(qd.u32, max(*slots, a.select_scratch_slots(n)))

    @qd.kernel
    def reduce(count_of: qd.i32):
        a.reduce_add(real, one, scratch, count_of, qd.f32, log)

    @qd.kernel
    def scan(count_of: qd.i32):
        a.exclusive_scan_add(whole, ints, scratch, count_of, qd.i32, log)

    @qd.kernel
    def begin(count_of: qd.i32):
        for i in range(count_of):
            keys[i] = real[i]
            values[i] = i

    def merge_sort(count_of: int) -> None:
        begin(count_of)
        a.parallel_sort(keys, values)

    @qd.kernel
    def sort(count_of: qd.i32):
        for i in range(count_of):
            keys[i] = real[i]
            values[i] = i
        a.sort(keys, other, values, moved, scratch, count_of, qd.f32, True, 32, log)

    @qd.kernel
    def select(count_of: qd.i32):
        a.select(real, flags, some, count, scratch, count_of, log)

    def timed(f: Any, result: Callable[[], np.ndarray]) -> tuple[Callable[[], object], Callable[[], np.ndarray]]:
        return lambda: (f(n), qd.sync()), result

    return {
        "reduce": timed(reduce, one.to_numpy),
        "scan": timed(scan, lambda: ints.to_numpy() + d["whole"]),
        "sort pairs": timed(merge_sort if arch == "cpu" else sort, lambda: d["real"][values.to_numpy()]),
        "compact": timed(select, lambda: some.to_numpy()[: count[0]]),
    }


def torch_calls(d: dict[str, np.ndarray], arch: str) -> Calls:
    """torch, which calls CUB on a GPU."""
    import torch

    where = "cuda" if arch == "cuda" else "cpu"
    real, whole, flags = (torch.from_numpy(d[name]).to(where) for name in ("real", "whole", "flags"))
    calls: dict[str, Callable[[], Any]] = {
        "reduce": lambda: real.sum()[None],
        "scan": lambda: torch.cumsum(whole, 0, dtype=torch.int32),
        "sort pairs": lambda: torch.sort(real, stable=True)[0],
        "compact": lambda: real[flags != 0],
        "unique": lambda: torch.unique(whole),
        "histogram": lambda: torch.histc(real, BINS, 0.0, 1.0),
    }

    def timed(f: Callable[[], Any]) -> tuple[Callable[[], object], Callable[[], np.ndarray]]:
        return lambda: (f(), torch.cuda.synchronize() if where == "cuda" else None), lambda: f().cpu().numpy()

    return {name: timed(f) for name, f in calls.items()}


SIDES: dict[str, Callable[[dict[str, np.ndarray], str], Calls]] = {
    "qdrun": our_calls,
    "plain": plain_calls,
    "numpy": numpy_calls,
    "quadrants": quadrants_calls,
    "torch": torch_calls,
}


def best(f: Callable[[], object], clock: Callable[[], float], seconds: float = 1.0) -> float:
    """The shortest of at least three calls, over about so many seconds, in milliseconds."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - begin < seconds and len(times) < 200):
        t = clock()
        f()
        times.append(clock() - t)
    return 1e3 * min(times)


def measured(side: str, arch: str, n: int, core: bool) -> dict[str, float | str]:
    """Milliseconds of each case, or why there are none. ``core``: of CPU time, on one core."""
    if core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    clock = time.process_time if core else time.perf_counter
    d, out = data(n), {}
    expected = {name: result() for name, (_, result) in numpy_calls(d, arch).items()}
    try:
        calls = SIDES[side](d, arch)
    except Exception as e:
        return dict.fromkeys(expected, _reason(e))
    for name, (call, result) in calls.items():
        try:
            call()
            found = result()
            right = found.shape == expected[name].shape and np.allclose(found, expected[name], rtol=1e-4, atol=2)
            out[name] = best(call, clock) if right else "wrong"
        except Exception as e:
            out[name] = _reason(e)
    return out


def _reason(e: Exception) -> str:
    return f"{type(e).__name__}: {str(e).strip().splitlines()[-1] if str(e).strip() else ''}"[:60]


def in_process(side: str, arch: str, n: int, core: bool) -> dict[str, float | str]:
    """The same in a process of its own, which may crash."""
    command = [sys.executable, "-m", "benchmarks.algorithms", "--only", side, "--arch", arch, "--n", str(n)]
    command += ["--core"] if core else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": done.stderr.strip()[-60:]}


def shown(side: str, value: float | str | None, ours: float | str | None) -> str:
    """A cell: milliseconds, and how many times as long as ours."""
    if not isinstance(value, float):
        return str(value or "-")
    times = f" ({value / ours:.2f}x)" if isinstance(ours, float) and side != "qdrun" else ""
    return f"{value:.3f}{times}"


def main() -> None:
    """Print a table for each length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="cpu")
    parser.add_argument("--n", default="1000000")
    parser.add_argument("--sides", default="numpy,quadrants,torch")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--core", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        warnings.simplefilter("ignore")
        print(json.dumps(measured(given.only, given.arch, int(given.n), given.core)))
        return
    sides = ["qdrun", *(["plain"] if given.plain else []), *filter(None, given.sides.split(","))]
    for n in map(int, given.n.split(",")):
        figures = {side: in_process(side, given.arch, n, given.core) for side in sides}
        if given.json:
            print(json.dumps({"n": n, "arch": given.arch, "milliseconds": figures}))
            continue
        print(f"| {n:,} elements, ms | " + " | ".join(sides) + " |\n|" + " --- |" * (len(sides) + 1))
        for name in figures["qdrun"]:
            ours = figures["qdrun"][name]
            row = (shown(side, figures[side].get(name) or figures[side].get("error"), ours) for side in sides)
            print(f"| {name} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
