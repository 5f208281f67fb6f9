"""Loops over the active cells of sparse fields, beside Taichi and beside a loop over a dense field of the same size.

python -m benchmarks.sparse [--peer-python PYTHON] [--n 4096] [--active 0.05] [--threads 2] [--runs 20] [--json]

One element in memory is read and written for each active element: ``x[i, j] = x[i, j] * 1.5 + 1.0``. Blocks are active at random. PYTHON
is one that can import Taichi; without it there are our figures alone. The least time of the runs is shown.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

TREES = ("dense", "pointer.dense", "pointer.pointer.dense", "pointer.bitmasked", "budget.dense")
BLOCKS = (4, 16)


def level_of(lib: Any, tree: str, n: int, block: int, active: int) -> Any:
    """The level of a field of n x n elements, in blocks of block x block."""
    ij, root, blocks = lib.ij, lib.root, n // block
    if tree == "dense":
        return root.dense(ij, n)
    if tree == "pointer.dense":
        return root.pointer(ij, blocks).dense(ij, block)
    if tree == "pointer.pointer.dense":
        return root.pointer(ij, blocks // 8).pointer(ij, 8).dense(ij, block)
    if tree == "pointer.bitmasked":
        return root.pointer(ij, blocks).bitmasked(ij, block)
    return root.pointer(ij, blocks, budget=4 * block * block * (active + 2)).dense(ij, block)


def seconds(lib: Any, tree: str, block: int, asked: Any) -> tuple[float, float]:
    """The times of the loop and of the activation of all its blocks, which are active already."""
    n = asked.n
    on = (np.random.default_rng(0).random((n // block, n // block)) < asked.active).astype(np.int32)
    x, marks = lib.field(lib.f32), lib.field(lib.i32, shape=on.shape)
    level_of(lib, tree, n, block, int(on.sum())).place(x)
    marks.from_numpy(on)

    @lib.kernel
    def write():
        for i, j in marks:
            if marks[i, j]:
                for a in range(block):
                    for b in range(block):
                        x[i * block + a, j * block + b] = 1.0

    @lib.kernel
    def update():
        for i, j in x:
            x[i, j] = x[i, j] * 1.5 + 1.0

    return min(times(lib, update, write, asked.runs)), min(times(lib, write, update, asked.runs))


def times(lib: Any, kernel: Any, before: Any, runs: int) -> Iterator[float]:
    """The seconds of each launch."""
    before()
    kernel()
    for _ in range(runs):
        lib.sync()
        begin = time.perf_counter()
        kernel()
        lib.sync()
        yield time.perf_counter() - begin


def side(asked: Any) -> dict[str, tuple[float, float]]:
    """The figures of one package, in this process."""
    lib: Any = importlib.import_module(asked.side)
    out = {}
    for tree in TREES:
        for block in BLOCKS:
            if tree == "budget.dense" and asked.side != "qdrun":
                continue
            lib.init(arch=lib.cpu, cpu_max_num_threads=asked.threads)
            out[f"{tree} {block}x{block}"] = seconds(lib, tree, block, asked)
    return out


def main() -> None:
    """Run each side in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--active", type=float, default=0.05)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", default="", help="used by this program itself")
    asked = parser.parse_args()
    if asked.side:
        print("RESULT" + json.dumps(side(asked)))
        return
    options = [f"--{key}={getattr(asked, key)}" for key in ("n", "active", "threads", "runs")]
    commands = {"qdrun": [sys.executable, "-m", "benchmarks.sparse"]}
    if asked.peer_python:
        commands["taichi"] = [asked.peer_python, __file__]
    found = {}
    for name, command in commands.items():
        done = subprocess.run([*command, *options, f"--side={name}"], capture_output=True, text=True, check=True)
        found[name] = json.loads(done.stdout.split("RESULT", 1)[1])
    if asked.json:
        print(json.dumps(found))
        return
    print(f"{'':32}" + "".join(f"{name + ' loop':>16}{name + ' write':>16}" for name in found))
    for row in found["qdrun"]:
        cells = [found[name].get(row, ("-", "-")) for name in found]
        print(f"{row:32}" + "".join(f"{x if x == '-' else f'{x * 1e3:.2f} ms':>16}" for pair in cells for x in pair))


if __name__ == "__main__":
    main()
