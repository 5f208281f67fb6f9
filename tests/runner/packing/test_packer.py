"""The packer's rules, one at a time."""

import json
from dataclasses import replace
from random import Random

import pytest

from qdrun.runner.packing import Claim, ClaimPoint, DeviceSpec, Packer, Pool, Request, queue
from qdrun.runner.packing.pools import Gate
from qdrun.runner.packing.queue import first_fitting

GIB = 1 << 30
SIZES = {"p0": 24, "p1": 80}


def packer(**options):
    """A card of 24 GiB with 2 lanes and one of 80 GiB with 4."""
    made = Packer(**options)
    for (name, size), lanes in zip(SIZES.items(), (2, 4)):
        made.add_pool(Pool(name, size * GIB))
        made.add_device(DeviceSpec(f"gpu{name[1]}", name, "card", lanes, GIB))
    return made


def request(name, gib, submitted=0.0, seconds=None, kind="card"):
    points = gib if isinstance(gib, list) else [(gib, 1.0)]
    return Request(name, {kind: Claim.of([(int(g * GIB), t) for g, t in points], seconds)}, submitted)


def places(placements):
    return {p.request.id: (p.device, p.point.bytes / GIB) for p in placements}


def pool(made, name):
    return next(row for row in made.snapshot()["pools"] if row["id"] == name)


def test_a_curve_is_checked_and_made():
    curve = Claim.of([(8, 2.0), (4, 3.0), (6, 3.5), (9, 2.5), (2, 9.0)], seconds=5.0)
    assert curve.points == (ClaimPoint(8, 1.0), ClaimPoint(4, 1.5), ClaimPoint(2, 4.5))
    assert curve.smallest == 2
    with pytest.raises(ValueError, match=r"bytes fall and time rises: .*bytes=4, time=1.0.* use Claim.of"):
        Claim((ClaimPoint(4, 1.0), ClaimPoint(4, 2.0)))
    with pytest.raises(ValueError, match="the fastest, has time 1"):
        Claim((ClaimPoint(4, 2.0),))
    with pytest.raises(ValueError, match="positive and finite, or None"):
        Claim((ClaimPoint(4),), 0.0)
    with pytest.raises(ValueError, match="bytes >= 0"):
        ClaimPoint(-1)
    with pytest.raises(ValueError, match="request t needs a claim"):
        Request("t", {}, 0.0)


def test_a_worker_is_charged_once_and_while_it_is_idle():
    made = packer()
    made.submit([request("a", 3), request("b", 3), request("c", 3)])
    assert places(made.next(0.0)) == {"a": ("gpu0", 3.0), "b": ("gpu0", 3.0), "c": ("gpu1", 3.0)}
    assert (pool(made, "p0")["process"], pool(made, "p0")["claimed"]) == (GIB, 6 * GIB)
    made.finish("a")
    made.finish("b")
    assert pool(made, "p0")["free"] == 23 * GIB
    assert made.worker_ended("gpu0") == []
    assert pool(made, "p0")["free"] == 24 * GIB
    made.worker_started("gpu0")
    made.submit([request("d", 23)])
    assert places(made.next(1.0)) == {"d": ("gpu0", 23.0)}
    assert [r.id for r in made.worker_ended("gpu0")] == ["d"]
    assert made.counts() == (0, 1)


def test_small_devices_fill_first_and_bytes_are_balanced_against_lanes():
    made = packer()
    made.submit([request(f"s{i}", 1) for i in range(3)] + [request(f"l{i}", 20) for i in range(3)])
    # The largest on an empty device, then the smallest, since more of its bytes are in use than of its lanes.
    assert places(made.next(0.0)) == {
        **{"l0": ("gpu0", 20.0), "s0": ("gpu0", 1.0)},
        **{"l1": ("gpu1", 20.0), "s1": ("gpu1", 1.0), "l2": ("gpu1", 20.0), "s2": ("gpu1", 1.0)},
    }


