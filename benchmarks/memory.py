"""Gradient memory, ours beside quadrants 1.3.3 on the CPU: bytes, times, budgets, what planning costs, and plans against use.

    python -m benchmarks.memory [--json] [--kernels 512] [section ...]

Sections: kernels, levels, jobs, budgets, planning, random. The peer's bytes are those that it reports with QD_DEBUG_ADSTACK=1 in the
same run. Each package runs in processes of its own, one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import memory_jobs
from benchmarks.memory_cases import CASES, PEER_IS_UNSAFE, THREADS
from benchmarks.one import OPTIONS, best, peer_adstack_bytes

Rows = list[dict[str, Any]]


# ---- in a process of its own
def one(package: str, case: str, options: dict[str, Any]) -> dict[str, Any]:
    """Bytes, seconds and the result of one case with one package."""
    lib = importlib.import_module(package)
    with contextlib.redirect_stdout(io.StringIO()):
        lib.init(arch=lib.cpu, cpu_max_num_threads=THREADS, **OPTIONS[package], **options)
    made = CASES[case](lib)
    made.kernel(*made.args)
    made.gradient()
    result = made.result()
    out = {"result": [float(np.abs(result).sum()), *result[:: max(1, result.size // 8)].tolist()]}
    if os.environ.get("QD_DEBUG_ADSTACK"):
        return out
    out["gradient_s"] = best(made.gradient, 3, 1.0)
    if package == "qdrun":
        plan = made.kernel.grad.plan(*made.args)
        rows = max((t.rows for t in plan.tasks), default=0)
        used = lib.current_program().usage().get("adstack", 0)
        out |= {"bytes": plan.bytes, "used": used, "row_bytes": plan.bytes // max(1, rows)}
    return out


def figures(package: str, case: str, options: dict[str, Any] | None = None, log: bool = False) -> tuple[dict[str, Any], str]:
    """``one`` in a process with an empty cache folder, and what the process wrote to stderr."""
    command = [sys.executable, "-m", "benchmarks.memory", "--one", package, case, json.dumps(options or {})]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "QDRUN_CACHE_DIR": cache} | ({"QD_DEBUG_ADSTACK": "1"} if log else {})
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode and not (log and case in PEER_IS_UNSAFE):
        raise SystemExit(f"{package} {case} failed:\n{done.stdout}\n{done.stderr}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}, done.stderr + done.stdout


# ---- sections
def kernels(asked: argparse.Namespace) -> Rows:
    """Bytes and seconds of each kernel of ``memory_cases``, by package."""
    del asked
    out = []
    for case, make in CASES.items():
        ours, _ = figures("qdrun", case)
        _, log = figures("quadrants", case, log=True)
        peer = {} if case in PEER_IS_UNSAFE else figures("quadrants", case)[0]
        row = {"case": case, "what": (make.__doc__ or "").strip(), "ours": ours["bytes"], "used": ours["used"]}
        row |= {"peer": peer_adstack_bytes(log), "ours_s": ours["gradient_s"], "peer_s": peer.get("gradient_s")}
        row["ratio"] = row["ours"] / row["peer"]
        row["same_result"] = bool(peer) and bool(np.allclose(ours["result"], peer["result"], rtol=1e-3, atol=1e-5))
        out.append(row)
    return out


def levels(asked: argparse.Namespace) -> Rows:
    """The sin recurrence of 1,024 steps at each checkpoint level: bytes of a row, seconds relative to level 1."""
    del asked
    _, log = figures("quadrants", "sin_recurrence", log=True)
    peer = peer_adstack_bytes(log) // THREADS
    out: Rows = []
    for level in (1, 2, 3):
        mine, _ = figures("qdrun", "sin_recurrence", {"ad_checkpoint_levels": level})
        first = out[0] if out else mine
        row = {"levels": level, "row_bytes": mine["row_bytes"], "peer_row_bytes": peer, "ratio": mine["row_bytes"] / peer}
        row |= {"gradient_s": mine["gradient_s"], "time": mine["gradient_s"] / first["gradient_s"]}
        out.append(row | {"same_bits": mine["result"] == first["result"], "result": mine["result"]})
    return [{name: x for name, x in row.items() if name != "result"} for row in out]


def jobs(asked: argparse.Namespace) -> Rows:
    """Planned and used bytes of each job, by kind."""
    del asked
    out = []
    for name in memory_jobs.JOBS:
        done = apart("run", name)
        for kind, planned in done["planned"].items():
            used = done["used"].get(kind, 0)
            out.append(
                {"job": name, "kind": kind, "planned": planned, "used": used, "ratio": used / planned if planned else 1.0}
            )
    return out


def budgets(asked: argparse.Namespace) -> Rows:
    """Each job with 100, 50, 25 and 10 % of the bytes that it needs without a budget, on one thread."""
    del asked
    return [
        row | {"fits": row["bytes"] <= (row["budget"] or row["bytes"])}
        for name in memory_jobs.JOBS
        for row in apart("budgets", name)
    ]


def planning(asked: argparse.Namespace) -> Rows:
    """What a plan costs: with inputs that did not change, and for a sweep of 1,000 trials."""
    del asked
    return apart("planning")


def random(asked: argparse.Namespace) -> Rows:
    """Random kernels: allocated bytes against planned ones, and words that were touched against planned ones."""
    return [apart("random", asked.kernels)]


def apart(what: str, *args: Any) -> Any:
    """A function of ``memory_jobs`` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory_jobs", what, json.dumps(args)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "QDRUN_CACHE_DIR": cache}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{what} {args} failed")
    return json.loads(done.stdout.strip().splitlines()[-1])


SECTIONS = {f.__name__: f for f in (kernels, levels, jobs, budgets, planning, random)}


def cell(x: Any) -> str:
    """A figure as text."""
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        return escape("-" if x is None else str(x))
    return f"{x:.4g}" if isinstance(x, float) else f"{x:,}"


def show(report: dict[str, Rows]) -> None:
    """Print every section as a table."""
    for section, rows in report.items():
        table = Table(*rows[0], title=section, title_justify="left")
        for row in rows:
            table.add_row(*map(cell, row.values()))
        Console(width=180).print(table)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", default=list(SECTIONS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kernels", type=int, default=512, help="how many random kernels")
    parser.add_argument("--one", nargs=3, metavar=("PACKAGE", "CASE", "OPTIONS"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(asked.one[0], asked.one[1], json.loads(asked.one[2]))))
        return
    report = {name: SECTIONS[name](asked) for name in asked.sections}
    if asked.json:
        print(json.dumps(report, indent=1))
    else:
        show(report)


if __name__ == "__main__":
    main()
