"""The life of the ledger's actor beside its calls, with a pretended cluster and without Ray."""

import asyncio
import time
from dataclasses import replace

import pytest

from qdrun.runner.ledger.inventory import local, pretended
from qdrun.runner.ledger.leases import Held, Lease, Terms
from qdrun.runner.ledger.ledger import Ledger
from qdrun.runner.ledger.settings import Settings
from qdrun.runner.packing import Claim, Request
from qdrun.runner.ray_adapter import ledger_actor, placement_groups
from qdrun.runner.ray_adapter.placement_groups import Group, Slot

FAST = Settings(look_s=0.0, beat_s=0.05)


class Nodes:
    """Nodes that answer when they are told to, or fail."""

    def __init__(self, monkeypatch, *names):
        self.alive, self.answers, self.asked = {name: {"CPU": 2.0} for name in names}, {}, []
        monkeypatch.setattr(placement_groups, "nodes", lambda: dict(self.alive))
        monkeypatch.setattr(placement_groups, "existing", dict)
        monkeypatch.setattr(placement_groups, "free_cores", dict)
        monkeypatch.setattr(placement_groups, "ask_for", list)  # what it is told is not looked at
        monkeypatch.setattr(placement_groups, "probe", self.probe)
        monkeypatch.setattr(ledger_actor, "FIRST_S", 0.2)
        monkeypatch.setattr(ledger_actor, "TICK_S", 0.01)

    def probe(self, node, settings, gpus):
        self.asked.append(node)
        return self.answers[node]

    def open(self):
        loop = asyncio.get_running_loop()
        self.answers = {name: loop.create_future() for name in self.alive}

    def answer(self, node):
        self.answers[node].set_result(local(1, 1, node))


async def nodes_of(ledger):
    return {row.node for row in await ledger.devices()}


async def until(happens):
    for _ in range(500):
        if await happens():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it does not happen")


def test_a_node_that_does_not_answer_holds_up_nobody_but_itself(monkeypatch):
    nodes = Nodes(monkeypatch, "quick", "slow")

    async def life():
        nodes.open()
        nodes.answer("quick")
        ledger = ledger_actor.LedgerActor(FAST)
        assert await asyncio.wait_for(nodes_of(ledger), 30) == {"quick"}
        await asyncio.sleep(0.1)
        assert nodes.asked == ["quick", "slow"], "each is asked once, and waited for"
        nodes.answer("slow")

        async def both():
            return await nodes_of(ledger) == {"quick", "slow"}

        await until(both)
        ledger._loop.cancel()

    asyncio.run(life())


def test_without_any_answer_the_ledger_is_not_ready(monkeypatch):
    nodes = Nodes(monkeypatch, "slow")

    async def life():
        nodes.open()
        ledger = ledger_actor.LedgerActor(FAST)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ledger.devices(), 0.6)
        nodes.answer("slow")
        assert await asyncio.wait_for(nodes_of(ledger), 30) == {"slow"}
        ledger._loop.cancel()

    asyncio.run(life())


def test_a_node_that_fails_is_asked_again_and_one_that_is_gone_is_not(monkeypatch, caplog):
    nodes = Nodes(monkeypatch, "good", "bad", "gone")

    async def life():
        nodes.open()
        nodes.answer("good")
        first = nodes.answers["bad"]
        first.set_exception(RuntimeError("no driver"))
        ledger = ledger_actor.LedgerActor(FAST)
        assert await nodes_of(ledger) == {"good"}
        nodes.answers["bad"] = asyncio.get_running_loop().create_future()
        del nodes.alive["gone"]
        nodes.answer("bad")

        async def both():
            return await nodes_of(ledger) == {"good", "bad"}

        await until(both)
        assert nodes.asked.count("gone") == 1 and not ledger._probes
        ledger._loop.cancel()

    asyncio.run(life())
    assert "node bad does not say what devices it has: RuntimeError: no driver" in caplog.text


@pytest.mark.slow
def test_time_in_which_the_ledger_itself_was_away_is_no_silence_of_runs(monkeypatch):
    """Stopped, or starved: what the runs have said meanwhile waits in front of it."""
    nodes = Nodes(monkeypatch, "one")
    monkeypatch.setattr(ledger_actor, "LATE_S", 0.5)

    async def life():
        nodes.open()
        nodes.answer("one")
        ledger = ledger_actor.LedgerActor(replace(FAST, expire_s=0.8))
        await ledger.join("run#1", "me", (), (), (), 0, (), 1, Terms())
        time.sleep(2.0)  # nothing moves, as if the process were stopped
        await asyncio.sleep(0.05)
        assert ledger._ledger.beat("run#1", 0.0)

        async def given_up():  # it moves, and hears nothing
            return not ledger._ledger.beat("run#1", 0.0)

        await until(given_up)
        ledger._loop.cancel()
        ledger._pulse.cancel()

    asyncio.run(life())


