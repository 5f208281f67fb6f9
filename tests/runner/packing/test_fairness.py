"""Shares between users, and how long one may wait: the bounds that docs/packing.md states."""

import random

import pytest

from benchmarks.packing import GIB, LARGE, SMALL, cards, mixed, packed
from qdrun.runner.packing import Claim, DeviceSpec, Packer, Pool, Request, simulate
from qdrun.runner.packing.fairness import Shares
from qdrun.runner.packing.queue import Waiting

LONGEST = 1.8


def named(shares, waiting):
    return [user for _, user in shares.order(waiting.users)]


def test_a_share_is_the_larger_one_of_bytes_and_lanes_and_users_come_in_its_order():
    shares, waiting = Shares(), Waiting()
    for user in "badc":
        one = Request(user, user, "run", {"k": Claim.of([(1, 1.0)])}, 0.0)
        waiting.add(one, one.shape())
    shares.resize(100, 10)
    shares.add("b", 60)
    shares.add("a", 10)
    shares.add("a", 10)
    assert (shares.share("a"), shares.share("b"), shares.share("c")) == (0.2, 0.6, 0.0)
    assert shares.share("c", more=40) == 0.4 and shares.held("a") == (20, 2)
    assert named(shares, waiting) == ["c", "d", "a", "b"] and shares.active(waiting.users) == 4
    shares.resize(10_000, 10)
    assert named(shares, waiting) == ["c", "d", "b", "a"]
    waiting.remove("d")
    waiting.remove("b")
    assert named(shares, waiting) == ["c", "a"] and shares.active(waiting.users) == 3  # b runs, but has nothing that waits
    assert shares.deserves("c", 9_999, 3) and not shares.deserves("c", 9_999, 1)
    assert shares.deserves("a", 10, 2) and not shares.deserves("a", 10, 3)
    assert shares.deserves("b", 10, 4) and not shares.deserves("b", 2_600, 4)
    shares.remove("a", 10)
    shares.remove("a", 10)
    assert list(shares.holders()) == ["b"] and named(shares, waiting) == ["a", "c"]
    waiting.remove("c")
    assert named(shares, waiting) == ["a"] and shares.active(waiting.users) == 2


def small(name, user, gib, submitted, seconds, known):
    claims = {f"{size} GiB": Claim.of([(int(gib * GIB), 1.0)], seconds if known else None) for size in (24, 80)}
    return Request(name, user, "run", claims, submitted)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_newcomer_starts_within_one_longest_request_whatever_the_others_queue(seed, known):
    r = random.Random(seed)
    pools, devices = cards(8)
    seconds = {f"a{i}": r.uniform(0.2, LONGEST) for i in range(400)}
    requests = [small(name, "a", r.choice(SMALL), 0.0, took, known) for name, took in seconds.items()]
    for number in range(10):
        seconds[f"b{number}"] = LONGEST
        requests.append(small(f"b{number}", "b", r.choice(LARGE), 3.0, LONGEST, known))
    ran = simulate(requests, pools, devices, takes=lambda p: seconds[p.request.id])
    first = min(ran.starts[name] for name in ran.starts if name.startswith("b"))
    assert 3.0 <= first <= 3.0 + LONGEST


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3))])
def test_an_overtaken_request_starts_soon_after_however_long_the_stream_of_younger_ones(seed, known):
    r, age = random.Random(seed), 3.0
    pools, devices = [made[2:] for made in cards(16)]
    # A stream of one user at the capacity of the lanes of two equal cards; the large ones come at 2 s, in a short row.
    seconds = {f"s{i}": r.uniform(0.2, LONGEST) for i in range(1500)}
    requests = [small(n, "u", r.choice((3, 4, 6)), i / 32, took, known) for i, (n, took) in enumerate(seconds.items())]
    for number in range(3):
        seconds[f"big{number}"] = LONGEST
        requests.append(small(f"big{number}", "u", 70, 2.0, LONGEST, known))
    ran = simulate(requests, pools, devices, age_s=age, takes=lambda p: seconds[p.request.id])
    arrived = {q.id: q.submitted for q in requests}
    for number in range(3):
        start = ran.starts[f"big{number}"]
        overtakers = [s for name, s in ran.starts.items() if arrived[name] > 2.0 + age and s < start]
        # From the moment when it is overtaken: a drain of one card for each of the row, this one included.
        assert not overtakers or start <= min(overtakers) + 3 * LONGEST
    plain = simulate(requests, pools, devices, age_s=1e9, takes=lambda p: seconds[p.request.id])
    assert max(ran.starts[f"big{i}"] for i in range(3)) < max(plain.starts[f"big{i}"] for i in range(3)) / 2


@pytest.mark.parametrize("users", [2, 3, 5])
def test_users_that_all_wait_hold_their_fair_share_but_for_one_request(users):
    case = mixed(0, 600, 8, "uniform 0.2-1.8 s")
    packer, r = Packer(), random.Random(users)
    for pool in case.pools:
        packer.add_pool(pool)
    for device in case.devices:
        packer.add_device(device)
    # Requests of one size, so that what a user holds is not a matter of what fits: 1 GiB, 32 lanes.
    packer.submit([small(f"{i}", f"u{i % users}", 1, 0.0, 1.0, False) for i in range(600)])
    running = [p.request.id for p in packer.next(0.0)]
    for step in range(400):
        packer.finish(running.pop(r.randrange(len(running))))
        running += [p.request.id for p in packer.next(float(step))]
        held = [user["running"] for user in packer.snapshot()["users"]]
        assert sum(held) == 32 and max(held) - min(held) <= 2


def test_who_has_less_than_the_fair_share_goes_before_who_has_more():
    packer = Packer()
    packer.add_pool(Pool("p", 100))
    packer.add_device(DeviceSpec("d", "p", "k", 10))
    claims = {"k": Claim.of([(10, 1.0)])}
    packer.submit([Request(f"a{i}", "a", "run", claims, 0.0) for i in range(30)])
    assert len(packer.next(0.0)) == 10
    packer.submit([Request(f"b{i}", "b", "run", claims, 50.0) for i in range(30)])
    for number in range(5):
        packer.finish(f"a{number}")
        assert [p.request.user for p in packer.next(51.0)] == ["b"]
    packer.finish("b0")
    assert [p.request.user for p in packer.next(52.0)] == ["b"]


def of_users(seed, count=300, users=10):
    """Trials of several users, in turn."""
    case = mixed(seed, count, 8, "log-normal, mean 1 s", distinct=seed % 2 == 1)
    case.requests = [Request(q.id, f"u{i % users}", q.run, q.claims, 0.0) for i, q in enumerate(case.requests)]
    return case


@pytest.mark.parametrize("users, most", [(2, 1.10), (10, 1.20)])
def test_what_fairness_costs(users, most):
    ratios = []
    for seed in range(8):
        case = mixed(seed, 500, 8, "log-normal, mean 1 s")
        case.requests = [Request(q.id, f"u{i % users}", q.run, q.claims, 0.0) for i, q in enumerate(case.requests)]
        ratios.append(packed(case) / case.bound())
    assert sum(ratios) / len(ratios) <= most
