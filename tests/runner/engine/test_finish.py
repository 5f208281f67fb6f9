"""The end of a run on a disk that is full: what is said, and what is waited for."""

import dataclasses
import threading
import time
from contextlib import contextmanager

import pytest

from qdrun.runner.engine import resume, session, writer_threads
from qdrun.runner.observe.ended import RunEnd, summary_text
from qdrun.runner.observe.timing import Timing
from qdrun.runner.stops import join
from qdrun.runner.store.files import StorageFull, StorageLost
from qdrun.runner.store.follower import read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder, write_run
from qdrun.runner.study.trial_list import Trials

FULL = "no room left in runs: No space left on device\n  do: make room there"


class Screen:
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


@contextmanager
def ending(tmp_path, monkeypatch, tries, stops):
    """A run whose table has room after so many tries; its journal and what it says."""
    folder, calls = write_run(tmp_path, "made", "version: 1\n", {"name": "made"}, [], {}), []

    def write(folder, trials):
        calls.append(folder)
        if len(calls) <= tries:
            stops.asked += 1 if len(calls) == 3 else 0
            raise StorageFull(FULL)
        return ()

    monkeypatch.setattr(session.table, "write_table", write)
    monkeypatch.setattr(session, "ROOM_EVERY_S", 0.001)
    with Journal(folder) as journal:
        yield journal, calls


@pytest.mark.parametrize(("tries", "count"), [(0, 1), (2, 3), (1000, 3)], ids=["room", "later", "given up"])
def test_a_table_without_room_waits_for_it_and_the_run_is_done_all_the_same(tmp_path, monkeypatch, tries, count):
    stops, screen = session.Stops(), Screen()
    with ending(tmp_path, monkeypatch, tries, stops) as (journal, calls):
        state, _ = session._finish(journal, screen, stops, "done", Timing(time.time(), time.time()), "", Trials.of([]))
        last = read(journal.folder).events[-1]
    assert (state, last["event"], last["state"], len(calls)) == ("done", "finished", "done", count)
    waits = "no room left in runs: No space left on device: the table waits until there is room; Ctrl-C leaves it to `qdrun results`"
    assert screen.said == ([waits] if tries else [])


def test_a_run_whose_last_line_is_written_is_over_though_its_table_hangs(tmp_path, monkeypatch):
    """SIGTERM while the table is written: the exit code is that of the run."""
    folder, door = write_run(tmp_path, "made", "version: 1\n", {"name": "made"}, [], {}), threading.Event()
    monkeypatch.setattr(session.table, "write_table", lambda folder, trials: door.wait())
    monkeypatch.setattr(writer_threads, "HURRY_S", 0.2)
    screen = Screen()
    with Journal(folder) as journal:
        found = session._end(True, journal, screen, session.Stops(asked=2), "done", Timing(1.0, 1.0), "", Trials.of([]))
        assert (found.state, found.exit_code, found.made) == ("done", 0, ())
        assert screen.said[-1] == "the run is over, and its table is left to `qdrun results`"
        _check_storeless_end(found, folder, monkeypatch)
    door.set()


def _check_storeless_end(found, folder, monkeypatch):
    """Neither form of the end reads the store, and both say what to do."""
    hanging = dataclasses.replace(found, folder=RunFolder(folder.uri))
    for name in ("read", "exists", "names", "below"):
        monkeypatch.setattr(type(folder.files), name, lambda *words, **options: pytest.fail("the store was read"))
    do = f"  do: see why {folder.uri} takes nothing, then `qdrun resume {folder.uri}`; its rows are kept"
    first, *rest = summary_text(hanging).splitlines()
    assert first.startswith("done: the run ends without its store: it has not answered for ")
    assert rest == [do, f"next: qdrun status {folder.uri}, when the store answers"]
    said = RunEnd.of(hanging)
    assert (said.state, said.exit_code, said.trials, said.counts, said.best, said.failures) == ("done", 0, None, {}, None, [])
    assert said.warnings[0].splitlines()[1] == do
    for reads in (hanging.check_store, lambda: hanging.rows):
        with pytest.raises(StorageLost):
            reads()


def test_threads_that_read_a_store_which_does_not_answer_are_not_waited_for():
    door, stops = threading.Event(), session.Stops(storeless=True)
    thread = threading.Thread(target=door.wait, daemon=True)
    thread.start()
    assert not join(thread, stops)
    door.set()


def test_a_run_that_was_killed_between_its_last_line_and_its_table_gets_the_table_from_resume(tmp_path):
    folder = write_run(tmp_path, "made", "version: 1\n", {"name": "made"}, [], {})
    with Journal(folder) as journal:
        journal.write("finished", sync=True, state="done", timing=Timing(1.0, 1.0).summary())
    assert not folder.files.exists("results.parquet")
    done = resume.over(folder, resume.look(folder))
    assert (done.state, done.exit_code, folder.files.exists("results.parquet")) == ("done", 0, True)
