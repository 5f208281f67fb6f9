"""What a terminal does to a run: Ctrl-C once and twice, its end, and a reader of the output that has gone."""

import errno
import io
import os
import pty
import select
import signal
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from runner_helpers import only_run, write_config

from qdrun.runner.engine.resume import look
from qdrun.runner.engine.session import Stops, counted_signals
from qdrun.runner.observe import live
from qdrun.runner.observe.board import Board
from qdrun.runner.store import status
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.store.replay import replay

QDRUN = [sys.executable, "-c", "from qdrun.runner.cli.app import main; main()"]
PATIENCE_S = 120.0


@pytest.mark.parametrize(("number", "asks"), [(signal.SIGINT, 1), (signal.SIGTERM, 2), (signal.SIGHUP, 2)])
def test_signals_ask_a_run_to_stop_and_all_but_ctrl_c_to_stop_now(number, asks):
    before = signal.signal(number, signal.default_int_handler)  # these tests may run under nohup themselves
    try:
        with counted_signals(stops := Stops()):
            os.kill(os.getpid(), number)
            assert stops.count == asks
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_a_run_under_nohup_outlives_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with counted_signals(stops := Stops()):
            os.kill(os.getpid(), signal.SIGHUP)
            assert stops.count == 0
    finally:
        signal.signal(signal.SIGHUP, before)


class Gone(io.StringIO):
    """A terminal, or a pipe, that goes away after some writes."""

    def __init__(self, left, error, terminal):
        super().__init__()
        self.left, self.error, self.terminal = left, error, terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return len(text)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the thread of rich that draws ends of it
@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize(
    ("error", "terminal"),
    [(BrokenPipeError(errno.EPIPE, "gone"), False), (OSError(errno.EIO, "gone"), True), (ValueError("closed file"), False)],
)
def test_a_run_that_nobody_sees_any_more_goes_on(left, error, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Gone(left, error, terminal))
    monkeypatch.setattr(live, "LINE_EVERY_S", 0.0)
    board, before = Board(run="r", total=2), set(threading.enumerate())
    with live.display(board) as screen:
        for k in range(3):
            screen.note(f"note {k}")
            board.stopped(f"t{k}", "done", "", 1.0, {})
            screen.update()
    for thread in set(threading.enumerate()) - before:
        thread.join(10.0)
        assert not thread.is_alive(), thread


@pytest.mark.slow
def test_ctrl_c_twice_stops_what_runs_at_once_and_the_run_can_be_resumed(ray_folder, tmp_path):
    """Through the command on a terminal of its own: the first lets two trials of ten minutes go on, the second ends them."""
    config = write_config(tmp_path, params={"sleep_s": 600.0}, sweep={"x": [0, 1, 2, 3]})
    mark = f"QDRUN_TEST={uuid.uuid4().hex}"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(
            QDRUN[0],
            [*QDRUN, "submit", str(config)],
            os.environ | {"TERM": "xterm", "COLUMNS": "200"} | dict([mark.split("=")]),
        )
    said = b""

    def until(happens):
        nonlocal said
        end = time.monotonic() + PATIENCE_S
        while not happens():
            assert time.monotonic() < end, said.decode(errors="replace")
            if select.select([terminal], [], [], 0.05)[0]:
                try:
                    said += os.read(terminal, 1 << 16)
                except OSError:  # its other end is closed
                    return

    def state():
        runs = list((tmp_path / "runs").glob("*/run.json"))
        return replay(RunFolder(runs[0].parent)) if runs else None

    until(lambda: (found := state()) is not None and found.counts()["running"] >= 1)
    running = state().counts()["running"]
    os.write(terminal, b"\x03")
    until(lambda: b"Ctrl-C again stops them now" in said)
    assert f"waiting for {running} running trials".encode() in said and state().counts()["running"] == running
    os.write(terminal, b"\x03")
    until(lambda: False)
    _, ended = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(ended) == 130, said.decode(errors="replace")
    os.close(terminal)
    folder = RunFolder(only_run(tmp_path))
    assert b"next: qdrun resume " + folder.uri.encode() in said
    assert status.status(folder)["state"] == "interrupted" and state().counts() == {"cancelled": 4}
    assert list(look(folder).retried) == [trial.id for trial in folder.trials()]
    left = [path for path in Path("/proc").glob("[0-9]*") if mark.encode() in _environment(path)]
    assert not left, [Path(path, "cmdline").read_bytes() for path in left]


def _environment(process):
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""
