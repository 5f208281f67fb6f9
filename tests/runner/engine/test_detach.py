"""Runs that somebody else attends: what is said when they do not begin, a head that goes away, the question before a large sweep."""

import http.server
import io
import json
import os
import platform
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from runner_helpers import FAKES, only_run, write_config
from typer.testing import CliRunner

from qdrun.runner import load
from qdrun.runner.cli import confirmation
from qdrun.runner.cli.app import app
from qdrun.runner.engine.resume import resume
from qdrun.runner.observe import table
from qdrun.runner.observe.timing import Timing
from qdrun.runner.provenance.record import record
from qdrun.runner.ray_adapter import head_watch
from qdrun.runner.ray_adapter.cluster import ClusterError
from qdrun.runner.ray_adapter.head_watch import ClusterLost, HeadWatch
from qdrun.runner.ray_adapter.jobs_api import Jobs, check_dashboard, known_dead, launched, note_launch
from qdrun.runner.ray_adapter.known_clusters import JOB, remember
from qdrun.runner.remote import detach, entry
from qdrun.runner.remote.detach import NotStarted, Order, ended, failure_of, follow, submit_detached
from qdrun.runner.store import status
from qdrun.runner.store.files import StorageUnknown
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import ConfigChanged, RunFolder, all_runs, create
from qdrun.runner.study.prepare import prepare

QDRUN = [sys.executable, "-c", "from qdrun.runner.cli.app import main; main()"]


def timing():
    return Timing(time.time(), time.time())


