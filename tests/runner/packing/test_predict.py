"""Plans on virtual time: bounds, makespans, elasticity, what does not fit."""

import random

import pytest

from benchmarks.packing import GIB, SECONDS, curves, first_in_best_fit, mixed, packed
from qdrun.runner.packing import Claim, DeviceSpec, Pool, Request, lower_bound, misfit, simulate
from qdrun.runner.study.requests import choose


def one(name, gib, seconds=None, kind="card", submitted=0.0):
    return Request(name, {kind: Claim.of([(int(gib * GIB), 1.0)], seconds)}, submitted)


POOLS, DEVICES = [Pool("p", 10 * GIB)], [DeviceSpec("d", "p", "card", 4, GIB)]


def test_the_lower_bound_is_the_largest_of_bytes_lanes_and_the_longest():
    bytes_bind = lower_bound([one(f"t{i}", 4.5, 2.0) for i in range(6)], POOLS, DEVICES)
    assert bytes_bind.parts == {"bytes": 6.0, "lanes": 3.0, "longest": 2.0}
    assert (bytes_bind.seconds, bytes_bind.by) == (6.0, "bytes")
    assert lower_bound([one(f"t{i}", 0.1, 2.0) for i in range(9)], POOLS, DEVICES).by == "lanes"
    assert lower_bound([one("t", 1, 7.0), one("u", 99, 50.0)], POOLS, DEVICES).seconds == 7.0
    assert lower_bound([], POOLS, DEVICES).seconds == 0.0
    curve = Request("t", {"card": Claim.of([(8 * GIB, 1.0), (2 * GIB, 2.0)], 9.0)}, 0.0)
    assert lower_bound([curve] * 8, POOLS, DEVICES).parts == {"bytes": 32.0, "lanes": 18.0, "longest": 9.0}


@pytest.mark.parametrize("seed", range(12))
def test_no_run_finishes_before_the_lower_bound(seed):
    requests, pools, devices = curves(seed, 60)
    bound = lower_bound(requests, pools, devices).seconds
    ran = simulate(requests, pools, devices)
    assert ran.finish >= bound * (1 - 1e-9) and len(ran.starts) == 60


def test_the_lower_bound_counts_what_is_confined_to_some_devices_on_these_alone():
    pools = [*POOLS, Pool("q", 40 * GIB)]
    devices = [*DEVICES, DeviceSpec("e", "q", "large", 4)]
    claim = Claim.of([(20 * GIB, 1.0)], 2.0)
    large = [Request(f"t{i}", {"card": claim, "large": claim}, 0.0) for i in range(6)]
    small = Claim.of([(GIB, 1.0)], 1.0)
    requests = [*large, Request("s", {"card": small, "large": small}, 0.0)]
    # 240 byte seconds on 40 of the 49 GiB; over all of them it would be less.
    assert lower_bound(requests, pools, devices).parts == {"bytes": 6.0, "lanes": 3.0, "longest": 2.0}
    assert simulate(requests, pools, devices).finish == 6.0


def test_a_forecast_says_waves_peaks_and_what_runs_at_once():
    ran = simulate([one(f"t{i}", 4, 2.0) for i in range(5)], POOLS, DEVICES)
    assert (ran.finish, ran.known, ran.waves, ran.at_once, ran.peak) == (6.0, True, 3, {"d": 2}, {"p": 9 * GIB})
    assert ran.busy == {"p": pytest.approx(5 * 4 * 2 / 60)}
    assert list(ran.starts.values()) == [0.0, 0.0, 2.0, 2.0, 4.0]
    late = simulate([one("a", 4, 2.0, submitted=100.0), one("b", 4, 2.0, submitted=105.0)], POOLS, DEVICES)
    assert late.finish == 7.0 and late.starts == {"a": 100.0, "b": 105.0}
    assert simulate([one("a", 1)], POOLS, DEVICES).known is False
    assert simulate([], POOLS, DEVICES).finish == 0.0


def test_what_does_not_fit_is_left_out_with_its_arithmetic():
    ran = simulate([one("a", 4), one("b", 9.5), one("c", 1, kind="other")], POOLS, DEVICES)
    assert list(ran.starts) == ["a"]
    assert ran.misfits == {
        "b": "needs 9.5 GiB at its smallest on d (card), and its process 1 GiB: 10.5 GiB, more than the 10 GiB of pool p",
        "c": "has claims for devices of other; there are: card",
    }
    assert misfit(one("d", 9), POOLS, DEVICES) is None
    assert misfit(one("d", 9), POOLS, []) == "has claims for devices of card; there are: none"


def test_idle_workers_of_the_other_backend_are_ended_where_their_bytes_are_needed():
    devices = [*DEVICES, DeviceSpec("e", "p", "other", 1, 2 * GIB)]
    ran = simulate([one("a", 9), one("b", 8, kind="other"), one("c", 9)], POOLS, devices)
    assert len(ran.starts) == 3 and max(ran.peak.values()) == 10 * GIB


@pytest.mark.parametrize("lanes", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 16))])
@pytest.mark.parametrize("seconds", list(SECONDS)[:2])
def test_500_mixed_trials_take_at_most_a_tenth_more_than_the_lower_bound(seconds, lanes):
    for known in (False, True):
        cases = [mixed(seed, 500, lanes, seconds, known=known) for seed in range(8)]
        assert sum(packed(case) / case.bound() for case in cases) / 8 <= 1.10
        assert not known or all(packed(case) < first_in_best_fit(case) for case in cases)


@pytest.mark.slow
def test_500_mixed_trials_of_exponential_seconds():
    """A few of them take as long as a third of the whole."""
    known = [mixed(seed, 500, 8, "exponential, mean 1 s", known=True) for seed in range(8)]
    not_known = [mixed(seed, 500, 8, "exponential, mean 1 s") for seed in range(8)]
    assert sum(packed(case) / case.bound() for case in known) / 8 <= 1.06
    assert sum(packed(case) / case.bound() for case in not_known) / 8 <= 1.14


def test_points_that_are_chosen_before_the_run_make_50_runs_earlier_and_none_later():
    ratios = []
    for seed in range(50):
        requests, pools, devices = curves(seed, (20, 60, 200)[seed % 3])
        ratios.append(choose(requests, pools, devices)[0].finish / simulate(requests, pools, devices).finish)
    assert sum(ratio < 1 - 1e-9 for ratio in ratios) >= 15 and sum(ratios) / 50 < 0.92
    assert max(ratios) == 1.0


def test_a_request_runs_at_the_fastest_point_that_its_class_holds():
    curve = Claim.of([(12 * GIB, 1.0), (8 * GIB, 1.5), (GIB, 3.0)], 10.0)
    ran = simulate([Request(name, {"card": curve}, 0.0) for name in "ab"], POOLS, DEVICES)
    assert {placement.point.bytes for placement in ran.placements} == {8 * GIB} and ran.finish == 30.0


@pytest.mark.slow
def test_1000_random_packs_are_never_over_the_capacity():
    over = 0
    for seed in range(1000):
        requests, pools, devices = curves(seed, 20)
        r = random.Random(seed)
        truth = {q.id: r.uniform(0.1, 5.0) for q in requests}
        ran = simulate(requests, pools, devices, takes=lambda p, truth=truth: truth[p.request.id])
        sizes = {pool.id: pool.capacity for pool in pools}
        over += sum(peak > sizes[name] for name, peak in ran.peak.items())
        assert len(ran.starts) == 20
    assert over == 0
