"""The ledger as an actor of a Ray cluster of two nodes with pretended GPUs: groups, restarts, lost nodes."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from qdrun.runner.ledger import LeaseEnd
from qdrun.runner.ledger.leases import Terms
from qdrun.runner.ledger.settings import NAME, NAMESPACE, Settings
from qdrun.runner.packing import Claim, Request
from qdrun.runner.ray_adapter import compat, ledger_actor, placement_groups
from qdrun.runner.ray_adapter.ledger_client import ActorLedger

GIB = 1 << 30
SETTINGS = Settings(lanes=1, beat_s=1.0, expire_s=20.0, idle_s=600.0, look_s=0.3, pretended_bytes=8 * GIB)
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
    import os

    import ray
    from ray.cluster_utils import Cluster

    if ray.is_initialized():
        pytest.skip("this process has another Ray open: run the file by itself")
    os.makedirs(os.path.join(ray_folder, "ray"), exist_ok=True)
    head = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False, "_system_config": FAST}
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


def kind_of(ledger):
    return next(row.kind for row in ledger.devices() if row.model == "pretended")


def asked(ledger, count, size=GIB, start=0):
    claims = {kind_of(ledger): Claim.of([(size, 1.0)])}
    ledger.ask([Request(f"t{k}", "", "", claims, time.time()) for k in range(start, start + count)])


def until(ledger, wanted, done=()):
    """Exchange until the answers have brought what is wanted: (leases, ends)."""
    leases, ended, end = [], [], time.monotonic() + PATIENCE_S
    while not wanted(leases, ended):
        assert time.monotonic() < end, (leases, ended, ledger.why(), ledger.snapshot())
        answer = ledger.exchange(done, wait_s=0.5)
        done = ()
        leases += answer.leases
        ended += answer.ended
        if not answer.reached:
            time.sleep(0.2)
    return leases, ended


@pytest.mark.parametrize(
    ("here", "head", "again", "leaves"),
    [("n", "h", 0, True), ("h", "h", 0, False), ("n", None, 0, False), ("n", "h", 1, True), ("n", "h", 10, False)],
)
def test_a_ledger_that_a_node_keeps_from_the_head_starts_again_a_few_times(monkeypatch, here, head, again, leaves):
    import ray

    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: here))
    monkeypatch.setattr(compat, "restarts", lambda: again)
    alive = {"n": {"CPU": 1.0}} | ({head: {"CPU": 1.0, placement_groups.HEAD: 1.0}} if head else {})
    monkeypatch.setattr(placement_groups, "nodes", lambda: alive)
    assert placement_groups.is_misplaced() == leaves


def wait_for(happens):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if happens():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_groups_kill_and_recovery(cluster):
    import ray

    ledger = ActorLedger("drop", "ann", settings=SETTINGS)
    asked(ledger, 4)
    leases, _ = until(ledger, lambda leases, _: len(leases) == 2)
    assert len({lease.device for lease in leases}) == len({lease.node for lease in leases}) == 2

    @ray.remote
    class Sees:
        def where(self):
            context = ray.get_runtime_context()
            return context.get_node_id(), context.get_accelerator_ids()["GPU"]

    for lease in leases:
        actor = Sees.options(**ledger.options(lease.device)).remote()
        assert ray.get(actor.where.remote()) == (lease.node, ["0"])
        ray.kill(actor)
    groups = {lease.group for lease in leases}
    poll = ledger.refs()
    assert len(poll) == 1 and not ledger.exchange() and ledger.refs() == poll  # it stays open until there is something
    assert ray.wait(poll, timeout=PATIENCE_S)[0] == poll and not ledger.exchange() and ledger.refs() != poll  # a beat

    epoch = ledger.snapshot()["epoch"]
    ray.kill(ray.get_actor(NAME, namespace=NAMESPACE), no_restart=False)  # as if its process had died
    assert wait_for(lambda: ledger.snapshot().get("epoch", epoch) != epoch)
    leases_then, ended = until(ledger, lambda leases, _: len(leases) == 1, [LeaseEnd(leases[0].id)])
    assert not ended and leases_then[0].requests == ("t2",)
    assert leases_then[0].device == leases[0].device and leases_then[0].group in groups
    held = {lease.id for lease in ledger.held()}
    running = [run["lease"] for device in ledger.snapshot()["devices"] for run in device["running"]]
    assert set(running) == held == {leases[1].id, leases_then[0].id} and len(running) == 2
    assert len({lease.id for lease in [*leases, *leases_then]}) == 3

    ray.kill(ray.get_actor(NAME, namespace=NAMESPACE), no_restart=True)  # for good: the run starts another one
    again, ended = until(ledger, lambda leases, _: len(leases) == 1, [LeaseEnd(leases[1].id)])
    assert not ended and again[0].requests == ("t3",) and again[0].group == leases[1].group
    ledger.close()


@pytest.mark.slow
def test_a_lost_node_and_a_run_that_dies(cluster):
    """The ledger is on the head, which is not lost: on the lost node it would start again, and the leases would end for another reason."""
    import ray

    ann, bob = ActorLedger("drop", "ann", settings=SETTINGS), ActorLedger("drop", "bob", settings=SETTINGS)
    asked(ann, 1)
    first, _ = until(ann, lambda leases, _: len(leases) == 1)
    asked(bob, 2)
    second, _ = until(bob, lambda leases, _: len(leases) == 2)
    assert {lease.device for lease in second} >= {first[0].device}  # each has a lane: bytes are what they share
    lost = next(node for node in cluster.added if node.node_id == first[0].node)
    gone = [lease for lease in second if lease.device == first[0].device]
    stays = [lease for lease in second if lease.device != first[0].device]
    cluster.remove_node(lost, allow_graceful=False)

    _, ended = until(ann, lambda _, ended: ended)
    assert [end.lease for end in ended] == [first[0].id]
    assert ended[0].reason == f"device lost: node {first[0].node[:12]} is gone"
    _, ended = until(bob, lambda _, ended: ended)
    assert [end.lease for end in ended] == [lease.id for lease in gone]
    assert [lease.id for lease in bob.held()] == [lease.id for lease in stays] and len(stays) == 1

    asked(ann, 1, size=6 * GIB, start=9)  # beside bob's it does not fit: it waits for bob, who says nothing any more
    waits = ann.why()["t9"].why
    assert "needs 6 GiB" in waits and "1 GiB" not in ann.exchange().leases
    started, _ = until(ann, lambda leases, _: leases)
    assert started[0].device == stays[0].device
    answer = bob.exchange()
    assert [end.reason.split(":")[0] for end in answer.ended] == ["expired"] and not bob.held()
    ann.close()
    bob.close()
    assert {row["state"] for row in ray.util.placement_group_table().values() if row["name"].startswith("qdrun/")} >= {
        "REMOVED"
    }


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

    half, whole = foreign(cluster.added[0], 1), foreign(cluster.added[1], 2)
    ledger = ActorLedger("drop", "ann", settings=replace(SETTINGS, lanes=None))
    kind = next(row.kind for row in ledger.devices() if row.backend == "cpu" and row.node == cluster.added[0].node_id)
    ledger.ask([Request(f"t{k}", "", "", {kind: Claim.of([(1 << 20, 1.0)])}, time.time()) for k in range(12)])
    on = lambda leases, node: [lease for lease in leases if lease.node == node.node_id]
    first, _ = until(ledger, lambda leases, _: on(leases, cluster.added[0]))
    assert len(on(first, cluster.added[0])) == 1 and not on(first, cluster.added[1])
    ray.kill(half)
    more, _ = until(ledger, lambda leases, _: on(leases, cluster.added[0]))
    assert on(more, cluster.added[0])[0].device != on(first, cluster.added[0])[0].device
    ray.kill(whole)
    until(ledger, lambda leases, _: len(on(leases, cluster.added[1])) == 2)

    patient = Foreign.options(num_cpus=2).remote().where.remote()  # ours are all cores; what runs there ends as it would
    end = time.monotonic() + 1.5 * ledger_actor.GIVE_S
    while time.monotonic() < end:
        assert not ledger.exchange(wait_s=1.0).ended and not ray.wait([patient], timeout=0)[0]
    begun = ledger.exchange([LeaseEnd(lease.id) for lease in ledger.held()]).leases
    assert ray.wait([patient], timeout=PATIENCE_S)[0] and ray.get(patient) in {node.node_id for node in cluster.added}
    assert begun and ray.get(patient) not in {lease.node for lease in begun}
    ledger.close()


def asked_for():
    """The cores that an autoscaler is asked to provide in all."""
    from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
    from ray.experimental.internal_kv import _internal_kv_get

    return sum(one.get("CPU", 0) for one in json.loads(_internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL) or "[]"))


@pytest.mark.slow
def test_a_cluster_that_grows_by_demand_grows_to_what_waits(cluster):
    """An autoscaler of ours: a node of one core for each core that is asked for beyond those that there are, five at most."""
    import ray

    ledger = ActorLedger("drop", "ann", settings=replace(SETTINGS, lanes=None), terms=Terms(most=5))
    kind = next(row.kind for row in ledger.devices() if row.backend == "cpu")
    ledger.ask([Request(f"t{k}", "", "", {kind: Claim.of([(1 << 20, 1.0)])}, time.time()) for k in range(12)])
    leases, end = [], time.monotonic() + PATIENCE_S
    while len({lease.node for lease in leases}) < 5:
        assert time.monotonic() < end, (len(leases), asked_for(), ray.cluster_resources(), ledger.snapshot()["problem"])
        if ray.cluster_resources()["CPU"] < min(5, asked_for()):
            cluster.added.append(cluster.add_node(num_cpus=1, object_store_memory=80 << 20))
        leases += ledger.exchange(wait_s=0.5).leases
    assert asked_for() == 5 and len(cluster.added) == 4
    ledger.close()
    assert wait_for(lambda: asked_for() == 0)
