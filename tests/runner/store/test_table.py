"""The table of a large run is written in parts: the arrays of one row group are in memory, and not those of all rows."""

import tracemalloc
from itertools import chain

import numpy as np
import pyarrow.parquet as pq
import pytest
from store_helpers import make_run, record
from typer.testing import CliRunner

from qdrun.runner import load
from qdrun.runner.cli.app import app
from qdrun.runner.observe import table
from qdrun.runner.observe.listing import table_of
from qdrun.runner.observe.table import rows, write_parquet
from qdrun.runner.query.picking import best_place
from qdrun.runner.query.run_table import Large, RunTable
from qdrun.runner.store import columns, summary
from qdrun.runner.store.attempts import Attempt, ended
from qdrun.runner.store.follower import Detail, read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.replay import DONE, Replay, replay

NUMBERS = 1500


def finished(where, count):
    """A run whose gradients lie in the journal, of one dimension, of two, and as single numbers."""
    folder, rng = make_run(where, count), np.random.default_rng(count)
    with Journal(folder) as journal:
        for index, name in enumerate(folder.trial_ids()):
            gradients = {
                "x": rng.standard_normal(NUMBERS).tolist(),
                "m": rng.standard_normal((30, 10)).tolist(),
                "s": float(index),
            }
            outputs = {"mixed": 1.0 if index % 2 else [[1.0], [2.0, float("nan")]]}
            row = record(float(index)) | {"gradients": gradients, "outputs": outputs}
            ended(journal, [(Attempt(name, 1), row)])
        journal.write("finished", sync=True, state="done")
    return folder


@pytest.fixture
def small_groups(monkeypatch):
    monkeypatch.setattr(table, "GROUP_NUMBERS", 3 * NUMBERS)


def test_the_parts_are_the_table(where, small_groups, tmp_path):
    folder = finished(where, 7)
    whole = rows(folder)
    path = write_parquet(folder, tmp_path / "out.parquet")
    found = pq.ParquetFile(path, page_checksum_verification=True)
    assert found.num_row_groups == 4
    columns = found.read().to_pylist()
    for a, b, light in zip(whole, columns, load(folder.uri)._replay.trials, strict=True):
        assert a["trial"] == b["trial"] == light
        assert (b["grad.x"], b["grad.m"], b["grad.s"], b["loss"]) == (a["grad.x"], a["grad.m"], a["grad.s"], a["loss"])
        assert str(b["out.mixed"]) == str(a["out.mixed"] if isinstance(a["out.mixed"], list) else [[a["out.mixed"]]])
    assert str(load(folder.uri).arrow.to_pylist()) == str(columns)
    light = table_of(folder)
    assert light.rows[0]["grad.x"] == Large((NUMBERS,)) and str(light.rows[0]["grad.m"]) == "[30x10]"
    assert [row["grad.x"] for part in light.parts() for row in part] == [row["grad.x"] for row in whole]
    assert CliRunner().invoke(app, ["results", folder.uri, "--format", "csv", "--columns", "grad.x"]).stdout.count(",") == 7 * (
        NUMBERS - 1
    )


@pytest.mark.slow
def test_memory_does_not_grow_with_the_arrays_of_all_rows(tmp_path, small_groups):
    """As Python's lists the arrays of 60 rows are 60 times those of one."""
    peaks = {}
    for count in (15, 60):
        folder = finished(tmp_path, count)
        monkeyed = table_of(folder)
        tracemalloc.start()
        write_parquet(folder)
        for row in chain.from_iterable(monkeyed.parts()):
            assert len(row["grad.x"]) == NUMBERS
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    journal = 45 * (NUMBERS + 300) * 20  # the bytes of a segment, which are read at once
    assert peaks[60] - peaks[15] < 1.3 * journal
    assert 45 * NUMBERS * 32 > 1.3 * journal, "what the numbers would take"


