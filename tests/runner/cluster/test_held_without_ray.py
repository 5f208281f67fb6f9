"""What a run holds of a pretended cluster: nodes and devices that hang, fail or are of no use. Without Ray, one look after the other."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from qdrun.runner.ledger import LeaseEnd, RunLedger
from qdrun.runner.ledger.cluster_shares import Group
from qdrun.runner.ledger.inventory import local, pretended
from qdrun.runner.packing import Claim, Request
from qdrun.runner.ray_adapter import held_devices, node_inventory, placement_groups
from qdrun.runner.ray_adapter.held_devices import HeldDevices
from qdrun.runner.ray_adapter.node_inventory import NodeInventory, NoInventory, Settings

GIB = 1 << 30


class Answer:
    """A reference of Ray's: there is an answer, an error, or nothing yet."""

    def __init__(self, value=None):
        self.value = value


class Cluster:
    """Nodes with cards. Ray places a group where something is free; what runs inside one says which card it has, or hangs."""

    def __init__(self, monkeypatch, **nodes):
        self.rows = {name: list(rows) for name, rows in nodes.items()}
        self.cores = dict.fromkeys(nodes, 2.0)
        self.answers = {name: Answer([*local(1, None, name), *rows]) for name, rows in self.rows.items()}
        self.groups, self.removed, self.probed, self.inside, self.waits = {}, [], [], {}, True
        self.names, self.hangs, self.ids, self.now, self.readings = set(), {}, itertools.count(), 1000.0, 0
        monkeypatch.setattr(node_inventory, "nodes", self.nodes)
        monkeypatch.setattr(node_inventory, "probe", lambda node, *_: self.probed.append(node) or self.answers[node])
        monkeypatch.setattr("ray.wait", lambda refs, timeout: (refs if refs[0].value is not None else [], []))
        monkeypatch.setattr("ray.get", self.get)
        monkeypatch.setattr(held_devices.compat, "available", lambda: {n: self.free(n) for n in self.rows})
        for name in ("create", "existing", "remove", "ask_inside", "claim"):
            monkeypatch.setattr(placement_groups, name, getattr(self, name))
        monkeypatch.setattr(placement_groups, "strangers_want", lambda *_: 0.0)
        monkeypatch.setattr(
            held_devices.threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None, join=lambda s: None)
        )

    def nodes(self):
        cards = {name: {row.resource for row in rows} for name, rows in self.rows.items()}
        counts = {n: {r: float(sum(row.resource == r for row in self.rows[n])) for r in cards[n]} for n in self.rows}
        return {name: {"CPU": self.cores[name], **counts[name]} for name in self.rows}

    def free(self, node):
        has = dict(self.nodes()[node])
        for group in self.groups.values():
            if group.node == node:
                has[group.resource] -= group.amount
        return has

    @staticmethod
    def get(ref):
        if isinstance(ref.value, Exception):
            raise ref.value
        return ref.value

    def create(self, run, owner, resource, amount, *, node="", without=()):
        id = f"group-{next(self.ids)}"
        there = [name for name in self.rows if name not in without and self.free(name).get(resource, 0.0) >= amount]
        place = node if node in there else next(iter(there), "") if not node else ""
        self.groups[id] = Group(id, run, owner, resource, amount, place)
        return id

    def existing(self):
        self.readings += 1
        return list(self.groups.values())

    def remove(self, group):
        self.removed.append(group)
        del self.groups[group]

    def ask_inside(self, group):
        """The first card of the node that no other group has."""
        node = self.groups[group].node
        taken = {answer.value[0] for id, answer in self.inside.items() if id in self.groups and self.groups[id].node == node}
        free = [row.ray_id for row in self.rows[node] if row.resource == "GPU" and row.ray_id not in taken]
        self.inside[group] = Answer(free[:1])
        return self.inside[group] if node not in self.hangs else self.hangs[node]

    def claim(self, group, resource, device):
        return None if device in self.names else self.names.add(device) or object()


class Run:
    """A run with claims for devices of some classes."""

    def __init__(self, cluster, *kinds, count=20, settings=Settings()):  # noqa: B008 - frozen
        self.cluster, self.source = cluster, HeldDevices("run", 1, settings)
        self.ledger, self.held = RunLedger("run", self.source), {}
        claims = {kind: Claim.of([(GIB, 1.0)]) for kind in kinds}
        self.ledger.ask([Request(f"t{k}", claims, 0.0) for k in range(count)])

    def look(self, times=1, done=()):
        """So many looks at Ray, a few seconds apart, with an exchange before and after each."""
        for _ in range(times):
            self.exchange(done)
            done = ()
            self.cluster.now, before = self.cluster.now + 3.0, self.cluster.readings
            self.source._tick(self.cluster.now)
            assert self.cluster.readings <= before + 1, "a look at Ray reads its groups once"
            self.exchange()

    def exchange(self, done=()):
        self.source._published = -1e9
        answer = self.ledger.exchange([LeaseEnd(lease, seconds=60.0) for lease in done])
        for name in [*done, *(end.lease for end in answer.ended)]:
            self.held.pop(name, None)
        self.held |= {lease.id: lease for lease in answer.leases}
        for device in answer.close:
            self.ledger.closed(device)

    def devices(self):
        return {lease.device for lease in self.held.values()}


