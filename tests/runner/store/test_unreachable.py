"""A store that does not answer, or refuses who asks: what is said, and that a run waits for it as for room on a disk."""

from collections import Counter
from itertools import count
from types import SimpleNamespace

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.ledger import Machine, RunLedger
from qdrun.runner.ledger.inventory import pretended
from qdrun.runner.store import journal
from qdrun.runner.store.files import StorageFull, StorageUnknown, StorageUnreachable, open_files
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import write_run
from qdrun.runner.store.objects import ObjectFiles
from qdrun.runner.store.replay import replay
from tests.runner.engine.test_devices_change import done, run
from tests.runner.store.store_helpers import make_run, run_one, trials

NUMBERS = count()


class NoCredentialsError(Exception):
    """As botocore has it: no OSError."""


class Away(MemoryFileSystem):
    """An object store that is away for as many calls as ``refuses`` says, with ``error``."""

    protocol = "away"
    cachable = False
    store, pseudo_dirs = {}, [""]
    refuses, refused, error = 0, 0, NoCredentialsError("Unable to locate credentials")

    def _asked(self):
        if Away.refused < Away.refuses:
            Away.refused += 1
            raise Away.error

    def cat_file(self, path, start=None, end=None, **how):
        self._asked()
        return super().cat_file(path, start=start, end=end, **how)

    def pipe_file(self, path, value, **how):
        self._asked()
        return super().pipe_file(path, value, **how)

    def ls(self, path, detail=True, **how):
        self._asked()
        return super().ls(path, detail=detail, **how)


@pytest.fixture
def away():
    """A place in a store that is there, and the handle by which it goes away."""
    fsspec.register_implementation("away", Away, clobber=True)
    Away.refuses = Away.refused = 0
    Away.error = NoCredentialsError("Unable to locate credentials")
    yield f"away://store{next(NUMBERS)}"
    Away.refuses = 0


def leave(calls, error=None):
    Away.refuses, Away.refused, Away.error = calls, 0, error or Away.error


@pytest.mark.parametrize("error", [NoCredentialsError("who?"), PermissionError("Access Denied"), ConnectionResetError("gone")])
def test_whatever_a_library_raises_says_that_the_store_does_not_answer_and_where_to_look(away, error):
    files = open_files(away)
    files.put("a", b"1")
    asks = (
        lambda: files.read("a"),
        lambda: files.put("b", b"2"),
        lambda: files.exists("a"),
        lambda: files.names(""),
        lambda: files.remove("a"),
        lambda: files.claim("c", b"3"),
    )
    for ask in asks:
        leave(1, error)
        with pytest.raises(StorageUnreachable) as said:
            ask()
        assert said.value.__cause__ is error
        assert str(said.value) == (
            f"{away} does not answer, or refuses: {type(error).__name__}: {error}\n"
            "  do: look at the URI, at the network, and at the credentials (for s3://: AWS_PROFILE, or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; AWS_ENDPOINT_URL for a store that is not Amazon's)"
        )
    assert files.read("a") == b"1" and not files.exists("b")


def test_what_a_store_answers_and_mistakes_of_ours_stay_what_they_are(away):
    files = open_files(away)
    with pytest.raises(FileNotFoundError):
        files.read("nothing")
    leave(1, TypeError("ours"))
    with pytest.raises(TypeError, match="ours"):
        files.read("nothing")


def test_a_bucket_that_is_not_there_is_refused_and_not_made():
    """What fsspec's `makedirs` would do with a misspelt bucket is to make it."""
    made = []

    def pipe_file(path, data, **how):
        raise FileNotFoundError("The specified bucket does not exist")

    system = SimpleNamespace(protocol=("s3", "s3a"), pipe_file=pipe_file, makedirs=lambda path, **how: made.append(path))
    with pytest.raises(StorageUnknown) as said:
        ObjectFiles(system, "bukket/runs", "s3://bukket/runs").put("run.json", b"{}")
    assert str(said.value) == (
        "there is no bucket `bukket` for s3://bukket/runs: The specified bucket does not exist\n"
        "  do: create it first, or set `storage` to an existing one"
    )
    assert not made


def test_a_claim_whose_answer_was_lost_is_still_ours(away):
    """Libraries ask again when an answer is lost; the second time the object is there: our own."""
    files = open_files(away)
    real = files.system.pipe_file

    def twice(path, data, **how):
        real(path, data)
        raise FileExistsError(path)

    files.system.pipe_file = twice
    assert files.claim("owners/1", b"ours")
    assert not files.claim("owners/1", b"theirs")


def test_a_journal_keeps_its_lines_while_the_store_is_away_and_writes_them_in_order(away):
    folder = make_run(away, 2)
    with Journal(folder) as lines:
        names = [trial.id for trial in trials(2)]
        run_one(folder, lines, names[0], 1.0)
        assert lines.retry()
        leave(10_000)
        with pytest.raises(StorageFull):  # callers wait as they do for room
            lines.write("note", sync=True, text="while away")
        assert lines.full and not lines.retry()
        leave(0)
        assert lines.retry() and not lines.full
        run_one(folder, lines, names[1], 2.0)
    state = replay(folder)
    assert state.complete and (state.damaged, state.doubled) == (0, 0)


def test_a_run_waits_while_its_store_is_away_and_then_goes_on(away, monkeypatch):
    """Every trial has one row, nothing is tried again."""
    monkeypatch.setattr(journal, "SYNC_EVERY_S", 0.0)  # else the run is over before it knows
    (card,) = pretended(1, 8 << 30)
    launches = []

    def after(launch):
        launches.append(launch)
        if len(launches) == 1:
            leave(4)
        return done(launch)

    outcome, state, _ = run(away, RunLedger("made", Machine([card])), after, kinds=(card.kind,), trials=600)
    assert outcome == "done" and state.counts() == Counter(done=600)
    assert Away.refused == 4 and not state.doubled
    assert {len(trial.attempts) for trial in state.trials.values()} == {1}


def test_a_command_says_it_without_a_traceback(away):
    leave(1)
    said = CliRunner().invoke(app, ["ls", "--runs", away])
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr.startswith(
        f"{away} does not answer, or refuses: NoCredentialsError: Unable to locate credentials\n  do: "
    )


def test_the_folder_of_a_run_on_a_store_that_is_away_is_refused_before_anything_runs(away):
    leave(1)
    with pytest.raises(StorageUnreachable):
        write_run(away, "made", "version: 1\n", {}, [], {})
