"""When a run talks with its ledger, and with Ray."""

from qdrun.runner.engine import loop
from qdrun.runner.engine import messages as m
from qdrun.runner.ledger import Machine
from qdrun.runner.ray_adapter.worker_pool import RayWorkers

from .test_devices_change import SMALL, Changing, done, run


def test_a_run_hears_of_new_devices_before_it_looks_at_anything_else(tmp_path, monkeypatch):
    """A device that comes while nothing runs is used at once, and not only when cancel requests are looked at."""
    monkeypatch.setattr(loop, "LOOK_EVERY_S", 1e9)
    ledger = Changing()
    looks = []

    def changed(self):
        looks.append(None)
        if len(looks) == 3:
            ledger.found.append(SMALL)
        return len(looks) == 3

    monkeypatch.setattr(Machine, "changed", property(changed))
    outcome, state, _ = run(tmp_path, ledger, done, trials=2, kinds=(SMALL.kind,))
    assert outcome == "done" and state.counts() == {"done": 2} and len(looks) >= 3


def test_what_workers_are_known_to_do_is_said_without_asking_ray(monkeypatch):
    import ray

    looks = []
    monkeypatch.setattr(ray, "wait", lambda refs, **options: looks.append(refs) or ([], refs))
    workers = RayWorkers("run", lambda worker: None, lambda device: {})
    workers._refs["call"], workers._news = None, [m.Started(1)]
    assert workers.poll(1.0) == [m.Started(1)] and not looks
    assert workers.poll(1.0) == [] and looks == [["call"]]
