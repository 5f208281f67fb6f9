"""What a launch costs while a tape records, by what tells that it overwrites nothing, and where it overwrites what a gradient needs.

``python -m benchmarks.tape_launch``. Microseconds a launch of 1,000, the least of several: alone; in a tape, with its gradient, when the
tape is checked; and when it is the same tape as before. Of the processor, not of the clock. ``--batch``: of a batched program.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import qdrun as qd
from qdrun.compiler.program.memory.known_tapes import KnownTapes

MANY = 1000
JOINTS = 16


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

    q, v, force, product = (lib.field(lib.f32, shape=(MANY // 4 + 1, JOINTS), needs_grad=True) for _ in range(4))

    @lib.kernel
    def multiply(t: lib.i32):
        for _ in range(1):
            for j in lib.static(range(JOINTS)):
                product[t, j] = lib.sin(q[t, j]) * v[t, j]

    @lib.kernel
    def couple(t: lib.i32):
        for _ in range(1):
            for j in lib.static(range(JOINTS)):
                total = 0.0
                for other in lib.static(range(max(0, j - 2), min(JOINTS, j + 3))):
                    total += product[t, other] * q[t, j]
                force[t, j] = total - v[t, j]

    @lib.kernel
    def push(t: lib.i32):
        for _ in range(1):
            for j in lib.static(range(JOINTS)):
                v[t + 1, j] = v[t, j] + 0.01 * force[t, j] * lib.cos(q[t, j])

    @lib.kernel
    def move(t: lib.i32):
        for _ in range(1):
            for j in lib.static(range(JOINTS)):
                q[t + 1, j] = q[t, j] + 0.01 * v[t + 1, j] * v[t, j]

    robot = multiply, couple, push, move

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
        "four kernels on unrolled fields": _loop(lambda n: robot[n % 4](n // 4)),
    }


def _loop(launch: Callable[[int], Any]) -> Callable[[], None]:
    def run() -> None:
        for t in range(MANY):
            launch(t)

    return run


def measure(run: Callable[[], None], repeats: int) -> tuple[float, float, float]:
    """Seconds of the launches without a tape, of a tape that is checked, and of the same tape again."""
    program = qd.current_program()

    def tape() -> None:
        with qd.ad.Tape():
            run()

    def least(action: Callable[[], None], before: Callable[[], None] = lambda: None) -> float:
        found = float("inf")
        for _ in range(repeats):
            before()
            begin = time.process_time()
            action()
            found = min(found, time.process_time() - begin)
        return found

    def forget() -> None:
        program.known_tapes = KnownTapes()

    tape()  # compiles
    return least(run), least(tape, forget), least(tape)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--batch", type=int)
    options = parser.parse_args()
    with qd.init(arch=qd.cpu, cpu_max_num_threads=1, batch=options.batch):
        for name, run in cases(qd).items():
            alone, checked, again = (1e6 * seconds / MANY for seconds in measure(run, options.repeats))
            print(f"{name:40} {alone:8.2f} us a launch, in a tape {checked:8.2f}, in the same tape again {again:8.2f}")


if __name__ == "__main__":
    main()