@contextmanager
def dashboard(pages, token=None):
    """A machine that answers as Ray's dashboard does: JSON by path; with a token, only to those who have it."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            known = token is None or self.headers.get("Authorization") == f"Bearer {token}"
            self.send_response(401 if not known else 200 if self.path in pages else 404)
            self.end_headers()
            if known and self.path in pages:
                self.wfile.write(json.dumps(pages[self.path]).encode())

        def log_message(self, *words):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def token(tmp_path, monkeypatch):
    path = tmp_path / "token"
    path.write_text("f" * 64)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    return path


# ---- why a run did not begin


def test_the_error_of_the_process_is_that_of_the_command():
    said = {"type": "ClusterError", "message": "no head\n  do: start it", "exit_code": 4}
    error = failure_of(f"noise\n{entry.FAILED} {json.dumps(said)}\nexit code 4", "process 7")
    assert isinstance(error, ClusterError) and str(error) == "no head\n  do: start it"
    error = failure_of(f"{entry.FAILED} {json.dumps(said | {'exit_code': 2})}", "process 7")
    assert (type(error), error.exit_code) == (NotStarted, 2)


@pytest.mark.parametrize(
    ("printed", "lack"),
    [
        (
            "/usr/bin/python: Error while finding module (ModuleNotFoundError: No module named 'qdrun')",
            "qdrun is not installed",
        ),
        ("/usr/bin/python: No module named qdrun", "qdrun is not installed"),
        ("ModuleNotFoundError: No module named 'qdrun.runner.remote.entry'", "qdrun is not installed"),
        ("/bin/sh: 1: python: not found", "there is no `python`"),
    ],
)
def test_a_cluster_without_qdrun_is_told_what_to_install(printed, lack):
    error = failure_of(f"{printed}\njob FAILED", "job r1 of http://head:8265")
    assert str(error) == (
        f"job r1 of http://head:8265: {lack} where the cluster runs its jobs; nothing was run\n"
        "  do: install the same qdrun on every machine of the cluster, for the Python that runs Ray there"
    )
    assert error.exit_code == 4


def test_an_end_that_nobody_expects_shows_the_last_lines():
    error = failure_of("\n".join(f"line {k}" for k in range(40)), "process 7 of here")
    assert str(error).splitlines()[0] == "process 7 of here ended before the run began; the last of what it printed:"
    assert str(error).splitlines()[1:] == [f"  line {k}" for k in range(28, 40)]


def test_a_folder_that_the_cluster_does_not_have_is_named(tmp_path, capsys):
    missing = tmp_path / "not-mounted" / "run-1"
    assert entry.main([str(missing)]) == 4
    said = capsys.readouterr().err
    error = failure_of(said, "job run-1")
    assert isinstance(error, ClusterError)
    assert str(error).splitlines() == [
        f"the run's folder {missing} cannot be reached from {platform.node()}, where {tmp_path / 'not-mounted'} is not even a folder;"
        " nothing was run",
        "  do: set `storage` in the config (or --output) to a folder that all machines share under this name, or to a URI such as"
        " s3://bucket/runs",
    ]


def test_a_run_of_another_format_is_refused(tmp_path):
    run = create(prepare(write_config(tmp_path))[0], tmp_path / "runs")
    run.files.put("run.json", json.dumps(run.info() | {"format": 1}).encode())
    with pytest.raises(
        ClusterError, match=r"has format 1, this version of qdrun reads formats 3 to 5 on .*\n  do: install the same qdrun"
    ):
        entry.reached(run.uri)


def test_the_memory_of_this_process_is_no_place_for_a_run_of_another(tmp_path):
    prepared, _ = prepare(write_config(tmp_path))
    with pytest.raises(StorageUnknown, match="is the memory of one process, which another one cannot see\n  do: set `storage`"):
        submit_detached(prepared, "memory://runs", Order(timing()))
    words = ["submit", str(tmp_path / "fake.yaml"), "--output", "memory://runs"]  # nor of its workers, which are processes, too
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 2 and said.stderr.startswith("memory://runs is the memory of one process")
    assert all_runs("memory://runs") == []


def test_a_run_whose_process_cannot_start_is_not_left_running(tmp_path, monkeypatch):
    """The kept file of the job is damaged when the process reads it."""
    job = tmp_path / "own.py"
    job.write_text(FAKES.read_text())
    prepared, _ = prepare(write_config(tmp_path, target="own.py:Quadratic"))

    def damaged(files, *args):
        record(files, *args)
        files.put("source/own.py", b"")

    monkeypatch.setattr(detach, "record", damaged)
    with pytest.raises(NotStarted, match=r"source/own\.py is not as it was written\n  do: put .*own\.py there") as error:
        submit_detached(prepared, str(tmp_path / "runs"), Order(timing()))
    assert error.value.exit_code == 2
    run = RunFolder(only_run(tmp_path))
    assert status.status(run)["state"] == "failed"
    assert ended(run, timing()).exit_code == 1
    assert "source/own.py is not as it was written" in (run.path / "runner.log").read_text()
    assert launched(run)["host"] == platform.node()


# ---- dashboards


def test_addresses_that_are_no_dashboard(token):
    for address, words in {
        "http://127.0.0.1:x": "do: write for example http://head:8265",
        "http://": "it names no machine",
        "http://127.0.0.1:1": "nothing answers on port 1 of 127.0.0.1",
        "http://no-such-machine.invalid:8265": "no machine is called no-such-machine.invalid",
    }.items():
        with pytest.raises(ClusterError) as error:
            check_dashboard(address)
        assert str(error.value).startswith(f"cannot submit to {address}: ") and words in str(error.value)
    with dashboard({}) as address, pytest.raises(ClusterError, match=r"is no dashboard of Ray \(HTTP 404\)"):
        check_dashboard(address)
    with dashboard({"/api/version": {"version": "4"}}) as address, pytest.raises(ClusterError, match="is no dashboard of Ray"):
        check_dashboard(address)


def test_a_wrong_token_is_refused_with_the_place_of_the_right_one(token, tmp_path):
    with dashboard({"/api/version": {"ray_version": "2.60.0"}}, token="e" * 64) as address:
        with pytest.raises(ClusterError) as error:
            Jobs(address)
        assert str(error.value).startswith(
            f"cannot submit to {address}: it wants a token\n  token: the token in {token} was sent"
        )
        result = CliRunner().invoke(app, ["submit", str(write_config(tmp_path)), "--address", address])
        assert result.exit_code == 4 and "it wants a token" in result.stderr
        assert not (tmp_path / "runs").exists(), "nothing was made"
        token.write_text("e" * 64)
        check_dashboard(address)


def job(run, pid, status):
    return {"type": "DRIVER", "status": status, "metadata": {"run": run}, "driver_info": {"pid": str(pid)}}


def test_a_runner_is_dead_when_a_dashboard_says_so_of_its_very_process(tmp_path, token):
    run = create(prepare(write_config(tmp_path))[0], tmp_path / "runs")
    with Journal(run) as journal:
        owner = journal.owner
    for jobs, dead in (
        ([job(run.name, owner.pid, "SUCCEEDED")], True),
        ([job(run.name, owner.pid, "FAILED")], True),
        ([job(run.name, owner.pid, "RUNNING")], False),
        ([job(run.name, owner.pid + 1, "FAILED")], False),
        ([job("another", owner.pid, "FAILED")], False),
        ([{"status": "FAILED", "metadata": None, "driver_info": None}], False),
        ([], False),
    ):
        with dashboard({"/api/jobs/": jobs}, token="f" * 64) as address:
            assert known_dead(run, owner, address) is dead
            assert not known_dead(run, owner), "nobody has named that address"
            remember(run, address, JOB)
            assert known_dead(run, owner) is dead
    assert not known_dead(run, owner), "the dashboard is gone: nothing is known"


def test_a_job_that_has_not_begun_is_stopped_by_its_cluster_and_one_that_has_by_its_folder(tmp_path, monkeypatch):
    stopped = []

    class Cluster:
        def __init__(self, address):
            self.address = address

        def stop(self, name):
            stopped.append((self.address, name))

    monkeypatch.setattr(detach, "Jobs", Cluster)
    run = create(prepare(write_config(tmp_path))[0], tmp_path / "runs")
    note_launch(run, address="http://head:8265", job=run.name)
    remember(run, "http://head:8265", JOB)
    result = CliRunner().invoke(app, ["cancel", run.uri])
    assert f"{run.name}: asked to stop" in result.output and stopped == [("http://head:8265", run.name)]
    assert status.status(run)["state"] == "cancelled"
    assert CliRunner().invoke(app, ["dashboard", run.uri]).output.startswith(f"http://head:8265  (run {run.name})")
    assert "nothing to stop" in CliRunner().invoke(app, ["cancel", run.uri]).output and len(stopped) == 1


# ---- a head that goes away


class World:
    """A head that is there or not, a clock, and what was said and done."""

    def __init__(self):
        self.now, self.up, self.notes, self.done = 0.0, True, [], []
        self.watch = HeadWatch(
            self.notes.append,
            lambda: self.done.append("last words"),
            exit=self.done.append,
            there=lambda address: self.up,
            clock=lambda: self.now,
        )
        self.watch._places["head:6379"] = head_watch._Place("the head of the cluster", 40.0)

    def at(self, now, up):
        self.now, self.up = now, up
        self.watch.look()


def test_a_head_that_comes_back_in_time_costs_a_word():
    world = World()
    for now, up in ((0, True), (1, False), (30, False), (40.9, True), (50, False), (89, False)):
        world.at(now, up)
        world.watch.check()
    assert world.notes == [
        "the head of the cluster at head:6379 does not answer; what runs goes on, for 40 s at most",
        "the head of the cluster at head:6379 answers again",
        "the head of the cluster at head:6379 does not answer; what runs goes on, for 40 s at most",
    ]


def test_a_head_that_stays_away_ends_the_run():
    world = World()
    world.at(1, False)
    world.at(41, False)
    with pytest.raises(ClusterLost) as error:
        world.watch.check()
    assert str(error.value) == (
        "the head of the cluster at head:6379 has not answered for 40 s: the run is lost\n"
        "  do: start the cluster again if it was joined, then `qdrun resume`; finished trials are kept"
    )
    assert error.value.exit_code == 5 and world.watch.away()


def test_a_process_whose_head_and_store_are_both_away_ends_all_the_same(monkeypatch):
    monkeypatch.setattr(head_watch, "GRACE_S", 0.05)
    monkeypatch.setattr(head_watch, "LOOK_S", 0.01)
    world, door = World(), threading.Event()
    world.watch.last_words = door.wait
    world.up, world.watch.lost = False, "the head is gone"
    world.watch._run()
    door.set()
    assert world.done == [5]


def test_a_node_that_is_gone_under_a_living_head_ends_the_run():
    """Its raylet was killed; the head answers, and no worker would ever start."""
    world, up = World(), {"head:6379"}
    world.watch._places["node:4711"] = head_watch._Place("this machine's node", head_watch.NODE_PATIENCE_S)
    world.watch.there = lambda address: address in up
    world.at(1, True)
    world.watch.check()
    world.at(1 + head_watch.NODE_PATIENCE_S, True)
    with pytest.raises(
        ClusterLost, match=r"this machine's node at node:4711 has not answered for 5 s: the run is lost\n  do: "
    ):
        world.watch.check()
    assert world.watch.away()


def test_a_run_that_hangs_in_its_calls_to_a_dead_head_is_ended_with_its_last_words(monkeypatch, capsys):
    monkeypatch.setattr(head_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(head_watch, "GRACE_S", 0.01)
    monkeypatch.setitem(head_watch.PATIENCE_S, True, 0.0)
    world = World()
    world.up = False
    with world.watch as watch:
        watch.begin("head:6379", joined=True)
        watch._thread.join(30)
        assert world.done == ["last words", 5]
    assert "the run is lost" in capsys.readouterr().err


def test_a_run_that_ends_by_itself_is_left_alone(monkeypatch):
    monkeypatch.setattr(head_watch, "LOOK_S", 0.01)
    monkeypatch.setitem(head_watch.PATIENCE_S, True, 0.0)
    world = World()
    world.up = False
    with world.watch as watch:
        watch.begin("head:6379", joined=True)
        while not watch.lost:
            time.sleep(0.01)
    watch._thread.join(30)
    assert world.done == []


# ---- questions, and nothing to do


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("answer", "wanted"), [("y\n", True), ("YES\n", True), ("\n", False), ("", False), ("no\n", False)])
def test_a_large_sweep_is_asked_for_on_a_terminal(answer, wanted, tmp_path, monkeypatch, capsys):
    prepared, kind = prepare(write_config(tmp_path, sweep={"x": {"linspace": [0, 1, 1001]}}))
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(confirmation, "on_terminal", lambda: True)
    if wanted:
        (planned,) = confirmation.asked(prepared, kind)
        assert len(planned[0].places) == 1001
    else:
        with pytest.raises(confirmation.NotWanted, match="nothing was started\n  do: `qdrun submit --yes` does not ask"):
            confirmation.asked(prepared, kind)
    said = capsys.readouterr().err
    assert said.startswith("fake: 1001 trials of") and "placement on this machine" in said
    assert said.endswith("Quadratic? [y/N] ")


def test_a_small_sweep_and_one_without_a_terminal_are_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    small, kind = prepare(write_config(tmp_path))
    monkeypatch.setattr(confirmation, "on_terminal", lambda: True)
    assert confirmation.asked(small, kind) == ()
    monkeypatch.setattr(confirmation, "on_terminal", lambda: False)
    large, kind = prepare(write_config(tmp_path, sweep={"x": {"linspace": [0, 1, 1001]}}))
    assert confirmation.asked(large, kind) == ()


def test_a_run_with_nothing_left_ends_without_ray(tmp_path, monkeypatch):
    run = create(prepare(write_config(tmp_path))[0], tmp_path / "runs")
    with Journal(run) as journal:
        for trial in run.trials():
            journal.write("ended", trial=trial.id, attempt=1, status="done", loss=1.0)
    monkeypatch.setattr("qdrun.runner.engine.session.open_cluster", lambda *words, **more: pytest.fail("Ray was started"))
    done = resume(run, quiet=True)
    assert (done.state, done.exit_code, {row["status"] for row in done.rows}) == ("done", 0, {"done"})
    assert Path(run.table).is_file() and status.status(run)["state"] == "done"


@pytest.mark.parametrize("detach", [False, True])
def test_a_run_that_has_ended_and_has_nothing_left_stays_as_it_is(tmp_path, monkeypatch, detach):
    config = write_config(tmp_path)
    run = create(prepare(config)[0], tmp_path / "runs")
    error = {"type": "Oops", "message": "no"}
    with Journal(run) as journal:
        for trial in run.trials():
            row = {"status": "failed", "failure": "user_error", "error": error, "attempt": 1}
            journal.write("ended", trial=trial.id, **row)
        journal.write("finished", state="failed", timing=Timing(1.0, 2.0, ended_t=8.0).summary())
    table.write_parquet(run)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **more: pytest.fail("a process was started"))
    config.write_text("version: 1\n")  # nothing of it is needed
    words = ["resume", run.uri, *(["--detach"] if detach else [])]
    said = CliRunner().invoke(app, words)
    assert (said.exit_code, said.stdout) == (1, f"nothing is left to run; table: qdrun results {run.uri}\n")
    assert "skipped" in said.stderr and "`--failed` runs the skipped ones again" in said.stderr
    data = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert (data["ended"]["state"], data["ended"]["seconds"], data["ended"]["exit_code"]) == ("failed", 7.0, 1)
    assert resume(run, quiet=True).state == "failed"
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    with pytest.raises(ConfigChanged):  # with --failed there is something
        resume(run, failed=True, quiet=True)


def test_a_run_whose_process_found_no_ray_ends_as_the_command_would_have(tmp_path):
    run = create(prepare(write_config(tmp_path))[0], tmp_path / "runs")
    with Journal(run) as journal:
        journal.write(
            "finished", state="failed", error="ClusterError: cannot start Ray on this machine: it is full\n  do: make room"
        )
    with pytest.raises(
        ClusterError, match=r"^cannot start Ray .* full\n  do: make room\n  log: here\n  then: qdrun resume "
    ) as caught:
        follow(detach.Detached(run, "here", pid=1), timing(), quiet=True)
    assert caught.value.exit_code == 4


# ---- through Ray


@pytest.mark.slow
def test_a_detached_run_outlives_the_command_that_made_it_and_is_seen_stopped_and_resumed(ray_folder, tmp_path):
    config = write_config(tmp_path, params={"sleep_s": 0.2}, sweep={"x": {"linspace": [0, 1, 40]}})
    command = [*QDRUN, "submit", str(config), "--detach", "--json"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    data = json.loads(made.stdout)
    assert (data["schema"], data["state"], data["exit_code"], data["trials"]) == ("qdrun.submit/1", "running", 0, 40)
    run = RunFolder(data["folder"])
    assert os.getsid(data["process"]) == data["process"] != os.getsid(0), "a session of its own: no terminal ends it"
    deadline = time.monotonic() + 100
    while status.status(run)["counts"].get("done", 0) < 2:
        assert time.monotonic() < deadline and status.status(run)["state"] == "running", Path(data["log"]).read_text()
        time.sleep(0.1)
    again = CliRunner().invoke(app, ["resume", run.uri])
    assert again.exit_code == 2 and f"is run by process {data['process']}" in again.stderr
    assert "asked to stop" in CliRunner().invoke(app, ["cancel", run.uri]).output
    assert CliRunner().invoke(app, ["watch", run.uri]).exit_code == 1
    assert load(run.uri).wait().state == "cancelled"
    resumed = CliRunner().invoke(app, ["resume", run.uri, "--detach", "--wait", "--json"])
    data = json.loads(resumed.stdout)
    assert (resumed.exit_code, data["state"], data["ended"]["state"]) == (0, "cancelled", "done")
    assert data["ended"]["counts"] == {"done": 40} and len(data["kept"]) >= 2
