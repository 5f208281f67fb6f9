"""The table of a run is the file that was written, or is made again from the journal, and the user is told."""

import os

import numpy as np
import pyarrow.parquet as pq
import pytest

from qdrun.runner.observe.listing import table_of
from qdrun.runner.observe.table import rows, write_parquet
from qdrun.runner.query import table_file
from qdrun.runner.query.table_file import current_file, is_changed
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.status import status
from qdrun.runner.store.summary import SUMMARY
from tests.runner.store.store_helpers import make_run, run_one, trials

SAID = "results.parquet is not as it was written, or gone; it was made again from the journal"


@pytest.fixture
def ended(tmp_path):
    """A run of three that has ended, with its table."""
    folder = make_run(str(tmp_path))
    with Journal(folder) as journal:
        for trial, loss in zip(trials(3), (2.0, 0.5, 1.0), strict=True):
            run_one(folder, journal, trial.id, loss)
        journal.write("finished", sync=True, state="done", timing={"ended_s": 12.5})
    write_parquet(folder)
    return folder


def shown(folder):
    found = table_of(folder, columns=["trial", "loss"])
    return [(row["trial"], row["loss"]) for row in found.rows], found.problems


def rewritten(path):
    table = pq.read_table(path)
    losses = table.column("loss").to_pylist()
    pq.write_table(table.set_column(table.schema.get_field_index("loss"), "loss", [[value + 1 for value in losses]]), path)


CHANGES = {
    "another program has written it": rewritten,
    "it was cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "it is gone": lambda path: path.unlink(),
    "it is longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_table_that_is_not_the_one_that_was_written_is_made_again_and_that_is_said(ended, how):
    whole, path = ended.path / "results.parquet", ended.path / "results.parquet"
    before = whole.read_bytes()
    CHANGES[how](path)
    assert is_changed(ended)
    losses, problems = shown(ended)
    assert losses == [(row["trial"], row["loss"]) for row in rows(ended)] and problems == [SAID]
    assert path.read_bytes() == before and shown(ended) == (losses, []) and current_file(ended) is not None


def test_no_flipped_bit_of_the_table_is_shown(ended):
    path = ended.path / "results.parquet"
    whole, right = path.read_bytes(), shown(ended)[0]
    random = np.random.default_rng()
    for at, bit in zip(random.integers(0, len(whole), 40), random.integers(0, 8, 40), strict=True):
        data = bytearray(whole)
        data[at] ^= 1 << bit
        path.write_bytes(data)
        assert shown(ended) == (right, [SAID]), f"byte {at}, bit {bit}"


def test_a_table_that_is_as_it_was_is_not_read_to_know_that(ended, monkeypatch):
    hashed = []
    real = table_file.hashlib.file_digest
    monkeypatch.setattr(table_file.hashlib, "file_digest", lambda *words: hashed.append(1) or real(*words))
    assert not is_changed(ended) and shown(ended)[1] == [] and not hashed
    (ended.path / "results.parquet").touch()
    assert not is_changed(ended) and hashed, "it was copied, or rewritten with the same bytes"


def test_no_bit_that_a_disk_has_flipped_is_shown(ended):
    """Without a new time of the file: the pages have checksums of their own, and the footer is compared."""
    path = ended.path / "results.parquet"
    about, random = path.stat(), np.random.default_rng()
    whole, right, told = path.read_bytes(), shown(ended)[0], 0
    for at, bit in zip(random.integers(0, len(whole), 120), random.integers(0, 8, 120), strict=True):
        data = bytearray(whole)
        data[at] ^= 1 << bit
        path.write_bytes(data)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
        losses, problems = shown(ended)
        assert losses == right, f"byte {at}, bit {bit}"
        told += problems == [SAID]
        path.write_bytes(whole)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
        write_parquet(ended) if problems else None
        about = path.stat()
    assert told


def test_a_table_stays_where_the_journal_has_lost_rows_too(ended):
    (segment,) = (ended.path / "events").glob("*.jsonl")
    data = segment.read_bytes()
    at = data.index(b'"ended"')
    segment.write_bytes(data[:at] + b"X" + data[at + 1 :])
    path = ended.path / "results.parquet"
    path.write_bytes(path.read_bytes() + b"x")
    problems = shown(ended)[1]
    assert problems[0].endswith("the journal is damaged, too, so the file stays") and path.read_bytes().endswith(b"x")


@pytest.mark.parametrize("left", [0, 0.5, None])
def test_a_journal_that_is_shorter_than_when_the_run_ended_is_told(ended, left):
    """Copied in part, or gone."""
    (segment,) = (ended.path / "events").glob("*.jsonl")
    data, table = segment.read_bytes(), (ended.path / "results.parquet").read_bytes()
    segment.unlink() if left is None else segment.write_bytes(data[: int(left * len(data))])
    now = int((left or 0) * len(data))
    (problem,) = shown(ended)[1]
    assert (
        f"events/{segment.name} has {now:,} bytes, and had {len(data):,} when the run ended: rows are lost\n  do: " in problem
    )
    assert (ended.path / "results.parquet").read_bytes() == table
    segment.write_bytes(data)
    assert shown(ended)[1] == []


def test_a_run_whose_summary_has_no_checksum_is_shown_as_it_is(ended):
    (ended.path / SUMMARY).unlink()
    (ended.path / "results.parquet").unlink()
    assert not is_changed(ended) and len(shown(ended)[0]) == 3


def test_the_seconds_of_a_run_that_has_ended_are_those_that_its_command_has_said(ended):
    assert status(ended)["seconds"] == 12.5
