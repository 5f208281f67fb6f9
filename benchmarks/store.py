"""What one finished trial costs in the run folder, beside SQLite (WAL) and a file for each trial; and what reading a run again costs.

python -m benchmarks.store [--trials 1000] [--numbers 1,128,1024,8192,65536] [--replay 20000] [--folder DIR] [--json FILE]

Each way writes the same record with a gradient of so many f64. ``line``: our journal; ``file``: our safetensors file, result.json and
the line (what ``pack`` does beyond 64 KiB); ``sqlite``: a transaction each, WAL, synchronous=NORMAL; ``files``: JSON to a partial file,
then rename; ``files+fsync``: the same, durable. Ours and SQLite sync at most twice a second or at checkpoints; ``file`` and
``files+fsync`` sync every record. Microseconds a record (mean), how many of them on the processor, and bytes on the disk a record.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from qdrun.runner.observe.table import rows, write_parquet
from qdrun.runner.store import attempts
from qdrun.runner.store.attempts import Attempt, ended, pack, started
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder, write_run
from qdrun.runner.store.replay import replay
from qdrun.runner.study.trials import Trial, trial_id

Write = Callable[[str, dict[str, Any]], None]
RESOLVED = {"name": "store", "job": {"target": "m:J", "params": {}}, "gradients": ["x"]}


def make_run(where: str, count: int) -> tuple[RunFolder, list[str]]:
    """A run of ``count`` trials, and their ids."""
    made = []
    for index in range(count):
        params = {"x": float(index)}
        identity = trial_id(params, 0)
        made.append(Trial(id=identity, index=index, replicate=0, seed=index, swept=params, params=params))
    return write_run(where, "store", "", RESOLVED, made, {}), [trial.id for trial in made]


@contextmanager
def ours(folder: str, count: int, inline: int) -> Iterator[Write]:
    run, _ = make_run(folder, count)
    before, attempts.INLINE_BYTES = attempts.INLINE_BYTES, inline
    with Journal(run) as journal:

        def write(trial: str, record: dict[str, Any]) -> None:
            attempt = Attempt(trial, 1)
            started(journal, [(attempt, {"device": "cpu"})])
            ended(journal, [(attempt, pack(run, attempt, record))])

        yield write
    attempts.INLINE_BYTES = before


@contextmanager
def sqlite(folder: str) -> Iterator[Write]:
    with sqlite3.connect(Path(folder) / "run.db", isolation_level=None) as base:
        base.execute("pragma journal_mode=wal")
        base.execute("pragma synchronous=normal")
        base.execute("create table started (trial text, t real)")
        base.execute("create table ended (trial text primary key, record text, x blob)")

        def write(trial: str, record: dict[str, Any]) -> None:
            base.execute("insert into started values (?, ?)", (trial, time.time()))
            rest = json.dumps({name: value for name, value in record.items() if name != "gradients"})
            base.execute("insert into ended values (?, ?, ?)", (trial, rest, record["gradients"]["x"].tobytes()))

        yield write
    base.close()


@contextmanager
def files(folder: str, durable: bool) -> Iterator[Write]:
    def write(trial: str, record: dict[str, Any]) -> None:
        partial, target = os.path.join(folder, f".{trial}"), os.path.join(folder, f"{trial}.json")
        plain = record | {"gradients": {"x": record["gradients"]["x"].tolist()}}
        with open(partial, "w", encoding="ascii") as stream:
            stream.write(json.dumps(plain))
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(partial, target)

    yield write


def size_of(folder: str) -> int:
    return sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("*") if path.is_file())


def measure(way: Callable[[str], Any], numbers: int, count: int, where: str | None) -> tuple[float, float, int]:
    """Microseconds, those of them on the processor, and bytes on the disk for each of ``count`` records."""
    gradient = np.random.default_rng(7).standard_normal(numbers)
    names = [f"{index:012x}" for index in range(count)]
    kinds = {"planned": {"state": 84032, "gradients": 83656, "adstack": 64}, "used": {"state": 84032, "gradients": 83656}}
    record = {"status": "done", "loss": 0.5, "gradients": {"x": gradient}, "outputs": {"height": 1.5}, "seconds": 0.4, **kinds}
    with tempfile.TemporaryDirectory(dir=where) as folder:
        with way(folder) as write:
            before = size_of(folder)
            begin, busy = time.perf_counter(), time.process_time()
            for name in names:
                write(name, record)
            spent, busy = time.perf_counter() - begin, time.process_time() - busy
        return 1e6 * spent / count, 1e6 * busy / count, (size_of(folder) - before) // count


def measure_replay(count: int, where: str | None) -> dict[str, float]:
    """Seconds to write and to read a run of ``count`` trials: its state, its rows, its table."""
    with tempfile.TemporaryDirectory(dir=where) as place:
        run, names = make_run(place, count)
        record = {"status": "done", "loss": 0.5, "gradients": {"x": [0.1, 0.2, 0.3]}, "outputs": {}, "seconds": 0.4}
        spent = {}

        def clock(what: str, act: Callable[[], Any]) -> None:
            begin = time.perf_counter()
            act()
            spent[what] = time.perf_counter() - begin

        with Journal(run) as journal:

            def batches() -> None:
                for first in range(0, count, 64):
                    batch = [Attempt(name, 1) for name in names[first : first + 64]]
                    started(journal, [(attempt, {"device": "cpu"}) for attempt in batch])
                    ended(journal, [(attempt, record) for attempt in batch])

            clock("written in batches of 64", batches)
        clock("replayed", lambda: replay(run))
        clock("rows", lambda: rows(run))
        clock("parquet", lambda: write_parquet(run))
        return spent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--numbers", default="1,128,1024,8192,65536")
    parser.add_argument("--replay", type=int, default=20_000)
    parser.add_argument("--folder", help="a folder on the disk to be measured; the temporary one by default")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    out: dict[str, Any] = {"records": [], "replay": {}}
    print(f"{'numbers':>8} {'way':12} {'us a record':>12} {'on the CPU':>11} {'bytes a record':>15}")
    for numbers in map(int, options.numbers.split(",")):
        count = max(20, min(options.trials, 20_000_000 // (numbers * 8)))
        ways: dict[str, Callable[[str], Any]] = {
            "line": lambda folder, n=count: ours(folder, n, 1 << 40),
            "file": lambda folder, n=count: ours(folder, n, -1),
            "sqlite": sqlite,
            "files": lambda folder: files(folder, durable=False),
            "files+fsync": lambda folder: files(folder, durable=True),
        }
        for name, way in ways.items():
            micros, busy, size = measure(way, numbers, count, options.folder)
            out["records"].append({"numbers": numbers, "way": name, "us": micros, "cpu_us": busy, "bytes": size})
            print(f"{numbers:8} {name:12} {micros:12.1f} {busy:11.1f} {size:15,}", flush=True)
    out["replay"] = measure_replay(options.replay, options.folder)
    print(f"{options.replay:,} trials: " + ", ".join(f"{what} {spent:.2f} s" for what, spent in out["replay"].items()))
    if options.json:
        options.json.write_text(json.dumps(out, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
