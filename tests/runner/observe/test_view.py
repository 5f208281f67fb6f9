"""One model of a run: from the runner's board, and from the journal alone."""

import math
import subprocess
import sys

import pytest
from made_runs import GIB, SNAPSHOT

from qdrun.runner.observe.board import Board
from qdrun.runner.observe.live import line
from qdrun.runner.observe.view import RunningTrial, device_views, rate, reasons, view_of
from qdrun.runner.store.layout import BEAT_STEPS, RunFolder


@pytest.fixture
def half(made, monkeypatch):
    """Six trials: one done, one failed, one tried again and running, one running, two wait."""
    run = made([{"x": i} for i in range(6)])
    run.at(monkeypatch, 0, "snapshot", **SNAPSHOT)
    run.start(monkeypatch, 1, 0, device="gpu:0", bytes=GIB)
    run.end(monkeypatch, 5, 0, loss=2.5)
    run.start(monkeypatch, 1, 1, device="gpu:0", bytes=GIB)
    run.end(monkeypatch, 6, 1, status="failed", loss=None, error={"type": "Bad", "message": "no \x1b[31m\nmore"})
    run.start(monkeypatch, 2, 2, device="gpu:0", bytes=GIB)
    run.at(monkeypatch, 3, "retry", 2, failure="crash", error={"type": "Crash", "message": "signal 11"})
    run.start(monkeypatch, 3, 2, attempt=2, device="gpu:0", bytes=GIB)
    lost = {"type": "WorkerStopped", "message": "its worker was stopped"}
    run.at(monkeypatch, 4, "retry", 2, attempt=2, failure="infrastructure", charged=False, error=lost)
    run.start(monkeypatch, 4, 2, attempt=3, device="gpu:0", bytes=2 * GIB)
    run.start(monkeypatch, 5, 3, device="gpu:1", bytes=GIB)
    yield run
    run.journal.close()


def test_a_running_run(half, monkeypatch):
    monkeypatch.setattr(RunFolder, "clock", lambda self: half.began + 11.0)
    view = view_of(half.folder)
    assert (view.state, view.total, view.ended, view.over) == ("running", 6, 2, False)
    assert view.counts == {"done": 1, "failed": 1, "running": 2, "waiting": 2}
    assert view.rate == pytest.approx(0.2)  # two ends in the ten seconds since the first start
    assert view.eta_s == pytest.approx(20.0)
    assert view.best == (2.5, "x=0")
    assert [(lane.label, lane.device, round(lane.seconds), lane.bytes) for lane in view.lanes] == [
        ("x=2", "gpu:0", 7, 2 * GIB),
        ("x=3", "gpu:1", 6, GIB),
    ]
    assert [(f.label, f.kind, f.message) for f in view.failures] == [("x=1", "Bad", "no \ufffd[31m")]
    assert view.retries == {"crash": 1, "repeated": 1}, "the second was lost with a worker"
    assert [(r.count, r.text) for r in view.reasons] == [(2, SNAPSHOT["waiting"][0]["why"])]


def test_a_run_whose_owner_is_gone_runs_nothing(half, monkeypatch):
    monkeypatch.setattr("qdrun.runner.observe.view.run_state", lambda folder, found: "lost")
    view = view_of(half.folder)
    assert view.counts == {"done": 1, "failed": 1, "waiting": 4}
    assert (view.lanes, view.reasons, view.devices, view.eta_s, view.over) == ((), (), (), None, True)
    assert view.seconds == pytest.approx(5.0)  # to the last event in the journal


def test_devices_have_what_the_packer_says():
    (device,) = device_views(SNAPSHOT | {"used": {"gpu0": 5}}, ())
    assert (device.id, device.pool, device.kind, device.capacity, device.lanes, device.running, device.used) == (
        *("gpu:0", "gpu0", "l4", 20 * GIB),
        *(4, 1, 5),
    )
    assert device.claimed == 4 * GIB  # three of what runs, one of its process


def test_devices_without_a_snapshot_are_those_of_the_lanes():
    lanes = [RunningTrial("a", "", "gpu:1", 0.0, 3), RunningTrial("b", "", "gpu:1", 0.0, 4), RunningTrial("c", "", "cpu", 0.0)]
    found = device_views(None, lanes)
    assert [(d.id, d.claimed, d.running, d.capacity, d.lanes) for d in found] == [
        ("cpu", 0, 1, None, None),
        ("gpu:1", 7, 2, None, None),
    ]


def test_a_reservation_is_a_reason():
    reserved = {"device": "gpu:0", "request": "r1", "why": "overtaken", "bytes": 1, "since": 0.0}
    assert [r.text for r in reasons({"waiting": [], "reservation": reserved}, 1)] == ["gpu:0 is reserved for r1: overtaken"]
    assert reasons(None, 3) == ()
    two = {
        "waiting": [
            {"count": 1, "example": "a", "why": "x"},
            {"count": 4, "example": "b", "why": "y"},
            {"count": 2, "user": "u"},
        ]
    }
    assert [(r.count, r.text) for r in reasons(two, 9)] == [(1, "x"), (4, "y")]
    assert reasons(two, 0) == ()  # of a snapshot that is older than the last start


def test_the_rate_is_that_of_the_last_two_minutes():
    assert rate([1.0, 2.0], None, 10.0) is None
    assert rate([], 0.0, 10.0) is None
    assert rate([1.0, 2.0], 0.0, 10.0) == pytest.approx(0.2)
    assert rate([1.0] * 50 + [950.0] * 6, 0.0, 1000.0) == pytest.approx(6 / 120)


