"""What a launch costs while a tape records, by what tells that it overwrites nothing, and where it overwrites what a gradient needs.

``python -m benchmarks.tape_launch``. Microseconds a launch of 1,000 in one tape, the least of several tapes: forward, and with gradients.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import qdrun as qd

MANY = 1000


def cases(lib: Any) -> dict[str, Callable[[], None]]:
    """Loops of launches."""
    x, y = (lib.field(lib.f32, shape=(MANY + 1, 8), needs_grad=True) for _ in range(2))
    state = lib.field(lib.f32, shape=8, needs_grad=True)
    arrays = [lib.ndarray(lib.f32, (8,), needs_grad=True) for _ in range(MANY + 1)]

    @lib.kernel
    def step(t: lib.i32, c: lib.f32):
        for i in range(8):
            x[t + 1, i] = c * lib.sin(x[t, i])

    @lib.kernel
    def two_tasks(t: lib.i32):
        for i in range(8):
            y[t + 1, i] = lib.sin(y[t, i])
        for _ in range(1):
            y[t + 1, 0] += y[t, 1]

    @lib.kernel
    def of_arrays(a: lib.types.ndarray(dtype=lib.f32, ndim=1), b: lib.types.ndarray(dtype=lib.f32, ndim=1)):
        for i in range(8):
            b[i] = lib.sin(a[i])

    @lib.kernel
    def in_place(c: lib.f32):
        for i in range(8):
            state[i] = c * lib.sin(state[i])

    @lib.kernel
    def of_numpy(t: lib.i32, w: lib.types.ndarray(dtype=lib.f32, ndim=1)):
        for i in range(8):
            x[t + 1, i] = w[i] * lib.sin(x[t, i])

    @lib.data_oriented
    class Steps:
        def __init__(self) -> None:
            self.x = x

        @lib.kernel
        def run(self, t: lib.i32):
            for i in range(8):
                self.x[t + 1, i] = lib.sin(self.x[t, i])

    steps, weights = Steps(), [np.ones(n, np.float32) for n in (16, 1 << 14)]
    return {
        "a field with a time axis": _loop(lambda t: step(t, 0.9)),
        "the same, two tasks with other indices": _loop(two_tasks),
        "a method": _loop(steps.run),
        "the same two ndarrays": _loop(lambda t: of_arrays(arrays[0], arrays[1])),
        "two ndarrays of a list": _loop(lambda t: of_arrays(arrays[t], arrays[t + 1])),
        "a numpy array of 64 bytes": _loop(lambda t: of_numpy(t, weights[0])),
        "a numpy array of 64 KiB": _loop(lambda t: of_numpy(t, weights[1])),
        "state in place": _loop(lambda t: in_place(0.9)),
    }


def _loop(launch: Callable[[int], Any]) -> Callable[[], None]:
    def run() -> None:
        for t in range(MANY):
            launch(t)

    return run


def measure(run: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Seconds of the launches, and of the whole tape."""
    forward = whole = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        with qd.ad.Tape():
            first = time.perf_counter()
            run()
            forward = min(forward, time.perf_counter() - first)
        whole = min(whole, time.perf_counter() - begin)
    return forward, whole


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=8)
    options = parser.parse_args()
    with qd.init(arch=qd.cpu, cpu_max_num_threads=1):
        for name, run in cases(qd).items():
            forward, whole = (1e6 * seconds / MANY for seconds in measure(run, options.repeats))
            print(f"{name:40} forward {forward:8.2f} us a launch, with its gradient {whole:8.2f}")


if __name__ == "__main__":
    main()
