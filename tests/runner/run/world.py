"""A pretended ledger, pretended workers and a journal around the state machine of a run; chaos by a seeded generator."""

from __future__ import annotations

from collections import Counter, defaultdict

from qdrun.runner.packing import Claim
from qdrun.runner.run import messages as m
from qdrun.runner.run.failures import Rules
from qdrun.runner.run.parts import Work
from qdrun.runner.run.state import State
from qdrun.runner.store.attempts import Failure

CLAIM = {"gpu": Claim.of([(100, 1.0), (50, 2.0), (20, 4.0)])}
MOODS = ("good", "good", "good", "user", "nan", "crash", "crash once", "oom", "needs 70", "hang", "infra once", "device lost")


class World:
    """What a run meets. ``moods``: how each trial behaves; ``journal`` outlives the runner."""

    def __init__(self, moods, rules, rng, *, batch=1, lanes=3, processes=False):
        self.moods = {f"t{k}": mood for k, mood in enumerate(moods)}
        self.rules, self.rng, self.batch, self.lanes, self.processes = rules, rng, batch, lanes, processes
        self.now, self.journal, self.kills, self.leases_made = 0.0, [], 0, 0
        self._device_of = defaultdict(str)
        self.state = None
        self.open()

    def open(self):
        """A runner starts, or another one takes over from one that was killed."""
        self.waiting, self.leases, self.flights, self.dead, self.asked_to_stop = {}, {}, {}, set(), set()
        ended = {e.trial: e.record["status"] for e in self.journal if isinstance(e, m.WriteEnded)}
        work = [self._work(name) for name in self.moods if name not in ended]
        names = [one.id for one in work]
        batches = [tuple(names[k : k + self.batch]) for k in range(0, len(names), self.batch)]
        before = Counter(ended.values())
        self.state = State(work, self.rules, lambda batch: CLAIM, batches=batches, before=before)
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
                    del self.leases[action.lease]
                case m.Launch():
                    self._launch(action)
                case m.AskToStop():
                    assert action.launch in self.flights
                    self.asked_to_stop.add(action.launch)
                case m.Kill():
                    self.kills += 1
                    self._die(action.worker)
                case m.WriteStarted() | m.WriteEnded() | m.WriteRetry() | m.WritePardon():
                    self.journal.append(action)

    def _launch(self, launch):
        assert launch.worker not in self.dead
        assert launch.lease in self.leases
        here = [other for other in self.flights.values() if other.worker.device == launch.worker.device]
        suspects = {name for name in self.state.trials if self.state.trials[name].alone}
        assert not here or not suspects & {name for one in (launch, *here) for name in one.trials}
        if self.processes:
            assert launch.worker not in [other.worker for other in here]
        self.flights[launch.id] = launch

    def _die(self, worker):
        self.dead.add(worker)
        for name in [name for name, launch in self.flights.items() if launch.worker == worker]:
            del self.flights[name]

    # what may happen

    def grant(self):
        free = [d for d in ("d0", "d1") if sum(device == d for device in self.devices.values()) < self.lanes]
        if not self.waiting or not free:
            return
        names = self.rng.sample(sorted(self.waiting), min(len(self.waiting), self.rng.choice((1, 1, 2, 3))))
        claim = self.waiting[names[0]].claims["gpu"]
        bytes_ = min(claim.points[0].bytes, *(self.waiting[n].claims["gpu"].points[0].bytes for n in names))
        for name in names:
            del self.waiting[name]
        self.leases_made += 1
        lease, device = f"l{self.leases_made}", self.rng.choice(free)
        self.leases[lease] = tuple(names)
        self._device_of[lease] = device
        self.tell(m.Granted(lease, device, tuple(names), bytes_, processes=self.processes))

    @property
    def devices(self):
        return {lease: self._device_of[lease] for lease in self.leases}

    def begin(self):
        if self.flights:
            self.tell(m.Started(self.rng.choice(sorted(self.flights))))

    def progress(self):
        """One launch goes on in its own way."""
        if not self.flights:
            return
        launch = self.flights[self.rng.choice(sorted(self.flights))]
        self.tell(m.Started(launch.id))
        if launch.id not in self.flights:
            return
        tries = Counter(e.trial for e in self.journal if isinstance(e, m.WriteStarted))
        moods = {name: self.moods[name] for name in launch.trials}
        if any(mood == "crash" or (mood == "crash once" and tries[name] == 1) for name, mood in moods.items()):
            self._die(launch.worker)
            self.tell(m.WorkerDown(launch.worker, Failure.crash, {"type": "WorkerCrashed", "message": "gone"}))
            return
        if "hang" in moods.values() and launch.id not in self.asked_to_stop:
            return
        if "hang" in moods.values() and (launch.id % 3 or self.rng.random() < 0.5):
            return  # it does not even answer when it is asked to stop
        restart = "device lost" in moods.values()
        ends = {name: self._end(name, mood, launch, tries[name]) for name, mood in moods.items()}
        del self.flights[launch.id]
        self.tell(m.Ended(launch.id, ends, restart=restart, retire=self.rng.random() < 0.1))

    def _end(self, name, mood, launch, tries):
        failure = {
            "user": Failure.user_error,
            "nan": Failure.not_finite,
            "oom": Failure.out_of_memory,
            "device lost": Failure.infrastructure,
            "hang": Failure.cancelled,
        }.get(mood)
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
            self.tell(m.LeaseLost(lease, "device lost"))

    def crash_a_worker(self):
        if self.flights:
            worker = self.flights[self.rng.choice(sorted(self.flights))].worker
            self._die(worker)
            self.tell(m.WorkerDown(worker, Failure.infrastructure, {"type": "NodeDied", "message": "gone"}))

    def wait(self, seconds=None):
        self.now += self.rng.choice((0.1, 0.5, 3.0)) if seconds is None else seconds
        self.tell(m.Tick())

    def kill_the_runner(self):
        self.open()

    def step(self):
        """Something that happens in a bad moment."""
        calm = [self.grant] * 4 + [self.begin, self.wait] + [self.progress] * 4
        rough = [self.lose_a_lease, self.crash_a_worker, self.kill_the_runner, self.late_news]
        self.rng.choice(calm * 3 + rough)()

    def late_news(self):
        """News of what is over already: from a worker that was killed, of a lease that was given back."""
        self.tell(m.Ended(10**6, {}))
        self.tell(m.WorkerDown(m.Worker("d0", 0, -1), Failure.crash, {}))
        self.tell(m.LeaseLost("never", "device lost"))
        self.tell(m.Started(10**6))

    def finish(self, most=3000):
        """Let the run go on without further losses; how many steps it took."""
        for step in range(most):
            if self.state.finished:
                return step
            self.grant()
            self.progress()
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
