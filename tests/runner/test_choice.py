"""``device.backend: auto`` takes the backend on which the sweep is predicted to end first, and says why."""

import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from runner_helpers import only_run
from typer.testing import CliRunner

from qdrun.compiler.runtime.inventory import Backend
from qdrun.compiler.tape.launch_time import LaunchTime, TaskTime
from qdrun.jobs.trial_time import TrialTime
from qdrun.runner.cli.app import app
from qdrun.runner.config.model import ConfigError
from qdrun.runner.ledger import inventory
from qdrun.runner.observe.show import plan_text
from qdrun.runner.packing import Claim
from qdrun.runner.ray_adapter.cluster import ClusterError
from qdrun.runner.remote.cluster_inventory import devices_at
from qdrun.runner.study import backend_choice, devices
from qdrun.runner.study.backend_choice import SIDE_BY_SIDE, _best, _finish, _Seen, _Shape
from qdrun.runner.study.candidates import Candidate, Choice
from qdrun.runner.study.plan import make_plan
from qdrun.runner.study.prepare import prepare
from qdrun.runner.study.target import Target, load

GIB, MIB = 1 << 30, 1 << 20
JOBS = Path(__file__).with_name("chains.py")
RESIDENT = 270_336
TIGHT = 512 * MIB + inventory.PROCESS_BYTES["cuda"]
"""Bytes of a card on which nothing is left for trials."""


def config(folder, sweep, *, device=None, job="Chains", params=None, more=""):
    path = Path(folder) / "auto.yaml"
    text = f"version: 1\nname: auto\njob: {{target: '{JOBS}:{job}', params: {json.dumps(params or {})}}}\n"
    text += f"device: {json.dumps({'backend': 'auto'} | (device or {}))}\nsweep: {{params: {json.dumps(sweep)}}}\n{more}"
    path.write_text(text + f"output: {json.dumps(str(Path(folder) / 'runs'))}\n", encoding="utf-8")
    return path


def pretend(monkeypatch, *cards, threads=8, ram=64 * GIB):
    """A machine with these cards (bytes of each) and so many threads."""
    rows = [Backend("cpu", True, True, f"zen, {threads} threads", threads, ram)]
    for k, size in enumerate(cards):
        uuid, pci = f"GPU-0000000{k}-aaaa", f"0000:0{k}:00.0"
        rows.append(Backend("cuda", True, True, f"NVIDIA H200, sm_90, {uuid}, {pci}", RESIDENT, size, k, uuid))
    monkeypatch.setattr(devices, "inventory", lambda: rows)
    monkeypatch.setattr(inventory, "backends", lambda: rows)
    monkeypatch.setattr(inventory.memory, "host", lambda: (ram, ram))
    monkeypatch.setattr(inventory.memory, "nvidia", dict)
    monkeypatch.setattr("qdrun.runner.study.plan.built_on", lambda prepared, wanted: "cpu")


@pytest.fixture
def one_card(monkeypatch):
    pretend(monkeypatch, 80 * GIB)


SMALL, LARGE = {"n": [16], "k": [4, 5]}, {"n": [60_000], "k": [3000, 3001]}


def by_name(found):
    return {candidate.backend: candidate for candidate in found.candidates}


# ---- the choice
def test_a_small_job_goes_to_the_cpu_and_a_large_one_to_the_gpu(one_card, tmp_path):
    small = prepare(config(tmp_path, SMALL))[0]
    large = prepare(config(tmp_path, LARGE))[0]
    assert (small.backend, small.place.devices) == ("cpu", 0)
    assert (large.backend, large.place.devices, large.place.present) == ("cuda", 1, True)
    for prepared in (small, large):
        assert prepared.choice.backend == prepared.backend == prepared.resolved["device"]["backend"]
        assert prepared.choice.reason == "which is predicted to end first"
        seconds = {name: candidate.seconds for name, candidate in by_name(prepared.choice).items()}
        assert list(seconds) == ["cuda", "cpu"] and min(seconds, key=seconds.get) == prepared.backend


