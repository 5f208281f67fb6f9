"""A pretended ledger, pretended workers and a journal around the state machine of a run; chaos by a seeded generator.

A worker runs the launches of a call one after the other. What it says of them reaches the runner later, or never: ``began`` is what
really ran, the journal is what the runner says of it. Calls of one lease run one after the other, on its lane.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque, namedtuple
from dataclasses import dataclass, field

from qdrun.runner.engine import messages as m
from qdrun.runner.engine.failures import Rules
from qdrun.runner.engine.parts import Charges, TrialAt
from qdrun.runner.engine.state import SweepState
from qdrun.runner.ledger.leases import Lease, LeaseEnd
from qdrun.runner.packing import Claim, ClaimPoint
from qdrun.runner.store.attempts import Failure
from qdrun.runner.store.columns import BatchRows

CLAIM = {"gpu": Claim.of([(100, 1.0), (50, 2.0), (20, 4.0)])}
SIGNALS = ("bounds", "signal", "signal always")
"""A process dies by a signal; when indices are checked, it says why, ends well, or dies all the same."""
STRAYS = ("stray bounds", "stray", "stray always")
"""The same for a kernel that reads memory of a GPU which is not its own: the process loses the device, and says so."""
STRAY = "kernel `k` failed: it read or wrote memory that is not its own (CUDA_ERROR_ILLEGAL_ADDRESS)"
Began = namedtuple("Began", "trial number")
"""An attempt that was written down."""
MOODS = ("good", "good", "good", "user", "nan", "crash", "crash once", "oom", "needs 70", "hang", "infra once", "device lost")
MOODS += ("lost alone",)
"""The batch of such a trial raises as a whole; its trials then run one by one, up to this one, which loses the device."""


def granted(lease, device, requests, bytes_, processes=False):
    """A lease at a point of so many bytes, as the ledger gives it."""
    return Lease(lease, device, ClaimPoint(bytes_), tuple(requests), processes=processes)


@dataclass
class Call:
    """The launches of one call, in order. ``begun``: the first has; ``unheard``: what the runner has not heard of it yet.

    ``failed``: trials of it that did not end well.
    """

    worker: m.WorkerId
    lease: str
    order: deque
    begun: bool = False
    last: int = 0
    failed: int = 0
    unheard: list = field(default_factory=list)


class World:
    """What a run meets. ``moods``: how each trial behaves; ``journal`` outlives the runner."""

    def __init__(self, moods, rules, rng, *, batch=1, lanes=3, processes=False, most=3, told=True, checks=False):
        """``most``: requests of a lease; ``told``: what a worker that died had begun is known; ``checks``: see ``SweepState``."""
        self.checks, self.used = checks, set()
        self.moods = dict(enumerate(moods))
        self.rules, self.rng, self.batch, self.lanes, self.processes = rules, rng, batch, lanes, processes
        self.most, self.told, self.went_on = most, told, 0
        self.now, self.journal, self.kills, self.leases_made, self.owner = 0.0, [], 0, 0, 0
        self.stops, self.runs = [], []
        self.began, self.said = set(), defaultdict(set)
        self._device_of = defaultdict(str)
        self.state = None
        self.open()

    def open(self):
        """A runner starts, or another one takes over from one that was killed."""
        self.waiting, self.leases, self.flights, self.dead, self.asked_to_stop = {}, {}, {}, set(), set()
        self.calls, self.dropped, self.heads, self.batches = [], set(), set(), set()
        self.owner += 1
        ended = {e.trial: e.record["status"] for e in self.journal if isinstance(e, m.WriteEnded)}
        work = [self._work(name) for name in self.moods if name not in ended]
        names = [one.place for one in work]
        batches = [tuple(names[k : k + self.batch]) for k in range(0, len(names), self.batch)]
        before = Counter(ended.values())
        self.state = SweepState(work, self.rules, lambda batch: CLAIM, batches=batches, before=before, checks=self.checks)
        self.used.clear()
        self.act(self.state.start(self.now))

    def _work(self, name):
        own = [e for e in self.journal if getattr(e, "trial", None) == name]
        charged = Counter(e.failure for e in own if isinstance(e, m.WriteRetry) and e.charged)
        charged[Failure.crash] -= sum(isinstance(e, m.WritePardon) for e in own)
        alone = any(isinstance(e, m.WriteRetry) and e.failure is Failure.crash and not e.charged for e in own)
        return TrialAt(name, max((e.number for e in own), default=0), Charges(charged), alone)

    def tell(self, event):
        self.act(self.state.handle(event, self.now))

    def act(self, actions):
        for action in actions:
            if isinstance(action, m.RunLaunches):
                first = action.launches[0]
                self.heads |= {(name, number) for name, number in zip(first.trials, first.numbers)}
        later = []
        for action in actions:
            match action:
                case m.GoOn():
                    later.append(action)
                case m.Ask():
                    for wanted in action.requests:
                        assert wanted.id not in self.waiting
                        assert wanted.id not in {r for lease in self.leases.values() for r in lease}
                        self.waiting[wanted.id] = wanted
                case m.Withdraw():
                    for name in action.requests:
                        self.waiting.pop(name, None)
                case m.GiveBack():
                    del self.leases[action.lease]
                case m.RunLaunches():
                    self._run(action.launches)
                case m.Drop():
                    assert action.worker not in self.dead
                    self.dropped |= set(action.launches)
                case m.AskToStop():
                    # it may have ended, which the runner has not heard yet
                    assert action.worker not in self.dead
                    assert action.launch in {one.id for launches in self.runs for one in launches}
                    self.asked_to_stop.add(action.launch)
                case m.Kill():
                    self.kills += 1
                    self._die(action.worker)
                case m.Stopping():
                    self.stops.append(action)
                case m.WriteBegun():
                    if len(action.trials) > 1:
                        self.batches.add(action.launch)
                    for name, number in zip(action.trials, action.numbers, strict=True):
                        self._note(Began(name, number))
                case m.WriteRows():
                    assert action.launch in self.batches, "its batch has not begun, or is over"
                    for name, number in zip(action.rows.trials, action.rows.attempts, strict=True):
                        self._note(m.WriteEnded(name, number, action.rows.shared))
                case m.BatchOver():
                    self.batches.discard(action.launch)
                case m.WriteEnded() | m.WriteRetry() | m.WritePardon():
                    self._note(action)
        for action in later:
            if action.request in self.waiting and self.rng.random() < 0.8:  # else it was granted meanwhile, or others wait
                del self.waiting[action.request]
                self.went_on += 1
                self.tell(m.GoesOn(action.lease, action.request))

    def _note(self, action):
        """Attempts that are written down have begun, once, and end once; only such are charged."""
        self.journal.append(action)
        attempt = (action.trial, action.number)
        really = (self.owner, *attempt) in self.began
        said = self.said[self.owner, *attempt]
        match action:
            case Began():
                assert really or attempt in self.heads or not self.told, "it had not begun"
                assert not said
                said.add("started")
            case m.WriteRetry():
                assert really or action.failure is not Failure.crash or not action.charged or not self.told
                assert said == {"started"}
                said.add("over")
            case m.WriteEnded():
                waited = "cancelled", *(("poisoned",) if self.checks else ())
                assert said != {"started", "over"} or action.record["status"] in waited
                said.add("over")

    def _run(self, launches):
        worker = launches[0].worker
        assert worker not in self.dead
        assert {launch.worker for launch in launches} == {worker}
        assert {launch.lease for launch in launches} <= set(self.leases)
        before = [launch for launch in self.flights.values() if launch.lease == launches[0].lease]
        if launches[0].behind:
            assert len(launches) == 1 < len(launches[0].trials) and len(before) <= 1
            assert all(launch.worker == worker for launch in before)
        else:
            assert not before, "two programs on the bytes of one"
        here = [other for other in self.flights.values() if other.worker.device == worker.device]
        alone = self.state.trials.alone
        if alone & {name for one in (*launches, *here) for name in one.trials}:
            assert len(launches) == 1 and not launches[0].behind
            assert not here or any(call.unheard for call in self.calls)
        if self.processes:
            assert launches[0].behind or worker not in [call.worker for call in self.calls if call.order]
        if any(launch.checked for launch in launches):
            assert self.checks and len(launches) == len(launches[0].trials) == 1 and not launches[0].behind
            assert worker not in self.used, "it has run other trials"
        self.used.add(worker)
        self.runs.append(launches)
        self.flights |= {launch.id: launch for launch in launches}
        self.calls.append(Call(worker, launches[0].lease, deque(launch.id for launch in launches)))

    def _die(self, worker):
        """A process is gone, with all that it has not said; what its lanes began last."""
        self.dead.add(worker)
        here = [call for call in self.calls if call.worker == worker]
        self.calls = [call for call in self.calls if call.worker != worker]
        for call in here:
            for name in call.order:
                self.flights.pop(name, None)
        last = {call.lease: call.last for call in here if call.last}  # calls of one lease are on one lane
        return frozenset(last.values()) if self.told else None

    # what may happen

    def grant(self):
        free = [d for d in ("d0", "d1") if sum(device == d for device in self.devices.values()) < self.lanes]
        if self.waiting and free:
            self._grant(free)

    def _grant(self, devices):
        names = self.rng.sample(sorted(self.waiting), min(len(self.waiting), self.rng.choice((1, 1, 2, self.most))))
        claim = self.waiting[names[0]].claims["gpu"]
        bytes_ = min(claim.points[0].bytes, *(self.waiting[n].claims["gpu"].points[0].bytes for n in names))
        for name in names:
            del self.waiting[name]
        self.leases_made += 1
        lease, device = f"l{self.leases_made}", self.rng.choice(devices)
        self.leases[lease] = tuple(names)
        self._device_of[lease] = device
        self.tell(granted(lease, device, tuple(names), bytes_, processes=self.processes))

    @property
    def devices(self):
        return {lease: self._device_of[lease] for lease in self.leases}

    def going(self):
        """Calls that are not over and have none of their lease before them."""
        of = {}
        for call in self.calls:
            if call.order:
                of.setdefault(call.lease, call)
        return list(of.values())

    def progress(self):
        """One call goes on in its own way; what it says is heard now or later."""
        going = self.going()
        if going:
            self._go_on(self.rng.choice(going))
        if self.rng.random() < 0.7:
            self.hear()

    def hear(self):
        """What the workers have said reaches the runner, one call at a time."""
        for call in list(self.calls):
            news, call.unheard = call.unheard, []
            if news and call in self.calls:
                self.act(self.state.handle_all(news, self.now))
        self.calls = [call for call in self.calls if call.order or call.unheard]

    def _go_on(self, call):
        launch = self.flights.get(call.order[0])
        if launch is None:  # a test has ended it
            call.order.popleft()
            return
        if not call.begun:
            if launch.id in self.dropped or (launch.may_fail is not None and call.failed >= launch.may_fail):
                self._over(call, m.LaunchEnded(launch.id, {}, begun=False))
                return
            attempts = {(self.owner, name, number) for name, number in zip(launch.trials, launch.numbers)}
            assert not attempts & self.began, "an attempt ran twice"
            self.began |= attempts
            call.begun, call.last = True, launch.id
            call.unheard.append(m.Started(launch.id))
        tries = Counter(name for _, name, _ in self.began)
        moods = {name: self.moods[name] for name in launch.trials}
        signals = {"signal always"} | (set() if launch.checked else set(SIGNALS))
        signal = "Segmentation fault" if signals & set(moods.values()) else ""
        if signal or any(mood == "crash" or (mood == "crash once" and tries[name] == 1) for name, mood in moods.items()):
            begun = self._die(launch.worker)
            error = {"type": "WorkerCrashed", "message": f"its process died: {signal}\n  see: log"}
            self.tell(m.WorkerDown(launch.worker, Failure.crash, error, begun, signal))
            return
        if "hang" in moods.values() and launch.id not in self.asked_to_stop:
            return
        if "hang" in moods.values() and (launch.id % 3 or self.rng.random() < 0.5):
            return  # it does not even answer when it is asked to stop
        strays = {"stray always"} | (set() if launch.checked else set(STRAYS))
        losers = [name for name, mood in moods.items() if mood in {"device lost", "lost alone"} | strays]
        ends = {name: self._end(name, mood, launch, tries[name]) for name, mood in moods.items()}
        one_by_one = "lost alone" in moods.values()
        if one_by_one:
            last = list(moods.values()).index("lost alone")
            ends = dict(list(ends.items())[: last + 1])
        numbers = dict(zip(launch.trials, launch.numbers, strict=True))
        ends |= {name: ends[name] | {"restart": True} for name in losers if name in ends}
        call.failed += sum(end["status"] != "done" for end in ends.values())
        together = len(launch.trials) > 1 and not one_by_one
        done = tuple(name for name, end in ends.items() if end["status"] == "done" and together)
        ends = {name: end for name, end in ends.items() if name not in done}
        attempts = tuple(numbers[name] for name in done)
        rows = (BatchRows(done, attempts, {"status": "done", "loss": 1.0}, {}, {}, {}, (0, 1.0)),) if done else ()
        retire = "worn" if self.rng.random() < 0.1 else ""
        self._over(call, m.LaunchEnded(launch.id, ends, rows, retire))
        if losers:  # nothing more can run there
            while call.order:
                self._over(call, m.LaunchEnded(call.order[0], {}, retire="worn", begun=False))

    def _over(self, call, end):
        call.unheard.append(end)
        self.flights.pop(call.order.popleft(), None)
        call.begun = False

    def _end(self, name, mood, launch, tries):
        failure = {
            "user": Failure.user_error,
            "nan": Failure.not_finite,
            "oom": Failure.out_of_memory,
            "device lost": Failure.infrastructure,
            "lost alone": Failure.infrastructure,
            "hang": Failure.cancelled,
            "bounds": Failure.user_error,
            "stray bounds": Failure.user_error,
        }.get(mood)
        if mood in STRAYS and (mood == "stray always" or not launch.checked):
            error = {"type": "DeviceError", "message": f"{STRAY}\n  do: run it again"}
            return {"status": "failed", "error": error, "failure": Failure.crash}
        if mood == "infra once" and tries == 1:
            failure = Failure.infrastructure
        if mood == "needs 70" and launch.bytes > 60:
            failure = Failure.out_of_memory
        if failure is None:
            return {"status": "done", "loss": 1.0}
        return {"status": "failed", "error": {"type": "E", "message": mood}, "failure": failure}

    def lose_a_lease(self):
        if self.leases:
            lease = self.rng.choice(sorted(self.leases))
            del self.leases[lease]
            self.tell(LeaseEnd(lease, "device lost"))

    def crash_a_worker(self):
        if self.flights:
            worker = self.flights[self.rng.choice(sorted(self.flights))].worker
            begun = self._die(worker)
            if self.rng.random() < 0.3:  # it dies by itself, whatever it is at
                signal = self.rng.choice(("", "Aborted"))
                self.tell(m.WorkerDown(worker, Failure.crash, {"type": "WorkerCrashed", "message": "gone"}, begun, signal))
                return
            self.tell(m.WorkerDown(worker, Failure.infrastructure, {"type": "NodeDied", "message": "gone"}))

    def wait(self, seconds=None):
        self.now += self.rng.choice((0.1, 0.5, 3.0)) if seconds is None else seconds
        self.tell(m.Tick())

    def kill_the_runner(self):
        self.open()

    def step(self):
        """Something that happens in a bad moment."""
        calm = [self.grant] * 4 + [self.hear, self.wait] + [self.progress] * 4
        rough = [self.lose_a_lease, self.crash_a_worker, self.kill_the_runner, self.late_news, self.fill_the_disk]
        self.rng.choice(calm * 3 + rough)()

    def fill_the_disk(self):
        self.tell(m.Storage(full=not self.state.paused))

    def cancel(self):
        """Somebody cancels a few trials, or gives up the run."""
        few = self.rng.sample(sorted(self.moods), self.rng.randint(1, len(self.moods)))
        several = [m.Cancelled(frozenset(few))] * 3 + [m.Cancelled(), m.Interrupted(), m.Interrupted()]
        self.tell(self.rng.choice(several))

    def late_news(self):
        """News of what is over already: from a worker that was killed, of a lease that was given back."""
        self.tell(m.LaunchEnded(10**6, {}))
        self.tell(m.WorkerDown(m.WorkerId("d0", 0, -1), Failure.crash, {}))
        self.tell(LeaseEnd("never", "device lost"))
        self.tell(m.Started(10**6))
        self.tell(m.GoesOn("never", "never"))

    def finish(self, most=3000):
        """Let the run go on without further losses; how many steps it took."""
        self.tell(m.Storage(full=False))
        for step in range(most):
            if self.state.finished:
                assert not self.batches
                return step
            self.grant()
            self.progress()
            self.hear()
            if step % 3 == 0:
                self.wait(1.0)
        raise AssertionError(f"not over after {most} steps: {self.state.running} run, {self.state.waiting} wait")

    # what is asked afterwards

    def rows(self):
        """The rows of each trial."""
        rows = defaultdict(list)
        for event in self.journal:
            if isinstance(event, m.WriteEnded):
                rows[event.trial].append(event.record)
        return rows

    def status(self, name):
        (row,) = self.rows()[name]
        return row["status"]

    def retries(self, name, failure):
        """Charged retries of a trial in a class, pardoned ones taken off."""
        own = [e for e in self.journal if getattr(e, "trial", None) == name]
        charged = sum(isinstance(e, m.WriteRetry) and e.failure is failure and e.charged for e in own)
        return charged - sum(isinstance(e, m.WritePardon) for e in own) * (failure is Failure.crash)


RULES = Rules(timeout_s=5.0, grace_s=2.0, start_s=30.0)
