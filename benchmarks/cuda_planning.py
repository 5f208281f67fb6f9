"""What it takes to plan a gradient whose gate and bound lie in arrays of a GPU that a kernel has just written.

``python -m benchmarks.cuda_planning [--emulated] [--small]``: for each size of the arrays the milliseconds of a plan (median), with kernels
that count on the device, and with copies that numpy looks at; and that both are one plan. Where the two meet is
``program.plans.device_reducer.SMALL_ARRAY``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import qdrun as qd
from qdrun.compiler.program.plans import device_reducer

SIZES = tuple(1 << k for k in (8, 10, 12, 13, 14, 15, 16, 18, 20, 22, 24))
NEVER = 1 << 62
REPEATS = 15


def programs(n: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """A plan that reads two arrays of ``n`` i32, and a launch that writes to both; what they hold stays the same."""
    x, y = (qd.field(qd.f32, shape=n, needs_grad=True) for _ in range(2))
    alive, length = (qd.field(qd.i32, shape=n) for _ in range(2))
    rng = np.random.default_rng(1)
    alive.from_numpy((rng.random(n) < 0.01).astype(np.int32))
    length.from_numpy(rng.integers(0, 1000, n).astype(np.int32))

    @qd.kernel
    def sparse():
        for i in x:
            if alive[i] == 1:
                v = x[i]
                for _ in range(length[i]):
                    v = qd.sin(v) + 0.1
                y[i] = v

    @qd.kernel
    def touch():
        for i in range(4):
            alive[i] += 0
            length[i] += 0

    return sparse.grad.plan, touch


def milliseconds(plan: Callable[[], object], touch: Callable[[], object]) -> tuple[float, object]:
    """The median time of a plan after a launch that has written to its inputs, and the plan."""
    times: list[float] = []
    made: object = None
    for _ in range(REPEATS + 2):
        touch()
        qd.sync()
        begin = time.perf_counter()
        made = plan()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times[2:]), made


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    print(f"{'bytes an array':>15} {'on the device':>14} {'copied':>9}  ms")
    for n in SIZES[:4] if given.small else SIZES:
        found: list[tuple[float, object]] = []
        for small in (0, NEVER):
            device_reducer.SMALL_ARRAY = small
            qd.init(arch=qd.cuda, **({"device": "emulated"} if given.emulated else {}))
            found.append(milliseconds(*programs(n)))
            qd.reset()
        (there, one), (here, other) = found
        assert one == other, (n, one, other)
        print(f"{4 * n:>15,} {there:>14.3f} {here:>9.3f}")


if __name__ == "__main__":
    main()