def card(node, count=1, gib=24, **more):
    rows = pretended(count, gib * GIB, node)
    return [replace(row, **more) for row in rows]


def test_a_node_that_does_not_answer_holds_up_nobody_but_itself(monkeypatch):
    monkeypatch.setattr(node_inventory, "FIRST_S", 0.3)
    cluster = Cluster(monkeypatch, quick=card("quick"), slow=card("slow"))
    late = cluster.answers["slow"] = Answer()
    run = Run(cluster, card("n")[0].kind)
    run.look(2)
    assert run.devices() == {card("quick")[0].id} and sorted(cluster.probed) == ["quick", "slow"], "each is asked once"
    late.value = [*local(1, None, "slow"), *card("slow")]
    run.look(3)
    assert run.devices() == {card("quick")[0].id, card("slow")[0].id} and len(cluster.probed) == 2


def test_a_node_that_fails_is_asked_again_and_one_that_is_gone_is_not(monkeypatch, caplog):
    monkeypatch.setattr(node_inventory.LOG, "disabled", False)
    cluster = Cluster(monkeypatch, good=card("good"), bad=card("bad"), gone=card("gone"))
    failed = cluster.answers["bad"] = Answer(RuntimeError("no driver"))
    cluster.answers["gone"] = Answer()
    nodes = NodeInventory(Settings())
    nodes.look()
    assert set(nodes.rows) == {"good"}
    del cluster.rows["gone"]
    failed.value = local(1, None, "bad")
    nodes.look()
    nodes.look()
    assert set(nodes.rows) == {"good", "bad"} and cluster.probed.count("gone") == 1


def test_without_an_inventory_the_reason_is_told(monkeypatch):
    cluster = Cluster(monkeypatch, bad=[])
    cluster.answers["bad"] = Answer(ModuleNotFoundError("No module named 'qdrun'"))
    monkeypatch.setattr(node_inventory, "ANSWER_S", 0.3)
    with pytest.raises(NoInventory, match=r"ModuleNotFoundError: No module named 'qdrun'\n  do: .* this version of qdrun"):
        NodeInventory(Settings()).first()


def test_the_rows_of_a_node_are_what_ray_hands_out_there(monkeypatch):
    cluster = Cluster(monkeypatch, head=[], small=[], large=card("large"))
    cluster.cores = {"head": 0.0, "small": 2.0, "large": 9.0}
    nodes = NodeInventory(Settings(threads=4, frames=3 * GIB))
    nodes.first()
    hosts = {name: next(row for row in rows if row.backend == "cpu") for name, rows in nodes.rows.items()}
    assert not hosts["head"].usable and (hosts["small"].threads, hosts["small"].lanes) == (2, 1)
    assert hosts["large"].threads == 4 and hosts["large"].kind.endswith("/4")
    (found,) = [row for row in nodes.rows["large"] if row.model == "pretended"]
    assert found.process_bytes == card("large")[0].process_bytes + 3 * GIB


def test_a_card_that_does_not_say_what_it_is_holds_up_nobody_but_itself(monkeypatch):
    """Its node hangs: meanwhile another node dies, and that must be seen."""
    cluster = Cluster(monkeypatch, quick=card("quick"), stuck=card("stuck"))
    cluster.hangs = {"stuck": Answer()}
    run = Run(cluster, card("n")[0].kind)
    run.look(2)
    assert run.devices() == {card("quick")[0].id}
    (first,) = [group.id for group in cluster.groups.values() if group.node == "quick"]
    del cluster.rows["quick"]
    run.look(2)
    assert not run.held and first in cluster.removed
    cluster.hangs["stuck"].value = ["0"]
    run.look(2)
    assert run.devices() == {card("stuck")[0].id}


def test_a_card_that_fails_to_say_what_it_is_is_asked_for_anew(monkeypatch):
    import ray

    cluster = Cluster(monkeypatch, one=card("one"))
    cluster.hangs = {"one": Answer(ray.exceptions.RayTaskError("sees", "", ValueError("no")))}
    run = Run(cluster, card("n")[0].kind)
    run.look(2)
    assert not run.held and cluster.removed
    cluster.hangs = {}
    run.look(3)
    assert run.devices() == {card("one")[0].id}


