"""Many threads on few elements: counters, histograms and sums, ours and the peer's in one run.

    python -m benchmarks.cuda_atomics [--json FILE] [--arch cuda|emulated|cpu] [--small] [--limit 240]

Each package runs in a process of its own. ``apart`` is ours with one atomic for each thread, as if ``codegen/gpu/grid/warp.py`` were not
there (sums of a thread's own, ``passes/parallel/reduce.py``, stay). Every result is checked against numpy. Prints milliseconds of a launch
(medians, events) and how many times longer the peer takes.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cuda_clock import Clock
from benchmarks.cuda_one import opened, stream_of

Launch = Callable[[], Any]
Check = Callable[[], bool]
PACKAGES = {"qdrun": "qdrun", "apart": "qdrun", "quadrants": "quadrants"}


def numbers(n: int) -> np.ndarray[Any, Any]:
    """f32 of shape (n,), multiples of 1/4096 in [0, 1)."""
    return (np.random.default_rng(7).integers(0, 4096, n) / 4096).astype(np.float32)


def near(found: float, want: float) -> bool:
    """Whether a sum of numbers around 0 is right: f32 holds it nearly exactly in any order."""
    return abs(found - want) < 4.0


def counters(lib: Any, n: int) -> dict[str, tuple[Launch, Check]]:
    """A number for each element that is picked: of 1/2 and of 1/64 of them, of all, and of both arms of a branch."""
    x, out = lib.field(lib.f32, shape=n), lib.field(lib.i32, shape=n)
    counts = lib.field(lib.i32, shape=2)
    values = numbers(n)
    x.from_numpy(values)

    @lib.kernel
    def compact(most: lib.f32):
        for i in range(n):
            if x[i] < most:
                out[lib.atomic_add(counts[0], 1)] = i

    @lib.kernel
    def both():
        for i in range(n):
            if x[i] < 0.5:
                out[lib.atomic_add(counts[0], 1)] = i
            else:
                out[n - 1 - lib.atomic_add(counts[1], 1)] = i

    def check(run: Launch, most: float) -> bool:
        counts.fill(0)
        run()
        many = int((values < np.float32(most)).sum())
        return counts.to_numpy()[0] == many and bool((np.sort(out.to_numpy()[:many]) == np.flatnonzero(values < most)).all())

    found: dict[str, tuple[Launch, Check]] = {}
    for name, most in (("compaction, 1/64", 1 / 64), ("compaction, 1/2", 0.5), ("compaction, all", 2.0)):

        def run(most: float = most) -> None:
            counts.fill(0)
            compact(most)

        found[name] = (run, lambda most=most: check(lambda: compact(most), most))

    def run_both() -> None:
        counts.fill(0)
        both()

    return found | {"compaction, two arms": (run_both, lambda: check(both, 0.5))}


def histograms(lib: Any, n: int) -> dict[str, tuple[Launch, Check]]:
    """Elements by value in 1, 32 and 4,096 bins, and the bin that an argument names."""
    x = lib.field(lib.f32, shape=n)
    bins, sums = lib.field(lib.i32, shape=4096), lib.field(lib.f32, shape=4096)
    values = numbers(n)
    x.from_numpy(values)
    below = (values[values < 0.5] - np.float32(0.25)).sum(dtype=float)

    @lib.kernel
    def count(many: lib.f32):
        for i in range(n):
            bins[int(x[i] * many)] += 1

    @lib.kernel
    def named(k: lib.i32):
        for i in range(n):
            if x[i] < 0.5:
                sums[k] += x[i] - 0.25
                if x[i] < 0.25:
                    bins[k] += 3

    def check(many: int) -> bool:
        bins.fill(0)
        count(many)
        return bool((bins.to_numpy() == np.bincount((values * np.float32(many)).astype(int), minlength=4096)).all())

    def check_named() -> bool:
        bins.fill(0)
        sums.fill(0)
        named(5)
        return near(sums.to_numpy()[5], below) and bins.to_numpy()[5] == 3 * int((values < 0.25).sum())

    found: dict[str, tuple[Launch, Check]] = {
        f"histogram, {many} bins": (lambda many=many: count(many), lambda many=many: check(many)) for many in (1, 32, 4096)
    }
    return found | {"a bin by argument, in branches": (lambda: named(5), check_named)}


def sums(lib: Any, n: int) -> dict[str, tuple[Launch, Check]]:
    """Sums into a scalar: in a branch, in a while loop, and where the loop also reads it."""
    x = lib.field(lib.f32, shape=n)
    total, most = lib.field(lib.f32, shape=()), lib.field(lib.f32, shape=())
    values = 2 * numbers(n) - 1
    x.from_numpy(values)

    @lib.kernel
    def branch():
        for i in range(n):
            if x[i] * x[i] < 0.25:
                total[None] += x[i]

    @lib.kernel
    def loop():
        for i in range(n):
            v = x[i]
            while v * v > 0.0625:
                total[None] += v
                v *= 0.5

    @lib.kernel
    def looked_at():
        for i in range(n):
            if x[i] * x[i] < 0.25:
                total[None] += x[i]
            if total[None] > 1e9:
                most[None] = 1.0

    def check(run: Launch, want: float) -> bool:
        total.fill(0.0)
        run()
        return near(total[None], want)

    middle = values[values**2 < 0.25].sum(dtype=float)
    want, left = 0.0, values.astype(float)
    while (left**2 > 0.0625).any():
        want += left[left**2 > 0.0625].sum()
        left = np.where(left**2 > 0.0625, left / 2, 0)
    found = {
        "sum in a branch": (branch, middle),
        "sum in a while loop": (loop, want),
        "sum that is read, too": (looked_at, middle),
    }
    return {name: (run, lambda run=run, want=want: check(run, want)) for name, (run, want) in found.items()}


def figures(package: str, arch: str, n: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of each case with one package."""
    if package == "apart":
        from qdrun.compiler.codegen.gpu import uniform

        uniform._FOLDED = frozenset()
    lib = opened(PACKAGES[package], arch)
    clock, out = Clock(lib.sync, stream_of(lib, arch)), {}
    for make in (counters, histograms, sums):
        for name, (run, check) in make(lib, n).items():
            begin = time.perf_counter()
            right = bool(check())
            out[name] = {**clock.measure(run, seconds, least=3), "right": right, "first_s": time.perf_counter() - begin}
    return out


