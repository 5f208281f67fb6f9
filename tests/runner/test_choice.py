"""``device.backend: auto`` takes a GPU where the launches are wide and the trials fit, and says why."""

import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from runner_helpers import only_run
from typer.testing import CliRunner

from qdrun.compiler.runtime.inventory import BackendLine
from qdrun.runner.cli.app import app
from qdrun.runner.config.model import ConfigError
from qdrun.runner.ledger import inventory
from qdrun.runner.observe.show import plan_text
from qdrun.runner.ray_adapter.cluster import ClusterError
from qdrun.runner.remote.cluster_inventory import devices_at
from qdrun.runner.study import backend_choice, devices
from qdrun.runner.study.backend_choice import WIDE, _best, _Seen, _ShapeCosts, _width
from qdrun.runner.study.devices import AutoChoice, Candidate
from qdrun.runner.study.plan import make_plan, shapes
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
    rows = [BackendLine("cpu", True, True, f"zen, {threads} threads", threads, ram, model="zen")]
    for k, size in enumerate(cards):
        uuid, pci = f"GPU-0000000{k}-aaaa", f"0000:0{k}:00.0"
        rows.append(
            BackendLine("cuda", True, True, f"NVIDIA H200, sm_90, {uuid}, {pci}", RESIDENT, size, k, uuid, pci, "NVIDIA H200")
        )
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
    few = "as its launches have 16 iterations side by side: fewer than 4,096 are for the CPU"
    many = "as its launches have 60,000 iterations side by side: 4,096 and more are for a GPU"
    for prepared, reason in ((small, few), (large, many)):
        assert prepared.choice.backend == prepared.backend == prepared.resolved["device"]["backend"]
        assert prepared.choice.reason == reason
        assert [(c.backend, c.why, c.out) for c in prepared.choice.candidates] == [("cuda", "", False), ("cpu", "", False)]


@pytest.mark.parametrize(("n", "backend"), [(WIDE - 1, "cpu"), (WIDE, "cuda")])
def test_the_width_of_the_launches_decides(one_card, tmp_path, n, backend):
    assert prepare(config(tmp_path, {"n": [n], "k": [4]}))[0].backend == backend


@pytest.mark.parametrize(
    ("trials", "more", "backend"),
    [(2, "", "cpu"), (1500, "", "cuda"), (1500, "batch: off\n", "cpu"), (1500, "batch: 8\n", "cpu")],
)
def test_the_launches_of_a_batch_are_as_wide_as_all_of_its_trials(one_card, tmp_path, trials, more, backend):
    path = config(tmp_path, {"stiffness": [500.0 + k for k in range(trials)]}, params={"steps": 2}, more=more)
    path.write_text(re.sub(r"target: '[^']*'", "target: qdrun.jobs.mass_spring:MassSpring", path.read_text()))
    assert prepare(path)[0].backend == backend


def test_the_width_is_the_mean_over_all_trials(one_card, tmp_path):
    narrow = {"n": [16, 2 * WIDE - 17], "k": [4]}
    assert prepare(config(tmp_path, narrow))[0].backend == "cpu"
    assert prepare(config(tmp_path, {"n": [16, 2 * WIDE - 16], "k": [4]}))[0].backend == "cuda"
    sample = [
        _ShapeCosts(None, 0, 3, {"cpu": _Seen(width=10.0)}),
        _ShapeCosts(None, 0, 1, {"cuda": _Seen(error="no"), "cpu": _Seen(width=50.0)}),
    ]
    assert _width(sample) == 20.0
    assert _width([*sample, _ShapeCosts(None, 0, 1, {"cpu": _Seen(error="no")})]) is None


def test_a_trial_that_no_card_holds_goes_to_the_cpu(monkeypatch, tmp_path):
    pretend(monkeypatch, TIGHT + MIB // 2)
    prepared = prepare(config(tmp_path, LARGE))[0]
    assert (prepared.backend, prepared.choice.reason) == ("cpu", "the only one that can hold every trial")
    out = by_name(prepared.choice)["cuda"]
    assert out.out
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
        "device auto: cuda, GPUs come first where not everything is known: "
        "cuda is not known: Silent names no launches() whose iterations can be told; "
        "cpu is not known: Silent names no launches() whose iterations can be told"
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
    assert sum(shape.trials for shape in backend_choice._sample(prepared.trials, shapes(prepared, job))) == 40


def test_of_those_that_hold_every_trial_the_first_that_suits_is_taken():
    cuda, metal, cpu = (Candidate(name) for name in ("cuda", "metal", "cpu"))
    taken = lambda width, *able: _best(able, width)[0]
    assert [taken(width, cuda, metal, cpu) for width in (1.0, WIDE, None)] == ["cpu", "cuda", "cuda"]
    assert taken(WIDE, Candidate("cuda", "too small", out=True), metal, cpu) == "metal"
    assert taken(1.0, Candidate("cpu", "too small", out=True), cuda, metal) == "cuda"


# ---- what is said
def test_the_plan_says_what_was_chosen_and_why(one_card, tmp_path):
    prepared, job = prepare(config(tmp_path, SMALL))
    lines = plan_text(prepared, make_plan(prepared, job)).splitlines()
    at = lines.index(f"device auto: cpu, {prepared.choice.reason}")
    assert lines[at + 1 : at + 3] == ["  cuda holds every trial", "  cpu holds every trial"]
    assert "device auto" not in plan_text(*_named(tmp_path))


def _named(folder):
    prepared, job = prepare(config(folder, SMALL, device={"backend": "cpu"}))
    return prepared, make_plan(prepared, job)


def test_a_choice_in_one_line():
    both = Candidate("cuda"), Candidate("cpu", "n=3 needs 9 GiB", out=True)
    assert AutoChoice("cuda", "the only one that can hold every trial", both).text == (
        "device auto: cuda, the only one that can hold every trial: cuda holds every trial; cpu is out: n=3 needs 9 GiB"
    )


def test_the_document_of_plan_has_it(one_card, tmp_path):
    result = CliRunner().invoke(app, ["plan", str(config(tmp_path, SMALL)), "--json"])
    data = json.loads(result.stdout)
    assert result.exit_code == 0 and data["backend"] == data["choice"]["backend"] == "cpu"
    assert data["choice"]["candidates"] == [{"backend": b, "why": "", "out": False} for b in ("cuda", "cpu")]


@pytest.mark.slow
def test_submit_says_it_too(one_card, local_ray, tmp_path):
    result = CliRunner().invoke(app, ["submit", str(config(tmp_path, SMALL))])
    assert result.exit_code == 0, result.output
    assert "device auto: cpu, as its launches have 16 iterations side by side" in " ".join(result.output.split())
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
