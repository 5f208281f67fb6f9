"""The devices that a run holds of a Ray cluster: placement groups of its job, asked for as long as something waits, given back when idle.

A thread talks to Ray, whose head may be away: the run goes on with what it holds. What the thread has got and lost reaches the run's ledger
at the next exchange.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

from ..ledger.cluster_shares import Demand, Group, HeldGroup, WantedGroup, asks, full_nodes, to_give
from ..ledger.inventory import LANES, RESOURCES, Found
from ..ledger.ledger import Ledger
from . import compat, placement_groups
from .node_inventory import NodeInventory, Settings, free_of
from .pages.job_record import start_mending

SOON_S, TICK_S = 0.05, 0.25
"""Seconds between two looks at what Ray has given, right after something was asked for and otherwise."""
PUBLISH_S = 0.2
MOST_PENDING = 64
"""Groups of a run that wait in Ray's queue: an autoscaler starts nodes for so many at once."""
RESIZE_S = 2.0
"""Seconds after which a group for a node that Ray has not placed is asked for anew: others were faster."""
SETTLE_S = 1.0
"""So long after a change what Ray says of the free part of a node lags behind."""
GIVE_S, REST_S, LOOK_S = 10.0, 5.0, 1.0
"""So long others wait before a run gives something back, so long that is left to them, and so often Ray's queue is looked at."""
FULL_S, FULL_REST_S = 10.0, 60.0
"""A lane that does nothing for so long while requests wait has no memory for them: no more is asked of its node for a while."""
CLOSE_S = 5.0
IDLE, WANTED = "nothing runs there", "others wait for it"
LOG = logging.getLogger(__name__)


