"""Files of live values: what is written is read again, whatever attempts, batches and damage there are."""

import numpy as np
import pytest

from qdrun.jobs.core.watch import StepValues
from qdrun.runner.live.points import LiveReader, Logged, live_values, series
from qdrun.runner.live.writer import LiveWriter
from qdrun.runner.store.files import StorageFull
from qdrun.runner.store.layout import RunFolder, write_run
from qdrun.runner.store.owner import OwnerLost

PATH = "workers/cpu/w1"


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    where = str(tmp_path) if request.param == "local" else f"memory://live-{tmp_path.name}"
    return write_run(where, "live", "", {"gradients": []}, [], {})


def random_points(count, rows=None, first=0):
    rng = np.random.default_rng()
    values = [rng.normal(size=rows or ()) for _ in range(count)]
    return [StepValues(first + k, 100.0 + k, {"loss": value, "n": float(k)}) for k, value in enumerate(values)]


def test_points_of_a_trial_and_of_a_batch_are_read_as_they_were_written(folder):
    alone, batch = random_points(5), random_points(4, 3)
    blocks = [Logged.of(["a"], [1], alone), Logged.of(["b", "c", "d"], [1, 2, 1], batch)]
    writer = LiveWriter(folder, PATH, lambda: [blocks.pop()] if blocks else [], lambda: None)
    writer.write(sync=True)
    assert set(live_values(folder)) == {"b", "c", "d"}
    writer.put(blocks.pop())
    writer.close()
    found = live_values(folder)
    assert set(found) == {"a", "b", "c", "d"}
    assert found["a"].step.tolist() == list(range(5)) and found["a"].t.tolist() == [point.t for point in alone]
    assert found["a"]["loss"].tolist() == [float(point.values["loss"]) for point in alone]
    for row, name in enumerate("bcd"):
        assert found[name]["loss"].tolist() == [point.values["loss"][row] for point in batch]
        assert found[name]["n"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_later_attempt_replaces_what_the_earlier_one_had_from_its_first_step_on():
    first, again, other = random_points(9), random_points(3, first=6), random_points(2)
    found = series([Logged.of(["a"], [2], again), Logged.of(["a"], [1], first[:4]), Logged.of(["a"], [1], first[4:])])["a"]
    expected = [*first[:6], *again]
    assert found.step.tolist() == [point.step for point in expected] == list(range(9))
    assert found["loss"].tolist() == [float(point.values["loss"]) for point in expected]
    assert series([Logged.of(["a"], [1], first), Logged.of(["a"], [2], other)])["a"].step.tolist() == [0, 1]


def test_values_of_one_step_that_come_in_parts_are_joined():
    parts = [StepValues(1, 5.0, {"a": 1.0, "b": 2.0}), StepValues(1, 6.0, {"b": 3.0}), StepValues(2, 7.0, {"c": 4.0})]
    found = series([Logged.of(["x"], [1], [part]) for part in parts])["x"]
    assert found.step.tolist() == [1, 2] and found.t.tolist() == [6.0, 7.0]
    np.testing.assert_array_equal(found["a"], [1.0, np.nan])
    np.testing.assert_array_equal(found["b"], [3.0, np.nan])
    np.testing.assert_array_equal(found["c"], [np.nan, 4.0])
    np.testing.assert_array_equal(found.column("never"), [np.nan, np.nan])


def test_a_reader_goes_on_where_it_was_and_leaves_out_damaged_and_unfinished_lines(folder):
    lines = [Logged.of([name], [1], random_points(2)).line() for name in "abc"]
    path, reader = f"{PATH}/live/000001.jsonl", LiveReader(folder)
    files = folder.files
    files.put(path, lines[0] + lines[1][:-9])
    assert [block.trials for block in reader.news()] == [("a",)]
    broken = lines[2].replace(b'"c"', b'"e"')
    files.put(path, lines[0] + lines[1] + broken + b"{}\n" + lines[2])
    assert [block.trials for block in reader.news()] == [("b",), ("c",)]
    assert reader.news() == []
    files.put(f"{PATH}/stdout.log", b"not ours\n")
    files.put("workers/cpu/w2/live/000001.jsonl", lines[0])
    assert [block.trials for block in reader.news()] == [("a",)]


def test_a_run_without_live_values_has_none(folder):
    assert live_values(folder) == {}


def test_a_full_store_costs_values_and_a_lost_owner_ends_the_writing(tmp_path):
    folder = write_run(str(tmp_path), "live", "", {"gradients": []}, [], {})
    errors = [StorageFull("no room"), OSError("away")]

    def check():
        if errors:
            raise errors.pop(0)

    writer = LiveWriter(folder, PATH, list, check)
    for name in "abc":
        writer.put(Logged.of([name], [1], random_points(1)))
        writer.write()
    assert set(live_values(folder)) == {"c"}
    errors.append(OwnerLost("another one"))
    for name in "de":
        writer.put(Logged.of([name], [1], random_points(1)))
        writer.write()
    writer.close()
    assert set(live_values(RunFolder(folder.uri))) == {"c"}


def test_files_of_a_store_without_append_stay_small(tmp_path, monkeypatch):
    monkeypatch.setattr("qdrun.runner.live.writer.SEGMENT_BYTES", {True: 1 << 20, False: 2000})
    folder = write_run(f"memory://live-{tmp_path.name}", "live", "", {"gradients": []}, [], {})
    writer = LiveWriter(folder, PATH, list, lambda: None)
    for k in range(20):
        writer.put(Logged.of([f"t{k}"], [1], random_points(3)))
        writer.write(sync=True)
    writer.close()
    sizes = folder.files.sizes(f"{PATH}/live")
    assert len(sizes) > 3 and max(sizes.values()) < 4000
    assert len(live_values(folder)) == 20
