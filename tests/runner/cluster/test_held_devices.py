"""What runs hold of a Ray cluster of two nodes, with pretended GPUs: groups, lost nodes, other runs, other users, an autoscaler."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from qdrun.runner.ledger import LeaseEnd, RunLedger
from qdrun.runner.packing import Claim, Request
from qdrun.runner.ray_adapter import compat, held_devices, placement_groups
from qdrun.runner.ray_adapter.held_devices import HeldDevices
from qdrun.runner.ray_adapter.node_inventory import Settings

GIB = 1 << 30
SETTINGS = Settings(look_s=0.3, idle_s=600.0, pretended_bytes=8 * GIB)
FAST = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
    "health_check_timeout_ms": 1000,
}
PATIENCE_S = 60.0


@pytest.fixture
def cluster(ray_folder, request):
    """A head without GPUs and two nodes with one pretended GPU each; this process has joined it. The parameter: cores of each node."""
    import ray
    from ray.cluster_utils import Cluster

    if ray.is_initialized():
        pytest.skip("this process has another Ray open: run the file by itself")
    os.makedirs(os.path.join(ray_folder, "ray"), exist_ok=True)
    head = {"num_cpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False, "_system_config": FAST}
    with compat.small_head(), compat.started_with(ahead=True):
        made = Cluster(initialize_head=True, head_node_args=head)
        cores = getattr(request, "param", 1)
        made.added = [made.add_node(num_cpus=cores, num_gpus=1, object_store_memory=80 << 20) for _ in range(2)]
    try:
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def kind_of(ledger, backend):
    return next(row.kind for row in ledger.devices() if row.usable and row.backend == backend)


def asked(ledger, count, backend="cuda", size=1 << 20):
    claims = {kind_of(ledger, backend): Claim.of([(size, 1.0)])}
    ledger.ask([Request(f"t{k}", claims, time.time()) for k in range(count)])


class Run:
    """A run that keeps what it is granted until it is told to give it back."""

    def __init__(self, name, count, backend, settings=SETTINGS, owner=1, most=None):
        self.ledger = RunLedger(name, HeldDevices(name, owner, settings), most=most)
        asked(self.ledger, count, backend)
        self.held, self.ended = {}, []

    def step(self, ends=()):
        """An exchange, in which some leases end."""
        for lease in ends:
            del self.held[lease]
        answer = self.ledger.exchange([LeaseEnd(lease, seconds=60.0) for lease in ends])
        self.held |= {lease.id: lease for lease in answer.leases}
        for end in answer.ended:
            self.held.pop(end.lease)
        self.ended += answer.ended
        for device in answer.close:
            assert device not in self.devices()
            self.ledger.closed(device)
        return answer.leases

    def devices(self):
        return {lease.device for lease in self.held.values()}

    def nodes(self):
        return {lease.node for lease in self.held.values()}

    def on(self, node):
        return [lease for lease in self.held.values() if lease.node == node.node_id]


def until(happens, *runs, ends=0):
    """Exchange until something has happened; in each exchange some leases of a run end."""
    end = time.monotonic() + PATIENCE_S
    while not (found := happens()):
        assert time.monotonic() < end, [(run.held, run.ended, list(run.ledger.source._groups.values())) for run in runs]
        for run in runs:
            run.step(list(run.held)[:ends])
        time.sleep(0.05)
    return found


def groups(run=None):
    return [group for group in placement_groups.existing() if run in (None, group.run)]


@pytest.mark.slow
def test_a_run_holds_a_group_for_each_device_and_gives_all_back(cluster):
    import ray

    @ray.remote
    class Sees:
        def where(self):
            context = ray.get_runtime_context()
            return context.get_node_id(), context.get_accelerator_ids()["GPU"]

    run = Run("drop", 9, "cuda", replace(SETTINGS, lanes=1))
    until(lambda: len(run.held) == 2, run)
    assert run.nodes() == {node.node_id for node in cluster.added} and len(run.devices()) == 2
    for lease in run.held.values():
        actor = Sees.options(**run.ledger.options(lease.device)).remote()
        assert ray.get(actor.where.remote()) == (lease.node, ["0"])
        ray.kill(actor)
    assert "7 more were asked of Ray, which has none free" in next(iter(run.ledger.why().values())).why
    run.ledger.withdraw([f"t{k}" for k in range(9)])
    until(lambda: len(groups()) == 2, run)  # what waited is withdrawn, too
    run.ledger.close()
    assert not groups()


@pytest.mark.slow
def test_devices_on_which_nothing_runs_are_given_back(cluster):
    run = Run("drop", 2, "cuda", replace(SETTINGS, lanes=1, idle_s=1.0))
    until(lambda: len(run.held) == 2, run)
    first = next(iter(run.held))
    lost = run.held[first].device
    run.step([first])
    until(lambda: lost not in {row.id for row in run.ledger._ledger.devices()}, run)
    assert len(groups()) == 1 and not run.ended
    asked(run.ledger, 1)
    until(lambda: len(run.held) == 2, run)
    run.ledger.close()


@pytest.mark.slow
def test_the_devices_of_a_lost_node_are_lost_with_the_reason(cluster):
    run = Run("drop", 2, "cuda", replace(SETTINGS, lanes=1))
    until(lambda: len(run.held) == 2, run)
    lost = cluster.added[0]
    (gone,) = run.on(lost)
    cluster.remove_node(lost, allow_graceful=False)
    until(lambda: run.ended, run)
    assert [(end.lease, end.reason) for end in run.ended] == [(gone.id, f"device lost: node {lost.node_id[:12]} is gone")]
    assert len(run.held) == 1
    with pytest.raises(KeyError):
        run.ledger.options(gone.device)
    run.ledger.close()


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [2], indirect=True)
@pytest.mark.parametrize(("backend", "each"), [("cpu", 2), ("cuda", 1)])
def test_two_runs_share_a_cluster_equally_and_then_keep_what_they_have(cluster, monkeypatch, backend, each):
    monkeypatch.setattr(held_devices, "GIVE_S", 1.0)
    monkeypatch.setattr(held_devices, "REST_S", 2.0)
    settings = replace(SETTINGS, lanes=None if backend == "cpu" else 1)
    first = Run("first", 4000, backend, settings)
    until(lambda: len(first.held) == 2 * each, first)
    second = Run("second", 4000, backend, settings)
    until(lambda: len(first.held) == len(second.held) == each, first, second, ends=1)
    assert not first.ended and not second.ended, "what ran has come to its end"
    held, end = (first.devices(), second.devices()), time.monotonic() + 6.0
    while time.monotonic() < end:
        for run in (first, second):
            run.step(list(run.held)[:1])
        assert first.devices() <= held[0] and second.devices() <= held[1]
        time.sleep(0.05)
    first.ledger.close()
    until(lambda: len(second.held) == 2 * each, second)
    second.ledger.close()


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_cores_that_others_leave_are_used_and_those_that_they_give_back_too(cluster):
    """A foreign actor has one of two cores of the first node and both of the second one."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote
    class Foreign:
        def where(self):
            return ray.get_runtime_context().get_node_id()

    def foreign(node, cores):
        where = NodeAffinitySchedulingStrategy(node_id=node.node_id, soft=False)
        made = Foreign.options(num_cpus=cores, scheduling_strategy=where).remote()
        assert ray.get(made.where.remote()) == node.node_id
        return made

    one, two = cluster.added
    half, whole = foreign(one, 1), foreign(two, 2)
    run = Run("drop", 4000, "cpu")
    until(lambda: run.on(one), run)
    assert len(run.on(one)) == 1 and not run.on(two)
    ray.kill(half)
    until(lambda: len(run.on(one)) == 2, run)
    ray.kill(whole)
    until(lambda: len(run.on(two)) == 2, run)

    patient = Foreign.options(num_cpus=2).remote().where.remote()  # ours are all cores; what runs there ends as it would
    end = time.monotonic() + 1.5 * held_devices.GIVE_S
    while time.monotonic() < end:
        run.step()
        assert not run.ended and not ray.wait([patient], timeout=0)[0]
        time.sleep(0.2)
    until(lambda: ray.wait([patient], timeout=0)[0], run, ends=2)
    assert ray.get(patient) in {node.node_id for node in cluster.added} and not run.ended
    assert run.held and ray.get(patient) not in run.nodes()
    run.ledger.close()


