"""A descent that is interrupted: its row has the best point so far, and another attempt goes on with the same numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fakes import Quadratic, QuadraticParams

from qdrun.jobs.base import Session
from qdrun.jobs.core.watch import Stopped
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize import descent
from qdrun.runner.optimize.descent import STOPPED, descend
from qdrun.runner.optimize.descent_state import Descent, KeptFile, packed, unpacked
from qdrun.runner.optimize.update_rules import RULES
from qdrun.runner.store.files import LocalFiles
from qdrun.runner.workers.records import failed_record


class Memory:
    """Keeps a descent in this process."""

    def __init__(self):
        self.data, self.saved = None, 0

    def load(self):
        return self.data

    def save(self, data):
        self.data, self.saved = data, self.saved + 1

    def clear(self):
        self.data = None


def run(given, kept, stop_at=None, target=(0.0, 2.0)):
    """One attempt; ``stop_at``: the run of the job before which it is stopped. Returns the outcome, or the error."""
    job = Quadratic(QuadraticParams(x=5.0, target=list(target)), wanted=["x"])
    with Session(job) as session:
        if stop_at is not None:
            inner = session.run

            def counted(params=None):
                if job.watch.runs == stop_at:
                    job.watch.stop("the trial ran too long")
                return inner(params)

            session.run = counted
        try:
            return descend(session, given, kept)
        except Stopped as error:
            return error


def section(rule="sgd", **keys):
    return OptimizeSection.model_validate({"rule": rule, "learning_rate": 0.05, "params": ["x"], "steps": 20} | keys)


@pytest.mark.parametrize("rule", RULES)
def test_a_descent_that_is_stopped_goes_on_with_the_bits_of_one_that_was_not(rule):
    whole, given = run(section(rule), None), section(rule)
    kept, stops = Memory(), sorted(random.sample(range(1, 20), 3))
    before = 0
    for stop in stops:
        error = run(given, kept, stop - before)
        assert isinstance(error, Stopped)
        assert error.outcome.outputs["opt.history"].tolist() == whole.outputs["opt.history"].tolist()[:stop]
        before = stop
    last = run(given, kept)
    assert kept.data is None
    for name in ("opt.x", "opt.history", "opt.steps", "opt.kept", "opt.gradient_norm", "opt.stopped"):
        assert np.array_equal(last.outputs[name], whole.outputs[name]), name
    assert last.loss == whole.loss and last.gradients == whole.gradients


def test_the_row_of_a_stopped_descent_has_the_best_point_so_far():
    error = run(section(), Memory(), 6)
    record = failed_record(error)
    assert record["status"] == "cancelled" and record["failure"] == "cancelled"
    history = record["outputs"]["opt.history"].tolist()
    assert len(history) == 6 and record["loss"] == min(history) < history[0]
    assert STOPPED[int(record["outputs"]["opt.stopped"])] == "interrupted"
    assert record["outputs"]["opt.x"] != 5.0 and record["gradient_norm"] == record["outputs"]["opt.gradient_norm"]


def test_a_descent_that_is_stopped_before_its_first_loss_has_no_numbers():
    error = run(section(), kept := Memory(), 0)
    assert error.outcome is None and kept.data is None and "loss" not in failed_record(error)


def test_another_section_or_start_begins_anew():
    kept = Memory()
    run(section(), kept, 5)
    assert run(section(learning_rate=0.1), kept).outputs["opt.steps"] == 20
    run(section(), kept, 5)
    assert run(section(), kept, target=(1.0, 2.0)).loss == run(section(), None, target=(1.0, 2.0)).loss


@pytest.mark.parametrize("damage", ["cut", "flip", "other"])
def test_damaged_bytes_are_no_descent(damage):
    kept = Memory()
    run(section(), kept, 5)
    data = bytearray(kept.data)
    if damage == "flip":
        data[3] ^= 0xFF
    found = {"cut": bytes(data[: len(data) // 2]), "flip": bytes(data), "other": b"no safetensors"}[damage]
    assert unpacked(found, "any key") is None


def test_a_long_descent_is_kept_now_and_then(monkeypatch):
    monkeypatch.setattr(descent, "SAVE_S", -1.0)
    kept = Memory()
    run(section(), kept)
    assert kept.saved == 20 and kept.data is None


def test_the_file_is_written_for_the_owner_alone_and_a_full_store_costs_no_descent(tmp_path):
    class Lost(Exception):
        pass

    def refuse():
        raise Lost

    error = run(section(), memory := Memory(), 3)
    assert isinstance(error, Stopped)
    files = LocalFiles(str(tmp_path))
    mine = KeptFile(files, "trials/t/descent.safetensors", lambda: None)
    assert mine.load() is None
    mine.save(memory.data)
    assert mine.load() == memory.data
    with pytest.raises(Lost):
        KeptFile(files, mine.path, refuse).save(b"")
    assert mine.load() == memory.data
    mine.clear()
    assert mine.load() is None and mine.clear() is None
    (tmp_path / "file").write_text("")
    KeptFile(files, "file/descent.safetensors", lambda: None).save(b"")  # no folder can be made there


def test_a_descent_survives_the_way_through_bytes():
    rng = np.random.default_rng()
    error = run(section("adam"), kept := Memory(), 7)
    found = unpacked(kept.data, _key(kept.data))
    assert isinstance(found, Descent) and isinstance(error, Stopped)
    found.x = {"x": rng.standard_normal((3, 2)), "y": np.asarray(rng.standard_normal())}
    again = unpacked(packed(found, "k"), "k")
    assert all(np.array_equal(again.x[name], found.x[name]) for name in found.x)
    assert again.history == found.history and again.state.count == 7 and again.state.memory.keys() == {"x"}


def _key(data):
    import json

    size = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["descent"])["key"]
