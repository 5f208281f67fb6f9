"""The state machine of a run: events in, actions out. Pure, without Ray, files or a clock; ``now`` is an argument, in seconds.

A trial waits in a request of the ledger, runs in a launch under a lease, and ends with one row. A lease of several requests goes to its
worker as a whole, as launches that run one after the other. Only the first has begun then; the worker reports the begin of the others, and
one that has not begun when its worker is lost, or when it is told not to, was never an attempt. Launches of one worker share a process:
when it dies and several ran in it, none is charged and each runs alone on its device from then on, so that the next death has one suspect.
A batch that crashes, runs out of memory, or takes longer than one trial may, is split in halves, until one trial is alone with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from ..ledger.leases import Lease, LeaseEnd
from ..store.attempts import PREEMPTED, Failure
from . import messages as m
from .assignments import Flights
from .parts import NO_ROOM, STORE_AWAY, Blame, DeviceAt, DroppedLaunch, Flight, LeaseAt, error_of, failure_of, suspects

TOGETHER_S = 1.0
"""Workers of one device that die within so many seconds died of one cause."""
LOSSES, REST_S, MOST_REST_S = 3, 30.0, 600.0
"""A device that is of no use so often in a row is avoided for some time, twice as long each time: it would take one trial after the other,
as it is always free, and use up their retries.
"""

UNREADY = {m.Unready.said: 2, m.Unready.died: 5}
"""So many workers in a row that could not run trials end a run of which nothing runs: what they say themselves would be said again."""
MOST_HELD_S = 60.0
"""From one of them to the next of its device it takes 1, 2, 4, .. seconds, and at most so many."""


class SweepState(Flights):
    """All unfinished trials of a run, with their requests, leases and launches."""

    # what others look at

    @property
    def finished(self) -> bool:
        """Whether every trial has its row and every lease was given back."""
        return not self._verdicts.open and not self._leases

    @property
    def stopping(self) -> str:
        """The state of the run once no more trials are started; empty until then."""
        return self._verdicts.stopping

    def spoiled(self) -> None:
        """The record of a trial that was done can be written to no file: it has failed."""
        self.counts["done"] -= 1
        self.counts["failed"] += 1

    @property
    def outcome(self) -> str:
        """The state of a finished run: done, failed, cancelled, interrupted."""
        if set(self.counts) - {"done"} or not self.counts:
            return self.stopping or ("failed" if self.counts else "done")
        return "done"

    @property
    def running(self) -> int:
        """Trials that have begun and are not over."""
        return sum(len(flight.launch.trials) for flight in self._flights.values() if flight.begun)

    @property
    def waiting(self) -> int:
        """Trials that are not over and have not begun."""
        return self._verdicts.open - self.running

    def next_deadline(self) -> float:
        """When ``Tick`` will have something to do at the latest, as far as is known now."""
        times = [self._deadline] if self._deadline > self._now else []
        for flight in self._heads():
            times.append(flight.kill_at)
            if flight.since is None:
                times.append(flight.sent + self.rules.start_s)
            elif self.rules.timeout_s is not None and not flight.ending and not self._writes(flight):
                times.append(flight.since + self.rules.timeout_s)
        return min(times, default=float("inf"))

    def lease_of(self, launch: int) -> str:
        """The lease of a launch that is not over; empty for others."""
        return self._flights[launch].launch.lease if launch in self._flights else ""

    # events

    def start(self, now: float, submitted: float = 0.0) -> list[m.Action]:
        """Ask for places for all batches. ``submitted``: the time now, by the clock of the ledger."""
        self._now, self._submitted = now, submitted
        self._ask(self.batches)
        return self._take()

    def handle(self, event: m.Event, now: float) -> list[m.Action]:
        """Process one event. Returns the actions in order."""
        return self.handle_all((event,), now)

    def handle_all(self, events: Iterable[m.Event], now: float) -> list[m.Action]:
        """Process events that have arrived together. Returns the actions in order."""
        self._now = now
        for event in events:
            self._apply(event)
            why = self._verdicts.too_many()
            if why:
                self._stop("failed", self.rules.finish_s, why)
        if not self.paused:
            for name in self._devices:
                self._dispatch(name)
        return self._take()

    def _apply(self, event: m.Event) -> None:
        match event:
            case m.LaunchEnded():
                self._ended(event)
            case m.Started():
                self._started(event)
            case Lease():
                self._granted(event)
            case m.GoesOn():
                self._goes_on(event)
            case LeaseEnd():
                self._lease_lost(event)
            case m.Refused():
                self._refused(event)
            case m.WorkerDown():
                self._worker_down(event)
            case m.NotReady():
                self._not_ready(event)
            case m.Saving():
                self._saves(event.trials)
            case m.Interrupted():
                self._interrupted()
            case m.Cancelled():
                self._cancelled(event)
            case m.Storage():
                self._storage(event.full)
            case m.Yield():
                device = self._devices.get(event.device)
                if device is not None and not device.pending:
                    device.retiring |= {m.WorkerId(event.device, k, number) for k, number in device.generations.items()}
            case m.Tick():
                self._tick()

    def _take(self) -> list[m.Action]:
        out = self._out + self._closed
        self._out.clear()  # the list is also that of the verdicts
        self._closed.clear()
        return out

    # leases and launches

    def _granted(self, event: Lease) -> None:
        if event.id in self._leases:
            return
        good = [name for name in event.requests if name in self._asked]
        self._held |= {name: batch for name in good if (batch := self._asked.pop(name))}
        unfinished = [name for name in event.requests if name not in good]
        self._leases[event.id] = LeaseAt(event, deque(good), unfinished, since=self._now)
        if good:
            self._devices.setdefault(event.device, DeviceAt()).pending.append(event.id)
        else:
            self._end_lease(event.id)

    def _lease_lost(self, event: LeaseEnd) -> None:
        lease = self._leases.get(event.lease)
        if lease is None:
            return
        if lease.flights:
            head = self._flights[lease.flights[0]]
            blame: Blame = (Failure.infrastructure, error_of("LeaseLost", event.reason), head.since is not None)
            self._bury(head.launch.worker, {head.launch.id: blame} if head.begun else {}, kill=True, lost=event.lease)
        else:
            self._forget_queue(lease)
            self._devices[lease.grant.device].pending.remove(event.lease)
            del self._leases[event.lease]

    def _refused(self, event: m.Refused) -> None:
        for name, why in event.why.items():
            for place in self._asked.pop(name) or ():
                error = error_of("OutOfMemory", why)
                self._verdicts.end(place, {"status": "failed", "failure": Failure.out_of_memory, "error": error})

    def _started(self, event: m.Started) -> None:
        flight = self._flights.get(event.launch)
        if flight is None or flight.since is not None:
            return
        flight.since = self._now - event.ago_s
        self._unready.clear()
        self._devices[flight.launch.worker.device].unready = 0
        self._begin(flight)
        drop, flight.drop = flight.drop, None
        if drop is not None and drop.grace_s is not None:
            self._stop_flight(flight, drop.places, drop.why, drop.grace_s, drop.failure)

    def _ended(self, event: m.LaunchEnded) -> None:
        flight = self._flights.get(event.launch)
        if flight is None:
            return
        lease = flight.launch.lease
        crashes = {place: record for place, record in event.ends.items() if failure_of(record) is Failure.crash}
        charged = not crashes or self._one_suspect(
            [other for other in self._on(flight.launch.worker) if other is flight or other.since is not None]
        )
        self.trials.signal |= {place: one["error"]["message"].partition("\n")[0] for place, one in crashes.items()}
        self._close_flight(flight)
        if event.begun:
            if not crashes:
                self._judge_device(flight, event)
            self._over(flight, event.ends, event.rows, charged=charged)
        else:
            self._not_begun(flight, sure=True)
        self._next_of(lease)
        if event.restart or flight.launch.checked:
            self._bury(flight.launch.worker, {}, kill=True)
        elif event.retire:
            retiring = self._devices[flight.launch.worker.device].retiring
            if flight.launch.worker not in retiring:
                self._out.append(m.WriteRetired(flight.launch.worker, event.retire))
            retiring.add(flight.launch.worker)

    # workers that are gone

    def _not_ready(self, event: m.NotReady, *, kill: bool = False) -> None:
        worker, why = event.worker, event.why
        device = self._devices.get(worker.device, DeviceAt())
        if device.generations[worker.slot] != worker.generation:
            return  # it was buried already
        when, slot = device.lost
        alone = self._now - when > TOGETHER_S or worker.slot == slot  # else one cause has taken both
        if alone:
            device.unready += 1
            device.held_until = self._now + min(MOST_HELD_S, 0.5 * 2.0**device.unready)
            self._useless(worker, event.error)
        blame: Blame = (Failure.infrastructure, event.error, False)
        self._bury(worker, {one.launch.id: blame for one in self._on(worker) if one.begun}, kill=kill, sure=True)
        if event.error["type"] in STORE_AWAY:
            self._out.append(m.NoRoom(event.error["message"]))
            why = m.Unready.died
        if why is m.Unready.lost or not alone:
            return
        self._unready[worker.device] += 1
        if self._unready.total() >= UNREADY[why] and all(one.since is None for one in self._flights.values()):
            self._out.append(m.CannotStart(frozenset(self._unready), event.error))

    def _worker_down(self, event: m.WorkerDown) -> None:
        worker = event.worker
        if self._devices.get(worker.device, DeviceAt()).generations[worker.slot] != worker.generation:
            return  # it was buried already
        lost, guilty = suspects(self._on(worker), event.begun, crash=event.failure is Failure.crash)
        failure, charged = event.failure, True
        if failure is Failure.infrastructure:
            when, slot = self._devices[worker.device].lost
            if self._now - when > TOGETHER_S or worker.slot == slot:  # else its node, or whatever it was, has taken both
                self._useless(worker, event.error)
        if not guilty and event.begun is not None:
            # between launches: launches that have run are charged, so that the retries end
            failure = Failure.infrastructure
            guilty = [flight for flight in self._heads() if flight.begun and flight.launch.worker == worker]
        elif guilty and failure is Failure.crash:
            charged = self._one_suspect(guilty)
        unheard = error_of("ResultLost", "its worker died before it had told the result")
        blame: dict[int, Blame] = {flight.launch.id: (Failure.infrastructure, unheard, False) for flight in lost}
        blame |= {flight.launch.id: (failure, event.error, charged) for flight in guilty}
        for flight in guilty:
            self.trials.signal |= dict.fromkeys(flight.launch.trials, event.signal if failure is Failure.crash else "")
        self._bury(worker, blame, kill=False, sure=event.begun is not None)

    def _one_suspect(self, guilty: Sequence[Flight]) -> bool:
        """Whether one launch is to blame for a crash of its worker. If not, or if workers are shared, its trials run alone from now on."""
        one = len(guilty) == 1 and not self._died_together(guilty[0].launch.worker.device, guilty[0])
        if not one or not self._leases[guilty[0].launch.lease].grant.processes:
            self._verdicts.set_alone(trial for flight in guilty for trial in flight.launch.trials)
        return one

    def _judge_device(self, flight: Flight, event: m.LaunchEnded) -> None:
        """Whether a launch that has ended says something against its device: an attempt there was lost by no fault of its own."""
        worker = flight.launch.worker
        lost = None
        for record in event.ends.values():
            lost = record if failure_of(record) is Failure.infrastructure else lost
        if lost is not None or event.restart:
            error = error_of("DeviceLost", "its worker has lost the device")
            error = error if lost is None else lost.get("error") or error
            if error.get("type") not in (NO_ROOM, PREEMPTED):
                self._useless(worker, error)
        else:
            self._devices[worker.device].losses = 0

    def _useless(self, worker: m.WorkerId, error: m.Error) -> None:
        device = self._devices[worker.device]
        if self._now < device.rests_until:
            return
        device.lost, device.losses = (self._now, worker.slot), device.losses + 1
        if device.losses >= LOSSES:
            seconds = min(MOST_REST_S, REST_S * 2.0**device.rests)
            device.losses, device.rests, device.rests_until = 0, device.rests + 1, self._now + seconds
            self._out.append(m.Avoid(worker.device, seconds, error))

    def _died_together(self, name: str, flight: Flight) -> bool:
        """Whether another worker of the device died a moment ago, while this one ran: then that one is not charged either."""
        device, launch = self._devices[name], flight.launch
        when, before, charged = device.crashed
        together = self._now - when <= TOGETHER_S and launch.id < before and not self.alone(launch.trials)
        own = (
            tuple(zip(launch.trials, launch.numbers)) if len(launch.trials) == 1 and not together and not launch.checked else ()
        )
        device.crashed = (self._now, self._next, own)
        if together:
            self._verdicts.pardon(charged)
        return together

    # stopping

    def _interrupted(self) -> None:
        if not self.stopping:
            self._stop("interrupted", self.rules.finish_s, "interrupted: no more trials are started")
        else:  # a second time they are asked, so that they can say what they have found; a third time ends them
            asked, self._deadline = self._deadline <= self._now, min(self._deadline, self._now)
            self._stop_flights(f"the run was {self.stopping}", 0.0 if asked else self.rules.grace_s)

    def _cancelled(self, event: m.Cancelled) -> None:
        if event.trials is None:
            if not self.stopping:
                self._stop("cancelled", 0.0, "cancelled: no more trials are started")
            self._deadline = self._now
            self._stop_flights(f"the run was {self.stopping}", self.rules.grace_s)
            return
        wanted = set(self.trials.left(event.trials))
        for flight in list(self._flights.values()):
            self._stop_flight(flight, wanted, "the trial was cancelled", self.rules.grace_s, Failure.cancelled)
        flying = {place for flight in self._flights.values() for place in flight.launch.trials}
        self._drop_waiting(set(self.trials.left(wanted - flying)), "the trial was cancelled")

    def _stop(self, state: str, finish_s: float, why: str) -> None:
        self._verdicts.stopping, self._deadline = state, self._now + finish_s
        soft = {id: flight for id, flight in self._flights.items() if flight.drop is None or flight.drop.grace_s is None}
        self._drop({id: DroppedLaunch(frozenset(flight.launch.trials), "", None) for id, flight in soft.items()})
        flying = {place for flight in self._flights.values() for place in flight.launch.trials}
        waiting = set(self.trials.waiting()) - flying
        self._out.append(m.Stopping(state, self.running, why))
        self._drop_waiting(waiting, "")

    def _storage(self, full: bool) -> None:
        """Nothing begins while the store is full: what has not begun comes back, and places go back to the ledger."""
        if full and not self.paused:
            self.paused = True
            self._drop(
                {id: DroppedLaunch(frozenset(), "", None) for id, flight in self._flights.items() if flight.drop is None}
            )
            self._park()
        elif self.paused and not full:
            self.paused = False
            self._unpark()

    def _drop(self, drops: Mapping[int, DroppedLaunch]) -> None:
        """Tell workers not to begin with those launches that have not begun."""
        told: dict[m.WorkerId, list[int]] = {}
        for id, drop in drops.items():
            flight = self._flights[id]
            if not flight.begun:
                flight.drop = drop
                told.setdefault(flight.launch.worker, []).append(id)
        self._out += [m.Drop(worker, tuple(ids)) for worker, ids in told.items()]

    def _drop_waiting(self, places: set[int], why: str) -> None:
        """End trials that wait. Requests that carry others as well are asked for anew without them."""
        hit = lambda batch: not places.isdisjoint(batch)  # noqa: E731
        gone = [request for request in self._asked if hit(self._asked[request])]
        rest = [batch for request in gone if (batch := self._asked.pop(request))]
        if gone:
            self._out.append(m.Withdraw(tuple(gone)))
        for name, lease in list(self._leases.items()):
            dropped = [request for request in lease.queue if hit(self._held[request])]
            lease.unfinished += dropped
            rest += [self._held.pop(request) for request in dropped]
            lease.queue = deque(request for request in lease.queue if request not in dropped)
            if dropped and not lease.queue and not lease.flights:
                self._devices[lease.grant.device].pending.remove(name)
                self._next_of(name)
        for place in sorted(places):
            self._verdicts.cancel(place, why)
        self._ask([tuple(place for place in batch if place not in places) for batch in rest])

    def _stop_flights(self, why: str, grace_s: float) -> None:
        for flight in list(self._flights.values()):
            self._stop_flight(flight, set(flight.launch.trials), why, grace_s, Failure.cancelled)

    def _stop_flight(self, flight: Flight, places: Iterable[int], why: str, grace_s: float, failure: Failure) -> None:
        """Ask a launch to end if all of its trials are to, and set when its worker is killed; an earlier time stands."""
        launch = flight.launch
        hit = frozenset(launch.trials).intersection(places)
        if not hit or launch.id not in self._flights:
            return
        if not flight.begun:
            self._stop_before(flight, DroppedLaunch(hit, why, grace_s, failure))
            return
        kind = "Timeout" if failure is Failure.timeout else "Stopped"
        for place in hit:
            flight.ending.setdefault(place, (failure, error_of(kind, why)))
        if len(flight.ending) < len(launch.trials):
            return
        if flight.kill_at == float("inf") and grace_s:
            self._out.append(m.AskToStop(launch.id, launch.worker, launch.trials))
        flight.kill_at = min(flight.kill_at, self._now + grace_s)
        if flight.kill_at <= self._now:
            self._bury(launch.worker, {}, kill=True)

    def _stop_before(self, flight: Flight, drop: DroppedLaunch) -> None:
        """Tell a worker not to begin with a launch. Where nothing is waited for, and it has its turn already, the worker is killed."""
        old = flight.drop
        if old is None or old.grace_s is None or not drop.places <= old.places:
            places = drop.places | (frozenset() if old is None else old.places)
            self._drop({flight.launch.id: DroppedLaunch(places, drop.why, drop.grace_s, drop.failure)})
        if not drop.grace_s and self._leases[flight.launch.lease].flights[0] == flight.launch.id:
            self._bury(flight.launch.worker, {}, kill=True)

    def _saves(self, trials: frozenset[int]) -> None:
        """Time in which results are written is no time of their trials. One that was taken for too long meanwhile was not."""
        self._saving = trials
        for flight in self._heads():
            if self._writes(flight) and all(failure is Failure.timeout for failure, _ in flight.ending.values()):
                flight.ending.clear()
                flight.kill_at = float("inf")

    def _writes(self, flight: Flight) -> bool:
        return not self._saving.isdisjoint(flight.launch.trials)

    def _tick(self) -> None:
        if self.stopping and self._now >= self._deadline:
            self._stop_flights(f"the run was {self.stopping}", self.rules.grace_s)
        limit = self.rules.timeout_s
        for flight in self._heads():
            if flight.launch.id not in self._flights:
                continue
            if self.paused and flight.since is None:
                flight.sent = self._now  # a worker that starts reads the store, too: its time counts once that answers
            if flight.kill_at <= self._now:
                self._bury(flight.launch.worker, {}, kill=True)
            elif flight.since is None and self._now - flight.sent >= self.rules.start_s:
                error = error_of("NotStarted", f"its worker did not start within {self.rules.start_s:g} s")
                self._not_ready(m.NotReady(flight.launch.worker, error, m.Unready.died), kill=True)
            elif (
                limit is not None
                and flight.since is not None
                and not self._writes(flight)
                and self._now - flight.since >= limit
            ):
                why = f"the trial ran longer than limits.trial_timeout, {limit:g} s"
                self._stop_flight(flight, flight.launch.trials, why, self.rules.grace_s, Failure.timeout)
