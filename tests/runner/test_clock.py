"""The clock on the wall is set while a run goes on: what is printed and decided does not jump with it."""

import os
import subprocess
import sys
import time

import pytest
from runner_helpers import write_config

from qdrun.runner import clock
from qdrun.runner.ledger import Machine, RunLedger
from qdrun.runner.ledger.inventory import pretended
from qdrun.runner.observe.timing import Timing, process_started
from qdrun.runner.observe.view import view_of
from qdrun.runner.packing import Claim, Request
from qdrun.runner.store.follower import read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import create
from qdrun.runner.store.replay import replay
from qdrun.runner.store.status import status
from qdrun.runner.study.prepare import prepare

DAYS_S = 172_777.0
JUMPS = pytest.mark.parametrize("jump_s", [-DAYS_S, DAYS_S], ids=["two days back", "two days ahead"])


@pytest.fixture
def wall(monkeypatch):
    """Sets the clock on the wall by so many seconds."""
    real = time.time

    def jump(seconds):
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    return jump


@JUMPS
def test_the_seconds_of_a_submit_are_those_that_have_passed(wall, jump_s):
    assert 0.0 < clock.now() - process_started() < 3600.0
    timing = Timing(command_t=clock.now(), submitted_t=clock.now())
    wall(jump_s)
    assert 0.0 < clock.now() - process_started() < 3600.0
    timing.planned_t = timing.ray_ready_t = timing.first_start_t = timing.ended_t = clock.now()
    lane = {"host": "h", "pid": 1, "lane": 0}
    for _ in range(3):
        began = clock.now()
        timing.add(lane | {"started_t": began, "ended_t": clock.now(), "worker_seconds": 0.0, "seconds": 0.0}, clock.now())
    timing.add(
        lane | {"started_t": clock.now(), "ended_t": clock.now() + DAYS_S, "seconds": 0.0}, clock.now()
    )  # a worker's clock
    found = timing.summary()
    del found["command_t"]
    worker = {"worker_ms_per_trial", "overhead_ms_per_trial"}
    assert all(value is not None and 0.0 <= value < 60.0 for name, value in found.items() if name not in worker), found


def test_a_command_of_another_process_whose_clock_was_set_since_is_not_before_itself():
    timing = Timing(command_t=clock.now() + DAYS_S, submitted_t=clock.now(), ended_t=clock.now())
    assert (timing.summary()["submitted_s"], timing.summary()["ended_s"]) == (0.0, 0.0)


@JUMPS
def test_a_run_that_goes_on_is_as_old_as_it_is_for_who_looks(tmp_path, wall, jump_s):
    """Its own clock has not been set: the one who looks has begun after that, and another clock on the wall."""
    prepared, _ = prepare(write_config(tmp_path, sweep={"x": [1.0, 2.0]}))
    folder = create(prepared, tmp_path / "runs")
    first, _ = folder.trial_ids()
    with Journal(folder) as journal:
        wall(jump_s)
        journal.write("started", trial=first, attempt=1, device="cpu:0", bytes=10)
        journal.beat()
        os.utime(folder.path / "heartbeat.json", (time.time(), time.time()))
        code = (
            f"import time; real = time.time; time.time = lambda: real() + {jump_s}\n"
            "import sys; from qdrun.runner.store.layout import RunFolder\n"
            "from qdrun.runner.store.status import status; from qdrun.runner.observe.view import view_of\n"
            "folder = RunFolder(sys.argv[1]); view = view_of(folder)\n"
            "print(status(folder)['seconds'], view.seconds, view.lanes[0].seconds, view.state)"
        )
        shown = subprocess.run(
            [sys.executable, "-c", code, folder.uri], capture_output=True, text=True, timeout=120, check=True
        )
        *seconds, state = shown.stdout.split()
        assert state == "running" and all(0.0 <= float(value) < 120.0 for value in seconds), shown.stdout
        journal.write("finished", state="done")
    times = [event["t"] for event in read(folder).events]
    assert times == sorted(times) and times[-1] - times[0] < 60.0
    assert 0.0 <= status(folder)["seconds"] < 60.0 and 0.0 <= view_of(folder).seconds < 60.0


@JUMPS
def test_an_attempt_of_a_worker_with_another_clock_ended_when_its_row_was_written(tmp_path, jump_s):
    prepared, _ = prepare(write_config(tmp_path, sweep={"x": [1.0]}))
    folder = create(prepared, tmp_path / "runs")
    (first,) = folder.trial_ids()
    there = clock.now() + jump_s
    with Journal(folder) as journal:
        row = {"status": "done", "loss": 1.0, "started_t": there - 3.0, "ended_t": there, "place": {"device": "d"}}
        journal.write("ended", trial=first, attempt=1, **row)
        journal.beat()
        rate = view_of(folder).rate
        (tried,) = replay(folder).trials[first].attempts
        assert abs(tried.ended_t - clock.now()) < 60.0 and tried.ended_t - tried.started_t == pytest.approx(3.0)
        assert rate is not None and rate > 1.0 / 120.0


@JUMPS
def test_leases_stay_when_the_clock_is_set(wall, jump_s):
    (card,) = pretended(1, 24 << 30, "n1", 1)
    ledger = RunLedger("made", Machine([card]))
    claims = {card.kind: Claim.of([(1 << 30, 1.0)])}
    ledger.ask([Request(name, claims, clock.now()) for name in ("a", "b")])
    (lease,) = ledger.exchange().leases
    wall(jump_s)
    answer = ledger.exchange()
    assert lease.requests == ("a",) and not answer.ended and not answer.leases


def test_the_time_of_a_shell_that_became_the_command_does_not_count():
    ask = (
        "from qdrun.runner import clock; from qdrun.runner.observe import timing; print(clock.now() - timing.process_started())"
    )
    done = subprocess.run(
        ["sh", "-c", f'sleep 2; exec "{sys.executable}" -c "{ask}"'], capture_output=True, text=True, check=True
    )
    own = float(done.stdout)
    assert 0.0 < own < 2.0, "the two seconds of the shell are not among them"
