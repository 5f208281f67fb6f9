"""What a run writes down of its trials, and how replay reads it: starts and ends that came together are one line."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from runner_helpers import write_config

from qdrun.runner import clock
from qdrun.runner.engine import messages as m
from qdrun.runner.engine.event_writer import SNAPSHOT_BYTES_S, Book, Inside, Outside
from qdrun.runner.ledger.leases import Waits
from qdrun.runner.observe.board import Board
from qdrun.runner.observe.live import display
from qdrun.runner.observe.table import rows
from qdrun.runner.provenance.devices import devices_of, kinds_of
from qdrun.runner.store.attempts import Failure
from qdrun.runner.store.columns import BatchRows, encoded
from qdrun.runner.store.follower import read, segments
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import create
from qdrun.runner.store.replay import replay
from qdrun.runner.study.prepare import prepare
from qdrun.runner.workers import BatchColumns

PLACE = {"device": "cpu:0", "bytes": 10, "time": 1.0, "slot": 0}
ROW = {"status": "done", "loss": 2.0}
ERROR = {"type": "E", "message": "no", "traceback": ""}


@pytest.fixture
def book(tmp_path):
    prepared, _ = prepare(write_config(tmp_path, sweep={"x": [1.0, 2.0, 3.0]}))
    folder = create(prepared, tmp_path / "runs")
    board = Board(run=folder.name, total=3)
    with Journal(folder) as journal, display(board, quiet=True) as screen:
        outside = Outside(folder, journal, board, screen, None, None, None, None)  # type: ignore[arg-type]
        made = Book(Inside(prepared.trials, lambda places: BatchColumns({}, {}, [])), outside)
        made.folder, made.names, made.journal = folder, list(prepared.trials.ids), journal  # type: ignore[attr-defined]
        yield made


def write(book):
    book.journal.write_all(book.events())
    book.show()


def lines(book):
    return [(e["event"], e.get("trial")) for e in read(book.folder).events if e["event"] != "owner"]


def test_a_start_and_an_end_of_one_write_are_one_line_and_an_attempt_all_the_same(book):
    a, b, _ = book.names
    book.note(m.WriteBegun(9, (0,), (1,), PLACE))
    t = clock.now()
    book.note(m.WriteEnded(0, 1, ROW | {"started_t": t - 2.0, "ended_t": t - 1.0}))
    book.note(m.WriteBegun(9, (1,), (1,), PLACE))
    write(book)
    assert lines(book) == [("ended", a), ("started", b)]
    (tried,) = replay(book.folder).trials[a].attempts
    assert (tried.status, tried.started_t, tried.ended_t, tried.place) == ("done", t - 2.0, t - 1.0, PLACE)
    found = {row["trial"]: (row["status"], row["attempts"], row["loss"]) for row in rows(book.folder)}
    assert found == {a: ("done", 1, 2.0), b: ("running", 1, None), book.names[2]: ("waiting", 0, None)}
    assert (book.board.counts, set(book.board.running), book.board.best) == ({"done": 1}, {b}, (2.0, "x=1"))


def test_the_journal_says_once_what_each_device_is_on_which_trials_have_begun(book):
    told = {"cpu:0": {"backend": "cpu", "driver": "Linux"}, "cuda:1": {"uuid": "GPU-1"}}
    book.inside = replace(book.inside, device=lambda name: told.get(name, {}))
    book.note(m.WriteBegun(9, (0,), (1,), PLACE))
    book.note(m.WriteEnded(0, 1, ROW))
    book.note(m.WriteBegun(9, (1,), (1,), PLACE | {"device": "cuda:1"}))
    write(book)
    book.note(m.WriteBegun(9, (2,), (1,), PLACE))
    book.note(m.WriteRetry(2, 1, Failure.crash, ERROR))
    book.note(m.WriteBegun(9, (2,), (2,), PLACE | {"device": "nowhere"}))
    write(book)
    assert [event for event, _ in lines(book)] == ["device", "device", "ended", "started", "started", "retry", "started"]
    assert devices_of(book.folder) == told
    assert kinds_of(devices_of(book.folder)) == ["", "cpu Linux"]


def test_an_end_in_a_later_write_and_a_retry_have_lines_of_their_own(book):
    a, b, _ = book.names
    book.note(m.WriteBegun(9, (0,), (1,), PLACE))
    write(book)
    book.note(m.WriteEnded(0, 1, ROW))
    book.note(m.WriteBegun(9, (1,), (1,), PLACE))
    book.note(m.WriteRetry(1, 1, Failure.crash, ERROR))
    book.note(m.WriteBegun(9, (1,), (2,), PLACE))
    book.note(m.WriteEnded(1, 2, {"status": "failed", "failure": Failure.user_error, "error": ERROR}))
    write(book)
    assert lines(book) == [("started", a), ("ended", a), ("started", b), ("retry", b), ("ended", b)]
    state = replay(book.folder).trials[b]
    assert [(tried.attempt.number, tried.status) for tried in state.attempts] == [(1, "retried"), (2, "failed")]
    assert book.board.notes == ["x=2 failed: E: no"]


def test_a_trial_that_needs_more_than_its_plan_is_told_but_not_a_share_of_a_batch(book):
    book.inside = replace(book.inside, planned=lambda place: 100)
    book.note(m.WriteBegun(1, (0, 1), (1, 1), PLACE))
    book.note(m.WriteEnded(0, 1, ROW | {"planned_bytes": 120}))
    write(book)
    book.note(m.WriteEnded(1, 1, ROW | {"planned_bytes": 120}))
    book.note(m.BatchOver(1))
    write(book)
    assert book.board.notes == []
    book.note(m.WriteBegun(9, (2,), (1,), PLACE))
    book.note(m.WriteEnded(2, 1, ROW | {"planned_bytes": 120}))
    write(book)
    assert book.board.notes == ["x=3: planned 100 bytes, its own plan says 120; see Job.shape_key"]


def test_a_trial_that_was_cancelled_while_it_ran_has_an_attempt_and_one_that_waited_has_none(book):
    a, b, _ = book.names
    record = {"status": "cancelled", "failure": Failure.cancelled, "error": ERROR}
    book.note(m.WriteBegun(9, (0,), (1,), PLACE))
    book.note(m.WriteEnded(0, 1, record))
    book.note(m.WriteEnded(1, 0, record))
    write(book)
    assert {row["trial"]: row["attempts"] for row in rows(book.folder)} == {a: 1, b: 0, book.names[2]: 0}
    assert all(tried.ended_t <= time.time() for tried in replay(book.folder).trials[a].attempts)


def test_a_snapshot_is_written_when_it_has_changed_and_a_large_one_rarely(book):
    """A journal of days on a large cluster does not grow by what runs where at each moment: its starts and ends say that."""

    def seen(k, lanes):
        running = [
            {"request": f"r{k}.{n}", "lease": f"l{k}.{n}", "user": "u", "bytes": 7, "since": 1.0 * k} for n in range(lanes)
        ]
        return {"pools": [{"id": "p", "free": k}], "devices": [{"id": "d", "running": running}], "waiting": ["all"]}

    def written():
        write(book)
        return [event for event in read(book.folder).events if event["event"] == "snapshot"]

    book.snapshot(seen(0, 2), {"t1": Waits(3, "full")}, now=0.0)
    (first,) = written()
    assert first["waiting"] == [{"count": 3, "example": "t1", "why": "full"}]
    assert first["devices"] == [{"id": "d", "running": [{"bytes": 7}, {"bytes": 7}]}] and first["pools"] == [
        {"id": "p", "free": 0}
    ]
    book.snapshot({**seen(1, 2), "pools": [{"id": "p", "free": 0}]}, {"t1": Waits(3, "full")}, now=5.0)
    assert len(written()) == 1  # other leases of the same bytes
    large = 5_000
    for k in range(1, 200):
        book.snapshot(seen(k, large), {}, now=5.0 * k)
    assert 10 < len(written()) < 30  # of 200; 60 KB each
    assert book.journal._segment.length < 2 * 1000 * SNAPSHOT_BYTES_S
    assert len(book.board.snapshot["devices"][0]["running"]) == large and book.board.snapshot["pools"][0]["free"] == 199


def test_equal_failures_are_said_once_while_the_run_goes_on_and_all_are_counted(book):
    for place, message in enumerate(("no\nmore", "no\nother", "never")):
        book.note(m.WriteEnded(place, 1, {"status": "failed", "failure": "user_error", "error": ERROR | {"message": message}}))
    write(book)
    assert book.board.notes == ["x=1 failed: E: no", "x=3 failed: E: never"] and book.board.counts == {"failed": 3}


def journal_lines(book):
    return [line for path in segments(book.folder) for line in book.folder.files.read(path).splitlines()]


def batch_rows(places, losses):
    columns = {"loss": encoded(np.array(losses))}
    at = int(np.argmin(losses))
    shared = {"status": "done", "seconds": 0.5, "started_t": time.time() - 2.0, "ended_t": time.time() - 1.0}
    gradients = {"x": encoded(np.arange(2.0 * len(places)).reshape(len(places), 2))}
    return BatchRows(places, (1,) * len(places), shared, columns, gradients, {}, (at, losses[at]))


def test_a_batch_that_began_and_ended_well_since_the_last_write_is_one_line(book):
    names = tuple(book.names)
    book.note(m.WriteBegun(7, range(3), (1, 1, 1), PLACE))
    book.note(m.WriteRows(7, batch_rows(range(3), [3.0, 1.0, 2.0])))
    book.note(m.BatchOver(7))
    write(book)
    kinds = [event["event"] for event in map(json.loads, journal_lines(book))][1:]
    assert kinds == ["rows"]
    assert lines(book) == [("ended", name) for name in names]
    states = replay(book.folder).trials
    assert all(states[name].attempts[0].place == PLACE and states[name].status == "done" for name in names)
    assert [row["loss"] for row in rows(book.folder)] == [3.0, 1.0, 2.0]
    assert [row["grad.x"] for row in rows(book.folder)] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    view = book.board.view()
    assert view.counts == {"done": 3} and view.best == (1.0, "x=2") and not view.lanes


def test_a_batch_runs_as_one_lane_until_it_is_over_and_failed_trials_have_lines_of_their_own(book):
    a, b, c = names = tuple(book.names)
    book.note(m.WriteBegun(7, range(3), (1, 1, 1), PLACE))
    write(book)
    view = book.board.view()
    assert view.counts == {"running": 3} and [lane.label for lane in view.lanes] == ["3 trials from x=1 on"]
    assert replay(book.folder).counts() == {"running": 3}
    book.note(m.WriteRows(7, batch_rows((0, 2), [3.0, 2.0])))
    book.note(m.WriteEnded(1, 1, {"status": "failed", "failure": Failure.not_finite, "error": ERROR}))
    book.note(m.BatchOver(7))
    write(book)
    assert lines(book) == [("started", name) for name in names] + [("ended", a), ("ended", c), ("ended", b)]
    assert book.board.view().counts == {"done": 2, "failed": 1} and not book.board.view().lanes
    assert [row["status"] for row in rows(book.folder)] == ["done", "failed", "done"]


def test_a_batch_that_is_split_runs_no_more_and_its_trials_wait(book):
    book.note(m.WriteBegun(7, range(3), (1, 1, 1), PLACE))
    for place in range(3):
        book.note(m.WriteRetry(place, 1, Failure.crash, ERROR, charged=False))
    book.note(m.BatchOver(7))
    write(book)
    assert book.board.view().counts == {"waiting": 3} and not book.board.view().lanes
    assert [(t.status, len(t.attempts)) for t in replay(book.folder).trials.values()] == [("waiting", 1)] * 3
