"""The ledger of a cluster: one named actor of Ray around ``Ledger``, with a placement group for each device that is used."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .. import clock
from ..ledger.inventory import Found, kind_of, with_lanes
from ..ledger.leases import Exchange, Held, LeaseEnd, Terms, Waits
from ..ledger.ledger import Ledger
from ..ledger.runs import shown
from ..ledger.settings import NAME, Settings
from ..packing import Request
from . import placement_groups
from .pages.job_record import start_mending
from .placement_groups import Group, Slot, placed

__all__ = ["LedgerActor", "placed"]

VERSION = 5
"""Maximum concurrent calls between runs and the ledger of a cluster."""
TICK_S = 0.25
ANSWER_S = 60.0
MEET_S = 0.5
"""Seconds in which a node that has joined hears of the head, before a ledger that it got leaves it."""
LATE_S = 1.0
"""A ledger that has not moved for so long was away itself."""
FIRST_S = 20.0
"""Seconds that a starting ledger waits for nodes and devices to report, before it continues with those that have."""
TAKE_S = 0.5
"""Seconds to wait for a device from Ray before the next one is tried: a node may hang."""
MOST_PENDING = 8
RESIZE_S = 2.0
"""Seconds after which a group of cores that Ray has not placed is made smaller: others were faster. So long free cores must stay free
before they are taken, as what Ray says of them lags behind."""
MOST_PARTS = 8
"""Groups of cores of one node."""
GIVE_S, REST_S, LOOK_S = 10.0, 5.0, 1.0
"""So long others wait for cores in Ray's queue before runs that have more than half of a node give some back, so long are these left to
them, and so often is that queue looked at."""
LOG = logging.getLogger(__name__)


class LedgerActor:
    """Serves runs, and looks after nodes and groups beside. All state is the groups of Ray, and what runs tell when they join again."""

    def __init__(self, settings: Settings, prefers_head: bool = False) -> None:
        if prefers_head and placement_groups.is_misplaced():
            time.sleep(MEET_S)
            os._exit(1)  # Ray starts it again, at once
        self._settings = settings
        limits = {"expire_s": settings.expire_s, "lease_requests": settings.lease_requests}
        self._ledger = Ledger(epoch=f"{secrets.token_hex(4)}-", **limits)
        self._found: dict[str, list[Found]] = {}
        self._probes: dict[str, asyncio.Task[list[Found]]] = {}
        self._cores: dict[str, int] = {}
        self._slots: dict[str, Slot] = {}
        self._takes: dict[str, asyncio.Task[None]] = {}
        self._free_since: dict[str, float] = {}  # nodes with free cores
        self._others_since: float | None = None  # others wait for cores
        self._others_seen = -1e9
        self._asked: list[dict[str, float]] = []  # of the autoscaler
        self._threads = {1}
        self._polls: dict[str, asyncio.Event] = {}
        self._loop: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._problem = ""
        self._pulse: asyncio.Task[None] | None = None
        self._awake = clock.now()

    def __repr__(self) -> str:
        return NAME  # Ray asks once, when the actor starts

    async def _ready(self) -> Ledger:
        """The ledger, after the cluster has been inspected."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop().create_task(self._watch())
            self._pulse = asyncio.get_running_loop().create_task(self._beat())
            start_mending()
        self._notice()
        await self._up.wait()
        return self._ledger

    # Calls of runs

    async def version(self) -> int:
        """Of the calls."""
        return VERSION

    async def join(
        self,
        run: str,
        user: str,
        held: Sequence[Held],
        requests: Sequence[Request],
        done: Sequence[LeaseEnd],
        seen: int,
        workers: Sequence[str],
        threads: int,
        terms: Terms,
    ) -> Exchange:
        """See ``Ledger.join``; ``threads``: of one trial of the run on a CPU."""
        ledger = await self._ready()
        if threads not in self._threads:
            self._threads.add(threads)
            self._add_threads()
        answer = ledger.join(run, user, clock.now(), held, requests, done, seen, workers, terms)
        self._wake()
        return answer

    async def leave(self, run: str) -> None:
        """See ``Ledger.leave``."""
        (await self._ready()).leave(run)
        self._step()

    async def alone(self, run: str) -> list[str]:
        """Earlier runners of this run are gone, and their workers with them: their leases end now, not when they are found silent."""
        ledger = await self._ready()
        before = [other for other in ledger.runs() if other != run and shown(other) == shown(run)]
        for other in before:
            ledger.leave(other)
        self._step()
        return before

    async def ask(self, run: str, requests: Sequence[Request]) -> bool:
        """See ``Ledger.ask``."""
        known = (await self._ready()).ask(run, requests, clock.now())
        self._step()
        return known

    async def withdraw(self, run: str, ids: Sequence[str]) -> list[str]:
        """See ``Ledger.withdraw``."""
        return (await self._ready()).withdraw(run, ids)

    async def exchange(self, run: str, done: Sequence[LeaseEnd], seen: int, wait_s: float) -> Exchange:
        """See ``Ledger.exchange``; with nothing new, wait for some. A later exchange of the run ends the wait of an earlier one."""
        ledger = await self._ready()
        if run in self._polls:
            self._polls.pop(run).set()
        answer = ledger.exchange(run, done, clock.now(), seen)
        self._wake()
        if answer or not answer.known or wait_s <= 0:
            return answer
        event = self._polls[run] = asyncio.Event()
        try:
            await asyncio.wait_for(event.wait(), wait_s)
        except TimeoutError:
            pass
        finally:
            if self._polls.get(run) is event:
                del self._polls[run]
        return ledger.news(run, seen)

    async def closed(self, run: str, device: str) -> None:
        """See ``Ledger.closed``."""
        (await self._ready()).closed(run, device)
        self._step()

    async def avoid(self, run: str, device: str, seconds: float) -> bool:
        """See ``Ledger.avoid``."""
        return (await self._ready()).avoid(run, device, seconds, clock.now())

    async def observe(self, pool: str, free: int, ours: int | None, run: str) -> None:
        """See ``Ledger.observe``."""
        (await self._ready()).observe(pool, free, ours, run)
        self._step()

    async def devices(self) -> list[Found]:
        """Every device of every node, and why backends are absent."""
        await self._ready()
        return [row for rows in self._found.values() for row in rows]

    async def groups(self) -> dict[str, tuple[Found, str]]:
        """The devices that leases are granted on, each with its placement group."""
        ledger = await self._ready()
        where = {device: slot.group for slot in self._slots.values() for device in slot.devices}
        return {row.id: (row, where[row.id]) for row in ledger.devices()}

    async def why(self, run: str) -> dict[str, Waits]:
        """See ``Ledger.why``; with what Ray has not given yet."""
        ledger = await self._ready()
        asked = sum(bool(slot.group) and not slot.ready for slot in self._slots.values())
        beside = f"; {asked} devices were asked of Ray and are held by others" if asked else ""
        beside += f"; {self._problem}" if self._problem else ""
        return {name: replace(waits, why=waits.why + beside) for name, waits in ledger.why(run).items()}

    async def snapshot(self) -> dict[str, Any]:
        """See ``Ledger.snapshot``, with the groups that Ray has not given yet."""
        ledger = await self._ready()
        asked = [slot.name for slot in self._slots.values() if slot.group and not slot.ready]
        return {
            **ledger.snapshot(),
            "epoch": ledger.epoch,
            "asked": asked,
            "settling": clock.now() < ledger.settle_until,
            "problem": self._problem,
        }

    # Inside

    async def _beat(self) -> None:
        while True:
            self._notice()
            await asyncio.sleep(TICK_S)

    def _notice(self) -> None:
        """Notice that this process was away: stopped, or without a core. Before anything that may expire runs."""
        now, before = clock.now(), self._awake
        self._awake = now
        if now - before > LATE_S:
            self._ledger.forgive(now - before, now)

    def _step(self) -> None:
        self._notice()
        self._ledger.step(clock.now())
        self._wake()

    def _wake(self) -> None:
        for run in self._ledger.told():
            if run in self._polls:
                self._polls.pop(run).set()

    async def _watch(self) -> None:
        """The life of the ledger: find the groups of an earlier one, then look after nodes, groups and time."""
        looked = -1e9
        while True:
            try:
                if time.monotonic() - looked >= self._settings.look_s:
                    await self._look()
                    looked = time.monotonic()
                self._problem = ""
                await self._groups()
            except Exception as error:  # Ray's control plane may be unreachable for a while; leases stay
                self._problem = f"the cluster cannot be looked at: {type(error).__name__}: {error}"
                LOG.warning("%s", self._problem)
            if not self._problem and (self._found or not self._probes):
                self._up.set()
            try:
                self._step()
            except Exception as error:  # an internal error; without this loop, lost nodes would not be detected
                self._problem = f"the ledger cannot grant: {type(error).__name__}: {error}"
                LOG.exception("the ledger cannot grant")
            await asyncio.sleep(TICK_S)

    async def _look(self) -> None:
        """Lose what was on nodes that are gone; ask new nodes what they have."""
        alive = await asyncio.to_thread(placement_groups.nodes)
        for slot in [slot for slot in self._slots.values() if slot.node not in alive]:
            await self._release(slot, f"node {slot.node[:12]} is gone")
            self._slots.pop(slot.name, None)
        for node in [node for node in self._found if node not in alive]:
            del self._found[node]
        for node in [node for node in self._probes if node not in alive]:
            self._probes.pop(node).cancel()
        for node in [node for node in alive if node not in self._found and node not in self._probes]:
            self._probes[node] = asyncio.create_task(self._probe(node, int(alive[node].get("GPU", 0))))
        if self._probes and not self._up.is_set():
            await asyncio.wait(self._probes.values(), timeout=FIRST_S)
        done = [node for node, task in self._probes.items() if task.done()]
        known = await asyncio.to_thread(placement_groups.existing) if done else {}
        for name, group in known.items():  # of nodes that were lost while no ledger was running: no other process returns these
            if placement_groups.node_of(name) not in alive:
                await asyncio.to_thread(placement_groups.remove, group.id)
        for node in done:
            task = self._probes.pop(node)
            if (error := task.exception()) is not None:
                LOG.warning("node %s does not say what devices it has: %s: %s", node, type(error).__name__, error)
            else:
                self._meet(node, alive[node], task.result(), known)
        await self._ask_for_nodes()

    async def _ask_for_nodes(self) -> None:
        """Tell the autoscaler of the cluster what runs need in all, with what others have, while something waits or runs."""
        demand = self._ledger.demand()
        if not demand and not self._asked:
            return
        free = await asyncio.to_thread(placement_groups.free_cores)
        ours = sum(slot.amount for slot in self._slots.values() if slot.resource == "CPU" and slot.ready)
        others = sum(self._cores[node] - free.get(node, self._cores[node]) for node in self._found) - int(ours)
        rows = [row for found in self._found.values() for row in found]
        wanted = placement_groups.bundles_of(demand, rows, max(0, others)) if demand else []
        if wanted != self._asked:
            await asyncio.to_thread(placement_groups.ask_for, wanted)
            self._asked = wanted

    async def _probe(self, node: str, gpus: int) -> list[Found]:
        """The devices of a node. A node that does not answer delays no other node."""
        ref = await asyncio.to_thread(placement_groups.probe, node, self._settings, gpus)
        return await asyncio.wait_for(ref, ANSWER_S)

    def _meet(self, node: str, resources: dict[str, float], rows: list[Found], known: dict[str, Group]) -> None:
        """Note what a node has, and the groups that are there already."""
        self._found[node] = rows
        self._cores[node] = int(resources.get("CPU", 0))
        slots, parts = placement_groups.slots_of(node, resources, rows), f"{placement_groups.PREFIX}{node}/CPU/"
        slots += [Slot(name, node, "CPU") for name in known if name.startswith(parts) and name != f"{parts}0"]
        for slot in slots:
            if slot.name not in self._slots:
                self._slots[slot.name] = slot
                if slot.name in known:
                    slot.group, slot.amount = known[slot.name].id, known[slot.name].amount
                    if not self._up.is_set():
                        self._ledger.settle_until = clock.now() + 2 * self._settings.beat_s
        self._add_cpu_rows(node)

    def _add_cpu_rows(self, node: str) -> None:
        """A row for each number of threads that runs have asked for, as far as there are cores; the cores of a node are one group."""
        rows = self._found[node]
        host, cores = next(row for row in rows if row.backend == "cpu"), self._cores[node]
        made = [
            with_lanes(
                replace(
                    host,
                    id=f"cpu@{node[:12]}@t{threads}",
                    kind=kind_of(host.backend, host.model, threads),
                    threads=threads,
                ),
                min(self._settings.lanes or cores, max(1, cores // threads)),
            )
            for threads in sorted({max(1, min(wanted, cores)) for wanted in self._threads})
        ]
        self._found[node] = made + [row for row in rows if row.backend != "cpu"]

    def _rows(self, slot: Slot) -> list[Found]:
        """The devices that a slot may stand for: of a part of a node's cores one for each number of threads that it has cores for."""
        rows = [row for row in self._found.get(slot.node, ()) if row.usable and row.resource == slot.resource]
        if slot.resource != "CPU" or not slot.group or slot.amount >= self._cores[slot.node]:
            return rows
        part = f"@{slot.number}" if slot.number else ""
        lanes = [(row, min(row.lanes, int(slot.amount) // row.threads)) for row in rows]
        return [replace(row, id=f"{row.id}{part}", lanes=most) for row, most in lanes if most]

    async def _groups(self) -> None:
        """Request devices for the claims of runs from Ray, accept the granted ones, and return unused ones."""
        pending = [slot for slot in self._slots.values() if slot.group and not slot.ready]
        if pending:
            table = await asyncio.to_thread(placement_groups.existing)
            for slot in pending:
                if slot.name not in table:
                    slot.group = ""
            for slot in pending:
                if slot.group and table[slot.name].placed and slot.name not in self._takes:
                    self._takes[slot.name] = asyncio.create_task(self._take(slot, slot.group))
            await self._taken()
        wanted, count = self._ledger.wanted(), sum(bool(slot.group) and not slot.ready for slot in self._slots.values())
        free = await self._share_cores(wanted)
        for slot in list(self._slots.values()):
            rows = self._rows(slot)
            if any(row.kind in wanted for row in rows):
                slot.unwanted_since = None
                if not slot.group and count < MOST_PENDING and time.monotonic() >= slot.rests_until:
                    count += 1
                    if slot.resource == "CPU":
                        slot.amount = max(self._least(slot.node, wanted), free.get(slot.node, self._cores[slot.node]))
                    slot.asked, slot.group = time.monotonic(), await asyncio.to_thread(placement_groups.create, slot)
            elif slot.group and clock.now() >= self._ledger.settle_until:
                slot.unwanted_since = slot.unwanted_since or time.monotonic()
                if time.monotonic() - slot.unwanted_since >= self._settings.idle_s:
                    await self._release(slot, "no run has a use for it")

    def _least(self, node: str, wanted: set[str]) -> int:
        """The cores of the smallest trial that a run wants to run on a node; 0: none does."""
        return min((row.threads for row in self._found[node] if row.backend == "cpu" and row.kind in wanted), default=0)

    async def _share_cores(self, wanted: set[str]) -> dict[str, int]:
        """Fit the groups of cores to what others leave; the free cores of each node.

        A group that is not placed in time is given back, to be asked for again as large as is free now; cores that stay free beside the
        groups of a node become another one.
        """
        wanting = {node for node in self._found if self._least(node, wanted)}
        free = await asyncio.to_thread(placement_groups.free_cores) if wanting else {}
        for slot in [slot for slot in self._slots.values() if slot.resource == "CPU" and slot.group and not slot.ready]:
            late = time.monotonic() - slot.asked > RESIZE_S and slot.name not in self._takes
            if (
                late
                and slot.node in wanting
                and free.get(slot.node, self._cores[slot.node]) < slot.amount > self._least(slot.node, wanted)
            ):
                await self._release(slot, "")
            elif late and slot.number:
                await self._release(slot, "")
        for node in wanting & free.keys():
            parts = [slot for slot in self._slots.values() if slot.resource == "CPU" and slot.node == node]
            spare = all(slot.ready for slot in parts) and free[node] >= self._least(node, wanted) and len(parts) < MOST_PARTS
            since = self._free_since.setdefault(node, time.monotonic()) if spare else self._free_since.pop(node, None)
            if spare and since is not None and time.monotonic() - since > RESIZE_S:
                number = 1 + max(slot.number for slot in parts)
                name = f"{placement_groups.PREFIX}{node}/CPU/{number}"
                self._slots[name] = Slot(name, node, "CPU")
                del self._free_since[node]
        await self._give_cores(free)
        return free

    async def _give_cores(self, free: dict[str, int]) -> None:
        """Give cores back that others wait for, of a node where runs have more than half. What runs there comes to its end."""
        parts = [slot for slot in self._slots.values() if slot.resource == "CPU" and slot.ready]
        for slot in [slot for slot in parts if slot.leaving]:
            if all([self._ledger.drain(device) for device in slot.devices]):  # a list: each of them
                await self._release(slot, "others wait for its cores")
                slot.rests_until = time.monotonic() + REST_S
        now = time.monotonic()
        if now - self._others_seen < LOOK_S or not parts or any(slot.leaving for slot in parts):
            return
        self._others_seen, ours = now, {slot.group for slot in self._slots.values()}
        wanted = await asyncio.to_thread(placement_groups.cores_wanted, ours)
        given = placement_groups.enough(min(wanted), parts, free, self._cores) if wanted else []
        self._others_since = None if not given else self._others_since or now
        if self._others_since is not None and now - self._others_since > GIVE_S:
            self._others_since = None
            for slot in given:
                slot.leaving = True

    async def _taken(self) -> None:
        """The devices that have reported their identity. One that does not answer delays no other, and is asked again.

        A ledger that starts waits longer: runs that join it are asked to give up what they hold on devices that it does not have.
        """
        if self._takes:
            await asyncio.wait(self._takes.values(), timeout=TAKE_S if self._up.is_set() else FIRST_S)
        for name in [name for name, task in self._takes.items() if task.done()]:
            error = self._takes.pop(name).exception()
            if error is not None:
                self._problem = f"{name} does not say which device it is: {type(error).__name__}: {error}"
                LOG.warning("%s", self._problem)

    async def _take(self, slot: Slot, group: str) -> None:
        """A group is placed: find out which device it is, and let leases be granted there."""
        rows = self._rows(slot)
        if slot.resource == "GPU":
            given = await asyncio.wait_for(placement_groups.ask_inside(group), ANSWER_S)
            rows = [row for row in rows if row.ray_id in given or (row.uuid and row.uuid in given)]
            if not rows:
                LOG.warning("Ray has given %s for %s, which the node's inventory does not have", given, slot.name)
        elif slot.resource != "CPU":
            rows = rows[int(slot.name.rsplit("/", 1)[1]) :][:1]
        if slot.group == group and self._slots.get(slot.name) is slot:  # else it was given back meanwhile, or its node is gone
            slot.ready = True
            self._add(slot, rows)

    def _add(self, slot: Slot, rows: Sequence[Found]) -> None:
        for row in rows:
            if row.id not in slot.devices:
                slot.devices.append(row.id)
                self._ledger.add_device(row, slot.group)

    def _add_threads(self) -> None:
        """Another number of threads: CPUs that are held get a device for it."""
        for node in self._found:
            self._add_cpu_rows(node)
        for slot in self._slots.values():
            if slot.resource == "CPU" and slot.ready:
                self._add(slot, self._rows(slot))

    async def _release(self, slot: Slot, why: str) -> None:
        """End the leases on the devices of a slot, and give its group back."""
        for device in slot.devices:
            self._ledger.lose_device(device, why)
        group, slot.group, slot.ready, slot.devices, slot.unwanted_since = slot.group, "", False, [], None
        slot.leaving = False
        if slot.resource == "CPU" and slot.number:
            self._slots.pop(slot.name, None)
        if group:
            await asyncio.to_thread(placement_groups.remove, group)
