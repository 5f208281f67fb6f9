"""A batch on a lane: one program for all of its trials, columns back, and a record of its own for each trial that fails.

The session is a stand-in here, with the numbers of a parabola: what the compiler makes of a batch is tested where that is.
"""

import ctypes
import pickle
import platform
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from lane_helpers import record, wait_for

from qdrun.compiler.errors import QdrunRuntimeError
from qdrun.jobs.core.batch import BatchOutcome
from qdrun.runner.store.columns import decoded
from qdrun.runner.store.files import StorageFull
from qdrun.runner.workers import BatchSpec, program_cache, worker
from qdrun.runner.workers.spec import BatchColumns
from qdrun.runner.workers.together import norms_of

EXIT = {"x86_64": 60, "aarch64": 93}
"""The system call that ends one thread."""


class Session:
    """``number`` is the input; the loss is its square."""

    opened: list = []  # noqa: RUF012 - of the class: what every test looks at
    raises: BaseException | None = None
    width = 3

    def __init__(self, job, trials, options):
        self.job, self.trials, self.options = job, trials, options
        self.used, self.peak_bytes, self.closed = {}, None, False

    @classmethod
    def open(cls, job, params, trials, **options):
        cls.opened.append(cls(job(params, wanted=options.pop("wanted")), trials, options))
        return cls.opened[-1]

    def run_columns(self, inputs, seeds=(), params=None):
        if self.raises is not None:
            raise self.raises
        x = np.asarray(inputs["number"], dtype=np.float64)
        assert len(x) == len(seeds) <= self.trials
        bad = {k: QdrunRuntimeError("kernel `k` failed: an assert\n  do: see") for k in np.flatnonzero(x == -2.0).tolist()}
        loss = np.where(x == -1.0, np.nan, x * x)
        gradient = np.repeat(2.0 * x[:, None], self.width, axis=1)
        return BatchOutcome(loss, {"g": gradient}, {"seed": np.asarray(seeds, dtype=np.float64)}, bad)

    def measure(self):
        self.used, self.peak_bytes = {"state": 10 * self.trials}, 10 * self.trials

    def close(self):
        self.closed = True


@pytest.fixture
def session(monkeypatch):
    Session.opened, Session.raises, Session.width = [], None, 3
    monkeypatch.setattr(program_cache, "BatchSession", Session)
    monkeypatch.setattr(program_cache, "group_key", lambda job, params, wanted: repr(params.steps))
    return Session


def batch(numbers, *, lease="l", claim=1000, launch=0, **params):
    trials = tuple(f"t{k}" for k in range(len(numbers)))
    seeds = [100 + k for k in range(len(numbers))]
    columns = BatchColumns({"number": numbers[0], **params}, {"number": list(numbers)}, seeds)
    return BatchSpec(lease, trials, (1,) * len(trials), columns, claim, launch=launch)


def test_the_trials_of_a_batch_come_back_as_columns(bench, session):
    worker = bench.worker(lanes=1)
    end = worker.run(batch([1, 2, 3, 4]))
    assert end.ends == {} and end.begun
    (rows,) = end.rows
    assert rows.trials == ("t0", "t1", "t2", "t3") and rows.attempts == (1, 1, 1, 1)
    assert decoded(rows.columns["loss"]._asdict()).tolist() == [1.0, 4.0, 9.0, 16.0]
    assert decoded(rows.gradients["g"]._asdict()).tolist() == [[2.0 * k] * 3 for k in (1, 2, 3, 4)]
    assert decoded(rows.outputs["seed"]._asdict()).tolist() == [100.0, 101.0, 102.0, 103.0]
    assert np.allclose(decoded(rows.columns["gradient_norm"]._asdict()), [np.sqrt(3 * 4.0 * k * k) for k in (1, 2, 3, 4)])
    assert rows.best == (0, 1.0) and rows.outputs_of(2) == {"seed": 102.0}
    assert rows.shared["planned_bytes"] == 25 and rows.shared["planned"] == {"state": 25}  # Plain says 100
    assert rows.shared["used_bytes"] == 10 and rows.shared["used"] == {"state": 10} and rows.shared["claim_bytes"] == 250
    assert rows.shared["status"] == "done" and rows.shared["ended_t"] >= rows.shared["started_t"]
    assert session.opened[0].options["memory_limit_bytes"] == 1000 and session.opened[0].closed


def test_trials_that_fail_have_records_of_their_own_and_the_others_do_not_know(bench, session):
    worker = bench.worker(lanes=1)
    end = worker.run(batch([1, -1, -2, 4]))
    (rows,) = end.rows
    assert rows.trials == ("t0", "t3") and decoded(rows.columns["loss"]._asdict()).tolist() == [1.0, 16.0]
    nan, failed = (one for one in end.ends.values())
    assert (nan["status"], nan["failure"], nan["error"]["type"]) == ("failed", "not_finite", "NotFinite")
    assert nan["gradients"]["g"] == [-2.0] * 3 and nan["used_bytes"] == 10
    assert (failed["failure"], failed["error"]["type"]) == ("user_error", "QdrunRuntimeError")
    assert "in trial t2" in failed["error"]["message"] and "loss" not in failed


