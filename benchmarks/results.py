"""What `qdrun results` takes for a run of many trials, as a whole process: import, read, print.

``python -m benchmarks.results [--rows 100000] [--repeats 3] [--folder DIR] [--only NAME] [--json FILE]``

A run of so many trials of four parameters, with a loss, two gradients (one of them a vector of eight) and an output is written by the
runner's own journal, as batches write it, with its table. Each command is a process of its own; its output goes to a pipe. Wall seconds
and those of the processor, the best of the repeats. The peer is pandas, which reads the run's Parquet file and prints the same rows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from qdrun.runner.observe.table import write_parquet
from qdrun.runner.store.columns import made, who
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder, write_run
from qdrun.runner.study.trial_list import Trials
from qdrun.runner.study.trials import Trial, trial_id

RESOLVED = {"name": "rows", "job": {"target": "m:J", "params": {}}, "gradients": ["x", "v"]}
BATCH = 256
COMMANDS: dict[str, list[str]] = {
    "results": [],
    "--sort loss": ["--sort", "loss"],
    "--where": ["--where", "mass > 0.5 and loss < 1"],
    "--best loss": ["--best", "loss"],
    "--columns": ["--columns", "trial,mass,loss"],
    "--where --sort --columns": ["--where", "mass > 0.2 and loss < 1", "--sort", "loss", "--columns", "out.*"],
    "--format csv": ["--format", "csv"],
    "--json": ["--json"],
}
PANDAS = "import pandas, sys; print(pandas.read_parquet(sys.argv[1]).sort_values('loss').head(50).to_string())"


def make(where: str, count: int) -> RunFolder:
    """A finished run of ``count`` trials in batches, with its table and its summary."""
    draws = np.random.default_rng(5).uniform(size=(count, 4)).tolist()
    swept = [dict(zip(("mass", "x", "drag", "steps"), [a, b, c, 1 + int(9 * d)], strict=True)) for a, b, c, d in draws]
    trials = [
        Trial(id=trial_id(values, 0), index=k, replicate=0, seed=k, swept=values, params=values)
        for k, values in enumerate(swept)
    ]
    folder, random = write_run(where, "rows", "", RESOLVED, Trials.of(trials), {}), np.random.default_rng(6)
    shared = {"status": "done", "seconds": 0.25, "planned_bytes": 164320, "used_bytes": 164320, "device": "cpu"}
    shared |= {"planned": {"state": 84608, "gradients": 79712}, "used": {"state": 84608, "gradients": 79712}}
    with Journal(folder) as journal:
        journal.write("submitted", sync=True)
        for start in range(0, count, BATCH):
            part = range(start, min(start + BATCH, count))
            size, ones = len(part), (1,) * len(part)
            journal.write("begun", **who(part, ones), device="cpu")
            gradients = {"x": random.normal(size=size), "v": random.normal(size=(size, 8))}
            losses, norms = random.uniform(0, 2, size), np.abs(random.normal(size=size))
            for rows in made(part, ones, shared, losses, norms, gradients, {"reach": random.uniform(size=size)}):
                journal.write("rows", **rows.event())
        journal.write("finished", sync=True, state="done")
    write_parquet(folder)
    return folder


def timed(words: list[str]) -> tuple[float, float, int]:
    """Wall seconds of a process, those of the processor, and the bytes that it has printed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, capture_output=True, check=True)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, len(done.stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where the run is made, and kept; default: a temporary folder")
    parser.add_argument("--only", help="measure the command of this name alone")
    parser.add_argument("--json", help="write the numbers to this file")
    args = parser.parse_args()
    command, found = str(Path(sys.executable).with_name("qdrun")), dict[str, Any]()
    with tempfile.TemporaryDirectory() as temporary:
        begin = time.perf_counter()
        folder = make(args.folder or temporary, args.rows)
        size = os.path.getsize(folder.table)
        print(f"{args.rows:,} rows, a table of {size / 2**20:.1f} MiB, made in {time.perf_counter() - begin:.1f} s")
        ways = {f"qdrun results {name}".replace("results results", "results"): words for name, words in COMMANDS.items()}
        every = {name: [command, "results", folder.uri, *words] for name, words in ways.items()}
        every["pandas, sorted, 50 rows"] = [sys.executable, "-c", PANDAS, folder.table]
        for name, words in every.items():
            if args.only in (None, name):
                wall, cpu, printed = min(timed(words) for _ in range(args.repeats))
                found[name] = {"wall_s": wall, "cpu_s": cpu, "bytes": printed}
                print(f"{name:40} {wall:6.2f} s wall, {cpu:6.2f} s on the processor, {printed:>12,} bytes", flush=True)
    pandas, ours = found.get("pandas, sorted, 50 rows"), found.get("qdrun results --sort loss")
    if pandas and ours:
        print(f"results --sort loss / pandas: {ours['wall_s'] / pandas['wall_s']:.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
