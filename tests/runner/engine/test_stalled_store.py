"""A store that stalls: what has happened waits for it in order, and the run goes on with everything else. Without Ray."""

import os
import threading
import time

import pytest

from qdrun.runner.engine import loop, writer_threads
from qdrun.runner.engine import messages as m
from qdrun.runner.engine.failures import Rules
from qdrun.runner.engine.parts import TrialAt
from qdrun.runner.engine.session import beating
from qdrun.runner.engine.state import SweepState
from qdrun.runner.engine.writer_threads import JournalWriter, StoreWatch
from qdrun.runner.store import files as store_files
from qdrun.runner.store.files import LocalFiles, StorageFull
from qdrun.runner.store.follower import read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder, write_run
from qdrun.runner.store.owner import OwnerLost, ask_to_cancel, take
from qdrun.runner.upkeep.space import SPARE_BYTES

from . import test_devices_change as made
from .test_devices_change import SMALL, Changing, Claim, done, run
from .world import granted

PATIENCE_S = 30.0
"""A test that is wrong ends after so long instead of hanging."""


class Disk:
    """``os`` of a disk that takes no bytes while it is stalled. ``names``: the calls that wait."""

    def __init__(self, names=("write", "fsync")):
        self.names, self.answers, self.waited = names, threading.Event(), 0
        self.answers.set()

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in self.names:
            return real

        def call(*words, **options):
            if not self.answers.is_set():
                self.waited += 1
                assert self.answers.wait(PATIENCE_S), "the test has not ended the stall: the run waits for the store"
            return real(*words, **options)

        return call


