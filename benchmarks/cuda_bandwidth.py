"""How fast a GPU runs bodies that only wait for memory, by how many iterations a thread has on their way and how many blocks there are.

    python -m benchmarks.cuda_bandwidth [--n 268435456] [--device 0]

For each kernel (saxpy, copy, sum, a stencil) it prints TB/s moved for 1 to 8 iterations side by side, a block's threads or a grid's
apart, or one after the other with accesses of 16 bytes ("one"), and 1 to 512 times as many blocks as the device holds at once; last a
plain copy by the driver. The right answer is checked first.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import qdrun as qd
from qdrun.compiler.codegen.abi import TABLE_RESIDENT
from qdrun.compiler.codegen.gpu import side_by_side
from qdrun.compiler.program.program import current_program

REPEATS = 7


def time_of(run: Callable[[], object]) -> float:
    """Seconds of one run on the device's clock: the median."""
    device = current_program().device
    driver, stream = device.driver, device.stream
    begin, end = driver.event(), driver.event()
    seconds: list[float] = []
    for _ in range(REPEATS + 1):
        driver.record(begin, stream)
        run()
        driver.record(end, stream)
        driver.event_wait(end)
        seconds.append(driver.elapsed_ms(begin, end) / 1e3)
    return statistics.median(seconds[1:])


def kernels(n: int) -> tuple[dict[str, tuple[Callable[[], object], int]], tuple[qd.Field, qd.Field, qd.Field]]:
    """Each kernel with the bytes that it moves."""
    x, y = qd.field(qd.f32, n), qd.field(qd.f32, n)
    total = qd.field(qd.f32, ())

    @qd.kernel
    def saxpy(a: qd.f32):
        for i in range(n):
            y[i] = a * x[i] + y[i]

    @qd.kernel
    def copy():
        for i in range(n):
            y[i] = x[i]

    @qd.kernel
    def add():
        for i in range(n):
            total[None] += x[i]

    @qd.kernel
    def stencil():
        for i in range(1, n - 1):
            y[i] = x[i - 1] + x[i] + x[i + 1]

    found = {
        "saxpy": (lambda: saxpy(0.5), 12 * n),
        "copy": (copy, 8 * n),
        "sum": (add, 4 * n),
        "stencil": (stencil, 8 * n),
    }
    return found, (x, y, total)


def check(found: dict[str, tuple[Callable[[], object], int]], fields: tuple[qd.Field, qd.Field, qd.Field], n: int) -> None:
    """The first and last elements of every kernel's result."""
    x, y, total = fields
    x.fill(1.5)
    y.fill(2.0)
    total.fill(0.0)
    want = {"saxpy": 2.75, "copy": 1.5, "stencil": 4.5}
    for name, (run, _) in found.items():
        run()
        qd.sync()
        if name in want:
            got = [y[i] for i in (1, n // 2, n - 2)]
            assert got == [want[name]] * 3, (name, got)
    assert abs(total[None] / (1.5 * n) - 1) < 1e-4, total[None]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1 << 28)
    parser.add_argument("--device", default=0)
    given = parser.parse_args()
    which = int(given.device) if str(given.device).isdigit() else given.device
    print(f"{'kernel':<9}{'copies':>7}{'apart':>7}{'blocks':>8}{'TB/s':>8}")
    for number, (copies, apart) in enumerate(((1, "grid"), (4, "grid"), (4, "block"), (4, "one"), (8, "one"))):
        side_by_side.MOST_COPIES, side_by_side.LOADS, side_by_side.TILED = copies, 8 * copies, apart != "grid"
        side_by_side.BYTES = 16 if apart == "one" else 0
        qd.init(arch=qd.cuda, device=which, offline_cache=False)
        n = given.n - 64 * number  # other kernels: a process keeps the code of those that it knows
        found, fields = kernels(n)
        check(found, fields, n)
        table = current_program().device.table
        held = int(table[TABLE_RESIDENT])
        for times in (1, 4, 16, 64, 512):
            table[TABLE_RESIDENT] = held * times
            for name, (run, nbytes) in found.items():
                rate = nbytes / time_of(run) / 1e12
                print(f"{name:<9}{copies:>7}{apart:>7}{times:>7}x{rate:>8.2f}", flush=True)
    device, nbytes = current_program().device, 4 * given.n
    source, target = (device.driver.allocate(nbytes, device.stream) for _ in range(2))
    seconds = time_of(lambda: device.driver.copy(target, source, nbytes, device.stream))
    print(f"{'memcpy':<9}{'':>7}{'':>7}{'':>8}{2 * nbytes / seconds / 1e12:>8.2f}")


if __name__ == "__main__":
    main()
