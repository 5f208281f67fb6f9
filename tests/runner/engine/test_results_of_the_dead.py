"""Results that a worker had given before it died are those of their trials, also when its death is looked at first. Without Ray."""

import pickle
import threading
import time

import pytest
import ray
from ray.exceptions import ActorDiedError, GetTimeoutError

from qdrun.runner.engine import messages as m
from qdrun.runner.ray_adapter import worker_pool as module
from qdrun.runner.ray_adapter.worker_pool import RayWorkers, _Actor, _RemoteCall
from qdrun.runner.store.attempts import Failure
from qdrun.runner.workers.spec import LaunchEnded, LeaseNews, WorkerInfo, WorkerSpec

WORKER, OTHER = m.WorkerId("cuda:0", 0, 0), m.WorkerId("cuda:1", 0, 0)


class Stream(list):
    """A stream of items, as Ray has them; an exception among them is raised."""

    __hash__ = object.__hash__

    def __next__(self):
        if not self:
            raise StopIteration
        return self.pop(0)


def done(number):
    record = {"status": "done", "loss": float(number)}
    return pickle.dumps(LeaseNews((LaunchEnded(number, {f"t{number}": record}),)))


def launch(number, worker=WORKER):
    return m.Launch(number, worker, (number,), (1,), 1, 1.0, f"l{number}")


@pytest.fixture
def lanes(monkeypatch):
    """Workers of which calls are made by hand: by reference, what it gives."""
    values = {}

    def get(ref, timeout=None):
        value = values.get(ref, ref) if isinstance(ref, str) else ref
        if isinstance(value, BaseException):
            raise value
        return value

    def wait(refs, timeout=None, num_returns=1, fetch_local=True):
        ready = [ref for ref in refs if (ref if isinstance(ref, Stream) else ref in values)]
        return ready, [ref for ref in refs if ref not in ready]

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "ObjectRefGenerator", Stream)
    monkeypatch.setattr(ray, "kill", lambda handle, no_restart: None)
    monkeypatch.setattr(RayWorkers, "_node", staticmethod(lambda: "here"))
    monkeypatch.setattr(module, "gone", lambda node: False)
    monkeypatch.setattr(module, "left_behind", lambda begun: (frozenset({1}), ""))
    made = RayWorkers("run", lambda worker: None, lambda device: {})
    for worker in (WORKER, OTHER):
        spec = WorkerSpec(run="r", owner=1, token="", device=worker.device, backend="cuda", lanes=4)
        info = WorkerInfo("w", 1, "h", "", "", "", 0, 0, "", "", "here")
        made._actors[worker] = _Actor(None, spec, info=info)
    made.values = values
    made.ask = lambda ref, *numbers, worker=WORKER: made._refs.update(
        {ref: _RemoteCall(worker, {number: launch(number, worker) for number in numbers})}
    )
    return made


def test_results_of_other_lanes_that_were_ready_behind_a_death_are_kept(lanes):
    stream = Stream([done(3), done(4), ActorDiedError()])
    lanes.ask("dead", 1)
    lanes.ask("ready", 2)
    lanes.ask(stream, 3, 4, 5)
    lanes.ask("running", 6)
    lanes.ask("beside", 7, worker=OTHER)
    lanes.values |= {"dead": ActorDiedError(), "ready": done(2)}
    *ends, down = lanes.poll(0.0)
    assert [(end.launch, end.ends[f"t{end.launch}"]["loss"]) for end in ends] == [(2, 2.0), (3, 3.0), (4, 4.0)]
    assert (down.worker, down.failure, down.begun) == (WORKER, Failure.crash, frozenset({1}))
    assert list(lanes._refs) == ["beside"]


def test_a_death_of_which_the_store_does_not_tell_yet_holds_up_nothing_and_is_told_later(lanes, monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(module, "LEFT_S", 0.01)
    monkeypatch.setattr(module, "left_behind", lambda begun: (answers.wait(30) and frozenset({1}), ""))
    lanes.ask("dead", 1)
    lanes.ask("beside", 7, worker=OTHER)
    lanes.values |= {"dead": ActorDiedError()}
    assert lanes.poll(0.0) == [] and list(lanes._refs) == ["beside"]
    lanes.launch((launch(8),), ("batch",))  # it waits, and goes down with its worker
    lanes.values |= {"beside": done(7)}
    (end,) = lanes.poll(0.0)
    assert end.launch == 7 and lanes.alive(WORKER.device)
    answers.set()
    end = time.monotonic() + 30
    while not (news := lanes.poll(0.0)):
        assert time.monotonic() < end
    (down,) = news
    assert (down.worker, down.begun) == (WORKER, frozenset({1})) and not lanes.alive(WORKER.device)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_death_is_told_whatever_its_files_are(lanes, monkeypatch):
    monkeypatch.setattr(module, "left_behind", lambda begun: 1 / 0)
    lanes.ask("dead", 1)
    lanes.values |= {"dead": ActorDiedError()}
    (down,) = lanes.poll(0.0)
    assert (down.worker, down.begun, down.failure) == (WORKER, None, Failure.crash)


def test_a_result_that_is_lost_with_its_node_is_waited_for_no_longer_than_a_moment(lanes, monkeypatch):
    monkeypatch.setattr(module, "TOLD_S", 0.0)
    lanes.ask("dead", 1)
    lanes.ask("lost", 2)
    lanes.ask("here", 3)
    lanes.values |= {"dead": ActorDiedError(), "lost": GetTimeoutError(), "here": done(3)}
    end, down = lanes.poll(0.0)
    assert end.launch == 3 and down.worker == WORKER and not lanes._refs
