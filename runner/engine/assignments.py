"""The requests, leases and launches of a run, and what remains of them when a worker dies. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..ledger.leases import Lease
from ..packing import Request
from ..store.attempts import PREEMPTED, Failure
from ..store.columns import BatchRows
from ..value_columns import Places, index_of
from . import messages as m
from .failures import Rules
from .parts import NO_ROOM, OF_THE_WORKER, Asked, Blame, Claims, DeviceAt, Flight, LeaseAt, TrialAt, error_of, failure_of
from .retry_policy import Ending, Verdicts

NOT_BEGUN = error_of("NotBegun", "its worker was lost before it began with this trial")


class Flights:
    """The part of ``State`` that knows where each trial is that is not over."""

    def __init__(
        self,
        work: Sequence[TrialAt] | int,
        rules: Rules,
        claims: Callable[[Places], Claims],
        *,
        batches: Sequence[Places] | None = None,
        before: Mapping[str, int] | None = None,
        most: Mapping[str, int] | None = None,
        curves: Callable[[int], Claims] | None = None,
        checks: bool = False,
    ) -> None:
        """A run that has not begun.

        Args:
            work: see ``Work``.
            rules: limits.
            claims: of a batch; equal batches should get the same object.
            batches: how trials run together; None: each alone.
            before: trials that ended earlier, by status.
            most: bytes that the largest device of a class can give a trial.
            curves: of a trial, for when it ran out of memory: all its points, where ``claims`` gives some of them up.
            checks: a trial whose process died by a signal, or lost its GPU to a kernel, runs again once with every index checked.
        """
        self.rules, self.claims = rules, claims
        self._out: list[m.Action] = []
        self._closed: list[m.Action] = []  # the last ones of their event
        self._verdicts = Verdicts(work, rules, before or {}, self._out, checks)
        self._verdicts.curves = curves or (lambda place: claims((place,)))
        self._verdicts.most = dict(most or {})
        self.trials, self.counts, self.alone = self._verdicts.trials, self._verdicts.counts, self._verdicts.alone
        self.batches = [(place,) for place in self.trials.waiting()] if batches is None else list(batches)
        self.paused = False
        self._deadline = float("inf")
        self._asked = Asked()
        self._parked: list[Places] = []  # while the store is full: batches that ask for no place
        self._held: dict[str, Places] = {}  # requests under a lease
        self._leases: dict[str, LeaseAt] = {}
        self._flights: dict[int, Flight] = {}
        self._devices: dict[str, DeviceAt] = {}
        self._saving: frozenset[int] = frozenset()
        self._unready: Counter[str] = Counter()  # workers that could not run trials since one could, by device
        self._next = 1
        self._submitted = self._now = 0.0

    # requests and leases

    def _ask(self, batches: Iterable[Places]) -> None:
        if self.paused:
            self._parked += batches
            return
        requests = []
        for batch in batches:
            if not batch:
                continue
            first, own = batch[0], self.trials.claims.get(batch[0]) if len(batch) == 1 else None
            self.trials.asks[index_of(batch)] += 1
            asks = self.trials.asks[first]
            name = f"t{first}" + (f"+{len(batch) - 1}" if len(batch) > 1 else "") + (f".{asks}" if asks > 1 else "")
            claims = self.claims(batch) if own is None else own
            self._asked.add(name, batch, claims)
            requests.append(Request(name, claims, self._submitted, batch))
        if requests:
            self._out.append(m.Ask(tuple(requests)))

    def _park(self) -> None:
        """Hold no place that nothing may run in for now: others can have it."""
        if self._asked:
            self._out.append(m.Withdraw(tuple(self._asked)))
            self._parked += [batch for name in tuple(self._asked) if (batch := self._asked.pop(name))]
        for device in self._devices.values():
            while device.pending:
                self._next_of(device.pending.popleft())

    def _unpark(self) -> None:
        parked, self._parked = self._parked, []
        self._ask([self.trials.left(batch) for batch in parked])

    def _forget_queue(self, lease: LeaseAt) -> list[str]:
        """Take the waiting requests of a lease out of it and ask for them again; their names."""
        names = list(lease.queue)
        lease.queue.clear()
        self._ask([self._held.pop(name) for name in names])
        return names

    def _next_of(self, name: str, *, again: bool = False) -> None:
        """A launch of a lease is over: start its next launch, or end the lease and requeue its remaining requests if ``again``."""
        lease = self._leases[name]
        if lease.flights:
            head = self._flights[lease.flights[0]]
            head.sent = self._now
            self._go_on(head)
            return
        if again or self.paused:
            lease.unfinished += self._forget_queue(lease)
        if lease.queue:
            self._devices[lease.grant.device].pending.appendleft(name)
        else:
            self._end_lease(name)

    def _end_lease(self, name: str) -> None:
        self._out.append(m.GiveBack(name, tuple(self._leases.pop(name).unfinished)))

    # more under a lease

    def _go_on(self, flight: Flight) -> None:
        """A batch has its turn: one with the same claims may wait behind it, and then run on its lane in the program that is open there."""
        launch, left = flight.launch, self._verdicts.may_fail
        lease, out = self._leases[launch.lease], sum(len(one.launch.trials) for one in self._flights.values())
        if len(launch.trials) == 1 or len(lease.flights) > 1 or lease.queue or self.paused or self._verdicts.stopping:
            return
        first, count = self._asked.alike(self.claims(launch.trials))
        if first is None or self.alone((*launch.trials, *self._asked[first])):
            return
        if left is None or left > out + len(self._asked[first]):  # if all of them fail, the run continues
            self._out.append(m.GoOn(launch.lease, first, lease.since, count < len(self._asked)))

    def _goes_on(self, event: m.GoesOn) -> None:
        batch, lease = self._asked.pop(event.request), self._leases.get(event.lease)
        if batch is None:
            return
        device = None if lease is None else self._devices[lease.grant.device]
        if lease is None or device is None or not lease.flights or device.retiring:
            self._ask([batch])
            return
        self._held[event.request] = batch
        lease.queue.append(event.request)
        self._launch(device, lease)

    # launches

    def _heads(self) -> list[Flight]:
        """The launches whose turn it is."""
        return [self._flights[lease.flights[0]] for lease in self._leases.values() if lease.flights]

    def _dispatch(self, name: str) -> None:
        device = self._devices[name]
        for worker in list(device.retiring):
            if not self._on(worker):
                device.retiring.remove(worker)
                if device.generations[worker.slot] == worker.generation:
                    self._bury(worker, {}, kill=True)
        while device.pending and not device.retiring and self._now >= device.held_until:
            lease = self._leases[device.pending[0]]
            beside = [trial for flight in device.flights.values() for trial in flight.launch.trials]
            if device.flights and self.alone((*self._held[lease.queue[0]], *beside)):
                return
            device.pending.popleft()
            self._launch(device, lease)

    def _launch(self, device: DeviceAt, lease: LeaseAt) -> None:
        """Hand the requests of a lease to a worker, all at once; a request that must run alone, or with checks, separately."""
        grant, before = lease.grant, self._flights[lease.flights[-1]].launch if lease.flights else None
        checked = self._checked(lease.queue[0])
        worker = self._free_worker(device, grant) if before is None else before.worker
        if checked and not self._on(worker):  # in a process of its own: what ran in this one before may have written anywhere
            self._bury(worker, {}, kill=True)
            worker = self._free_worker(device, grant)
        requests: list[str] = []
        alone = False
        while lease.queue and not alone:
            alone = self.alone(self._held[lease.queue[0]]) or self._checked(lease.queue[0])
            if requests and alone:
                break
            requests.append(lease.queue.popleft())
        lease.may_fail = self._may_fail(len(requests))
        may_fail = lease.may_fail if len(requests) > 1 else None
        launches: list[m.Launch] = []
        for request in requests:
            trials = self._held.pop(request)
            at = index_of(trials)
            self.trials.number[at] += 1
            numbers = tuple(self.trials.number[at].tolist())
            head = self._next, worker, trials, numbers, grant.point.bytes, grant.point.time
            launches.append(m.Launch(*head, grant.id, before is not None, may_fail, checked))
            self._next += 1
        place = {"device": worker.device, "bytes": grant.point.bytes, "time": grant.point.time, "slot": worker.slot}
        place |= {"checked": True} if checked else {}
        for launch, request in zip(launches, requests, strict=True):
            self._flights[launch.id] = device.flights[launch.id] = Flight(launch, request, self._now, place)
            lease.flights.append(launch.id)
        if before is None:
            self._begin(self._flights[launches[0].id])
        self._out.append(m.RunLaunches(tuple(launches)))
        if before is None:
            self._go_on(self._flights[launches[0].id])

    def _checked(self, request: str) -> bool:
        """Whether the trial of a request runs with every index checked, to find why its process died."""
        trials = self._held[request]
        return len(trials) == 1 and trials[0] in self.trials.crash

    def _may_fail(self, count: int) -> int | None:
        """The number of launches of a lease, out of ``count``, that may fail before the others wait for the runner.

        All leases that are out fail together no more than ends the run, but for the one trial that each has begun.
        """
        left = self._verdicts.may_fail
        if left is None:
            return None
        out = sum(lease.may_fail or 0 for lease in self._leases.values() if lease.flights)
        return max(1, min(count, left - out))

    def _free_worker(self, device: DeviceAt, grant: Lease) -> m.WorkerId:
        """The worker that runs a lease: where each lane is one, one that has nothing to do."""
        busy = {flight.launch.worker.slot for flight in device.flights.values()}
        slot = next(k for k in range(len(busy) + 1) if k not in busy) if grant.processes else 0
        device.generations[slot] += 0  # known from now on
        return m.WorkerId(grant.device, slot, device.generations[slot])

    def _begin(self, flight: Flight) -> None:
        """From now on its attempts count as begun."""
        if flight.begun:
            return
        flight.begun, launch = True, flight.launch
        self.trials.tries[index_of(launch.trials)] += 1
        self._out.append(m.WriteBegun(launch.id, launch.trials, launch.numbers, flight.place))

    def _over(
        self, flight: Flight, ends: Mapping[int, m.Record], rows: Sequence[BatchRows] = (), *, charged: bool = True
    ) -> None:
        """A launch ran to its end. ``rows``: trials of a batch that ended well. ``charged``: its trials answer for it."""
        self._begin(flight)
        for part in rows:
            self._verdicts.ended_together(flight.launch.id, part)
        if sum([len(part.trials) for part in rows]) == len(flight.launch.trials):
            return
        done = {place for part in rows for place in part.trials}
        failed: list[Ending] = []
        unsaved: list[Ending] = []
        shared: list[Ending] = []
        behind: list[Ending] = []
        for name in flight.launch.trials:
            if name in done:
                continue
            end = ends.get(name)
            if end is None and ends:
                behind.append((name, *flight.ending.get(name, (Failure.infrastructure, NOT_BEGUN)), {}))
                continue
            failure = Failure.infrastructure if end is None else failure_of(end)
            if failure is None:
                assert end is not None
                if self._verdicts.ended_well(name, end, checked=flight.launch.checked):
                    self._ask([(name,)])
                continue
            record = {} if end is None else {key: value for key, value in end.items() if key not in OF_THE_WORKER}
            error = record.get("error") or error_of("NoResult", "the worker gave no result for this trial")
            own: tuple[Failure, m.Error] = failure, error
            said = flight.ending.get(name, own)
            if failure is Failure.infrastructure and error.get("type") == NO_ROOM:
                # a timeout: its time was up while it waited for room
                unsaved.append((name, *(own if said[0] is Failure.timeout else said), record))
            elif failure is Failure.infrastructure and error.get("type") == PREEMPTED:
                behind.append((name, *said, record))
            elif end is not None and end.get("shared"):
                shared.append((name, *said, record))
            else:
                failed.append((name, *said, record))
        if unsaved:
            self._out.append(m.NoRoom(unsaved[0][2].get("message", "")))
            self._ask(self._verdicts.judge(flight, unsaved, charged=False))
        if behind:
            self._ask(self._verdicts.judge(flight, behind, charged=False))
        if shared:  # alone it has itself to thank
            self._verdicts.set_alone([name for name, *_ in shared])
            self._ask(self._verdicts.judge(flight, shared, charged=False))
        if failed:
            self._ask(self._verdicts.judge(flight, failed, charged=charged))

    def _not_begun(self, flight: Flight, *, sure: bool) -> None:
        """A launch is over before it began, so it is no attempt. ``sure``: no record says that it began."""
        lease, trials, drop = self._leases[flight.launch.lease], flight.launch.trials, flight.drop
        if flight.begun:  # it had its turn, and its worker was lost
            ends = [(name, *flight.ending.get(name, (Failure.infrastructure, NOT_BEGUN)), {}) for name in trials]
            rest = [place for batch in self._verdicts.judge(flight, ends, charged=False) for place in batch]
        else:
            self.trials.number[index_of(trials)] -= sure
            rest = list[int]()
            for place in trials:
                if drop is not None and place in drop.places:
                    self._verdicts.cancel(place, drop.why)
                elif self._verdicts.stopping:
                    self._verdicts.cancel(place, "")
                else:
                    rest.append(place)
        if rest == list(trials):
            self._held[flight.request] = trials
            lease.queue.append(flight.request)
        else:
            lease.unfinished.append(flight.request)
            self._ask([tuple(rest)])

    def _close_flight(self, flight: Flight) -> None:
        launch = flight.launch
        if len(launch.trials) > 1:
            self._closed.append(m.BatchOver(launch.id))
        del self._flights[launch.id]
        del self._devices[launch.worker.device].flights[launch.id]
        self._leases[launch.lease].flights.remove(launch.id)

    # workers that are gone

    def _on(self, worker: m.WorkerId) -> list[Flight]:
        device = self._devices.get(worker.device, DeviceAt())
        return [flight for flight in device.flights.values() if flight.launch.worker == worker]

    def _bury(self, worker: m.WorkerId, blame: Mapping[int, Blame], *, kill: bool, lost: str = "", sure: bool = False) -> None:
        """A worker is gone, or killed now. Launches without ``blame`` were bystanders, or had not begun.

        ``sure``: the latter is known. ``lost``: a lease that is not given back.
        """
        if kill:
            self._out.append(m.Kill(worker))
        self._devices[worker.device].generations[worker.slot] += 1
        beside: Blame = (
            Failure.infrastructure,
            error_of("WorkerStopped", "its worker was stopped because of another trial"),
            False,
        )
        flights = self._on(worker)
        for flight in flights:
            self._close_flight(flight)
            if flight.launch.id not in blame and not flight.begun:
                self._not_begun(flight, sure=sure)
                continue
            self._begin(flight)
            failure, error, charged = blame.get(flight.launch.id, beside)
            ends = [(name, *flight.ending.get(name, (failure, error)), {}) for name in flight.launch.trials]
            self._ask(self._verdicts.judge(flight, ends, charged=charged))
            self._leases[flight.launch.lease].unfinished.append(flight.request)
        for name in dict.fromkeys(flight.launch.lease for flight in flights):
            if name == lost:
                self._forget_queue(self._leases.pop(name))
            else:
                self._next_of(name, again=True)