class Cards(Nodes):
    """Nodes with a GPU each. Ray gives every group at once; what runs inside one says which device it has, or hangs."""

    def __init__(self, monkeypatch, *names, left=()):
        super().__init__(monkeypatch, *names)
        self.alive = {name: {"CPU": 2.0, "GPU": 1.0} for name in names}
        self.hangs, self.removed = set(), []
        self.groups = {f"qdrun/{node}/GPU/0": f"of {node}" for node in left}
        monkeypatch.setattr(
            placement_groups, "existing", lambda: {name: Group(made, True, "") for name, made in self.groups.items()}
        )
        monkeypatch.setattr(placement_groups, "create", self.create)
        monkeypatch.setattr(placement_groups, "remove", self.remove)
        monkeypatch.setattr(placement_groups, "ask_inside", self.inside)

    def answer(self, node):
        self.answers[node].set_result([*local(1, 1, node), *pretended(1, 24 << 30, node)])

    def create(self, slot):
        self.groups[slot.name] = f"of {slot.node}"
        return self.groups[slot.name]

    def remove(self, group):
        self.removed.append(group)
        self.groups = {name: made for name, made in self.groups.items() if made != group}

    def inside(self, group):
        answer = asyncio.get_running_loop().create_future()
        if group not in self.hangs:
            answer.set_result(["0"])
        return answer


def life_of(nodes, live):
    """A ledger of these nodes, with a run that has claims for their GPUs."""

    async def life():
        nodes.open()
        for name in nodes.alive:
            nodes.answer(name)
        ledger = ledger_actor.LedgerActor(FAST)
        claims = {pretended(1, 24 << 30, "n")[0].kind: Claim.of([(1 << 30, 1.0)])}
        requests = [Request(f"t{k}", "", "", claims, 0.0) for k in range(2)]
        await ledger.join("run#1", "me", (), requests, (), 0, (), 1, Terms())
        try:
            await live(ledger)
        finally:
            ledger._loop.cancel()
            ledger._pulse.cancel()
            for task in ledger._takes.values():
                task.cancel()

    asyncio.run(life())


async def granted(ledger):
    return {row.node for row, _ in (await ledger.groups()).values()}


def test_a_device_that_does_not_say_what_it_is_holds_up_nobody_but_itself(monkeypatch):
    """Its node hangs: meanwhile another node dies, and that must be seen."""
    nodes = Cards(monkeypatch, "quick", "stuck")
    nodes.hangs.add("of stuck")
    monkeypatch.setattr(ledger_actor, "TAKE_S", 0.05)

    async def live(ledger):
        async def quick():
            return await granted(ledger) == {"quick"}

        async def none():
            return not await granted(ledger)

        await until(quick)
        del nodes.alive["quick"]
        await until(none)
        del nodes.alive["stuck"]  # and when it answers at last, it is not there any more
        nodes.hangs.clear()

        async def gone():
            return nodes.removed == ["of quick", "of stuck"] and not ledger._slots

        await until(gone)

    life_of(nodes, live)


def test_groups_of_nodes_that_went_while_no_ledger_was_there_are_given_back(monkeypatch):
    nodes = Cards(monkeypatch, "here", left=["here", "went"])

    async def live(ledger):
        async def here():
            return await granted(ledger) == {"here"}

        ledger._ledger.settle_until = 0.0
        await until(here)
        assert nodes.removed == ["of went"] and list(nodes.groups) == ["qdrun/here/GPU/0"]

    life_of(nodes, live)


def test_a_fault_while_it_grants_does_not_end_the_life_of_the_ledger(monkeypatch, caplog):
    nodes = Cards(monkeypatch, "one")
    monkeypatch.setattr(ledger_actor.LOG, "disabled", False)  # settings of Ray's, which another test has started
    monkeypatch.setattr(ledger_actor.LOG, "handlers", [*ledger_actor.LOG.handlers, caplog.handler])

    async def live(ledger):
        async def given():
            return bool(await granted(ledger))

        await until(given)
        real, faults = ledger._ledger.step, iter([KeyError("ours"), KeyError("ours")])

        def step(now):
            error = next(faults, None)
            if error is not None:
                raise error
            real(now)

        ledger._ledger.step = step
        del nodes.alive["one"]

        async def lost():
            return not await granted(ledger)

        await until(lost)

    life_of(nodes, live)
    assert "the ledger cannot grant" in caplog.text


