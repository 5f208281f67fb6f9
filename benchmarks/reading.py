"""What reading the folder of a run takes: each reader in its own process, seconds of its call and the growth of its peak memory.

``python -m benchmarks.reading [--rows 100000] [--folder DIR] [--only NAME] [--alone]``

The run is that of ``benchmarks.results``: batches of 256, two gradients, an output. ``--alone``: each trial has lines of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from qdrun.runner.store.attempts import Attempt, ended, started
from qdrun.runner.store.follower import EVENTS
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.store.summary import SUMMARY

from .results import make

READERS = {
    "status": "from qdrun.runner.store.status import status; act = lambda: status(folder)",
    "watch: first look": "from qdrun.runner.observe.view import view_of; act = lambda: view_of(folder)",
    "run.arrow": "from qdrun.runner.api import Results; import pyarrow; act = lambda: Results(folder).arrow",
    "run.rows": "from qdrun.runner.api import Results; act = lambda: Results(folder).rows",
    "resume: what it decides": "from qdrun.runner.engine.resume import look; act = lambda: look(folder)",
    "write_table": "from qdrun.runner.observe.table import write_table; import pyarrow; act = lambda: write_table(folder)",
    "run.arrow, after its end": "from qdrun.runner.api import Results; import pyarrow.parquet; act = lambda: Results(folder).arrow",
}
CHILD = """
import sys, time
from qdrun.runner.store.layout import RunFolder
folder = RunFolder(sys.argv[1])
{reader}
peak = lambda: int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) / 1024
before, begin, cpu = peak(), time.perf_counter(), time.process_time()
act()
print(time.perf_counter() - begin, time.process_time() - cpu, peak() - before)
"""


def make_alone(where: str, count: int) -> RunFolder:
    """The same run with a line for the start and for the end of each trial, in rounds of 64."""
    folder = make(where, count)
    for name in folder.files.names(EVENTS):
        folder.files.remove(f"{EVENTS}/{name}")
    record = {"status": "done", "loss": 0.5, "gradients": {"x": [0.1, 0.2]}, "seconds": 0.25, "planned_bytes": 164320}
    names = folder.trial_ids()
    with Journal(folder) as journal:
        for first in range(0, count, 64):
            attempts = [Attempt(name, 1, journal.owner.number) for name in names[first : first + 64]]
            started(journal, [(attempt, {"device": "cpu"}) for attempt in attempts])
            ended(journal, [(attempt, record | {"loss": float(k)}) for k, attempt in enumerate(attempts)])
        journal.write("finished", sync=True, state="done")
    return folder


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--folder", help="where the run is made, and kept; one that is there is read")
    parser.add_argument("--only", help="the reader of this name alone")
    parser.add_argument("--alone", action="store_true", help="each trial has lines of its own")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        there = [path for path in Path(args.folder or temporary).glob("*/run.json")]
        made = (make_alone if args.alone else make)(args.folder or temporary, args.rows) if not there else None
        folder = made or RunFolder(there[0].parent)
        if folder.files.exists(SUMMARY) and args.only is None:
            folder.files.remove(SUMMARY)  # as while the run goes on: what it says is read from the journal
        sizes = folder.files.sizes(EVENTS), {"trials.jsonl": len(folder.files.read("trials.jsonl"))}
        print(f"journal {sum(sizes[0].values()) / 2**20:.1f} MiB, trials {sizes[1]['trials.jsonl'] / 2**20:.1f} MiB")
        for name, reader in READERS.items():
            if args.only in (None, name):
                words = [sys.executable, "-c", CHILD.format(reader=reader), folder.uri]
                wall, cpu, grown = map(float, subprocess.run(words, capture_output=True, check=True, text=True).stdout.split())
                print(f"{name:26} {wall:7.2f} s, {cpu:7.2f} s on the processor, {grown:7.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
