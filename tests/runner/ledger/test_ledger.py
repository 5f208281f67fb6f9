"""The ledger by single cases: what a lease covers, users beside each other, silence, what others hold, the words for why."""

import time
from dataclasses import replace

import pytest

from qdrun.runner.ledger import Exchange, Held, LeaseEnd, Ledger, LocalLedger, runs
from qdrun.runner.ledger.inventory import pretended
from qdrun.runner.ledger.leases import Terms
from qdrun.runner.ledger.runs import MOST_SPENT
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
    return [Request(name, "", "", claims, submitted, trials=trials) for name in names]


def names(count, prefix="t"):
    return [f"{prefix}{k}" for k in range(count)]


def bytes_of(ledger, user):
    return sum(run["bytes"] for d in ledger.snapshot()["devices"] for run in d["running"] if run["user"] == user)


def test_a_lease_covers_one_request_until_it_is_known_how_long_they_take():
    ledger = ledger_of(lanes=2)
    ledger.join("r", "ann", 0.0)
    ledger.ask("r", requests(ledger, names(200), GIB), 0.0)
    first = ledger.exchange("r", (), 0.0)
    assert [lease.requests for lease in first.leases] == [("t0",), ("t1",)]
    second = ledger.exchange("r", [LeaseEnd(first.leases[0].id, seconds=0.01)], 1.0, first.last)
    assert len(second.leases) == 1 and len(second.leases[0].requests) == 50  # half of this lane's share of the 198 that wait
    assert second.leases[0].requests[:2] == ("t2", "t3")


@pytest.mark.parametrize(
    ("seconds", "trials", "most"),
    [(0.001, 1, 64), (0.5, 1, 10), (0.001, 10, 64), (6.0, 1, 1), (0.5, 100, 10)],
    ids=["64 trials", "5 seconds", "64 batches", "a long one", "batches of 5 seconds"],
)
def test_what_a_lease_covers_at_most(seconds, trials, most):
    ledger = ledger_of(lanes=1)
    ledger.join("r", "ann", 0.0)
    ledger.ask("r", requests(ledger, names(1000), GIB, seconds, trials), 0.0)
    assert [len(lease.requests) for lease in ledger.exchange("r", (), 0.0).leases] == [most]


def test_the_last_requests_are_spread_over_the_lanes():
    ledger = ledger_of(lanes=4)
    ledger.join("r", "ann", 0.0)
    ledger.ask("r", requests(ledger, names(8), GIB, 0.001), 0.0)
    assert [len(lease.requests) for lease in ledger.exchange("r", (), 0.0).leases] == [1, 1, 1, 1]


def test_news_come_again_until_they_are_seen_and_what_was_given_back_does_not():
    ledger = ledger_of(lanes=2)
    ledger.join("r", "ann", 0.0)
    ledger.ask("r", requests(ledger, names(3), GIB), 0.0)
    lost = ledger.exchange("r", (), 0.0)
    again = ledger.exchange("r", (), 0.0)
    assert lost.leases == again.leases and len(again.leases) == 2
    rest = ledger.exchange("r", [LeaseEnd(again.leases[0].id)], 1.0, again.last)
    assert [lease.requests for lease in rest.leases] == [("t2",)]
    assert ledger.exchange("r", [LeaseEnd(again.leases[0].id)], 1.0, rest.last) == Exchange(last=rest.last)
    assert ledger.counts() == (0, 2)


def test_a_request_is_asked_for_once():
    ledger = ledger_of(lanes=1)
    ledger.join("r", "ann", 0.0)
    ledger.ask("r", requests(ledger, ["a", "b"], GIB), 0.0)
    lease = ledger.exchange("r", (), 0.0).leases[0]
    for again in ("a", "b"):
        with pytest.raises(ValueError, match=f"request {again} of run r waits or is held already: ask again once it has ended"):
            ledger.ask("r", requests(ledger, ["c", again], GIB), 0.0)
    with pytest.raises(ValueError, match="request d of run r"):
        ledger.ask("r", requests(ledger, ["d", "d"], GIB), 0.0)
    assert ledger.counts() == (1, 1)  # and nothing of the refused ones is queued
    ledger.exchange("r", [LeaseEnd(lease.id)], 0.0)
    assert ledger.ask("r", requests(ledger, ["a"], GIB), 0.0)


