"""Runs through Ray on the CPU: real workers, real losses."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from runner_helpers import FAKES, only_run, write_config

from qdrun.runner.api import load
from qdrun.runner.engine.resume import look, resume
from qdrun.runner.observe.table import rows
from qdrun.runner.observe.view import view_of
from qdrun.runner.ray_adapter.worker_pool import RayWorkers
from qdrun.runner.store.follower import read
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.store.owner import ask_to_cancel
from qdrun.runner.store.replay import replay

from .local import run_config


def by_mood(folder):
    return {row["param.mood"]: row for row in rows(folder)}


def test_every_way_to_end_in_one_run(local_ray, tmp_path):
    moods = ["good", "raise", "nan", "crash", "hang"]
    limits = {"trial_timeout": "2s", "retries": {"crash": 1}}
    state, folder, board = run_config(write_config(tmp_path, sweep={"mood": moods}, limits=limits))
    assert state == "failed"
    found = by_mood(folder)
    assert {mood: row["status"] for mood, row in found.items()} == {
        "good": "done",
        "raise": "failed",
        "nan": "failed",
        "crash": "poisoned",
        "hang": "failed",
    }
    assert (found["crash"]["error_type"], found["crash"]["attempts"]) == ("WorkerCrashedError", 2)
    assert (found["hang"]["error_type"], found["hang"]["attempts"]) == ("Timeout", 1)
    assert found["good"]["loss"] == 1.0
    assert board.counts == {"done": 1, "failed": 3, "poisoned": 1}
    assert replay(folder).doubled == 0


@pytest.mark.slow
def test_a_worker_process_that_is_killed_costs_its_trial_one_attempt_and_the_others_nothing(local_ray, tmp_path):
    """The process is killed from outside, by its own id, while its trial runs."""
    marks = tmp_path / "marks"
    marks.mkdir()
    config = write_config(
        tmp_path,
        target=f"{FAKES}:OnDevice",
        params={"marks": str(marks), "sleep_s": 1.5},
        sweep={"number": [0, 1, 2]},
    )
    config.write_text(config.read_text().replace("gradients: [x, target]\n", ""))

    def kill_one():
        mark = marks / "1"
        deadline = time.monotonic() + 60
        while not (mark.exists() and mark.read_text().endswith("\n")) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(int(mark.read_text().split()[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    state, folder, _ = run_config(config)
    killer.join()
    assert state == "done"
    found = {row["param.number"]: row for row in rows(folder)}
    assert {number: row["attempts"] for number, row in found.items()} == {0: 1, 1: 2, 2: 1}
    first, second = (marks / "1").read_text().split()
    assert first != second


DRIVER = """
import sys, time
from pathlib import Path
from qdrun.runner.study.prepare import prepare
from qdrun.runner.engine.session import submit
from qdrun.runner.observe.timing import Timing
prepared, job = prepare(Path(sys.argv[1]))
now = time.time()
done = submit(prepared, job, output=prepared.loaded.config.uri, timing=Timing(now, now), address=None, dashboard=False, quiet=True)
sys.exit(done.exit_code)
"""


@pytest.mark.slow
def test_a_run_whose_runner_was_killed_goes_on_where_it_was(ray_folder, tmp_path, local_ray):
    config = write_config(tmp_path, params={"sleep_s": 0.4}, sweep={"x": {"linspace": [0, 1, 12]}})
    runner = subprocess.Popen([sys.executable, "-c", DRIVER, str(config)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and runner.poll() is None:
        if any(path.read_text().count('"ended"') >= 2 for path in tmp_path.glob("runs/*/events/*.jsonl")):
            break
        time.sleep(0.05)
    runner.kill()
    runner.wait()
    folder = RunFolder(only_run(tmp_path))
    before = look(folder)
    assert before.state == "lost"
    assert 2 <= len(before.kept) < 12
    assert set(before.retried.values()) <= {"its attempt was lost with the run", "it never started"}
    done = resume(folder, quiet=True)
    assert (done.state, done.exit_code) == ("done", 0)
    state = replay(folder)
    assert state.complete and state.doubled == 0
    assert {row["status"] for row in rows(folder)} == {"done"}
    started = [e.attempt.number for trial in state.trials.values() for e in trial.attempts]
    assert len(started) <= 12 + 2  # what ran when the runner died runs again, what was done does not


@pytest.mark.slow
def test_a_build_that_hangs_costs_its_own_trials_and_no_others(local_ray, tmp_path):
    source = (tmp_path / "slow.py").resolve()
    source.write_text(Path(FAKES).read_text() + HANGS)
    limits = {"trial_timeout": "1.5s"}
    config = write_config(tmp_path, target=f"{source}:Hangs", sweep={"size": [1, 2]}, limits=limits)
    state, folder, _ = run_config(config)
    found = {row["param.size"]: row for row in rows(folder)}
    assert state == "failed"
    assert (found[1]["status"], found[2]["status"], found[2]["error_type"]) == ("done", "failed", "Timeout")
    ids = folder.trial_ids()
    groups = {ids[group.first]: group for group in folder.plan()}
    assert groups[found[2]["trial"]].error == "Timeout: planning this shape: it took longer than 1.5 s"
    assert groups[found[1]["trial"]].plan is not None


HANGS = """

