"""Commands that need no Ray: plan, results, status, devices, cancel; exit codes, JSON, plain output."""

import json
import subprocess
import sys
import time

import pytest
from runner_helpers import trial_record, write_config
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.observe.board import Board
from qdrun.runner.observe.live import PlainLines, display
from qdrun.runner.store.encoding import document
from qdrun.runner.store.follower import segments
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder, create
from qdrun.runner.store.owner import cancel_requests
from qdrun.runner.study.plan import make_plan
from qdrun.runner.study.prepare import prepare

run = CliRunner().invoke


@pytest.fixture
def half_done(tmp_path):
    """A run with one finished trial, one failed, one running; the process behind it is this one."""
    prepared, job = prepare(write_config(tmp_path, sweep={"mood": ["good", "raise", "hang", "crash"]}))
    folder = create(prepared, tmp_path / "runs")
    folder.save_plan(make_plan(prepared, job))
    with Journal(folder) as journal:
        journal.write("submitted")
        for trial in prepared.trials[:3]:
            journal.write("started", trial=trial.id, attempt=1)
        for trial in prepared.trials[:2]:
            journal.write("ended", trial=trial.id, attempt=1, **trial_record(prepared.spec(trial)))
    return folder


def test_plan_shows_trials_bytes_by_kind_and_where_they_come_from(tmp_path):
    config = write_config(tmp_path, sweep={"size": [4, 1000], "x": [0, 1, 2, 3]}, limits={"memory": "1KiB"})
    result = run(app, ["plan", str(config)])
    assert result.exit_code == 3  # the large ones do not fit
    assert "fake: 8 trials of" in result.stdout
    assert "... and 3 more" in result.stdout
    assert "1000 cells x 8 bytes" in result.stdout
    assert "larger than limits.memory (1024 bytes)" in result.stdout
    data = json.loads(run(app, ["plan", str(config), "--json"]).stdout)
    assert [(len(group["trials"]), group["bytes"], group["fits"]) for group in data["memory"]] == [
        (4, 64, True),
        (4, 16000, False),
    ]
    assert data["memory"][0]["by_kind"] == {"state": 32, "gradients": 32}
    assert not (tmp_path / "runs").exists()


def test_a_wrong_config_exits_2_and_starts_nothing(tmp_path):
    config = write_config(tmp_path, params={"sizee": 3})
    for command in ("plan", "submit"):
        result = run(app, [command, str(config)])
        assert result.exit_code == 2
        assert "did you mean `size`?" in result.stderr
        error = json.loads(run(app, [command, str(config), "--json"]).stdout)["error"]
        assert error["problems"][0]["line"] == 3
        assert "size" in error["problems"][0]["allowed"]
    assert not (tmp_path / "runs").exists()


def test_results_work_while_the_run_goes_on_in_every_format(half_done, tmp_path):
    rows = json.loads(run(app, ["results", str(half_done.path), "--format", "json"]).stdout)
    assert [row["status"] for row in rows] == ["done", "failed", "running", "waiting"]
    assert rows[0]["grad.x"] == 2.0
    text = run(app, ["results", half_done.path.name, "--runs", str(tmp_path / "runs")]).stdout
    assert "RuntimeError: the fake job raises" in text
    lines = run(app, ["results", str(half_done.path), "--format", "csv"]).stdout.splitlines()
    assert lines[0].startswith("trial,index,replicate,seed,status,loss")
    assert len(lines) == 5
    out = tmp_path / "table.parquet"
    assert run(app, ["results", str(half_done.path), "--format", "parquet", "-o", str(out)]).exit_code == 0
    assert out.read_bytes()[:4] == b"PAR1"


def test_a_journal_with_a_torn_last_line_is_still_read(half_done):
    journal = half_done.path / next(segments(half_done))
    journal.write_bytes(journal.read_bytes()[:-20])
    rows = json.loads(run(app, ["results", str(half_done.path), "--json"]).stdout)["rows"]
    assert [row["status"] for row in rows] == ["done", "running", "running", "waiting"]


