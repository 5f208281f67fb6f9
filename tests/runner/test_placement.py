"""The placement that `qdrun plan` predicts: cards that are not here, what does not fit and why, exit codes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from runner_helpers import write_config
from typer.testing import CliRunner

from qdrun.jobs.base import MemoryPlan, PlanEntry
from qdrun.runner.cli.app import app
from qdrun.runner.ledger import inventory
from qdrun.runner.study import plan as plan_module
from qdrun.runner.study.placement import CardsError, cards, park_of, predict, shared_out, with_frames
from qdrun.runner.study.plan import PlannedGroup, make_plan
from qdrun.runner.study.prepare import prepare

GIB = 1 << 30
PROCESS = 576 << 20


def plan(config, *words):
    result = CliRunner().invoke(app, ["plan", str(config), *words, "--json"])
    return result.exit_code, json.loads(result.stdout)


def sized(folder, gibs, **more):
    """A config of the fake job with trials of so many GiB: a trial holds its cells twice, 8 bytes each."""
    return write_config(folder, sweep={"size": [int(gib * GIB / 16) for gib in gibs], **more.pop("sweep", {})}, **more)


def test_the_list_of_cards_is_read_with_the_reserve_taken_off():
    park = cards("24GiB*2, 80GiB", "cuda", 4, PROCESS)
    assert [pool.capacity for pool in park.pools] == [24 * GIB - 24 * GIB // 20] * 2 + [80 * GIB - 80 * GIB // 20]
    assert [(d.id, d.pool, d.kind, d.lanes) for d in park.devices] == [(f"cuda:{k}", f"cuda:{k}", "cuda", 4) for k in range(3)]
    small = cards("4GiB", "cuda", 1, 0)
    assert small.pools[0].capacity == 4 * GIB - (512 << 20), "at least 512 MiB"


@pytest.mark.parametrize("text", ["", "lots", "24GiB*0", "24GiB*x", "24GiB,,80GiB", "1GiB*99999", "24GiB*-1"])
def test_a_wrong_list_of_cards_is_refused(text, tmp_path):
    with pytest.raises(CardsError, match=r"24GiB\*2,80GiB\*2"):
        cards(text, "cuda", 1, 0)
    code, data = plan(write_config(tmp_path), "--device-memory", text)
    assert (code, data["error"]["type"]) == (2, "CardsError")


def test_trials_are_placed_on_cards_that_are_not_here(tmp_path):
    config = sized(tmp_path, [1, 20, 40], sweep={"x": [0, 1]})
    code, data = plan(config, "--arch", "cuda", "--device-memory", "24GiB*2,80GiB*2")
    placed = data["placement"]
    assert (code, placed["placed"], placed["misfits"], data["at_once"]) == (0, 6, [], 6)
    assert [row["memory_bytes"] // GIB for row in placed["devices"]] == [24, 24, 80, 80]
    assert {row["process_bytes"] for row in placed["devices"]} == {PROCESS}
    assert (placed["waves"], placed["finish"], placed["bound"]) == (1, 1.0, 1.0)
    for row in placed["devices"]:
        assert row["peak_bytes"] <= row["for_trials_bytes"] and row["trials"] >= row["at_once"]
    assert sum(row["trials"] for row in placed["devices"]) == 6
    text = CliRunner().invoke(app, ["plan", str(config), "--arch", "cuda", "--device-memory", "24GiB*2,80GiB*2"]).stdout
    assert "placement on 24GiB*2,80GiB*2" in text and "at once: 6, waves: 1" in text
    assert "finish: 1 times the longest trial" in text


def test_waves_follow_from_bytes_and_the_bound_says_so(tmp_path):
    config = sized(tmp_path, [10], sweep={"x": list(range(12))})
    placed = plan(config, "--arch", "cuda", "--device-memory", "24GiB")[1]["placement"]
    assert (placed["at_once"], placed["waves"], placed["finish"]) == (2, 6, 6.0)
    assert placed["bound_by"] == "bytes" and 12 * 10 / 23 < placed["bound"] <= 6.0
    (row,) = placed["devices"]
    assert row["peak_bytes"] == 2 * 10 * GIB + PROCESS
    assert row["busy"] == pytest.approx(20 * GIB / row["for_trials_bytes"])


def test_what_does_not_fit_is_named_with_the_arithmetic_and_exits_3(tmp_path):
    config = sized(tmp_path, [1, 100], sweep={"x": [0, 1, 2]})
    code, data = plan(config, "--arch", "cuda", "--device-memory", "24GiB,80GiB")
    (wrong,) = data["placement"]["misfits"]
    assert code == 3 and (wrong["trials"], wrong["bytes"], data["placement"]["placed"]) == (3, 100 * GIB, 3)
    assert wrong["why"] == (
        "needs 100 GiB at its smallest on cuda:1 (cuda), and its process 576 MiB: 100.6 GiB, more than the 76 GiB of pool cuda:1"
    )
    text = CliRunner().invoke(app, ["plan", str(config), "--arch", "cuda", "--device-memory", "24GiB,80GiB"]).stdout
    assert f"does not fit\n  3 trials like {wrong['example']}: needs 100 GiB" in text


def test_a_limit_of_the_config_is_a_misfit_too(tmp_path):
    code, data = plan(write_config(tmp_path, sweep={"size": [4, 1000]}, limits={"memory": "1KiB"}))
    (wrong,) = data["placement"]["misfits"]
    assert code == 3 and wrong["why"] == "needs 15.62 KiB (16000 bytes), limits.memory is 1 KiB (1024 bytes)"
    assert data["placement"]["placed"] == 1


def test_this_machine_is_the_ledger_s(tmp_path, monkeypatch):
    (host,) = [row for row in inventory.local(1, None) if row.usable and row.backend == "cpu"]
    prepared, job = prepare(write_config(tmp_path, sweep={"x": list(range(7))}))
    groups = make_plan(prepared, job)
    monkeypatch.setattr(inventory, "local", lambda threads, lanes: [host])
    park = park_of(prepared, groups, None)
    assert park.what == "this machine" and [(d.id, d.kind, d.lanes) for d in park.devices] == [("cpu", host.kind, host.lanes)]
    found = predict(prepared, groups, park)
    assert found.at_once == min(7, host.lanes) and found.forecast.waves == -(-7 // found.at_once)


def test_max_concurrent_takes_lanes_from_the_devices_in_turn(tmp_path):
    config = sized(tmp_path, [0.1], sweep={"x": list(range(10))}, limits={"max_concurrent": 3})
    placed = plan(config, "--arch", "cuda", "--device-memory", "24GiB*2")[1]["placement"]
    assert [row["lanes"] for row in placed["devices"]] == [2, 1]
    assert (placed["at_once"], placed["finish"]) == (3, 4.0)


def test_slots_of_the_config_are_the_lanes_of_a_card(tmp_path):
    config = sized(tmp_path, [0.1], sweep={"x": list(range(10))})
    config.write_text(config.read_text() + "device: {slots: 2}\n")
    placed = plan(config, "--arch", "cuda", "--device-memory", "24GiB")[1]["placement"]
    assert (placed["devices"][0]["lanes"], placed["at_once"], placed["waves"]) == (2, 2, 5)


def test_a_config_for_gpus_is_planned_where_there_is_none(tmp_path):
    config = sized(tmp_path, [1])
    config.write_text(config.read_text() + "device: {backend: cuda}\n")
    here, _ = plan(config)
    assert here == 2, "without cards, this machine must have one"
    code, data = plan(config, "--device-memory", "24GiB")
    assert (code, data["backend"], data["placement"]["devices"][0]["kind"]) == (0, "cuda", "cuda")


def test_points_of_a_curve_are_what_the_packer_may_choose(tmp_path):
    prepared, job = prepare(sized(tmp_path, [10], sweep={"x": [0, 1, 2]}))
    groups = make_plan(prepared, job)
    park = cards("24GiB", "cpu", 4, 0)
    fixed = predict(prepared, groups, park)
    bent = predict(prepared, groups, park, {groups[0].first: ((10 * GIB, 1.0), (5 * GIB // 2, 1.2))})
    assert (fixed.forecast.finish, fixed.at_once) == (2.0, 2)
    assert bent.forecast.finish == pytest.approx(1.2)
    assert bent.at_once == 3


def test_a_trial_that_cannot_be_planned_exits_1_and_has_no_place(tmp_path):
    config = write_config(tmp_path, target="own.py:Broken")
    here = __file__.rsplit("/", 1)[0]
    (tmp_path / "own.py").write_text(
        f"import sys; sys.path.insert(0, {here!r})\nfrom fakes import Quadratic\n"
        "class Broken(Quadratic):\n    def build(self):\n        raise RuntimeError('no field')\n"
    )
    code, data = plan(config)
    assert code == 1 and "no field" in data["memory"][0]["error"] and data["placement"]["placed"] == 0


def test_a_plan_that_lacks_something_says_so(tmp_path):
    jobs = Path(__file__).parent / "engine" / "jobs_for_memory.py"
    texts = []
    for name in ("Tapes", "Silent"):
        config = write_config(tmp_path, target=f"{jobs}:{name}", sweep={"start": [0.5]})
        config.write_text(config.read_text().replace("gradients: [x, target]\n", ""))
        texts.append(CliRunner().invoke(app, ["plan", str(config)]).stdout)
    assert [text.count("as the job names no launches(); these trials may take more than they claim") for text in texts] == [
        0,
        1,
    ]


def test_frames_of_kernels_are_part_of_the_process_of_a_card_and_of_no_host():
    card, host = inventory.Found("g", "", "cuda", process_bytes=PROCESS), inventory.Found("c", "", "cpu", process_bytes=100)
    groups = [
        group_of(0),
        group_of(7 << 20),
        group_of(3 << 20),
        PlannedGroup(places=(9,), first=9, example="", plan=None, error="no"),
    ]
    assert [row.process_bytes for row in with_frames([card, host], groups)] == [PROCESS + (7 << 20), 100]
    assert with_frames([card], []) == [card]


def group_of(frames):
    entries = [PlanEntry(kind="state", bytes=8, source="build()"), PlanEntry(kind="frames", bytes=frames, source="launches()")]
    return PlannedGroup(places=(0,), first=0, example="", plan=MemoryPlan(entries=tuple(entries), arch="cuda"))


@pytest.mark.parametrize(
    ("device", "compiled"), [("{backend: cpu}", []), ("{backend: cuda}", [0]), ("{backend: cuda, id: emulated}", [])]
)
def test_only_on_a_card_that_is_here_one_shape_is_compiled_for_its_frames(tmp_path, monkeypatch, device, compiled):
    config = write_config(tmp_path, sweep={"size": [1, 2, 3]})
    config.write_text(config.read_text() + f"device: {device}\n")
    found, job = prepare(config, local=False)
    found = found.model_copy(update={"place": replace(found.place, present=True)})
    asked = []

    def opened(prepared, job, trial, budget, arch=None, *, threads=None, machine_code=True):
        asked.append(machine_code)
        return job(job.Params.model_validate(trial.params)).opened()

    monkeypatch.setattr(plan_module, "opened", opened)
    for plan in (make_plan, plan_module.plan_all):
        asked.clear()
        plan(found, job)
        assert [k for k, machine_code in enumerate(asked) if machine_code] == compiled and len(asked) == 3


@pytest.mark.parametrize(
    ("lanes", "most", "given"),
    [([4, 4], None, [4, 4]), ([4, 4], 3, [2, 1]), ([1, 8], 6, [1, 5]), ([4], 9, [4]), ([2, 2, 2], 1, [1, 0, 0])],
)
def test_lanes_are_shared_out_in_turn(lanes, most, given):
    assert shared_out(lanes, most) == given
