"""What a run writes down of its trials, and how replay reads it: starts and ends that came together are one line."""

import time

import pytest
from runner_helpers import write_config

from qdrun.runner import clock
from qdrun.runner.engine import messages as m
from qdrun.runner.engine.event_writer import SNAPSHOT_BYTES_S, Book, Inside, Outside
from qdrun.runner.ledger.leases import Waits
from qdrun.runner.observe.board import Board
from qdrun.runner.observe.live import display
from qdrun.runner.observe.table import rows
from qdrun.runner.store.attempts import Failure
from qdrun.runner.store.journal import Journal, read
from qdrun.runner.store.layout import create
from qdrun.runner.store.replay import replay
from qdrun.runner.study.prepare import prepare

PLACE = {"device": "cpu:0", "bytes": 10, "time": 1.0, "slot": 0}
ROW = {"status": "done", "loss": 2.0}
ERROR = {"type": "E", "message": "no", "traceback": ""}


@pytest.fixture
def book(tmp_path):
    prepared, _ = prepare(write_config(tmp_path, sweep={"x": [1.0, 2.0, 3.0]}))
    folder = create(prepared, tmp_path / "runs")
    board = Board(run=folder.name, total=3)
    trials = {trial.id: trial for trial in prepared.trials}
    with Journal(folder) as journal, display(board, quiet=True) as screen:
        outside = Outside(folder, journal, board, screen, None, None, None, None)  # type: ignore[arg-type]
        made = Book(Inside(trials, lambda trial: {}, {}), outside)
        made.folder, made.names, made.journal = folder, list(trials), journal  # type: ignore[attr-defined]
        yield made


def write(book):
    book.journal.write_all(book.events())
    book.show()


def lines(book):
    return [(e["event"], e.get("trial")) for e in read(book.folder).events if e["event"] != "owner"]


def test_a_start_and_an_end_of_one_write_are_one_line_and_an_attempt_all_the_same(book):
    a, b, _ = book.names
    book.note(m.WriteStarted(a, 1, PLACE))
    t = clock.now()
    book.note(m.WriteEnded(a, 1, ROW | {"started_t": t - 2.0, "ended_t": t - 1.0}))
    book.note(m.WriteStarted(b, 1, PLACE))
    write(book)
    assert lines(book) == [("ended", a), ("started", b)]
    (tried,) = replay(book.folder).trials[a].attempts
    assert (tried.status, tried.started_t, tried.ended_t, tried.place) == ("done", t - 2.0, t - 1.0, PLACE)
    found = {row["trial"]: (row["status"], row["attempts"], row["loss"]) for row in rows(book.folder)}
    assert found == {a: ("done", 1, 2.0), b: ("running", 1, None), book.names[2]: ("waiting", 0, None)}
    assert (book.board.counts, set(book.board.running), book.board.best) == ({"done": 1}, {b}, (2.0, "x=1"))


def test_an_end_in_a_later_write_and_a_retry_have_lines_of_their_own(book):
    a, b, _ = book.names
    book.note(m.WriteStarted(a, 1, PLACE))
    write(book)
    book.note(m.WriteEnded(a, 1, ROW))
    book.note(m.WriteStarted(b, 1, PLACE))
    book.note(m.WriteRetry(b, 1, Failure.crash, ERROR))
    book.note(m.WriteStarted(b, 2, PLACE))
    book.note(m.WriteEnded(b, 2, {"status": "failed", "failure": Failure.user_error, "error": ERROR}))
    write(book)
    assert lines(book) == [("started", a), ("ended", a), ("started", b), ("retry", b), ("ended", b)]
    state = replay(book.folder).trials[b]
    assert [(tried.attempt.number, tried.status) for tried in state.attempts] == [(1, "retried"), (2, "failed")]
    assert book.board.notes == ["x=2 failed: E: no"]


def test_a_trial_that_was_cancelled_while_it_ran_has_an_attempt_and_one_that_waited_has_none(book):
    a, b, _ = book.names
    record = {"status": "cancelled", "failure": Failure.cancelled, "error": ERROR}
    book.note(m.WriteStarted(a, 1, PLACE))
    book.note(m.WriteEnded(a, 1, record))
    book.note(m.WriteEnded(b, 0, record))
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
    for name, message in zip(book.names, ("no\nmore", "no\nother", "never"), strict=True):
        book.note(m.WriteEnded(name, 1, {"status": "failed", "failure": "user_error", "error": ERROR | {"message": message}}))
    write(book)
    assert book.board.notes == ["x=1 failed: E: no", "x=3 failed: E: never"] and book.board.counts == {"failed": 3}
