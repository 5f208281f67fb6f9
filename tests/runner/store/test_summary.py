"""The summary of a run that has ended: it says what the journal says, counts only for that journal, and spares its reading."""

from pathlib import Path

import pytest

from qdrun.runner.observe.listing import listed
from qdrun.runner.observe.table import rows, write_parquet
from qdrun.runner.store import summary
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.status import status
from qdrun.runner.study.trials import Trial
from tests.runner.store.store_helpers import make_run, run_one, trials


@pytest.fixture(params=["local", "memory"])
def where(request, tmp_path):
    return str(tmp_path) if request.param == "local" else f"memory://summaries/{tmp_path.name}"


def end(folder, journal, names, losses, state="done"):
    for name, loss in zip(names, losses):
        run_one(folder, journal, name, loss)
    journal.write("finished", sync=True, state=state, timing={"all_s": 1.0})


@pytest.fixture
def ended(where):
    """A run of three, of which two have ended and one was cancelled; with its table."""
    folder = make_run(where)
    with Journal(folder) as journal:
        end(folder, journal, [trial.id for trial in trials(2)], (2.0, 0.5), "cancelled")
    write_parquet(folder)
    return folder


def unread(monkeypatch):
    def read(*_, **__):
        raise AssertionError("the journal was read")

    monkeypatch.setattr(summary, "replay", read)


def test_it_says_what_the_journal_says_without_reading_it(ended, monkeypatch):
    files = ended.files
    text = files.read(summary.SUMMARY)
    files.remove(summary.SUMMARY)
    whole = status(ended)
    assert (whole["state"], whole["counts"], whole["best"]["loss"]) == ("cancelled", {"done": 2, "cancelled": 1}, 0.5)
    assert whole["counts"]["done"] == [row["status"] for row in rows(ended)].count("done")
    files.put(summary.SUMMARY, text)
    unread(monkeypatch)
    assert status(ended) == whole
    (row,) = listed(ended.uri.rpartition("/")[0], 5)
    assert (row["state"], row["finished"], row["best"]) == ("cancelled", 3, 0.5)


def test_a_run_that_goes_on_is_read_again(ended):
    with Journal(ended) as journal:
        assert status(ended)["state"] == "running"
        end(ended, journal, [trials(3)[2].id], (0.25,))
    assert status(ended)["counts"] == {"done": 3} and status(ended)["best"]["loss"] == 0.25
    write_parquet(ended)
    assert status(ended)["counts"] == {"done": 3}


def test_a_line_that_came_later_makes_it_count_no_more(ended, monkeypatch):
    (segment,) = ended.files.names("events")
    ended.files.put(f"events/{segment}", ended.files.read(f"events/{segment}") + b"garbage\n")
    assert status(ended)["damaged_lines"] == 1


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"journal": 3, "summary": 4}'])
def test_a_damaged_one_is_as_none(ended, text):
    whole = status(ended)
    ended.files.put(summary.SUMMARY, text)
    assert status(ended) == whole


def test_a_run_that_has_not_ended_has_none(where, tmp_path):
    folder = make_run(where)
    with Journal(folder) as journal:
        run_one(folder, journal, trials(1)[0].id, 1.0)
        write_parquet(folder)
        assert not folder.files.exists(summary.SUMMARY)
        end(folder, journal, [], [])
        write_parquet(folder, Path(tmp_path) / "elsewhere.parquet")
        assert not folder.files.exists(summary.SUMMARY)
    write_parquet(folder)
    assert folder.files.exists(summary.SUMMARY)


def test_a_look_at_a_run_that_goes_on_makes_no_trial(where, monkeypatch):
    """Of 20,000 trials that was most of the time."""
    folder = make_run(where)

    def made(*_, **__):
        raise AssertionError("a trial was made")

    monkeypatch.setattr(Trial, "model_validate_json", made)
    assert status(folder)["counts"] == {"waiting": 3}
