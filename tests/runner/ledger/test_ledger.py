"""The ledger by single cases: what a lease covers, lost and avoided devices, what others hold, the words for why."""

import time
from dataclasses import replace

import pytest

from qdrun.runner.ledger import Exchange, LeaseEnd, Ledger, Machine, RunLedger
from qdrun.runner.ledger.inventory import pretended
from qdrun.runner.ledger.requests import MOST_SPENT
from qdrun.runner.packing import Claim, Request

GIB = 1 << 30
PROCESS = 576 << 20


def ledger_of(count=1, total=24 * GIB, lanes=4, **options):
    made = Ledger(**options)
    for row in pretended(count, total, "n1", lanes):
        made.add_device(row)
    return made


def requests(ledger, names, size, seconds=None, trials=1, submitted=0.0):
    claims = {ledger.devices()[0].kind: Claim.of([(size, 1.0)], seconds)}
    return [Request(name, claims, submitted, range(trials)) for name in names]


def returned(ledger, done, now):
    """What an exchange brings after these leases were given back."""
    ledger.give_back(done, now)
    return ledger.exchange(now)


def names(count, prefix="t"):
    return [f"{prefix}{k}" for k in range(count)]


def test_a_lease_covers_one_request_until_it_is_known_how_long_they_take():
    ledger = ledger_of(lanes=2)
    ledger.ask(requests(ledger, names(200), GIB))
    first = ledger.exchange(0.0)
    assert [lease.requests for lease in first.leases] == [("t0",), ("t1",)]
    second = returned(ledger, [LeaseEnd(first.leases[0].id, seconds=0.01)], 1.0)
    assert len(second.leases) == 1 and len(second.leases[0].requests) == 50  # half of this lane's share of the 198 that wait
    assert second.leases[0].requests[:2] == ("t2", "t3")


@pytest.mark.parametrize(
    ("seconds", "trials", "most"),
    [(0.001, 1, 64), (0.5, 1, 10), (0.001, 10, 64), (6.0, 1, 1), (0.5, 100, 10)],
    ids=["64 trials", "5 seconds", "64 batches", "a long one", "batches of 5 seconds"],
)
def test_what_a_lease_covers_at_most(seconds, trials, most):
    ledger = ledger_of(lanes=1)
    ledger.ask(requests(ledger, names(1000), GIB, seconds, trials))
    assert [len(lease.requests) for lease in ledger.exchange(0.0).leases] == [most]


def test_the_last_requests_are_spread_over_the_lanes():
    ledger = ledger_of(lanes=4)
    ledger.ask(requests(ledger, names(8), GIB, 0.001))
    assert [len(lease.requests) for lease in ledger.exchange(0.0).leases] == [1, 1, 1, 1]


def test_a_request_is_asked_for_once():
    ledger = ledger_of(lanes=1)
    ledger.ask(requests(ledger, ["a", "b"], GIB))
    lease = ledger.exchange(0.0).leases[0]
    for again in ("a", "b"):
        with pytest.raises(ValueError, match=f"request {again} waits or is held already: ask again once it has ended"):
            ledger.ask(requests(ledger, ["c", again], GIB))
    with pytest.raises(ValueError, match="request d waits"):
        ledger.ask(requests(ledger, ["d", "d"], GIB))
    assert ledger.counts() == (1, 1)  # and nothing of the refused ones is queued
    assert [granted.requests for granted in returned(ledger, [LeaseEnd(lease.id)], 0.0).leases] == [("b",)]
    assert returned(ledger, [LeaseEnd(lease.id)], 1.0) == Exchange()
    ledger.ask(requests(ledger, ["a"], GIB))
    assert ledger.counts() == (1, 1)


