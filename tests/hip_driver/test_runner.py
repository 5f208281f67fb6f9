"""The runner with AMD devices: listed, chosen, planned for, and held by a worker, on the stand-in for ROCm's library."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from qdrun.compiler.runtime import registry
from qdrun.runner.cli.app import app
from qdrun.runner.config.yaml_lines import ConfigError
from qdrun.runner.study.plan import make_plan
from qdrun.runner.study.prepare import prepare
from qdrun.runner.workers.device_check import DeviceMismatch, take_device

GIB = 1 << 30
FIRST, SECOND = "GPU-00000000000012ab", "GPU-00000000000012cd"
CONFIG = """version: 1
name: amd
job: {{target: "qdrun.jobs.mpm88:Mpm88", params: {{particles: 36, steps: 20}}}}
device: {device}
sweep: {{params: {{stiffness: [20.0, 40.0]}}}}
"""


@pytest.fixture
def machine(rocm, monkeypatch):
    """Two AMD cards of 16 GiB."""
    rocm.setup(devices=2, total=16 * GIB)
    found = replace(registry.BACKENDS["amdgpu"], detect=lambda: "an AMD GPU driver is loaded (/dev/kfd)")
    monkeypatch.setitem(registry.BACKENDS, "amdgpu", found)
    return rocm


def prepared(folder, device):
    path = folder / "amd.yaml"
    path.write_text(CONFIG.format(device=json.dumps(device)), encoding="utf-8")
    return prepare(path)


def chosen(folder, device):
    return prepared(folder, device)[0].place


def test_devices_lists_them(machine):
    out = json.loads(CliRunner().invoke(app, ["devices", "--json"]).stdout)["devices"]
    rows = [row for row in out if row["backend"] == "amdgpu"]
    assert [(r["id"], r["usable"], r["uuid"], r["model"], r["driver"]) for r in rows] == [
        ("amdgpu:0", True, FIRST, "AMD Test Card", "HIP 7.15"),
        ("amdgpu:1", True, SECOND, "AMD Test Card", "HIP 7.15"),
    ]
    assert rows[0]["memory_bytes"] == 16 * GIB and rows[0]["kind"] == "amdgpu/AMD-Test-Card/8192"


@pytest.mark.parametrize("named", [1, SECOND, "0000:c1:00.0"])
def test_a_config_names_a_card_by_number_uuid_or_address(machine, tmp_path, named):
    found = chosen(tmp_path, {"backend": "amdgpu", "id": named})
    assert (found.backend, found.device, found.devices) == ("amdgpu", named, 0)


def test_a_config_takes_all_cards_of_the_machine(machine, tmp_path):
    for backend in ("amdgpu", ["cuda", "amdgpu"]):
        found = chosen(tmp_path, {"backend": backend})
        assert (found.backend, found.devices, found.memory_bytes) == ("amdgpu", 2, 16 * GIB - 16 * GIB // 20)


def test_a_card_that_is_not_there_is_said(machine, tmp_path):
    with pytest.raises(ConfigError, match="no amdgpu devices are called `GPU-9999`"):
        chosen(tmp_path, {"backend": "amdgpu", "id": "GPU-9999"})


def test_a_trial_is_planned_on_the_card_with_the_bytes_of_the_plan_without_one(machine, tmp_path):
    plans = [
        make_plan(*prepared(tmp_path, {"backend": "amdgpu"})),
        make_plan(*prepared(tmp_path, {"backend": "cpu"}), "amdgpu"),
    ]
    here, elsewhere = ({row.plan.arch: row.plan.by_kind() for row in plan} for plan in plans)
    assert list(here) == ["amdgpu"]
    assert {k: v for k, v in here["amdgpu"].items() if k != "code"} == elsewhere["amdgpu"]
    assert sum(elsewhere["amdgpu"].values()) > 0


def spec(**given):
    from qdrun.runner.workers.spec import WorkerSpec

    return WorkerSpec("file:///run", 1, "token", "amdgpu:1", "amdgpu", **given)


def test_a_worker_holds_the_card_that_it_was_started_for(machine):
    held = take_device(spec(which=SECOND, uuid=SECOND, pci="00000000:C1:00.0", lanes=4), "w")
    assert (held.name, held.uuid, held.pci) == ("AMD Test Card", SECOND, "0000:c1:00.0")
    assert held.memory() == (16 * GIB, 16 * GIB)
    assert machine.calls("hipSetDeviceFlags"), "its threads sleep while they wait"


def test_a_worker_that_sees_another_card_says_so(machine, monkeypatch):
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    with pytest.raises(DeviceMismatch, match=f"the UUID {SECOND}, it sees {FIRST}.*HIP_VISIBLE_DEVICES is '0'"):
        take_device(spec(which=0, uuid=SECOND), "w")
