"""Runs on a real head with its dashboard: as Ray Jobs from outside, joined, with the runner and with the head killed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from runner_helpers import FAKES, write_config

from qdrun.runner.ray_adapter.jobs_api import ask, known_dead
from qdrun.runner.store import status
from qdrun.runner.store.encoding import document, read_document
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.store.owner import latest_owner
from qdrun.runner.store.replay import replay

QDRUN = [sys.executable, "-c", "from qdrun.runner.cli.app import main; main()"]
PATIENCE_S = 150.0


def free_ports(count):
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


@pytest.fixture(scope="module")
def head():
    """A head with a folder and a token of its own; ``environment`` is that of commands that know the token."""
    folder = tempfile.mkdtemp(prefix="qh", dir="/tmp")
    token = Path(folder, "token")
    token.write_text("0123456789abcdef" * 4)
    environment = os.environ | {"RAY_TMPDIR": folder, "RAY_AUTH_TOKEN_PATH": str(token), "RAY_AUTH_MODE": "token"}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "RAY_USAGE_STATS_ENABLED": "0"}
    ports = [str(port) for port in free_ports(2)]
    made = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("head_for_tests.py")), *ports],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=Path(folder, "log").open("w"),
        env=environment,
        text=True,
    )
    assert made.stdout is not None and made.stdin is not None
    line = made.stdout.readline()
    while line and not line.startswith("{"):
        line = made.stdout.readline()
    assert line, Path(folder, "log").read_text()
    mine = pytest.MonkeyPatch()
    mine.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    mine.delenv("RAY_AUTH_TOKEN", raising=False)
    yield {**json.loads(line), "environment": environment}
    mine.undo()
    made.stdin.close()
    made.wait(60)
    shutil.rmtree(folder, ignore_errors=True)


def qdrun(head, *words, **options):
    return subprocess.run(
        [*QDRUN, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=head["environment"],
        timeout=PATIENCE_S,
        **options,
    )


def until(happens, folder):
    deadline = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < deadline, status.status(folder)
        time.sleep(0.1)


def rows_done(folder):
    return replay(folder).counts()["done"]


@pytest.mark.slow
def test_a_run_from_outside_as_a_job_of_the_cluster(head, tmp_path):
    """The job's file and its helper are only here; the head finds them in what was shipped."""
    project = tmp_path / "project"
    (project / "helping").mkdir(parents=True)
    (project / "helping" / "one.py").write_text("ONE = 1.0\n")
    source = FAKES.read_text() + "\n\nfrom helping.one import ONE\n\n\nclass Own(Quadratic):\n    extra = ONE\n"
    (project / "own.py").write_text(source)
    config = write_config(project, target="own.py:Own")
    done = qdrun(head, "submit", config, "--address", head["dashboard"], "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(done.stdout)
    assert (data["state"], data["counts"]) == ("done", {"done": 3})
    (job,) = [job for job in ask(head["dashboard"], "/api/jobs/") if job["submission_id"] == data["run"]]
    assert job["metadata"]["job_name"] == "fake" and job["metadata"]["trials"] == "3"
    assert job["entrypoint"].startswith("python -P -m qdrun.runner.remote.entry ")
    run = RunFolder(data["folder"])
    assert Path(run.config()["job"]["target"].rpartition(":")[0]) == project / "own.py"
    until(lambda: ask(head["dashboard"], f"/api/jobs/{data['run']}")["status"] == "SUCCEEDED", run)
    assert known_dead(run, latest_owner(run))


@pytest.mark.slow
def test_a_run_that_the_cluster_cannot_see_or_start_says_why(head, tmp_path):
    config = write_config(tmp_path)
    hidden = qdrun(head, "submit", config, "--address", head["dashboard"], "--output", "/proc/self/cwd/not-here", cwd=tmp_path)
    assert (hidden.returncode, hidden.stdout) == (4, "")
    assert "cannot be reached from" in hidden.stderr and "do: set `storage` in the config" in hidden.stderr
    (run,) = (tmp_path / "not-here").iterdir()
    assert status.status(RunFolder(run))["state"] == "failed"
    wrong = tmp_path / "token"
    wrong.write_text("f" * 64)
    environment = head["environment"] | {"RAY_AUTH_TOKEN_PATH": str(wrong)}
    refused = qdrun({"environment": environment}, "submit", config, "--address", head["dashboard"])
    assert refused.returncode == 4 and f"the token in {wrong} was sent, which is not the cluster's" in refused.stderr


@pytest.mark.slow
def test_a_killed_runner_is_known_dead_and_a_killed_head_makes_the_run_lost(head, tmp_path):
    """Last: it ends the head. A run whose runner is gone goes on at once; one whose head is gone says so and can be resumed."""
    config = write_config(tmp_path, params={"sleep_s": 0.2}, sweep={"x": {"linspace": [0, 1, 4000]}})
    made = qdrun(head, "submit", config, "--address", head["dashboard"], "--detach", "--json")
    data = json.loads(made.stdout)
    run = RunFolder(data["folder"])
    until(lambda: rows_done(run) >= 2, run)
    owner = json.loads((run.path / "owners/000001.json").read_text())
    os.kill(owner["pid"], signal.SIGKILL)
    for name in ("owners/000001.json", "heartbeat.json"):  # as on another machine, where nobody can look for the process
        path = run.path / name
        path.write_bytes(document(read_document(path.read_bytes()) | {"host": "elsewhere"}))
    until(lambda: known_dead(run, latest_owner(run)), run)
    before = rows_done(run)
    # the resumed run joins the head from here
    resuming = subprocess.Popen(
        [*QDRUN, "resume", run.uri, "--address", head["address"]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=head["environment"] | {"QDRUN_HEAD_PATIENCE_S": "3"},
    )
    until(lambda: rows_done(run) > before, run)
    found = json.loads((run.path / "owners/000002.json").read_text())
    jobs = ask(head["dashboard"], "/api/jobs/")
    (driver,) = [job for job in jobs if (job["driver_info"] or {}).get("pid") == str(found["pid"])]
    assert (driver["type"], driver["submission_id"], driver["status"]) == ("SUBMISSION", run.name, "RUNNING")
    assert driver["metadata"]["run"] == run.name and driver["metadata"]["job_name"] == "fake"
    os.kill(head["gcs"], signal.SIGKILL)
    out, err = resuming.communicate(timeout=PATIENCE_S)
    assert resuming.returncode == 5, err
    assert "the run is lost" in err and "does not answer" in err
    # a run that hangs for longer than it may, on a busy machine, is ended by the watch, whose words are errors
    assert (out.startswith("lost: ") or not out) and f"next: qdrun resume {run.uri}" in out + err
    state = status.status(run)
    assert state["state"] == "lost" and set(state["counts"]) == {"done", "lost"} and state["counts"]["done"] > before
    assert replay(run).doubled == 0