def pending():
    """The cores that an autoscaler of Ray sees wanted: those of placement groups that wait."""
    import ray
    from ray.autoscaler.v2.sdk import get_cluster_status

    demand = get_cluster_status(ray.get_runtime_context().gcs_address).resource_demands.placement_group_demand
    return sum(int(one.bundle["CPU"]) * one.count for group in demand for one in group.bundles_by_count)


@pytest.mark.slow
def test_a_cluster_that_grows_by_demand_grows_to_what_waits_and_shrinks(cluster):
    """An autoscaler of ours starts a node of one core for each core that is pending; those on which nothing is may go."""
    import ray

    run = Run("drop", 12, "cpu", replace(SETTINGS, idle_s=1.0), most=5)
    until(lambda: len(run.held) == 2 and pending() == 3, run)

    def grown():
        while len(cluster.added) < 2 + 3 and pending():
            cluster.added.append(cluster.add_node(num_cpus=1, object_store_memory=80 << 20))
        return len(run.nodes()) == 5

    until(grown, run)
    assert pending() == 0 and len(cluster.added) == 5
    until(lambda: run.ledger._ledger.counts() == (0, 0), run, ends=5)
    until(lambda: not groups(), run)
    until(lambda: ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"] == 5, run)
    run.ledger.close()


HOLDER = """
import sys, time
import ray
sys.path.insert(0, sys.argv[2])
from test_held_devices import Run, until
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
run = Run("drop", 9, "cpu")
until(lambda: len(run.held) == 2, run)
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "owner"), [(signal.SIGKILL, 1), (signal.SIGSTOP, 2)])
def test_what_an_earlier_owner_of_a_run_held_is_there_at_once_for_the_next_one(cluster, sent, owner):
    """Killed: its groups go with its job. Stopped: the next owner takes them away."""
    command = [sys.executable, "-c", HOLDER, cluster.address, os.path.dirname(__file__)]
    before = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert before.stdout.readline() == "held\n"
        before.send_signal(sent)
        run, begun = Run("drop", 9, "cpu", owner=owner), time.monotonic()
        until(lambda: len(run.held) == 2, run)
        assert time.monotonic() - begun < 10.0
        assert {group.owner for group in groups()} == {owner}
        run.ledger.close()
    finally:
        before.kill()
        before.wait()
