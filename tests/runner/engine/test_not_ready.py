"""Workers that do not get as far as their first trial: no trial is charged, and what would happen on every worker ends the run at once."""

import pickle
import random
import time
from dataclasses import replace

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import _registry
from runner_helpers import write_config

from qdrun.runner.engine import messages as m
from qdrun.runner.engine.failures import Rules
from qdrun.runner.ledger.leases import LeaseEnd
from qdrun.runner.provenance.record import record
from qdrun.runner.ray_adapter import worker_actor, worker_pool
from qdrun.runner.ray_adapter.cluster import NoWorker
from qdrun.runner.ray_adapter.worker_pool import RayWorkers, _Actor, _RemoteCall
from qdrun.runner.store.attempts import Failure
from qdrun.runner.store.follower import read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder, create
from qdrun.runner.study.prepare import prepare
from qdrun.runner.workers import WorkerSpec

from .local import run_config
from .test_devices_change import SMALL, Changing, Instant, run
from .world import World

SAID, DIED, LOST = m.Unready.said, m.Unready.died, m.Unready.lost


class Stuck(World):
    """Workers that could not run trials, one after the other."""

    def __init__(self, trials=3, **options):
        self.stuck = []
        super().__init__(["good"] * trials, Rules(infra=1, start_s=1e9), random.Random(0), **options)

    def act(self, actions):
        self.stuck += [action for action in actions if isinstance(action, m.CannotStart)]
        super().act(actions)

    def launched(self):
        """The first launch of the next lease."""
        before = len(self.runs)
        while len(self.runs) == before:
            self.now += 100.0
            self.tell(m.Tick())
            self.grant()
        return self.runs[-1][0]

    def not_ready(self, why, kind="ModuleNotFoundError"):
        launch = self.launched()
        self._die(launch.worker)
        self.tell(m.NotReady(launch.worker, {"type": kind, "message": "no s3fs\nmore", "traceback": ""}, why))
        return launch.worker.device

    def charged(self):
        return sum(event.charged for event in self.journal if isinstance(event, m.WriteRetry))


@pytest.mark.parametrize(
    ("why", "kind", "times"), [(SAID, "StorageUnknown", 2), (SAID, "StorageDenied", 5), (DIED, "WorkerCrashedError", 5)]
)
def test_workers_that_never_get_ready_end_the_run_and_charge_no_trial(why, kind, times):
    world = Stuck()
    used = [world.not_ready(why, kind) for _ in range(times - 1)]
    assert not world.stuck
    used.append(world.not_ready(why, kind))
    assert [one.devices for one in world.stuck] == [frozenset(used)] and world.charged() == 0
    assert world.stuck[0].error["message"] == "no s3fs\nmore" and not world.rows()


def test_a_node_that_is_lost_while_its_workers_start_costs_no_retry_and_ends_nothing():
    world = Stuck()
    for _ in range(12):
        world.not_ready(LOST, "ActorDiedError")
    world.finish()
    assert world.charged() == 0 and not world.stuck and {world.status(name) for name in world.moods} == {"done"}


def test_a_lease_that_ends_with_its_node_before_the_worker_has_begun_costs_no_retry_and_one_after_does():
    for begins, charged in ((False, 0), (True, 1)):
        world = Stuck()
        launch = world.launched()
        if begins:
            world.tell(m.Started(launch.id))
        world._die(launch.worker)
        del world.leases[launch.lease]
        world.tell(LeaseEnd(launch.lease, "its node is gone"))
        assert world.charged() == charged


def test_nothing_ends_while_something_runs_or_after_a_worker_has_got_ready():
    world = Stuck(30)
    running = world.launched()
    world.tell(m.Started(running.id))
    for launch in (world.launched() for _ in range(5)):
        if launch.worker.device != running.worker.device:
            world._die(launch.worker)
            world.tell(m.NotReady(launch.worker, {"type": "E", "message": "gone"}))
    assert world.state._unready.total() > 1 and not world.stuck, "what runs may bring the run to its end"
    world = Stuck(6)
    world.not_ready(SAID)
    begun = world.launched()
    world.tell(m.Started(begun.id))
    world.tell(m.WorkerDown(begun.worker, Failure.infrastructure, {"type": "E", "message": "gone"}, world._die(begun.worker)))
    world.not_ready(SAID)
    assert not world.stuck, "a worker was ready between the two"


def test_the_next_worker_of_a_device_waits_longer_each_time():
    world, waits = Stuck(1), []
    for _ in range(8):
        device = world.not_ready(LOST)
        waits.append(world.state._devices[device].held_until - world.now)
    assert sorted(waits)[-1] <= 60.0 and waits[0] == 1.0
    world.grant()
    assert not world.flights, "it is not launched before its time"


