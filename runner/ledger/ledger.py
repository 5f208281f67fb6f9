"""The ledger: leases of (device, bytes) for the runs of all users. Pure: the clock is given, no Ray, no I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from ..packing import Packer, Placement, Request
from ..packing.packer import AGE_S
from . import leases as words
from .inventory import Found
from .lanes import DeviceLanes
from .leases import EXPIRE_S, LEASE_REQUESTS, LEASE_S, MOST_REASONS, Exchange, Held, Lease, LeaseEnd, Terms, Waits
from .runs import MARK, Grant, RequestGroup, Run, shown
from .views import snapshot

REMEMBERED = 100_000  # leases that were taken from runs: a run that returns late must not bring one back


class Ledger:
    """Grants leases, and takes them back when they are returned, when their run is silent, or when their device is gone.

    The packer inside gets, for each device, one device for each run that may use it, all on the same pool: the process of each run's
    worker is charged by itself. They share the lanes: as many runs as wait, by users, see ``DeviceLanes``.

    Args:
        epoch: part of the lease ids; another one for each start of a ledger.
        settle_until: nothing is granted before: runs that hold leases of an earlier ledger join again first.
        age_s: see ``Packer``.
        expire_s: seconds of silence after which a run loses its leases.
        lease_requests: most requests of a lease, and ``lease_s`` its most seconds.
    """

    def __init__(
        self,
        epoch: str = "",
        *,
        settle_until: float = -math.inf,
        age_s: float = AGE_S,
        expire_s: float = EXPIRE_S,
        lease_requests: int = LEASE_REQUESTS,
        lease_s: float = LEASE_S,
    ) -> None:
        self.epoch, self.settle_until, self.expire_s = epoch, settle_until, expire_s
        self.lease_requests, self.lease_s = lease_requests, lease_s
        self._packer = Packer(age_s=age_s)
        self._lanes = DeviceLanes(self._packer)
        self._runs: dict[str, Run] = {}
        self._taken: dict[str, str] = {}
        self._number = 0

    # Devices

    def add_device(self, found: Found, group: str = "") -> None:
        """A device may be used from now on; ``group``: its placement group.

        Raises:
            ValueError: there is such a device already.
        """
        self._lanes.add(found, group)
        for run in self._runs.values():
            self._open(run)

    def lose_device(self, device: str, why: str = "") -> list[Lease]:
        """A device is gone: its leases, which end with the reason ``device lost``. Nothing happens when there is no such device."""
        reason = words.DEVICE_LOST + (f": {why}" if why else "")
        out = [
            self._end(run, grant, reason)
            for run in self._runs.values()
            for grant in list(run.grants.values())
            if grant.lease.device == device
        ]
        for run in self._runs.values():
            run.closing.discard(device)
            run.resting.pop(device, None)
        self._lanes.remove(device)
        return out

    def observe(self, pool: str, free: int, ours: int | None = None, run: str = "") -> None:
        """A pool has ``free`` bytes now, and the workers of a run hold ``ours`` of it.

        What others hold is the rest. Where not every run with a worker there has said what it holds, all that is charged is taken as held.
        """
        self._lanes.observe(pool, free, ours, run)

    def limit(self, run: str, pools: Mapping[str, int], lanes: Mapping[str, int]) -> None:
        """Limit the bytes of each pool and the lanes of each device for a ledger with a single run; runs with other ledgers have the rest.

        The run keeps what it holds.
        """
        state = self._runs[run]
        for pool, most in pools.items():
            rows = [place.found for place in self._lanes.places().values() if place.found.pool == pool]
            left = rows[0].capacity - self._lanes.foreign(pool)
            self._lanes.promise(pool, max(0, left - most))
        for device, most in lanes.items():
            self._lanes.limit(state, device, most)

    def foreign(self, pool: str) -> int:
        """Bytes of a pool that others are seen to hold."""
        return self._lanes.foreign(pool)

    def held(self, run: str) -> tuple[dict[str, int], dict[str, int]]:
        """The bytes of each pool that are charged here, and how many leases run on each device."""
        pools = {row["id"]: row["claimed"] + row["process"] for row in self._packer.snapshot()["pools"]}
        return pools, Counter(grant.lease.device for grant in self._runs[run].grants.values())

    def idle(self, run: str) -> list[str]:
        """Devices where a worker of a run lives and nothing of it runs."""
        busy = {grant.lease.device for grant in self._runs[run].grants.values()}
        return [name for name, place in self._lanes.places().items() if run in place.workers and name not in busy]

    def least(self, run: str) -> dict[str, int]:
        """The bytes of each pool that would let a run start the smallest that waits, with a process for it; empty when nothing waits."""
        state, out = self._runs[run], dict[str, int]()
        for found in self._lanes.devices():
            kind = found.kind + MARK + run
            sizes = [shape.claims[kind].smallest for shape in state.shapes.values() if shape.waiting and kind in shape.claims]
            if sizes:
                place = self._lanes.places()[found.id]
                need = min(sizes) + (0 if run in place.workers else found.charge(place.runs.get(run) or 1))
                out[found.pool] = min(out.get(found.pool, need), need)
        return out

    def devices(self) -> list[Found]:
        """The devices that leases are granted on."""
        return self._lanes.devices()

    # Runs

    def join(
        self,
        run: str,
        user: str,
        now: float,
        held: Sequence[Held] = (),
        requests: Sequence[Request] = (),
        done: Sequence[LeaseEnd] = (),
        seen: int = 0,
        workers: Sequence[str] = (),
        terms: Terms = Terms(),  # noqa: B008 - frozen
    ) -> Exchange:
        """A run begins, or joins a ledger that has forgotten it, with the leases that it holds and what it waits for.

        A lease that is known is kept. One that was taken from the run, or whose bytes have been granted to others since, ends.
        May be called again at any time. ``done``, ``seen``: see ``exchange``. ``workers``: devices where its worker lives, idle or not.
        """
        state = self._runs.get(run)
        if state is None:
            state = self._runs[run] = Run(run, user, now, last=seen)
            self._lanes.join(run, terms)
        self._give_back(state, done, now)
        for item in held:
            if item.lease.id not in state.grants:
                self._adopt(state, item, now)
        for device in workers:
            self._meet_worker(state, device)
        self.ask(run, [r for r in requests if r.id not in state.waiting and r.id not in state.held], now)
        return self.exchange(run, (), now, seen)

    def leave(self, run: str) -> None:
        """A run is over and its workers are gone: its leases end, its requests are forgotten."""
        state = self._runs.get(run)
        if state is not None:
            for grant in list(state.grants.values()):
                self._end(state, grant, words.LEFT)
            self._packer.withdraw([f"{run}/{name}" for name in state.waiting])
            self._lanes.leave(run)
            del self._runs[run]

    def runs(self) -> list[str]:
        """All that have joined."""
        return list(self._runs)

    def beat(self, run: str, now: float) -> bool:
        """A run lives. False: it is not known."""
        state = self._runs.get(run)
        if state is not None:
            state.beat = max(state.beat, now)
        return state is not None

    def ask(self, run: str, requests: Sequence[Request], now: float) -> bool:
        """Queue requests, many at once. False: the run is not known.

        Raises:
            ValueError: one of them waits or is held already; none is queued then.
        """
        if not self.beat(run, now):
            return False
        state = self._runs[run]
        made = state.add(requests, now)
        self._open(state)
        self._packer.submit(made)
        return True

    def withdraw(self, run: str, ids: Iterable[str]) -> list[str]:
        """Take requests out of the queue; those that waited."""
        state = self._runs.get(run)
        out = [name for name in ids if state is not None and name in state.waiting]
        if state is not None:
            self._packer.withdraw([f"{run}/{name}" for name in out])
            for name in out:
                state.over(state.take(name))
        return out

    def closed(self, run: str, device: str) -> None:
        """The worker of a run on a device is gone. Nothing happens while the run has a lease there: it will start another one."""
        state = self._runs.get(run)
        if state is not None and not any(grant.lease.device == device for grant in state.grants.values()):
            state.closing.discard(device)
            self._lanes.worker_ended(run, device)

    def avoid(self, run: str, device: str, seconds: float, now: float) -> bool:
        """Grant nothing more to a run on a device for some time, because its workers fail there. Running leases continue.

        Returns False and does nothing if the run has no other device: its trials then fail with their errors.
        """
        state, place = self._runs.get(run), self._lanes.places().get(device)
        if state is None or place is None or run not in place.runs:
            return False
        kinds, avoided = state.kinds, {device, *state.resting}
        others = any(found.kind + MARK + run in kinds for found in self._lanes.devices() if found.id not in avoided)
        if others:
            state.resting[device] = now + seconds
            self._lanes.rest(state, device)
        return others

    def drain(self, device: str) -> bool:
        """Grant nothing more on a device, to any run, until it is lost. Returns whether nothing runs there any more."""
        place = self._lanes.places().get(device)
        for state in self._runs.values():
            if place is not None and state.id in place.runs:
                state.resting[device] = math.inf
                self._lanes.rest(state, device)
        return not any(grant.lease.device == device for state in self._runs.values() for grant in state.grants.values())

    def give_back(self, run: str, done: Sequence[LeaseEnd], now: float) -> None:
        """Give leases back, and grant nothing yet."""
        self._give_back(self._runs[run], done, now)

    def exchange(self, run: str, done: Sequence[LeaseEnd], now: float, seen: int = 0) -> Exchange:
        """Return leases, and receive the news after number ``seen``. Unknown leases are ignored."""
        state = self._runs.get(run)
        if state is None:
            return Exchange(known=False)
        self._give_back(state, done, now)
        self.step(now)
        return self._answer(state, seen)

    # Time

    def expire(self, now: float) -> list[Lease]:
        """End the leases of runs that were silent too long, and forget those runs."""
        out = []
        for run in [r for r in self._runs.values() if now - r.beat > self.expire_s]:
            reason = f"{words.EXPIRED}: its run was silent for {now - run.beat:.0f} s"
            out += [self._end(run, grant, reason) for grant in list(run.grants.values())]
            self.leave(run.id)
        return out

    def forgive(self, seconds: float, now: float) -> None:
        """The ledger itself was away for so long: what runs have said meanwhile still waits, and that time is no silence of theirs."""
        for run in self._runs.values():
            run.beat = max(run.beat, min(run.beat + seconds, now))

    def step(self, now: float) -> None:
        """Expire and grant. To be called after everything that may free bytes, and now and then."""
        self.expire(now)
        for state in self._runs.values():
            for device in [name for name, until in state.resting.items() if until <= now]:
                self._wake(state, device)
        if now >= self.settle_until and self._packer.counts()[0]:
            self._lanes.share(self._runs.values())
            placed = [(placement, self._take(placement.request)) for placement in self._packer.next(now)]
            for placement, shape in placed:
                self._grant(placement, shape, now)
            for name in self._packer.idle_in_the_way() if self._packer.counts()[0] else ():
                device, run = name.split(MARK, 1)
                state = self._runs[run]
                if device not in state.closing:
                    state.closing.add(device)
                    state.tell(device)

    def news(self, run: str, seen: int) -> Exchange:
        """The news of a run after number ``seen``. The call does not count as a heartbeat."""
        state = self._runs.get(run)
        return self._answer(state, seen) if state is not None else Exchange(known=False)

    def told(self) -> list[str]:
        """Runs with news that they have not taken."""
        return [run.id for run in self._runs.values() if run.news]

    # Views

    def wanted(self) -> set[str]:
        """Classes of devices that some run has claims for."""
        return {kind.split(MARK, 1)[0] for run in self._runs.values() for kind in run.kinds}

    def demand(self) -> dict[str, int]:
        """How many requests run or wait, by the class of device that is the first one of their claims; empty where none waits."""
        found, places = Counter[str](), self._lanes.places()
        for run in self._runs.values():
            left = self._lanes.most(run.id) - len(run.grants)
            for shape in run.shapes.values():
                count = min(left, len(shape.waiting))
                if count > 0:
                    found[next(iter(shape.claims)).split(MARK, 1)[0]] += count
                    left -= count
        if found:
            found.update(places[grant.lease.device].found.kind for run in self._runs.values() for grant in run.grants.values())
        return dict(found)

    def why(self, run: str) -> dict[str, Waits]:
        """Why requests wait, with the arithmetic: by the oldest of each of the first shapes; the others are counted together."""
        state = self._runs.get(run)
        waiting = [shape.waiting for shape in state.shapes.values() if shape.waiting] if state is not None else []
        out = {}
        for own in waiting[:MOST_REASONS]:
            name, request = next(iter(own.items()))
            out[name] = Waits(len(own), self._clean(self._packer.why(request.id), run))
        if rest := waiting[MOST_REASONS:]:
            text = f"for places of {len(rest)} other sizes"
            out[next(iter(rest[0]))] = Waits(sum(len(own) for own in rest), text)
        return out

    def snapshot(self) -> dict[str, Any]:
        """Pools, devices with what runs there, runs, users and groups that wait, as plain data."""
        return snapshot(self._packer.snapshot(), self._lanes.places(), self._runs.values(), self._clean)

    def counts(self) -> tuple[int, int]:
        """The numbers of waiting requests and of leases."""
        return self._packer.counts()[0], sum(len(run.grants) for run in self._runs.values())

    # Inside

    def _answer(self, run: Run, seen: int) -> Exchange:
        """Requeue the requests of a lease if its device was lost before the run had received the lease."""
        for grant in run.unseen(seen):
            self._packer.submit(run.again(grant))
        others = any(other.waiting for other in self._runs.values() if other is not run)
        return replace(run.answer(), others=others or math.inf in run.resting.values())

    def _give_back(self, run: Run, done: Sequence[LeaseEnd], now: float) -> None:
        run.beat = max(run.beat, now)
        for end in done:
            grant = run.grants.get(end.lease)
            if grant is not None:
                self._measure(grant, end, now)
                self._end(run, grant, end.reason, tell=False)
        for device in run.resting if done else ():
            self._lanes.rest(run, device)

    def _clean(self, text: str, own: str = "") -> str:
        """A text of the packer with devices as people know them: without the mark of the own run, and others' runs by their names."""
        text = text.replace(MARK + own, "").replace(f"{own}/", "") if own else text
        for run in self._runs:
            text = text.replace(run, shown(run)) if "#" in run else text
        return text

    def _open(self, run: Run) -> None:
        """Let a run have every device that it has claims for. Of the rows of a node's cores, that with the most threads of those.

        A run has claims for fewer threads than its config says because of smaller nodes, which have no more cores.
        """
        kinds, threads = run.kinds, dict[str, int]()
        rows = [found for found in self._lanes.devices() if found.kind + MARK + run.id in kinds]
        for found in rows:
            if found.backend == "cpu":
                threads[found.pool] = max(threads.get(found.pool, 0), found.threads)
        for found in rows:
            if found.id not in run.resting and (found.backend != "cpu" or found.threads == threads[found.pool]):
                self._lanes.open(run, found.id)

    def _wake(self, run: Run, device: str) -> None:
        del run.resting[device]
        self._lanes.wake(run, device)

    def _adopt(self, run: Run, held: Held, now: float) -> None:
        """Charge a lease of before, or end it."""
        lease = held.lease
        place, why = self._lanes.places().get(lease.device), self._taken.get(lease.id, "")
        claim = held.request.claims.get(place.found.kind) if place is not None else None
        if not why and (claim is None or lease.point not in claim.points):
            why = f"{words.DEVICE_LOST}: the ledger has started again and does not find it"
        if why or claim is None:
            run.tell(LeaseEnd(lease.id, why))
            return
        shape = run.shape(held.request)
        if lease.device in run.resting:
            self._wake(run, lease.device)
        self._open(run)
        if now >= self.settle_until and not self._lanes.room(run.id, lease.device, lease.point.bytes):
            run.tell(LeaseEnd(lease.id, f"{words.EXPIRED}: its bytes were granted to others while the run was silent"))
            return
        request, name = run.marked(held.request, shape, now), lease.device + MARK + run.id
        self._packer.adopt(request, name, claim.points.index(lease.point), now)
        run.grants[lease.id] = Grant(lease, shape, name, request.id, now)
        run.held.update(lease.requests)
        self._lanes.worker_started(run.id, lease.device)

    def _meet_worker(self, run: Run, device: str) -> None:
        """A worker of a run lives there, of before: its process is charged, and is to end when it is idle and there is no room."""
        place = self._lanes.places().get(device)
        if place is not None and run.id not in place.workers and device not in run.resting:
            self._lanes.open(run, device)
            room = self._lanes.room(run.id, device, 0)
            self._packer.worker_started(device + MARK + run.id)
            self._lanes.worker_started(run.id, device)
            if not room:
                run.closing.add(device)
                run.tell(device)

    def _take(self, request: Request) -> RequestGroup:
        """Remove placed requests from the waiting ones."""
        run = self._runs[request.run]
        return run.take(request.id.removeprefix(f"{run.id}/"))

    def _grant(self, placement: Placement, shape: RequestGroup, now: float) -> None:
        request, point = placement.request, placement.point
        run = self._runs[request.run]
        first = request.id.removeprefix(f"{run.id}/")
        more = list(islice(shape.waiting, self._more(run, shape, point.time)))
        made = (request, *(shape.waiting[other] for other in more))
        self._packer.withdraw([f"{run.id}/{other}" for other in more])
        for other in more:
            run.take(other)
        device = placement.device.removesuffix(MARK + run.id)
        place = self._lanes.places()[device]
        self._number += 1
        lease = Lease(
            id=f"{self.epoch}{self._number}",
            run=run.id,
            device=device,
            node=place.found.node,
            point=point,
            requests=(first, *more),
            expires=run.beat + self.expire_s,
            why=placement.why,
            group=place.group,
        )
        run.grants[lease.id] = Grant(lease, shape, placement.device, request.id, now, made)
        run.held.update(lease.requests)
        run.closing.discard(device)
        self._lanes.worker_started(run.id, device)
        run.tell(lease)

    def _more(self, run: Run, shape: RequestGroup, time: float) -> int:
        """The number of further requests of a lease: short ones only, and at most half of the run's share of the queue."""
        seconds = shape.seconds
        if seconds is None:
            known = [claim.seconds for claim in shape.claims.values() if claim.seconds is not None]
            seconds = max(known) if len(known) == len(shape.claims) else None
        if seconds is None:
            return 0
        lanes = self._lanes.of(run.id)
        most = min(
            self.lease_requests,
            int(self.lease_s / max(seconds * time, 1e-9)),
            math.ceil((len(shape.waiting) + 1) / (2 * max(1, lanes))),
        )
        return max(0, most - 1)

    def _measure(self, grant: Grant, end: LeaseEnd, now: float) -> None:
        if end.reason == words.DONE:
            each = (now - grant.started) / len(grant.lease.requests) if end.seconds is None else end.seconds
            grant.took = max(0.0, each) / grant.lease.point.time
            grant.shape.measured(grant.took)

    def _end(self, run: Run, grant: Grant, reason: str, tell: bool = True) -> Lease:
        lease = grant.lease
        del run.grants[lease.id]
        run.held.difference_update(lease.requests)
        self._packer.finish(grant.request, grant.took)
        if tell:
            run.ended[lease.id] = grant
            run.tell(LeaseEnd(lease.id, reason))
            self._taken[lease.id] = reason
            while len(self._taken) > REMEMBERED:
                del self._taken[next(iter(self._taken))]
        run.over(grant.shape)
        return replace(lease, expires=min(lease.expires, run.beat + self.expire_s))