@pytest.fixture
def disk(monkeypatch):
    made = Disk()
    monkeypatch.setattr(store_files, "os", made)
    monkeypatch.setattr(loop, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(loop, "WAIT_S", 0.02)
    return made


def events_of(tmp_path):
    return read(RunFolder(next(tmp_path.iterdir()))).events


def test_trials_go_on_while_the_store_stalls_and_every_event_is_written_in_order(tmp_path, disk):
    begun = []

    def after(launch):
        begun.append(launch)
        if len(begun) == 3:
            disk.answers.clear()
        if len(begun) == 60:
            disk.answers.set()
        return done(launch)

    outcome, state, _ = run(tmp_path, Changing(SMALL), after, trials=80)
    assert disk.waited and outcome == "done" and state.counts() == {"done": 80}
    events = events_of(tmp_path)
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert not [event for event in events if event["event"] == "retry"]
    assert [event["t"] for event in events] == sorted(event["t"] for event in events)


@pytest.mark.parametrize("bound", ["time", "events"])
def test_a_store_that_does_not_catch_up_pauses_the_run_and_costs_no_retry(tmp_path, disk, monkeypatch, bound):
    monkeypatch.setattr(writer_threads, "STALL_S", 0.1 if bound == "time" else 3600.0)
    monkeypatch.setattr(writer_threads, "MOST_WAITING", 10 if bound == "events" else 1 << 30)
    begun, at_most = [], []

    def later():
        seen = -1
        while seen < len(begun):  # nothing begins any more
            seen = len(begun)
            time.sleep(0.3)
        at_most.append(seen)
        disk.answers.set()

    def after(launch):
        begun.append(launch)
        if len(begun) == 1:
            disk.answers.clear()
            threading.Thread(target=later).start()
        time.sleep(0.002)
        return done(launch)

    ledger = Changing(SMALL)
    ledger._ledger.lease_requests = 1  # these workers cannot be told not to begin with what they have
    outcome, state, _ = run(tmp_path, ledger, after, trials=600)
    assert outcome == "done" and state.counts() == {"done": 600}
    assert 1 <= at_most[0] < 600 and (bound == "time" or at_most[0] <= 10 + 2 * SMALL.lanes)
    assert not [event for event in events_of(tmp_path) if event["event"] == "retry"]


class Endless(made.Instant):
    """Workers whose trials end when they are asked to."""

    def ask_to_stop(self, worker, trials):
        error = {"type": "Stopped", "message": "", "traceback": ""}
        end = {"status": "cancelled", "failure": "cancelled", "error": error}
        for launch in self.launches:
            if set(launch.trials) & set(trials):
                self.news.append(m.LaunchEnded(launch.id, dict.fromkeys(launch.trials, end)))
        self.after(None)


def test_a_run_is_cancelled_while_its_store_takes_nothing(tmp_path, disk, monkeypatch):
    """Its trials run for ever, and the workers hear at once that they are to stop."""
    monkeypatch.setattr(made, "Instant", Endless)

    def after(launch):
        if launch is None:  # they are asked to stop
            end = time.monotonic() + PATIENCE_S
            while not disk.waited and time.monotonic() < end:
                time.sleep(0.01)  # the thread that writes comes to it
            disk.answers.set()
        elif disk.answers.is_set():
            disk.answers.clear()
            requests = next(tmp_path.iterdir()) / "requests"
            requests.mkdir()
            (requests / "000001-cancel-run.json").write_text("{}")
        return []

    outcome, state, launches = run(tmp_path, Changing(SMALL), after, trials=100)
    assert disk.waited and outcome == "cancelled" and state.counts() == {"cancelled": 100} and len(launches) <= SMALL.lanes


def test_a_trial_is_shown_as_done_once_its_row_is_in_the_journal(tmp_path, disk, monkeypatch):
    shown, boards, real = [], [], made.Board

    def noted(**words):
        boards.append(real(**words))
        return boards[-1]

    def later():
        time.sleep(0.3)
        shown.append(boards[0].ended)
        disk.answers.set()

    def after(launch):
        disk.answers.clear()
        threading.Thread(target=later).start()
        return done(launch)

    monkeypatch.setattr(made, "Board", noted)
    outcome, state, _ = run(tmp_path, Changing(SMALL), after, trials=1)
    assert outcome == "done" and shown == [0] and boards[0].ended == 1 and state.counts() == {"done": 1}


def test_a_worker_that_starts_while_the_run_waits_for_its_store_has_its_time_afterwards():
    rules = Rules(start_s=300.0)
    state = SweepState([TrialAt(0)], rules, lambda batch: {"gpu": Claim.of([(1, 1.0)])})
    state.start(0.0)
    state.handle(granted("l1", "d", ("t0",), 1), 0.0)
    state.handle(m.Storage(full=True), 10.0)
    assert not [a for a in state.handle(m.Tick(), 1000.0) if isinstance(a, m.Kill)] and state.next_deadline() > 1000.0
    state.handle(m.Storage(full=False), 1000.0)
    assert not [a for a in state.handle(m.Tick(), 1299.0) if isinstance(a, m.Kill)]
    assert [a for a in state.handle(m.Tick(), 1301.0) if isinstance(a, m.Kill)]


@pytest.mark.parametrize("told", ["before", "after"])
def test_a_trial_whose_result_is_written_for_minutes_is_no_timeout(told):
    """``after``: its time was up before its worker was asked again what it does."""
    state = SweepState([TrialAt(0)], Rules(timeout_s=10.0, grace_s=5.0), lambda batch: {"gpu": Claim.of([(1, 1.0)])})
    state.start(0.0)
    state.handle(granted("l1", "d", ("t0",), 1), 0.0)
    state.handle(m.Started(1), 0.0)
    if told == "before":
        state.handle(m.Saving(frozenset([0])), 9.0)
        assert state.next_deadline() == float("inf")
    asked = [a for a in state.handle(m.Tick(), 10.5) if isinstance(a, m.AskToStop)]
    assert bool(asked) == (told == "after")
    if told == "after":
        state.handle(m.Saving(frozenset([0])), 12.0)
    assert not state.handle(m.Tick(), 500.0) and state.next_deadline() == float("inf")
    (row,) = [
        a for a in state.handle(m.LaunchEnded(1, {0: {"status": "done", "loss": 1.0}}), 600.0) if isinstance(a, m.WriteEnded)
    ]
    assert row.record["status"] == "done"


def test_a_trial_that_goes_on_after_its_result_was_written_has_its_time_limit():
    state = SweepState([TrialAt(0)], Rules(timeout_s=10.0, grace_s=5.0), lambda batch: {"gpu": Claim.of([(1, 1.0)])})
    state.start(0.0)
    state.handle(granted("l1", "d", ("t0",), 1), 0.0)
    state.handle(m.Started(1), 0.0)
    state.handle(m.Saving(frozenset([0])), 9.0)
    state.handle(m.Saving(frozenset()), 11.0)
    assert [a for a in state.handle(m.Tick(), 11.5) if isinstance(a, m.AskToStop)]
    assert [a for a in state.handle(m.Tick(), 17.0) if isinstance(a, m.Kill)]


def test_the_heart_beats_while_a_line_of_the_journal_waits_for_the_store(tmp_path, disk, monkeypatch):
    monkeypatch.setattr("qdrun.runner.engine.session.BEAT_EVERY_S", 0.01)
    folder = write_run(tmp_path, "made", "version: 1\n", {"name": "made"}, [], {})
    stalled, real = threading.Event(), Journal._write_pending

    def stall(self):
        if self._pending:
            stalled.set()
            assert disk.answers.wait(PATIENCE_S)
        real(self)

    with Journal(folder) as journal:
        monkeypatch.setattr(Journal, "_write_pending", stall)
        disk.names = ()
        disk.answers.clear()
        writer = JournalWriter(journal)
        writer.put([("mark", {})])
        assert stalled.wait(PATIENCE_S)
        with beating(journal):
            before, end = folder.last_beat(), time.monotonic() + PATIENCE_S
            while folder.last_beat() == before:
                assert time.monotonic() < end
        disk.answers.set()
        writer.close()


class Lines:
    """A journal that keeps what it is given, and raises what it is told to."""

    def __init__(self, *errors):
        self.errors, self.taken = list(errors), []

    def write_all(self, events):
        self.taken += events
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return [fields["trial"] for name, fields in events if fields.get("loss") == "x"]

    def retry(self):
        return not self.errors


def test_the_writer_gives_the_journal_all_events_in_order_from_several_hands_over():
    lines = Lines()
    writer = JournalWriter(lines)
    for k in range(500):
        writer.put([("mark", {"k": 2 * k}), ("mark", {"k": 2 * k + 1})])
    writer.put([("ended", {"trial": "bad", "loss": "x"})])
    assert writer.settle(PATIENCE_S) and writer.spoiled() == ["bad"] and writer.spoiled() == []
    assert [fields["k"] for name, fields in lines.taken[:-1]] == list(range(1000))
    writer.close()


def test_a_store_that_refuses_is_named_until_it_takes_lines_again(monkeypatch):
    monkeypatch.setattr(writer_threads, "SYNC_EVERY_S", 0.01)
    lines = Lines(StorageFull("no room"), StorageFull("still no room"))
    writer = JournalWriter(lines)
    writer.put([("mark", {})])
    assert writer.settle(PATIENCE_S) and str(writer.refusal) == "no room"
    writer.put([("mark", {})])
    assert writer.settle(PATIENCE_S)
    end = time.monotonic() + PATIENCE_S
    while writer.refusal is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert writer.refusal is None and len(lines.taken) == 2
    writer.close()


def test_a_run_that_was_taken_over_writes_nothing_more_and_says_so(tmp_path):
    lines = Lines(OwnerLost("taken over"))
    writer = JournalWriter(lines)
    writer.check()
    writer.put([("mark", {"k": 0})])
    assert writer.settle(PATIENCE_S)
    with pytest.raises(OwnerLost, match="taken over"):
        writer.check()
    writer.put([("mark", {"k": 1})])
    writer.close()
    assert len(lines.taken) == 1


def test_the_watch_sees_requests_and_room_and_is_not_held_up_by_its_end(tmp_path, monkeypatch):
    folder = write_run(tmp_path, "made", "version: 1\n", {"name": "made"}, [], {})
    free = [SPARE_BYTES - 1]
    monkeypatch.setattr(LocalFiles, "free_bytes", lambda self: free[0])
    owner = take(folder)
    watch = StoreWatch(folder, owner, 0.01)

    def until(what):
        end = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < end
            time.sleep(0.005)

    ask_to_cancel(folder, "t1")
    until(lambda: watch.requests.trials == {"t1"} and not watch.requests.whole)
    watch.cramped()
    time.sleep(0.05)
    assert not watch.room
    free[0] = SPARE_BYTES
    until(lambda: watch.room)
    watch.close()


def test_a_process_that_was_stopped_starts_nothing_in_a_run_that_was_taken_over(tmp_path, monkeypatch):
    """Ctrl-Z and `fg`, while the loop waits for its workers: the gap between two steps says that it was away."""
    begun, known = [], []
    monkeypatch.setattr(loop, "ASLEEP_S", 0.3)

    class Stopped(made.Instant):
        def poll(self, *words):
            found = super().poll(*words)
            if found and len(begun) >= 3 and not known:
                known.append(len(begun))
                (next(tmp_path.iterdir()) / "owners" / "000002.json").write_text("{}")
                time.sleep(0.4)
            return found

    monkeypatch.setattr(made, "Instant", Stopped)

    def after(launch):
        begun.append(launch)
        return done(launch)

    ledger = Changing(SMALL)
    ledger._ledger.lease_requests = 1
    with pytest.raises(OwnerLost):
        run(tmp_path, ledger, after, trials=600)
    assert known == [len(begun)]