def test_runs_of_two_users_have_the_same_trials_and_half_of_the_bytes_each():
    ledger = ledger_of(count=2, total=24 * GIB, lanes=4)
    held = {"r1": {}, "r2": {}}
    for run, user in (("r1", "ann"), ("r2", "bob")):
        ledger.join(run, user, 0.0)
    ledger.ask("r1", requests(ledger, names(200), 3 * GIB), 0.0)
    held["r1"] = {lease.id: lease for lease in ledger.exchange("r1", (), 0.0).leases}
    assert len(held["r1"]) == 8 and bytes_of(ledger, "ann") == 24 * GIB
    ledger.ask("r2", requests(ledger, names(200), 3 * GIB), 1.0)
    for step in range(40):
        now = 1.0 + step
        for run, mine in held.items():
            done = [LeaseEnd(lease, seconds=9.0) for lease in list(mine)[:1]]
            for end in done:
                del mine[end.lease]
            mine |= {lease.id: lease for lease in ledger.exchange(run, done, now).leases if lease.id not in mine}
            known = {row["lease"] for d in ledger.snapshot()["devices"] for row in d["running"]}
            held[run] = {name: lease for name, lease in mine.items() if name in known}
    assert bytes_of(ledger, "ann") == bytes_of(ledger, "bob") == 12 * GIB
    for device in ledger.snapshot()["devices"]:
        assert device["runs"] == ["r1", "r2"] and len(device["running"]) == 4  # lanes are shared, not doubled


def test_each_run_pays_for_its_own_process():
    ledger = ledger_of(total=8 * GIB, lanes=4)
    ledger.join("r1", "ann", 0.0)
    ledger.join("r2", "bob", 0.0)
    room = ledger.devices()[0].capacity
    ledger.ask("r1", requests(ledger, ["a"], room - 2 * PROCESS - GIB), 0.0)
    ledger.ask("r2", requests(ledger, ["b"], GIB + 1), 0.0)
    assert len(ledger.exchange("r1", (), 0.0).leases) == 1
    assert not ledger.exchange("r2", (), 0.0).leases
    text = ledger.why("r2")["b"].why
    free = "pool pretended-n1-0 has 1.562 GiB free of 7.5 GiB"  # its process takes 0.5625 GiB of that
    assert text == f"needs 1 GiB: {free}; cuda:pretended-n1-0 is reserved for it (its user is below the fair share)"


def test_an_idle_process_stays_charged_when_lanes_are_shared_anew():
    ledger = ledger_of(total=8 * GIB, lanes=4)
    room = ledger.devices()[0].capacity - 2 * PROCESS
    ledger.join("r1", "ann", 0.0, requests=requests(ledger, ["a"], GIB))
    answer = ledger.exchange("r1", (), 0.0)
    ledger.exchange("r1", [LeaseEnd(answer.leases[0].id)], 1.0, answer.last)
    ledger.join("r2", "bob", 2.0, requests=requests(ledger, ["b", "c"], room))
    ledger.ask("r1", requests(ledger, ["d"], GIB), 2.0)
    assert ledger.exchange("r1", (), 2.0, answer.last).leases == () and ledger.counts() == (2, 1)
    assert ledger.snapshot()["pools"][0]["process"] == 2 * PROCESS and ledger.snapshot()["pools"][0]["free"] == 0


def test_an_idle_process_in_the_way_is_asked_to_end():
    ledger = ledger_of(total=8 * GIB, lanes=4)
    room = ledger.devices()[0].capacity - PROCESS
    ledger.join("r1", "ann", 0.0)
    ledger.join("r2", "bob", 0.0)
    ledger.ask("r1", requests(ledger, ["a"], GIB), 0.0)
    lease = ledger.exchange("r1", (), 0.0).leases[0]
    ledger.ask("r2", requests(ledger, ["b"], room), 0.0)
    last = ledger.exchange("r1", (), 0.0).last
    answer = ledger.exchange("r1", [LeaseEnd(lease.id)], 1.0, last)
    assert answer.close == (lease.device,) and not ledger.exchange("r2", (), 1.0).leases
    assert ledger.exchange("r1", (), 2.0, answer.last).close == ()  # once
    ledger.closed("r1", lease.device)
    assert [granted.requests for granted in ledger.exchange("r2", (), 2.0).leases] == [("b",)]


