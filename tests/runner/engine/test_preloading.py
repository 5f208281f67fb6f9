"""A worker with shapes to load does that between its first words and its first trial, with the bytes that wait there claimed."""

from types import SimpleNamespace

from qdrun.runner.engine import messages as m
from qdrun.runner.ray_adapter.worker_pool import RayWorkers, _Actor
from qdrun.runner.workers import BatchColumns, BatchSpec, WorkerSpec
from qdrun.runner.workers.spec import WorkerInfo

INFO = WorkerInfo("w", 1, "host", "", "", "", 0, 0, "")


class Handle:
    """Of an actor: notes what it is asked, and which of it the dashboard counts."""

    def __init__(self):
        self.calls, self.listed = [], []
        for name in ("preload", "run", "drop", "stop", "progress"):
            setattr(self, name, self.method(name))

    def method(self, called, enable_task_events=True, name=""):
        def remote(*words):
            self.listed += [called] if enable_task_events else []
            return self.note(called, *words)

        return SimpleNamespace(remote=remote, options=lambda **options: self.method(called, **options))

    def note(self, name, *words):
        self.calls.append((name, *words))
        return object()

    def names(self):
        return [call[0] for call in self.calls]


def one(name, claim):
    return BatchSpec(f"lease of {name}", (name,), (1,), BatchColumns({}, {}, [0]), claim)


def actor_of(workers, generation, shapes):
    """A worker of ``gpu0`` that has two trials of 3 and 4 bytes to begin with."""
    place, handle = m.WorkerId("gpu0", 0, generation), Handle()
    spec = WorkerSpec(run="run", owner=1, token="", device="gpu0", lanes=2, shapes=shapes)
    actor = workers._actors[place] = _Actor(handle, spec)
    for k, claim in enumerate((3, 4)):
        launch = m.Launch(k, place, (k,), (1,), claim, 1.0, f"lease{k}")
        actor.queue.append(([launch], [one(f"t{k}", claim)._replace(launch=k)]))
    return place, handle, actor


def test_trials_wait_until_the_code_is_loaded_and_not_again_after_a_worker_that_died_of_it():
    workers = RayWorkers("run", lambda worker: None, lambda device: {})
    shapes = (one("t0", 3), one("t1", 4))
    place, handle, actor = actor_of(workers, 0, shapes)
    workers._ready(place, INFO)
    assert handle.calls == [("preload", 7)] and actor.info is None
    workers._ready(place, None)
    assert handle.names() == ["preload", "run", "run"] and actor.info is INFO
    # the next one dies while it loads: the one after it begins at once, and the one after that loads again
    place, handle, _ = actor_of(workers, 1, shapes)
    workers._ready(place, INFO)
    assert handle.names() == ["preload"]
    place, handle, actor = actor_of(workers, 2, shapes)
    workers._ready(place, INFO)
    assert handle.names() == ["run", "run"] and actor.info is INFO
    place, handle, _ = actor_of(workers, 3, shapes)
    workers._ready(place, INFO)
    assert handle.names() == ["preload"]


def test_a_worker_without_shapes_begins_at_once():
    workers = RayWorkers("run", lambda worker: None, lambda device: {})
    place, handle, _ = actor_of(workers, 0, ())
    workers._ready(place, INFO)
    assert handle.names() == ["run", "run"]


def test_the_dashboard_counts_the_calls_that_are_leases_and_no_others(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "wait", lambda refs, **options: ([], refs))
    workers = RayWorkers("run", lambda worker: None, lambda device: {})
    place, handle, _ = actor_of(workers, 0, (one("t0", 3),))
    workers._ready(place, INFO)
    workers._ready(place, None)
    workers.look()
    workers.drop(place, (1,))
    workers.ask_to_stop(place, ("t0",))
    assert handle.names() == ["preload", "run", "run", "progress", "drop", "stop"]
    assert handle.listed == ["run", "run"]