def test_a_lost_device_ends_its_leases_and_says_why():
    ledger = ledger_of(count=2, lanes=1)
    ledger.ask(requests(ledger, names(3), GIB))
    answer = ledger.exchange(0.0)
    lost = answer.leases[0]
    assert [lease.id for lease in ledger.lose_device(lost.device, "fell off the bus")] == [lost.id]
    news = ledger.exchange(1.0)
    assert [(end.lease, end.reason) for end in news.ended] == [(lost.id, "device lost: fell off the bus")]
    assert not news.leases and ledger.counts() == (1, 1)  # the run says what is to run again
    assert ledger.lose_device("nothing of this name") == []


def test_what_others_hold_is_not_granted():
    ledger = ledger_of(total=24 * GIB, lanes=4)
    pool = ledger.devices()[0].pool
    ledger.observe(pool, free=12 * GIB)
    ledger.ask(requests(ledger, names(4), 5 * GIB))
    answer = ledger.exchange(0.0)
    assert len(answer.leases) == 2  # of 24 GiB 1.2 are left alone, others hold 12, a process takes 0.6
    ledger.observe(pool, free=20 * GIB, ours=4 * GIB)  # ours hold less than they may: nobody else is there
    assert ledger.snapshot()["pools"][0]["foreign"] == 0
    ledger.observe(pool, free=10 * GIB, ours=4 * GIB)
    assert ledger.snapshot()["pools"][0]["foreign"] == pytest.approx(10 * GIB, abs=24 * GIB / 64)


def test_withdrawn_requests_do_not_start():
    ledger = ledger_of(lanes=1)
    ledger.ask(requests(ledger, names(3), GIB))
    lease = ledger.exchange(0.0).leases[0]
    assert lease.requests == ("t0",) and ledger.withdraw(["t0", "t1", "else"]) == ["t1"]
    assert [got.requests for got in returned(ledger, [LeaseEnd(lease.id)], 1.0).leases] == [("t2",)]


def test_of_many_shapes_the_first_are_explained_and_the_others_counted():
    """A sweep over sizes has as many shapes as trials: what a run is told, and writes down, must not grow with them."""
    ledger = ledger_of(lanes=1)
    for k in range(500):
        ledger.ask(requests(ledger, [f"a{k}", f"b{k}"], GIB + k))
    (lease,) = ledger.exchange(0.0).leases
    waits = ledger.why()
    assert list(waits) == [f"a{k}" for k in range(9)] and lease.requests == ("a499",)  # the largest
    assert sum(one.count for one in waits.values()) == 999
    *explained, rest = waits.values()
    assert all(one.why.startswith("needs 1 GiB") for one in explained)
    assert (rest.count, rest.why) == (983, "for places of 492 other sizes")


def test_what_a_lease_took_is_learnt_for_each_of_its_requests():
    ledger = ledger_of(lanes=1)
    ledger.ask(requests(ledger, names(400), GIB, 0.05))
    answer, took = ledger.exchange(0.0), []
    for end in (LeaseEnd(answer.leases[0].id, seconds=0.1), LeaseEnd("", "cut short", seconds=99.0)):
        ended = LeaseEnd(answer.leases[0].id, end.reason, end.seconds)
        answer = returned(ledger, [ended], 7.0)
        took += [group.took for group in ledger._packer._waiting.groups()]
    assert took == [pytest.approx(0.1)] * 2  # what was cut short says nothing