class Hangs(Quadratic):
    def build(self):
        super().build()
        time.sleep(3600.0 if self.params.size == 2 else 0.0)

    def plan(self, *, arch=None):
        return super().plan(arch=arch)

    @classmethod
    def shape_key(cls, params):
        return {"size": params.size}
"""


@pytest.mark.slow
def test_a_run_in_a_relative_folder_is_found_by_workers_of_another_working_directory(one_worker, tmp_path, monkeypatch):
    config = write_config(tmp_path)
    config.write_text(config.read_text().replace(json.dumps(str(tmp_path / "runs")), "runs"))
    monkeypatch.chdir(tmp_path)
    state, folder, _ = run_config(Path("fake.yaml"))
    assert not os.path.isabs(folder.uri)
    assert state == "done"


@pytest.mark.slow
def test_a_single_trial_can_be_cancelled_while_it_runs(local_ray, tmp_path):
    config = write_config(tmp_path, sweep={"mood": ["hang", "good"]})

    def cancel():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for path in tmp_path.glob("runs/*/events/*.jsonl"):
                folder = RunFolder(only_run(tmp_path))
                (hang,) = [trial.id for trial in folder.trials() if trial.params["mood"] == "hang"]
                if f'"started","trial":"{hang}"' in path.read_text():
                    ask_to_cancel(folder, hang)
                    return
            time.sleep(0.05)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    state, folder, _ = run_config(config)
    canceller.join()
    found = by_mood(folder)
    assert state == "failed"
    assert (found["hang"]["status"], found["good"]["status"]) == ("cancelled", "done")
    plan = look(folder)
    assert plan.skipped == {found["hang"]["trial"]: "the trial was cancelled"}


LEASED = """

class LeasedParams(QuadraticParams):
    number: int = 0
    marks: str = ""


class Leased(Job[LeasedParams]):
    needs_compiler = False

    def build(self): ...

    def run(self):
        mark = os.path.join(self.params.marks, str(self.params.number))
        with open(mark, "a", encoding="ascii") as stream:
            stream.write("x")
        if self.params.mood == "crash" and self.params.number == 20 and os.path.getsize(mark) < 3:
            os._exit(9)
        time.sleep(self.params.sleep_s)
        return Outcome(float(self.params.number))
