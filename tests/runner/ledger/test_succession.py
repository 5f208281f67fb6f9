"""Leases that follow others in the same lane, with the program and its bytes: whatever the order of events, nothing is given twice."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qdrun.runner.ledger import Exchange, Held, LeaseEnd, Ledger
from qdrun.runner.ledger.inventory import MIB, Found
from qdrun.runner.packing import Claim, Request
from qdrun.runner.ray_adapter import ledger_actor
from qdrun.runner.ray_adapter.ledger_client import LATE, LOST, ActorLedger

RESERVE = 512 * MIB
CPU = Found("c0", "n1", "x", kind="host", pool="c", total=60 * MIB + RESERVE, lanes=2, process_bytes=2 * MIB)
CARD = Found("a0", "n1", "y", kind="card", pool="a", total=100 * MIB + RESERVE, lanes=3, process_bytes=5 * MIB)
ROWS = {row.id: row for row in (CPU, CARD)}


def claim(size, seconds=None, kinds=("card",)):
    return {kind: Claim.of([(size * MIB, 1.0)], seconds) for kind in kinds}


SHAPES = [claim(20), claim(30), claim(55, kinds=("card", "host")), claim(90), claim(9, 2.0, kinds=("host",))]


class Runs:
    """Runs with their lanes as they are in truth. ``programs``: what is in memory, by lease; of those in ``kept`` nothing runs."""

    def __init__(self, rng, names, keeps=True):
        self.rng, self.keeps, self.now, self.number, self.epoch = rng, keeps, 0.0, 0, 0
        self.log, self.followed = [], 0
        self.start()
        self.users = {name: f"user of {name}" for name in names}
        for name in names:
            self.begin(name)

    def start(self, settle=-1.0):
        self.epoch += 1
        self.ledger = Ledger(f"e{self.epoch}-", settle_until=settle, age_s=5.0)
        for row in ROWS.values():
            self.ledger.add_device(row)

    def begin(self, name):
        if not hasattr(self, "waiting"):
            self.waiting, self.programs, self.kept, self.going, self.seen, self.workers = {}, {}, {}, {}, {}, {}
        for what in (self.waiting, self.programs, self.workers):
            what[name] = {}
        self.kept[name], self.going[name], self.seen[name] = set(), set(), 0
        self.ledger.join(name, self.users[name], self.now)

    def ask(self, name, count, shapes=SHAPES):
        made = []
        for _ in range(count):
            self.number += 1
            made.append(Request(f"t{self.number}", "", "", self.rng.choice(shapes), self.now))
        self.waiting[name] |= {one.id: one for one in made}
        self.ledger.ask(name, made, self.now)
        self.exchange(name)

    def end(self, name, lease, lost=False):
        """A lease is over; its lane keeps its program where it may."""
        keep = self.keeps and self.rng.random() < 0.8
        if keep:
            self.kept[name].add(lease)
        else:
            del self.programs[name][lease]
        self.exchange(name, [LeaseEnd(lease, kept=keep)], lost)

    def let_go(self, name, lost=False):
        gone = sorted(self.going[name])
        for lease in gone:
            self.forget(name, lease)
        self.exchange(name, [LeaseEnd(lease) for lease in gone], lost)

    def forget(self, name, lease):
        del self.programs[name][lease]
        self.kept[name].discard(lease)
        self.going[name].discard(lease)

    def exchange(self, name, done=(), lost=False):
        answer = self.ledger.exchange(name, done, self.now, self.seen[name])
        if lost or not answer.known:
            self.join(name, done)
        else:
            self.take(name, answer)
        for other in self.users if done else ():
            if other != name:
                self.take(other, self.ledger.news(other, self.seen[other]))

    def join(self, name, done=()):
        held = [Held(lease, request) for lease, request in self.programs[name].values()]
        waiting, workers, seen = list(self.waiting[name].values()), sorted(self.workers[name]), self.seen[name]
        self.take(name, self.ledger.join(name, self.users[name], self.now, held, waiting, tuple(done), seen, workers))

    def take(self, name, answer):
        assert isinstance(answer, Exchange) and answer.known
        self.seen[name] = answer.last
        for end in answer.ended:
            if end.lease in self.programs[name]:
                self.forget(name, end.lease)
        assert set(answer.unwanted) <= self.kept[name]
        self.going[name] |= set(answer.unwanted)
        for lease in answer.leases:
            requests = [self.waiting[name].pop(one) for one in lease.requests]
            if lease.follows:
                before, old = self.programs[name][lease.follows]
                assert lease.follows in self.kept[name] - self.going[name]
                assert (before.device, before.point) == (lease.device, lease.point) and old.claims is requests[0].claims
                self.forget(name, lease.follows)
                self.followed += 1
            self.programs[name][lease.id] = lease, requests[0]
            self.workers[name][lease.device] = True
            self.log.append((self.now, name, lease.requests, lease.device))
        for device in answer.close:
            if not any(lease.device == device and id not in self.kept[name] for id, (lease, _) in self.programs[name].items()):
                self.worker_ends(name, device)

    def worker_ends(self, name, device):
        """With all that its lanes keep."""
        for lease in [id for id, (held, _) in self.programs[name].items() if held.device == device]:
            self.forget(name, lease)
        self.workers[name].pop(device, None)
        self.ledger.closed(name, device)

    def running(self, name):
        return sorted(set(self.programs[name]) - self.kept[name])

    def check(self):
        """What is in truth in memory, and on lanes, is what there is room for."""
        for row in ROWS.values():
            used = 0
            for name in self.users:
                here = [lease for lease, _ in self.programs[name].values() if lease.device == row.id]
                assert len(here) <= row.lanes, "more programs than lanes"
                used += sum(lease.point.bytes for lease in here) + row.process_bytes * (row.id in self.workers[name])
            assert used <= row.capacity, "above capacity"
        for row in self.ledger.snapshot()["pools"]:
            assert row["free"] >= 0

    def something(self):
        name = self.rng.choice(sorted(self.users))
        lost = self.rng.random() < 0.1
        self.now += self.rng.choice((0.0, 0.1, 1.0))
        match self.rng.choice("ask end end end go go withdraw worker leave device restart".split()):
            case "ask":
                self.ask(name, self.rng.randint(1, 6))
            case "end" if self.running(name):
                self.end(name, self.rng.choice(self.running(name)), lost)
            case "go" if self.going[name]:
                self.let_go(name, lost)
            case "withdraw" if self.waiting[name]:
                for one in self.ledger.withdraw(name, [self.rng.choice(sorted(self.waiting[name]))]):
                    del self.waiting[name][one]
            case "worker" if self.rng.random() < 0.3:  # it dies with what it runs and keeps
                device = self.rng.choice(sorted(ROWS))
                gone = [id for id, (lease, _) in self.programs[name].items() if lease.device == device]
                for lease in gone:
                    self.forget(name, lease)
                self.exchange(name, [LeaseEnd(lease, "cut short") for lease in gone], lost)
            case "leave" if self.rng.random() < 0.2:
                self.ledger.leave(name)
                self.begin(name)
                self.exchange(name)
            case "device" if self.rng.random() < 0.2:
                device = self.rng.choice(sorted(ROWS))
                self.ledger.lose_device(device, "unplugged")
                for other in self.users:
                    self.exchange(other)
                    assert not any(lease.device == device for lease, _ in self.programs[other].values())
                    self.workers[other].pop(device, None)
                self.ledger.add_device(ROWS[device])
            case "restart" if self.rng.random() < 0.2:
                self.start(settle=self.now + 1.0)
                before = {other: set(self.programs[other]) for other in self.users}
                for other in self.users:
                    self.join(other)
                assert before == {other: set(self.programs[other]) for other in self.users}
                self.now += 1.0
                for other in self.users:
                    self.exchange(other)

    def finish(self, most=1000):
        """All ends, and all that has ended is let go."""
        for _ in range(most):
            self.now += 1.0
            for name in self.users:
                for lease in self.running(name)[:1]:
                    self.end(name, lease)
                self.let_go(name)
                self.check()
            if not any(self.programs.values()) and not any(self.waiting.values()):
                return
        raise AssertionError((self.waiting, self.programs))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from((1, 2, 3)), st.integers(20, 150))
def test_kept_programs_never_make_a_pool_or_a_worker_too_full_whatever_happens(seed, runs, steps):
    world = Runs(random.Random(seed), [f"r{k}" for k in range(runs)])
    for _ in range(steps):
        world.something()
        world.check()
    world.finish()
    assert world.ledger.counts() == (0, 0)
    pools = world.ledger.snapshot()["pools"]
    assert all(row["claimed"] == 0 for row in pools)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from((1, 2, 4)))
def test_the_packer_chooses_as_if_nothing_were_kept(seed, runs):
    """The same trials on the same devices after the same event, of all users: those beside a kept program wait for its end alone."""
    logs = []
    for keeps in (False, True):
        rng = random.Random(seed)
        world = Runs(random.Random(seed + 1), [f"r{k}" for k in range(runs)], keeps)
        names = sorted(world.users)
        for name in names:
            world.ask(name, 12)
        while going := [(world.programs[name][id][1].id, name, id) for name in names for id in world.running(name)]:
            world.now += 1.0
            _, name, lease = rng.choice(sorted(going))
            world.end(name, lease)
            for other in names * 2:  # whose idle workers have ended by then
                world.let_go(other)
            world.check()
        logs.append(sorted(world.log))
    assert logs[0] == logs[1]


def test_trials_of_one_shape_follow_each_other_and_only_the_last_is_let_go():
    world = Runs(random.Random(0), ["r"])
    world.ask("r", 30, [SHAPES[0]])
    world.rng.random = lambda: 0.0
    while world.running("r"):
        world.now += 4.0  # so long that a lease covers one of them
        world.end("r", world.running("r")[0])
        world.check()
    lanes = CARD.lanes
    assert (world.followed, len(world.going["r"])) == (30 - lanes, lanes)
    world.let_go("r")
    assert world.ledger.counts() == (0, 0) and not world.programs["r"]


@pytest.mark.parametrize("way", ["let go", "worker"])
def test_bytes_of_a_kept_program_are_given_to_nobody_before_it_is_gone(way):
    world = Runs(random.Random(0), ["r1", "r2"])
    world.ask("r1", 1, [SHAPES[3]])
    world.ask("r2", 1, [claim(80)])
    world.rng.random = lambda: 0.0
    (lease,) = world.running("r1")
    world.end("r1", lease)
    assert world.going["r1"] == {lease} and not world.running("r2")
    assert "waits" not in str(world.ledger.why("r2")) and world.ledger.counts() == (0, 2)  # it is granted, and not told
    if way == "let go":
        world.let_go("r1")
    else:
        world.worker_ends("r1", "a0")
        world.ledger.step(world.now)
        world.exchange("r2")
    assert len(world.running("r2")) == 1


class Cluster(ActorLedger):
    """The client of a cluster's ledger, whose calls are lost, or whose answers are, or whose ledger starts again."""

    def __init__(self, rng):
        self.rng, self.faults, self.now, self.epoch = rng, 0.0, 0.0, 0
        self.start()
        super().__init__("r", "me")

    def start(self):
        self.epoch += 1
        self.ledger = Ledger(f"e{self.epoch}-", settle_until=self.now + 1.0 if self.epoch > 1 else -1.0)
        for row in ROWS.values():
            self.ledger.add_device(row)

    def _send(self, name, *args):
        fault = self.rng.choice(("before", "after", "restart", "late")) if self.rng.random() < self.faults else ""
        if fault == "restart":
            self.start()
        out = self.serve(name, *args) if fault in ("", "after", "late") else None
        return [LOST if fault in ("before", "after", "restart") else out, 3 if fault == "late" else 0]

    def _hear(self, ref, timeout_s):
        ref[1] -= 1
        return LATE if ref[1] > 0 else ref[0]

    def serve(self, name, key, *args):
        match name:
            case "join":
                user, held, waiting, done, seen, workers, _, terms = args
                return self.ledger.join(key, user, self.now, held, waiting, done, seen, workers, terms)
            case "ask":
                return self.ledger.ask(key, *args, self.now)
            case "exchange":
                done, seen, _ = args
                return self.ledger.exchange(key, done, self.now, seen)
        return getattr(self.ledger, name)(key, *args)


