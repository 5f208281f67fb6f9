"""Ours beside quadrants 1.3.3 on the CPU: time, cold compile, launch overhead, adstack bytes. Prints the ratios (ours / peer).

    python -m benchmarks.run [--rounds 2] [case ...]

The two packages alternate, each in processes of its own on the same machine; the best of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES
from benchmarks.one import peer_adstack_bytes

PACKAGES = ("qdrun", "quadrants")


def figures(package: str, case: str) -> dict[str, Any]:
    """One process, with an empty cache folder: what we keep per machine (the thread pool, the launcher) is compiled too."""
    command = [sys.executable, "-m", "benchmarks.one", package, case]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "QDRUN_CACHE_DIR": cache}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{package} {case} failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def peer_bytes(case: str) -> int:
    """What the peer reports with QD_DEBUG_ADSTACK=1, in a process of its own (the report costs time)."""
    command = [sys.executable, "-m", "benchmarks.one", "quadrants", case]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "QD_DEBUG_ADSTACK": "1"})
    return peer_adstack_bytes(done.stderr + done.stdout)


def merge(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The smallest of each time, the last of everything else."""
    out = dict(rounds[-1])
    for name in out:
        if name.endswith("_s"):
            out[name] = min(r[name] for r in rounds)
    return out


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES, "launch"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report: dict[str, Any] = {}
    for case in options.cases:
        rounds = [{p: figures(p, case) for p in PACKAGES} for _ in range(options.rounds)]
        report[case] = {p: merge([r[p] for r in rounds]) for p in PACKAGES}
        if case != "launch":
            report[case]["quadrants"]["adstack_bytes"] = peer_bytes(case)
    if options.json:
        print(json.dumps(report, indent=1))
        return
    table = Table("case", "figure", "ours", "quadrants 1.3.3", "ratio")
    for case, both in report.items():
        for name, mine in both["qdrun"].items():
            theirs = both["quadrants"][name]
            if isinstance(mine, (int, float)) and isinstance(theirs, (int, float)):
                ratio = f"{mine / theirs:.3f}" if theirs else "-"
                table.add_row(case, name, f"{mine:.6g}", f"{theirs:.6g}", ratio)
            else:
                table.add_row(case, name, str(mine), str(theirs), "")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
