"""The packer under any order of events: never above the capacity of a pool, and everything that fits ends."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from qdrun.runner.packing import Claim, DeviceSpec, Packer, Pool, Request, misfit

CAPACITY = {"a": 24, "b": 80, "c": 48}
# Two backends on one card (b), and a class of its own for the host (c).
DEVICES = [
    *(DeviceSpec("a0", "a", "small", 2, 1), DeviceSpec("b0", "b", "large", 3, 2), DeviceSpec("b1", "b", "other", 2, 3)),
    *(DeviceSpec("c0", "c", "host", 4, 0), DeviceSpec("c1", "c", "small", 1, 4)),
]
CURVES = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 6)), min_size=1, max_size=4)
CLAIMS = st.dictionaries(
    st.sampled_from(["small", "large", "other", "host"]),
    st.builds(Claim.of, CURVES, st.one_of(st.none(), st.sampled_from([0.5, 1.0, 7.0]))),
    min_size=1,
    max_size=4,
)


class PackerMachine(RuleBasedStateMachine):
    """An account of its own, kept from the placements alone."""

    def __init__(self):
        super().__init__()
        self.packer = Packer(age_s=5.0)
        self.now, self.number = 0.0, 0
        self.pools, self.devices, self.foreign, self.workers = {}, {}, {}, set()
        self.waiting, self.running, self.done, self.gone = {}, {}, set(), set()

    @initialize()
    def begin(self):
        self.packer = Packer(age_s=5.0)
        for name in DEVICES:
            self.add(name)

    def add(self, device):
        if device.pool not in self.pools:
            self.pools[device.pool], self.foreign[device.pool] = Pool(device.pool, CAPACITY[device.pool]), 0
            self.packer.add_pool(self.pools[device.pool])
        self.devices[device.id] = device
        self.packer.add_device(device)

    def used(self, pool):
        claimed = sum(p.point.bytes for p in self.running.values() if self.devices[p.device].pool == pool)
        return claimed + sum(self.devices[name].process_bytes for name in self.workers if self.devices[name].pool == pool)

    @rule(claims=CLAIMS, count=st.integers(1, 4), old=st.sampled_from([0.0, 20.0]))
    def submit(self, claims, count, old):
        made = []
        for _ in range(count):
            self.number += 1
            made.append(Request(f"t{self.number}", claims, self.now - old, trials=range(self.number % 3 + 1)))
        self.packer.submit(made)
        self.waiting |= {request.id: request for request in made}

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 10.0]))
    def next(self, seconds):
        self.now += seconds
        for placement in self.packer.next(self.now):
            request, device = self.waiting.pop(placement.request.id), self.devices[placement.device]
            assert request == placement.request and placement.point in request.claims[device.kind].points
            self.running[request.id] = placement
            self.workers.add(device.id)
            assert self.used(device.pool) <= CAPACITY[device.pool] - self.foreign[device.pool]
            assert sum(p.device == device.id for p in self.running.values()) <= device.lanes

    @rule(data=st.data(), count=st.integers(1, 3))
    def finish(self, data, count):
        for _ in range(min(count, len(self.running))):
            name = data.draw(st.sampled_from(sorted(self.running)))
            assert self.packer.finish(name) == self.running.pop(name).request
            self.done.add(name)

    @rule(data=st.data())
    def withdraw(self, data):
        if self.waiting:
            name = data.draw(st.sampled_from(sorted(self.waiting)))
            running = sorted(self.running)[:1]
            assert self.packer.withdraw([name, "nobody", *running]) == [self.waiting.pop(name)]
            self.gone.add(name)

    def requeue(self, lost):
        assert {request.id for request in lost} <= self.running.keys()
        for request in lost:
            del self.running[request.id]
            self.waiting[request.id] = request
        self.packer.submit(lost)

    @rule(data=st.data())
    def lose(self, data):
        if self.devices:
            name = data.draw(st.sampled_from(sorted(self.devices)))
            ran = {i for i, p in self.running.items() if p.device == name}
            lost = self.packer.lose_device(name)
            assert {request.id for request in lost} == ran
            device = self.devices[name]
            self.workers.discard(name)
            self.requeue(lost)
            del self.devices[name]
            if not any(d.pool == device.pool for d in self.devices.values()):
                del self.pools[device.pool], self.foreign[device.pool]

    @rule(device=st.sampled_from(DEVICES))
    def come_back(self, device):
        if device.id not in self.devices:
            self.add(device)

    @rule(data=st.data(), share=st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    def foreign_bytes(self, data, share):
        if self.pools:
            name = data.draw(st.sampled_from(sorted(self.pools)))
            self.foreign[name] = int(share * CAPACITY[name])
            self.packer.set_foreign(name, self.foreign[name])

    @rule(data=st.data(), starts=st.booleans())
    def worker(self, data, starts):
        if not self.devices:
            return
        name = data.draw(st.sampled_from(sorted(self.devices)))
        if starts:
            self.packer.worker_started(name)
            self.workers.add(name)
        else:
            self.workers.discard(name)
            self.requeue(self.packer.worker_ended(name))

    @invariant()
    def the_snapshot_is_the_account(self):
        shot = self.packer.snapshot()
        for pool in shot["pools"]:
            used = self.used(pool["id"])
            assert pool["claimed"] + pool["process"] == used
            assert pool["free"] == CAPACITY[pool["id"]] - self.foreign[pool["id"]] - used
        shown = {run["request"]: (d["id"], run["bytes"]) for d in shot["devices"] for run in d["running"]}
        assert shown == {name: (p.device, p.point.bytes) for name, p in self.running.items()}
        assert {d["id"] for d in shot["devices"] if d["worker"]} == self.workers
        assert sum(group["count"] for group in shot["waiting"]) == len(self.waiting)
        assert self.packer.counts() == (len(self.waiting), len(self.running))
        reserved = shot["reservation"]
        assert reserved is None or (reserved["request"] in self.waiting and reserved["device"] in self.devices)
        for name in [*self.waiting, *self.running]:
            assert self.packer.why(name)

    def teardown(self):
        """Let the others go and the requests end, one after the other: what can run at all then runs."""
        for name in self.pools:
            self.foreign[name] = 0
            self.packer.set_foreign(name, 0)
        fits = {
            name for name, request in self.waiting.items() if not misfit(request, self.pools.values(), self.devices.values())
        }
        fits |= self.running.keys()
        for _ in range(2 * (len(self.waiting) + len(self.running)) + 10):
            self.next(1.0)
            for name in self.packer.idle_in_the_way():
                assert not any(p.device == name for p in self.running.values())
                assert self.packer.worker_ended(name) == []
                self.workers.remove(name)
            if self.running:
                name = min(self.running)
                self.packer.finish(name)
                del self.running[name]
                self.done.add(name)
        left = {name: self.packer.why(name) for name in fits - self.done}
        assert not left


FORM = settings(stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_the_packer_keeps_its_promises():
    run_state_machine_as_test(PackerMachine, settings=settings(FORM, max_examples=25))


@pytest.mark.slow
def test_the_packer_keeps_its_promises_in_many_runs():
    run_state_machine_as_test(PackerMachine, settings=settings(FORM, max_examples=150))
