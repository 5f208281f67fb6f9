"""The node of a run dies and its head lives: the run ends within seconds, says so, and can be resumed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runner_helpers import write_config

from qdrun.runner.store.layout import RunFolder
from qdrun.runner.store.replay import replay

QDRUN = [sys.executable, "-c", "from qdrun.runner.cli.app import main; main()"]


def child(parent, title):
    """A process below another one, by a part of its command line; None while there is none."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent and title in (stat.parent / "cmdline").read_text():
                return int(stat.parent.name)
        except OSError:
            continue
    return None


def until(happens, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := happens():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:g} s")


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "trials"), [("before the first worker", 4), ("in the middle", 16)])
def test_a_run_whose_node_is_killed_under_a_living_head_ends_as_lost_and_goes_on_later(ray_folder, tmp_path, moment, trials):
    """In the middle: what runs goes on for some seconds, and must not come to the end."""
    config = write_config(tmp_path, params={"sleep_s": 1.5}, sweep={"x": {"linspace": [0, 1, trials]}})
    run = subprocess.Popen(
        [*QDRUN, "submit", config],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
        start_new_session=True,
    )
    try:
        folder = RunFolder(until(lambda: next(tmp_path.glob("runs/*/run.json"), None)).parent)
        raylet = until(lambda: child(run.pid, "raylet/raylet"))
        journal = folder.path / "events" / "000001-000001.jsonl"
        word = '"ray_ready"' if moment == "before the first worker" else '"ended"'
        until(lambda: journal.exists() and word in journal.read_text())
        os.kill(raylet, signal.SIGKILL)
        said = run.communicate(timeout=120)[1]
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 5, said
    assert "this machine's node of the cluster (Ray's raylet) at" in said and "the run is lost" in said, said
    state = replay(folder)
    kept = [name for name, trial in state.trials.items() if trial.status == "done"]
    assert state.finished["state"] == "lost" and len(kept) < trials
    assert all(trial.entry is None for name, trial in state.trials.items() if name not in kept), "no trial was charged"
    done = subprocess.run([*QDRUN, "resume", folder.uri, "--quiet"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert all(trial.status == "done" for trial in replay(folder).trials.values())
