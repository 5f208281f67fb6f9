"""What live values cost: processor time of logging a point and of writing it, beside that of a step of the trial.

python -m benchmarks.live_values [--steps 300] [--json]

Cases: one trial of ``mass_spring`` that is optimised, batches of 16, 128 and 1,024 of them (each step logs loss and gradient norm by
itself), and a job that calls ``self.log`` with two numbers at each of its time steps. All run on a worker of this process. ``step``: wall
time of a step, the shortest of three trials. ``log``: the median of what ``Watch.log`` takes in the trial's thread, in place. ``write``:
processor time of the writing thread for each step. The share is (log + write) / step. A comparison of whole trials with and without
logging shows nothing else on a quiet machine, and less on a busy one, where two equal trials differ by more.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from qdrun.jobs.core.watch import Watch
from qdrun.runner.live.points import live_values
from qdrun.runner.store.layout import write_run
from qdrun.runner.store.owner import take
from qdrun.runner.study.target import resolve
from qdrun.runner.workers import BatchColumns, BatchSpec, Worker, WorkerSpec

BATCHES = (1, 16, 128, 1024)
LOG_STEPS = 10000
JOB = '''
import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome


class Says(Job[JobParams]):
    """A kernel of some 100 us at each time step, and a point of the log."""

    def build(self):
        self.x = x = qd.field(qd.f64, shape=6000)

        @qd.kernel
        def step():
            for i in x:
                x[i] = qd.sin(x[i] + 0.1) * qd.exp(-x[i] * x[i]) + qd.cos(x[i])

        self.step = step

    def run(self):
        for t in range({steps}):
            self.checkpoint()
            self.step()
            self.log(loss=1.0 / (t + 1), grad_norm=float(t))
        return Outcome(float(self.x[0]))
'''


class Bench:
    """Makes workers for one run in a temporary folder."""

    def __init__(self, where, target, gradients):
        self.folder = write_run(where, "live", "", {}, [], {})
        self.owner = take(self.folder)
        limits = {"threads": 1, "memory_limit_bytes": None, "memory_budget_bytes": None, "optimize": None}
        job = limits | {"target": resolve(target, Path(where)).model_dump(), "gradients": gradients}
        who = {"run": self.folder.uri, "owner": self.owner.number, "token": self.owner.token, "device": "cpu"}
        self.worker = Worker(WorkerSpec(**who, own_process=False, lanes=1, job=job))
        self.worker._live._over = True  # it writes when it is told to, so that its time can be taken
        self.worker._live._ended.set()
        self.worker._live.join()
        self.count = 0

    def optimised(self, trials, steps):
        """A batch whose trials are optimised."""
        section = {
            "rule": "adam",
            "steps": steps,
            "learning_rate": 1e-3,
            "params": ["stiffness"],
            "scale": {"stiffness": 1000.0},
        }
        values = np.geomspace(300.0, 3000.0, trials).tolist()
        params = {"stiffness": values[0], "steps": 64}
        names = tuple(f"t{self.count}-{k}" for k in range(trials))
        inputs = {"stiffness": values} if trials > 1 else {}
        return BatchSpec("l", names, (1,) * trials, BatchColumns(params, inputs, [0] * trials, section))

    def says(self):
        """A trial that logs at each of its time steps."""
        return BatchSpec("l", (f"t{self.count}",), (1,), BatchColumns({}, {}, [0]))

    def measured(self, make, steps):
        """Seconds of a step, of logging it, and of writing what it has logged."""
        log, took, found = Watch.log, [], []

        def timed(self, values, step=None):
            began = time.perf_counter()
            log(self, values, step)
            took.append(time.perf_counter() - began)

        for measures_log in (False, False, False, True):
            self.count += 1
            Watch.log = timed if measures_log else log
            try:
                began = time.perf_counter()
                end = self.worker.run(make())
                spent = time.perf_counter() - began
            finally:
                Watch.log = log
            assert all(record["status"] == "done" for record in end.ends.values()), end.ends
            began = time.thread_time()
            self.worker._live.write()
            found.append((spent / steps, (time.thread_time() - began) / steps))
        assert len(took) == steps
        step, write = (min(column) for column in zip(*found[:3], strict=True))
        return step, statistics.median(took), write


def main():
    """Measure, and print a table."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--json", action="store_true")
    given, table = options.parse_args(), []
    with tempfile.TemporaryDirectory() as where:
        Path(where, "says.py").write_text(JOB.format(steps=LOG_STEPS), encoding="utf-8")
        cases = [(f"optimize, {trials} at once", trials, max(40, given.steps // trials)) for trials in BATCHES]
        for name, trials, steps in cases:
            bench = Bench(where, "qdrun.jobs.mass_spring:MassSpring", ["stiffness"])
            make = lambda bench=bench, trials=trials, steps=steps: bench.optimised(trials, steps)  # noqa: E731
            table.append((name, *bench.measured(make, steps + 1), bench))
        bench = Bench(where, "says.py:Says", [])
        table.append(("self.log in each time step", *bench.measured(bench.says, LOG_STEPS), bench))
        rows = []
        for name, step, log, write, bench in table:
            bench.worker.close()
            points = sum(len(series) for series in live_values(bench.folder).values())
            rows.append({"case": name, "step_us": 1e6 * step, "log_us": 1e6 * log, "write_us": 1e6 * write})
            rows[-1] |= {"share": (log + write) / step, "points": points}
    if given.json:
        print(json.dumps(rows))
        return
    for row in rows:
        parts = [f"{name} {row[f'{name}_us']:9.2f} us" for name in ("step", "log", "write")]
        print(f"{row['case']:28}", *parts, f"{100 * row['share']:.2f} %")


if __name__ == "__main__":
    main()