def both(name, gib, small=True):
    """For cards of both classes, of which the small one holds 23 GiB."""
    claim = Claim.of([(int(gib * GIB), 1.0)])
    return Request(name, {"card": claim, "large": claim} if small else {"large": claim}, 0.0)


def test_two_devices_of_one_pool_share_its_bytes_and_an_idle_worker_may_be_in_the_way():
    made = Packer()
    made.add_pool(Pool("card", 10 * GIB))
    made.add_device(DeviceSpec("x:0", "card", "x", 2, GIB))
    made.add_device(DeviceSpec("y:0", "card", "y", 2, 2 * GIB))
    made.submit([request("a", 6, kind="x"), request("b", 6, kind="y")])
    assert places(made.next(0.0)) == {"a": ("x:0", 6.0)}
    assert made.why("b") == "needs 6 GiB and 2 GiB for its process: pool card has 3 GiB free of 10 GiB"
    assert made.idle_in_the_way() == []
    made.finish("a")
    made.withdraw(["b"])
    made.submit([request("c", 8, kind="y")])
    assert made.next(1.0) == [] and made.idle_in_the_way() == ["x:0"]
    made.worker_ended("x:0")
    assert places(made.next(1.0)) == {"c": ("y:0", 8.0)}


def keeps(made, idle, waiting):
    """What an idle worker of x keeps from starting on y, by looking at every request."""
    room = pool(made, "card")["free"] - 2 * GIB
    most = pool(made, "card")["capacity"] - pool(made, "card")["foreign"] - 2 * GIB
    firsts = [next((p.bytes for p in r.claims["y"].points if p.bytes <= most), 0) for r in waiting]
    return ["x:0"] if idle and any(room < need <= room + GIB for need in firsts) else []


