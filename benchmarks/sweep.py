"""A mixed sweep on one card: three simulations, 300 trials with gradients, by the runner and in three other ways.

    python -m benchmarks.sweep --out FOLDER --mode ours|one|process|fractions|report [--trials 300] [--budget 12GB] [--lanes 20]
    python -m benchmarks.sweep --out FOLDER --mode ours --size small --backend cpu

ours: one `qdrun submit` with a ``memory_budget`` for each trial. one: one trial at a time, in one process, without a budget. process: a
process for each trial, as many at once as their bytes without a budget fit the card. fractions: Ray tasks, each with its bytes without a
budget over those of the card as ``num_gpus``. All run the same trials in the same order; what a mode has not run when ``--limit`` seconds
are over is scaled, and said so. Each mode writes FOLDER/<mode>.json, FOLDER/<mode>.trials.json and FOLDER/<mode>.memory.csv; ``report``
puts them side by side. ``--size small --backend cuda --device emulated`` tries everything without a card.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.sweep_card import sampled, summary, total_bytes

ROOT = Path(__file__).parents[1]
CONTEXT_BYTES = 576 << 20
"""Of a process on the card, where modes count bytes by hand."""
USABLE = 0.95
"""Of the card, for the modes that count bytes by hand: the runner leaves as much alone."""
SHAPES: dict[str, list[tuple[str, int, int, tuple[int, ...]]]] = {
    "full": [
        ("block", 262_144, 512, (32, 64, 128, 256, 384, 560)),
        ("robots", 2048, 2560, (256, 512, 1024, 2048, 4096)),
        ("swing", 65_536, 1, (65_536, 131_072, 262_144)),
        ("swing", 16_384, 1, (1_048_576, 1_572_864, 2_097_152)),
    ],
    "small": [
        ("block", 64, 16, (4, 8, 16)),
        ("robots", 4, 4, (8, 16, 32)),
        ("swing", 32, 1, (64, 128)),
        ("swing", 8, 1, (256, 512)),
    ],
}
"""Scene, size, detail, and steps to choose from."""
STIFFNESS = {"block": (20.0, 80.0), "robots": (20.0, 200.0), "swing": (20.0, 200.0)}
Trial = dict[str, Any]


def trials_of(count: int, size: str) -> list[Trial]:
    """A third of each scene, in an order that any beginning is a fair sample of."""
    scenes = {
        scene: [(n, detail, s) for name, n, detail, steps in SHAPES[size] if name == scene for s in steps]
        for scene in STIFFNESS
    }
    rng = random.Random(11)
    out = []
    for number in range(count):
        scene = list(STIFFNESS)[number % 3]
        choices = scenes[scene]
        n, detail, steps = choices[number // 3 % len(choices)]
        low, high = STIFFNESS[scene]
        stiffness = round(low * (high / low) ** rng.random(), 4)
        out.append({"scene": scene, "size": n, "detail": detail, "steps": steps, "stiffness": stiffness})
    rng.shuffle(out)
    return out


def run_one(trial: Trial, backend: str, device: str | None) -> dict[str, Any]:
    """Run a trial here, without a budget; never raises."""
    from benchmarks.sweep_jobs import Mixed, MixedParams
    from qdrun.jobs.base import execute

    started, row = time.time(), {"scene": trial["scene"], "steps": trial["steps"], "pid": os.getpid()}
    try:
        job = Mixed(MixedParams.model_validate(trial))
        done = execute(job, backend=backend, device=device, threads=1, memory_limit_bytes=None)
        finite = math.isfinite(done.outcome.gradients["stiffness"])  # type: ignore[arg-type]
        row |= {"status": "done" if finite else "not finite", "loss": done.outcome.loss, "parts": done.seconds}
        row |= {"planned_bytes": done.plan.bytes, "used_bytes": done.peak_bytes}
    except Exception as error:
        row |= {
            "status": "out of memory" if isinstance(error, MemoryError) else "failed",
            "error": f"{type(error).__name__}: {error}",
        }
    return row | {"started_t": started, "ended_t": time.time()}


def sizes(trials: Sequence[Trial], asked: argparse.Namespace) -> dict[str, int]:
    """Bytes without a budget by shape; planned once, in a process of its own, and kept in FOLDER/sizes.json."""
    path = asked.out / "sizes.json"
    if not path.is_file():
        command = [sys.executable, "-m", "benchmarks.sweep", "--mode", "sizes", *passed(asked)]
        subprocess.run(command, check=True, timeout=asked.limit)
    return json.loads(path.read_text())


def shape(trial: Trial) -> str:
    """All but the floats."""
    return "{scene} {size} {detail} {steps}".format(**trial)


def write_sizes(trials: Sequence[Trial], asked: argparse.Namespace) -> None:
    """Plan one trial of each shape."""
    from benchmarks.sweep_jobs import Mixed, MixedParams

    found: dict[str, int] = {}
    for trial in trials:
        if shape(trial) not in found:
            with Mixed(MixedParams.model_validate(trial)).opened(backend=asked.backend, device=asked.device, threads=1) as job:
                found[shape(trial)] = job.plan().bytes
    (asked.out / "sizes.json").write_text(json.dumps(found, indent=1))


def passed(asked: argparse.Namespace) -> list[str]:
    """The options that a process of ours gets, too."""
    out = ["--out", str(asked.out), "--trials", str(asked.trials), "--size", asked.size, "--backend", asked.backend]
    return [*out, *(["--device", asked.device] if asked.device else [])]


# ---- the modes: each gives rows and the seconds that it took in all
def ours(trials: Sequence[Trial], asked: argparse.Namespace) -> list[dict[str, Any]]:
    """One run of the runner."""
    config = {
        "version": 1,
        "name": "mixed",
        "job": {"target": f"{ROOT}/benchmarks/sweep_jobs.py:Mixed"},
        "gradients": ["stiffness"],
        "device": {"backend": asked.backend, "threads": 1, "slots": asked.lanes}
        | ({"id": asked.device} if asked.device else {}),
        "sweep": {"method": "list", "trials": list(trials)},
        "storage": str(asked.out / "runs"),
    }
    if asked.budget != "none":
        config["memory_budget"] = int(asked.budget) if asked.budget.isdigit() else asked.budget
    path = asked.out / "mixed.yaml"
    path.write_text(json.dumps(config, indent=1))
    before = set((asked.out / "runs").glob("*"))
    command = [sys.executable, "-c", "from qdrun.runner.cli.app import main; main()", "submit", str(path), "--json"]
    with open(asked.out / "ours.out", "w") as out, open(asked.out / "ours.err", "w") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT)
        try:
            process.wait(asked.limit)
        except subprocess.TimeoutExpired:
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                time.sleep(1.0)
            process.wait(60)
    (folder,) = set((asked.out / "runs").glob("*")) - before
    return rows_of_run(folder)


def rows_of_run(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run in the words of this script."""
    from qdrun.runner.store.layout import RunFolder
    from qdrun.runner.store.replay import replay

    run = RunFolder(str(folder))
    params = {trial.id: trial.params for trial in run.trials()}
    out = []
    for name, state in replay(run).trials.items():
        event = {} if state.entry is None else state.entry.event
        keys = (
            "planned_bytes",
            "used_bytes",
            "claim_bytes",
            "over_claim",
            "started_t",
            "ended_t",
            "lane",
            "pid",
            "parts",
            "failure",
        )
        row: dict[str, Any] = {key: event.get(key) for key in keys}
        tries = Counter(tried.failure for tried in state.attempts if tried.failure)
        status = "out of memory" if event.get("failure") == "out_of_memory" else state.status
        row |= {"status": status, "attempts": len(state.attempts), "retried_for": dict(tries)}
        row |= {
            "scene": params[name]["scene"],
            "steps": params[name]["steps"],
            "error": (event.get("error") or {}).get("message"),
        }
        out.append(row)
    return out


