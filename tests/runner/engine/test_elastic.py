"""Memory through the loop: smaller points of curves, claims by class, more than was claimed. On the CPU, in the workers themselves."""

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_helpers import write_config

from qdrun.compiler.runtime.cpu.device import CpuDevice
from qdrun.runner.engine import start
from qdrun.runner.ledger.inventory import PROCESS_BYTES, Found, kind_of, pools_and_devices, pretended
from qdrun.runner.observe.table import rows
from qdrun.runner.packing import Claim, Request, lower_bound, simulate
from qdrun.runner.store.follower import read
from qdrun.runner.study import placement, requests
from qdrun.runner.study.devices import ChosenDevice
from qdrun.runner.study.plan import make_plan, plan_all
from qdrun.runner.study.prepare import prepare
from qdrun.runner.study.requests import Claims, choose

from .local import ThreadWorkers, run_config

JOBS = Path(__file__).with_name("jobs_for_memory.py")
RESERVE = 512 << 20


@pytest.fixture
def threads(monkeypatch):
    """Workers in threads of this process."""
    monkeypatch.setattr(start, "RayWorkers", ThreadWorkers)


@pytest.fixture(params=["threads", pytest.param("local_ray", marks=pytest.mark.slow)])
def workers(request):
    """Workers in threads, and as processes of Ray."""
    request.getfixturevalue(request.param)


def config_of(folder, *, job="Tapes", params=None, sweep=None, more="", limits=None):
    config = write_config(folder, target=f"{JOBS}:{job}", params=params, sweep=sweep or {"start": [0.5]}, limits=limits)
    config.write_text(config.read_text().replace("gradients: [x, target]\n", "") + more)
    return config


def cpu(room, lanes=2, threads=1, name="cpu"):
    """A pretended host: what its processes and the reserve leave is ``room`` bytes."""
    row = Found(
        name, name, "cpu", kind=kind_of("cpu", "pretended", threads), pool=f"ram of {name}", threads=threads, lanes=lanes
    )
    row = replace(row, process_bytes=PROCESS_BYTES["cpu"])
    total = RESERVE + row.charge() + room
    return replace(row, total=total, free=total)


def planned(config):
    prepared, job = prepare(config)
    return prepared, plan_all(prepared, job)


def launches(folder):
    """What started where and with how much, and the most bytes and launches at once in each device, in the order of the journal."""
    started, now = defaultdict(list), {}
    most_bytes, most = Counter(), Counter()
    for event in read(folder).events:
        begun = event if event["event"] == "started" else event.get("place")  # or started and ended in one write
        if begun is not None:
            started[event["trial"]].append(begun)
            now[event["trial"]] = begun
            for device in {at["device"] for at in now.values()}:
                here = [at["bytes"] for at in now.values() if at["device"] == device]
                most_bytes[device], most[device] = max(most_bytes[device], sum(here)), max(most[device], len(here))
        if event["event"] in ("ended", "retry"):
            now.pop(event["trial"], None)
    return started, most_bytes, most


def ends(folder):
    return {event["trial"]: event for event in read(folder).events if event["event"] == "ended"}


def results(folder):
    return {row["param.start"]: (row["status"], row["loss"], row["grad.start"]) for row in rows(folder)}


@pytest.mark.slow
def test_with_auto_smaller_points_let_more_trials_run_and_change_no_result(workers, tmp_path):
    sweep = {"start": {"linspace": [0.1, 0.9, 14]}}
    plain, auto = tmp_path / "plain", tmp_path / "auto"
    for folder in (plain, auto):
        folder.mkdir()
    ours = {"params": {"inner": 400_000}, "sweep": sweep}
    fixed, bent = config_of(plain, **ours), config_of(auto, **ours, more="memory_budget: auto\n")
    prepared, ((group, points),) = planned(bent)
    full = group.plan.bytes
    host = cpu(int(1.7 * full))
    smaller = {size for size, _ in points if size < full}

    claims = start.claims_of(prepared, [(group, points)], [host])
    wanted = [Request(str(place), claims(place), 0.0) for place in group.places]
    pools, devices = pools_and_devices([host])
    without = simulate(wanted, pools, devices).finish
    forecast, _ = choose(wanted, pools, devices)
    assert without == 14.0, "one at a time"
    assert lower_bound(wanted, pools, devices).seconds <= forecast.finish < without

    state, folder, _ = run_config(fixed, found=[host])
    assert state == "done"
    started, _, most = launches(folder)
    assert most["cpu"] == 1 and {at["bytes"] for all_ in started.values() for at in all_} == {full}
    expected = results(folder)

    state, folder, _ = run_config(bent, found=[host])
    assert state == "done"
    started, most_bytes, most = launches(folder)
    granted = {name: at["bytes"] for name, (at,) in started.items()}
    assert most["cpu"] == 2 and set(granted.values()) <= {full, *smaller} and set(granted.values()) & smaller
    assert most_bytes["cpu"] <= int(1.7 * full)
    assert results(folder) == expected
    for name, row in ends(folder).items():
        assert row["claim_bytes"] == granted[name] and "over_claim" not in row
        assert row["used_bytes"] == row["planned_bytes"] <= granted[name]


