"""The runner with Vulkan devices: a sweep whose trials run on llvmpipe and on the processor at once."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from qdrun.compiler.runtime.vulkan.instance import instance
from qdrun.runner.cli.app import app
from qdrun.runner.store.follower import read
from qdrun.runner.store.layout import RunFolder

from .conftest import NAME

CONFIG = """version: 1
name: both
job: {{target: "qdrun.jobs.mass_spring:MassSpring", params: {{steps: 3, substeps: 10, dt: 0.05}}}}
device: {device}
batch: 1
sweep: {{params: {{stiffness: {{linspace: [200.0, 900.0, 8]}}}}}}
output: {output}
"""


def rows_of(folder, device):
    """The folder of a run on a device, and the rows of its table."""
    folder.mkdir()
    path = folder / "both.yaml"
    path.write_text(CONFIG.format(device=json.dumps(device), output=json.dumps(str(folder / "runs"))), encoding="utf-8")
    done = CliRunner().invoke(app, ["submit", str(path), "--json", "--quiet"])
    assert done.exit_code == 0, done.stdout
    summary = json.loads(done.stdout)
    results = CliRunner().invoke(app, ["results", summary["folder"], "--json"])
    return RunFolder(summary["folder"]), json.loads(results.stdout)["rows"]


@pytest.mark.skipif(NAME != "llvmpipe", reason="about a software driver")
def test_devices_lists_a_gpu_as_usable_and_a_program_on_the_processor_as_not(has_device, monkeypatch):
    def listed():
        found = json.loads(CliRunner().invoke(app, ["devices", "--json"]).stdout)["devices"]
        return next(row for row in found if row["id"] == f"vulkan:{device.index}")

    device = next(d for d in instance().devices if d.name.startswith(NAME))
    row = listed()
    assert not row["usable"] and "only for programs that name it" in str(row)
    devices = tuple(replace(d, software=False) if d is device else d for d in instance().devices)
    monkeypatch.setattr(instance(), "devices", devices, raising=False)
    row = listed()
    assert (row["usable"], row["backend"], row["model"]) == (True, "vulkan", device.name)
    assert row["uuid"] == row["pool"] and row["uuid"].startswith("GPU-") and row["memory_bytes"] > 0


@pytest.mark.slow
@pytest.mark.skipif(NAME != "llvmpipe", reason="about a software driver")
def test_one_sweep_on_two_backends_at_once_has_the_rows_of_one(has_device, local_ray, tmp_path, monkeypatch):
    """``device.together``: trials go to workers with Vulkan and to workers on the processor. llvmpipe is said to be a GPU here."""
    _, alone = rows_of(tmp_path / "alone", {"backend": "cpu"})
    gpus = tuple(replace(device, software=False) for device in instance().devices)
    monkeypatch.setattr(instance(), "devices", gpus, raising=False)
    folder, mixed = rows_of(tmp_path / "mixed", {"backend": ["vulkan", "cpu"], "together": True, "slots": 1})
    # The processor's worker gets trials if it has started before the other one is through.
    assert {"llvmpipe"} <= {row["device"].partition(" ")[0] for row in mixed} <= {"cpu", "llvmpipe"}
    started = [event["device"].partition(":")[0] for event in read(folder).events if event["event"] == "started"]
    assert {"vulkan"} <= set(started) <= {"cpu", "vulkan"}
    assert folder.config()["device"]["backend"] == ["vulkan", "cpu"]
    for there, here in zip(mixed, alone, strict=True):
        assert there["param.stiffness"] == here["param.stiffness"] and here["device"] == "cpu"
        assert min(abs(here["loss"]), abs(here["grad.stiffness"])) > 1e-9
        assert there["loss"] == pytest.approx(here["loss"], rel=1e-9)
        assert there["grad.stiffness"] == pytest.approx(here["grad.stiffness"], rel=1e-7)