def test_silence_ends_leases_and_a_late_return_does_not_bring_them_back():
    ledger = ledger_of(lanes=1)
    asked = requests(ledger, ["a"], GIB)
    ledger.join("r", "ann", 0.0, requests=asked)
    lease = ledger.exchange("r", (), 0.0).leases[0]
    assert lease.expires == 30.0 and ledger.expire(30.0) == []
    assert [end.id for end in ledger.expire(31.0)] == [lease.id]
    assert ledger.exchange("r", (), 31.0) == Exchange(known=False) and not ledger.beat("r", 31.0)
    back = ledger.join("r", "ann", 32.0, held=[Held(lease, asked[0])])
    assert [(end.lease, end.reason) for end in back.ended] == [(lease.id, "expired: its run was silent for 31 s")]
    assert ledger.counts() == (0, 0)


def test_a_ledger_that_starts_again_keeps_what_is_held_and_grants_nothing_before_all_had_time():
    old = ledger_of(lanes=2)
    asked = requests(old, ["a", "b", "c"], GIB)
    old.join("r", "ann", 0.0, requests=asked)
    leases = old.exchange("r", (), 0.0).leases
    new = ledger_of(lanes=2, epoch="e1-", settle_until=10.0)
    held = [Held(lease, request) for lease, request in zip(leases, asked)]
    answer = new.join("r", "ann", 1.0, held[:1], asked[2:], seen=7)
    assert not answer.leases and not answer.ended and answer.last == 7
    assert new.exchange("r", (), 9.0).leases == ()
    granted = new.exchange("r", (), 10.0).leases
    assert [(lease.id, lease.requests) for lease in granted] == [("e1-1", ("c",))]
    late = new.join("r", "ann", 11.0, held[1:])
    assert not late.ended and new.counts() == (0, 3)  # there is room: it is kept


def test_a_ledger_that_starts_again_charges_idle_workers_and_ends_those_that_do_not_fit():
    ledger = ledger_of(total=8 * GIB, lanes=2)
    device = ledger.devices()[0].id
    ledger.join("r1", "ann", 0.0, workers=[device])
    assert ledger.snapshot()["pools"][0]["process"] == PROCESS
    room = ledger.devices()[0].capacity - 2 * PROCESS
    ledger.join("r2", "bob", 0.0, requests=requests(ledger, ["a"], room))
    assert ledger.counts() == (0, 1) and ledger.snapshot()["pools"][0]["free"] == 0
    late = ledger.join("r3", "eve", 1.0, workers=[device, "lost"])
    assert late.close == (device,) and ledger.snapshot()["pools"][0]["free"] == -PROCESS
    ledger.closed("r3", device)
    assert ledger.snapshot()["pools"][0]["free"] == 0


def test_a_device_that_was_lost_and_is_back_asks_for_idle_workers_again():
    ledger = ledger_of(total=8 * GIB, lanes=1)
    row, room = ledger.devices()[0], ledger.devices()[0].capacity - PROCESS
    for now in (0.0, 10.0):
        ledger.join("r1", "ann", now, requests=requests(ledger, [f"a{now}"], GIB))
        answer = ledger.exchange("r1", (), now)
        last = ledger.exchange("r1", [LeaseEnd(answer.leases[-1].id)], now, answer.last).last
        ledger.join("r2", "bob", now, requests=requests(ledger, [f"b{now}"], room))
        assert ledger.exchange("r1", (), now, last).close == (row.id,)
        ledger.withdraw("r2", [f"b{now}"])
        ledger.lose_device(row.id)
        ledger.add_device(row)


def test_a_lease_that_is_told_too_late_ends_when_its_bytes_are_gone():
    old = ledger_of(total=8 * GIB, lanes=2)
    asked = requests(old, ["a"], 6 * GIB)
    old.join("r1", "ann", 0.0, requests=asked)
    lease = old.exchange("r1", (), 0.0).leases[0]
    new = ledger_of(total=8 * GIB, lanes=2, epoch="e1-")
    new.join("r2", "bob", 0.0, requests=requests(new, ["b"], 5 * GIB))
    answer = new.join("r1", "ann", 1.0, [Held(lease, asked[0])])
    assert [end.reason for end in answer.ended] == ["expired: its bytes were granted to others while the run was silent"]
    gone = ledger_of(count=0)
    answer = gone.join("r1", "ann", 1.0, [Held(lease, asked[0])])
    assert [end.reason for end in answer.ended] == ["device lost: the ledger has started again and does not find it"]