def process(package: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The figures of a package, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.cuda_atomics", "--package", package, "--arch", asked.arch]
    command += ["--seconds", str(asked.seconds)] + ["--small"] * asked.small
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=asked.limit / len(PACKAGES), check=False)
    except subprocess.TimeoutExpired as e:
        return {"error": f"over {e.timeout:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines and not done.returncode else {"error": done.stderr[-2000:]}


def show(found: dict[str, dict[str, Any]]) -> None:
    """The table."""
    print(f"{'ms of a launch':<34}{'ours':>10}{'apart':>10}{'peer':>10}{'peer/ours':>11}")
    for package, rows in found.items():
        if "error" in rows:
            print(f"{package}: {rows['error']}")
    names = dict.fromkeys(name for rows in found.values() for name in rows if name != "error")
    for name in names:
        row = [found[package].get(name, {}) for package in PACKAGES]
        ms = [r.get("ms", float("nan")) for r in row]
        wrong = [package for package, r in zip(PACKAGES, row) if r and not r["right"]]
        print(f"{name:<34}" + "".join(f"{x:>10.3f}" for x in ms) + f"{ms[2] / ms[0]:>11.2f}", *(f"WRONG: {w}" for w in wrong))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--arch", default="cuda", choices=("cuda", "cpu", "emulated"))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--limit", type=float, default=240)
    parser.add_argument("--package", choices=PACKAGES)
    asked = parser.parse_args()
    if asked.package:
        print(json.dumps(figures(asked.package, asked.arch, 1 << 12 if asked.small else 1 << 26, asked.seconds)), flush=True)
        return
    packages = [p for p in PACKAGES if asked.arch != "emulated" or p != "quadrants"]
    found = {package: process(package, asked) for package in packages}
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    show({package: found.get(package, {}) for package in PACKAGES})


if __name__ == "__main__":
    main()
