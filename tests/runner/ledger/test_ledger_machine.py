"""The ledger under any order of events: never above capacity, nothing granted twice, every lease ends."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from qdrun.runner.ledger import LeaseEnd, Ledger
from qdrun.runner.ledger.inventory import MIB, Found
from qdrun.runner.packing import Claim, Request

RESERVE = 512 * MIB
ROWS = [
    Found("a0", "n1", "cuda", kind="cuda/small/1", pool="a", total=24 * MIB + RESERVE, lanes=2, process_bytes=MIB),
    Found("b0", "n1", "cuda", kind="cuda/large/1", pool="b", total=80 * MIB + RESERVE, lanes=3, process_bytes=2 * MIB),
    Found("b1", "n1", "vulkan", kind="vulkan/other/1", pool="b", total=80 * MIB + RESERVE, lanes=2, process_bytes=3 * MIB),
    Found("c0", "n2", "cuda", kind="cuda/small/1", pool="c", total=48 * MIB + RESERVE, lanes=1, process_bytes=4 * MIB),
]
NAMES = st.sampled_from([row.id for row in ROWS])
SIZES = st.sampled_from([0, 1, 4, 7, 10, 11, 15, 22, 23, 35, 75, 90]).map(lambda n: n * MIB)
CURVES = st.lists(st.tuples(SIZES, st.integers(1, 6)), min_size=1, max_size=3)
CLAIMS = st.dictionaries(
    st.sampled_from(["cuda/small/1", "cuda/large/1", "vulkan/other/1"]),
    st.builds(Claim.of, CURVES, st.sampled_from([None, 0.01, 1.0, 7.0])),
    min_size=1,
    max_size=3,
)


def row_of(name):
    return next(row for row in ROWS if row.id == name)


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now, self.number = 0.0, 0
        self.rows, self.avoided, self.limits = {}, {}, {}
        self.waiting, self.held, self.workers, self.granted = {}, {}, set(), set()
        self.draining = set()

    @initialize(most=st.sampled_from([None, 4]))
    def begin(self, most):
        self.most = most
        self.ledger = Ledger(most, age_s=5.0)
        for row in ROWS:
            self.rows[row.id] = row
            self.ledger.add_device(row)

    def exchange(self, done=()):
        self.ledger.give_back(done, self.now)
        answer = self.ledger.exchange(self.now)
        for end in answer.ended:
            assert end.lease not in self.held or end.reason.startswith("device lost")
            self.held.pop(end.lease, None)
        for lease in answer.leases:
            assert lease.id not in self.granted, "granted twice"
            requests = [self.waiting.pop(name) for name in lease.requests]
            assert all(request.claims == requests[0].claims for request in requests)
            row = row_of(lease.device)
            assert lease.point in requests[0].claims[row.kind].points and lease.node == row.node
            assert len(requests) <= 64 and lease.device not in self.draining
            assert self.avoided.get(lease.device, 0.0) <= self.now
            self.granted.add(lease.id)
            self.held[lease.id] = lease
            self.workers.add(lease.device)
        for device in answer.close:
            if device in self.workers and not self.on(device):
                self.end_worker(device)

    def end_worker(self, device):
        self.workers.discard(device)
        self.ledger.closed(device)

    def on(self, device):
        return [lease for lease in self.held.values() if lease.device == device]

    @rule(claims=CLAIMS, count=st.integers(3, 12))
    def ask(self, claims, count):
        made = [Request(f"t{self.number + k}", claims, self.now, trials=range(k % 3 + 1)) for k in range(count)]
        self.number += count
        self.waiting |= {request.id: request for request in made}
        self.ledger.ask(made)

    @rule(data=st.data(), count=st.integers(0, 3))
    def work(self, data, count):
        done = []
        for _ in range(min(count, len(self.held))):
            lease = data.draw(st.sampled_from(sorted(self.held)))
            del self.held[lease]
            done.append(LeaseEnd(lease, seconds=data.draw(st.sampled_from([0.0, 0.1, 3.0]))))
        self.exchange(done)

    @rule(data=st.data())
    def withdraw(self, data):
        if self.waiting:
            one = data.draw(st.sampled_from(sorted(self.waiting)))
            for gone in self.ledger.withdraw([one, "nobody"]):
                del self.waiting[gone]

    @rule(seconds=st.sampled_from([0.0, 0.5, 5.0, 14.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.exchange()

    @rule(device=NAMES, seconds=st.sampled_from([3.0, 20.0]))
    def avoid(self, device, seconds):
        """Workers do not last there; what runs goes on."""
        if self.ledger.avoid(device, seconds, self.now):
            self.avoided[device] = max(self.avoided.get(device, 0.0), self.now + seconds)

    @rule(device=NAMES, lanes=st.integers(0, 3))
    def limit(self, device, lanes):
        """Other runs of the user have the rest; what runs goes on."""
        if device in self.rows:
            self.ledger.limit({}, {device: lanes})
            self.limits[device] = max(lanes, len(self.on(device)))

    @rule(device=NAMES)
    def drain(self, device):
        if device in self.rows:
            assert self.ledger.drain(device) == (not self.on(device))
            self.draining.add(device)

    @rule(name=NAMES)
    def device(self, name):
        """A device goes, with its worker, or comes."""
        if name in self.rows:
            lost = {lease.id for lease in self.ledger.lose_device(name, "unplugged")}
            assert lost == {lease.id for lease in self.on(name)}
            self.exchange()
            assert not self.on(name)
            del self.rows[name]
            self.workers.discard(name)
            self.draining.discard(name)
            self.limits.pop(name, None)
            self.avoided.pop(name, None)
        else:
            self.rows[name] = row_of(name)
            self.ledger.add_device(self.rows[name])

    @invariant()
    def the_account_is_never_above_capacity(self):
        for pool in self.ledger.snapshot()["pools"]:
            used = sum(lease.point.bytes for lease in self.held.values() if row_of(lease.device).pool == pool["id"])
            processes = sum(row_of(name).process_bytes for name in self.workers if row_of(name).pool == pool["id"])
            assert pool["free"] >= 0 and used + processes <= pool["capacity"]
            assert pool["claimed"] == used and pool["process"] >= processes

    @invariant()
    def no_more_run_than_there_are_lanes(self):
        for row in ROWS:
            running = len(self.on(row.id))
            assert running <= row.lanes
            if row.id in self.limits:
                assert running <= self.limits[row.id]
                self.limits[row.id] = max(running, self.ledger._devices[row.id].lanes)
        assert self.most is None or len(self.held) <= self.most

    def teardown(self):
        """All end what they hold: what can run at all does, nothing is left over."""
        if not hasattr(self, "ledger"):
            return
        for name in [name for name in self.rows if name in self.draining or name in self.limits]:
            self.device(name)
        for name in [row.id for row in ROWS if row.id not in self.rows]:
            self.device(name)
        self.now += 100.0
        for _ in range(2 * self.number + 10):
            self.now += 1.0
            done = [LeaseEnd(lease, seconds=0.5) for lease in self.held]
            self.held.clear()
            self.exchange(done)
        for name, request in self.waiting.items():
            room = {row.kind: max(r.capacity - r.process_bytes for r in ROWS if r.kind == row.kind) for row in ROWS}
            assert all(claim.smallest > room[kind] for kind, claim in request.claims.items()), name
        assert self.ledger.counts() == (len(self.waiting), 0)


# No shrinking: an example of 30 steps takes minutes to shrink, and reads well as it is.
TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