def test_a_lost_device_ends_its_leases_and_says_why():
    ledger = ledger_of(count=2, lanes=1)
    ledger.join("r", "ann", 0.0, requests=requests(ledger, names(3), GIB))
    answer = ledger.exchange("r", (), 0.0)
    lost = answer.leases[0]
    assert [lease.id for lease in ledger.lose_device(lost.device, "fell off the bus")] == [lost.id]
    news = ledger.exchange("r", (), 1.0, answer.last)
    assert [(end.lease, end.reason) for end in news.ended] == [(lost.id, "device lost: fell off the bus")]
    assert not news.leases and ledger.counts() == (1, 1)  # the run says what is to run again
    assert ledger.lose_device("nothing of this name") == []


def test_what_others_hold_is_not_granted():
    ledger = ledger_of(total=24 * GIB, lanes=4)
    pool = ledger.devices()[0].pool
    ledger.join("r", "ann", 0.0)
    ledger.observe(pool, free=12 * GIB)
    ledger.ask("r", requests(ledger, names(4), 5 * GIB), 0.0)
    answer = ledger.exchange("r", (), 0.0)
    assert len(answer.leases) == 2  # of 24 GiB 1.2 are left alone, others hold 12, a process takes 0.6
    ledger.observe(pool, free=20 * GIB, ours=4 * GIB, run="r")  # ours hold less than they may: nobody else is there
    assert ledger.snapshot()["pools"][0]["foreign"] == 0
    ledger.observe(pool, free=10 * GIB, ours=4 * GIB, run="r")
    assert ledger.snapshot()["pools"][0]["foreign"] == pytest.approx(10 * GIB, abs=24 * GIB / 64)


def test_withdrawn_requests_do_not_start():
    ledger = ledger_of(lanes=1)
    ledger.join("r", "ann", 0.0, requests=requests(ledger, names(3), GIB))
    lease = ledger.exchange("r", (), 0.0).leases[0]
    assert lease.requests == ("t0",) and ledger.withdraw("r", ["t0", "t1", "else"]) == ["t1"]
    assert [got.requests for got in ledger.exchange("r", [LeaseEnd(lease.id)], 1.0, 1).leases] == [("t2",)]
    assert ledger.withdraw("nobody", ["t0"]) == []


def test_the_ledger_of_one_process():
    ledger = LocalLedger("drop", "ann", devices=pretended(2, 24 * GIB, lanes=2))
    claims = {ledger.devices()[0].kind: Claim.of([(2 * GIB, 1.0)])}
    ledger.ask([Request(name, "", "", claims, time.time()) for name in names(30)])
    ran, done = [], []
    while answer := ledger.exchange(done):
        assert answer.reached and not answer.ended
        ran += [name for lease in answer.leases for name in lease.requests]
        done = [LeaseEnd(lease.id, seconds=0.2) for lease in answer.leases]
    assert sorted(ran) == sorted(names(30)) and ledger.why() == {} and ledger.refs() == []
    assert ledger.options(ledger.devices()[0].id) == {"num_cpus": 0}
    ledger.ask([Request("more", "", "", claims, time.time())])
    held = ledger.exchange().leases[0]
    assert ledger.avoid(held.device, 30.0) and not ledger.exchange()  # what runs there goes on
    ledger._ledger.lose_device(held.device, "broken")
    assert [end.reason for end in ledger.exchange().ended] == ["device lost: broken"]
    ledger.close()
    assert ledger.snapshot()["runs"] == [] and not ledger.exchange().known


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (3, "the ledger of this cluster speaks version 3, this qdrun speaks 5\n  do: use the qdrun that the cluster has, or"),
        ("late", "actor qdrun-ledger of namespace qdrun, has not answered for 60 s\n  do: see its state and its log"),
        ("dead", "does not start: .*\n  do: see that the nodes of the cluster can import this version of qdrun"),
    ],
)
def test_a_ledger_that_cannot_be_used_says_what_to_do(monkeypatch, answer, text):
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError

    from qdrun.runner.ray_adapter.ledger_client import LedgerError, check_version

    def get(_, timeout):
        if isinstance(answer, int):
            return answer
        raise GetTimeoutError("late") if answer == "late" else RayActorError()

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(LedgerError, match=text):
        check_version(type("Actor", (), {"version": type("Call", (), {"remote": staticmethod(lambda: None)})}))