@pytest.mark.parametrize("seed", range(20))
def test_idle_workers_in_the_way_of_requests_with_curves(seed):
    random = Random(seed)
    made = Packer()
    made.add_pool(Pool("card", 10 * GIB))
    made.add_device(DeviceSpec("x:0", "card", "x", 1, GIB))
    made.add_device(DeviceSpec("y:0", "card", "y", 1, 2 * GIB))
    made.worker_started("x:0")
    made.set_foreign("card", random.choice((0, 0, 1, 3)) * GIB)
    sizes = [sorted({random.randrange(1, 90) * GIB // 10 for _ in range(random.randint(1, 3))}) for _ in range(3)]
    waiting = [
        Request(f"t{i}", {"y": Claim.of([(n, 2.0 - k / 9) for k, n in enumerate(some)])}, 0.0) for i, some in enumerate(sizes)
    ]
    made.submit(waiting)
    assert made.idle_in_the_way() == keeps(made, True, waiting)


def test_who_is_in_the_way_of_thousands_of_claims_is_found_without_a_look_at_each(monkeypatch):
    looked = []
    monkeypatch.setattr(queue, "first_fitting", lambda *args: looked.append(args) or first_fitting(*args))
    made = Packer()
    made.add_pool(Pool("card", 10 * GIB))
    made.add_device(DeviceSpec("x:0", "card", "x", 1, GIB))
    made.add_device(DeviceSpec("y:0", "card", "y", 1, 2 * GIB))
    made.worker_started("x:0")
    made.submit([request(f"t{i}", 1 + i / 1000, kind="y") for i in range(5000)])
    made.submit([request("large", 8, kind="y")])
    looked.clear()
    assert made.idle_in_the_way() == ["x:0"] and len(looked) == 0


def test_what_others_hold_is_not_promised_and_what_runs_stays():
    made = packer()
    made.submit([request("a", 10)])
    made.next(0.0)
    made.set_foreign("p0", 20 * GIB)
    made.set_foreign("p1", 75 * GIB)
    assert pool(made, "p0")["free"] == -7 * GIB
    made.submit([request("b", 5)])
    assert made.next(1.0) == []
    assert made.why("b") == (
        "needs 5 GiB at its smallest on gpu1 (card), and its process 1 GiB: 6 GiB, "
        "more than the 80 GiB of pool p1, of which others hold 75 GiB"
    )
    made.set_foreign("p1", 70 * GIB)
    assert places(made.next(2.0)) == {"b": ("gpu1", 5.0)}


def test_a_device_is_lost_with_what_ran_there_and_comes_back():
    made = packer()
    made.submit([request("a", 70), request("b", 2)])
    assert places(made.next(0.0)) == {"a": ("gpu1", 70.0), "b": ("gpu0", 2.0)}
    lost = made.lose_device("gpu1")
    assert [r.id for r in lost] == ["a"]
    made.submit(lost)
    assert made.next(1.0) == []
    assert made.why("a").endswith("71 GiB, more than the 24 GiB of pool p0")
    assert made.snapshot()["waiting"] == [
        {"count": 1, "claims": {"card": [[70 * GIB, 1.0]]}, "fits": False},
    ]
    made.add_pool(Pool("p1", 80 * GIB))
    made.add_device(DeviceSpec("gpu1", "p1", "card", 4, GIB))
    assert places(made.next(2.0)) == {"a": ("gpu1", 70.0)}


def test_what_nobody_has_looked_at_yet_is_not_said_to_be_behind_others():
    made = packer()
    made.submit([request(f"t{k}", 1) for k in range(8)])
    assert made.why("t0") == (
        "needs 1 GiB and 1 GiB for its process: pool p1 has 80 GiB free of 80 GiB; what starts on gpu1 has not been decided yet"
    )
    assert len(made.next(0.0)) == 6
    assert made.why("t7").startswith("needs 1 GiB: all ")


def test_misuse_is_named():
    made = packer()
    made.submit([request("a", 1)])
    with pytest.raises(ValueError, match="request a waits or runs already"):
        made.submit([request("a", 1)])
    with pytest.raises(ValueError, match="there is a device gpu0 already: lose_device"):
        made.add_device(DeviceSpec("gpu0", "p0", "card", 1))
    with pytest.raises(ValueError, match="on pool p9, which is not there: add_pool"):
        made.add_device(DeviceSpec("gpu9", "p9", "card", 1))
    with pytest.raises(KeyError):
        made.finish("a")
    with pytest.raises(KeyError, match="neither waits nor runs"):
        made.why("b")
    with pytest.raises(ValueError, match="at least one lane"):
        DeviceSpec("gpu9", "p9", "card", 0)
    assert made.withdraw(["a", "b"])[0].id == "a"


def test_a_device_with_fewer_lanes_or_of_another_class_keeps_what_runs_there():
    made = packer()
    made.submit([request(name, 1) for name in "abcdefghij"])
    made.next(0.0)
    (spec,) = [state.device for state in made._devices.values() if state.device.id == "gpu0"]
    before = pool(made, "p0")["process"]
    made.change_device(replace(spec, lanes=1, process_bytes=spec.process_bytes + GIB))
    assert pool(made, "p0")["process"] == before + GIB
    here = [name for name in "abcdefghij" if made.why(name).startswith("runs on gpu0")]
    made.change_device(replace(spec, kind="of no use"))
    for name in here:
        assert made.finish(name).id == name
    assert not any(placement.device == "gpu0" for placement in made.next(1.0))
    assert pool(made, "p0")["claimed"] == 0


def test_an_overtaken_request_gets_a_reservation_and_others_wait_unless_they_end_before_it():
    made = packer()
    made.submit([request("run", 40, seconds=100.0)])
    assert places(made.next(0.0)) == {"run": ("gpu1", 40.0)}
    made.submit([request("big", 60, submitted=1.0, seconds=10.0)])
    assert made.next(1.0) == [] and made.reservation is None
    made.submit([request("late", 30, submitted=61.5, seconds=10.0)])
    assert places(made.next(61.5)) == {"late": ("gpu1", 30.0)}
    assert made.reservation.request == "big" and made.reservation.device == "gpu1"
    assert made.why("big") == (
        "needs 60 GiB: pool p1 has 9 GiB free of 80 GiB; gpu1 is reserved for it (overtaken by requests 60 s younger)"
    )
    made.finish("late")
    ends, known_not, too_long = request("e", 25, seconds=30.0), request("k", 25), request("l", 25, seconds=50.0)
    beside = request("s", 19, seconds=500.0)
    made.submit([request("f", 9), request("g", 9)])  # takes both lanes of the small card
    assert {p.device for p in made.next(62.0)} == {"gpu0"}
    made.submit([ends, known_not, too_long, beside])
    # The reservation comes true at 100: what ends by then may start, and what fits beside it.
    assert places(made.next(62.0)) == {"e": ("gpu1", 25.0)}
    assert made.why("l") == "needs 25 GiB: pool p1 has 14 GiB free of 80 GiB"
    made.finish("e")
    made.withdraw(["k", "l"])
    assert places(made.next(70.0)) == {"s": ("gpu1", 19.0)}
    made.submit([request("m", 5, seconds=31.0)])
    assert made.next(70.0) == []
    assert made.why("m") == "needs 5 GiB: pool p1 has 20 GiB free of 80 GiB, reserved for big"
    made.finish("run")
    assert places(made.next(100.0)) == {"big": ("gpu1", 60.0)}
    assert made.reservation.request == "m"  # the next one that is overtaken


def test_nothing_is_back_filled_where_an_end_is_not_known_or_past():
    for seconds in (None, 50.0):
        made = packer()
        made.submit([request("run", 40, seconds=seconds)])
        made.next(0.0)
        made.submit([request("big", 60, submitted=1.0, seconds=10.0)])
        made.submit([request("late", 1, submitted=61.5), request("f", 9, submitted=61.5), request("g", 30, submitted=61.5)])
        made.next(61.5)
        assert made.reservation.request == "big"
        assert places_on(made, "gpu1") == ["run", "g"]
        made.finish("g")
        made.submit([request("e", 25, seconds=1.0)])
        assert made.next(62.0) == []


def test_a_reservation_goes_with_its_request_its_device_and_its_bytes():
    def reserved():
        made = packer()
        made.submit([request("run", 40)])
        made.next(0.0)
        made.submit([request("big", 60, submitted=1.0)])
        made.submit([request("late", 30, submitted=61.5)])
        made.next(61.5)
        assert made.reservation.request == "big"
        return made

    made = reserved()
    made.withdraw(["big"])
    assert made.reservation is None
    made = reserved()
    assert {r.id for r in made.lose_device("gpu1")} == {"run", "late"}
    assert made.reservation is None and made.next(62.0) == []
    made = reserved()
    made.set_foreign("p1", 30 * GIB)
    assert made.reservation is None and made.next(62.0) == [] and made.reservation is None
    made.set_foreign("p1", 0)
    assert made.next(63.0) == [] and made.reservation.request == "big"


def places_on(made, device):
    return [run["request"] for row in made.snapshot()["devices"] if row["id"] == device for run in row["running"]]


def test_a_request_runs_at_the_fastest_point_that_its_class_holds_beside_what_others_hold_of_it():
    curve = [(90, 1.0), (60, 2.0), (15, 2.25)]
    made = packer()
    made.submit([request(f"t{i}", curve, seconds=10.0) for i in range(3)])
    assert places(made.next(0.0)) == {"t0": ("gpu1", 60.0)}
    made.set_foreign("p1", 30 * GIB)
    made.finish("t0")
    assert {(p.device, p.point.bytes // GIB) for p in made.next(1.0)} == {("gpu0", 15), ("gpu1", 15)}
    made.submit([request("t3", curve, seconds=10.0)])
    made.set_foreign("p1", 10 * GIB)  # a new point for what waits, the old one for what runs
    assert made.next(2.0) == [] and made.why("t3").startswith("needs 60 GiB: pool p1 has 54 GiB free")


def test_a_batch_takes_one_lane_and_the_snapshot_is_plain_data():
    made = packer()
    made.submit([Request("b", {"card": Claim.of([(GIB, 1.0)])}, 0.0, trials=range(64))])
    made.next(3.0)
    shot = made.snapshot()
    assert json.loads(json.dumps(shot)) == shot
    assert shot["devices"][0] == {
        **{"id": "gpu0", "kind": "card", "pool": "p0", "lanes": 2, "worker": True},
        "running": [{"request": "b", "trials": 64, "bytes": GIB, "since": 3.0}],
    }


def gated(most, **options):
    """Two cards of 24 GiB with 4 lanes each; those of class x let ``most`` run at once on both."""
    made, gate = Packer(**options), Gate(most)
    for k in (0, 1):
        made.add_pool(Pool(f"p{k}", 24 * GIB))
        made.add_device(DeviceSpec(f"x{k}", f"p{k}", "x", 4), gate)
        made.add_device(DeviceSpec(f"y{k}", f"p{k}", "y", 4))
    return made


def test_devices_with_a_gate_run_no_more_than_it_lets_through_on_all_of_them():
    made = gated(3)
    made.submit([request(f"x{k}", 8, kind="x") for k in range(6)])
    first = places(made.next(0.0))
    assert len(first) == 3 and {where for where, _ in first.values()} == {"x0", "x1"}
    waits = next(f"x{k}" for k in range(6) if f"x{k}" not in first)
    assert "3 of its run are running, and no more may at once" in made.why(waits)
    made.submit([request(f"y{k}", 1, kind="y") for k in range(2)])
    assert len(made.next(1.0)) == 2  # others are not held up
    made.finish(min(first))
    assert len(made.next(2.0)) == 1 and made.next(3.0) == []
    assert made.idle_in_the_way() == []


def test_nothing_is_reserved_for_what_a_gate_holds_back():
    made = gated(1, age_s=10.0)
    made.submit([request("x0", 2, kind="x")])
    made.next(0.0)
    made.submit([request("x1", 20, kind="x"), request("y0", 20, kind="y"), request("y1", 4, 50.0, kind="y")])
    assert "y1" in places(made.next(50.0))
    assert made.next(51.0) == [] and made.reservation is None  # x1 was overtaken, but may not start anyway
    made.finish("x0")
    assert "x1" in places(made.next(52.0))


@pytest.mark.parametrize("seed", range(10))
def test_a_gate_is_never_overrun_and_everything_ends(seed):
    random, most = Random(seed), 1 + seed % 4
    made = gated(most, age_s=5.0)
    wanted = [request(f"t{k}", random.choice((1, 6, 20)), kind=random.choice("xxy")) for k in range(60)]
    made.submit(wanted)
    running, ended, now = {}, 0, 0.0
    while ended < len(wanted):
        for placement in made.next(now):
            running[placement.request.id] = placement.device
        assert sum(device.startswith("x") for device in running.values()) <= most
        assert running, made.snapshot()["waiting"]
        over = random.choice(sorted(running))
        del running[over]
        made.finish(over)
        ended, now = ended + 1, now + random.random()
        if random.random() < 0.1:
            lost = made.lose_device("x0")
            made.add_device(DeviceSpec("x0", "p0", "x", 4), made._gates["x"])
            made.submit(lost)
            for one in lost:
                del running[one.id]


def shapes(made, seconds, names="ab", sizes=(10.0, 9.5), count=40, prefix=""):
    """Requests of some shapes, ``count`` of each. Ends them in the order of their seconds; how many ran at once, before each end."""
    claims = {name: {"card": Claim.of([(int(size * GIB), 1.0)])} for name, size in zip(names, sizes)}
    made.submit([Request(f"{prefix}{name}{k}", claims[name], 0.0) for name in names for k in range(count)])
    running, seen, now = {}, [], 0.0
    while True:
        for placement in made.next(now):
            running[placement.request.id] = now + seconds[placement.request.id[len(prefix)]]
        if not running:
            return seen
        seen.append({name: sum(one[len(prefix)] == name for one in running) for name in names})
        over = min(running, key=lambda one: (running[one], one))
        now = running.pop(over)
        made.finish(over, seconds[over[len(prefix)]])


def one_card(lanes=8):
    made = Packer()
    made.add_pool(Pool("p", 80 * GIB))
    made.add_device(DeviceSpec("d", "p", "card", lanes))
    return made


def test_shapes_of_nearly_equal_bytes_run_side_by_side_and_others_one_after_the_other():
    seen = shapes(one_card(), {"a": 1.0, "b": 1.0})
    assert seen[0] == {"a": 5, "b": 3}  # the larger ones weigh more
    assert all(min(at.values()) >= 2 for at in seen[:60])
    apart = shapes(one_card(), {"a": 1.0, "b": 1.0}, sizes=(10.0, 8.7))
    assert apart[0] == {"a": 8, "b": 0} and apart[-1]["a"] == 0
    nothing = {"k": Claim.of([(0, 1.0)]), "l": Claim.of([(0, 1.0)])}, {"k": Claim.of([(0, 1.0)])}  # no bytes are known of them
    made = Packer()
    made.add_pool(Pool("p", 80 * GIB))
    made.add_device(DeviceSpec("d", "p", "k", 4))
    made.submit([Request(f"{name}{k}", claims, 0.0) for name, claims in zip("ab", nothing) for k in range(9)])
    assert sorted(name[0] for name in places(made.next(0.0))) == ["a", "a", "b", "b"]
    equal = shapes(one_card(lanes=4), {"a": 1.0, "b": 1.0}, sizes=(10, 10), count=20)
    assert equal[0] == {"a": 4, "b": 0}  # one entry of the queue: equal claims


def test_the_lanes_of_shapes_side_by_side_go_by_the_seconds_that_those_took_which_have_ended():
    seen = shapes(one_card(), {"a": 1.0, "b": 4.0})
    assert seen[0] == {"a": 5, "b": 3}  # nothing is known yet
    assert all(at["b"] >= 6 for at in seen[24:50])  # each b takes as long as four a: begun last, they would end last
    kept = one_card()
    shapes(kept, {"a": 1.0, "b": 4.0})
    assert not kept._waiting.index.groups  # what was learnt goes with the last of a group


def test_requests_of_said_seconds_are_not_mixed_with_others_the_longest_of_equal_bytes_goes_first():
    made = one_card(lanes=2)
    long, short = ({"card": Claim.of([(int(size * GIB), 1.0)], took)} for size, took in ((9.5, 5.0), (10, 1.0)))
    made.submit([Request(f"{name}{k}", claims, 0.0) for name, claims in (("l", long), ("s", short)) for k in (0, 1, 2)])
    assert set(places(made.next(0.0))) == {"s0", "s1"}


@pytest.mark.parametrize("foreign, starts", [(0.0, ["x0", "b0", "b1"]), (9.5, ["x0", "b0"]), (10.5, ["x0", "a0"])])
def test_the_smallest_are_mixed_only_where_they_fit(foreign, starts):
    made = one_card(lanes=4)
    made.set_foreign("p", int(foreign * GIB))
    # A large one first, then the smallest, as more of the bytes are in use than of the lanes.
    for name, size, count in (("x", 60, 1), ("a", 9.0, 5), ("b", 9.8, 40)):
        claims = {"card": Claim.of([(int(size * GIB), 1.0)])}
        made.submit([Request(f"{name}{k}", claims, 0.0) for k in range(count)])
    assert list(places(made.next(0.0))) == starts
