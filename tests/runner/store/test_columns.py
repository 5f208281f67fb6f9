"""Rows of a batch in one line of the journal: every reader sees one event for each trial, with the bits that went in."""

import math

import numpy as np
import pytest

from qdrun.runner.observe.table import each_row, rows_of
from qdrun.runner.store import columns
from qdrun.runner.store.attempts import arrays_of
from qdrun.runner.store.follower import EVENTS, Detail, EventReader, event_at, read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.replay import record_of, replay

NAMES = ["aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"]
SHARED = {"status": "done", "seconds": 0.25, "planned_bytes": 64, "used_bytes": 64, "device": "cpu", "planned": {"state": 64}}


def made(generator, width=4, names=NAMES):
    count = len(names)
    losses, gradients = (
        generator.normal(size=count),
        {"x": generator.normal(size=(count, width)), "k": generator.normal(size=count)},
    )
    outputs = {"reach": generator.normal(size=count).astype(np.float32)}
    norms = np.sqrt(sum((g.reshape(count, -1) ** 2).sum(axis=1) for g in gradients.values()))
    parts = list(columns.made(tuple(names), (1,) * count, SHARED, losses, norms, gradients, outputs))
    return parts, losses, norms, gradients, outputs


@pytest.fixture
def run(store_run):
    return store_run(NAMES)


@pytest.fixture
def store_run(tmp_path):
    from qdrun.runner.store.layout import write_run
    from qdrun.runner.study.trials import Trial

    def make(names):
        trials = [Trial(id=n, index=k, replicate=0, seed=k, swept={"x": k}, params={"x": k}) for k, n in enumerate(names)]
        return write_run(tmp_path, "batch", "", {"gradients": ["x", "k"]}, trials, {})

    return make


def test_a_column_keeps_type_shape_and_bits():
    for array in (np.array([1.5, -0.0, 5e-324]), np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros((2, 0)), np.array([7])):
        back = columns.decoded(columns.encoded(array)._asdict())
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        assert back.tobytes() == array.tobytes()


def test_each_trial_of_a_batch_has_its_row(run, monkeypatch):
    monkeypatch.setattr("qdrun.runner.study.trials.trial_id", lambda params, replicate: NAMES[params["x"]])
    parts, losses, norms, gradients, outputs = made(np.random.default_rng(1))
    (rows,) = parts
    assert rows.best == (int(losses.argmin()), losses.min())
    with Journal(run) as journal:
        journal.write("begun", trials=NAMES, attempts=[1, 1, 1], device="cpu:0", bytes=192)
        before = replay(run)
        journal.write("rows", **rows.event())
    assert [state.status for state in before.trials.values()] == ["running"] * 3
    assert before.trials[NAMES[1]].attempts[0].place == {"device": "cpu:0", "bytes": 192}
    found = replay(run, Detail.FULL)
    assert found.complete
    table = rows_of(run, found)
    for k, row in enumerate(table):
        assert row["status"] == "done"
        assert row["loss"] == losses[k]
        assert row["gradient_norm"] == norms[k]
        assert row["grad.x"] == gradients["x"][k].tolist()
        assert row["grad.k"] == gradients["k"][k]
        assert row["out.reach"] == float(outputs["reach"][k])
        assert row["used_of_planned"] == 1.0
        assert row["attempts"] == 1
        again = record_of(run, found.trials[row["trial"]])
        assert np.array_equal(arrays_of(run, again)["x"], gradients["x"][k])


def test_large_arrays_stay_in_the_journal_until_they_are_read(run):
    parts, _, _, gradients, _ = made(np.random.default_rng(2), width=300)
    with Journal(run) as journal:
        for rows in parts:
            journal.write("rows", **rows.event())
    slim = read(run, Detail.NONE).entries[1:]
    assert [entry.row for entry in slim] == [0, 1, 2]
    assert not any("gradients" in entry.event for entry in slim)
    light = read(run, Detail.SMALL).entries[1:]
    assert light[2].event["gradients"] == {"x": {"shape": [300]}, "k": gradients["k"][2]}
    lines = EventReader(run)
    for k in (2, 0, 1, 1):
        assert lines.at(slim[k])["gradients"]["x"] == gradients["x"][k].tolist()
        assert event_at(run, slim[k])["trial"] == NAMES[k]
    found = replay(run, Detail.SMALL)
    table = list(each_row(run, found, rows_of(run, found)))
    assert [row["grad.x"] for row in table] == gradients["x"].tolist()


def test_a_batch_that_is_too_large_for_a_line_has_several(monkeypatch):
    monkeypatch.setattr(columns, "LINE_BYTES", 100)
    names = [f"{k:012x}" for k in range(7)]
    parts, losses, _, gradients, _ = made(np.random.default_rng(3), names=names)
    assert [len(part.trials) for part in parts] == [1] * 7 or len(parts) > 1
    events = [event for part in parts for event in columns.expanded({"event": "rows", **part.event()})]
    assert [event["trial"] for event in events] == names
    assert [event["loss"] for event in events] == losses.tolist()
    assert [event["gradients"]["x"] for event in events] == gradients["x"].tolist()
    assert min(part.best[1] for part in parts) == losses.min()


def test_a_damaged_line_names_all_trials_of_its_batch(run):
    (rows,), *_ = made(np.random.default_rng(4))
    with Journal(run) as journal:
        journal.write("rows", **rows.event())
    (name,) = [n for n in run.files.names(EVENTS) if n.endswith(".jsonl")]
    data = run.files.read(f"{EVENTS}/{name}")
    at = data.index(b'"loss"') + 60
    run.files.put(f"{EVENTS}/{name}", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    found = replay(run)
    assert [damage.trials for damage in found.damage] == [tuple(NAMES)]
    assert all(state.damaged and state.status == "waiting" for state in found.trials.values())


def test_a_second_line_of_a_batch_counts_for_nobody_who_has_a_row(run):
    (rows,), losses, *_ = made(np.random.default_rng(5))
    (other,), *_ = made(np.random.default_rng(6))
    with Journal(run) as journal:
        journal.write("rows", **rows.event())
        journal.write("rows", **other.event())
    found = replay(run)
    assert found.doubled == 3
    assert [state.entry.event["loss"] for state in found.trials.values()] == losses.tolist()
    assert all(math.isfinite(state.entry.event["loss"]) for state in found.trials.values())