def test_trials_on_several_backends_at_once_claim_what_each_backend_plans(tmp_path):
    """``device.together``: the GPU, which is pretended here, has a row of the heap for each iteration, and the CPU one for its thread."""
    config = config_of(tmp_path)
    prepared, job = prepare(config)
    prepared = prepared.model_copy(update={"beside": (ChosenDevice("vulkan", present=False),)})
    assert prepared.where == "cpu and vulkan" and prepared.resolved["device"]["backend"] == ["cpu", "vulkan"]
    card = pretended(1, 8 << 30, backend="vulkan")[0]
    found = [cpu(1 << 20), card]
    assert placement.usable(prepared, found) == found
    assert placement.usable(prepared.each["vulkan"], found) == [card]
    (one,) = plan_all(prepared, job)
    name = one[0].first
    claims = start.claims_of(prepared, [one], found)(name)
    own, other = (claims[row.kind].points[0].bytes for row in found)
    heap = {kind: make_plan(prepared.each[kind], job)[0].plan.by_kind()["adstack"] for kind in ("cpu", "vulkan")}
    assert heap["vulkan"] == 4 * heap["cpu"] > 0 and own == one[0].plan.bytes < other
    assert {group.why for group in start.batches_of(prepared, [one], found, *pools_and_devices(found)).groups} == {
        "`device.together` shares them out among several backends"
    }
    pools, devices = pools_and_devices([card])
    park = placement.Park("here", tuple(pools), tuple(devices), {card.pool: card.total})
    placed = placement.predict(prepared, [one[0]], park, beside=placement.plans_beside(prepared, job))
    assert placed.forecast.placements[0].point.bytes == other, "also where `qdrun plan` places it"


