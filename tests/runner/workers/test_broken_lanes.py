"""Whatever a trial leaves to be written down, and whatever becomes of the thread of its lane, its lease comes to an end."""

import platform
import threading

import jobs_that_break
import pytest
from lane_helpers import Bench, record

from qdrun.runner.workers import lanes, worker
from qdrun.runner.workers.lanes import Lane

TARGET = {"job": "Breaking", "target": "jobs_that_break.py", "gradients": ["g"]}


def ends_of(bench, made, *hows, timeout_s=20.0):
    """The ends of one lease, by trial; fails where it does not come to its end."""
    batches = [bench.batch(f"t{k}", launch=k + 1, how=how, number=k) for k, how in enumerate(hows)]
    found = []
    thread = threading.Thread(target=lambda: found.extend(news for news in made.run_all(batches)), daemon=True)
    thread.start()
    thread.join(timeout_s)
    assert not thread.is_alive(), "somebody still waits for the lease"
    return [end for news in found for end in news.ends]


@pytest.fixture
def bench(tmp_path):
    made = Bench(str(tmp_path))
    yield made
    for one in made.workers:
        assert one.close(10.0)
        for lane in one._lanes.all:
            threading._active.pop(lane.ident, None)  # Python takes a thread for alive that native code has ended


@pytest.mark.parametrize("how", ["odd key", "long double"])
def test_a_result_that_cannot_be_written_down_is_its_trial_s_error_and_the_lane_goes_on(bench, how):
    made = bench.worker(lanes=1, **TARGET)
    bad, good = ends_of(bench, made, how, "good")
    (found,) = bad.ends.values()
    assert found["status"] in ("done", "failed")
    if found["status"] == "failed":
        assert found["failure"] == "user_error" and found["error"]["message"]
    assert record(good)["loss"] == 1.0 and made.progress().retire == ""


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (MemoryError("no room for a copy"), "out_of_memory"),
        (TypeError("a key"), "user_error"),
        (KeyboardInterrupt(), "user_error"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else one,
)
def test_whatever_is_raised_while_a_result_is_written_down_ends_that_trial_alone(bench, monkeypatch, error, failure):
    real, made = worker.pack, bench.worker(lanes=1, **TARGET)

    def pack(folder, attempt, record, check):
        if attempt.trial == "t0":
            raise error
        return real(folder, attempt, record, check)

    monkeypatch.setattr(worker, "pack", pack)
    bad, good = ends_of(bench, made, "good", "good")
    found = record(bad)
    assert (found["status"], found["failure"], found["error"]["type"]) == ("failed", failure, type(error).__name__)
    assert "loss" not in found and record(good)["loss"] == 1.0


def test_an_error_outside_of_the_trial_ends_the_trial_and_not_the_lane(bench, monkeypatch):
    """In what the worker does around an attempt, where nothing is expected to go wrong."""
    made = bench.worker(lanes=1, **TARGET)
    calls = []

    def ended(self, lane, record):
        calls.append(record["status"])
        if len(calls) == 1:
            raise MemoryError("while the trial was counted")

    monkeypatch.setattr(worker.Worker, "_ended", ended)
    bad, good = ends_of(bench, made, "good", "good")
    assert record(bad)["failure"] == "out_of_memory" and record(good)["loss"] == 1.0


@pytest.mark.skipif(platform.machine() not in jobs_that_break.EXIT, reason="another system call ends a thread there")
def test_a_lane_whose_thread_is_gone_is_noticed_and_its_trial_alone_is_charged(bench, monkeypatch):
    """Native code has ended it; Python still takes the thread for alive."""
    monkeypatch.setattr(worker, "CHUNK_S", 0.05)
    made = bench.worker(lanes=1, **TARGET)
    before, guilty, behind = ends_of(bench, made, "good", "thread", "good")
    assert record(before)["loss"] == 0.0
    found = record(guilty)
    assert (found["status"], found["failure"]) == ("failed", "crash") and "thread of its lane has ended" in found["error"][
        "message"
    ]
    assert behind.begun is False and behind.ends == {}, "it was no attempt"
    assert "thread of its lane has ended" in behind.retire and made.progress().retire == behind.retire


def test_a_lane_that_dies_of_our_own_error_is_noticed_in_a_single_launch_too(bench, monkeypatch):
    made = bench.worker(lanes=1, **TARGET)
    monkeypatch.setattr(Lane, "_batch", lambda self, task, batch: (_ for _ in ()).throw(MemoryError("no room")))
    (end,) = (made.run(bench.batch("t0", launch=1)),)
    assert end.ends == {} and made._lanes.lost


def test_a_result_that_is_written_for_ever_ends_as_a_lane_that_died(bench, monkeypatch):
    monkeypatch.setattr(lanes, "SAVE_S", 0.2)
    monkeypatch.setattr(worker, "CHUNK_S", 0.05)
    free = threading.Event()
    monkeypatch.setattr(worker, "pack", lambda *words: free.wait(200))
    made = bench.worker(lanes=1, **TARGET)
    (end,) = ends_of(bench, made, "good")  # long before that time is over
    free.set()
    assert record(end)["failure"] == "crash" and "has been written for more than" in record(end)["error"]["message"]