def batch(names, rng, width):
    """The line of a batch, as a worker's columns make it."""
    count = len(names)
    gradients = {"x": rng.standard_normal((count, width)), "k": rng.standard_normal(count)}
    outputs = {"reach": rng.standard_normal(count).astype(np.float32), "square": rng.standard_normal((count, 2, 3))}
    shared = {
        "status": "done",
        "seconds": rng.random(),
        "planned_bytes": 64,
        "used_bytes": 48,
        "device": "cpu",
        "host": "h",
        "pid": 7,
    }
    shared |= {"planned": {"state": 60, "code": 4}, "used": {"state": 48}}
    losses = rng.integers(0, 3, count).astype(float)  # equal ones, too
    (rows,) = columns.made(tuple(names), (1,) * count, shared, losses, np.abs(gradients["k"]), gradients, outputs)
    return rows.event()


def batched(where, rng):
    """A run of batches and single trials: some are retried, some fail, some have two rows, some none, and it may have had two owners."""
    count = int(rng.integers(5, 40))
    folder = make_run(where, count)
    names = folder.trial_ids()
    rng.shuffle(names)
    parts = np.split(np.array(names), sorted(rng.integers(0, count, 3)))
    for owner in range(int(rng.integers(1, 3))):
        with Journal(folder) as journal:
            for part in map(list, parts):
                kind = rng.integers(0, 8) if part else -1
                if kind in (0, 1, 2, 3, 4):
                    if kind != 0:
                        journal.write("begun", trials=part, attempts=[1] * len(part), device="cpu:0", bytes=64)
                    place = {} if kind != 0 else {"place": {"device": "cpu:0", "bytes": 64}}
                    done = part[: int(rng.integers(1, len(part) + 1))] if kind == 4 else part
                    journal.write("rows", **batch(done, rng, 300 if kind == 3 else 4), **place)
                elif kind in (5, 6):
                    for k, name in enumerate(part):
                        row = record(k) | {
                            "gradients": {"x": [1.0] * 4, "k": 2.0},
                            "device": "gpu",
                            "planned_bytes": 9,
                            "used_bytes": None,
                        }
                        row |= (
                            {"status": "failed", "error": {"type": "E", "message": "m"}, "failure": "crash"}
                            if k % 3 == 2
                            else {}
                        )
                        ended(journal, [(Attempt(name, owner + 1), row)])
            if rng.random() < 0.7:
                journal.write("finished", sync=True, state="done")
    return folder


@pytest.mark.parametrize("seed", range(25))
def test_the_table_of_batches_is_that_of_their_trials_one_by_one(tmp_path, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    folder = batched(tmp_path, rng)
    trials = folder.trials() if rng.random() < 0.5 else ()
    found, summed = table.write_table(folder, trials=trials), summary.summary(folder)
    of_columns = pq.read_table(folder.table)
    with monkeypatch.context() as patch:
        patch.setattr(Replay, "blocks", lambda found: [])
        one_by_one = table.write_table(folder, trials=trials)
    expected = pq.read_table(folder.table)
    assert of_columns.schema.equals(expected.schema, check_metadata=True)
    assert of_columns.to_pylist() == expected.to_pylist()
    assert summed == summary.summary(folder)
    first, second = (best_place(RunTable.of(rows), "loss", ["loss"]) for rows in (found, one_by_one))
    assert first is None or (second is not None and found[first]["trial"] == one_by_one[second]["trial"])
    for row, other in zip(found, one_by_one, strict=True):
        assert row["trial"] == other["trial"] and row["status"] == other["status"]


def test_the_row_of_a_trial_that_two_batches_name_is_the_first_one(tmp_path):
    """Of 30 trials the journal names 5 twice, and 5 not at all."""
    folder, rng = make_run(tmp_path, 30), np.random.default_rng(3)
    names = folder.trial_ids()
    with Journal(folder) as journal:
        journal.write("rows", **batch(names[:20], rng, 4))
        journal.write("rows", **batch(names[15:25], rng, 4))
    found = replay(folder, Detail.SMALL)
    blocks = found.blocks()
    assert [block.places.tolist() for block in blocks] == [list(range(20)), list(range(20, 25))]
    assert [block.rows.tolist() for block in blocks] == [list(range(20)), list(range(5, 10))]
    assert found.doubled == 5 and found.counts() == {"done": 25, "waiting": 5} and (found.status[:25] == DONE).all()
    first = [entry.event for entry in read(folder).entries if entry.event["event"] == "ended"][:20]
    assert found.losses[:20].tolist() == [event["loss"] for event in first]
