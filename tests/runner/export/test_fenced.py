"""Trackers and callbacks are told the rows of the journal, and no line that the journal refuses."""

import pytest

from qdrun.runner.config.callbacks_section import CallbacksSection
from qdrun.runner.export import feed
from qdrun.runner.export.callbacks import Calls
from qdrun.runner.export.feed import Feed
from qdrun.runner.store import journal as journal_module
from qdrun.runner.store.follower import Follower, read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.owner import owner_numbers
from qdrun.runner.store.replay import record_of, replay
from tests.runner.store.store_helpers import make_run, run_one


class Losses:
    """A tracker that notes how trials end."""

    def __init__(self):
        self.ends = []

    def begin(self, trial): ...

    def log(self, logged): ...

    def end(self, trial, record):
        self.ends.append((trial, record["loss"]))

    def close(self, state): ...


@pytest.fixture
def taken_over(tmp_path, monkeypatch):
    """Gives a function: a stale owner writes a second and a third row behind the cut, the new owner a second one."""
    monkeypatch.setattr(feed, "SETTLE_S", 0.0)
    folder = make_run(tmp_path)
    first, second, third = replay(folder).trials
    stale = Journal(folder)
    run_one(folder, stale, first, 1.0)
    stale.write("mark", sync=True)

    def take_over():
        with Journal(folder, gone=max(owner_numbers(folder.files), default=0)) as new:
            with monkeypatch.context() as blind:
                blind.setattr(journal_module, "check_owner", lambda folder, owner: None)
                run_one(folder, stale, second, 8.0)
                run_one(folder, stale, third, 9.0)
                stale.write("mark", sync=True)
            run_one(folder, new, second, 2.0)

    return folder, take_over


def rows_of(folder):
    return {name: record_of(folder, trial)["loss"] for name, trial in replay(folder).trials.items() if trial.entry}


@pytest.mark.parametrize("before", [0, 1], ids=["after it", "through it"])
def test_a_tracker_that_reads_a_run_through_a_take_over_is_told_the_rows_of_the_journal(taken_over, before):
    folder, take_over = taken_over
    tracker = Losses()
    told = Feed(folder, {"losses": tracker})
    if before:
        told.look()
    take_over()
    told.look()
    told.look(last=True)
    assert dict(tracker.ends) == rows_of(folder) and len(tracker.ends) == 2 and read(folder).refused > 0


class LateStale(Follower):
    """The reader of a new owner; as soon as that has read what counts, the stale owner writes one more row, and a tracker looks."""

    def __init__(self, folder, late, teller):
        super().__init__(folder)
        self.late, self.teller = late, teller

    def look(self, *, last=False):
        found = super().look(last=last)
        self.late()
        self.teller()
        return found


@pytest.mark.parametrize("kind", ["tracker", "callback"])
def test_a_row_that_is_written_while_the_run_changes_hands_is_not_told(tmp_path, monkeypatch, kind):
    """Between the claim and the first line of the new owner nobody can say yet which lines of the old one count."""
    monkeypatch.setattr(feed, "SETTLE_S", 0.0)
    monkeypatch.setattr(journal_module, "check_owner", lambda folder, owner: None)
    folder, tracker, told = make_run(tmp_path), Losses(), []
    first, second, _ = replay(folder).trials
    stale = Journal(folder)
    run_one(folder, stale, first, 1.0)
    if kind == "tracker":
        teller = Feed(folder, {"losses": tracker})
    else:
        teller = Calls(folder, CallbacksSection(trial_end=["true"]), tmp_path, pytest.fail)
        monkeypatch.setattr(Calls, "_call", lambda self, name, rows: told.extend((row.get("trial", name), row) for row in rows))

    def late():
        run_one(folder, stale, second, 666.0)
        stale.write("mark", sync=True)

    with Journal(folder, gone=1, reader=LateStale(folder, late, teller.look)) as new:
        teller.look()
        run_one(folder, new, second, 2.0)
        new.write("finished", sync=True, state="done")
    if kind == "tracker":
        teller.look()
        teller.look(last=True)
        assert dict(tracker.ends) == rows_of(folder) == {first: 1.0, second: 2.0} and len(tracker.ends) == 2
    else:
        teller.close()
        (name, row), (end, summed) = told
        assert (name, row["loss"], end) == (second, 2.0, "run_end") and summed["counts"] == {"done": 2}


def test_callbacks_are_called_with_the_rows_of_the_journal_and_once_for_each(taken_over, tmp_path):
    folder, take_over = taken_over
    said = tmp_path / "said"
    (tmp_path / "cb.py").write_text(
        f"def told(row):\n    with open({str(said)!r}, 'a') as out: print(row['trial'], row['loss'], file=out)\n"
    )
    calls = Calls(folder, CallbacksSection(trial_end="cb.py:told"), tmp_path, pytest.fail)
    take_over()
    calls.look()
    calls.close()
    second = list(replay(folder).trials)[1]
    assert said.read_text().split() == [second, "2.0"], "the first row was there before, and belongs to an earlier process"
