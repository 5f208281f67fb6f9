"""A descent that is interrupted: its row has the best point so far, and another attempt goes on with the same numbers."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from fakes import Quadratic, QuadraticParams
from test_descent_of_batch import Bowl, BowlParams, drawn

from qdrun.jobs.base import BatchSession, Session
from qdrun.jobs.core.watch import Stopped
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.engine.event_writer import Inside, with_best
from qdrun.runner.optimize import kept as kept_module
from qdrun.runner.optimize.descent import descend, descend_batch, section_data
from qdrun.runner.optimize.kept import KeptFiles, batch_path, path_of
from qdrun.runner.optimize.points import optimizer_of
from qdrun.runner.optimize.results import STOPPED
from qdrun.runner.optimize.state import Descents, Key, joined, packed, unpacked
from qdrun.runner.optimize.update_rules import RULES, SEARCHES, RuleState
from qdrun.runner.store.files import LocalFiles
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import write_run
from qdrun.runner.study.trial_list import Trial, Trials
from qdrun.runner.workers import BatchColumns
from qdrun.runner.workers.records import failed_record

NUMBERS = ("opt.history", "opt.steps", "opt.kept", "opt.gradient_norm", "opt.stopped")


class Memory:
    """Keeps descents in this process."""

    def __init__(self):
        self.data, self.saved = None, 0

    def load(self, keys):
        return unpacked(self.data, keys)

    def save(self, data):
        self.data, self.saved = data, self.saved + 1

    def clear(self):
        self.data = None


class Killed(BaseException):
    """Stands for the end of the process: nothing that follows is run."""


def run(given, kept, stop_at=None, target=(0.0, 2.0), error=None):
    """One attempt; ``stop_at``: the run of the job before which it is stopped, or ends with ``error``. The outcome, or the error."""
    job = Quadratic(QuadraticParams(x=5.0, target=list(target)), wanted=["x"])
    with Session(job) as session:
        if stop_at is not None:
            inner = session.run

            def counted(params=None):
                if job.watch.runs == stop_at:
                    if error is not None:
                        raise error
                    job.watch.stop("the trial ran too long")
                return inner(params)

            session.run = counted
        try:
            return descend(session, given, kept, "t")
        except (Stopped, Killed) as found:
            return found


def section(rule="sgd", **keys):
    rate = {} if rule in SEARCHES else {"learning_rate": 0.05}
    return OptimizeSection.model_validate({"rule": rule, "params": ["x"], "steps": 20} | rate | keys)


def assert_equal_bits(found, whole, *names):
    for name in (*names, *NUMBERS):
        assert np.asarray(found.outputs[name]).tobytes() == np.asarray(whole.outputs[name]).tobytes(), name
    assert found.loss == whole.loss
    for name, value in whole.gradients.items():
        assert np.asarray(found.gradients[name]).tobytes() == np.asarray(value).tobytes(), name


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
    assert_equal_bits(last, whole, "opt.x")


@pytest.mark.parametrize("rule", RULES)
def test_a_descent_whose_process_dies_goes_on_from_where_it_was_saved_with_the_same_bits(rule, monkeypatch):
    monkeypatch.setattr(kept_module, "SHARE", 1e9)
    monkeypatch.setattr(kept_module, "EVERY_S", 0.0)
    given, kept = section(rule), Memory()
    for stop in sorted(random.sample(range(2, 8), 2)):
        assert isinstance(run(given, kept, stop, error=Killed()), Killed) and kept.saved > 0
    assert_equal_bits(run(given, kept), run(given, None), "opt.x")


# ---- batches


def batch_run(given, params, kept=None, kill_at=None, stop_at=None, names=None):
    """The ends of one attempt of a batch, whose points are on its device where the rule allows it, or the error that ended it."""
    on_device = optimizer_of(given, params[0])
    with BatchSession.open(Bowl, BowlParams(), len(params), optimizer=on_device) as batch:
        watch, run = batch.job.watch, batch.job.watch.run

        def counted(steps):
            if watch.runs == kill_at:
                raise Killed
            if watch.runs == stop_at:
                watch.stop("cancelled")
            return run(steps)

        watch.run = counted
        watch.reset(len(params))
        try:
            return descend_batch(batch, params, given, (), kept, names or [f"t{k}" for k in range(len(params))])
        except (Killed, Stopped) as error:
            return error


def bowl(rule="adam", **keys):
    rate = {} if rule in SEARCHES else {"learning_rate": 0.05}
    return OptimizeSection.model_validate({"params": ["x", "y"], "steps": 12, "rule": rule} | rate | keys)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Where descents are kept, as a worker makes it; each step is saved."""
    monkeypatch.setattr(kept_module, "SHARE", 1e9)
    monkeypatch.setattr(kept_module, "EVERY_S", 0.0)
    where = LocalFiles(str(tmp_path))
    return lambda path, first=False: KeptFiles(where, path, lambda: None, first)


