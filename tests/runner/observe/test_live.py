"""What a terminal shows, and what a pipe gets."""

import io
import time

import pytest
from made_runs import GIB, SNAPSHOT
from rich.console import Console

from qdrun.runner.observe import live
from qdrun.runner.observe.board import Board
from qdrun.runner.observe.live import LiveBoard, PlainLines, Silent, device_line, display, duration, line, render, watch
from qdrun.runner.observe.view import DeviceView, FailureView, RunningTrial, RunView, WaitCount

FULL = RunView(
    run="20260101-000000-drop-0a1b",
    state="running",
    total=40,
    counts={"done": 10, "running": 2, "waiting": 26, "failed": 2},
    seconds=200.0,
    rate=0.06,
    eta_s=466.0,
    best=(0.25, "E=10"),
    devices=(DeviceView("gpu:0", "p", "l4", 20 * GIB, 12 * GIB, 11 * GIB, lanes=4, running=2),),
    lanes=(RunningTrial("t", "E=3[bold]", "gpu:0", 61.0, GIB, "step 3 of 40"), RunningTrial("u", "E=4", "gpu:0", 2.0)),
    failures=(FailureView("v", "E=5", "Bad", "the [red]solver[/red] blew up"),),
    reasons=(WaitCount(26, "needs 9 GiB: pool p has 8 GiB free of 20 GiB"),),
    retries={"crash": 1, "infrastructure": 2, "repeated": 594},
)


def drawn(view, notes=(), width=120):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render(view, notes))
    return console.file.getvalue()


def test_the_board_shows_everything():
    shown = drawn(FULL)
    for text in (
        *("20260101-000000-drop-0a1b  running  3 min 20 s", "10 done  2 running  26 waiting  2 failed"),
        "3.6 trials/min, about 7 min 46 s left, best 0.25 (E=10), tried again: 1 crash, 2 infrastructure",
        "594 repeated",
        "gpu:0  2/4 lanes  claimed 12 GiB of 20 GiB, used 11 GiB",
        *("> E=3[bold]  gpu:0  step 3 of 40  1 min 01 s", "> E=4  gpu:0  2 s"),
        "26 wait: needs 9 GiB: pool p has 8 GiB free of 20 GiB",
        "! E=5 failed: Bad: the [red]solver[/red] blew up",
    ):
        assert text in shown
    assert "\n10 done" in shown, "the bar has a line of its own"


def test_notes_of_the_runner_stand_for_the_failures():
    shown = drawn(FULL, ["x=1 failed: why"])
    assert "! x=1 failed: why" in shown and "blew up" not in shown


def test_a_board_of_many_lanes_and_devices_stays_small():
    lanes = tuple(RunningTrial(str(i), f"x={i}", "d", 1.0) for i in range(100))
    devices = tuple(DeviceView(f"gpu:{i}", "p", capacity=GIB) for i in range(100))
    shown = drawn(RunView("r", "running", 100, {"running": 100}, 1.0, lanes=lanes, devices=devices))
    assert len(shown.splitlines()) <= 3 + live.SHOWN_LANES + 1 + live.SHOWN_DEVICES + 1
    assert "and 92 more" in shown and "and 84 more devices" in shown


def test_a_narrow_terminal_loses_no_words():
    shown = drawn(FULL, width=60)
    assert max(map(len, shown.splitlines())) <= 60
    assert "solver" in shown and "2/4" in shown


def test_one_line_says_it_too():
    assert line(FULL) == (
        "running: 12/40 trials, 2 running, 2 failed, 3 tried again, 594 repeated, lost with their worker, best 0.25 (E=10), "
        "3.6 trials/min, about 7 min 46 s left"
    )


def test_a_device_of_which_little_is_known():
    assert device_line(DeviceView("cpu", "cpu", claimed=512, running=3)) == "cpu  3 running  claimed 512 bytes"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_gets_lines(term, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", term)
    assert isinstance(display(Board("r", 1))._shown, PlainLines)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(display(Board("r", 1))._shown, LiveBoard)
    assert isinstance(display(Board("r", 1), quiet=True), Silent)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_come_every_ten_seconds_and_at_the_end(monkeypatch, capsys):
    clock = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    board = Board("r", 3, phase="running", began=100.0)
    with display(board) as screen:
        for second in range(25):
            clock[0] = 100.0 + second
            if second in (0, 12):
                board.started(str(second), f"x={second}")
                board.stopped(str(second), "done", f"x={second}", float(second))
            screen.update()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "run r: 3 trials"
    assert [text.split(",")[0] for text in lines[1:]] == ["running: 1/3 trials", "running: 2/3 trials", "running: 2/3 trials"]


def test_watch_follows_a_run_to_its_end(made, monkeypatch, capsys):
    run = made([{"x": i} for i in range(2)])
    run.start(monkeypatch, 1, 0, device="gpu:0", bytes=GIB)
    slept = []

    def sleep(seconds):
        """Each wait brings the run on."""
        slept.append(seconds)
        if len(slept) == 1:
            run.end(monkeypatch, 2, 0, loss=0.5)
            run.start(monkeypatch, 2, 1, device="gpu:0", bytes=GIB)
        else:
            run.end(monkeypatch, 3, 1, status="failed", loss=None, error={"type": "Bad", "message": "why"})
            run.finish(monkeypatch, 4, "failed")

    assert watch(run.folder, line_every_s=0.0, sleep=sleep) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"run {run.folder.name}: 2 trials"
    assert [text.split(",")[0] for text in lines[1:4]] == ["running: 0/2 trials", "running: 1/2 trials", "failed: 2/2 trials"]
    assert lines[4:] == ["failed: x=1: Bad: why"]
    assert all(seconds >= 1.0 for seconds in slept)


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 1), ("cancelled", 1), ("interrupted", 5)])
def test_watch_of_a_run_that_is_over(made, monkeypatch, capsys, state, code):
    run = made([{"x": 0}])
    run.finish(monkeypatch, 4, state)
    assert watch(run.folder, sleep=never) == code
    said = capsys.readouterr().err
    assert f"{state}: 0/1 trials" in said
    assert (f"next: qdrun resume {run.folder.uri}" in said) is (code == 5)


def never(seconds):
    raise AssertionError("there is nothing to wait for")


def test_watch_draws_on_a_terminal(made, monkeypatch):
    run = made([{"x": i} for i in range(2)])
    run.at(monkeypatch, 0, "snapshot", **SNAPSHOT)
    run.start(monkeypatch, 1, 0, device="gpu:0", bytes=GIB)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")

    def sleep(seconds):
        for _ in range(1000):  # the board is drawn by a thread of its own
            if "gpu:0" in terminal.getvalue():
                break
            time.sleep(0.01)
        run.finish(monkeypatch, 4, "done")

    assert watch(run.folder, sleep=sleep) == 0
    shown = terminal.getvalue()
    assert "gpu:0  1/4 lanes  claimed 4 GiB of 20 GiB" in shown
    assert "made" in shown and "  done  4 s" in shown and "\x1b[3" not in shown