def test_a_run_is_granted_nothing_on_a_device_that_it_avoids_and_others_are():
    ledger = ledger_of(count=2, lanes=2)
    bad, good = (row.id for row in ledger.devices())
    for run in ("r1", "r2"):
        ledger.join(run, "ann", 0.0)
    ledger.ask("r1", requests(ledger, names(9), GIB), 0.0)
    answer = ledger.exchange("r1", (), 0.0)
    assert [lease.device for lease in answer.leases].count(bad) == 2
    assert ledger.avoid("r1", bad, 30.0, 1.0)
    assert not ledger.avoid("r1", good, 30.0, 1.0), "it has no other"
    assert not ledger.avoid("r1", "nowhere", 30.0, 1.0) and not ledger.avoid("nobody", bad, 30.0, 1.0)
    for k in range(3):  # all that it gives back comes back on the other one
        answer = ledger.exchange("r1", [LeaseEnd(lease.id) for lease in answer.leases], 2.0 + k, answer.last)
        assert {lease.device for lease in answer.leases} <= {good}
    ledger.ask("r2", requests(ledger, names(2, "b"), GIB), 6.0)
    assert bad in {lease.device for lease in ledger.exchange("r2", (), 6.0).leases}
    ledger.ask("r1", requests(ledger, names(9, "c"), GIB), 7.0)
    assert bad not in {lease.device for lease in ledger.exchange("r1", (), 30.9, answer.last).leases}
    assert bad in {lease.device for lease in ledger.exchange("r1", (), 31.0, answer.last).leases}


def test_of_many_shapes_the_first_are_explained_and_the_others_counted():
    """A sweep over sizes has as many shapes as trials: what a run is told, and writes down, must not grow with them."""
    ledger = ledger_of(lanes=1)
    ledger.join("r", "ann", 0.0)
    for k in range(500):
        ledger.ask("r", requests(ledger, [f"a{k}", f"b{k}"], GIB + k), 0.0)
    (lease,) = ledger.exchange("r", (), 0.0).leases
    waits = ledger.why("r")
    assert list(waits) == [f"a{k}" for k in range(9)] and lease.requests == ("a499",)  # the largest
    assert sum(one.count for one in waits.values()) == 999
    *explained, rest = waits.values()
    assert all(one.why.startswith("needs 1 GiB") for one in explained)
    assert (rest.count, rest.why) == (983, "for places of 492 other sizes")
    assert len(ledger.snapshot()["waiting"]) == 100


def test_a_run_has_no_more_leases_at_once_than_it_asked_for_and_others_have_the_rest():
    ledger = ledger_of(count=2, lanes=8)
    ledger.join("r1", "ann", 0.0, terms=Terms(most=3))
    ledger.ask("r1", requests(ledger, names(40), GIB, 0.5), 0.0)
    first = ledger.exchange("r1", (), 0.0).leases
    assert len(first) == 3 and max(len(lease.requests) for lease in first) == 7  # half of a share of 3 lanes
    (waits,) = ledger.why("r1").values()
    assert waits.count == 40 - sum(len(lease.requests) for lease in first) and "3 of its run are running" in waits.why
    ledger.join("r2", "bob", 1.0)
    ledger.ask("r2", requests(ledger, names(40, "b"), GIB, 6.0), 1.0)
    assert len(ledger.exchange("r2", (), 1.0).leases) == 12  # all but two lanes of each device, for the three of r1
    lost = first[0].device
    gone = ledger.lose_device(lost)
    answer = ledger.exchange("r1", (), 2.0)
    mine = {lease.id for lease in [*first, *answer.leases]} - {lease.id for lease in gone}
    assert len(mine) == 3 and not any(lease.device == lost for lease in answer.leases)
    ended = [LeaseEnd(name) for name in sorted(mine)[:2]]
    assert len(ledger.exchange("r1", ended, 3.0, answer.last).leases) == 2