def test_status_tells_a_running_run_from_a_lost_one(half_done, tmp_path):
    (state,) = json.loads(run(app, ["status", str(half_done.path), "--json"]).stdout)["runs"]
    assert (state["state"], state["trials"], state["best"]["loss"]) == ("running", 4, 1.0)
    (half_done.path / "heartbeat.json").write_bytes(document({"t": time.time() - 100, "pid": 1, "host": "elsewhere"}))
    listed = json.loads(run(app, ["status", "--runs", str(tmp_path / "runs"), "--json"]).stdout)
    assert [entry["state"] for entry in listed["runs"]] == ["lost"]
    assert "lost" in run(app, ["status", "--runs", str(tmp_path / "runs")]).stdout
    assert "nothing to stop, the run is lost" in run(app, ["cancel", str(half_done.path)]).stdout
    assert not cancel_requests(half_done).whole


def test_a_run_that_is_planned_for_long_still_shows_signs_of_life(half_done):
    from qdrun.runner.engine.session import beating

    heartbeat = half_done.path / "heartbeat.json"
    heartbeat.unlink()
    with Journal(half_done) as journal, beating(journal):
        deadline = time.monotonic() + 30
        while not heartbeat.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert json.loads(run(app, ["status", str(half_done.path), "--json"]).stdout)["runs"][0]["state"] == "running"


def test_a_run_that_is_not_there_names_those_that_are(half_done, tmp_path):
    for command in ("results", "status", "cancel"):
        result = run(app, [command, "nothing", "--runs", str(tmp_path / "runs")])
        assert result.exit_code == 2
        assert half_done.path.name in result.stderr


def test_devices_say_what_is_usable_and_why_not(tmp_path):
    rows = {row["backend"]: row for row in json.loads(run(app, ["devices", "--json"]).stdout)["devices"]}
    assert list(rows) == ["cpu", "cuda", "amdgpu", "vulkan", "metal"]
    assert rows["cpu"]["usable"]
    assert rows["cpu"]["memory_bytes"] >= rows["cpu"]["free_bytes"] > 0 and rows["cpu"]["pool"] and rows["cpu"]["kind"]
    assert all(bool(row["why"]) is not row["usable"] for row in rows.values())
    assert "why not" in run(app, ["devices"]).stdout


def test_commands_that_only_look_do_not_import_ray(half_done, tmp_path):
    config = write_config(tmp_path)
    commands = [
        ["plan", str(config)],
        ["results", str(half_done.path)],
        ["status"],
        ["devices"],
        ["results", str(half_done.path), "-f", "parquet"],
        ["results", str(half_done.path), "--json", "--sort", "loss"],
        ["ls"],
        ["ls", "--json"],
        ["logs", str(half_done.path)],
        ["status", str(half_done.path), "--json"],
        ["watch", str(half_done.path), "--json"],
        ["devices", "--json"],
        ["plan", str(config), "--json", "--device-memory", "24GiB*2"],
    ]
    code = f"""
import sys
from qdrun.runner.cli.app import app
for command in {commands!r}:
    assert app(command, standalone_mode=False) in (None, 0), command
    assert "ray" not in sys.modules, command
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_progress_is_plain_lines_where_there_is_no_terminal(capsys):
    board = Board(run="r", total=2, phase="running")
    screen = display(board)
    assert isinstance(screen._shown, PlainLines)
    with screen:
        board.started("a", "x=1")
        board.stopped("a", "done", "x=1", 0.5)
        board.started("b", "x=2")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[0] == "run r: 2 trials"
    assert "running: 1/2 trials, 1 running, best 0.5 (x=1)" in shown.err
    assert "\x1b" not in shown.err


@pytest.mark.parametrize(("variable", "coloured"), [("NO_COLOR", False), ("FORCE_COLOR", True)])
def test_no_color_is_honoured_on_a_terminal(variable, coloured, monkeypatch):
    import io

    from qdrun.runner.observe.live import LiveBoard

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(variable, "1")
    board = Board(run="r", total=2, notes=["x=1 failed"])
    screen = display(board)
    assert isinstance(screen._shown, LiveBoard)
    with screen:
        screen.note("x=1 failed")
    shown = terminal.getvalue()
    assert "x=1 failed" in shown
    assert ("\x1b[31m" in shown) is coloured


def test_the_run_folder_keeps_the_config_as_it_was_and_as_it_was_understood(half_done):
    assert (half_done.path / "config.yaml").read_text().startswith("version: 1")
    resolved = RunFolder(half_done.path).config()
    assert resolved["device"] == {"backend": "cpu", "threads": 1, "together": False}
    assert resolved["gradients"] == ["x", "target"]
    assert len(half_done.trials()) == 4
