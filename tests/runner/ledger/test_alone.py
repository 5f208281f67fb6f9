"""A runner whose earlier incarnation is known to be dead: its leases end at once, those of others stay."""

import asyncio
import time

from qdrun.runner.ledger.inventory import pretended
from qdrun.runner.ledger.leases import Terms
from qdrun.runner.ledger.settings import Settings
from qdrun.runner.packing import Claim, Request
from qdrun.runner.ray_adapter.ledger_actor import LedgerActor

GIB = 1 << 30


def test_leases_of_the_runner_before_end_and_those_of_other_runs_stay():
    device = pretended(1, 24 * GIB, lanes=2)[0]
    claims = {device.kind: Claim.of([(9 * GIB, 1.0)])}

    async def joined(actor, run):
        await actor.join(run, "ann", [], [], [], 0, [], 1, Terms())
        await actor.ask(run, [Request(f"{run}-{k}", "", "", claims, time.time()) for k in range(3)])
        return (await actor.exchange(run, [], 0, 0.0)).leases

    async def main():
        actor = LedgerActor(Settings(lanes=2))
        actor._up.set()
        actor._loop = asyncio.get_running_loop().create_task(asyncio.sleep(0))  # nobody looks at a cluster here
        actor._ledger.add_device(device)
        other = await joined(actor, "other#1")
        assert len(other) == 2
        old = await joined(actor, "run#1")
        assert old == ()
        await actor.leave("other#1")
        old = (await actor.exchange("run#1", [], 0, 0.0)).leases
        assert len(old) == 2
        assert await joined(actor, "other#2") == ()
        assert await joined(actor, "run#2") == (), "both lanes are held by the runner that is dead"
        assert await actor.alone("run#2") == ["run#1"]
        assert actor._ledger.runs() == ["other#2", "run#2"]
        given = [(await actor.exchange(run, [], 0, 0.0)).leases for run in ("other#2", "run#2")]
        assert sum(map(len, given)) == 2
        assert await actor.alone("run#2") == []

    asyncio.run(main())