def test_a_trial_that_no_card_holds_goes_to_the_cpu(monkeypatch, tmp_path):
    pretend(monkeypatch, TIGHT + MIB // 2)
    prepared = prepare(config(tmp_path, LARGE))[0]
    assert (prepared.backend, prepared.choice.reason) == ("cpu", "the only one that can hold every trial")
    out = by_name(prepared.choice)["cuda"]
    assert out.out and out.seconds is None
    assert out.why.startswith("n=60000,k=3000 needs ") and out.why.endswith(
        " more than the 576.5 MiB of pool GPU-00000000-aaaa"
    )


def test_one_shape_that_does_not_fit_is_enough(monkeypatch, tmp_path):
    sweep = {"n": [16, 60_000], "k": [3000]}
    pretend(monkeypatch, TIGHT + MIB // 2)
    assert prepare(config(tmp_path, sweep))[0].backend == "cpu"
    pretend(monkeypatch, TIGHT + 16 * MIB)
    assert prepare(config(tmp_path, sweep))[0].backend == "cuda"


def test_where_nothing_holds_the_trials_the_plan_will_say_so(monkeypatch, tmp_path):
    pretend(monkeypatch, TIGHT + MIB // 2, ram=512 * MIB + inventory.PROCESS_BYTES["cpu"] + MIB // 2)
    prepared = prepare(config(tmp_path, LARGE))[0]
    assert (prepared.backend, prepared.choice.reason) == ("cuda", "though no backend can hold every trial")


def test_a_memory_budget_counts(monkeypatch, tmp_path):
    """Within the budget the trials fit the card; one that is too small for any plan does not rule out the CPU alone."""
    pretend(monkeypatch, 80 * GIB)
    prepared = prepare(config(tmp_path, LARGE, more="memory_budget: 4MiB\n"))[0]
    assert prepared.backend == "cuda"
    prepared = prepare(config(tmp_path, LARGE, more="memory_budget: 1000\n"))[0]
    assert prepared.choice.reason == "though no backend can hold every trial"
    assert "memory_budget of 1,000 bytes is too small for one trial" in by_name(prepared.choice)["cpu"].why


def test_cards_below_min_memory_are_left_alone(monkeypatch, tmp_path):
    pretend(monkeypatch, 80 * GIB, 24 * GIB)
    assert prepare(config(tmp_path, LARGE, device={"min_memory": "40GiB"}))[0].place.devices == 1
    pretend(monkeypatch, 24 * GIB)
    prepared = prepare(config(tmp_path, LARGE, device={"min_memory": "40GiB"}))[0]
    assert (prepared.backend, prepared.choice) == ("cpu", None), "there is nothing to choose from"


def test_gpus_come_first_where_nothing_can_be_predicted(one_card, tmp_path):
    prepared = prepare(config(tmp_path, SMALL, job="Silent"))[0]
    assert prepared.backend == "cuda"
    assert prepared.choice.text == (
        "device auto: cuda, GPUs come first where not everything can be predicted: "
        "cuda is not predicted: Silent names no launches(); cpu is not predicted: Silent names no launches()"
    )
    prepared = prepare(config(tmp_path, {"fails": [False, True]}))[0]
    assert prepared.backend == "cuda"
    assert by_name(prepared.choice)["cpu"].why == "fails=True cannot be planned: RuntimeError: no material of this name"


def test_a_job_that_hangs_costs_its_time_limit(one_card, tmp_path, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(backend_choice, "_look", lambda *a: over.wait(60) and {})
    prepared = prepare(config(tmp_path, {"k": [4]}, more="limits: {trial_timeout_s: 0.05}\n"))[0]
    over.set()
    assert prepared.backend == "cuda" and "cannot be planned: it took longer than 0.05 s" in prepared.choice.text


# ---- what it costs
def test_with_one_backend_nothing_is_planned(monkeypatch, tmp_path):
    pretend(monkeypatch)
    monkeypatch.setattr(backend_choice, "_look", lambda *a: pytest.fail("it was planned"))
    prepared = prepare(config(tmp_path, LARGE))[0]
    assert (prepared.backend, prepared.choice) == ("cpu", None)


@pytest.mark.parametrize("device", [{"backend": "cuda"}, {"backend": ["cpu", "cuda"]}, {"id": 0}])
def test_a_backend_that_is_named_is_taken(one_card, tmp_path, device, monkeypatch):
    monkeypatch.setattr(backend_choice, "_look", lambda *a: pytest.fail("it was planned"))
    prepared = prepare(config(tmp_path, SMALL, device=device))[0]
    assert prepared.choice is None and prepared.backend == ("cpu" if isinstance(device.get("backend"), list) else "cuda")


def test_a_run_that_goes_on_stays_where_it_was(one_card, tmp_path, monkeypatch):
    monkeypatch.setattr(backend_choice, "_look", lambda *a: pytest.fail("it was planned"))
    for backend in ("cuda", "cpu"):
        prepared = prepare(config(tmp_path, SMALL), backend=backend)[0]
        assert (prepared.backend, prepared.choice) == (backend, None)


def test_each_shape_is_built_once_and_of_many_shapes_some(one_card, tmp_path, monkeypatch):
    job = load(Target(name="Chains", file=str(JOBS), source=JOBS.read_text(), import_root=str(JOBS.parent)))
    monkeypatch.setattr(job, "built", 0)
    prepare(config(tmp_path, {"k": [4, 5, 6], "start": [0.1, 0.2, 0.3]}))
    assert job.built == 3
    monkeypatch.setattr(job, "built", 0)
    prepared, _ = prepare(config(tmp_path, {"k": list(range(1, 41))}))
    assert job.built == backend_choice.MOST_SHAPES
    assert sum(shape.trials for shape in backend_choice._sample(prepared, job)) == 40


# ---- the arithmetic
def shape(backend, seconds, iterations, trials=10, size=GIB):
    made = TrialTime([(1, LaunchTime((TaskTime("t", iterations, seconds * 1e9),)))])
    return _Shape(None, trials, {backend: _Seen(Claim.of([(size, 1.0)]), made)})


def found(backend, lanes, size, count=1):
    return [(row, size) for row in inventory.pretended(count, size, lanes=lanes, backend=backend)]


def test_a_cpu_runs_as_many_trials_at_once_as_it_has_lanes_and_room():
    assert _finish("cpu", [shape("cpu", 2.0, 1)], found("cpu", 5, 100 * GIB), 1).seconds == pytest.approx(10 * 2.0 / 5)
    tight = _finish("cpu", [shape("cpu", 2.0, 1)], found("cpu", 5, 2 * GIB), 1)
    assert (tight.seconds, tight.at_once, tight.trial_seconds) == (pytest.approx(10 * 2.0 / 2), 2, pytest.approx(2.0))
    assert _finish("cpu", [shape("cpu", 2.0, 1, trials=2)], found("cpu", 5, 100 * GIB), 1).seconds == pytest.approx(2.0)
    assert _finish("cpu", [shape("cpu", 2.0, 1)], found("cpu", 5, 100 * GIB), 7).seconds == pytest.approx(7 * 10 * 2.0 / 5)


@pytest.mark.parametrize(
    ("lanes", "room", "iterations", "gain"),
    [(4, 100, 100, 4), (16, 100, 100, SIDE_BY_SIDE), (4, 2, 100, 2), (4, 100, 1 << 20, 1), (16, 100, RESIDENT / 2, 2)],
)
def test_what_side_by_side_gains_on_a_gpu(lanes, room, iterations, gain):
    cards = [(replace(row, threads=RESIDENT), size) for row, size in found("cuda", lanes, room * GIB)]
    assert _finish("cuda", [shape("cuda", 1.0, iterations)], cards, 1).seconds == pytest.approx(10 / gain)
    assert _finish("cuda", [shape("cuda", 1.0, iterations)], cards * 2, 1).seconds == pytest.approx(max(1, 5 / gain))


def test_the_first_to_end_is_taken_and_ties_go_to_the_first():
    ends = lambda *seconds: _best([Candidate(str(k), s) for k, s in enumerate(seconds)])[0]
    assert [ends(3.0, 2.0), ends(2.0, 3.0), ends(2.0, 2.0)] == ["1", "0", "0"]


# ---- what is said
def test_the_plan_says_what_was_chosen_and_why(one_card, tmp_path):
    prepared, job = prepare(config(tmp_path, SMALL))
    lines = plan_text(prepared, make_plan(prepared, job)).splitlines()
    at = lines.index("device auto: cpu, which is predicted to end first")
    cuda, cpu = lines[at + 1 : at + 3]
    assert re.fullmatch(r"  cuda [\d.]+ us \(a trial [\d.]+ us, 4 at once\)", cuda), cuda
    assert re.fullmatch(r"  cpu [\d.]+ us \(a trial [\d.]+ us, 8 at once\)", cpu), cpu
    assert "device auto" not in plan_text(*_named(tmp_path))


def _named(folder):
    prepared, job = prepare(config(folder, SMALL, device={"backend": "cpu"}))
    return prepared, make_plan(prepared, job)


def test_a_choice_in_one_line():
    both = Candidate("cuda", 12_345.6, 0.5, 4.0), Candidate("cpu", why="n=3 needs 9 GiB", out=True)
    assert Choice("cuda", "the only one that can hold every trial", both).text == (
        "device auto: cuda, the only one that can hold every trial: cuda 3.43 h (a trial 500 ms, 4 at once); cpu is out: n=3 needs 9 GiB"
    )


def test_the_document_of_plan_has_it(one_card, tmp_path):
    result = CliRunner().invoke(app, ["plan", str(config(tmp_path, SMALL)), "--json"])
    data = json.loads(result.stdout)
    assert result.exit_code == 0 and data["backend"] == data["choice"]["backend"] == "cpu"
    assert [candidate["backend"] for candidate in data["choice"]["candidates"]] == ["cuda", "cpu"]
    assert all(candidate["seconds"] > 0 for candidate in data["choice"]["candidates"])


@pytest.mark.slow
def test_submit_says_it_too(one_card, local_ray, tmp_path):
    result = CliRunner().invoke(app, ["submit", str(config(tmp_path, SMALL))])
    assert result.exit_code == 0, result.output
    assert "device auto: cpu, which is predicted to end first: cuda " in result.output
    assert json.loads((only_run(tmp_path) / "config.resolved.json").read_text())["device"]["backend"] == "cpu"


# ---- on a cluster
def card(size, node="n1"):
    (row,) = inventory.pretended(1, size, node)
    return replace(row, threads=RESIDENT)


def core(node="n1"):
    return replace(inventory.local(1, None, node)[0], id=f"cpu@{node}@t1")


def test_on_a_cluster_its_devices_are_compared_and_not_those_of_the_machine_that_submits(monkeypatch, tmp_path):
    pretend(monkeypatch)
    asked = []

    def has(*rows):
        return lambda loaded: asked.append(loaded.config.device.backends) or rows

    large = config(tmp_path, LARGE)
    prepared = prepare(large, local=False, cluster=has(core(), card(80 * GIB)))[0]
    assert (prepared.backend, prepared.place.present) == ("cuda", False)
    assert list(by_name(prepared.choice)) == ["cuda", "cpu"] and prepared.resolved["device"]["backend"] == "cuda"
    prepared = prepare(large, local=False, cluster=has(core(), card(TIGHT + MIB // 2)))[0]
    assert prepared.backend == "cpu" and prepared.choice.reason == "the only one that can hold every trial"
    again = prepare(large, local=False, backend="cuda")[0]  # what goes on with a run need not look again
    assert again.backend == "cuda" and again.choice is None and len(asked) == 2

    pretend(monkeypatch, 80 * GIB)  # a card here is none there
    prepared = prepare(large, local=False, cluster=has(core()))[0]
    assert prepared.backend == "cpu" and prepared.choice is None
    named = config(tmp_path, LARGE, device={"backend": "cuda"})
    assert prepare(named, local=False, cluster=has(core()))[0].backend == "cuda" and len(asked) == 3
    with pytest.raises(ConfigError, match="no node of the cluster has a device for these trials"):
        prepare(config(tmp_path, LARGE, device={"min_memory": "90GiB"}), local=False, cluster=has(card(80 * GIB)))


def test_the_devices_behind_a_dashboard_are_not_guessed(one_card, tmp_path):
    with pytest.raises(ClusterError, match="cannot be seen through its dashboard\n  do: name the backend"):
        prepare(config(tmp_path, SMALL), local=False, cluster=devices_at("http://head:8265"))
    assert devices_at(None) is None
