"""Runs on a cluster of a head and two nodes: what a worker elsewhere had begun when it died, how many trials run at once, and a node that
is taken away.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

JOB = """
import os
import time

from qdrun.jobs.base import Job, JobParams, Outcome


class Params(JobParams):
    number: int = 0
    marks: str = ""
    crash: int = -1
    sleep_s: float = 0.0


class Marked(Job[Params]):
    needs_compiler = False

    def build(self): ...

    def run(self):
        mark = os.path.join(self.params.marks, str(self.params.number))
        with open(mark, "a", encoding="ascii") as stream:
            stream.write("x")
        if self.params.number == self.params.crash and os.path.getsize(mark) < 3:
            os._exit(9)
        time.sleep(self.params.sleep_s)
        return Outcome(float(self.params.number))
"""
TRIALS, CRASH = 120, 70


def config(folder, name, trials, device, limits, **params):
    marks = folder / f"marks-{name}"
    marks.mkdir()
    data = {
        "version": 1,
        "name": name,
        "job": {"target": "marked.py:Marked", "params": {"marks": str(marks), **params}},
        "device": device,
        "limits": limits,
        "sweep": {"params": {"number": list(range(trials))}},
        "output": str(folder / "runs"),
    }
    (folder / f"{name}.yaml").write_text(json.dumps(data), encoding="utf-8")
    return lambda: {int(path.name): path.stat().st_size for path in marks.iterdir()}


@pytest.mark.slow
def test_workers_of_other_nodes_die_a_run_keeps_to_its_concurrency_and_a_node_is_taken_away(ray_folder, tmp_path):
    """The process's own Ray: this one may have another open."""
    (tmp_path / "marked.py").write_text(JOB, encoding="utf-8")
    ran = config(tmp_path, "crash", TRIALS, {"backend": "cpu"}, {"retries": {"crash": 2}}, crash=CRASH)
    config(tmp_path, "one", 6, {"backend": "auto"}, {"max_concurrent": 1}, sleep_s=0.2)
    begun = config(tmp_path, "preempted", 60, {"backend": "cpu"}, {}, sleep_s=0.2)
    own = Path(tempfile.mkdtemp(prefix="qn", dir="/tmp"))
    (own / "ray").mkdir()
    script = Path(__file__).with_name("nodes_for_tests.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "RAY_TMPDIR": str(own)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    shutil.rmtree(own, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])

    crash = found["crash"]
    assert crash["state"] == "done" and len(crash["devices"]) == 2
    assert [row[:2] for row in crash["rows"]] == [[number, "done"] for number in range(TRIALS)]
    assert max(crash["sizes"]) >= 16  # some leases were long
    assert len(crash["looked"]) == 2  # neither node is the one of the runner
    assert crash["retries"].count(["crash", True]) == 2 and ["crash", False] not in crash["retries"]
    attempts = {number: count for number, _, count, _ in crash["rows"]}
    assert attempts[CRASH] == 3 and attempts == ran()  # it alone was charged, and what the rows call attempts is what ran

    one = found["one"]
    assert (one["state"], one["backend"]) == ("done", "cpu")
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(one["spans"])) and len(one["spans"]) == 6

    preempted = found["preempted"]
    assert preempted["state"] == "done" and len(preempted["killed"]) >= 2 and len(preempted["devices"]) == 2
    assert [(number, status, loss) for number, status, _, loss in preempted["rows"]] == [
        (k, "done", float(k)) for k in range(60)
    ]
    # what ran on the node is charged to the machines, and each trial that ran twice did so as the node had it
    assert preempted["retries"] and {failure for failure, _ in preempted["retries"]} == {"infrastructure"}
    twice = [number for number, count in begun().items() if count > 1]
    assert set(begun()) == set(range(60)) and len(twice) <= len(preempted["retries"])
    assert all(count <= 2 for count in begun().values())