def test_of_shapes_that_are_over_the_ledger_remembers_the_last_ones_alone():
    """A sweep of many sizes, that asks for the next when one has ended; and one that asks for all of them and withdraws."""
    ledger = ledger_of(lanes=1)
    state, end = ledger._requests, []
    for k in range(3 * MOST_SPENT):
        ledger.ask(requests(ledger, [f"t{k}"], GIB + k))
        answer = returned(ledger, end, float(k))
        end = [LeaseEnd(answer.leases[0].id, seconds=float(k))]
        assert len(state.shapes) <= MOST_SPENT + 1
    returned(ledger, end, 3.0 * MOST_SPENT)
    assert len(state.shapes) == len(state.spent) == MOST_SPENT and state.kinds
    assert max(shape.seconds for shape in state.shapes.values()) == 3 * MOST_SPENT - 1  # those that ended last
    many = [requests(ledger, [f"u{k}"], 2 * GIB + k)[0] for k in range(5 * MOST_SPENT)]
    ledger.ask(many)
    assert len(state.shapes) >= 5 * MOST_SPENT
    ledger.withdraw([request.id for request in many])
    assert len(state.shapes) == MOST_SPENT
    ledger.ask(requests(ledger, ["again", "more"], 2 * GIB + 5 * MOST_SPENT - 1))
    assert [lease.requests for lease in ledger.exchange(2e6).leases] == [("again",)]


def test_the_ledger_of_a_machine():
    ledger = RunLedger("drop", Machine(pretended(2, 24 * GIB, lanes=2)))
    claims = {ledger.devices()[0].kind: Claim.of([(2 * GIB, 1.0)])}
    ledger.ask([Request(name, claims, time.time()) for name in names(30)])
    ran, done = [], []
    while answer := ledger.exchange(done):
        assert not answer.ended
        ran += [name for lease in answer.leases for name in lease.requests]
        done = [LeaseEnd(lease.id, seconds=0.2) for lease in answer.leases]
    assert sorted(ran) == sorted(names(30)) and ledger.why() == {}
    assert ledger.options(ledger.devices()[0].id) == {"num_cpus": 0}
    ledger.ask([Request("more", claims, time.time())])
    held = ledger.exchange().leases[0]
    assert ledger.avoid(held.device, 30.0) and not ledger.exchange()  # what runs there goes on
    ledger._ledger.lose_device(held.device, "broken")
    assert [end.reason for end in ledger.exchange().ended] == ["device lost: broken"]
    ledger.close()


def test_nothing_is_granted_on_a_device_that_is_avoided():
    ledger = ledger_of(count=2, lanes=2)
    bad, good = (row.id for row in ledger.devices())
    ledger.ask(requests(ledger, names(9), GIB))
    answer = ledger.exchange(0.0)
    assert [lease.device for lease in answer.leases].count(bad) == 2
    assert ledger.avoid(bad, 30.0, 1.0)
    assert not ledger.avoid(good, 30.0, 1.0), "there is no other"
    assert not ledger.avoid("nowhere", 30.0, 1.0)
    for k in range(3):  # all that is given back comes back on the other one
        answer = returned(ledger, [LeaseEnd(lease.id) for lease in answer.leases], 2.0 + k)
        assert {lease.device for lease in answer.leases} <= {good}
    ledger.ask(requests(ledger, names(9, "c"), GIB))
    assert bad not in {lease.device for lease in ledger.exchange(30.9).leases}
    assert bad in {lease.device for lease in ledger.exchange(31.0).leases}


def groups_of_cores(count, node="n1"):
    """A node whose cores are several devices."""
    row = replace(pretended(1, 24 * GIB, node, 2, "cpu")[0], pool=f"ram@{node}", threads=1)
    return [replace(row, id=f"cpu@{node}@{k}", process_bytes=GIB) for k in range(count)]


def test_groups_of_one_node_s_cores_are_avoided_together_also_those_that_come_later():
    ledger = Ledger()
    first, later, *_ = groups_of_cores(2)
    (other,) = groups_of_cores(1, "n2")
    for row in (first, other):
        ledger.add_device(row)
    ledger.ask(requests(ledger, names(9), GIB))
    ledger.exchange(0.0)
    assert ledger.avoid(first.id, 30.0, 0.0)
    ledger.add_device(later)
    assert not ledger.exchange(1.0).leases
    assert {lease.device for lease in ledger.exchange(30.0).leases} == {later.id}


