"""What the runner costs for each trial: a sweep of a job that does next to nothing, through Ray, on the CPU of this machine.

python -m benchmarks.runner [--trials 500] [--seconds 0] [--lanes 2] [--lease 64] [--nodes 0]

``--lease 1``: every trial gets a lease and a message of its own. ``--nodes N``: on a cluster of N nodes with ``--lanes`` cores each, all
on this machine, whose ledger is an actor.

Prints one line of JSON. ``overhead_ms`` is what a lane loses with each trial: seconds of the warm part of the run (its last nine tenths,
or less, until all workers have started) times lanes over trials, less the seconds that the job itself took. ``runner_cpu_ms`` and
``worker_cpu_ms`` are processor time for each of those trials, which says more on a machine that has other things to do. Further: seconds
to the first start, to the end, what ``qdrun submit`` prints of itself, trials of a lease, exchanges with the ledger and writes to the
journal for each trial.
"""

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

JOB = """
import time

from qdrun.jobs.base import Job, JobParams, Outcome


class Params(JobParams):
    x: float = 0.0
    seconds: float = 0.0


class Empty(Job[Params]):
    needs_compiler = False

    def build(self): ...

    def run(self):
        if self.params.seconds:
            time.sleep(self.params.seconds)
        return Outcome(self.params.x)
"""
CONFIG = """version: 1
name: empty
job: {{target: "empty.py:Empty", params: {{seconds: {seconds}}}}}
device: {{backend: {backend}}}
limits: {{max_concurrent: {most}}}
sweep: {{params: {{x: {{linspace: [0, 1, {trials}]}}}}}}
output: runs
"""
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Seconds of processor time of a process; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    except FileNotFoundError:
        return 0.0


class Probe:
    """Counts calls inside of the runner, and reads the processes' clocks when the run is warm and when its workers end."""

    def __init__(self, trials: int, timing, lanes: int) -> None:
        self.counts, self.trials, self.timing, self.lanes = Counter(), trials, timing, lanes
        self.warm: tuple[float, float, dict[int, float]] | None = None
        self.end: tuple[float, float, dict[int, float]] | None = None

    def now(self) -> tuple[float, float, dict[int, float]]:
        pids = {trial["lane"][1] for trial in self.timing.trials if trial["lane"][1]}
        return time.time(), time.process_time(), {pid: cpu_s(pid) for pid in pids}

    def install(self) -> None:
        from qdrun.runner.run import runner, workers
        from qdrun.runner.store.journal import Journal

        self._before(runner.Runner, "_exchange", lambda *_: self.counts.update(exchanges=1))
        self._before(Journal, "write_all", lambda *_, **__: self.counts.update(writes=1))
        self._before(workers.RayWorkers, "_send", lambda *args: self.counts.update(leases=1, launches=len(args[3])))
        self._before(runner.Runner, "_step", self._look)
        self._before(workers.RayWorkers, "close", self._close)

    def _before(self, owner: type, name: str, call) -> None:
        real = getattr(owner, name)

        def both(*args, **kwargs):
            call(*args, **kwargs)
            return real(*args, **kwargs)

        setattr(owner, name, both)

    def _look(self, *_) -> None:
        if self.warm is not None or len(self.timing.trials) < self.trials // 10:
            return
        if len({trial["lane"][1] for trial in self.timing.trials}) >= self.lanes:  # all workers have started
            self.counts.clear()
            self.at = len(self.timing.trials)
            self.warm = self.now()

    def _close(self, *_) -> None:
        self.end = self.end or self.now()

    def figures(self, lanes: int) -> dict:
        assert self.warm is not None and self.end is not None
        ran = self.trials - self.at
        own = [trial["seconds"] for trial in self.timing.trials[self.at :]]
        assert len(own) == ran, (len(own), ran)
        wall = self.end[0] - self.warm[0]
        workers = sum(used - self.warm[2].get(pid, 0.0) for pid, used in self.end[2].items())
        return {
            "overhead_ms": round(1000 * (wall * lanes / ran - sum(own) / ran), 4),
            "own_ms": round(1000 * sum(own) / ran, 4),
            "wall_ms": round(1000 * wall / ran, 4),
            "runner_cpu_ms": round(1000 * (self.end[1] - self.warm[1]) / ran, 4),
            "worker_cpu_ms": round(1000 * workers / ran, 4),
            "trials_of_a_lease": round(self.counts["launches"] / self.counts["leases"], 1),
            "exchanges_per_trial": round(self.counts["exchanges"] / ran, 4),
            "writes_per_trial": round(self.counts["writes"] / ran, 4),
        }


@contextmanager
def nodes(count: int, lanes: int):
    """A cluster of nodes with so many cores, in a folder of its own; its address."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="qb", dir="/tmp")
    Path(folder, "ray").mkdir()
    os.environ["RAY_TMPDIR"] = folder
    small = {"object_store_memory": 80 << 20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    try:
        for _ in range(count):
            made.add_node(num_cpus=lanes, **small)
        yield made.address
    finally:
        made.shutdown()


def measure(trials: int, folder: Path, *, seconds: float = 0.0, lanes: int = 2, lease: int = 64, count: int = 0) -> dict:
    """One run, with its figures."""
    from qdrun.runner.ledger import client, ledger
    from qdrun.runner.plan import prepare
    from qdrun.runner.run import session
    from qdrun.runner.timing import Timing

    (folder / "empty.py").write_text(JOB, encoding="utf-8")
    config = CONFIG.format(trials=trials, seconds=seconds, most=lanes * (count or 1), backend="cpu")
    (folder / "empty.yaml").write_text(config, encoding="utf-8")
    client.Ledger = partial(ledger.Ledger, lease_trials=lease)  # type: ignore[misc, assignment]
    with ExitStack() as stack:
        address = stack.enter_context(nodes(count, lanes)) if count else None
        now = time.time()
        prepared, job = prepare(folder / "empty.yaml", local=address is None)
        timing = Timing(now, now)
        probe = Probe(trials, timing, lanes * (count or 1))
        probe.install()
        where = str(folder / "runs")
        done = session.submit(prepared, job, output=where, timing=timing, address=address, dashboard=False, quiet=True)
    assert done.state == "done", done.state
    spent, pids = done.timing, {trial["lane"][1] for trial in timing.trials}
    found = {
        "trials": trials,
        "seconds": seconds,
        "lanes": lanes,
        "workers": len(pids),
        "nodes": count,
        "load": round(os.getloadavg()[0], 1),
    }
    found |= probe.figures(lanes * (count or 1))
    return found | {
        "first_start_s": round(spent["first_start_s"] or 0.0, 3),
        "ended_s": round(spent["ended_s"] or 0.0, 3),
        "dispatch_ms_per_trial": round(spent["dispatch_ms_per_trial"] or 0.0, 3),
        "worker_ms_per_trial": round(spent["worker_ms_per_trial"] or 0.0, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=0.0, help="that a trial sleeps")
    parser.add_argument("--lanes", type=int, default=2, help="trials at once")
    parser.add_argument("--lease", type=int, default=64, help="most trials of a lease")
    parser.add_argument("--nodes", type=int, default=0, help="of a cluster that is made for it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qdrun-runner-") as folder:
        known = {"seconds": options.seconds, "lanes": options.lanes, "lease": options.lease, "count": options.nodes}
        print(json.dumps(measure(options.trials, Path(folder), **known)))


if __name__ == "__main__":
    main()