@pytest.mark.parametrize("rule", ["adam", "lbfgs"])
def test_a_batch_whose_process_dies_goes_on_with_the_bits_of_one_that_lives(files, rule):
    params, given = drawn(5, seed=random.randrange(1000)), bowl(rule)
    whole = batch_run(given, params)
    assert isinstance(batch_run(given, params, files(batch_path(1, 7), first=True), random.randrange(2, 12)), Killed)
    again = batch_run(given, params, files(batch_path(1, 8)))
    for found, expected in zip(again, whole, strict=True):
        assert_equal_bits(found, expected, "opt.x", "opt.y", "root")


def test_halves_of_a_batch_and_trials_alone_go_on_from_the_batch_and_a_batch_goes_on_from_trials_alone(files):
    params, given = drawn(4, seed=random.randrange(1000)), bowl()
    whole = batch_run(given, params)
    kill = random.randrange(3, 8)
    assert isinstance(batch_run(given, params, files(batch_path(1, 1), first=True), kill), Killed)
    halves = batch_run(given, params[:2], files(batch_path(1, 2)), names=["t0", "t1"])
    for found, expected in zip(halves, whole, strict=False):
        assert_equal_bits(found, expected, "opt.x", "opt.y")

    runs = []
    with Session(Bowl(params[2]), backend="cpu", threads=1) as session:
        inner = session.run

        def counted(point=None):
            runs.append(point)
            if len(runs) == 3:
                session.job.watch.stop("cancelled")
            return inner(point)

        session.run = counted
        with pytest.raises(Stopped):  # alone: it has gone on from the batch, and two steps farther
            descend(session, given, files(path_of("t2")), "t2")
    assert len(runs) == 3
    mixed = batch_run(given, [params[2], params[3], params[0]], files(batch_path(2, 1)), names=["t2", "t3", "new"])
    for found, expected in zip(mixed, [whole[2], whole[3], whole[0]], strict=True):
        np.testing.assert_allclose(found.outputs["opt.history"], expected.outputs["opt.history"], rtol=1e-12)
        assert found.outputs["opt.steps"] == expected.outputs["opt.steps"]


def test_a_batch_that_is_stopped_keeps_the_best_of_each_trial_and_goes_on(files):
    params, given = drawn(4, seed=random.randrange(1000)), bowl(stop={"loss": 0.5})
    whole, stop = batch_run(given, params), random.randrange(2, 10)
    ends = batch_run(given, params, files(batch_path(1, 1), first=True), stop_at=stop)
    for end, expected in zip(ends, whole, strict=True):
        history = expected.outputs["opt.history"].tolist()
        if isinstance(end, Stopped):
            assert end.outcome.outputs["opt.history"].tolist() == history[:stop] and end.outcome.loss == min(history[:stop])
        else:
            assert_equal_bits(end, expected)
    if any(isinstance(end, Stopped) for end in ends):
        for found, expected in zip(batch_run(given, params, files(batch_path(2, 1))), whole, strict=True):
            assert_equal_bits(found, expected, "opt.x", "opt.y")


def test_a_trial_that_has_failed_fails_again_while_the_others_go_on(files):
    params = [BowlParams(x=45.0, y=[0.1, 0.1], target=90.0, steep=1.0), *drawn(2, seed=random.randrange(1000))]
    given = bowl(rule="sgd")
    whole = batch_run(given, params)
    assert isinstance(whole[0], Exception) and not isinstance(whole[1], Exception)
    assert isinstance(batch_run(given, params, files(batch_path(1, 1), first=True), 9), Killed)
    again = batch_run(given, params, files(batch_path(1, 2)))
    assert type(again[0]) is type(whole[0]) and str(again[0]) == str(whole[0])
    for found, expected in zip(again[1:], whole[1:], strict=True):
        assert_equal_bits(found, expected, "opt.x", "opt.y")


# ---- rows and bytes


def test_the_row_of_a_stopped_descent_has_the_best_point_so_far():
    error = run(section(), Memory(), 6)
    record = failed_record(error)
    assert record["status"] == "cancelled" and record["failure"] == "cancelled"
    history = record["outputs"]["opt.history"].tolist()
    assert len(history) == 6 and record["loss"] == min(history) < history[0]
    assert STOPPED[int(record["outputs"]["opt.stopped"])] == "interrupted"
    assert record["outputs"]["opt.x"] != 5.0 and record["gradient_norm"] == record["outputs"]["opt.gradient_norm"]