def test_a_ledger_that_starts_again_lets_nobody_in_before_its_devices_have_said_what_they_are(monkeypatch):
    """Else it would tell runs that what they hold is lost, and they would kill their workers."""
    nodes = Cards(monkeypatch, "one", left=["one"])
    monkeypatch.setattr(ledger_actor, "FIRST_S", 30.0)
    monkeypatch.setattr(ledger_actor, "TAKE_S", 0.01)
    inside = []
    monkeypatch.setattr(
        placement_groups, "ask_inside", lambda group: inside.append(asyncio.get_running_loop().create_future()) or inside[-1]
    )

    async def answer():
        while not inside:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        inside[0].set_result(["0"])

    async def life():
        nodes.open()
        nodes.answer("one")
        later = asyncio.create_task(answer())
        ledger = ledger_actor.LedgerActor(FAST)
        claims = {pretended(1, 24 << 30, "n")[0].kind: Claim.of([(1 << 30, 1.0)])}
        device = pretended(1, 24 << 30, "one")[0]
        lease = Lease("old-1", "run#1", device.id, "one", claims[device.kind].points[0], ("t0",), 0.0, "")
        held = [Held(lease, Request("t0", "", "", claims, 0.0))]
        answered = await ledger.join("run#1", "me", held, (), (), 0, (), 1, Terms())
        assert answered.ended == () and await granted(ledger) == {"one"}
        await later
        ledger._loop.cancel()
        ledger._pulse.cancel()

    asyncio.run(life())


def test_a_run_avoids_a_device_and_others_do_not(monkeypatch):
    nodes = Cards(monkeypatch, "good", "bad")

    async def live(ledger):
        async def both():
            return await granted(ledger) == {"good", "bad"}

        await until(both)
        (bad,) = [row.id for row, _ in (await ledger.groups()).values() if row.node == "bad"]
        assert await ledger.avoid("run#1", bad, 30.0)
        await both()
        (device,) = [place for place in ledger._ledger._lanes.places().values() if place.found.id == bad]
        assert device.resting == {"run#1"} and not nodes.removed
        await ledger.leave("run#1")
        assert not device.resting

    life_of(nodes, live)


@pytest.mark.parametrize(
    ("cores", "amounts", "free", "given"),
    [
        (1, {"a": [4]}, {}, ["a/0"]),
        (1, {"a": [2, 1, 1]}, {}, ["a/1"]),
        (2, {"a": [1, 1, 2]}, {}, ["a/0", "a/1"]),
        (3, {"a": [1, 1, 2]}, {}, ["a/0", "a/1", "a/2"]),
        (2, {"a": [3]}, {"a": 1}, ["a/0"]),
        (2, {"a": [2]}, {}, []),  # half of the node is kept
        (5, {"a": [4]}, {}, []),  # no node has as many
        (1, {"a": [3]}, {"a": 1}, []),  # there is one already
        (2, {"a": [4], "b": [2, 2]}, {}, ["b/0"]),
    ],
)
def test_the_fewest_cores_are_given_back_and_half_of_a_node_is_kept(cores, amounts, free, given):
    parts = [Slot(f"{node}/{k}", node, "CPU", amount=n) for node, all_of in amounts.items() for k, n in enumerate(all_of)]
    assert [slot.name for slot in placement_groups.enough(cores, parts, free, dict.fromkeys(amounts, 4))] == given


def test_an_autoscaler_is_asked_for_what_runs_and_others_need_in_all():
    card = pretended(1, 24 << 30, "n", lanes=4)[0]
    demand = {"cpu/znver3/2": 3, card.kind: 9, "metal/unknown/1": 2}
    asked = placement_groups.bundles_of(demand, [card], others=2)
    assert asked == [{"CPU": 1.0}] * 2 + [{"CPU": 2.0}] * 3 + [{card.resource: 1.0}] * 3
    assert len(placement_groups.bundles_of({"cpu/znver3/1": 10**6}, [], 0)) == placement_groups.MOST_BUNDLES


def test_demand_is_what_runs_and_waits_as_far_as_a_run_may_have_it():
    ledger, host = Ledger(), local(1, 2, "n")[0]
    ledger.add_device(host)
    for name, most in (("one", 3), ("two", None)):
        ledger.join(name, "me", 0.0, terms=Terms(most=most))
        ledger.ask(name, [Request(f"t{k}", "", "", {host.kind: Claim.of([(1, 1.0)])}, 0.0) for k in range(5)], 0.0)
    assert ledger.demand() == {host.kind: 3 + 5}
    ledger.step(0.0)
    assert ledger.demand() == {host.kind: 3 + 5}
    for name in ("one", "two"):
        ledger.leave(name)
    assert ledger.demand() == {}
