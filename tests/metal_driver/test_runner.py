"""The runner with Apple GPUs: listed, chosen, and held by a worker, on the stand-in for Metal."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from qdrun.compiler.runtime import registry
from qdrun.runner.cli.app import app
from qdrun.runner.study.prepare import prepare
from qdrun.runner.workers.device_check import take_device
from qdrun.runner.workers.spec import WorkerSpec

GIB = 1 << 30
UUID = "GPU-1234567800000000"
CONFIG = """version: 1
name: apple
job: {{target: "qdrun.jobs.mpm88:Mpm88", params: {{particles: 36, steps: 20}}}}
device: {device}
sweep: {{params: {{stiffness: [20.0, 40.0]}}}}
"""


@pytest.fixture
def machine(apple, monkeypatch):
    """A Mac with 16 GiB."""
    apple.setup(total=16 * GIB)
    found = replace(registry.BACKENDS["metal"], detect=lambda: "macOS has Metal")
    monkeypatch.setitem(registry.BACKENDS, "metal", found)
    return apple


def devices():
    out = json.loads(CliRunner().invoke(app, ["devices", "--json"]).stdout)["devices"]
    return [row for row in out if row["backend"] == "metal"]


def test_devices_lists_it(machine):
    (row,) = devices()
    assert (row["id"], row["usable"], row["uuid"], row["model"]) == ("metal:0", True, UUID, "Apple Test")
    assert row["driver"] == "Metal of macOS 15.4" and row["memory_bytes"] == 16 * GIB
    machine.setup(family=6)
    (row,) = devices()
    assert not row["usable"] and "code is made for Apple's own processors, from the M1 on" in str(row)


@pytest.mark.parametrize("named", [0, UUID])
def test_a_config_names_it_by_number_or_uuid_and_a_worker_holds_it(machine, tmp_path, named):
    path = tmp_path / "apple.yaml"
    path.write_text(CONFIG.format(device=json.dumps({"backend": "metal", "id": named})), encoding="utf-8")
    place = prepare(path)[0].place
    assert (place.backend, place.device) == ("metal", named)
    held = take_device(WorkerSpec("file:///run", 1, "token", "metal:0", "metal", which=named, uuid=UUID), "w")
    free, total = held.memory()
    assert (held.name, held.uuid, total) == ("Apple Test", UUID, 16 * GIB) and free > 15 * GIB
