"""The record of a run among the jobs of Ray. That Ray's pages show it is tested in ``test_ray_compat``."""

import subprocess
import sys
import time

import pytest

from qdrun.runner.observe.view import FailureView, RunView
from qdrun.runner.ray_adapter.compat import RayChanged
from qdrun.runner.ray_adapter.compat_check import missing
from qdrun.runner.ray_adapter.pages import job_record, job_store
from qdrun.runner.ray_adapter.pages.batch_words import call_name, ended_text, started_text
from qdrun.runner.ray_adapter.pages.job_record import JobRecord, entry_point, mend
from qdrun.runner.store.columns import BatchRows
from qdrun.runner.workers.spec import BatchColumns, BatchSpec, LaunchEnded

RUN = "20261129-101500-drop-0a1b"


class Store:
    """Stands for Ray's, of which some calls fail."""

    driver, node = "01000000", "n"

    def __init__(self, folder, fails=0):
        self.folder, self.fails, self.records, self.dead = folder, fails, {}, set()

    def log_of(self, name):
        return self.folder / f"{name}.log"

    def agent(self):
        return None

    def put(self, name, info):
        if self.fails > 0:
            self.fails -= 1
            raise ConnectionError("the head is away")
        self.records[name] = info

    def all(self):
        return list(self.records.items())

    def dead_drivers(self):
        return self.dead


def view(state="running", **counts):
    return RunView(RUN, state, 4, counts, 1.0)


def test_the_record_follows_the_run_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(job_record, "WRITE_EVERY_S", 0.01)
    store = Store(tmp_path, fails=2)
    record = JobRecord(RUN, {"job_name": "drop", "folder": "/runs/x"}, store)
    record.show(view(done=1, running=2))
    while RUN not in store.records or "1/4" not in store.records[RUN]["message"]:
        time.sleep(0.01)
    assert store.records[RUN]["status"] == "RUNNING" and store.records[RUN]["message"] == "1/4 trials, 2 running"
    failed = FailureView("t", "x=1", "ValueError", "a negative\x1b volume")
    record.over("failed", RunView(RUN, "running", 4, {"done": 3, "failed": 1}, 2.0, failures=(failed,)))
    made = store.records[RUN]
    assert (made["status"], made["message"]) == ("FAILED", "4/4 trials, 1 failed") and made["end_time"] >= made["start_time"]
    assert made["metadata"] == {"job_name": "drop", "folder": "/runs/x", "ray_job": "01000000"}
    lines = [line[9:] for line in store.log_of(RUN).read_text().splitlines()]
    assert lines[:3] == [f"run {RUN}", "folder: /runs/x", "running: 1/4 trials, 2 running"]
    assert lines[3].startswith("x=1 failed: ValueError: a negative") and "\x1b" not in lines[3]
    assert lines[4] == "failed: 4/4 trials, 1 failed" and len(lines) == 5


@pytest.mark.parametrize(
    ("state", "said"),
    [("done", "SUCCEEDED"), ("failed", "FAILED"), ("lost", "FAILED"), ("cancelled", "STOPPED"), ("interrupted", "STOPPED")],
)
def test_the_states_of_runs_are_states_of_jobs(tmp_path, state, said):
    store = Store(tmp_path)
    JobRecord(RUN, {}, store).over(state, view(done=4))
    assert store.records[RUN]["status"] == said


def test_a_head_that_hangs_does_not_hold_the_run_up(tmp_path, monkeypatch):
    monkeypatch.setattr(job_record, "END_WAIT_S", 0.05)
    store = Store(tmp_path)
    store.put = lambda name, info: time.sleep(30)
    record, began = JobRecord(RUN, {}, store), time.monotonic()
    record.show(view(done=1))
    record.over("done", view(done=4))
    assert time.monotonic() - began < 15


def test_a_submitted_job_keeps_the_record_that_ray_makes(monkeypatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert JobRecord.begin({"run": RUN}) is None
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR")
    assert JobRecord.begin({"job_name": "qdrun up"}) is None


def test_no_ray_is_started_by_a_look_for_records():
    """In a process of its own: in this one another test may have Ray open."""
    look = """
import ray
from qdrun.runner.ray_adapter.pages import job_record, job_store
assert not ray.is_initialized() and job_store.opened() is None
job_record.mend()
print(ray.is_initialized())
"""
    ended = subprocess.run([sys.executable, "-c", look], check=False, capture_output=True, text=True, timeout=120)
    assert ended.stdout == "False\n", ended.stderr


def test_a_ray_that_keeps_its_records_elsewhere_is_told_and_the_run_is_a_driver_there(monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    common = pytest.importorskip("ray.dashboard.modules.job.common")
    monkeypatch.delattr(common, "JobInfoStorageClient")
    with pytest.warns(RayChanged, match="driver without a log .* has no JobInfoStorageClient"):
        assert JobRecord.begin({"run": RUN}) is None
    assert any("JobInfoStorageClient" in name for name in missing())


def test_the_end_of_a_run_whose_process_was_killed_is_recorded_by_others(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.records = {
        name: {"status": status, "metadata": metadata, "message": ""}
        for name, status, metadata in (
            ("killed", "RUNNING", {"ray_job": "02000000"}),
            ("lives", "RUNNING", {"ray_job": "03000000"}),
            ("ended", "SUCCEEDED", {"ray_job": "02000000"}),
            ("another's", "RUNNING", None),
        )
    }
    store.dead = {"02000000"}
    monkeypatch.setattr(job_store, "opened", lambda: store)
    mend()
    assert {name: info["status"] for name, info in store.records.items()} == {
        **{"killed": "FAILED", "lives": "RUNNING"},
        **{"ended": "SUCCEEDED", "another's": "RUNNING"},
    }
    assert "`qdrun resume`" in store.records["killed"]["message"]


def test_the_entry_point_is_what_one_types():
    assert entry_point(["/venv/bin/qdrun", "submit", "my config.yaml"]) == "qdrun submit 'my config.yaml'"
    assert entry_point(["/s/runner/remote/entry.py", "run"]) == "python -m qdrun.runner.remote.entry run"
    assert entry_point(["/home/me/fit.py"]) == "fit.py" and entry_point([]) == ""


def test_calls_are_named_by_their_batches():
    columns = BatchColumns({}, {}, [0])
    together = BatchSpec("l", ("t0", "t1", "t2"), (1, 1, 1), columns, 3 << 20)
    alone = BatchSpec("l", ("t0",), (1,), columns)
    assert call_name([together]) == "3 trials in 1 batch, planned 3 MiB"
    assert call_name([together, alone]) == "4 trials in 2 batches, planned 3 MiB"
    assert call_name([alone]) == "1 trial in 1 batch"
    assert started_text([together]) == "runs 3 trials from t0 in 1 batch, planned 3 MiB"
    shared = {"status": "done", "seconds": 0.5, "planned_bytes": 1 << 20, "used_bytes": 1 << 19}
    rows = BatchRows(("a", "b"), (1, 1), shared, {}, {}, {}, None)
    end = LaunchEnded(1, {"c": {"status": "failed", "seconds": 1.0, "used_bytes": None}}, (rows,))
    assert ended_text(end) == "3 trials: 2 done, 1 failed in 2 s, planned 2 MiB, used 1 MiB"