def test_a_trial_is_told_the_bytes_of_a_smaller_point_and_no_others(tmp_path):
    prepared, ((group, points),) = planned(config_of(tmp_path, more="memory_budget: auto\n"))
    host = cpu(1 << 20)
    claims = start.claims_of(prepared, [(group, points)], [host])
    inside = start.inside_of(prepared, [(group, points)], claims, start.Roster(lambda: [replace(host, id="cpu")]))
    worker = start.m.WorkerId("cpu")

    def budget(size):
        return inside.budget(start.m.Launch(1, worker, (group.first,), (1,), size, 1.0, "l"))

    assert budget(group.plan.bytes) is None
    assert [budget(size) for size, _ in points[1:]] == [size for size, _ in points[1:]]
    assert budget(group.plan.bytes * 3 // 2) is None, "a larger claim after it ran out of memory: the plan stays"


KIND = "cpu/a/1"


def settled(shapes, room, lanes, trials=None):
    claims = Claims([(places, {KIND: Claim.of(points)}) for places, points in shapes])
    pools, devices = pools_and_devices([replace(cpu(room, lanes=lanes), kind=KIND)])
    level = claims.settle(trials or [place for places, _ in shapes for place in places], pools, devices)
    return claims, level


def test_where_lanes_bind_and_not_bytes_trials_keep_their_fastest_point_that_fits():
    some, large = range(8), (8,)
    claims, level = settled([(some, [(50, 1.0), (20, 1.5)]), (large, [(900, 1.0), (100, 3.0)])], 200, 2)
    assert level == 0
    assert claims(1) is claims(2)
    pools, devices = pools_and_devices([replace(cpu(200, lanes=2), kind=KIND)])
    ran = simulate([Request(str(place), claims(place), 0.0) for place in (1, 8)], pools, devices)
    assert {placement.request.id: placement.point.bytes for placement in ran.placements} == {"1": 50, "8": 100}
    assert claims.fastest(8, KIND) == 900, "so that a worker is told the budget"
    assert claims.curves(1)[KIND] == Claim.of([(50, 1.0), (20, 1.5)]), "for when it runs out of memory"


def test_where_bytes_bind_many_small_trials_at_once_end_before_few_large_ones():
    trials = range(12)
    claims, level = settled([(trials, [(100, 1.0), (50, 1.3), (40, 4.0)])], 170, 4)
    assert level == 1, "three at once, each for 1.3, instead of one after the other"
    assert claims(1)[KIND] == Claim.of([(50, 1.0), (40, 4.0 / 1.3)])
    assert claims.fastest(1, KIND) == 100


def test_little_is_not_enough_to_give_up_the_fastest_points():
    trials = range(12)
    assert settled([(trials, [(100, 1.0), (50, 1.95)])], 110, 2)[1] in (None, 0)
    assert settled([(trials, [(100, 1.0), (50, 1.8)])], 110, 2)[1] == 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_chosen_never_ends_later_than_without_smaller_points(data):
    shapes = []
    for number in range(data.draw(st.integers(1, 4), "shapes")):
        points = data.draw(st.lists(st.tuples(st.integers(1, 150), st.floats(1.0, 4.0)), min_size=1, max_size=4))
        size = data.draw(st.integers(1, 12), "trials")
        shapes.append(
            ([f"{number}-{k}" for k in range(size)], {KIND: Claim.of(points, data.draw(st.sampled_from([None, 7.0])))})
        )
    hosts = [
        cpu(room, lanes=3, name=f"h{k}")
        for k, room in enumerate(data.draw(st.lists(st.integers(150, 400), min_size=1, max_size=3)))
    ]
    pools, devices = pools_and_devices([replace(host, kind=KIND) for host in hosts])
    requests = [Request(name, claims, 0.0) for names, claims in shapes for name in names]
    forecast, level = choose(requests, pools, devices)
    fixed = simulate(requests, pools, devices)
    assert forecast.finish <= fixed.finish
    assert (level == 0) == (forecast.finish == fixed.finish)
    assert len(forecast.starts) == len(requests) and all(forecast.peak[pool.id] <= pool.capacity for pool in pools)


def test_of_many_trials_some_are_tried(monkeypatch):
    seen = []
    monkeypatch.setattr(requests, "choose", lambda requests, *_: seen.append(len(requests)) or (None, 1))
    trials = range(5001)
    settled([(trials, [(100, 1.0), (50, 1.3)])], 170, 4)
    assert seen == [1667]


def test_without_curves_nothing_is_predicted(monkeypatch):
    monkeypatch.setattr(requests, "choose", lambda *_: pytest.fail("predicted"))
    pools, devices = pools_and_devices([cpu(200)])
    assert not Claims([((0,), {"cpu/pretended/1": Claim.of([(100, 1.0)])})]).settle((0,), pools, devices)


def test_planning_a_sweep_and_its_curves_compiles_nothing(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(CpuDevice, "compile", lambda device, kernel, options: compiled.append(kernel.name))
    sweep = {"inner": [1001, 1003], "cells": [5, 7]}
    prepared, found = planned(config_of(tmp_path, sweep=sweep, more="memory_budget: auto\n"))
    assert [group.error for group, _ in found] == [""] * 4
    assert all(len(points) > 2 for _, points in found)
    start.claims_of(prepared, found, [cpu(1 << 20), cpu(1 << 20, threads=2)])
    assert compiled == []


def test_kernels_are_compiled_while_ray_starts_and_no_longer(tmp_path, monkeypatch):
    compiled, looks = [], []
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path / "cache"))
    original = CpuDevice.compile
    monkeypatch.setattr(
        CpuDevice, "compile", lambda device, kernel, options: compiled.append(kernel.name) or original(device, kernel, options)
    )
    config = config_of(tmp_path, sweep={"cells": [11, 13, 17]})
    prepared, job = prepare(config)
    found = plan_all(prepared, job)
    broken = (found[0][0].model_copy(update={"plan": None, "error": "no"}), ())
    start.warm(prepared, job, [broken, *found[1:]], lambda: looks.append(0) or len(looks) > 2).join(60)
    assert sorted(compiled) == ["follow", "follow_grad", "spread", "spread_grad"], (
        "of the second shape alone: then Ray was there"
    )
    start.warm(prepared, job, found, lambda: True).join(60)
    assert len(compiled) == 4


def test_each_class_of_devices_has_the_claim_of_its_own_plan(threads, tmp_path):
    """A trial has as many rows of states as threads: on the host with two it needs twice the heap."""
    config = config_of(
        tmp_path, params={"inner": 3000}, sweep={"start": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}, more="device: {threads: 2}\n"
    )
    prepared, ((group, points),) = planned(config)
    small, large = cpu(1 << 20, lanes=1, name="small"), cpu(1 << 20, lanes=1, threads=2, name="large")
    claims = start.claims_of(prepared, [(group, points)], [small, large])(group.first)
    heap = 8 * 3000
    assert claims[large.kind].smallest == group.plan.bytes
    assert claims[small.kind].smallest == group.plan.bytes - heap
    state, folder, _ = run_config(config, found=[small, large])
    assert state == "done"
    by_device = defaultdict(set)
    for name, (at,) in launches(folder)[0].items():
        row = ends(folder)[name]
        assert row["claim_bytes"] == at["bytes"] and row["used_bytes"] == row["planned_bytes"] == at["bytes"]
        by_device[at["device"]].add(at["bytes"])
    assert by_device == {"small": {group.plan.bytes - heap}, "large": {group.plan.bytes}}


