"""A pretended ledger, pretended workers and a journal around the state machine of a run; chaos by a seeded generator.

A worker runs the launches of a call one after the other. What it says of them reaches the runner later, or never: ``began`` is what
really ran, the journal is what the runner says of it. A lane may keep its program after a call: ``programs`` are those in memory where
nothing runs, each with its worker and the lease that its bytes are of.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

from qdrun.runner.engine import messages as m
from qdrun.runner.engine.failures import Rules
from qdrun.runner.engine.parts import Work
from qdrun.runner.engine.state import State
from qdrun.runner.packing import Claim
from qdrun.runner.store.attempts import Failure
from qdrun.runner.store.columns import Rows

CLAIM = {"gpu": Claim.of([(100, 1.0), (50, 2.0), (20, 4.0)])}
SIGNALS = ("bounds", "signal", "signal always")
"""A process dies by a signal; when indices are checked, it says why, ends well, or dies all the same."""
STRAYS = ("stray bounds", "stray", "stray always")
"""The same for a kernel that reads memory of a GPU which is not its own: the process loses the device, and says so."""
STRAY = "kernel `k` failed: it read or wrote memory that is not its own (CUDA_ERROR_ILLEGAL_ADDRESS)"
MOODS = ("good", "good", "good", "user", "nan", "crash", "crash once", "oom", "needs 70", "hang", "infra once", "device lost")


@dataclass
class Call:
    """The launches of one call, in order. ``begun``: the first has; ``unheard``: what the runner has not heard of it yet.

    ``failed``: trials of it that did not end well.
    """

    worker: m.WorkerId
    order: deque
    begun: bool = False
    last: int = 0
    failed: int = 0
    unheard: list = field(default_factory=list)


class World:
    """What a run meets. ``moods``: how each trial behaves; ``journal`` outlives the runner."""

    def __init__(self, moods, rules, rng, *, batch=1, lanes=3, processes=False, most=3, told=True, keeps=False, checks=False):
        """``most``: requests of a lease; ``told``: what a worker that died had begun is known; ``keeps``: lanes keep programs.

        ``checks``: see ``State``.
        """
        self.checks, self.used = checks, set()
        self.moods = {f"t{k}": mood for k, mood in enumerate(moods)}
        self.rules, self.rng, self.batch, self.lanes, self.processes = rules, rng, batch, lanes, processes
        self.most, self.told, self.keeps, self.followed = most, told, keeps, 0
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
        self.programs, self.kept, self.unwanted, self.letting = {}, set(), set(), []
        self.owner += 1
        ended = {e.trial: e.record["status"] for e in self.journal if isinstance(e, m.WriteEnded)}
        work = [self._work(name) for name in self.moods if name not in ended]
        names = [one.id for one in work]
        batches = [tuple(names[k : k + self.batch]) for k in range(0, len(names), self.batch)]
        before = Counter(ended.values())
        self.state = State(
            work, self.rules, lambda batch: CLAIM, batches=batches, before=before, keeps=self.keeps, checks=self.checks
        )
        self.used.clear()
        self.act(self.state.start(self.now))

    def _work(self, name):
        own = [e for e in self.journal if getattr(e, "trial", None) == name]
        charged = Counter(e.failure for e in own if isinstance(e, m.WriteRetry) and e.charged)
        charged[Failure.crash] -= sum(isinstance(e, m.WritePardon) for e in own)
        alone = any(isinstance(e, m.WriteRetry) and e.failure is Failure.crash and not e.charged for e in own)
        return Work(name, max((e.number for e in own), default=0), charged, alone)

    def tell(self, event):
        self.act(self.state.handle(event, self.now))

    def act(self, actions):
        for action in actions:
            if isinstance(action, m.Run):
                first = action.launches[0]
                self.heads |= {(name, number) for name, number in zip(first.trials, first.numbers)}
        for action in actions:
            match action:
                case m.Ask():
                    for wanted in action.wanted:
                        assert wanted.id not in self.waiting
                        assert wanted.id not in {r for lease in self.leases.values() for r in lease}
                        self.waiting[wanted.id] = wanted
                case m.Withdraw():
                    for name in action.requests:
                        self.waiting.pop(name, None)
                case m.GiveBack():
                    self._give_back(action)
                case m.LetGo():
                    assert action.worker not in self.dead and self.programs[action.program][0] == action.worker
                    self.letting.append(action)
                case m.Run():
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
                    self.batches.add(action.launch)
                    for name, number in zip(action.trials, action.numbers, strict=True):
                        self._note(m.WriteStarted(name, number, action.place))
                case m.WriteRows():
                    assert action.launch in self.batches, "its batch has not begun, or is over"
                    for name, number in zip(action.rows.trials, action.rows.attempts, strict=True):
                        self._note(m.WriteEnded(name, number, action.rows.shared))
                case m.BatchOver():
                    self.batches.discard(action.launch)
                case m.WriteStarted() | m.WriteEnded() | m.WriteRetry() | m.WritePardon():
                    self._note(action)

    def _give_back(self, action):
        """A lease is over for good when its program is gone, or was taken over."""
        held = [lease for _, lease in self.programs.values()].count(action.lease)
        assert held == action.kept
        if action.kept:
            assert action.lease not in self.kept
            self.kept.add(action.lease)
        else:
            del self.leases[action.lease]
            self.kept.discard(action.lease)
            self.unwanted.discard(action.lease)

    def _note(self, action):
        """Attempts that are written down have begun, once, and end once; only such are charged."""
        self.journal.append(action)
        attempt = (action.trial, action.number)
        really = (self.owner, *attempt) in self.began
        said = self.said[self.owner, *attempt]
        match action:
            case m.WriteStarted():
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
        assert not any(launch.follows for launch in launches[1:]) and not any(launch.keep for launch in launches[:-1])
        if launches[0].follows:
            assert self.programs.pop(launches[0].follows) == (worker, launches[0].lease)
            assert not any(one.program == launches[0].follows for one in self.letting)
        assert launches[0].lease not in {lease for _, lease in self.programs.values()}, "two programs on the bytes of one"
        assert not self.processes or worker not in {place for place, _ in self.programs.values()}, "its lane keeps a program"
        here = [other for other in self.flights.values() if other.worker.device == worker.device]
        alone = {name for name in self.state.trials if self.state.trials[name].alone}
        if alone & {name for one in (*launches, *here) for name in one.trials}:
            assert len(launches) == 1 and not launches[0].keep
            assert not any(place.device == worker.device for place, _ in self.programs.values())
            assert not here or any(call.unheard for call in self.calls)
        if self.processes:
            assert worker not in [call.worker for call in self.calls if call.order]
        if any(launch.checked for launch in launches):
            assert self.checks and len(launches) == len(launches[0].trials) == 1 and not launches[0].keep
            assert worker not in self.used, "it has run other trials"
        self.used.add(worker)
        self.runs.append(launches)
        self.flights |= {launch.id: launch for launch in launches}
        self.calls.append(Call(worker, deque(launch.id for launch in launches)))

    def _die(self, worker):
        """A process is gone, with all that it has not said; what its lanes began last."""
        self.dead.add(worker)
        here = [call for call in self.calls if call.worker == worker]
        self.calls = [call for call in self.calls if call.worker != worker]
        self.programs = {name: kept for name, kept in self.programs.items() if kept[0] != worker}
        self.letting = [one for one in self.letting if one.worker != worker]
        for call in here:
            for name in call.order:
                self.flights.pop(name, None)
        return frozenset(call.last for call in here if call.last) if self.told else None

    # what may happen

    def grant(self):
        free = [d for d in ("d0", "d1") if sum(device == d for device in self.devices.values()) < self.lanes]
        if self.waiting and free:
            self._grant(free)

    def decide(self):
        """The ledger says what becomes of a lease that was kept: something of its kind follows, or nothing does."""
        open = sorted(self.kept - self.unwanted)
        if not open:
            return
        lease = self.rng.choice(open)
        if self.waiting and self.rng.random() < 0.7:
            self.kept.discard(lease)
            del self.leases[lease]
            self._grant([self._device_of[lease]], lease)
        else:
            self.unwanted.add(lease)
            self.tell(m.Unwanted(lease))

    def let_go(self):
        """A worker has closed a program that it was told to."""
        if self.letting:
            one = self.letting.pop(self.rng.randrange(len(self.letting)))
            del self.programs[one.program]
            self.tell(m.Gone(one.worker, one.program))

    def _grant(self, devices, follows=""):
        names = self.rng.sample(sorted(self.waiting), min(len(self.waiting), self.rng.choice((1, 1, 2, self.most))))
        claim = self.waiting[names[0]].claims["gpu"]
        bytes_ = min(claim.points[0].bytes, *(self.waiting[n].claims["gpu"].points[0].bytes for n in names))
        for name in names:
            del self.waiting[name]
        self.leases_made += 1
        lease, device = f"l{self.leases_made}", self.rng.choice(devices)
        self.leases[lease] = tuple(names)
        self._device_of[lease] = device
        for name, (worker, owner) in self.programs.items():
            if owner == follows:
                self.programs[name], self.followed = (worker, lease), self.followed + 1
        self.tell(m.Granted(lease, device, tuple(names), bytes_, processes=self.processes, follows=follows))

    @property
    def devices(self):
        return {lease: self._device_of[lease] for lease in self.leases}

    def progress(self):
        """One call goes on in its own way; what it says is heard now or later."""
        going = [call for call in self.calls if call.order]
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
                self._over(call, m.Ended(launch.id, {}, begun=False))
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
        restart = bool(({"device lost"} | strays) & set(moods.values()))
        ends = {name: self._end(name, mood, launch, tries[name]) for name, mood in moods.items()}
        numbers = dict(zip(launch.trials, launch.numbers, strict=True))
        call.failed += sum(end.failure is not None for end in ends.values())
        done = tuple(name for name, end in ends.items() if end.failure is None and len(launch.trials) > 1)
        ends = {name: end for name, end in ends.items() if name not in done}
        attempts = tuple(numbers[name] for name in done)
        rows = (Rows(done, attempts, {"status": "done", "loss": 1.0}, {}, {}, {}, (0, 1.0)),) if done else ()
        retire = "worn" if self.rng.random() < 0.1 else ""
        well = not retire and all(end.failure is None for end in ends.values())
        kept = launch.keep and well and self.rng.random() < 0.9
        if kept:
            self.programs[launch.lease] = launch.worker, launch.lease
        self._over(call, m.Ended(launch.id, ends, restart=restart, retire=retire, kept=kept, rows=rows))
        if restart:  # nothing more can run there
            while call.order:
                self._over(call, m.Ended(call.order[0], {}, retire="worn", begun=False))

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
            "hang": Failure.cancelled,
            "bounds": Failure.user_error,
            "stray bounds": Failure.user_error,
        }.get(mood)
        if mood in STRAYS and (mood == "stray always" or not launch.checked):
            error = {"type": "DeviceError", "message": f"{STRAY}\n  do: run it again"}
            return m.TrialEnd({"status": "failed", "error": error}, Failure.crash)
        if mood == "infra once" and tries == 1:
            failure = Failure.infrastructure
        if mood == "needs 70" and launch.bytes > 60:
            failure = Failure.out_of_memory
        if failure is None:
            return m.TrialEnd({"status": "done", "loss": 1.0})
        return m.TrialEnd({"status": "failed", "error": {"type": "E", "message": mood}}, failure)

    def lose_a_lease(self):
        if self.leases:
            lease = self.rng.choice(sorted(self.leases))
            del self.leases[lease]
            self.kept.discard(lease)
            self.unwanted.discard(lease)
            self.tell(m.LeaseLost(lease, "device lost"))

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
        calm = [self.grant] * 4 + [self.hear, self.wait, self.decide, self.let_go] + [self.progress] * 4
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
        self.tell(m.Ended(10**6, {}))
        self.tell(m.WorkerDown(m.WorkerId("d0", 0, -1), Failure.crash, {}))
        self.tell(m.LeaseLost("never", "device lost"))
        self.tell(m.Started(10**6))
        self.tell(m.Unwanted("never"))
        self.tell(m.Gone(m.WorkerId("d0", 0, -1), "never"))

    def finish(self, most=3000):
        """Let the run go on without further losses; how many steps it took."""
        self.tell(m.Storage(full=False))
        for step in range(most):
            if self.state.finished and not self.kept and not self.letting:
                assert not self.batches
                return step
            self.decide()
            self.let_go()
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
