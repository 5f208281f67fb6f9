"""A handful of the runs of ``benchmarks/chaos`` that are killed at random moments, on one small cluster of Ray."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.chaos.processes import SmallDisk
from benchmarks.chaos.scenario import scenario

ROOT = Path(__file__).parents[3]
SEEDS = {"worker": 3, "raylet": 3, "head": 1, "disk": 5, "proxy": 0} | {"guilty.batch": 236, "runner.batch": 27}
"""A few kinds; the command plays all. In batches: a trial that writes out of bounds; one without memory, in a run that is killed."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_runs_lose_nothing_and_leave_nothing():
    """In processes of their own: a Ray that dies must not be that of other tests."""
    kinds = [kind for kind in SEEDS if kind != "disk" or SmallDisk.possible()]
    assert all(scenario(kind, SEEDS[kind]).place == "cluster" for kind in kinds), (
        "one Ray for all: starting others takes too long"
    )
    out = tempfile.mkdtemp(prefix="qc", dir="/tmp")
    command = [
        sys.executable,
        "-m",
        "benchmarks.chaos",
        "--out",
        out,
        "--only",
        ",".join(f"{kind}-{SEEDS[kind]}" for kind in kinds),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=560, check=False, env=os.environ)
    told = Path(out, "verdicts.jsonl")
    assert told.exists(), done.stderr
    verdicts = [json.loads(line) for line in told.read_text().splitlines()]
    assert [(one["kind"], one["ok"], one.get("problems")) for one in verdicts] == [(kind, True, None) for kind in kinds], (
        done.stderr
    )
    assert done.returncode == 0
    assert sum(one["fired"] for one in verdicts) >= len(kinds) - 2, "one has none, and a run may be over before its fault"
    shutil.rmtree(out)  # what went wrong stays for who looks
