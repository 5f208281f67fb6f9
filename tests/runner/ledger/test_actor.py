"""The life of the ledger's actor beside its calls, with a pretended cluster and without Ray."""

import asyncio
import time
from dataclasses import replace

import pytest

from qdrun.runner.ledger import actor, groups
from qdrun.runner.ledger.inventory import local
from qdrun.runner.ledger.leases import Terms
from qdrun.runner.ledger.settings import Settings

FAST = Settings(look_s=0.0, beat_s=0.05)


class Nodes:
    """Nodes that answer when they are told to, or fail."""

    def __init__(self, monkeypatch, *names):
        self.alive, self.answers, self.asked = {name: {"CPU": 2.0} for name in names}, {}, []
        monkeypatch.setattr(groups, "nodes", lambda: dict(self.alive))
        monkeypatch.setattr(groups, "existing", dict)
        monkeypatch.setattr(groups, "probe", self.probe)
        monkeypatch.setattr(actor, "FIRST_S", 0.2)
        monkeypatch.setattr(actor, "TICK_S", 0.01)

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
        ledger = actor.LedgerActor(FAST)
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
        ledger = actor.LedgerActor(FAST)
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
        ledger = actor.LedgerActor(FAST)
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


def test_time_in_which_the_ledger_itself_was_away_is_no_silence_of_runs(monkeypatch):
    """Stopped, or starved: what the runs have said meanwhile waits in front of it."""
    nodes = Nodes(monkeypatch, "one")
    monkeypatch.setattr(actor, "LATE_S", 0.5)

    async def life():
        nodes.open()
        nodes.answer("one")
        ledger = actor.LedgerActor(replace(FAST, expire_s=0.8))
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