def test_a_job_that_raises_for_the_whole_batch_runs_trial_by_trial(bench, session):
    session.raises = ValueError("one of them is wrong")
    worker = bench.worker(lanes=1)
    made = batch([1, 2, 3])
    end = worker.run(made._replace(columns=made.columns._replace(inputs={"number": [1, "two", 3]})))
    assert [one["status"] for one in end.ends.values()] == ["done", "failed", "done"] and not end.rows
    assert [one.get("loss") for one in end.ends.values()] == [1.0, None, 3.0]  # Plain itself: its loss is the number
    assert list(end.ends.values())[1]["error"]["type"] == "ValidationError"
    assert session.opened[0].closed


def test_a_batch_without_memory_is_said_of_each_of_its_trials(bench, session):
    session.raises = MemoryError("no more")
    end = bench.worker(lanes=1).run(batch([1, 2, 3]))
    assert [one["failure"] for one in end.ends.values()] == ["out_of_memory"] * 3 and not end.rows


@pytest.mark.skipif(platform.machine() not in EXIT, reason="another system call ends a thread there")
def test_a_lane_that_dies_while_trials_of_a_batch_run_one_by_one_gives_each_one_end_and_no_row(bench, session, monkeypatch):
    """What the first of them had computed was told to none: it runs again, with its half of the batch."""
    monkeypatch.setattr(worker, "CHUNK_S", 0.05)
    session.raises, made = ValueError("one of them is wrong"), bench.worker(lanes=1)
    attempt = made._lanes.run

    def dies(lane, one):
        if one.trials == ("t1",):
            ctypes.CDLL(None).syscall(EXIT[platform.machine()], 0)
        return attempt(lane, one)

    made._lanes.run = dies
    (end,) = [end for news in made.run_all([batch([1, 2, 3], launch=1)]) for end in news.ends]
    for lane in made._lanes.all:
        threading._active.pop(lane.ident, None)  # Python takes the thread for alive
    assert list(end.ends) == ["t0", "t1", "t2"] and not end.rows
    assert {(one["status"], one["failure"]) for one in end.ends.values()} == {("failed", "crash")}
    assert "the thread of its lane has ended" in end.retire


def test_trials_of_a_batch_behind_one_that_has_lost_the_device_do_not_begin(bench, session):
    session.raises, made = ValueError("one of them is wrong"), batch([1, 2, 3], launch=1)
    moods = {"number": [1, 2, 3], "mood": ["good", "lost", "good"]}
    end = bench.worker(lanes=1).run(made._replace(columns=made.columns._replace(inputs=moods)))
    assert [(name, one["status"]) for name, one in end.ends.items()] == [("t0", "done"), ("t1", "failed")]
    assert list(end.ends.values())[1]["restart"] and end.retire


def test_results_of_a_batch_wait_for_room_together_and_not_one_after_the_other(bench, session, monkeypatch):
    session.width, tried, since = 10_000, [], set()
    monkeypatch.setattr(worker, "RETRY_S", 0.01)
    made = bench.worker(lanes=1, storage_wait_s=0.1)

    def pack(folder, attempt, record, check):
        tried.append(attempt.trial)
        since.add(made._lanes.all[0].now.saving)
        raise StorageFull("no room")

    monkeypatch.setattr(worker, "pack", pack)
    end = made.run(batch([1, 2, 3, 4]))
    assert [one["error"]["type"] for one in end.ends.values()] == ["StorageFull"] * 4
    assert tried.count("t0") > 2 and tried[-3:] == ["t1", "t2", "t3"]
    assert len(since) == 4, "each is watched from its own begin: many results may take long"


def test_batches_of_one_group_and_size_follow_each_other_in_one_program(bench, session):
    worker = bench.worker(lanes=1)
    batches = [
        batch([1, 2], launch=1),
        batch([3, 4], launch=2),
        batch([3, 4, 5], launch=3),
        batch([1, 2, 3], launch=4, steps=1),
    ]
    ends = [end for news in worker.run_all(batches) for end in news.ends]
    assert [end.rows[0].best[1] for end in ends] == [1.0, 9.0, 9.0, 1.0]
    assert [one.trials for one in session.opened] == [2, 3, 3] and all(one.closed for one in session.opened)