@pytest.fixture(scope="module")
def no_actor():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_actor, "start", lambda settings: None)
        patch.setattr(ledger_actor, "check_version", lambda handle: None)
        yield


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(10, 120))
@example(seed=5, steps=21)  # the ledger starts again after it has heard that a lease is kept
@example(seed=4178, steps=21)
def test_a_run_of_a_cluster_leaves_nothing_kept_whatever_call_is_lost(no_actor, seed, steps):
    rng = random.Random(seed)
    client = Cluster(rng)
    programs, kept, going, workers, number = {}, set(), set(), set(), 0

    def exchange(*done):
        answer = client.exchange(done)
        going.update(answer.unwanted)
        assert going <= kept
        for lease in answer.leases:
            if lease.follows:
                assert lease.follows in kept - going
                kept.discard(lease.follows)
                assert programs.pop(lease.follows).point == lease.point
            programs[lease.id] = lease
            workers.add(lease.device)
        assert not answer.ended
        for row in ROWS.values():
            here = [lease for lease in programs.values() if lease.device == row.id]
            used = sum(lease.point.bytes for lease in here) + row.process_bytes * (row.id in workers)
            assert len(here) <= row.lanes and used <= row.capacity

    def end(lease):
        if rng.random() < 0.8:
            kept.add(lease)
        else:
            del programs[lease]
        exchange(LeaseEnd(lease, kept=lease in kept))

    def let_go(lease):
        going.discard(lease)
        kept.discard(lease)
        del programs[lease]
        exchange(LeaseEnd(lease))

    for _ in range(steps):
        client.now += rng.choice((0.0, 0.2, 4.0))
        client.faults = 0.2
        running = sorted(set(programs) - kept)
        match rng.choice("ask end end end go exchange".split()):
            case "ask":
                made = [Request(f"t{number + k}", "", "", rng.choice(SHAPES), client.now) for k in range(4)]
                number += len(made)
                client.ask(made)
                exchange()
            case "end" if running:
                end(rng.choice(running))
            case "go" if going:
                let_go(rng.choice(sorted(going)))
            case _:
                exchange()
    client.faults = 0.0
    for _ in range(3 * number + 10):
        client.now += 1.0
        exchange()
        for lease in sorted(set(programs) - kept)[:1]:
            end(lease)
        for lease in sorted(going):
            let_go(lease)
    assert not programs and not client.held() and client.ledger.counts() == (0, 0)
