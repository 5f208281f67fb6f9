"""What the runner costs for each trial: a sweep of a job that does next to nothing, through Ray, on the CPU of this machine.

python -m benchmarks.runner [--trials 500] [--seconds 0] [--lanes 2] [--lease 64] [--nodes 0] [--gpus 0]

``--lease 1``: every trial gets a lease and a message of its own. ``--nodes N``: on a cluster of N nodes with ``--lanes`` cores each, all
on this machine. ``--gpus G``: of G pretended GPUs each instead, with ``--lanes`` lanes, played by the CPU.

Prints one line of JSON. No trial starts before all workers have. ``overhead_ms`` is what a lane loses with each trial: seconds of the
warm part of the run (its last nine tenths) times lanes over trials, less the seconds that the job itself took. ``runner_cpu_ms`` and
``worker_cpu_ms`` are processor time for each of those trials, which says more on a machine that has other things to do. Further: seconds
to the first start, to the end, what ``qdrun submit`` prints of itself, trials of a lease, exchanges with the ledger and writes to the
journal for each trial.
"""

import argparse
import json
import os
import secrets
import shutil
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from qdrun.runner.engine import loop, session, start
from qdrun.runner.ledger import client, ledger
from qdrun.runner.observe.timing import Timing
from qdrun.runner.ray_adapter import worker_pool
from qdrun.runner.ray_adapter.node_inventory import Settings
from qdrun.runner.store.journal import Journal
from qdrun.runner.study.prepare import prepare

PRETENDED_BYTES = 24 << 30
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
device: {device}
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

    def __init__(self, trials: int, timing, workers: int) -> None:
        self.counts, self.trials, self.timing, self.workers = Counter(), trials, timing, workers
        self.held: list = []
        self.warm: tuple[float, float, dict[int, float]] | None = None
        self.end: tuple[float, float, dict[int, float]] | None = None

    def now(self) -> tuple[float, float, dict[int, float]]:
        pids = {trial.lane[1] for trial in self.timing.trials if trial.lane[1]}
        return time.time(), time.process_time(), {pid: cpu_s(pid) for pid in pids}

    def install(self) -> None:
        self._before(client.RunLedger, "exchange", lambda *_, **__: self.counts.update(exchanges=1))
        self._before(Journal, "write_all", lambda *_, **__: self.counts.update(writes=1))
        self._before(worker_pool.RayWorkers, "_send", lambda *args: self.counts.update(leases=1, launches=len(args[3])))
        self._before(loop.Runner, "_step", self._look)
        self._before(worker_pool.RayWorkers, "close", self._close)
        ready = worker_pool.RayWorkers._ready

        def together(own, worker, info):
            """The first trials wait for the last worker: else one runs them all while the others start."""
            self.held.append((own, worker, info))
            if len(self.held) < self.workers:
                return []
            held, self.held, self.workers = self.held, [], 1
            return [event for one in held for event in ready(*one)]

        worker_pool.RayWorkers._ready = together  # type: ignore[method-assign]

    def _before(self, owner: type, name: str, call) -> None:
        real = getattr(owner, name)

        def both(*args, **kwargs):
            call(*args, **kwargs)
            return real(*args, **kwargs)

        setattr(owner, name, both)

    def _look(self, *_) -> None:
        if self.warm is None and len(self.timing.trials) >= self.trials // 10:
            self.counts.clear()
            self.at = len(self.timing.trials)
            self.warm = self.now()

    def _close(self, *_) -> None:
        self.end = self.end or self.now()

    def figures(self, lanes: int) -> dict:
        assert self.warm is not None and self.end is not None
        ran = self.trials - self.at
        own = [trial.seconds for trial in self.timing.trials[self.at :]]
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


@dataclass(frozen=True)
class Size:
    """``nodes`` of a cluster, 0 for none; ``gpus`` pretended ones of each node; ``lanes`` of a GPU, or of the CPU of a node."""

    lanes: int = 2
    lease: int = 64
    nodes: int = 0
    gpus: int = 0

    @property
    def all_lanes(self) -> int:
        """Trials at once."""
        return self.lanes * max(1, self.nodes) * max(1, self.gpus)

    @property
    def workers(self) -> int:
        """Processes: a GPU has one for all lanes."""
        return self.nodes * self.gpus if self.gpus else self.all_lanes


@contextmanager
def cluster(size: Size):
    """A cluster of nodes on this machine, in a folder of its own and with a token of its own; its address."""
    folder = tempfile.mkdtemp(prefix="qb", dir="/tmp")
    Path(folder, "ray").mkdir()
    token = Path(folder, "token")
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), encoding="ascii")
    # before Ray is loaded: nodes without a token and a run with one do not answer one another
    os.environ |= {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 << 20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    try:
        for _ in range(size.nodes):
            made.add_node(num_cpus=size.lanes, num_gpus=size.gpus, **small)
        pretended = PRETENDED_BYTES if size.gpus else 0
        session.Settings = lambda _, *more: Settings(size.lanes, *more, pretended_bytes=pretended)  # type: ignore[assignment]
        yield made.address
    finally:
        made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def play_gpus() -> None:
    """Workers on pretended GPUs hold the one that the CPU plays, which has other names."""
    real = start.specs_of

    def specs_of(*args):
        return {device: replace(spec, which="emulated", uuid="", pci="") for device, spec in real(*args).items()}

    start.specs_of = specs_of


def measure(trials: int, folder: Path, *, seconds: float = 0.0, size: Size) -> dict:
    """One run, with its figures."""
    device = "{backend: cuda}" if size.gpus else "{backend: cpu}"
    (folder / "empty.py").write_text(JOB, encoding="utf-8")
    config = CONFIG.format(trials=trials, seconds=seconds, most=size.all_lanes, device=device)
    (folder / "empty.yaml").write_text(config, encoding="utf-8")
    if size.gpus:
        play_gpus()
    client.Ledger = partial(ledger.Ledger, lease_requests=size.lease)  # type: ignore[misc, assignment]
    with ExitStack() as stack:
        address = stack.enter_context(cluster(size)) if size.nodes else None
        now = time.time()
        prepared, job = prepare(folder / "empty.yaml", local=address is None)
        timing = Timing(now, now)
        probe = Probe(trials, timing, size.workers)
        probe.install()
        where = str(folder / "runs")
        done = session.submit(prepared, job, output=where, timing=timing, address=address, dashboard=False, quiet=True)
    assert done.state == "done", (done.state, done.rows[0])
    spent = done.timing
    found = {
        "trials": trials,
        "seconds": seconds,
        **asdict(size),
        "workers": len({trial.lane[1] for trial in timing.trials}),
        "load": round(os.getloadavg()[0], 1),
    }
    found |= probe.figures(size.all_lanes)
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
    parser.add_argument("--lanes", type=int, default=2, help="trials at once, on each node or GPU")
    parser.add_argument("--lease", type=int, default=64, help="most trials of a lease")
    parser.add_argument("--nodes", type=int, default=0, help="of a cluster that is made for it")
    parser.add_argument("--gpus", type=int, default=0, help="pretended ones of each node")
    options = parser.parse_args()
    if options.gpus and not options.nodes:
        parser.error("--gpus are those of --nodes")
    with tempfile.TemporaryDirectory(prefix="qdrun-runner-") as folder:
        size = Size(options.lanes, options.lease, options.nodes, options.gpus)
        print(json.dumps(measure(options.trials, Path(folder), seconds=options.seconds, size=size)), flush=True)


if __name__ == "__main__":
    main()