def test_the_run_ends_only_where_no_device_is_left(tmp_path, monkeypatch):
    def launch(self, launches, batches):
        self.news += [event for one in launches for event in self.after(one)]

    def after(launch):
        return [m.NotReady(launch.worker, {"type": "TargetError", "message": "No module named 'torch'\n  do: install it"})]

    monkeypatch.setattr(Instant, "launch", launch)
    with pytest.raises(NoWorker, match=r"no worker can run trials: No module named 'torch'\n  do: install it$"):
        run(tmp_path, Changing(SMALL), after)
    (folder,) = tmp_path.iterdir()
    assert not [one for one in read(RunFolder(folder)).events if one["event"] == "retry" and one.get("charged", True)]


# ---- what a worker says
@pytest.fixture
def run_spec(tmp_path):
    prepared, job = prepare(write_config(tmp_path))
    folder = create(prepared, tmp_path / "runs")
    record(folder.files, prepared, job)
    with Journal(folder) as journal:
        owner = journal.owner
        shared = prepared.shared_spec()
        yield WorkerSpec(str(folder.path), owner.number, owner.token, "cpu", job=shared, own_process=False)


def no_package(spec):
    """The job's code imports what this Python does not have."""
    target = spec.job["target"] | {"code": "", "file": "/nowhere/own.py", "source": "import not_on_this_node\n"}
    return replace(spec, job=dict(spec.job) | {"target": target})


WRONG = {
    "no driver of the storage": (lambda spec: replace(spec, run="nofs://bucket/run"), "StorageUnknown", "cannot open nofs://"),
    "a storage that is not shared": (lambda spec: replace(spec, run="/nowhere/run"), "OwnerLost", "has no run in that place"),
    "a package of the job": (no_package, "TargetError", "No module named 'not_on_this_node'"),
    "the code of the run": (
        lambda spec: replace(spec, job=dict(spec.job) | {"target": spec.job["target"] | {"code": "0" * 32}}),
        "NotKept",
        "is not there, or damaged",
    ),
    "another device": (lambda spec: replace(spec, backend="cuda", uuid="GPU-1"), "", ""),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_worker_says_itself_why_it_can_run_no_trial(run_spec, monkeypatch, what):
    change, kind, said = WRONG[what]
    monkeypatch.setattr(worker_actor, "on_notice", lambda call: None)
    monkeypatch.setattr(worker_actor, "end_with_parent", lambda: None)
    actor = worker_actor.WorkerActor(worker_actor.versions(), pickle.dumps(change(run_spec)))
    found = actor.hello()
    assert isinstance(found, dict) and said in found["message"] and found["type"] == (kind or found["type"])
    if actor._failed is None:
        actor._worker.close()


def test_a_worker_of_another_version_says_so_before_it_reads_anything_of_the_run(monkeypatch):
    monkeypatch.setattr(worker_actor, "end_with_parent", lambda: None)
    found = worker_actor.WorkerActor("qdrun 9.9, Python 3.99", b"nothing that could be read").hello()
    assert found["type"] == "OtherVersion" and "the run was submitted by qdrun 9.9, Python 3.99" in found["message"]


def test_what_a_worker_says_ends_it_before_anything_is_sent_to_it(monkeypatch):
    place, killed = m.WorkerId("cpu"), []
    workers = RayWorkers("run", lambda worker: None, lambda device: {})
    monkeypatch.setattr(workers, "kill", killed.append)
    workers._actors[place] = _Actor(None, None)
    assert workers._not_ready(place, {"type": "T", "message": "x"}) == [m.NotReady(place, {"type": "T", "message": "x"})]
    assert killed == [place]


class OnlyHere(LocalFileSystem):
    """A file system that the workers' Python does not have."""

    protocol = "dropbox"


def test_a_storage_that_only_the_runner_knows_ends_the_run_in_its_own_words(local_ray, tmp_path, monkeypatch):
    monkeypatch.setitem(_registry, "dropbox", OnlyHere)
    (tmp_path / "runs").mkdir()
    config = write_config(tmp_path)
    config.write_text(config.read_text().replace("output: ", "storage: ").replace(f'"{tmp_path}', f'"dropbox://{tmp_path}'))
    began = time.monotonic()
    with pytest.raises(NoWorker, match=r"cannot open dropbox://.*\n  do: use a local folder, or install the file system"):
        run_config(config)
    assert time.monotonic() - began < 120.0


def test_a_python_without_this_package_is_named_by_the_last_line_of_its_trace(monkeypatch):
    from ray import exceptions

    trace = "ray::WorkerActor.__init__()\nTraceback (most recent call last):\nModuleNotFoundError: No module named 'qdrun'\n"
    error = exceptions.RayActorError(None, f"The actor died because of an error raised in its creation task, {trace}", True)
    place = m.WorkerId("cpu")
    workers = RayWorkers("run", lambda worker: None, lambda device: {})
    workers._actors[place], workers._refs["hello"] = _Actor(None, None), _RemoteCall(place)
    monkeypatch.setattr(workers, "kill", workers._actors.pop)
    monkeypatch.setattr(worker_pool, "_value", lambda ref: (_ for _ in ()).throw(error))
    (event,) = workers._event("hello")
    assert (event.why, event.error["message"]) == (SAID, "ModuleNotFoundError: No module named 'qdrun'")
