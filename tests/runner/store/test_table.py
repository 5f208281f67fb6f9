"""The table of a large run is written in parts: the arrays of one row group are in memory, and not those of all rows."""

import tracemalloc

import numpy as np
import pyarrow.parquet as pq
import pytest
from store_helpers import make_run, record
from typer.testing import CliRunner

from qdrun.runner import load
from qdrun.runner.cli.app import app
from qdrun.runner.observe import table
from qdrun.runner.observe.listing import table_of
from qdrun.runner.observe.table import Large, rows, write_parquet
from qdrun.runner.store.attempts import Attempt, ended
from qdrun.runner.store.journal import Journal

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
    assert [row["grad.x"] for row in light.each()] == [row["grad.x"] for row in whole]
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
        for row in monkeyed.each():
            assert len(row["grad.x"]) == NUMBERS
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    journal = 45 * (NUMBERS + 300) * 20  # the bytes of a segment, which are read at once
    assert peaks[60] - peaks[15] < 1.3 * journal
    assert 45 * NUMBERS * 32 > 1.3 * journal, "what the numbers would take"
