"""How a sweep scales over the GPUs of one host: ``python -m benchmarks.cards --cards 1,2,4 [--trials 1000000] [--models nbody,robot]``.

For each number of cards: ``qdrun up`` sees so many (``CUDA_VISIBLE_DEVICES``), one small run compiles, and one ``qdrun submit`` is timed
from the command to the table; then ``qdrun down``. The rows of all numbers of cards are compared. With ``--kill``, a worker dies by SIGKILL
in the middle of a run on all cards; then, in a cluster of two raylets that have half of the cards each, a raylet does: every trial must
have one row. ``--backend cpu`` tries everything without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chaos.processes import kill, until
from benchmarks.seconds import phases

ROOT = Path(__file__).parents[1]
COMMAND = "from qdrun.runner.cli.app import main; main()"
BODIES = 32
WARM = 4096
"""Trials of the run that compiles."""
Columns = dict[str, np.ndarray]


def config(model: str, trials: int, backend: str, size: int) -> dict[str, Any]:
    """The config of a sweep. ``size``: steps of a trial; 0: of the usual size."""
    if model == "nbody":
        velocity = (0.3 * np.random.default_rng(0).normal(size=3 * BODIES)).tolist()
        params: dict[str, Any] = {"velocity": velocity, "bodies": BODIES, "steps": size or 300}
        job, wanted, swept = "benchmarks.models.nbody:Nbody", "gravity", {"gravity": {"uniform": [0.5, 2.0]}}
    else:
        params, job = {"steps": size or 64}, "qdrun.jobs.mass_spring:MassSpring"
        wanted, swept = "stiffness", {"stiffness": {"uniform": [300, 3000]}}
    return {
        "version": 1,
        "name": model,
        "job": {"target": job, "params": params},
        "gradients": [wanted],
        "device": {"backend": backend},
        "sweep": {"method": "random", "samples": trials, "params": swept},
        "storage": "runs",
    }  # fmt: skip


class Machine:
    """A folder with everything that Ray and the runner write, and the commands that run there."""

    def __init__(self, folder: Path, devices: str) -> None:
        self.folder = folder
        own = {"XDG_STATE_HOME": f"{folder}/state", "QDRUN_MACHINE_DIR": f"{folder}/machine"}
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self.environment = os.environ | own | {"PYTHONPATH": paths} | ({"CUDA_VISIBLE_DEVICES": devices} if devices else {})
        os.makedirs(f"{folder}/machine", mode=0o700, exist_ok=True)

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", COMMAND, *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, *words: str) -> str:
        """Raises ``SystemExit``, with what the command has said, where it fails."""
        process = self.start(*words)
        said, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"qdrun {' '.join(words)} failed ({process.returncode}):\n{said}")
        return said

    def submit(
        self, given: Mapping[str, Any], *words: str, meanwhile: Callable[[Path], None] | None = None
    ) -> tuple[dict[str, float], Columns]:
        """The seconds of each phase of a run, and its rows in the order of the trials. ``meanwhile``: gets its folder while it runs."""
        before = set(self.runs())
        (self.folder / "c.yaml").write_text(json.dumps(given))
        begun = time.time()
        process = self.start("submit", "c.yaml", "--quiet", *words)
        if meanwhile is not None:
            until(lambda: set(self.runs()) - before, 60, 0.01)
            meanwhile(*set(self.runs()) - before)
        said, _ = process.communicate()
        ended = time.time()
        if process.returncode:
            raise SystemExit(f"submit failed ({process.returncode}):\n{said[-4000:]}")
        (run,) = set(self.runs()) - before
        return phases(run, begun, ended) | {"all": ended - begun}, rows(run, given)

    def runs(self) -> list[Path]:
        return list((self.folder / "runs").glob("*"))


def rows(run: Path, given: Mapping[str, Any]) -> Columns:
    """Loss and gradients of each trial.

    Raises:
        ValueError: a trial has no row, or two, or none that is complete.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(run / "results.parquet").sort_by("trial")
    trials = table.column("trial").to_pylist()
    if len(set(trials)) != len(trials) or len(trials) != given["sweep"]["samples"]:
        raise ValueError(f"{len(trials)} rows, {len(set(trials))} trials, of {given['sweep']['samples']}")
    names = ["loss", *(name for name in table.column_names if name.startswith("grad"))]
    found = {name: np.asarray(table.column(name).to_numpy()) for name in names}
    if not all(np.isfinite(column.astype(float)).all() for column in found.values()):
        raise ValueError("a row has no loss or no gradient")
    return found