def test_the_row_of_a_killed_attempt_has_the_best_point_that_was_kept(files, tmp_path):
    params, given = drawn(3, seed=random.randrange(1000)), bowl()
    whole, kill = batch_run(given, params), random.randrange(2, 10)
    folder = write_run(str(tmp_path / "runs"), "kept", "", {}, [], {})
    memory = KeptFiles(folder.files, batch_path(1, 7), lambda: None, True)
    assert isinstance(batch_run(given, params, memory, kill), Killed)
    spec = {"optimize": section_data(given, ["x", "y"], {"x": 1.0, "y": [1.0, 2.0]})}
    trials = [Trial(id=f"t{k}", index=k, replicate=0, seed=k, swept={}, params={}) for k in range(4)]
    inside = Inside(Trials.of(trials), lambda places: BatchColumns({}, {}, [0], spec["optimize"]))
    error = {"type": "Timeout", "message": "too long", "traceback": ""}
    with Journal(folder) as journal:
        for k in range(3):
            row = {"trial": f"t{k}", "attempt": 1, "status": "failed", "failure": "timeout", "error": error}
            found = with_best(inside, journal, row)
            history = whole[k].outputs["opt.history"].tolist()[:kill]
            assert found["outputs"]["opt.history"] == history and found["loss"] == min(history) and found["error"] == error
            assert STOPPED[int(found["outputs"]["opt.stopped"])] == "interrupted"
            for same in ({"status": "done"}, {"loss": 0.5}, {"attempt": 0}, {"trial": "t3"}):
                assert with_best(inside, journal, row | same) == row | same
        clipped = spec["optimize"] | {"clip": 1.0}
        other = replace(inside, columns=lambda names: BatchColumns({}, {}, [0], clipped))
        assert with_best(other, journal, row) == row, "it was kept by another section"


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
    kept.data = found
    assert run(section(), kept).loss == run(section(), None).loss


def test_saving_takes_a_small_share_of_the_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(kept_module.time, "monotonic", lambda: clock[0])

    class Slow(Memory):
        def save(self, data):
            super().save(data)
            clock[0] += 0.1

    kept = Slow()
    saver = kept_module.Saver(kept)
    for _ in range(1000):
        clock[0] += 0.25
        saver.look(lambda: b"")
    assert 10 <= kept.saved <= 14 and kept.saved * 0.1 / clock[0] < 1.1 * kept_module.SHARE
    quick = Memory()
    saver = kept_module.Saver(quick)
    for _ in range(1000):
        clock[0] += 0.25
        saver.look(lambda: b"")
    assert quick.saved in (249, 250)


def test_files_are_written_for_the_owner_alone_and_a_full_store_costs_no_descent(tmp_path):
    class Lost(Exception):
        pass

    def refuse():
        raise Lost

    error = run(section(), memory := Memory(), 3)
    assert isinstance(error, Stopped)
    files, key = LocalFiles(str(tmp_path)), next(iter(_keys(memory.data)))
    mine = KeptFiles(files, path_of(key.trial), lambda: None)
    assert mine.load([key]) == {}
    mine.save(memory.data)
    assert mine.load([key])[key].step == 3 and KeptFiles(files, "x", lambda: None, first=True).load([key]) == {}
    assert KeptFiles(files, batch_path(3, 4), lambda: None).load([key, Key("other", "x")]).keys() == {key}
    with pytest.raises(Lost):
        KeptFiles(files, mine.path, refuse).save(b"")
    mine.clear()
    assert mine.load([key]) == {} and mine.clear() is None
    (tmp_path / "file").write_text("")
    KeptFiles(files, "file/descent.safetensors", lambda: None).save(b"")  # no folder can be made there


def test_descents_survive_the_way_through_bytes_row_by_row():
    rng, count = np.random.default_rng(), 4
    now = Descents.at({"x": rng.standard_normal((count, 3, 2)), "y": rng.standard_normal(count)}, count)
    memory = {name: {"m": rng.standard_normal(value.shape)} for name, value in now.x.items()}
    now = replace(now, step=7, rule=RuleState(7, memory), history=[rng.standard_normal(count) for _ in range(7)])
    now.point, now.gradients, now.outputs = now.x, now.x, {"out": rng.standard_normal((count, 2))}
    keys = [Key(f"t{k}", str(k)) for k in range(count)]
    now.fail(2, ValueError("no"))
    found = unpacked(packed(now, keys, {"rule": "sgd"}), [*keys, Key("t0", "another start")])
    assert set(found) == {keys[0], keys[1], keys[3]}
    again = joined([found[keys[k]] for k in (0, 1, 3)])
    assert (again.step, again.rule.count) == (7, 7)
    for name, value in now.x.items():
        assert np.array_equal(again.x[name], value[[0, 1, 3]])
        assert np.array_equal(again.rule.memory[name]["m"], memory[name]["m"][[0, 1, 3]])
    assert np.array_equal(np.stack(again.history), np.stack(now.history)[:, [0, 1, 3]])
    assert np.array_equal(again.outputs["out"], now.outputs["out"][[0, 1, 3]])


def _keys(data):
    from qdrun.runner.optimize.state import header_of

    return header_of(data)["rows"]
