"""The state of a run as a pure machine: events in, actions out. It knows no Ray, no files, no clock; ``now`` is given, in seconds.

A trial waits in a request of the ledger, runs in a launch under a lease, and ends with one row. Launches of one worker share a process:
when it dies and several were in it, nobody is charged and each runs alone on its device from then on, so that the next death has one
suspect. A batch that crashes or runs out of memory is split in halves, until one trial is alone with it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..store.attempts import Failure
from . import messages as m
from .failures import Rules, counted, decide, halves, smaller
from .parts import Claims, DeviceAt, Flight, LeaseAt, TrialAt, Work, error_of

TOGETHER_S = 1.0
"""Workers of one device that die within so many seconds died of one cause."""


class State:
    """All trials of a run that are not over, and what is asked, leased and launched for them."""

    def __init__(
        self,
        work: Iterable[Work],
        rules: Rules,
        claims: Callable[[tuple[str, ...]], Claims],
        *,
        batches: Sequence[tuple[str, ...]] | None = None,
        before: Mapping[str, int] | None = None,
    ) -> None:
        """A run that has not begun.

        Args:
            work: trials to run, in order.
            rules: limits.
            claims: of a batch; equal batches should get the same object.
            batches: how trials run together; None: each alone.
            before: trials that ended earlier, by status.
        """
        self.rules, self.claims = rules, claims
        self.trials = {one.id: TrialAt(one.id, one.number, Counter(dict(one.charged)), alone=one.alone) for one in work}
        self.batches = [(name,) for name in self.trials] if batches is None else list(batches)
        self.counts: Counter[str] = Counter(dict(before or {}))
        self.stopping = ""
        self.paused = False
        self._deadline = float("inf")
        self._asked: dict[str, tuple[str, ...]] = {}
        self._held: dict[str, tuple[str, ...]] = {}  # requests under a lease
        self._leases: dict[str, LeaseAt] = {}
        self._flights: dict[int, Flight] = {}
        self._devices: dict[str, DeviceAt] = {}
        self._open = len(self.trials)
        self._next = 1
        self._out: list[m.Action] = []
        self._now = 0.0

    # what others look at

    @property
    def finished(self) -> bool:
        """Whether every trial has its row and every lease was given back."""
        return not self._open and not self._leases

    @property
    def outcome(self) -> str:
        """The state of a finished run: done, failed, cancelled, interrupted."""
        if set(self.counts) - {"done"} or not self.counts:
            return self.stopping or ("failed" if self.counts else "done")
        return "done"

    @property
    def running(self) -> int:
        """Trials in launches."""
        return sum(len(flight.launch.trials) for flight in self._flights.values())

    @property
    def waiting(self) -> int:
        """Trials that are not over and not in a launch."""
        return self._open - self.running

    def next_deadline(self) -> float:
        """When ``Tick`` will have something to do at the latest, as far as is known now."""
        times = [self._deadline]
        for flight in self._flights.values():
            times.append(flight.kill_at)
            if flight.since is None:
                times.append(flight.sent + self.rules.start_s)
            elif self.rules.timeout_s is not None and not flight.ending:
                times.append(flight.since + self.rules.timeout_s)
        return min(times)

    def lease_of(self, launch: int) -> str:
        """The lease of a launch that is not over; empty for others."""
        return self._flights[launch].launch.lease if launch in self._flights else ""

    def alone(self, trials: Iterable[str]) -> bool:
        """Whether one of the trials runs with nothing beside it."""
        return any(self.trials[name].alone for name in trials)

    # events

    def start(self, now: float) -> list[m.Action]:
        """Ask for places for all batches."""
        self._now = now
        for trial in self.trials.values():
            trial.since = now
        self._ask(self.batches)
        return self._take()

    def handle(self, event: m.Event, now: float) -> list[m.Action]:
        """Take one event; what is to be done, in this order."""
        self._now = now
        match event:
            case m.Granted():
                self._granted(event)
            case m.LeaseLost():
                self._lease_lost(event)
            case m.Refused():
                self._refused(event)
            case m.Started():
                if event.launch in self._flights and self._flights[event.launch].since is None:
                    self._flights[event.launch].since = now
            case m.Ended():
                self._ended(event)
            case m.WorkerDown():
                self._worker_down(event)
            case m.Interrupted():
                self._interrupted()
            case m.Cancelled():
                self._cancelled(event)
            case m.Storage():
                self.paused = event.full
            case m.Yield():
                device = self._devices.get(event.device)
                if device is not None and not device.pending:
                    device.retiring |= {m.Worker(event.device, k, number) for k, number in device.generations.items()}
            case m.Tick():
                self._tick()
        self._give_up_when_too_many_failed()
        if not self.paused:
            for name in self._devices:
                self._dispatch(name)
        return self._take()

    def _take(self) -> list[m.Action]:
        out, self._out = self._out, []
        return out

    # requests and leases

    def _ask(self, batches: Iterable[tuple[str, ...]]) -> None:
        wanted = []
        for batch in batches:
            if not batch:
                continue
            first = self.trials[batch[0]]
            for name in batch:
                self.trials[name].asks += 1
            again = f".{first.asks}" if first.asks > 1 else ""
            name = batch[0] + (f"+{len(batch) - 1}" if len(batch) > 1 else "") + again
            claims = first.claims if len(batch) == 1 and first.claims is not None else self.claims(batch)
            self._asked[name] = batch
            wanted.append(m.Wanted(name, batch, claims, min(self.trials[one].since for one in batch)))
        if wanted:
            self._out.append(m.Ask(tuple(wanted)))

    def _granted(self, event: m.Granted) -> None:
        if event.lease in self._leases:
            return
        good = [name for name in event.requests if name in self._asked]
        if not good:
            self._out.append(m.GiveBack(event.lease, event.requests))
            return
        for name in good:
            self._held[name] = self._asked.pop(name)
        lease = LeaseAt(event, deque(good), [name for name in event.requests if name not in good])
        self._leases[event.lease] = lease
        self._devices.setdefault(event.device, DeviceAt()).pending.append(event.lease)

    def _lease_lost(self, event: m.LeaseLost) -> None:
        lease = self._leases.get(event.lease)
        if lease is None:
            return
        if lease.flight is not None:
            lost = self._flights[lease.flight]
            error = error_of("LeaseLost", event.why)
            self._bury(lost.launch.worker, {lost.launch.id: (Failure.infrastructure, error, True)}, kill=True, lost=event.lease)
        else:
            self._forget_queue(lease)
            self._devices[lease.grant.device].pending.remove(event.lease)
            del self._leases[event.lease]

    def _refused(self, event: m.Refused) -> None:
        for name, why in event.why.items():
            for trial in self._asked.pop(name, ()):
                error = error_of("OutOfMemory", why)
                self._end(trial, {"status": "failed", "failure": Failure.out_of_memory, "error": error})

    def _forget_queue(self, lease: LeaseAt) -> list[str]:
        """Take the waiting requests of a lease out of it and ask for them again; their names."""
        names = list(lease.queue)
        lease.queue.clear()
        self._ask([self._held.pop(name) for name in names])
        return names

    def _close_lease(self, name: str, *, again: bool) -> None:
        """A launch of a lease is over: go on with its next request, unless ``again`` asks for those anew."""
        lease = self._leases[name]
        lease.flight = None
        if again:
            lease.unfinished += self._forget_queue(lease)
        if lease.queue:
            self._devices[lease.grant.device].pending.appendleft(name)
        else:
            del self._leases[name]
            self._out.append(m.GiveBack(name, tuple(lease.unfinished)))

    # launches

    def _dispatch(self, name: str) -> None:
        device = self._devices[name]
        for worker in list(device.retiring):
            if not self._on(worker):
                device.retiring.remove(worker)
                if device.generations[worker.slot] == worker.generation:
                    self._bury(worker, {}, kill=True)
        while device.pending and not device.retiring:
            lease = self._leases[device.pending[0]]
            beside = [trial for flight in device.flights.values() for trial in flight.launch.trials]
            if device.flights and self.alone((*self._held[lease.queue[0]], *beside)):
                return
            device.pending.popleft()
            self._launch(device, lease)

    def _launch(self, device: DeviceAt, lease: LeaseAt) -> None:
        request = lease.queue.popleft()
        trials = self._held.pop(request)
        grant, busy = lease.grant, {flight.launch.worker.slot for flight in device.flights.values()}
        slot = next(k for k in range(len(busy) + 1) if k not in busy) if grant.processes else 0
        for name in trials:
            self.trials[name].number += 1
        device.generations[slot] += 0  # known from now on
        worker = m.Worker(grant.device, slot, device.generations[slot])
        numbers = tuple(self.trials[name].number for name in trials)
        launch = m.Launch(self._next, worker, trials, numbers, grant.bytes, grant.time, grant.lease)
        self._next += 1
        flight = Flight(launch, request, self._now)
        self._flights[launch.id] = device.flights[launch.id] = flight
        lease.flight = launch.id
        place = {"device": grant.device, "bytes": grant.bytes, "time": grant.time, "slot": slot}
        self._out += [m.WriteStarted(name, number, place) for name, number in zip(trials, numbers, strict=True)]
        self._out.append(launch)

    def _ended(self, event: m.Ended) -> None:
        flight = self._flights.get(event.launch)
        if flight is None:
            return
        lease = flight.launch.lease
        self._close_flight(flight)
        failed: list[tuple[str, Failure, m.Error, m.Record]] = []
        for name in flight.launch.trials:
            end = event.ends.get(name)
            if end is not None and end.failure is None:
                self._end(name, dict(end.record))
                continue
            record = {} if end is None else end.record
            failure = Failure.infrastructure if end is None or end.failure is None else end.failure
            error = record.get("error") or error_of("NoResult", "the worker gave no result for this trial")
            failed.append((name, *flight.ending.get(name, (failure, error)), record))
        self._failed(flight, failed)
        self._close_lease(lease, again=False)
        if event.restart:
            self._bury(flight.launch.worker, {}, kill=True)
        elif event.retire:
            self._devices[flight.launch.worker.device].retiring.add(flight.launch.worker)

    def _close_flight(self, flight: Flight) -> None:
        del self._flights[flight.launch.id]
        del self._devices[flight.launch.worker.device].flights[flight.launch.id]

    def _worker_down(self, event: m.WorkerDown) -> None:
        flights = self._on(event.worker)
        if self._devices.get(event.worker.device, DeviceAt()).generations[event.worker.slot] != event.worker.generation:
            return  # it was buried already
        crash = event.failure is Failure.crash
        charged = not crash or len(flights) == 1
        if crash and flights:
            trials = tuple(trial for flight in flights for trial in flight.launch.trials)
            if not charged or self._died_together(event.worker.device, flights[0]):
                charged = False
                self._set_alone(trials)
            elif not self._leases[flights[0].launch.lease].grant.processes:
                self._set_alone(trials)
        self._bury(event.worker, {flight.launch.id: (event.failure, event.error, charged) for flight in flights}, kill=False)

    def _set_alone(self, trials: Iterable[str]) -> None:
        for name in trials:
            self.trials[name].alone = True

    def _died_together(self, name: str, flight: Flight) -> bool:
        """Whether another worker of the device died a moment ago, while this one ran: then that one is not charged either."""
        device, launch = self._devices[name], flight.launch
        when, before, charged = device.crashed
        together = self._now - when <= TOGETHER_S and launch.id < before and not self.alone(launch.trials)
        own = tuple(zip(launch.trials, launch.numbers)) if len(launch.trials) == 1 and not together else ()
        device.crashed = (self._now, self._next, own)
        if not together:
            return False
        for one, number in charged:
            other = self.trials[one]
            if not other.ended:
                other.charged[Failure.crash] -= 1
                other.alone = True
                self._out.append(m.WritePardon(one, number))
        return True

    def _on(self, worker: m.Worker) -> list[Flight]:
        device = self._devices.get(worker.device, DeviceAt())
        return [flight for flight in device.flights.values() if flight.launch.worker == worker]

    def _bury(
        self, worker: m.Worker, blame: Mapping[int, tuple[Failure, m.Error, bool]], *, kill: bool, lost: str = ""
    ) -> None:
        """A worker is gone, or killed now. Launches without ``blame`` were bystanders. ``lost``: a lease that is not given back."""
        if kill:
            self._out.append(m.Kill(worker))
        self._devices[worker.device].generations[worker.slot] += 1
        beside = (Failure.infrastructure, error_of("WorkerStopped", "its worker was stopped because of another trial"), False)
        for flight in self._on(worker):
            failure, error, charged = blame.get(flight.launch.id, beside)
            ends: list[tuple[str, Failure, m.Error, m.Record]] = [
                (name, *flight.ending.get(name, (failure, error)), {}) for name in flight.launch.trials
            ]
            self._close_flight(flight)
            self._failed(flight, ends, charged=charged)
            if flight.launch.lease == lost:
                self._forget_queue(self._leases.pop(lost))
            else:
                self._leases[flight.launch.lease].unfinished.append(flight.request)
                self._close_lease(flight.launch.lease, again=True)

    # ends of trials

    def _failed(self, flight: Flight, ends: Sequence[tuple[str, Failure, m.Error, m.Record]], *, charged: bool = True) -> None:
        """Judge the failed trials of a launch, and ask again for those that get another try."""
        together = len(flight.launch.trials) > 1
        again: dict[Failure, list[str]] = {}
        for name, failure, error, record in ends:
            split = together and failure in (Failure.crash, Failure.out_of_memory)
            if self._again(name, failure, error, record, charged=charged and not split, held=flight.launch.bytes):
                again.setdefault(failure, []).append(name)
        for failure, names in again.items():
            batch = tuple(names)
            split = together and failure in (Failure.crash, Failure.out_of_memory)
            self._ask(halves(batch) if split else [batch])

    def _again(self, name: str, failure: Failure, error: m.Error, record: m.Record, *, charged: bool, held: int) -> bool:
        """Whether a trial is tried again after a failure; else it has ended."""
        trial = self.trials[name]
        known = failure in (Failure.infrastructure, Failure.out_of_memory, Failure.crash)
        charged |= not known
        trial.charged[failure] += charged
        decision = decide(failure, trial.charged, self.rules) if charged else None
        status = decision.status if decision is not None else None
        if status is None and self.stopping:
            status, error = "cancelled", {**error, "message": f"{error.get('message', '')}; the run was {self.stopping}"}
        elif status is not None and known:
            error = counted(error, trial.number)
        if status is not None:
            failure = Failure.cancelled if status == "cancelled" else failure
            self._end(name, {**record, "status": status, "failure": failure, "error": dict(error)})
            return False
        if decision is not None:
            trial.alone |= (
                decision.alone and failure is not Failure.crash
            )  # a crash: where workers are shared, see _worker_down
            if decision.step:
                trial.claims = smaller(trial.claims or self.claims((name,)), held)
        self._out.append(m.WriteRetry(name, trial.number, failure, error, charged))
        return True

    def _end(self, name: str, record: m.Record) -> None:
        trial = self.trials[name]
        assert not trial.ended, name
        trial.ended = True
        self._open -= 1
        self.counts[str(record["status"])] += 1
        self._out.append(m.WriteEnded(name, trial.number, record))

    # stopping

    def _give_up_when_too_many_failed(self) -> None:
        failed = self.counts["failed"] + self.counts["poisoned"]
        if self.rules.allowed is not None and failed > self.rules.allowed and not self.stopping and self._open:
            why = f"{failed} trials failed, limits.max_failed allows {self.rules.allowed}: no more are started"
            self._stop("failed", self.rules.finish_s, why)

    def _interrupted(self) -> None:
        if not self.stopping:
            self._stop("interrupted", self.rules.finish_s, "interrupted: no more trials are started")
        else:
            self._deadline = self._now
            self._stop_flights(f"the run was {self.stopping}", 0.0)

    def _cancelled(self, event: m.Cancelled) -> None:
        if event.trials is None:
            if not self.stopping:
                self._stop("cancelled", 0.0, "cancelled: no more trials are started")
            self._deadline = self._now
            self._stop_flights(f"the run was {self.stopping}", self.rules.grace_s)
            return
        wanted = {name for name in event.trials if name in self.trials and not self.trials[name].ended}
        for flight in list(self._flights.values()):
            self._stop_flight(flight, wanted, "the trial was cancelled", self.rules.grace_s, Failure.cancelled)
        flying = {name for flight in self._flights.values() for name in flight.launch.trials}
        self._drop_waiting(wanted - flying, "the trial was cancelled")

    def _stop(self, state: str, finish_s: float, why: str) -> None:
        self.stopping, self._deadline = state, self._now + finish_s
        flying = {name for flight in self._flights.values() for name in flight.launch.trials}
        waiting = {name for name, trial in self.trials.items() if not trial.ended} - flying
        self._out.append(m.Stopping(state, len(flying), why))
        self._drop_waiting(waiting, "")

    def _drop_waiting(self, names: set[str], why: str) -> None:
        """End trials that wait. Requests that carry others as well are asked for anew without them."""
        hit = lambda batch: any(name in names for name in batch)  # noqa: E731
        gone = [request for request, batch in self._asked.items() if hit(batch)]
        rest = [self._asked.pop(request) for request in gone]
        if gone:
            self._out.append(m.Withdraw(tuple(gone)))
        for name, lease in list(self._leases.items()):
            dropped = [request for request in lease.queue if hit(self._held[request])]
            lease.unfinished += dropped
            rest += [self._held.pop(request) for request in dropped]
            lease.queue = deque(request for request in lease.queue if request not in dropped)
            if dropped and not lease.queue and lease.flight is None:
                self._devices[lease.grant.device].pending.remove(name)
                self._close_lease(name, again=False)
        for name in [name for name in self.trials if name in names]:
            error = {"error": error_of("Stopped", why)} if why else {}
            self._end(name, {"status": "cancelled", "failure": Failure.cancelled, **error})
        self._ask([tuple(name for name in batch if name not in names) for batch in rest])

    def _stop_flights(self, why: str, grace_s: float) -> None:
        for flight in list(self._flights.values()):
            self._stop_flight(flight, set(flight.launch.trials), why, grace_s, Failure.cancelled)

    def _stop_flight(self, flight: Flight, names: set[str], why: str, grace_s: float, failure: Failure) -> None:
        """Ask a launch to end if all of its trials are to, and set when its worker is killed; an earlier time stands."""
        kind = "Timeout" if failure is Failure.timeout else "Stopped"
        for name in flight.launch.trials:
            if name in names:
                flight.ending.setdefault(name, (failure, error_of(kind, why)))
        if len(flight.ending) < len(flight.launch.trials):
            return
        if flight.kill_at == float("inf") and grace_s:
            self._out.append(m.AskToStop(flight.launch.id, flight.launch.worker, flight.launch.trials))
        flight.kill_at = min(flight.kill_at, self._now + grace_s)
        if flight.kill_at <= self._now and flight.launch.id in self._flights:
            self._bury(flight.launch.worker, {}, kill=True)

    def _tick(self) -> None:
        if self.stopping and self._now >= self._deadline:
            self._stop_flights(f"the run was {self.stopping}", self.rules.grace_s)
        limit = self.rules.timeout_s
        for flight in list(self._flights.values()):
            if flight.launch.id not in self._flights:
                continue
            if flight.kill_at <= self._now:
                self._bury(flight.launch.worker, {}, kill=True)
            elif flight.since is None and self._now - flight.sent >= self.rules.start_s:
                error = error_of("NotStarted", f"its worker did not start within {self.rules.start_s:g} s")
                blame = {flight.launch.id: (Failure.infrastructure, error, True)}
                self._bury(flight.launch.worker, blame, kill=True)
            elif limit is not None and flight.since is not None and self._now - flight.since >= limit:
                why = f"the trial ran longer than limits.trial_timeout, {limit:g} s"
                self._stop_flight(flight, set(flight.launch.trials), why, self.rules.grace_s, Failure.timeout)
