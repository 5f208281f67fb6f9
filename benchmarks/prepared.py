"""CPU of the driver for each trial, from the config to the Parquet table, and the peak of its memory.

``python -m benchmarks.prepared [--trials 100000] [--own]``

The job has a vector of 96 numbers; two numbers are drawn for each trial, with ``--own`` the vector. The config is read, its trials are made
and written, the rows of batches of 1,024 trials are written to the journal as a worker gives them, and the table is made. No trial runs.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from qdrun.jobs.planning.memory_plan import MemoryPlan, PlanEntry
from qdrun.runner.observe.table import write_table
from qdrun.runner.store.columns import made, who
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import create
from qdrun.runner.study.plan import PlannedGroup
from qdrun.runner.study.prepare import prepare

JOB = """
from qdrun.jobs.base import Job, JobParams

class Params(JobParams):
    body: list[float] = [0.1 * k + 0.123456789 for k in range(96)]
    a: float = 1.0
    b: float = 1.0

class Bodies(Job[Params]):
    \"\"\"A job that is planned by hand.\"\"\"
"""
CONFIG = """
version: 1
name: prepared
job: {{target: "job.py:Bodies"}}
gradients: []
sweep: {{method: random, samples: {count}, params: {params}}}
"""
AXES = {False: "{a: {uniform: [0, 1]}, b: {uniform: [0, 1]}}", True: "{body: {uniform: [0, 1], shape: 96}}"}
BATCH = 1024


class _Laps:
    """Prints what each step has taken."""

    def __init__(self, count: int) -> None:
        self.count, self.total, self.last = count, 0.0, time.process_time()

    def lap(self, what: str) -> None:
        spent, self.last = time.process_time() - self.last, time.process_time()
        self.total += spent
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{what:24} {spent:7.2f} s, {1e6 * spent / self.count:7.2f} us a trial, peak {peak:6.0f} MiB", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--own", action="store_true", help="each trial has a vector of its own")
    args = parser.parse_args()
    count, random = args.trials, np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary, "job.py").write_text(JOB, encoding="utf-8")
        config = Path(temporary, "config.yaml")
        config.write_text(CONFIG.format(count=count, params=AXES[args.own]), encoding="utf-8")
        laps = _Laps(count)
        prepared, _ = prepare(config)
        laps.lap("config to trials")
        folder = create(prepared, Path(temporary, "runs"))
        laps.lap("trials to the folder")
        plan = MemoryPlan(entries=(PlanEntry(kind="state", bytes=4096, source="build()"),))
        folder.save_plan([PlannedGroup(places=range(count), first=0, example="", plan=plan)])
        laps.lap("plan to the folder")
        shared = {"status": "done", "seconds": 0.25, "planned_bytes": 4096, "used_bytes": 4096, "device": "cpu"}
        with Journal(folder) as journal:
            for start in range(0, count, BATCH):
                part = range(count)[start : start + BATCH]
                ones, losses = (1,) * len(part), random.uniform(size=len(part))
                journal.write("begun", **who(part, ones), device="cpu")
                for rows in made(part, ones, shared, losses, None, {}, {"reach": random.uniform(size=len(part))}):
                    journal.write("rows", **rows.event())
            journal.write("finished", sync=True, state="done")
        laps.lap("rows to the journal")
        write_table(folder, trials=prepared.trials)
        laps.lap("journal to the table")
        print(f"in all {laps.total:.2f} s, {1e6 * laps.total / count:.2f} us a trial")


if __name__ == "__main__":
    main()
