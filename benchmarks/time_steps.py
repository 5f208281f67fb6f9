"""The jobs of the package under memory budgets: bytes, steps run again, time, and whether the gradient has the same bits.

    python benchmarks/time_steps.py [--rounds 15] [--json]

Budgets are parts of what the job needs without one. One thread, so that sums have one order. Times are processor seconds of ``run``, the
smallest of the rounds, which take the budgets in turn. In the large jobs the kernels take the time, and not the checks of the tape.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from qdrun.jobs.base import Finished, Job, execute
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams
from qdrun.jobs.mpm88 import Mpm88, Mpm88Params

PERCENT = (100, 50, 25, 10)
JOBS: dict[str, Job[Any]] = {
    "mass_spring": MassSpring(MassSpringParams()),
    "mpm88": Mpm88(Mpm88Params()),
    "mass_spring, large": MassSpring(MassSpringParams(columns=64, actuation=[0.2] * 64, steps=1000)),
    "mpm88, large": Mpm88(Mpm88Params(particles=4096, grid=96, steps=100)),
}


def run(job: Job[Any], budget: int | None) -> tuple[Job[Any], Finished]:
    """One trial of its own."""
    again = type(job)(job.params)
    return again, execute(again, backend="cpu", threads=1, memory_limit_bytes=None, memory_budget_bytes=budget)


def seconds(job: Job[Any], budget: int | None) -> float:
    """Processor seconds of one run, compiled and planned before."""
    again = type(job)(job.params)
    with again.opened(threads=1, memory_budget_bytes=budget):
        again.plan()
        start = time.process_time()
        again.run()
        return time.process_time() - start


def numbers(done: Finished) -> dict[str, bytes]:
    """Loss, gradients and outputs as bits."""
    values = {"loss": done.outcome.loss, **done.outcome.gradients, **done.outcome.outputs}
    return {name: np.asarray(value).tobytes() for name, value in values.items()}


def measure(name: str, rounds: int) -> list[dict[str, Any]]:
    """A row for each budget of one job, the first without one."""
    full = run(JOBS[name], None)[1]
    budgets = [None, *(full.peak_bytes * percent // 100 for percent in PERCENT if full.peak_bytes is not None)]
    rows = []
    for percent, budget in zip((None, *PERCENT), budgets):
        job, done = run(JOBS[name], budget)
        plan = job.steps_plan
        row = {"job": name, "percent": percent, "budget": budget, "bytes": done.peak_bytes, "window": job.window}
        row |= {"snapshots": plan.snapshots if plan else 0, "replays": plan.replays if plan else 0, "n": job.time_steps()}
        rows.append(row | {"same_bits": numbers(done) == numbers(full), "seconds": float("inf")})
    for _ in range(rounds):
        for row, budget in zip(rows, budgets):
            row["seconds"] = min(row["seconds"], seconds(JOBS[name], budget))
    for row in rows:
        row["ratio"] = row["seconds"] / rows[0]["seconds"]
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row for name in JOBS for row in measure(name, options.rounds)]
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'job':<20} {'budget':>8} {'bytes':>12} {'window':>7} {'snapshots':>9} {'run again':>12} {'time':>6}  bits")
    for row in rows:
        percent = "none" if row["percent"] is None else f"{row['percent']} %"
        again = f"{row['replays']} of {row['n']}"
        print(
            f"{row['job']:<20} {percent:>8} {row['bytes']:>12,} {row['window']:>7} {row['snapshots']:>9} {again:>12}"
            f" {row['ratio']:>6.2f}  {'same' if row['same_bits'] else 'OTHER'}"
        )


if __name__ == "__main__":
    main()
