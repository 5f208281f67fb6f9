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


Case = Callable[[Any], Callable[[int], Any]]
"""Makes what one case needs in the current program; gives what is called for each launch, with its number."""


def _chain(lib: Any) -> Any:
    return lib.field(lib.f32, shape=(MANY + 1, 8), needs_grad=True)


def time_axis(lib: Any) -> Callable[[int], Any]:
    """A field with a time axis."""
    x = _chain(lib)

    @lib.kernel
    def step(t: lib.i32, c: lib.f32):
        for i in range(8):
            x[t + 1, i] = c * lib.sin(x[t, i])

    return lambda t: step(t, 0.9)


def two_tasks(lib: Any) -> Callable[[int], Any]:
    """Two tasks with other indices."""
    y = _chain(lib)

    @lib.kernel
    def step(t: lib.i32):
        for i in range(8):
            y[t + 1, i] = lib.sin(y[t, i])
        for _ in range(1):
            y[t + 1, 0] += y[t, 1]

    return step


def method(lib: Any) -> Callable[[int], Any]:
    """A method over a field of its object."""

    @lib.data_oriented
    class Steps:
        def __init__(self) -> None:
            self.x = _chain(lib)

        @lib.kernel
        def run(self, t: lib.i32):
            for i in range(8):
                self.x[t + 1, i] = lib.sin(self.x[t, i])

    return Steps().run


def _of_arrays(lib: Any) -> Callable[[Any, Any], Any]:
    @lib.kernel
    def step(a: lib.types.ndarray(dtype=lib.f32, ndim=1), b: lib.types.ndarray(dtype=lib.f32, ndim=1)):
        for i in range(8):
            b[i] = lib.sin(a[i])

    return step


def two_arrays(lib: Any) -> Callable[[int], Any]:
    """The same two ndarrays."""
    step, (a, b) = _of_arrays(lib), (lib.ndarray(lib.f32, (8,), needs_grad=True) for _ in range(2))
    return lambda _: step(a, b)


def arrays_of_a_list(lib: Any) -> Callable[[int], Any]:
    """Two of a thousand ndarrays, whose gradients are cleared, too."""
    step, arrays = _of_arrays(lib), [lib.ndarray(lib.f32, (8,), needs_grad=True) for _ in range(MANY + 1)]
    return lambda t: step(arrays[t], arrays[t + 1])


def _of_numpy(lib: Any, size: int) -> Callable[[int], Any]:
    x, weights = _chain(lib), np.ones(size, np.float32)

    @lib.kernel
    def step(t: lib.i32, w: lib.types.ndarray(dtype=lib.f32, ndim=1)):
        for i in range(8):
            x[t + 1, i] = w[i] * lib.sin(x[t, i])

    return lambda t: step(t, weights)


def small_numpy(lib: Any) -> Callable[[int], Any]:
    """A numpy array of 64 bytes."""
    return _of_numpy(lib, 16)


def large_numpy(lib: Any) -> Callable[[int], Any]:
    """A numpy array of 64 KiB."""
    return _of_numpy(lib, 1 << 14)


def in_place(lib: Any) -> Callable[[int], Any]:
    """State in place."""
    state = lib.field(lib.f32, shape=8, needs_grad=True)

    @lib.kernel
    def step(c: lib.f32):
        for i in range(8):
            state[i] = c * lib.sin(state[i])

    return lambda _: step(0.9)


def robot(lib: Any) -> Callable[[int], Any]:
    """Four kernels on unrolled fields."""
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

    kernels = multiply, couple, push, move
    return lambda n: kernels[n % 4](n // 4)


CASES: tuple[Case, ...] = (
    time_axis,
    two_tasks,
    method,
    two_arrays,
    arrays_of_a_list,
    small_numpy,
    large_numpy,
    in_place,
    robot,
)


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
    alone, checked = least(run), least(tape, forget)
    for _ in range(2):  # a tape is known when it was recorded twice
        tape()
    return alone, checked, least(tape)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--batch", type=int)
    options = parser.parse_args()
    for case in CASES:
        with qd.init(arch=qd.cpu, cpu_max_num_threads=1, batch=options.batch):
            alone, checked, again = (1e6 * seconds / MANY for seconds in measure(_loop(case(qd)), options.repeats))
        name = (case.__doc__ or "").rstrip(".")
        print(f"{name:60} {alone:7.2f} us a launch, in a tape {checked:7.2f}, in the same tape again {again:7.2f}")


if __name__ == "__main__":
    main()