def test_cards_of_another_class_are_given_back_and_not_asked_for_again(monkeypatch):
    small, large = card("small", gib=8), card("large", gib=80)
    cluster = Cluster(monkeypatch, small=small, large=large)
    run = Run(cluster, large[0].kind)
    run.look(8)
    assert run.devices() == {large[0].id}
    assert [group.node for group in cluster.groups.values() if group.node] == ["large"]
    assert len([group for group in cluster.groups.values() if not group.node]) == 4, "any node but these two"


def test_a_card_that_cannot_be_used_is_kept_while_its_node_has_one_that_can(monkeypatch):
    rows = [*card("n", gib=8), *card("n", 2, gib=80)[1:]]
    cluster = Cluster(monkeypatch, n=rows)
    run = Run(cluster, rows[1].kind)
    run.look(6)
    assert run.devices() == {rows[1].id} and len([group for group in cluster.groups.values() if group.node]) == 2


def test_devices_of_a_custom_resource_that_another_run_has_are_left_to_it(monkeypatch):
    rows = [replace(row, backend="vulkan", kind="vulkan/x/1", id=f"vulkan:{row.index}") for row in card("n", 2)]
    cluster = Cluster(monkeypatch, n=rows)
    cluster.names.add(rows[0].id)
    cluster.groups["other"] = Group("other", "other", 1, "qdrun_vulkan", 1.0, "n")
    run = Run(cluster, "vulkan/x/1")
    run.look(4)
    assert run.devices() == {rows[1].id}


def test_lanes_without_memory_for_what_waits_are_given_back(monkeypatch):
    """Trials that take half of a node: two of its four lanes have nothing to do, and another node is asked."""
    cluster = Cluster(monkeypatch, first=[], second=[])
    cluster.cores = {"first": 4.0, "second": 4.0}
    for name in ("first", "second"):
        (host,) = [row for row in local(1, None, name) if row.backend == "cpu"]
        cluster.answers[name] = Answer([replace(host, total=24 * GIB, free=24 * GIB)])
    run = Run(cluster, host.kind, count=0, settings=Settings(idle_s=5.0))
    run.ledger.ask([Request(f"t{k}", {host.kind: Claim.of([(10 * GIB, 1.0)])}, 0.0) for k in range(4)])
    run.look(3)
    assert sorted(lease.node for lease in run.held.values()) == ["first", "first", "second", "second"]
    assert run.source.beside == ""
    run.ledger.ask([Request("more", {host.kind: Claim.of([(10 * GIB, 1.0)])}, 0.0)])
    monkeypatch.setattr(held_devices.time, "monotonic", lambda: cluster.now)
    run.look(12)
    assert len(run.held) == 4 and {group.node for group in cluster.groups.values()} == {"first", "second", ""}
    assert sum(group.amount for group in cluster.groups.values() if group.node) == 4.0


def test_what_a_run_asks_is_withdrawn_when_nothing_waits(monkeypatch):
    cluster = Cluster(monkeypatch, one=card("one"))
    run = Run(cluster, card("n")[0].kind)
    run.look(3)
    assert len(cluster.groups) == 5 and "4 more were asked of Ray" in run.source.beside
    run.ledger.withdraw([f"t{k}" for k in range(20)])
    run.look(2)
    assert len(cluster.groups) == 1
    run.ledger.close()


def test_a_device_is_looked_for_before_there_are_requests(monkeypatch):
    cluster = Cluster(monkeypatch, head=[])
    cluster.cores["head"] = 0.0
    run = Run(cluster, count=0)
    run.source.look_for("cuda")
    run.source._tick(cluster.now)
    assert [(group.resource, group.node) for group in cluster.groups.values()] == [("GPU", "")]
    run.source.look_for(None)
    run.source._tick(cluster.now)
    assert not cluster.groups


def test_a_head_that_is_away_is_told_of_and_what_is_held_stays(monkeypatch):
    cluster = Cluster(monkeypatch, one=card("one"))
    run = Run(cluster, card("n")[0].kind)
    run.look(3)
    held = run.devices()

    def away():
        raise ConnectionError("no head")

    monkeypatch.setattr(node_inventory, "nodes", away)
    monkeypatch.setattr("ray.is_initialized", lambda: len(looks) < 3)
    looks = []
    monkeypatch.setattr(run.source._wake, "wait", looks.append)
    run.source._watch()
    assert len(looks) == 3 and run.source.beside.endswith("the cluster cannot be looked at: ConnectionError: no head")
    run.exchange()
    assert run.devices() == held and not run.ledger.exchange().ended