def test_the_frames_of_a_run_are_charged_with_its_process_and_with_no_other():
    ledger = ledger_of(lanes=4)
    ledger.join("r1", "ann", 0.0, terms=Terms(frames=3 * GIB))
    ledger.join("r2", "bob", 0.0)
    for run in ("r1", "r2"):
        ledger.ask(run, requests(ledger, [run], GIB), 0.0)
        assert len(ledger.exchange(run, (), 0.0).leases) == 1
    (pool,) = ledger.snapshot()["pools"]
    assert (pool["process"], pool["claimed"]) == (2 * PROCESS + 3 * GIB, 2 * GIB)
    ledger.leave("r1")
    (pool,) = ledger.snapshot()["pools"]
    assert (pool["process"], pool["claimed"]) == (PROCESS, GIB)


def lanes_of(answer):
    """Leases by device."""
    out = {}
    for lease in answer.leases:
        out[lease.device[-1]] = out.get(lease.device[-1], 0) + 1
    return out


def test_a_run_gets_no_more_of_the_lanes_than_it_may_use_while_others_wait():
    ledger = ledger_of(count=4, lanes=8)
    ledger.join("r1", "ann", 0.0, terms=Terms(most=4))
    for run, user in (("r2", "bob"), ("r3", "bob")):
        ledger.join(run, user, 0.0)
    for run in ("r1", "r2", "r3"):
        ledger.ask(run, requests(ledger, names(80, run), GIB // 8, 6.0), 0.0)
    leases = {run: lanes_of(ledger.exchange(run, (), 0.0)) for run in ("r1", "r2", "r3")}
    assert sum(leases["r1"].values()) == 4
    # One lane of each device is for the four of r1, the rest for r2 and r3; it was two devices' worth of lanes.
    assert leases["r2"] == dict.fromkeys("0123", 4) and leases["r3"] == dict.fromkeys("0123", 3)


def test_the_lanes_of_a_capped_run_are_where_the_largest_of_what_waits_fits():
    ledger = Ledger()
    for row in (*pretended(2, 24 * GIB, "n1", 8), replace(pretended(1, 80 * GIB, "n2", 8)[0], kind="large")):
        ledger.add_device(row)
    kinds = sorted({row.kind for row in ledger.devices()})
    ledger.join("r1", "ann", 0.0, terms=Terms(most=4))
    ledger.join("r2", "bob", 0.0)
    for run, gib in (("r1", 16), ("r2", 1)):
        claims = {kind: Claim.of([(gib * GIB, 1.0)], 6.0) for kind in kinds}
        ledger.ask(run, [Request(f"{run}-{k}", "", "", claims, 0.0) for k in range(60)], 0.0)
    large = {kind: Claim.of([(30 * GIB, 1.0)], 6.0) for kind in kinds}
    ledger.ask("r1", [Request("large", "", "", large, 0.0)], 0.0)
    ledger.step(0.0)
    parts = [dict(place.runs) for place in ledger._lanes.places().values()]
    assert parts == [{"r1": 4, "r2": 4}] * 3  # four of the eight lanes of the only card that holds all of it
    ledger.withdraw("r1", ["large"])
    ledger.withdraw("r2", [f"r2-{k}" for k in range(60)])
    ledger.step(1.0)
    ledger.ask("r2", requests(ledger, ["again"], GIB), 1.0)
    ledger.step(1.0)
    assert [place.runs["r1"] for place in ledger._lanes.places().values()] == [2, 2, 2]


def test_what_a_lease_took_is_learnt_for_each_of_its_requests():
    ledger = ledger_of(lanes=1)
    ledger.join("r", "ann", 0.0)
    ledger.ask("r", requests(ledger, names(400), GIB, 0.05), 0.0)
    answer, took = ledger.exchange("r", (), 0.0), []
    for end in (LeaseEnd(answer.leases[0].id, seconds=0.1), LeaseEnd("", "cut short", seconds=99.0)):
        ended = LeaseEnd(answer.leases[0].id, end.reason, end.seconds)
        answer = ledger.exchange("r", [ended], 7.0, answer.last)
        took += [group.took for group in ledger._packer._waiting.groups()]
    assert took == [pytest.approx(0.1)] * 2  # what was cut short says nothing


def test_of_the_cores_of_a_node_a_run_gets_the_row_with_the_threads_that_it_asked_for():
    """Two nodes, of 8 and of 2 cores; one run asked for 4 threads, which are 2 on the small node, another one for 2."""
    ledger, host = Ledger(), pretended(1, 24 * GIB, backend="cpu")[0]
    for name, node, threads, lanes in (("a@t2", "a", 2, 4), ("a@t4", "a", 4, 2), ("b@t2", "b", 2, 1)):
        row = replace(host, id=name, node=node, pool=f"ram@{node}", threads=threads, lanes=lanes, kind=f"cpu/x/{threads}")
        ledger.add_device(row)
    claims = {f"cpu/x/{threads}": Claim.of([(GIB, 1.0)], 6.0) for threads in (2, 4)}
    ledger.join("r", "ann", 0.0)
    ledger.ask("r", [Request(f"t{k}", "", "", claims, 0.0) for k in range(9)], 0.0)
    leases = ledger.exchange("r", (), 0.0).leases
    assert sorted(lease.device for lease in leases) == ["a@t4", "a@t4", "b@t2"]  # its worker on a has 4 threads
    assert all("a@t2" not in waits.why for waits in ledger.why("r").values())
    ledger.join("s", "bob", 0.0)
    ledger.ask("s", [Request("s0", "", "", {"cpu/x/2": claims["cpu/x/2"]}, 0.0)], 0.0)
    assert [lease.device for lease in ledger.exchange("s", (), 0.0).leases] == ["a@t2"]


def test_of_shapes_that_are_over_the_ledger_remembers_the_last_ones_alone():
    """A sweep of many sizes, that asks for the next when one has ended; and one that asks for all of them and withdraws."""
    ledger = ledger_of(lanes=1)
    ledger.join("r", "ann", 0.0)
    state, seen, end = ledger._runs["r"], 0, []
    for k in range(3 * MOST_SPENT):
        ledger.ask("r", requests(ledger, [f"t{k}"], GIB + k), float(k))
        answer = ledger.exchange("r", end, float(k), seen)
        seen, end = answer.last, [LeaseEnd(answer.leases[0].id, seconds=float(k))]
        assert len(state.shapes) <= MOST_SPENT + 1
    ledger.exchange("r", end, 3.0 * MOST_SPENT, seen)
    assert len(state.shapes) == len(state.spent) == MOST_SPENT and state.kinds
    assert max(shape.seconds for shape in state.shapes.values()) == 3 * MOST_SPENT - 1  # those that ended last
    many = [requests(ledger, [f"u{k}"], 2 * GIB + k)[0] for k in range(5 * MOST_SPENT)]
    ledger.ask("r", many, 1e6)
    assert len(state.shapes) >= 5 * MOST_SPENT
    ledger.withdraw("r", [request.id for request in many])
    assert len(state.shapes) == MOST_SPENT
    ledger.ask("r", requests(ledger, ["again", "more"], 2 * GIB + 5 * MOST_SPENT - 1), 2e6)
    assert [lease.requests for lease in ledger.exchange("r", (), 2e6, seen).leases] == [("again",)]


def test_what_a_lease_covered_that_was_never_told_waits_again_though_its_shape_is_forgotten(monkeypatch):
    monkeypatch.setattr(runs, "MOST_SPENT", 0)
    ledger = ledger_of()
    ledger.join("r", "ann", 0.0)
    ledger.ask("r", requests(ledger, ["t0"], GIB), 0.0)
    ledger.step(0.0)
    (device,) = ledger.devices()
    ledger.lose_device(device.id, "its node is gone")
    assert not ledger._runs["r"].shapes
    ledger.add_device(device)
    seen = ledger.exchange("r", (), 1.0).last
    assert [lease.requests for lease in ledger.exchange("r", (), 2.0, seen).leases] == [("t0",)]
    assert [shape.waiting for shape in ledger._runs["r"].shapes.values()] == [{}]