def same_bits(a: Columns, b: Columns) -> bool:
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


@contextmanager
def machine(devices: str) -> Iterator[Machine]:
    """With Ray up."""
    with tempfile.TemporaryDirectory(prefix="cards-", dir="/tmp") as folder:
        made = Machine(Path(folder), devices)
        made.run("up")
        try:
            yield made
        finally:
            made.run("down")


def scale(model: str, args: argparse.Namespace) -> Columns:
    """Time the sweep on each number of cards, and print a line for each; the rows."""
    first: tuple[float, int] | None = None
    kept: Columns = {}
    for cards in map(int, args.cards.split(",")):
        with machine(devices_of(range(cards), args)) as made:
            made.submit(config(model, min(WARM * cards, args.trials), args.backend, args.steps))
            for _ in range(args.rounds):
                seconds, found = made.submit(config(model, args.trials, args.backend, args.steps))
                kept = kept or found
                bits = "same bits" if same_bits(kept, found) else "OTHER BITS"
                first = first or (seconds["all"], cards)
                efficiency = first[0] * first[1] / (seconds["all"] * cards)
                parts = "  ".join(f"{name} {value:.2f}" for name, value in seconds.items())
                print(
                    f"{model:6} {args.trials:,} trials, {cards} cards: {parts}   {bits}, efficiency {efficiency:.3f}",
                    flush=True,
                )
    return kept


def devices_of(numbers: range, args: argparse.Namespace) -> str:
    return "" if args.backend == "cpu" else ",".join(map(str, numbers))


def shake(model: str, args: argparse.Namespace, kept: Columns) -> None:
    """Kill a worker, then a raylet, in the middle of a run."""
    most = max(map(int, args.cards.split(",")))
    given = config(model, args.trials, args.backend, args.steps)

    def kill_one(pids: Callable[[Path], list[int]]) -> Callable[[Path], None]:
        def kill_when_some_rows_are_there(run: Path) -> None:
            until(lambda: workers(run), 120, 0.02)
            print(f"killed: {[pid for pid in pids(run)[:1] if kill(pid)]}", flush=True)

        return kill_when_some_rows_are_there

    with machine(devices_of(range(most), args)) as made:
        made.submit(config(model, min(WARM * most, args.trials), args.backend, args.steps))
        seconds, found = made.submit(given, meanwhile=kill_one(workers))
        tell("a worker is killed", model, seconds, found, kept)
    if most > 1:
        with two_raylets(most, args) as (made, address, raylet):
            seconds, found = made.submit(given, "--address", address, meanwhile=kill_one(lambda _: [raylet]))
            tell("one of two raylets is killed", model, seconds, found, kept)


def journal(run: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted((run / "events").glob("*")))


def workers(run: Path) -> list[int]:
    """The processes that rows of a run have come from."""
    lines = [json.loads(line) for line in journal(run).splitlines() if '"rows"' in line or '"ended"' in line]
    return sorted({int(line["pid"]) for line in lines if "pid" in line})


def tell(what: str, model: str, seconds: Mapping[str, float], found: Columns, kept: Columns) -> None:
    bits = "same bits" if same_bits(kept, found) else "OTHER BITS"
    print(f"{model:6} {what}: {seconds['all']:.2f} s, a row for each of {len(found['loss']):,} trials, {bits}", flush=True)


@contextmanager
def two_raylets(cards: int, args: argparse.Namespace) -> Iterator[tuple[Machine, str, int]]:
    """A cluster of a head without devices and two nodes with half of the cards each; its address, and the raylet of a node."""
    from benchmarks.chaos.cluster import FAST, environment

    with tempfile.TemporaryDirectory(prefix="cards-", dir="/tmp") as folder:
        os.environ.update(environment(folder))
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "_system_config": FAST}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        nodes = []
        for half in (range(cards // 2), range(cards // 2, cards)):
            seen = devices_of(half, args)
            os.environ |= {"CUDA_VISIBLE_DEVICES": seen} if seen else {}
            nodes.append(cluster.add_node(num_cpus=max(2, len(half)), num_gpus=len(half) if seen else 0))
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        made = Machine(Path(folder), "")
        try:
            yield made, cluster.address, nodes[1].all_processes["raylet"][0].process.pid
        finally:
            cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cards", description=__doc__)
    parser.add_argument("--cards", default="1,2,4")
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--models", default="nbody,robot")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--kill", action="store_true")
    args = parser.parse_args()
    for model in args.models.split(","):
        kept = scale(model, args)
        if args.kill:
            shake(model, args, kept)


if __name__ == "__main__":
    main()