class HeldDevices:
    """The devices of a run on a cluster, as ``RunLedger`` has them. Ray must have joined the cluster.

    Args:
        run: its name; ``owner``: the number of the process that runs it.

    Raises:
        NoInventory: no node says what devices it has.
    """

    def __init__(self, run: str, owner: int, settings: Settings) -> None:
        self._run, self._owner, self._settings = run, owner, settings
        self._nodes = NodeInventory(settings)
        self._groups: dict[str, HeldGroup] = {}
        self._demand = Demand()
        self._published = -1e9
        self._number = 0
        self._held: dict[str, HeldGroup] = {}  # by device, of those that the ledger has
        self._news: deque[tuple[Found, str | None]] = deque()  # of a device: there (None), or why it is lost
        self._closed: deque[str] = deque()
        self._full: dict[tuple[str, str], float] = {}  # node and resource
        self._touched: dict[str, float] = {}
        self._rests: dict[str, float] = {}
        self._others_since: dict[str, float] = {}
        self._looked = self._shared = -1e9
        self._problem = ""
        placement_groups.remove_earlier(run, owner)
        self._nodes.first()
        self._end_mending = start_mending()  # of runs whose processes were killed
        self._wake, self._over = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, name="held devices", daemon=True)
        self._thread.start()

    # For the ledger, in the thread of the run

    def devices(self) -> list[Found]:
        """The devices that are held, those of the other nodes as they could be, and why backends are absent."""
        held = [group.device for group in list(self._held.values()) if group.device is not None]
        cores = {row.node for row in held if row.backend == "cpu"}
        known = {(row.node, row.backend, row.index) for row in held if row.backend != "cpu"}
        rows = [row for found in list(self._nodes.rows.values()) for row in found]
        own = [row.node in cores if row.backend == "cpu" else (row.node, row.backend, row.index) in known for row in rows]
        return held + [row for row, is_held in zip(rows, own, strict=True) if not is_held]

    def options(self, device: str) -> dict[str, Any]:
        """Options of Ray for the actor of a worker on a device.

        Raises:
            KeyError: the device is lost.
        """
        group = self._held[device]
        return placement_groups.placed(group.id, group.resource)

    @contextmanager
    def granting(self, ledger: Ledger) -> Iterator[list[str]]:
        """While open, the ledger grants what the run holds; then it has the devices whose worker is to end, as they are given back."""
        while self._news:
            row, why = self._news.popleft()
            if why is None:
                ledger.add_device(row)
            else:
                ledger.lose_device(row.id, why)
        leaving = [device for device, group in list(self._held.items()) if group.leaving]
        idle = [device for device in leaving if ledger.drain(device)]
        yield idle
        now, busy = time.monotonic(), ledger.busy()
        for device, group in list(self._held.items()):
            group.idle_since = None if device in busy else group.idle_since or now
        if now - self._published >= PUBLISH_S or not self._demand.waits:
            self._published, before = now, self._demand
            self._demand = Demand(ledger.demand(), frozenset(ledger.kinds()), ledger.counts()[0] > 0)
            if self._demand.lanes != before.lanes:
                self._wake.set()

    @property
    def others(self) -> bool:
        """Whether others wait for what this run has."""
        return bool(self._others_since) or any(group.leaving == WANTED for group in list(self._held.values()))

    @property
    def changed(self) -> bool:
        """Whether the ledger has yet to hear of devices."""
        return bool(self._news)

    @property
    def beside(self) -> str:
        """What keeps trials waiting, in words; empty where nothing of the cluster does."""
        asked = sum(not group.node for group in list(self._groups.values()))
        said = f"{asked} more were asked of Ray, which has none free" if asked else ""
        return "; ".join(filter(None, [said, self._problem]))

    def observed(self, pool: str, ours: int) -> None:
        """The run's workers hold so many bytes: on a cluster no other run has a part of what this one holds."""

    def closed(self, device: str) -> None:
        """The run's worker on a device is gone."""
        group = self._held.get(device)
        if group is not None and group.leaving:
            self._closed.append(device)
            self._wake.set()

    def look_for(self, backend: str | None) -> None:
        """Ask for one device of a backend before there are requests; None: for none."""
        self._demand = Demand() if backend is None else Demand({RESOURCES[backend]: 1}, None, waits=True)
        self._wake.set()

    def close(self) -> None:
        """Give everything back; a head that is away is not waited for long."""
        self._over = True
        self._wake.set()
        self._thread.join(CLOSE_S)
        self._end_mending()

    # The thread that talks to Ray

    def _watch(self) -> None:
        import ray

        while not self._over and ray.is_initialized():  # else a question to Ray would start one
            try:
                self._tick(time.monotonic())
                self._problem = ""
            except Exception as error:  # Ray's control plane may be away for a while
                before, self._problem = self._problem, f"the cluster cannot be looked at: {type(error).__name__}: {error}"
                if self._problem != before:
                    LOG.warning("%s", self._problem)
            soon = any(group.device is None and (group.pinned or group.node) for group in self._groups.values())
            self._wake.wait(SOON_S if soon and not self._problem else TICK_S)
            self._wake.clear()
        with suppress(Exception):  # they go with the job, too
            for group in self._groups.values() if ray.is_initialized() else ():
                placement_groups.remove(group.id)

    def _tick(self, now: float) -> None:
        existing = cache(placement_groups.existing)  # asked once, and only if something wants to know
        if now - self._looked >= self._settings.look_s:
            self._nodes.look()
            there = {group.id for group in existing()}
            for group in list(self._groups.values()):
                node = group.node or group.pinned
                if node and node not in self._nodes.alive:
                    self._drop(group, f"node {node[:12]} is gone")
                elif group.id not in there:
                    self._drop(group, "its placement group was removed")
            self._looked = now
        while self._closed:
            group = self._held.get(self._closed.popleft())
            if group is not None:
                if group.leaving == WANTED:
                    self._rests[group.resource] = now + REST_S
                self._drop(group, group.leaving)
        if any(group.device is None for group in self._groups.values()):
            self._take_placed({group.id: group for group in existing()}, now)
        self._return_idle(now)
        self._share(existing, now)
        for resource in {*self._demand.lanes, *(group.resource for group in self._groups.values())}:
            self._ask(resource, now)

    def _take_placed(self, there: Mapping[str, Group], now: float) -> None:
        """Find out which devices the groups are that Ray has placed. ``there``: what Ray says of all groups, by id."""
        for group in [group for group in self._groups.values() if group.device is None and group.id in there]:
            if not group.node and there[group.id].node:
                group.node = there[group.id].node
                self._touched[group.node] = now
            if group.node in self._nodes.rows and not group.useless:
                self._identify(group, now)
            elif not group.node and group.pinned and now - group.asked > RESIZE_S:
                self._drop(group, "")

    def _identify(self, group: HeldGroup, now: float) -> None:
        """Give a placed group its device, or give it back where the run cannot use that."""
        rows = [row for row in self._nodes.rows[group.node] if row.usable and row.resource == group.resource]
        if group.resource == "GPU":
            given = self._seen_inside(group)
            if given is None:
                return
            row = next((row for row in rows if row.ray_id in given or (row.uuid and row.uuid in given)), None)
        elif group.resource == "CPU":
            row = next(iter(rows), None)
            if row is not None:
                held = sum(g.device.lanes for g in self._held.values() if g.device is not None and g.node == group.node)
                lanes = min(int(group.amount) // row.threads, row.lanes - held)
                self._number += 1
                row = replace(row, id=f"{row.id}@{self._number}", lanes=lanes) if lanes > 0 else None
        else:
            row = next((row for row in rows if len(rows) == 1 or self._claim(group, row)), None)
        if row is not None and self._demand.suits(row, group.resource):
            group.device, group.lanes, self._held[row.id] = row, row.lanes, group
            self._news.append((row, None))
        elif group.resource != "CPU" and any(self._demand.suits(row, group.resource) for row in rows):
            group.useless = True
        else:
            self._full[group.node, group.resource] = now + FULL_REST_S
            self._drop(group, "")

    def _seen_inside(self, group: HeldGroup) -> list[str] | None:
        """The GPUs of a group, once a process in it has said them. One that cannot say it is given back, and asked for anew."""
        import ray

        group.inside = group.inside or placement_groups.ask_inside(group.id)
        if not ray.wait([group.inside], timeout=0)[0]:
            return None
        try:
            return ray.get(group.inside)
        except ray.exceptions.RayError as error:
            LOG.warning("a GPU of node %s does not say which one it is: %s", group.node, error)
            self._drop(group, "")
            return None

    def _claim(self, group: HeldGroup, row: Found) -> bool:
        """Take one of several devices of a resource that Ray cannot tell apart; False: another run has it."""
        group.holder = group.holder or placement_groups.claim(group.id, group.resource, row.id)
        return group.holder is not None

    def _return_idle(self, now: float) -> None:
        """Let go of devices on which nothing runs: for good after a while, and note nodes without memory for what waits."""
        demand = self._demand
        for group in self._held.values():
            idle_s = now - (group.idle_since or now)
            if demand.waits and idle_s > FULL_S:
                self._full.setdefault((group.node, group.resource), now + FULL_REST_S)
            if idle_s > self._settings.idle_s and not group.leaving and (not demand.waits or self._is_starved(group)):
                group.leaving = IDLE
        self._full = {what: until for what, until in self._full.items() if until > now}

    def _share(self, existing: Callable[[], Sequence[Group]], now: float) -> None:
        """Give something to others who have waited for long enough: what runs there comes to its end first."""
        if now - self._shared < LOOK_S:
            return
        self._shared = now
        held = [group for group in self._held.values() if group.device is not None and not group.leaving]
        resources = {group.resource for group in held}
        groups, available = (existing(), compat.available()) if resources else ([], {})
        for resource in resources - {group.resource for group in self._held.values() if group.leaving}:
            mine = [group for group in held if group.resource == resource]
            others = [one for one in groups if one.resource == resource and one.run != self._run]
            strangers = placement_groups.strangers_want(resource, groups)
            totals = {node: amounts.get(resource, 0.0) for node, amounts in self._nodes.alive.items()}
            given = to_give(mine, others, strangers, free_of(available, resource), totals)
            since = self._others_since.setdefault(resource, now) if given else self._others_since.pop(resource, now)
            if now - since > GIVE_S:
                del self._others_since[resource]
                for group in given:
                    group.leaving = WANTED
                for group in [g for g in self._groups.values() if g.resource == resource and not g.node]:
                    self._drop(group, "")  # Ray would give us what we give back

    def _ask(self, resource: str, now: float) -> None:
        """Ask Ray for the lanes that could be at work and are not held, and withdraw what is asked for in vain."""
        demand, groups = self._demand, [group for group in self._groups.values() if group.resource == resource]
        rows = [row for found in self._nodes.rows.values() for row in found if demand.suits(row, resource)]
        full = {node for node, of in self._full if of == resource} | full_nodes(groups, rows)
        without = frozenset(self._nodes.rows.keys() - ({row.node for row in rows} - full))
        have = [group for group in groups if not (group.leaving or group.useless or self._is_starved(group))]
        missing = demand.lanes.get(resource, 0) - sum(group.lanes for group in have)
        for group in [group for group in reversed(have) if not group.node and not group.pinned]:
            if missing + group.lanes <= 0 or group.without != without:
                missing += group.lanes
                self._drop(group, "")
        pending = sum(not group.node for group in self._groups.values())
        leaving = any(group.leaving == WANTED for group in groups)
        if missing <= 0 or leaving or now < self._rests.get(resource, 0.0) or pending >= MOST_PENDING:
            return
        lanes, unsettled = Counter[str](), {node for node, since in self._touched.items() if now - since < SETTLE_S}
        for group in groups:
            lanes[group.node or group.pinned] += group.lanes
            unsettled |= {group.pinned} if not group.node else set()
        free = {node: count for node, count in free_of(compat.available(), resource).items() if node not in unsettled | full}
        for one in asks(missing, rows, lanes, free, self._part(resource, rows), MOST_PENDING - pending):
            excluded = frozenset() if one.node else without
            id = placement_groups.create(self._run, self._owner, resource, one.amount, node=one.node, without=excluded)
            self._groups[id] = HeldGroup(id, resource, one.amount, one.lanes, now, one.node, excluded)

    def _part(self, resource: str, rows: list[Found]) -> WantedGroup:
        """The group that is asked of any node, also of one that an autoscaler is to start."""
        if resource == "CPU":
            return WantedGroup(1, float(self._settings.threads))
        return WantedGroup(min((row.lanes for row in rows), default=self._settings.lanes or LANES), 1.0)

    def _is_starved(self, group: HeldGroup) -> bool:
        """Whether a device does nothing because its node has no memory for what waits."""
        return (group.node, group.resource) in self._full and group.idle_since is not None

    def _drop(self, group: HeldGroup, why: str) -> None:
        """Give a group back, and tell the ledger that its device is gone."""
        self._groups.pop(group.id, None)
        if group.node:
            self._touched[group.node] = time.monotonic()
        if group.device is not None and self._held.pop(group.device.id, None):
            self._news.append((group.device, why))
        placement_groups.remove(group.id)