def test_a_device_that_is_drained_gets_nothing_more_and_says_when_it_is_empty():
    ledger = Ledger()
    leaving, stays = groups_of_cores(2)
    for row in (leaving, stays):
        ledger.add_device(row)
    ledger.ask(requests(ledger, names(9), GIB))
    leases = ledger.exchange(0.0).leases
    assert len(leases) == 4 and not ledger.drain(leaving.id)
    more = returned(ledger, [LeaseEnd(lease.id) for lease in leases], 1.0).leases
    assert {lease.device for lease in more} == {stays.id} and ledger.drain(leaving.id)
    ledger.closed(leaving.id)
    assert ledger.lose_device(leaving.id) == [] and ledger.counts()[1] == 2


def test_an_idle_process_in_the_way_is_asked_to_end_once():
    """Two classes of devices on one pool: a card by CUDA and by Vulkan."""
    ledger = Ledger()
    (card,) = pretended(1, 8 * GIB, "n1", 4)
    vulkan = replace(card, id="vulkan", backend="vulkan", kind="vulkan/pretended/8")
    for row in (card, vulkan):
        ledger.add_device(row)
    room = card.capacity - PROCESS
    ledger.ask(requests(ledger, ["a"], GIB))
    lease = ledger.exchange(0.0).leases[0]
    ledger.ask([Request("b", {vulkan.kind: Claim.of([(room, 1.0)])}, 0.0)])
    answer = returned(ledger, [LeaseEnd(lease.id)], 1.0)
    assert answer.close == (card.id,) and not answer.leases
    assert ledger.exchange(2.0).close == ()
    ledger.closed(card.id)
    assert [granted.requests for granted in ledger.exchange(2.0).leases] == [("b",)]


def test_a_run_has_no_more_leases_at_once_than_it_asked_for():
    ledger = ledger_of(count=2, lanes=8, most=3)
    ledger.ask(requests(ledger, names(40), GIB, 0.5))
    first = ledger.exchange(0.0).leases
    assert len(first) == 3 and max(len(lease.requests) for lease in first) == 7  # half of a share of 3 lanes
    (waits,) = ledger.why().values()
    assert waits.count == 40 - sum(len(lease.requests) for lease in first) and "3 of its run are running" in waits.why
    lost = first[0].device
    gone = {lease.id for lease in ledger.lose_device(lost)}
    mine = [lease.id for lease in (*first, *ledger.exchange(2.0).leases) if lease.id not in gone]
    assert len(mine) == 3
    assert len(returned(ledger, [LeaseEnd(name) for name in mine[:2]], 3.0).leases) == 2


def test_lanes_that_others_have_are_not_used_and_what_runs_goes_on():
    ledger = ledger_of(lanes=4)
    (device,) = ledger.devices()
    ledger.ask(requests(ledger, names(20), GIB, 6.0))
    leases = ledger.exchange(0.0).leases
    ledger.limit({device.pool: device.capacity}, {device.id: 2})
    assert len(leases) == 4 and ledger.held()[1] == {device.id: 4}
    assert not returned(ledger, [LeaseEnd(lease.id) for lease in leases[:2]], 1.0).leases
    assert len(returned(ledger, [LeaseEnd(leases[2].id)], 2.0).leases) == 1
    ledger.limit({device.pool: device.capacity}, {device.id: 4})
    assert len(ledger.exchange(3.0).leases) == 2


def test_demand_is_what_runs_and_waits_as_far_as_it_may_run_at_once():
    ledger = ledger_of(lanes=2, most=4)
    assert ledger.demand() == {} and ledger.busy() == set()
    ledger.ask(requests(ledger, names(3), GIB))
    assert ledger.demand() == {"GPU": 3}
    leases = ledger.exchange(0.0).leases
    ledger.ask(requests(ledger, names(9, "more"), 2 * GIB))
    assert ledger.demand() == {"GPU": 4} and ledger.busy() == {leases[0].device}
    ledger.withdraw(["t2", *names(9, "more")])
    assert ledger.demand() == {"GPU": 2}