"""


def leased(tmp_path, **params):
    """A sweep of 40 short trials on one lane, so that leases are long; how often each ran, by its number."""
    source, marks = (tmp_path / "leased.py").resolve(), tmp_path / "marks"
    source.write_text(Path(FAKES).read_text() + LEASED)
    marks.mkdir()
    config = write_config(
        tmp_path,
        target=f"{source}:Leased",
        params={"marks": str(marks), **params},
        sweep={"number": list(range(40))},
        limits={"max_concurrent": 1, "retries": {"crash": 2}},
    )
    config.write_text(config.read_text().replace("gradients: [x, target]\n", ""))
    return config, lambda: {int(path.name): path.stat().st_size for path in marks.iterdir()}


@pytest.fixture
def sizes(monkeypatch):
    """How many trials each call of a worker had."""
    found, send = [], RayWorkers._send

    def sent(self, worker, actor, launches, batches):
        found.append(len(launches))
        return send(self, worker, actor, launches, batches)

    monkeypatch.setattr(RayWorkers, "_send", sent)
    return found


@pytest.mark.slow
def test_a_crash_in_a_long_lease_costs_the_trial_that_ran_two_tries_and_no_other_one(local_ray, tmp_path, sizes):
    config, ran = leased(tmp_path, mood="crash")
    state, folder, _ = run_config(config)
    assert state == "done"
    assert sizes[0] == 1 and max(sizes) >= 8  # trial 20 ran in a long one; 16 where the machine is not busy
    found = {row["param.number"]: row["attempts"] for row in rows(folder)}
    crashed = [e for e in read(folder).events if e["event"] == "retry" and e["failure"] == "crash"]
    assert [(e["charged"], e["error"]["type"]) for e in crashed] == [(True, "WorkerCrashedError")] * 2
    unheard = {e["trial"] for e in read(folder).events if e["event"] == "retry" and e["failure"] == "infrastructure"}
    by_trial = {row["trial"]: row["param.number"] for row in rows(folder)}
    again = {by_trial[name] for name in unheard}  # they had ended when their worker died, and it had not told yet
    assert max(again, default=0) < 20
    assert found == {number: 3 if number == 20 else 2 if number in again else 1 for number in range(40)}
    assert ran() == found  # what the rows call attempts is what ran


@pytest.mark.slow
def test_ctrl_c_in_a_long_lease_lets_the_trial_that_runs_finish_and_begins_no_other(local_ray, tmp_path, sizes):
    config, ran = leased(tmp_path, sleep_s=0.08)

    class Soon:
        """Asks to stop when some trials have run."""

        @property
        def count(self):
            return int(len(ran()) >= 12)

    state, folder, _ = run_config(config, stops=Soon())
    assert state == "interrupted"
    found = [row for row in rows(folder) if row["status"] == "done"]
    assert {row["param.number"] for row in found} == set(ran())
    assert 12 <= len(found) < 40 and max(sizes) >= 8  # 16 where the machine is not busy
    assert all(row["attempts"] == (row["status"] == "done") for row in rows(folder))


def test_how_far_a_long_trial_is_reaches_watch_by_the_heartbeat(local_ray, tmp_path, monkeypatch):
    """The trial ends when the test has seen its step from outside, so that no time is assumed."""
    door = tmp_path / "door"
    config = write_config(tmp_path, target=f"{FAKES}:Stepping", params={"door": str(door)}, sweep={"steps": [40]})
    config.write_text(config.read_text().replace("gradients: [x, target]\n", ""))
    runner = subprocess.Popen([sys.executable, "-c", DRIVER, str(config)], stderr=subprocess.DEVNULL)
    seen, deadline = set(), time.monotonic() + 120
    while runner.poll() is None and time.monotonic() < deadline:
        for run in tmp_path.glob("runs/*/run.json"):
            lanes = view_of(RunFolder(run.parent)).lanes
            seen |= {lane.step for lane in lanes}
            assert all(lane.values["loss"] == 2.0**-lane.at for lane in lanes if lane.at is not None)
        if "time step 3 of 40, loss 0.125" in seen:
            door.touch()
        time.sleep(0.2)
    assert runner.wait(60) == 0, seen
    assert "time step 3 of 40, loss 0.125" in seen
    (series,) = load(run.parent).live.values()
    assert series.step.tolist() == list(range(1, 41)) and series["loss"].tolist() == [2.0**-k for k in range(1, 41)]


def test_trials_read_files_beside_the_config_and_leave_files_in_the_run_folder(one_worker, tmp_path):
    (tmp_path / "data").mkdir()
    for name, text in {"data/one.txt": "1 2 3", "two.txt": "4 5"}.items():
        (tmp_path / name).write_text(text)
    job = Path(__file__).parents[1] / "workers" / "jobs_with_files.py"
    config = write_config(tmp_path, target=f"{job}:Reads", sweep={"table": ["data/one.txt", "two.txt"]})
    config.write_text(config.read_text().replace("gradients: [x, target]\n", ""))
    state, folder, _ = run_config(config)
    assert state == "done"
    for row, (loss, text) in zip(rows(folder), ((6.0, "1 2 3"), (9.0, "4 5")), strict=True):
        assert row["loss"] == loss and folder.files.read(f"{row['artifacts_folder']}/seen.txt").decode() == text
