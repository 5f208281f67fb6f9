"""Where the seconds of ``qdrun submit`` go, from the command to its first row, its last row and its end: a table, and a picture.

python -m benchmarks.seconds [--trials 24 10000 1000000] [--backend cpu] [--rounds 3] [--before FOLDER] [--svg seconds.svg]

``--before``: a folder with an older copy of the package as ``qdrun``; both run alternately, and the figures of each are the medians of its
rounds. The job is the robot of ``qdrun.jobs.mass_spring`` in few steps, so that little of the time is its own. The phases are told by the
journal and by the command's own exit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json

CONFIG = """version: 1
name: seconds
job: {{target: "qdrun.jobs.mass_spring:MassSpring", params: {{steps: 16}}}}
gradients: [stiffness]
device: {{backend: {backend}}}
sweep:
  method: random
  samples: {trials}
  params:
    stiffness: {{uniform: [300, 3000]}}
storage: runs
"""
COMMAND = "from qdrun.runner.cli.app import main; main()"
PHASES = {
    "read": "Python starts, imports, reads the config and writes the run's folder",
    "ready": "plans are made and Ray starts",
    "worker": "a worker starts, compiles and runs its first batch",
    "trials": "from the first row to the last",
    "table": "the table is written",
    "exit": "Ray and Python end",
}
COLORS = ("#4c78a8", "#f58518", "#e45756", "#54a24b", "#b279a2", "#9d9d9d")
ROW, BAR, LEFT, WIDTH = 34, 18, 150, 820


@dataclass(frozen=True)
class Case:
    """One package at one number of trials: where it lies (empty: this one), and what it is called."""

    name: str
    package: str
    trials: int


REFUSED = 2
"""The exit code for a config with more trials than a version takes."""


def measured(case: Case, backend: str) -> dict[str, float] | None:
    """The seconds of each phase of one run. None: this version refuses so many trials."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "c.yaml").write_text(CONFIG.format(backend=backend, trials=case.trials))
        own = {"XDG_STATE_HOME": f"{folder}/state", "QDRUN_MACHINE_DIR": f"{folder}/machine"}
        own |= {"PYTHONPATH": case.package} if case.package else {}
        begun = time.time()
        words = [sys.executable, "-c", COMMAND, "submit", "c.yaml", "--quiet"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=os.environ | own)
        ended = time.time()
        if done.returncode == REFUSED and case.package:
            return None
        if done.returncode:
            raise SystemExit(f"{case.name}, {case.trials} trials: submit failed\n{done.stdout}\n{done.stderr}")
        (run,) = Path(folder, "runs").iterdir()
        return phases(run, begun, ended)


def phases(run: Path, begun: float, ended: float) -> dict[str, float]:
    """The seconds of each phase, by the times of a run's journal."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for path in sorted((run / "events").iterdir()):
        for line in path.read_bytes().splitlines():
            event = from_json(line)
            kind = "row" if event["event"] in ("rows", "ended") else event["event"]
            first.setdefault(kind, event["t"])
            last[kind] = event["t"]
    stops = [
        begun,
        first["submitted"],
        first["ray_ready"],
        first["row"],
        last["row"],
        (run / "results.parquet").stat().st_mtime,
    ]
    return dict(zip(PHASES, [b - a for a, b in zip(stops, [*stops[1:], ended], strict=True)], strict=True))


def picture(found: Mapping[Case, Mapping[str, float]]) -> str:
    """A bar for each case, a colour for each phase; bars of equal numbers of trials have one scale."""
    most = {
        case.trials: max(sum(one.values()) for other, one in found.items() if other.trials == case.trials) for case in found
    }
    out, height = [], ROW * (len(found) + len(PHASES)) + 20
    for row, (case, seconds) in enumerate(found.items()):
        x, y, scale = float(LEFT), row * ROW + 10, (WIDTH - LEFT - 60) / most[case.trials]
        out.append(f'<text x="4" y="{y + 14}">{case.trials:,} {case.name}</text>')
        for color, value in zip(COLORS, seconds.values(), strict=True):
            out.append(f'<rect x="{x:.1f}" y="{y}" width="{max(0.0, value * scale):.1f}" height="{BAR}" fill="{color}"/>')
            x += max(0.0, value * scale)
        out.append(f'<text x="{x + 6:.1f}" y="{y + 14}">{sum(seconds.values()):.1f} s</text>')
    for row, (color, text) in enumerate(zip(COLORS, PHASES.values(), strict=True)):
        y = (len(found) + row) * ROW + 20
        out.append(
            f'<rect x="{LEFT}" y="{y}" width="14" height="14" fill="{color}"/><text x="{LEFT + 22}" y="{y + 12}">{text}</text>'
        )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="13">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *out, "</svg>"]) + "\n"


def table(found: Mapping[Case, Mapping[str, float]]) -> str:
    """The seconds as a table of Markdown."""
    lines = ["| trials | | " + " | ".join(PHASES) + " | all |", "| --- | --- |" + " --- |" * (len(PHASES) + 1)]
    for case, seconds in found.items():
        values = " | ".join(f"{value:.2f}" for value in seconds.values())
        lines.append(f"| {case.trials:,} | {case.name} | {values} | {sum(seconds.values()):.2f} |")
    return "\n".join(lines)


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each phase."""
    return {name: statistics.median(run[name] for run in runs) for name in PHASES}


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[24, 10_000, 1_000_000])
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", default="")
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    names = [("before", str(Path(options.before).resolve()))] if options.before else []
    cases = [Case(name, package, trials) for trials in options.trials for name, package in [*names, ("now", "")]]
    runs: dict[Case, list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(options.rounds):
        for case in list(runs):
            if (seconds := measured(case, options.backend)) is not None:
                runs[case].append(seconds)
            else:
                del runs[case]
                print(f"{case.name} refuses {case.trials:,} trials, and is left out there")
    found = {case: medians(own) for case, own in runs.items()}
    print(table(found))
    if options.svg:
        options.svg.write_text(picture(found))


if __name__ == "__main__":
    main()
