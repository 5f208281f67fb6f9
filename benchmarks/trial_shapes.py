"""How the trials of a batch lie on a GPU, by measurement.

``python -m benchmarks.trial_shapes --only heat2d,nbody --batches 64,1024`` runs each model of ``benchmarks.models`` with choices of the
threads of a trial (lanes), the threads of a multiprocessor that the code leaves registers for (resident), and the trials of a group in
memory (width), each in a process of its own, and prints milliseconds of the recorded graph alone; then the best choice of each model and
batch beside the one that the program makes, as a ratio. ``runtime.gpu.trial_graphs`` and ``ir.trials`` have their constants from it.
``--jobs 1`` gives one process the card: others that compile or copy disturb it.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import NAMES

ROUNDS, LONGEST_S = 5, 4.0


@dataclass(frozen=True)
class Choice:
    """One way to lay out a batch; zeros: what the program chooses."""

    model: str
    batch: int
    lanes: int = 0
    resident: int = 0
    width: int = 0


def choices(names: list[str], batches: list[int]) -> Iterator[Choice]:
    """The program's own choice of each model first, then others, in rounds over the models, so that any beginning is a fair sample."""
    pairs = [(name, batch) for batch in batches for name in names]
    yield from (Choice(*pair) for pair in pairs)
    for resident in (1024, 512):
        for lanes, width in (
            (1, 32),
            (32, 1),
            (128, 1),
            (16, 4),
            (512, 1),
            (4, 32),
            (16, 1),
            (4, 4),
            (1, 4),
            (32, 4),
            (256, 1),
        ):
            for name, batch in pairs:
                if 4096 <= batch * lanes <= 1 << 19 and (lanes <= 1024 // width or width == 1):
                    yield Choice(name, batch, lanes, resident, width)


def run_one(choice: Choice, lock: Path, arch: str, device: str | None) -> dict[str, Any]:
    """Measure one choice in this process: milliseconds of the graph, the sum of losses, and bytes of a thread outside of registers."""
    from qdrun.compiler.codegen.gpu.trials.task import TrialShape
    from qdrun.compiler.ir import trials
    from qdrun.compiler.runtime.gpu import trial_graphs
    from qdrun.compiler.tape import rows
    from qdrun.jobs.core.batch import BatchSession

    shape_of = trial_graphs.shape_of
    chosen: list[TrialShape] = []

    def shape(layout: Any, tasks: Any, asked: int, room: Any) -> TrialShape:
        chosen[:] = [shape_of(layout, tasks, choice.lanes or asked, room)]
        return chosen[0]

    trial_graphs.shape_of = shape
    if choice.width:
        trials.GPU_WIDTH, trials.GPU_WIDE = choice.width, 1 << 60
    if choice.lanes:
        rows.stack_rows, trial_graphs.stack_lanes = (lambda count: count * choice.lanes), (lambda count: choice.lanes)
    if choice.resident:
        compiled = trial_graphs.TrialGraphs._compiled
        trial_graphs.TrialGraphs._compiled = lambda self, steps, of: compiled(self, steps, of, (choice.resident,))
    model = importlib.import_module(f"benchmarks.models.{choice.model}").MODEL
    columns = model.sample(np.random.default_rng(choice.batch), choice.batch, model.job.Params())
    begin = time.perf_counter()
    with BatchSession.open(model.job, model.rows(columns)[0], choice.batch, backend=arch, device=device) as session:
        outcomes = [session.run_columns(columns) for _ in range(2)]
        job: Any = session.job
        (recorded,) = job._recorded.values()
        if recorded._graph is None:
            raise RuntimeError(f"no graph: {recorded.why}")
        ready, spent = time.perf_counter() - begin, []
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            while len(spent) < 2 or (len(spent) < ROUNDS and sum(spent) < LONGEST_S):
                begin = time.perf_counter()
                recorded._graph()
                job.program.synchronize()
                spent.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            outcomes.append(session.run_columns(columns))
            whole = time.perf_counter() - begin
        layout = job.program.batch.layout
    losses = [float(np.sum(o.losses)) for o in outcomes]
    return {
        "ms": 1e3 * min(spent), "columns_ms": 1e3 * whole, "ready_s": round(ready, 2), "loss": losses[-1],
        "shape": [chosen[0].lanes, chosen[0].block, chosen[0].resident, layout.width] if chosen else None,
    }  # fmt: skip


def started(choice: Choice, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one choice in another process."""
    if time.monotonic() > args.until:
        return {"error": "no time was left"}
    options = [f"--{name}={getattr(args, name)}" for name in ("arch", "device", "lock") if getattr(args, name)]
    command = [sys.executable, "-m", "benchmarks.trial_shapes", "--one", json.dumps(asdict(choice)), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=args.longest)
    except subprocess.TimeoutExpired:
        return {"error": f"longer than {args.longest} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"error": (done.stderr.strip().splitlines() or ["nothing was said"])[-1][:300]}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trial_shapes", description=__doc__)
    parser.add_argument("--arch", default="cuda")
    parser.add_argument("--device", default="")
    parser.add_argument("--batches", default="64,1024,16384")
    parser.add_argument("--only", default="", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--seconds", type=float, default=480.0, help="start no process after so many seconds")
    parser.add_argument("--longest", type=float, default=120.0, help="seconds of one process")
    parser.add_argument("--out", type=Path, help="a file for all figures, as lines of JSON")
    parser.add_argument("--lock", default="/tmp/qdrun-trial-shapes.lock")
    parser.add_argument("--own", action="store_true", help="measure what the program chooses, and nothing else")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.until = time.monotonic() + args.seconds
    return args


def main() -> None:
    args = arguments()
    if args.one:
        print(json.dumps(run_one(Choice(**json.loads(args.one)), Path(args.lock), args.arch, args.device or None)), flush=True)
        return
    wanted = list(choices(args.only.split(",") if args.only else list(NAMES), [int(b) for b in args.batches.split(",")]))
    wanted = [c for c in wanted if not (args.own and c.lanes)]
    found: dict[Choice, dict[str, Any]] = {}
    with ThreadPoolExecutor(args.jobs) as pool:
        for choice, result in zip(wanted, pool.map(lambda c: started(c, args), wanted), strict=True):
            found[choice] = result
            line = json.dumps(asdict(choice) | result)
            print(line, flush=True)
            if args.out:
                with open(args.out, "a") as file:
                    file.write(line + "\n")
    print_summary(found)


def print_summary(found: dict[Choice, dict[str, Any]]) -> None:
    """The program's choice beside the best one, and the worst ratio of the two."""
    print("\n| model | B | chosen: lanes, block, resident, width | ms | best | ms | ratio |\n" + "| --- " * 7 + "|")
    worst = 0.0
    for own in (c for c in found if not c.lanes):
        alike = {c: r for c, r in found.items() if (c.model, c.batch) == (own.model, own.batch) and "ms" in r}
        if not alike or "ms" not in found[own]:
            print(f"| {own.model} | {own.batch:,} | {found[own].get('error')} |")
            continue
        best = min(alike, key=lambda c: alike[c]["ms"])
        ratio = found[own]["ms"] / alike[best]["ms"]
        worst = max(worst, ratio)
        shapes = [" ".join(map(str, alike[c]["shape"])) for c in (own, best)]
        print(
            f"| {own.model} | {own.batch:,} | {shapes[0]} | {found[own]['ms']:.2f} | {shapes[1]} | {alike[best]['ms']:.2f} | {ratio:.2f} |"
        )
        off = {c: r["loss"] for c, r in alike.items() if not math.isclose(r["loss"], found[own]["loss"], rel_tol=1e-9)}
        if off:
            print(f"WRONG: {own.model}, B = {own.batch}: losses differ: {found[own]['loss']} and {off}")
    print(f"WORST RATIO of a choice to the best one: {worst:.2f}")


if __name__ == "__main__":
    main()