def test_the_board_says_the_same_as_the_journal(half, monkeypatch):
    board = Board(run="r", total=6, phase="running", snapshot=SNAPSHOT)
    board.started("0", "x=0", "gpu:0", GIB)
    board.stopped("0", "done", "x=0", 2.5, {})
    board.started("1", "x=1", "gpu:0", GIB)
    board.stopped("1", "failed", "x=1", None, {"error": {"type": "Bad", "message": "no \x1b[31m\nmore"}})
    board.started("2", "x=2", "gpu:0", GIB)
    board.retried("2", "crash")
    board.started("2", "x=2", "gpu:0", GIB)
    board.retried("2", "infrastructure", False)
    board.started("2", "x=2", "gpu:0", 2 * GIB)
    board.started("3", "x=3", "gpu:1", GIB)
    mine, theirs = board.view(), view_of(half.folder)
    for name in ("counts", "best", "retries", "reasons", "ended", "total", "state", "devices"):
        assert getattr(mine, name) == getattr(theirs, name), name
    assert [(f.label, f.kind, f.message) for f in mine.failures] == [(f.label, f.kind, f.message) for f in theirs.failures]
    assert [(lane.label, lane.device, lane.bytes) for lane in mine.lanes] == [
        (lane.label, lane.device, lane.bytes) for lane in theirs.lanes
    ]


def test_steps_of_running_trials_are_shown_and_forgotten():
    board = Board(run="r", total=1)
    board.started("0", "x=0")
    logged = {"step": 3, "t": 0.0, "values": {"loss": 0.5}}
    board.follow({"0": {"text": "time step 3 of 40"} | logged, "gone": {"text": "time step 9"}})
    (lane,) = board.view().lanes
    assert (lane.step, lane.values, lane.at) == ("time step 3 of 40", {"loss": 0.5}, 3) and "gone" not in board.steps
    assert line(board.view()) == "starting Ray: 0/1 trials, 1 running, time step 3 of 40"
    board.stopped("0", "done", "x=0", 1.0)
    assert board.steps == {} and board.view().lanes == ()


def test_the_heartbeat_says_how_far_running_trials_are(half):
    names = [trial.id for trial in half.trials]
    far = {"text": "time step 3 of 40, loss inf", "step": 3, "t": 1.5, "values": {"loss": math.inf, "\x1b": 1.0}}
    half.journal.beat({names[2]: far, names[3]: {"text": "no \x1b[31m"}})
    lanes = view_of(half.folder).lanes
    assert [lane.step for lane in lanes] == ["time step 3 of 40, loss inf", "no \ufffd[31m"]
    assert [(lane.values, lane.at) for lane in lanes] == [({"loss": math.inf, "\ufffd": 1.0}, 3), ({}, None)]
    half.journal.beat({names[3]: {"text": "backward"}})
    assert [lane.step for lane in view_of(half.folder).lanes] == ["", "backward"]
    half.journal.beat({f"t{k}": {"text": "run"} for k in range(2 * BEAT_STEPS)})
    assert len(half.folder.last_beat()["steps"]) == BEAT_STEPS
    half.journal.beat()
    assert [lane.step for lane in view_of(half.folder).lanes] == ["", ""] and half.folder.last_beat()["steps"] == {}


def test_a_batch_is_one_line_with_what_the_best_of_its_trials_has_logged(half):
    first, second = half.trials[4].id, half.trials[5].id
    half.journal.write("begun", trials=[first, second], attempts=[1, 1], launch=7, device="gpu:1", bytes=GIB, sync=True)
    said = {"text": "optimize step 3 of 9", "step": 3, "t": 0.0, "values": {"loss": 0.5}}
    half.journal.beat({first: said})
    board = Board(run="r", total=6, phase="running")
    board.batch_started(7, first, 2, "x=4", "gpu:1", GIB)
    board.follow({first: said, second: said})
    for view in (view_of(half.folder), board.view()):
        lane = next(lane for lane in view.lanes if lane.trial == first)
        assert (lane.trial, lane.label, lane.bytes) == (first, "2 trials from x=4 on", GIB)
        assert (lane.step, lane.values, lane.at) == ("optimize step 3 of 9", {"loss": 0.5}, 3)
    assert len(view_of(half.folder).lanes) == 3
    board.batch_over(7)
    assert board.steps == {}


class Exported:
    def __init__(self):
        self.calls = []

    def observe(self, view):
        self.calls.append(("observe", dict(view.counts)))

    def started(self, trials, waited_s):
        self.calls.append(("started", trials, waited_s))

    def ended(self, record):
        self.calls.append(("ended", record["status"]))

    def retried(self, failure):
        self.calls.append(("retried", failure))


def test_the_board_exports_what_it_is_told(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("qdrun.runner.observe.board.time.monotonic", lambda: clock[0])
    board = Board(run="r", total=2, metrics=Exported(), began=90.0)
    board.started("0", "x=0", "gpu:0", GIB)
    board.tick()
    board.tick()  # within the same second
    board.retried("0", "crash")
    clock[0] = 103.0
    board.passed("0", 4)  # the batch has ended already
    board.stopped("0", "done", "x=0", 1.0, {"status": "done"})
    board.tick()
    board.tick(now=True)
    assert board.metrics.calls == [
        *(("started", 1, 10.0), ("observe", {"running": 1, "waiting": 1}), ("retried", "crash")),
        *(("started", 4, 3.0), ("ended", "done"), *[("observe", {"done": 1, "waiting": 1})] * 2),
    ]


def test_views_never_import_ray():
    names = ("view", "board", "live", "device_load", "report.document")
    code = "import sys\n" + "".join(f"import qdrun.runner.observe.{name}\n" for name in names)
    code += "assert 'ray' not in sys.modules and 'plotly' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd="/").returncode == 0
