"""Recorded launches on the CPU: what a launch costs in a graph, and how many robots a second a graph of a batched program runs.

``python -m benchmarks.replay --batches 1,8,32,256 --threads 2``. Nothing is measured beside the graph: inputs are in the fields.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import qdrun as qd
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams

LAUNCHES = 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="0,1,8,16,32,64,256", help="trials at once; 0: a program that is not batched")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each number")
    args = parser.parse_args()
    print(f"an empty loop: {1e9 * launch_seconds(args.seconds) / LAUNCHES:.1f} ns a launch in a graph of {LAUNCHES:,}")
    for batch in map(int, args.batches.split(",")):
        best, median, launches = robots(batch, args.threads, args.steps, args.seconds)
        trials = max(1, batch)
        print(
            f"batch {batch or 'none':>5}: {trials / best:>10,.0f} robots/s ({trials / median:,.0f} in the median run),"
            f" {1e6 * best / launches / trials:.3f} us a launch and trial"
        )


def launch_seconds(seconds: float) -> float:
    """A graph of launches that do next to nothing."""
    with qd.init(arch=qd.cpu, cpu_max_num_threads=1):
        x = qd.field(qd.f32, shape=())

        @qd.kernel
        def nothing(t: qd.i32):
            x[None] = t

        def work() -> None:
            for t in range(LAUNCHES):
                nothing(t)

        nothing(0)
        return timed(qd.capture(work), seconds)[0]


def robots(batch: int, threads: int | None, steps: int, seconds: float) -> tuple[float, float, int]:
    """Seconds of a graph of the robot, its loss and both gradients (the best run, the median), and its launches."""
    how = {"batch": batch} if batch else {}
    with MassSpring(MassSpringParams(steps=steps)).opened(backend="cpu", threads=threads, **how) as job:

        def trial() -> None:
            for array in (*job.scratch(), job.activation):
                array.fill(0.0)
            with qd.ad.Tape(loss=job.loss):
                job.simulate()

        if batch:
            job.program.batch.same = [job.dt, job.omega]
        trial()
        loss = job.loss.to_numpy()
        graph = qd.capture(trial)
        best, median = timed(graph, seconds)
        if not np.array_equal(job.loss.to_numpy(), loss):
            raise SystemExit("the graph has another loss than the function")
        return best, median, graph.launches


def timed(run: Callable[[], None], seconds: float) -> tuple[float, float]:
    """Seconds of the best run and of the median one."""
    found, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 3:
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found), float(np.median(found))


if __name__ == "__main__":
    main()
