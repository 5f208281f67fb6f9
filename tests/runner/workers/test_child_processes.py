"""Processes that a job starts: what they print when they fail is in the error of the trial."""

import subprocess
import sys

import pytest

from qdrun.runner import load
from qdrun.runner.workers.records import said_by_children

PRINTS = """
import subprocess, sys
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.workers.capture import ProcessLog
log = ProcessLog(RunFolder({uri!r}), "workers/d/w1")
subprocess.run([sys.executable, "-c", "import a_module_that_is_not_there"])
said = log.printed()
log.close()
print(said)
"""
JOB = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from qdrun.jobs.base import Job, JobParams, Outcome


class P(JobParams):
    x: float = 1.0


def double(x): return 2 * x


def fails(): raise KeyError("the cause in the child")


class J(Job[P]):
    gradients = ()
    needs_compiler = False

    def build(self): ...

    def launches(self): return []

    def run(self):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=fails if self.params.x > 1 else None) as pool:
            return Outcome(float(pool.submit(double, self.params.x).result()))
"""


def test_the_last_lines_of_a_child_are_found_in_the_log_of_the_worker(tmp_path):
    (tmp_path / "run").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PRINTS.format(uri=str(tmp_path / "run"))], capture_output=True, text=True, check=True
    )
    said = said_by_children(done.stdout)
    assert said.startswith("\n  the last that its processes have printed:\n    ")
    assert said.endswith("ModuleNotFoundError: No module named 'a_module_that_is_not_there'")
    assert said_by_children(" \n") == (
        "\n  its processes have printed nothing: they were killed, perhaps for their memory (`dmesg` says so)"
    )


@pytest.mark.slow
def test_the_cause_of_a_broken_pool_is_in_the_row_of_its_trial(tmp_path):
    (tmp_path / "j.py").write_text(JOB)
    config = tmp_path / "c.yaml"
    config.write_text("version: 1\nname: pool\ngradients: []\njob: {target: 'j.py:J'}\nsweep: {params: {x: [1.0, 2.0]}}\n")
    words = [sys.executable, "-P", "-c", "from qdrun.runner.cli.app import main; main()", "submit", str(config), "-q"]
    subprocess.run([*words, "--output", str(tmp_path / "runs")], check=False, timeout=250)
    good, bad = load("latest", tmp_path / "runs").rows
    assert good["loss"] == 2.0
    assert bad["error_type"] == "BrokenProcessPool" and "KeyError: 'the cause in the child'" in bad["error"]
