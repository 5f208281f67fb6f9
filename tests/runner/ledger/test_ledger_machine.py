"""The ledger under any order of events: never above capacity, nothing granted twice, every lease ends, restarts included."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from qdrun.runner.ledger import Held, LeaseEnd, Ledger
from qdrun.runner.ledger.inventory import MIB, Found
from qdrun.runner.packing import Claim, Request

RESERVE = 512 * MIB
ROWS = [
    Found("a0", "n1", "x", kind="small", pool="a", total=24 * MIB + RESERVE, lanes=2, process_bytes=MIB),
    Found("b0", "n1", "x", kind="large", pool="b", total=80 * MIB + RESERVE, lanes=3, process_bytes=2 * MIB),
    Found("b1", "n1", "y", kind="other", pool="b", total=80 * MIB + RESERVE, lanes=2, process_bytes=3 * MIB),
    Found("c0", "n2", "x", kind="small", pool="c", total=48 * MIB + RESERVE, lanes=1, process_bytes=4 * MIB),
]
USERS = {"r1": "ann", "r2": "ann", "r3": "bob", "r4": "eve"}
SIZES = st.sampled_from([0, 1, 4, 7, 10, 11, 15, 22, 23, 35, 75, 90]).map(lambda n: n * MIB)
CURVES = st.lists(st.tuples(SIZES, st.integers(1, 6)), min_size=1, max_size=3)
CLAIMS = st.dictionaries(
    st.sampled_from(["small", "large", "other"]),
    st.builds(Claim.of, CURVES, st.sampled_from([None, 0.01, 1.0, 7.0])),
    min_size=1,
    max_size=3,
)
EXPIRE_S = 30.0


class Client:
    """A run as it is in truth: what it waits for, what runs, and which worker processes live."""

    def __init__(self, name):
        self.name, self.user, self.seen, self.alive, self.joined = name, USERS[name], 0, True, False
        self.waiting, self.held, self.workers, self.late = {}, {}, set(), []


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now, self.number, self.epoch = 0.0, 0, 0
        self.clients = {name: Client(name) for name in USERS}
        self.rows, self.granted, self.over = {}, {}, {}
        self.avoided = {}

    @initialize()
    def begin(self):
        self.ledger = Ledger("e0-", expire_s=EXPIRE_S, age_s=5.0)
        for row in ROWS:
            self.rows[row.id] = row
            self.ledger.add_device(row, group=f"g-{row.id}")

    # What is in truth on a pool: leases that run and worker processes, also of runs that are silent.

    def used(self, pool):
        """By runs that live: the workers of a dead one are gone at once, while the ledger gives its leases away some time later."""
        total = 0
        for client in filter(lambda c: c.alive, self.clients.values()):
            total += sum(lease.point.bytes for lease, _ in client.held.values() if self.row(lease.device).pool == pool)
            total += sum(self.row(name).process_bytes for name in client.workers if self.row(name).pool == pool)
        return total

    @staticmethod
    def row(name):
        return next(row for row in ROWS if row.id == name)

    def join(self, client):
        held = [Held(lease, request) for lease, request in client.held.values()]
        waiting, workers = list(client.waiting.values()), sorted(client.workers)
        answer = self.ledger.join(client.name, client.user, self.now, held, waiting, client.late, client.seen, workers)
        client.joined, client.late = True, []
        self.take(client, answer)

    def take(self, client, answer):
        assert answer.known and answer.last >= client.seen
        client.seen = answer.last
        for end in answer.ended:
            lease, _ = client.held.pop(end.lease, (None, None))
            if lease is not None:
                assert end.reason.split(":")[0] in ("device lost", "expired")
                if not any(held.device == lease.device for held, _ in client.held.values()):
                    client.workers.discard(lease.device)  # what it held is stopped with its worker
                    self.ledger.closed(client.name, lease.device)
        for lease in answer.leases:
            assert lease.id not in self.granted, "granted twice"
            requests = [client.waiting.pop(name) for name in lease.requests]
            assert all(request.claims == requests[0].claims for request in requests)
            row = self.row(lease.device)
            assert lease.point in requests[0].claims[row.kind].points and lease.node == row.node
            assert len(requests) <= 64
            self.granted[lease.id] = client.name
            client.held[lease.id] = (lease, requests[0])
            client.workers.add(lease.device)
            assert lease.group == f"g-{lease.device}"
        for device in answer.close:
            if device in client.workers and not any(lease.device == device for lease, _ in client.held.values()):
                client.workers.discard(device)
                self.ledger.closed(client.name, device)

    def exchange(self, client, done=(), lost=False):
        answer = self.ledger.exchange(client.name, done, self.now, client.seen)
        if lost:  # on its way back
            return
        if answer.known:
            self.take(client, answer)
        else:
            client.late = []
            self.join(client)

    @rule(name=st.sampled_from(sorted(USERS)), claims=CLAIMS, count=st.integers(3, 12))
    def ask(self, name, claims, count):
        client = self.clients[name]
        if not client.alive:
            return
        if not client.joined:
            self.join(client)
        made = []
        for _ in range(count):
            self.number += 1
            made.append(Request(f"t{self.number}", "", "", claims, self.now, trials=self.number % 3 + 1))
        client.waiting |= {request.id: request for request in made}
        if not self.ledger.ask(name, made, self.now):
            self.join(client)

    @rule(data=st.data(), name=st.sampled_from(sorted(USERS)), count=st.integers(0, 3), lost=st.booleans())
    def work(self, data, name, count, lost):
        client = self.clients[name]
        if not client.alive or not client.joined:
            return
        done = []
        for _ in range(min(count, len(client.held))):
            lease = data.draw(st.sampled_from(sorted(client.held)))
            del client.held[lease]
            done.append(LeaseEnd(lease, seconds=data.draw(st.sampled_from([0.0, 0.1, 3.0]))))
        self.give_back(client, done, lost)

    def give_back(self, client, done, lost):
        if lost:
            client.late += done  # an answer that does not come: said again at the next join
        self.exchange(client, done, lost)
        if lost:
            self.join(client)

    @rule(data=st.data(), name=st.sampled_from(sorted(USERS)))
    def withdraw(self, data, name):
        client = self.clients[name]
        if client.alive and client.joined and client.waiting:
            one = data.draw(st.sampled_from(sorted(client.waiting)))
            for gone in self.ledger.withdraw(name, [one, "nobody"]):
                del client.waiting[gone]

    @rule(seconds=st.sampled_from([0.0, 0.5, 5.0, 14.0]))
    def time_passes(self, seconds):
        """Runs that live beat; of those that do not, the workers are gone at once, and the ledger learns it late."""
        self.now += seconds
        for client in self.clients.values():
            if client.alive and client.joined and not self.ledger.beat(client.name, self.now):
                self.join(client)
        self.ledger.step(self.now)

    @rule(
        name=st.sampled_from(sorted(USERS)),
        device=st.sampled_from([row.id for row in ROWS]),
        seconds=st.sampled_from([3.0, 20.0]),
    )
    def avoid(self, name, device, seconds):
        """Workers of a run do not last there; what runs goes on."""
        client = self.clients[name]
        if client.alive and client.joined:
            self.ledger.avoid(name, device, seconds, self.now)

    @rule(name=st.sampled_from(sorted(USERS)))
    def silent(self, name):
        """A run is stopped (its workers go on) for longer than its leases live, and comes back."""
        client = self.clients[name]
        if client.alive and client.joined:
            held = set(client.held)
            for _ in range(4):
                self.now += 10.0
                self.ledger.step(self.now)
                for other in self.clients.values():
                    if other is not client and other.alive and other.joined:
                        self.exchange(other)
            self.exchange(client)
            assert not set(client.held) & held  # nothing of before is kept

    @rule(name=st.sampled_from(sorted(USERS)))
    def dies(self, name):
        client = self.clients[name]
        if client.alive and client.joined:
            client.alive = False

    @rule()
    def the_dead_expire(self):
        dead = [client for client in self.clients.values() if not client.alive]
        self.now += EXPIRE_S + 1.0
        for client in self.clients.values():
            if client.alive and client.joined:
                self.ledger.beat(client.name, self.now)
        self.ledger.step(self.now)
        for client in dead:
            assert not any(run["run"] == client.name for run in self.ledger.snapshot()["runs"])
            self.clients[client.name] = Client(client.name)
        for client in self.clients.values():
            if client.alive and client.joined:
                self.exchange(client)

    @rule(name=st.sampled_from(sorted(USERS)))
    def leaves(self, name):
        client = self.clients[name]
        if client.alive and client.joined:
            self.ledger.leave(name)
            self.clients[name] = Client(name)

    @rule(name=st.sampled_from([row.id for row in ROWS]))
    def device(self, name):
        if name in self.rows:
            living = [client for client in self.clients.values() if client.alive]
            held = {lease.id for client in living for lease, _ in client.held.values() if lease.device == name}
            lost = {lease.id for lease in self.ledger.lose_device(name, "unplugged")}
            assert held <= lost
            del self.rows[name]
            for client in self.clients.values():
                if not client.alive:
                    client.workers.discard(name)
                    client.held = {lease: item for lease, item in client.held.items() if item[0].device != name}
                elif client.joined:
                    self.exchange(client)
                    client.workers.discard(name)
                    assert not any(lease.device == name for lease, _ in client.held.values())
        else:
            self.rows[name] = self.row(name)
            self.ledger.add_device(self.rows[name], group=f"g-{name}")

    @rule(late=st.sets(st.sampled_from(sorted(USERS))))
    def restart(self, late):
        """Another ledger: what was granted and has not arrived is forgotten, what is held is told again, some of it too late."""
        self.epoch += 1
        before = {lease for client in self.clients.values() if client.alive for lease in client.held}
        self.ledger = Ledger(f"e{self.epoch}-", settle_until=self.now + 10.0, expire_s=EXPIRE_S, age_s=5.0)
        for row in self.rows.values():
            self.ledger.add_device(row, group=f"g-{row.id}")
        for client in self.clients.values():
            if not client.alive:  # its workers are gone: nothing is there to be told
                self.clients[client.name] = Client(client.name)
        living = [client for client in self.clients.values() if client.alive and client.joined]
        for client in living:
            if client.name not in late:
                held = set(client.held)
                self.join(client)
                assert set(client.held) == held  # all is kept, and nothing is granted yet
        assert set(self.granted) >= before
        self.now += 10.0
        for client in living:
            self.join(client)

    @invariant()
    def the_account_is_never_above_capacity(self):
        for pool in self.ledger.snapshot()["pools"]:
            assert pool["free"] >= 0
            assert self.used(pool["id"]) <= pool["capacity"]
            assert pool["claimed"] + pool["process"] >= self.used_by_the_living(pool["id"])

    @invariant()
    def nothing_is_granted_on_a_device_that_a_run_avoids(self):
        now = {}
        for run in self.ledger._runs.values():
            for device, until in run.resting.items():
                held = {lease for lease, grant in run.grants.items() if grant.lease.device == device}
                key = id(run), device, until
                assert held <= self.avoided.get(key, (run, held))[1]
                now[key] = run, held
        self.avoided = now

    def used_by_the_living(self, pool):
        return sum(
            lease.point.bytes
            for client in self.clients.values()
            if client.alive
            for lease, _ in client.held.values()
            if self.row(lease.device).pool == pool and lease.device in self.rows
        )

    @invariant()
    def a_worker_has_a_lane_for_each_of_its_programs(self):
        for client in self.clients.values():
            for row in ROWS if client.alive else ():
                assert sum(lease.device == row.id for lease, _ in client.held.values()) <= row.lanes

    def teardown(self):
        """All end what they hold: what can run at all does, nothing is left over."""
        if not hasattr(self, "ledger"):
            return
        for name in [row.id for row in ROWS if row.id not in self.rows]:
            self.device(name)
        for client in list(self.clients.values()):
            if not client.alive:
                self.ledger.leave(client.name)
                self.clients[client.name] = Client(client.name)
        living = [client for client in self.clients.values() if client.joined]
        for _ in range(2 * self.number + 10):
            self.now += 1.0
            for client in living:
                done = [LeaseEnd(lease, seconds=0.5) for lease in client.held]
                client.held.clear()
                self.exchange(client, done)
        left = {name: request for client in living for name, request in client.waiting.items()}
        for name, request in left.items():
            room = {row.kind: max(r.capacity - r.process_bytes for r in ROWS if r.kind == row.kind) for row in ROWS}
            assert all(claim.smallest > room[kind] for kind, claim in request.claims.items()), name
        assert self.ledger.counts() == (len(left), 0)


# No shrinking: an example of 30 steps takes minutes to shrink, and reads well as it is.
TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
