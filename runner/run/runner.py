"""The loop of a run: feeds the state machine with what happens, and does what it asks for: ledger, workers, journal, board."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from ..ledger.inventory import Found, pools_and_devices
from ..ledger.leases import CUT_SHORT, DONE, LeaseEnd
from ..packing import Request, misfit
from ..store.files import StorageFull
from ..store.owner import cancel_requests
from ..work.spec import BatchSpec, TrialSpec
from . import messages as m
from .book import Book, Inside, Outside
from .state import State
from .used import observed, steadier, used_of

WAIT_S = 0.25
LOOK_EVERY_S = 0.5
"""How often requests to cancel are looked for, the ledger is asked without a reason, and a full store is tried again."""
SNAPSHOT_EVERY_S = 5.0
OFTEN = (m.WriteEnded, m.WriteStarted)
"""Two actions for each trial: they are looked for first."""


class Runner:
    """Runs a ``State`` to its end."""

    def __init__(self, state: State, inside: Inside, outside: Outside, clock: Callable[[], float] = time.monotonic) -> None:
        self.state, self.inside, self.outside, self.clock = state, inside, outside, clock
        self.ledger, self.workers = outside.ledger, outside.workers
        self.book = Book(inside, outside)
        self._events: list[m.Event] = []
        self._done: list[LeaseEnd] = []
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._found: dict[str, Found] = {}
        self._close: set[str] = set()
        self._asked = self._busy = False
        self._interrupts = 0
        self._looked = self._shown = float("-inf")
        self._cancelled: frozenset[str] = frozenset()
        self._observed: dict[str, tuple[int, int]] = {}

    def run(self) -> str:
        """Run until every trial has its row; the state of the run: done, failed, cancelled or interrupted.

        Raises:
            OwnerLost: another process has taken the run over. All workers are ended.
        """
        board = self.outside.board
        board.phase = "running"
        try:
            board.slots = sum(row.lanes for row in self._devices().values() if row.usable)
            self._do(self.state.start(self.clock()))
            while not self.state.finished:
                self._step()
            self._exchange()
        finally:
            self.workers.close()
            self.ledger.close()
        self._flush()
        board.phase = self.state.stopping or "finished"
        board.tick(now=True)
        return self.state.outcome

    def _step(self) -> None:
        now = self.clock()
        while self._interrupts < self.outside.interrupts.count:
            self._interrupts += 1
            self._tell(m.Interrupted())
        late = now - self._looked >= LOOK_EVERY_S
        if late:
            self._looked = now
            self._look()
        if self._done or self._asked or late or self.ledger.refs():
            self._exchange()
        self._flush()
        wait_s = 0.0 if self._done or self._asked else min(WAIT_S, max(0.0, self.state.next_deadline() - self.clock()))
        events = self.workers.poll(wait_s, self.ledger.refs())
        for event in events:
            self._heard(event)
        self._tell(*events, m.Tick())
        if self._done or self._asked:  # before all is written down: devices wait for it
            self._exchange()
        self._flush()
        self.outside.board.tick()
        self.outside.screen.update()

    def _look(self) -> None:
        """What is looked at now and then: requests to cancel, a full store, why trials wait."""
        requests = cancel_requests(self.outside.folder, self.outside.journal.owner)
        if requests.whole and not self.state.stopping:
            self._tell(m.Cancelled())
        new = requests.trials - self._cancelled
        if new:
            self._cancelled |= new
            self._tell(m.Cancelled(new))
        if self.outside.journal.retry() and self.state.paused:
            self.outside.screen.note("there is room in the store again: the run goes on")
            self._tell(m.Storage(full=False))
        seen = self.workers.look()
        if self.clock() - self._shown >= SNAPSHOT_EVERY_S:
            self._shown = self.clock()
            found = {row.id: row for row in self.ledger.devices()}
            before, self._observed = self._observed, observed(found, seen)
            for pool, (free, ours) in steadier(before, self._observed).items():
                self.ledger.observe(pool, free, ours)
            self.book.snapshot(self.ledger.snapshot(), self.ledger.why(), used_of(found, seen))

    def _flush(self) -> None:
        """Write what has happened: one write for all of it."""
        try:
            self.book.flush()
        except StorageFull as error:
            if not self.state.paused:
                self.outside.screen.note(f"no trials are started until there is room: {str(error).splitlines()[0]}")
                self._tell(m.Storage(full=True))

    def _exchange(self) -> None:
        done, self._done, self._asked = self._done, [], False
        answer = self.ledger.exchange(done)
        news: list[m.Event] = []
        for lease in answer.leases:
            point = lease.point
            here, follows = self._is_host(lease.device), lease.follows
            news.append(m.Granted(lease.id, lease.device, lease.requests, point.bytes, point.time, here, follows))
        news += [m.LeaseLost(end.lease, end.reason) for end in answer.ended]
        news += [m.Unwanted(lease) for lease in answer.unwanted]
        for device in answer.close:
            self._close.add(device)
            news.append(m.Yield(device))
        self._tell(*news)
        for device in [name for name in self._close if not self.workers.alive(name)]:
            self._close.discard(device)
            self.ledger.closed(device)

    def _devices(self) -> dict[str, Found]:
        """All devices that there have been: nodes that are gone may come back, and others join while the run goes on."""
        self._found |= {row.id: row for row in self.ledger.devices()}
        return self._found

    def _is_host(self, device: str) -> bool:
        """Whether each lane of a device is a process of its own."""
        row = self._found.get(device) or self._devices().get(device)
        return row.backend == "cpu" if row is not None else all(known.backend == "cpu" for known in self._found.values())

    def _ask(self, wanted: tuple[m.Wanted, ...]) -> None:
        """Ask for places; what fits no device of those there have been is refused at once, with the arithmetic."""
        pools, devices = pools_and_devices(self._devices().values())
        now, clock = time.time(), self.clock()
        requests, refused = [], {}
        known: dict[int, str | None] = {}
        for one in wanted:
            request = Request(one.id, self.ledger.run, self.ledger.run, one.claims, now - (clock - one.since), len(one.trials))
            key = id(one.claims)
            if key not in known:
                found = misfit(request, pools, devices) if devices else None  # none: the ledger cannot be reached now
                known[key] = found and f"{found}; the trial was not started"
            why = next((self.inside.too_large[name] for name in one.trials if name in self.inside.too_large), known[key])
            if why is None:
                requests.append(request)
            else:
                refused[one.id] = why
        if requests:
            self.ledger.ask(requests)
            self._asked = True
        if refused:
            self._tell(m.Refused(refused))

    def _heard(self, event: m.Event) -> None:
        if isinstance(event, m.Ended):
            lease = self.state.lease_of(event.launch)
            for end in event.ends.values():
                self.outside.timing.add(end.record)
                self._seconds[lease] += end.record.get("worker_seconds") or 0.0
        elif isinstance(event, m.Started):
            self.outside.timing.first_start_t = self.outside.timing.first_start_t or time.time()

    def _tell(self, *events: m.Event) -> None:
        """Tell the state; what an action makes happen comes after the other actions of its event."""
        self._events += events
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                now, self._events = self._events, []
                self._do(self.state.handle_all(now, self.clock()))
        finally:
            self._busy = False

    def _do(self, actions: list[m.Action]) -> None:
        for action in actions:
            if isinstance(action, OFTEN):
                self.book.note(action)
                continue
            match action:
                case m.Run():
                    self.workers.launch(action.launches, tuple(self._batch(launch) for launch in action.launches))
                case m.Drop():
                    self.workers.drop(action.worker, action.launches)
                case m.GiveBack():
                    # of a lease that was cut short nothing is learned of how long its trials take
                    seconds, reason = self._seconds.pop(action.lease, None), CUT_SHORT if action.unfinished else DONE
                    self._done.append(LeaseEnd(action.lease, reason, seconds, action.kept))
                case m.LetGo():
                    self.workers.let_go(action.worker, action.program)
                case m.Ask():
                    self._ask(action.wanted)
                case m.Withdraw():
                    self.ledger.withdraw(action.requests)
                case m.AskToStop():
                    self.workers.ask_to_stop(action.worker, action.trials)
                case m.Kill():
                    self.workers.kill(action.worker)
                case _:
                    self.book.note(action)

    def _batch(self, launch: m.Launch) -> BatchSpec:
        specs = [
            TrialSpec(name, number, self.inside.spec(self.inside.trials[name]))
            for name, number in zip(launch.trials, launch.numbers, strict=True)
        ]
        claim = launch.bytes // len(specs) or None
        strict = not self.state.alone(launch.trials) and self.inside.loose.isdisjoint(launch.trials)
        budget = self.inside.budget(launch)
        keep, follows, may_fail = launch.keep, launch.follows, launch.may_fail
        return BatchSpec(launch.lease, tuple(specs), claim, strict, budget, launch.id, keep, follows, may_fail)