def test_of_a_cluster_s_rows_of_cores_a_run_uses_those_with_its_number_of_threads(tmp_path):
    prepared, _ = prepare(config_of(tmp_path, more="device: {threads: 2}\n"))
    found = [cpu(1, threads=count, name=name) for name in ("a", "b") for count in (1, 2, 4) if (name, count) != ("b", 2)]
    found = [replace(row, id=f"{row.node}{row.threads}") for row in found]
    assert [row.id for row in placement.usable(prepared, [*found, replace(found[1], usable=False)])] == ["a2", "b1"]


def test_cards_with_less_than_min_memory_are_not_used(tmp_path):
    config = config_of(tmp_path, more="device: {backend: cuda, min_memory: 8GiB}\n")
    prepared, _ = prepare(config, local=False)
    card = Found("x", "", "cuda", kind="cuda/x/1", pool="x", total=24 << 30)
    assert placement.usable(prepared, [card, replace(card, id="y", kind="cuda/y/1", total=4 << 30)]) == [card]


def test_a_trial_that_takes_more_than_its_claim_gets_a_larger_one_and_at_last_the_device_alone(threads, tmp_path):
    _, ((group, _),) = planned(config_of(tmp_path))
    full = group.plan.bytes
    room = 3 * full
    extras = {"none": 0, "a quarter": full // 4, "all again": full, "ten times": 10 * full}
    config = config_of(tmp_path, sweep={"extra": list(extras.values())})
    state, folder, _ = run_config(config, found=[cpu(room)])
    assert state == "done"
    names = {row["param.extra"]: row["trial"] for row in rows(folder)}
    started, found = launches(folder)[0], ends(folder)
    sizes = {what: [at["bytes"] for at in started[names[extra]]] for what, extra in extras.items()}
    half = int(full * 1.5)
    assert sizes == {
        "none": [full],
        "a quarter": [full, half],
        "all again": [full, half, int(half * 1.5)],
        "ten times": [full, half, int(half * 1.5)],
    }
    assert "over_claim" not in found[names[full]]
    over = found[names[10 * full]]["over_claim"]
    assert over["bytes"] == 11 * full - int(half * 1.5) and over["by"]["temporaries"] == 10 * full
    retries = [event for event in read(folder).events if event["event"] == "retry"]
    assert Counter(event["failure"] for event in retries) == {"out_of_memory": 5}
    first = next(event for event in retries if event["trial"] == names[full // 4])
    assert f"the claim of the trial was {full:,} bytes on cpu, and its program got no more" in first["error"]["message"]


def test_a_claim_grows_to_the_device_at_the_most_and_without_retries_it_does_not(threads, tmp_path):
    _, ((group, _),) = planned(config_of(tmp_path))
    full = group.plan.bytes
    room = int(1.2 * full)
    host, most = cpu(room, lanes=1), room - room // 16
    state, folder, _ = run_config(config_of(tmp_path, sweep={"extra": [full]}), found=[host])
    (started,) = launches(folder)[0].values()
    assert state == "done"
    assert [at["bytes"] for at in started] == [full, most, most]
    state, folder, _ = run_config(config_of(tmp_path, sweep={"extra": [full]}, limits={"retries": {"oom": 0}}), found=[host])
    (row,) = rows(folder)
    assert (state, row["status"], row["failure"], row["attempts"]) == ("failed", "failed", "out_of_memory", 1)
    assert row["error"].splitlines()[0].endswith("(1 attempt)")


def test_with_auto_a_trial_that_ran_out_of_memory_goes_down_its_curve(threads, tmp_path):
    config = config_of(tmp_path, sweep={"extra": [20_000]}, more="memory_budget: auto\n")
    _, ((group, points),) = planned(config)
    state, folder, _ = run_config(config, found=[cpu(4 * group.plan.bytes)])
    (started,) = launches(folder)[0].values()
    full, less = (point.bytes for point in Claim.of(points).points[:2])
    assert state == "done"
    assert [at["bytes"] for at in started] == [full, less, int(1.5 * full)]
    (row,) = ends(folder).values()
    assert row["planned_bytes"] == full and row["over_claim"]["bytes"] == full + 20_000 - int(1.5 * full), (
        "alone, without a budget"
    )


def test_a_job_that_names_no_launches_may_take_more_than_its_plan_knows(threads, tmp_path):
    config = config_of(tmp_path, job="Silent", sweep={"start": [0.2]})
    _, ((group, _),) = planned(config)
    assert not group.plan.whole
    state, folder, _ = run_config(config, found=[cpu(1 << 20)])
    (row,) = ends(folder).values()
    assert (state, row["attempt"], row["claim_bytes"]) == ("done", 1, group.plan.bytes)
    assert row["over_claim"]["bytes"] == row["used_bytes"] - group.plan.bytes > 8 * 2000