def test_a_single_trial_after_a_batch_has_a_program_of_its_own(bench, session):
    worker = bench.worker(lanes=1)
    first, second, third = (
        e for news in worker.run_all([batch([1, 2]), bench.batch("x", number=7), batch([1, 2])]) for e in news.ends
    )
    assert first.rows and third.rows and record(second)["loss"] == 7.0
    assert len(session.opened) == 2 and all(one.closed for one in session.opened)


def test_a_batch_behind_another_runs_on_its_lane_in_its_program(bench, session):
    worker, inside, goes = bench.worker(lanes=2), threading.Event(), threading.Event()
    run_columns = session.run_columns

    def slow(self, inputs, seeds=(), params=None):
        inside.set()
        assert goes.wait(30.0)
        return run_columns(self, inputs, seeds, params)

    session.run_columns = slow
    try:
        with ThreadPoolExecutor(4) as pool:
            later = pool.submit(
                worker.run, batch([5, 6], launch=2)._replace(behind=True)
            )  # comes before the one that it is behind
            first = pool.submit(worker.run, batch([1, 2], launch=1))
            assert inside.wait(30.0)
            third = pool.submit(worker.run, batch([3, 4], launch=3)._replace(behind=True))
            other = pool.submit(worker.run, batch([7, 8], launch=4, lease="m"))
            wait_for(lambda: len(session.opened) == 2)
            goes.set()
            ends = [one.result() for one in (first, later, third, other)]
    finally:
        session.run_columns = run_columns
    assert [end.rows[0].best[1] for end in ends] == [1.0, 25.0, 9.0, 49.0]
    lanes = [end.rows[0].shared["lane"] for end in ends]
    assert lanes[0] == lanes[1] == lanes[2] != lanes[3]
    assert len(session.opened) == 2 and all(one.closed for one in session.opened)


def test_a_batch_that_comes_after_the_end_of_its_lease_s_call_gets_a_program_of_its_own(bench, session):
    worker = bench.worker(lanes=1)
    worker.run(batch([1, 2]))
    assert session.opened[0].closed
    end = worker.run(batch([3, 4])._replace(behind=True))
    assert end.rows[0].best[1] == 9.0 and len(session.opened) == 2 and session.opened[1].closed


def test_a_trial_that_was_asked_to_stop_does_not_run_with_its_batch(bench, session, monkeypatch):
    worker = bench.worker(lanes=1)
    (lane,) = worker._lanes.all
    monkeypatch.setattr(lane, "asked", lambda trial: "no more" if trial == "t1" else None)
    end = worker.run(batch([1, 2, 3]))
    assert end.rows[0].trials == ("t0", "t2") and list(end.ends) == ["t1"]
    assert record(end)["status"] == "cancelled"


def test_a_stop_that_comes_too_late_for_a_batch_does_not_stop_the_next_one_in_its_program(bench, session, monkeypatch):
    """As of one that took longer than `limits.trial_timeout`, and ended well before its process was killed."""
    made, run_columns = bench.worker(lanes=1), session.run_columns

    def slow(self, inputs, seeds=(), params=None):
        self.job.watch.run()
        if inputs["number"][0] == 1:
            assert made.stop("t0") and made.stop("t1")
        return run_columns(self, inputs, seeds, params)

    monkeypatch.setattr(session, "run_columns", slow)
    second = batch([3, 4], launch=2)
    second = second._replace(trials=("u0", "u1"))
    ends = [end for news in made.run_all([batch([1, 2], launch=1), second]) for end in news.ends]
    assert [end.rows[0].trials for end in ends] == [("t0", "t1"), ("u0", "u1")] and not any(end.ends for end in ends)
    assert len(session.opened) == 1 and session.opened[0].job.watch.runs == 1


def test_large_arrays_go_to_files_of_each_trial(bench, session):
    session.width = 10_000
    end = bench.worker(lanes=1).run(batch([1, 2]))
    assert not end.rows
    files = [one["gradients"]["g"]["file"] for one in end.ends.values()]
    assert files == [f"trials/t{k}/a1/gradients.safetensors" for k in (0, 1)]
    assert all(bench.folder.files.exists(path) for path in files)


def test_a_batch_and_its_rows_come_out_of_a_pickle_as_they_went_in(bench, session):
    made = batch([1, 2, 3])
    assert pickle.loads(pickle.dumps(made)) == made
    end = bench.worker(lanes=1).run(made)
    assert end.rows and pickle.loads(pickle.dumps(end)) == end and end.begun


def test_norms_are_those_of_single_trials():
    from qdrun.runner.workers.records import norm_of

    rng = np.random.default_rng(0)
    columns = {"a": rng.normal(size=(5, 3, 2)), "b": rng.normal(size=5).astype(np.float32)}
    found = norms_of(columns, 5)
    for k in range(5):
        assert found[k] == pytest.approx(norm_of([column[k] for column in columns.values()]), rel=1e-15)
    assert norms_of({}, 5) is None