def one(trials: Sequence[Trial], asked: argparse.Namespace) -> list[dict[str, Any]]:
    """One at a time, here."""
    end, rows = time.time() + asked.limit, []
    for trial in trials:
        if time.time() > end:
            break
        rows.append(run_one(trial, asked.backend, asked.device))
    return rows


def process(trials: Sequence[Trial], asked: argparse.Namespace) -> list[dict[str, Any]]:
    """A process for each: the first of those that wait, and fit beside what runs, starts next."""
    need = sizes(trials, asked)
    room = asked.capacity or int(USABLE * (total_bytes() or sum(need.values())))
    command = [sys.executable, "-m", "benchmarks.sweep", "--mode", "trial", *passed(asked), "--trial"]
    waiting, running, rows = list(trials), [], []
    end, held = time.time() + asked.limit, 0
    while (running or waiting) and time.time() < end:
        for trial in [t for t in waiting if held + need[shape(t)] + CONTEXT_BYTES <= room or not running]:
            bytes_ = need[shape(trial)] + CONTEXT_BYTES
            if len(running) < asked.processes and (held + bytes_ <= room or not running):
                waiting.remove(trial)
                held += bytes_
                begun = time.time()
                child = subprocess.Popen(
                    [*command, json.dumps(trial)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
                running.append((child, bytes_, begun, trial))
        time.sleep(0.005)
        for item in [item for item in running if item[0].poll() is not None]:
            running.remove(item)
            child, bytes_, begun, trial = item
            held -= bytes_
            text, errors = child.communicate()
            row = json.loads(text.splitlines()[-1]) if child.returncode == 0 else {"status": "crashed", "error": errors[-500:]}
            rows.append(row | {"scene": trial["scene"], "steps": trial["steps"], "started_t": begun, "ended_t": time.time()})
    for child, *_ in running:  # the time is over
        child.kill()
        child.communicate()
    return rows


def fractions(trials: Sequence[Trial], asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Ray tasks: each is given its part of the card, as a user would write it down, and a process of its own, as is Ray's default."""
    import ray

    need, total = sizes(trials, asked), asked.capacity or total_bytes() or 1 << 30
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_gpus=1, num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    task = ray.remote(num_gpus=1, num_cpus=0.25, max_calls=1, max_retries=0)(run_one)
    try:
        begun = time.time()
        left = {}
        for trial in trials:
            part = min(1.0, math.ceil(100 * (need[shape(trial)] + CONTEXT_BYTES) / total / USABLE) / 100)
            left[task.options(num_gpus=part).remote(trial, asked.backend, asked.device)] = trial
        rows = []
        while left and time.time() < begun + asked.limit:
            done, _ = ray.wait(list(left), num_returns=1, timeout=1.0)
            for ref in done:
                trial = left.pop(ref)
                try:
                    rows.append(ray.get(ref) | {"started_t": begun})  # a process that starts is part of what it costs
                except ray.exceptions.RayError as error:
                    rows.append(
                        {"status": "crashed", "error": str(error)[:500], "scene": trial["scene"], "steps": trial["steps"]}
                    )
                    rows[-1] |= {"started_t": begun, "ended_t": time.time()}
        return rows
    finally:
        ray.shutdown()


MODES: dict[str, Callable[[Sequence[Trial], argparse.Namespace], list[dict[str, Any]]]] = {
    "ours": ours,
    "one": one,
    "process": process,
    "fractions": fractions,
}


# ---- what is said of them
def held_bytes(rows: Iterable[dict[str, Any]], key: str, start_t: float, end_t: float) -> float:
    """The mean of what the rows say they held, over a time."""
    spans = [(row[key], min(row["ended_t"], end_t) - max(row["started_t"], start_t)) for row in rows if row.get(key)]
    return sum(amount * max(0.0, span) for amount, span in spans) / (end_t - start_t)


def figures(mode: str, rows: list[dict[str, Any]], wall_s: float, asked: argparse.Namespace) -> dict[str, Any]:
    """One line of a mode."""
    ran = [row for row in rows if row.get("ended_t")]
    if not ran:
        raise SystemExit(f"{mode}: no trial has run; see what lies in {asked.out}")
    start_t, end_t = min(row["started_t"] for row in ran), max(row["ended_t"] for row in ran)
    statuses = Counter(row["status"] for row in rows)
    makespan = end_t - start_t
    out = {
        "mode": mode,
        "trials": asked.trials,
        "statuses": dict(statuses),
        "wall_s": round(wall_s, 2),
        "makespan_s": round(makespan, 2),
    }
    missing = asked.trials - len(ran)
    if missing:
        out |= {"scaled_from": len(ran)}
        makespan, wall_s = makespan * asked.trials / len(ran), wall_s * asked.trials / len(ran)
    out |= {"whole_makespan_s": round(makespan, 2), "whole_wall_s": round(wall_s, 2)}
    full_t = sorted(row["started_t"] for row in ran)[-1] if mode == "ours" else end_t
    csv = asked.out / f"{mode}.memory.csv"
    out |= {"memory": summary(csv, start_t, end_t), "memory_while_trials_waited": summary(csv, start_t, full_t)}
    if mode == "ours":
        total = total_bytes() or 1
        out |= {
            f"mean_{key}_part": round(held_bytes(ran, f"{key}_bytes", start_t, end_t) / total, 4) for key in ("claim", "used")
        }
        out |= {"lanes": asked.lanes, "budget": asked.budget, "over_claim": sum(bool(row.get("over_claim")) for row in rows)}
        out |= {"retries": dict(sum((Counter(row["retried_for"]) for row in rows), Counter()))}
    ratios = [row["used_bytes"] / row["planned_bytes"] for row in ran if row.get("used_bytes") and row.get("planned_bytes")]
    if ratios:
        out |= {
            "used_of_planned": {
                "least": min(ratios),
                "mean": sum(ratios) / len(ratios),
                "most": max(ratios),
                "rows": len(ratios),
            }
        }
    if mode == "ours":
        out["worker_processes"] = len({row["pid"] for row in ran})
        out["mean_at_once"] = round(sum(row["ended_t"] - row["started_t"] for row in ran) / (end_t - start_t), 2)
    parts: dict[str, list[float]] = {}
    for row in ran:
        for name, seconds in (row.get("parts") or {}).items():
            parts.setdefault(f"{row['scene']} {row['steps']} {name}", []).append(seconds)
    out["median_s"] = {name: round(sorted(values)[len(values) // 2], 4) for name, values in sorted(parts.items())}
    return out


def report(asked: argparse.Namespace) -> None:
    """All modes that there are, and the makespan of each over ours."""
    found = {mode: json.loads(path.read_text()) for mode in MODES if (path := asked.out / f"{mode}.json").is_file()}
    own = found.get("ours")
    for mode, line in found.items():
        times = {}
        if own is not None:
            times = {
                f"{key}_over_ours": round(line[f"whole_{key}_s"] / own[f"whole_{key}_s"], 3) for key in ("makespan", "wall")
            }
        shown = ("whole_makespan_s", "whole_wall_s", "scaled_from", "statuses", "memory")
        print(json.dumps({"mode": mode, **times, **{key: line[key] for key in shown if key in line}}))


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", required=True, choices=(*MODES, "sizes", "trial", "report"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--size", choices=tuple(SHAPES), default="full")
    parser.add_argument("--backend", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--device")
    parser.add_argument("--lanes", type=int, default=20)
    parser.add_argument("--budget", default="12000000000", help="bytes of a trial, auto or none")
    parser.add_argument(
        "--capacity", type=int, help="bytes of the card, for the modes that count by hand; default: what it has"
    )
    parser.add_argument("--processes", type=int, default=64, help="the most at once in the mode process")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds after which a mode starts no more")
    parser.add_argument("--trial", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.out = asked.out.absolute()
    return asked


def main() -> None:
    """See the module."""
    asked = arguments()
    asked.out.mkdir(parents=True, exist_ok=True)
    trials = trials_of(asked.trials, asked.size)
    if asked.mode == "report":
        report(asked)
    elif asked.mode == "sizes":
        write_sizes(trials, asked)
    elif asked.mode == "trial":
        print(json.dumps(run_one(json.loads(asked.trial), asked.backend, asked.device)))
    else:
        if asked.mode in ("process", "fractions"):
            sizes(trials, asked)  # before the clock starts: a user who sizes by hand has them
        with sampled(asked.out / f"{asked.mode}.memory.csv"):
            begun = time.time()
            rows = MODES[asked.mode](trials, asked)
            wall_s = time.time() - begun
        (asked.out / f"{asked.mode}.trials.json").write_text(json.dumps(rows, indent=0))
        line = figures(asked.mode, rows, wall_s, asked)
        (asked.out / f"{asked.mode}.json").write_text(json.dumps(line, indent=1))
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
