"""What the runner costs for each trial: a sweep of a job that does next to nothing, through Ray, on the CPU of this machine.

python -m benchmarks.runner [--trials 500]

Prints one line of JSON: seconds to the first start and to the end, milliseconds of a warm trial (from the first start to the end, over the
trials and the lanes; and the gap between two trials of one worker), exchanges with the ledger and writes to the journal a trial.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

JOB = """
from qdrun.jobs.base import Job, JobParams, Outcome


class Params(JobParams):
    x: float = 0.0


class Empty(Job[Params]):
    needs_compiler = False

    def build(self): ...

    def run(self):
        return Outcome(self.params.x)
"""
CONFIG = """version: 1
name: empty
job: {{target: "empty.py:Empty"}}
sweep: {{params: {{x: {{linspace: [0, 1, {trials}]}}}}}}
output: runs
"""


def measure(trials: int, folder: Path) -> dict:
    from qdrun.runner.plan import prepare
    from qdrun.runner.run import runner, session
    from qdrun.runner.store.journal import Journal
    from qdrun.runner.timing import Timing

    (folder / "empty.py").write_text(JOB, encoding="utf-8")
    (folder / "empty.yaml").write_text(CONFIG.format(trials=trials), encoding="utf-8")
    counts = {"exchanges": 0, "writes": 0}

    def counted(owner, name, key):
        real = getattr(owner, name)

        def call(self, *args, **kwargs):
            counts[key] += 1
            return real(self, *args, **kwargs)

        setattr(owner, name, call)

    counted(runner.Runner, "_exchange", "exchanges")
    counted(Journal, "write_all", "writes")
    now = time.time()
    prepared, job = prepare(folder / "empty.yaml")
    timing = Timing(now, now)
    where = str(folder / "runs")
    done = session.submit(prepared, job, output=where, timing=timing, address=None, dashboard=False, quiet=True)
    assert done.state == "done", done.state
    spent = done.timing
    starts = sorted(trial["started_t"] for trial in timing.trials)
    ends = max(trial["collected_t"] for trial in timing.trials)
    lanes = len({trial["pid"] for trial in timing.trials})
    warm = starts[len(starts) // 10]  # the first ones wait for imports
    return {
        "trials": trials,
        "lanes": lanes,
        "first_start_s": round(spent["first_start_s"], 3),
        "ended_s": round(spent["ended_s"], 3),
        "ms_per_warm_trial": round(1000 * (ends - warm) / (0.9 * trials), 3),
        "dispatch_ms_per_trial": round(spent["dispatch_ms_per_trial"], 3),
        "worker_ms_per_trial": round(spent["worker_ms_per_trial"], 3),
        **{f"{name}_per_trial": round(count / trials, 3) for name, count in counts.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qdrun-runner-") as folder:
        print(json.dumps(measure(options.trials, Path(folder))))


if __name__ == "__main__":
    main()
