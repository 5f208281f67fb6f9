"""The first submit of a job checks the indices of its first trial, in a process of its own."""

import json
from pathlib import Path

import pytest
from runner_helpers import write_config

from qdrun.runner.checks import first_check as module
from qdrun.runner.checks.first_check import first_check
from qdrun.runner.provenance.record import record
from qdrun.runner.store.layout import create
from qdrun.runner.study.prepare import prepare

JOBS = Path(__file__).with_name("jobs_with_zeros.py")
CONFIG = 'version: 1\nname: zeros\njob: {{target: "{jobs}:{job}", params: {{way: {way}}}}}\n'


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """A sweep of a way, with an empty cache."""
    monkeypatch.setenv(module.OFF, "1")
    monkeypatch.setattr(module, "AFTER_S", 90.0)
    monkeypatch.setattr(module, "LIMIT_S", 90.0)  # a busy machine
    monkeypatch.setattr(module, "cache_dir", lambda: tmp_path / "cache")
    return lambda way, job="Throw", more="": prepare(
        write_config(tmp_path, text=CONFIG.format(jobs=JOBS, job=job, way=way) + more)
    )


def never():
    return False


def begun(tmp_path, prepared, job, note, told):
    """The check of a run that was just made."""
    run = create(prepared, tmp_path / "runs")
    record(run.files, prepared, job)
    return first_check(prepared, job, run.uri, note, told)


@pytest.mark.slow
@pytest.mark.parametrize(("job", "more"), [("Own", ""), ("Throw", "device: {backend: python}\n")])
def test_jobs_with_a_run_of_their_own_and_interpreted_ones_are_checked_too(sweep, tmp_path, job, more):
    told = []
    begun(tmp_path, *sweep("beyond", job, more), print, told).end(True, never)
    assert len(told) == 1 and told[0].startswith(
        "index out of range: axis 0 of `y` has index 3 but extent 3 at jobs_with_zeros.py:"
    )


@pytest.mark.slow
def test_a_write_out_of_bounds_is_told_with_its_line_and_again_at_the_next_submit(sweep, tmp_path, monkeypatch):
    notes = []
    prepared, job = sweep("beyond")
    said = "index out of range: axis 0 of `y` has index 3 but extent 3 at jobs_with_zeros.py:"
    for process in (True, False):
        if not process:
            monkeypatch.setattr(module.FirstCheck, "_checked", None)  # the result is known
        told = []
        begun(tmp_path, prepared, job, notes.append, told).end(True, never)
        (found,) = told
        assert found.startswith(said) and "(`y[i + 1] = mass[None] * speed[None]`); do: correct the index" in found
    assert notes == [f"warning: {found}"] * 2


@pytest.mark.slow
def test_a_right_job_is_checked_once_and_nothing_is_said(sweep, tmp_path):
    notes = []
    prepared, job = sweep("right")
    begun(tmp_path, prepared, job, notes.append, notes).end(True, never)
    assert notes == []
    (known,) = (tmp_path / "cache" / module.FOLDER).iterdir()
    assert json.loads(known.read_text()) == {}
    known.write_text(json.dumps({"skipped": "it has no time"}))
    begun(tmp_path, prepared, job, notes.append, notes).end(True, never)
    assert notes == ["indices were not checked: it has no time"]


ENDS = """
import os
import signal
from qdrun.jobs.base import Job, JobParams


class P(JobParams):
    x: float = 1.0


class Throw(Job[P]):
    def build(self):
        {way}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGINT)", []),
        ("raise MemoryError", ["indices were not checked: the first trial raised MemoryError"]),
    ],
    ids=["Ctrl-C", "memory"],
)
def test_a_check_that_was_interrupted_or_failed_is_done_again_at_the_next_submit(sweep, tmp_path, way, said):
    (tmp_path / "ends.py").write_text(ENDS.format(way=way))
    prepared, job = prepare(write_config(tmp_path, text='version: 1\nname: a\njob: {target: "ends.py:Throw"}\n'))
    notes = []
    begun(tmp_path, prepared, job, notes.append, notes).end(True, never)
    assert notes == said and not list((tmp_path / "cache" / module.FOLDER).iterdir())


def test_jobs_that_check_themselves_or_switch_it_off_are_left_alone(sweep, tmp_path, monkeypatch):
    assert begun(tmp_path, *sweep("right", more="debug: true\n"), print, []) is None
    monkeypatch.setenv(module.OFF, "0")
    assert begun(tmp_path, *sweep("right"), print, []) is None


def test_a_check_that_has_not_ended_ends_with_the_run(sweep, tmp_path):
    prepared, job = sweep("right")
    begun(tmp_path, prepared, job, print, []).end(True, lambda: True)
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_another_shape_or_another_version_of_the_file_is_checked_anew(tmp_path):
    text = "from qdrun.jobs.base import Job, JobParams\n\n\nclass P(JobParams):\n    x: float = 1.0\n\n\nclass J(Job[P]): ...\n"
    keys = set()
    for more in ("", "# changed\n"):
        folder = tmp_path / f"v{len(keys)}"
        folder.mkdir()
        (folder / "job.py").write_text(text + more)
        made, _ = prepare(write_config(folder, text='version: 1\nname: a\njob: {target: "job.py:J"}\n'))
        keys |= {module._key(made.target, {"x": "float"}), module._key(made.target, {"x": [3, "float"]})}
    assert len(keys) == 4
