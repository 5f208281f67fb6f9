"""The loop of a run: feeds the state machine with what happens, and does what it asks for: ledger, workers, journal, board."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from ..clock import now as clock_now
from ..ledger.inventory import Found, pools_and_devices
from ..ledger.leases import CUT_SHORT, DONE, LEASE_S, LeaseEnd
from ..packing import Request, misfit
from ..ray_adapter.cluster import NoWorker
from ..store.files import StorageFull
from ..store.owner import check_owner
from ..value_columns import Places
from ..workers.spec import BatchSpec
from . import messages as m
from .event_writer import Book, Inside, Outside, with_best
from .memory_use import observed, steadier, used_of
from .state import SweepState
from .writer_threads import JournalWriter, StoreWatch, patience_s, patiently, storage_lost

WAIT_S = 0.25
ASLEEP_S = 10.0
"""After a step that took so long another process may have taken the run over: that is looked at before anything is started."""
LOOK_EVERY_S = 0.5
"""Seconds between checks for cancel requests, and between exchanges with the ledger without a reason."""
SNAPSHOT_EVERY_S = 5.0
OFTEN = (m.WriteEnded, m.WriteBegun)
"""The two most frequent actions, which are tested first."""


class Runner:
    """Runs a ``SweepState`` to its end."""

    def __init__(
        self, state: SweepState, inside: Inside, outside: Outside, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state, self.inside, self.outside, self.clock = state, inside, outside, clock
        self.ledger, self.workers = outside.ledger, outside.workers
        self.book = Book(inside, outside)
        self._events: list[m.Event] = []
        self._done: list[LeaseEnd] = []
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)  # of each launch, by lease
        self._found: dict[str, Found] = {}
        self._close: set[str] = set()
        self._asked = self._busy = self._late = self._others = False
        self._interrupts = 0
        self._looked = self._shown = float("-inf")
        self._paused_t = 0.0
        self._stepped = self.clock()
        self._cancelled = self._saving = frozenset[str]()
        self._sent: dict[int, tuple[Places, tuple[str, ...]]] = {}  # the trials of launches that are not over, and their ids
        self._observed: dict[str, tuple[int, int]] = {}

    def run(self) -> str:
        """Run until every trial has its row; the state of the run: done, failed, cancelled or interrupted.

        Raises:
            OwnerLost: another process has taken the run over. All workers are ended.
        """
        board = self.outside.board
        board.phase = "running"
        self._writer = JournalWriter(self.outside.journal, partial(with_best, self.inside, self.outside.journal))
        self._watch = StoreWatch(self.outside.folder, self.outside.journal.owner, LOOK_EVERY_S)
        try:
            board.slots = sum(row.lanes for row in self._devices().values() if row.usable)
            self._do(self.state.start(self.clock(), clock_now()))
            while not self.state.finished:
                self._step()
            self._exchange()
            self._writer.put(self.book.events())
        finally:
            self._watch.close()
            self.workers.close()
            self.ledger.close()
            self._drain()
        self._written()
        self.book.show()
        board.phase = self.state.stopping or "finished"
        board.tick(now=True)
        return self.state.outcome

    def _step(self) -> None:
        now = self._awake()
        while self._interrupts < self.outside.interrupts.count:
            self._interrupts += 1
            self._tell(m.Interrupted())
        late = now - self._looked >= LOOK_EVERY_S
        if late:
            self._looked = now
            self._look()
        if self._done or self._asked or late or self.ledger.source.changed:
            self._exchange()
        self._flush()
        wait_s = 0.0 if self._done or self._asked else min(WAIT_S, max(0.0, self.state.next_deadline() - self.clock()))
        events = [self._placed(event) for event in self.workers.poll(wait_s)]
        self._awake()
        for event in events:
            self._heard(event)
        self._tell(*events, m.Tick())
        if self._done or self._asked:  # before all is written down: devices wait for it
            self._exchange()
        self._note_times(events)
        self._flush()
        self.outside.board.tick()
        self.outside.screen.update()

    def _awake(self) -> float:
        """The time; after a gap, this process was stopped (Ctrl-Z) or its machine slept, and may own the run no more.

        Raises:
            OwnerLost: another process has taken the run over.
        """
        now, before = self.clock(), self._stepped
        self._stepped = now
        if now - before >= ASLEEP_S:
            check_owner(self.outside.folder, self.outside.journal.owner)
        return now

    def _look(self) -> None:
        """Periodic work: cancel requests, retries of a failed store, reasons for waiting."""
        requests = self._watch.requests
        if requests.whole and not self.state.stopping:
            self._tell(m.Cancelled())
        new = requests.trials - self._cancelled
        if new:
            self._cancelled |= new
            known = self.inside.trials.places
            self._tell(m.Cancelled(frozenset(known[name] for name in new if name in known)))
        if self.state.paused and self._watch.room and self._writer.settle(0.0) and self._writer.refusal is None:
            self.outside.screen.note("the store takes lines again: the run goes on")
            self._tell(m.Storage(full=False))
        seen = self.workers.look()
        self.outside.board.follow({trial: lane.seen() for one in seen.values() for trial, lane in one.running().items()})
        saving = frozenset(lane.trial for one in seen.values() for lane in one.lanes if lane.trial and lane.phase == "save")
        if saving != self._saving:
            self._saving = saving
            firsts = {names[0]: places[0] for places, names in self._sent.values()}
            self._tell(m.Saving(frozenset(firsts[name] for name in saving if name in firsts)))
        if self.clock() - self._shown >= SNAPSHOT_EVERY_S:
            self._shown = self.clock()
            found = {row.id: row for row in self.ledger.devices()}
            before, self._observed = self._observed, observed(found, seen)
            for pool, (free, ours) in steadier(before, self._observed).items():
                self.ledger.observe(pool, free, ours)
            self.book.snapshot(self.ledger.snapshot(), self.ledger.why(), used_of(found, seen), self._shown)

    def _pause(self, why: str, until: str) -> None:
        if not self.state.paused:
            self.outside.screen.note(f"no trials are started until {until}: {why}")
            self._paused_t = self.clock()
            self._tell(m.Storage(full=True))
        elif not self.state.running and self.clock() - self._paused_t >= patience_s():
            raise storage_lost(self.outside.folder.uri, why)

    def _flush(self) -> None:
        """Hand what has happened to the writer. Waits a moment until it is written, but not for a store that was late the last time."""
        self._writer.put(self.book.events())
        self._late = not self._writer.settle(0.0 if self._late else WAIT_S)
        self._written()

    def _written(self) -> None:
        """Handle reports of the writer: results too large for a line, a store that fails, the end of the run."""
        self._writer.check()
        for name in self._writer.spoiled():
            self.state.spoiled()
            self.outside.screen.note(f"{name}: its result cannot be written down, it has failed; `qdrun logs` says why")
        error = self._writer.refusal
        if error is not None:
            self._pause(str(error).splitlines()[0], error.until)
        elif self._writer.stalled:
            self._pause(f"{self._writer.waiting} lines of the journal wait for the store", "it has taken them")
        elif not self._late:
            self.book.show()

    def _drain(self) -> None:
        """Wait until all is written: the state of the run is written after everything else.

        Raises:
            StorageLost: the store has stalled, and the user has asked to end, or it has stalled for too long.
        """
        out = self.outside
        what = "lines of the journal wait for it"
        patiently(self._writer.close, what, out.folder.uri, out.interrupts, out.screen.note)

    def _exchange(self) -> None:
        done, self._done, self._asked = self._done, [], False
        answer = self.ledger.exchange(done)
        self._others = answer.others
        news: list[m.Event] = [*answer.leases, *answer.ended]
        for device in answer.close:
            self._close.add(device)
            news.append(m.Yield(device))
        self._tell(*news)
        for device in [name for name in self._close if not self.workers.alive(name)]:
            self._close.discard(device)
            self.ledger.closed(device)

    def _devices(self) -> dict[str, Found]:
        """All devices seen so far: lost nodes may come back, and others join during the run."""
        self._found |= {row.id: row for row in self.ledger.devices()}
        return self._found

    def _ask(self, wanted: tuple[Request, ...]) -> None:
        """Ask for places; what fits no device of those there have been is refused at once, with the arithmetic."""
        pools, devices = pools_and_devices(self._devices().values())
        requests, refused = [], {}
        known: dict[int, str | None] = {}
        for request in wanted:
            key = id(request.claims)
            if key not in known:
                found = misfit(request, pools, devices) if devices else None
                known[key] = found and f"{found}; the trial was not started"
            why = self.inside.too_large(request.trials[0]) or known[key]
            if why is None:
                requests.append(request)
            else:
                refused[request.id] = why
        if requests:
            self.ledger.ask(requests)
            self._asked = True
        if refused:
            self._tell(m.Refused(refused))

    def _go_on(self, action: m.GoOn) -> None:
        """Run another request under a lease; where others wait, for no longer than one lease may take."""
        if (self._others or action.others) and self.clock() - action.since > LEASE_S:
            return
        if self.ledger.withdraw([action.request]):
            self._tell(m.GoesOn(action.lease, action.request))

    def _placed(self, event: m.Event) -> m.Event:
        """News of a worker, which knows trials by their ids, with their places."""
        if not isinstance(event, m.LaunchEnded) or event.launch not in self._sent:
            return event
        places, names = self._sent.pop(event.launch)
        if not event.ends and all(rows.trials == names for rows in event.rows):
            return event._replace(rows=tuple(rows._replace(trials=places) for rows in event.rows))
        of = dict(zip(names, places, strict=True))
        rows = tuple(one._replace(trials=tuple(of[str(name)] for name in one.trials)) for one in event.rows)
        return event._replace(ends={of[str(name)]: end for name, end in event.ends.items()}, rows=rows)

    def _heard(self, event: m.Event) -> None:
        if isinstance(event, m.LaunchEnded) and (event.ends or event.rows):
            spent = sum([record.get("worker_seconds") or 0.0 for record in event.ends.values()])
            spent += sum([len(rows.trials) * (rows.shared.get("worker_seconds") or 0.0) for rows in event.rows])
            self._seconds[self.state.lease_of(event.launch)].append(spent)

    def _note_times(self, events: Sequence[m.Event]) -> None:
        """The result of a call without a waiter."""
        timing, now = self.outside.timing, clock_now()
        for event in events:
            if isinstance(event, m.LaunchEnded) and event.rows:
                timing.add(event.rows[0].shared, now, sum(len(rows.trials) for rows in event.rows))
            elif isinstance(event, m.LaunchEnded) and len(event.ends) == 1:
                for record in event.ends.values():
                    timing.add(record, now)
            elif isinstance(event, m.Started) and not timing.first_start_t:
                timing.first_start_t = now
                if self.inside.trials.names is not None:  # not before: workers that start need the cores
                    self.inside.trials.names.begin()

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
                case m.RunLaunches():
                    self.workers.launch(action.launches, self._batches(action.launches))
                case m.Drop():
                    self.workers.drop(action.worker, action.launches)
                case m.GiveBack():
                    # of a lease that was cut short nothing is learned of how long its trials take
                    each, reason = self._seconds.pop(action.lease, []), CUT_SHORT if action.unfinished else DONE
                    self._done.append(LeaseEnd(action.lease, reason, sum(each) / len(each) if each else None))
                case m.GoOn():
                    self._go_on(action)
                case m.Ask():
                    self._ask(action.requests)
                case m.Withdraw():
                    self.ledger.withdraw(action.requests)
                case m.AskToStop():
                    self.workers.ask_to_stop(action.worker, [self.inside.trials.ids[place] for place in action.trials])
                case m.Kill():
                    self.workers.kill(action.worker)
                case m.NoRoom():
                    self._watch.cramped()
                    self._pause(action.why.partition("\n")[0], StorageFull.until)
                case m.CannotStart():
                    self._cannot_start(action)
                case m.Avoid():
                    if self.ledger.avoid(action.device, action.seconds):
                        self.book.note(action)
                case _:
                    self.book.note(action)

    def _cannot_start(self, action: m.CannotStart) -> None:
        """End the run where no device is left on which workers may get ready.

        Raises:
            NoWorker: in the words of the worker that failed last.
        """
        if not self.inside.may_use() - action.devices:
            first, _, rest = action.error["message"].partition("\n")
            advice = "" if "  do: " in rest else f"\n  do: mend that, then `qdrun resume {self.outside.folder.uri}`"
            raise NoWorker("\n".join(filter(None, [f"no worker can run trials: {first}", rest])) + advice)

    def _batches(self, launches: Sequence[m.Launch]) -> tuple[BatchSpec, ...]:
        """The message to a worker with the launches of a lease."""
        inside, alone, out = self.inside, self.state.alone, []
        self._sent = {launch: sent for launch, sent in self._sent.items() if self.state.lease_of(launch)}
        for launch in launches:
            id, _, trials, numbers, size, _, lease, behind, may_fail, checked = launch
            names = inside.trials.ids_at(trials)
            self._sent[id] = trials, names
            strict = not alone(trials) and not inside.loose(trials[0])
            head = lease, names, numbers, inside.columns(trials), size or None, strict, inside.budget(launch)
            out.append(BatchSpec(*head, id, behind, may_fail, checked))
        return tuple(out)
