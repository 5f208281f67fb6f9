"""How often a run talks with others: with a ledger that is an actor (counted by one that says what would be a round trip), and with Ray."""

import itertools
from dataclasses import replace

from qdrun.runner.engine import messages as m
from qdrun.runner.ledger.client import LocalLedger
from qdrun.runner.ledger.leases import Exchange
from qdrun.runner.ray_adapter.worker_pool import RayWorkers

from .test_devices_change import SMALL, Changing, done, run


class Remote(Changing):
    """Talks as ``ActorLedger`` does: an exchange with ends is a round trip and closes the open poll, a poll is one, too."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._ledger.lease_requests = 1
        self.exchanges, self.polls, self.open = 0, 0, False

    def exchange(self, done=(), wait_s=0.0):
        if not done and self.open:
            return Exchange()
        self.exchanges, self.open = self.exchanges + 1, False
        return super().exchange(done, wait_s)

    def refs(self):
        self.polls, self.open = self.polls + (not self.open), True
        return [object()]


class Withheld(Remote):
    """Has nothing new for who asks: its grants come of themselves."""

    def exchange(self, done=(), wait_s=0.0):
        if self.open:
            self.open = False
            return LocalLedger.exchange(self, done)
        self.exchanges += 1
        assert self.exchanges < 100, "nobody listens"
        return Exchange()


def ticking():
    """A clock that goes on by a millisecond whenever it is looked at."""
    clock = itertools.count(0.0, 1e-3)
    return lambda: next(clock)


def test_while_trials_wait_a_trial_that_ends_is_one_round_trip_to_the_ledger(tmp_path):
    ledger = Remote("made", "me", devices=[replace(SMALL, lanes=1)])  # one at a time: no talk is for two of them
    outcome, state, _ = run(tmp_path, ledger, done, trials=200, kinds=(SMALL.kind,), clock=ticking())
    assert outcome == "done" and state.counts() == {"done": 200}
    assert ledger.exchanges + ledger.polls <= 1.2 * 200, (ledger.exchanges, ledger.polls)


def test_a_run_that_has_nothing_to_say_listens_to_the_ledger(tmp_path):
    ledger = Withheld("made", "me", devices=[SMALL])
    outcome, _, _ = run(tmp_path, ledger, done, trials=2, kinds=(SMALL.kind,), clock=ticking())
    assert outcome == "done" and ledger.polls


def test_what_workers_are_known_to_do_is_said_without_asking_ray(monkeypatch):
    import ray

    looks = []
    monkeypatch.setattr(ray, "wait", lambda refs, **options: looks.append(refs) or ([], refs))
    workers = RayWorkers("run", lambda worker: None, lambda device: {})
    workers._refs["call"], workers._news = None, [m.Started(1)]
    assert workers.poll(1.0, ["ledger"]) == [m.Started(1)] and not looks
    assert workers.poll(1.0, ["ledger"]) == [] and looks == [["call", "ledger"]]
