"""Trackers and callbacks are told the rows of the journal, and no line that the journal refuses."""

import pytest

from qdrun.runner.config.callbacks_section import CallbacksSection
from qdrun.runner.export import feed
from qdrun.runner.export.callbacks import Calls
from qdrun.runner.export.feed import Feed
from qdrun.runner.store import journal as journal_module
from qdrun.runner.store.journal import Journal, read
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
