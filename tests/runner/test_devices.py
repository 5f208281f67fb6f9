"""Sweeps on devices: one worker holds each of them, is replaced when it loses it, and plans say what the device has less."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from runner_helpers import FAKES
from typer.testing import CliRunner

from qdrun.compiler.runtime.inventory import BackendLine
from qdrun.runner.cli.app import app
from qdrun.runner.config.yaml_lines import ConfigError
from qdrun.runner.engine import session
from qdrun.runner.ledger.inventory import PROCESS_BYTES, pretended
from qdrun.runner.ray_adapter.cluster import Capacity, ClusterError
from qdrun.runner.store.follower import read
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.study import devices
from qdrun.runner.study.plan import make_plan
from qdrun.runner.study.prepare import prepare

GIB = 1 << 30
CONFIG = """version: 1
name: dev
job: {{target: "{target}", params: {params}}}
device: {device}
sweep: {{params: {sweep}}}
limits: {limits}
output: {output}
"""


def write(folder, device, *, sweep=None, params=None, limits=None, target=f"{FAKES}:OnDevice"):
    path = Path(folder) / "dev.yaml"
    (Path(folder) / "marks").mkdir(exist_ok=True)
    given = {"marks": str(Path(folder) / "marks"), **(params or {})} if target.endswith("OnDevice") else params or {}
    text = CONFIG.format(
        target=target,
        params=json.dumps(given),
        device=json.dumps(device),
        sweep=json.dumps(sweep or {"number": [0, 1, 2, 3]}),
        limits=json.dumps(limits or {}),
        output=json.dumps(str(Path(folder) / "runs")),
    )
    path.write_text(text, encoding="utf-8")
    return path


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, json.loads(result.stdout)


def go(config, *options):
    code, summary = run("submit", config, "--json", "--quiet", *options)
    return code, summary, run("results", summary["folder"], "--json")[1]["rows"]


def gpu(index, memory=80 * GIB):
    uuid, pci = f"GPU-0000000{index}-aaaa", f"0000:0{index}:00.0"
    return BackendLine(
        "cuda", True, True, f"NVIDIA H200, sm_90, {uuid}, {pci}", 270_336, memory, index, uuid, pci, "NVIDIA H200"
    )


@pytest.fixture
def two_gpus(monkeypatch):
    """An inventory with two GPUs, which this machine need not have."""
    found = [row for row in devices.inventory() if row.name == "cpu"]
    monkeypatch.setattr(devices, "inventory", lambda: [*found, gpu(0), gpu(1, 24 * GIB)])


EMULATED = {"backend": "cuda", "id": "emulated"}
EMULATED_AMD = {"backend": "amdgpu", "id": "emulated:gfx942"}


def test_one_worker_runs_all_trials_of_a_named_device(local_ray, tmp_path):
    code, summary, rows = go(write(tmp_path, EMULATED))
    assert code == 0 and summary["counts"] == {"done": 4}
    assert len({row["out.pid"] for row in rows}) == 1


@pytest.mark.slow
def test_a_worker_that_loses_its_device_is_replaced_and_the_trial_is_tried_again(local_ray, tmp_path):
    sweep = {"mood": ["good", "lost once", "crash once", "lost"]}
    config = write(tmp_path, EMULATED, sweep=sweep | {"number": [0, 1, 2, 3]}, limits={"retries": 1})
    config.write_text(config.read_text().replace("sweep: {params", "sweep: {method: zip, params"))
    code, _, rows = go(config)
    good, once, crashed, lost = rows
    assert code == 1
    assert [row["status"] for row in rows] == ["done", "done", "done", "failed"]
    pids = [(tmp_path / "marks" / str(number)).read_text().split() for number in range(4)]
    # one more where another trial took the worker down before it had told the result; that is not charged
    assert all(row["attempts"] >= len(ran) >= least for row, ran, least in zip(rows, pids, (1, 2, 2, 2), strict=True))
    assert lost["error_type"] == "DeviceError" and lost["error"].startswith("the device's memory has failed")
    assert lost["error"].splitlines()[0].endswith(f"({lost['attempts']} attempts)")
    for number, row in ((1, once), (2, crashed)):
        assert pids[number][0] not in pids[number][1:] and row["out.pid"] == float(pids[number][-1]), "another process"
    assert good["out.pid"] == float(pids[0][-1])
    assert pids[0][0] == pids[1][0], "the first worker lives until it is lost"


@pytest.mark.slow
def test_a_trial_that_hangs_on_a_device_is_ended_with_its_worker(local_ray, tmp_path):
    config = write(tmp_path, EMULATED, sweep={"mood": ["hang", "good"]}, limits={"trial_timeout_s": 1.5})
    code, _, (hung, good) = go(config)
    assert code == 1
    assert (hung["status"], hung["error_type"]) == ("failed", "Timeout")
    assert good["status"] == "done"


@pytest.mark.slow
def test_there_is_a_worker_for_each_device(local_ray, tmp_path, monkeypatch):
    real = session.devices_of
    two = lambda prepared: [replace(row, id=f"{row.id}-{k}") for row in real(prepared) for k in range(2)]
    monkeypatch.setattr(session, "devices_of", two)
    config = write(tmp_path, EMULATED, sweep={"number": list(range(6))}, params={"sleep_s": 0.5})
    code, summary, rows = go(config)
    assert code == 0
    assert len({row["out.pid"] for row in rows}) == 2
    started = [event for event in read(RunFolder(summary["folder"])).events if event["event"] == "started"]
    assert {event["device"] for event in started} == {"cuda:emulated-0", "cuda:emulated-1"}


def test_a_trial_that_is_larger_than_every_device_is_not_started(local_ray, two_gpus, tmp_path, monkeypatch):
    small = (512 << 20) + PROCESS_BYTES["cuda"] + 1000  # the reserve, the process, and less than the 4096 bytes of the program
    monkeypatch.setattr(session, "devices_of", lambda prepared: pretended(2, small))
    monkeypatch.setattr("qdrun.runner.study.plan.built_on", lambda prepared, wanted: "cpu")
    code, _, (row,) = go(write(tmp_path, {"backend": "cuda"}, sweep={"number": [0]}))
    assert code == 1 and row["attempts"] == 0
    assert row["error"].startswith("needs 4 KiB at its smallest on cuda:pretended-here-")
    assert row["error"].endswith("; the trial was not started")


def test_a_machine_without_devices_of_the_backend_is_refused(two_gpus, ray_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(session, "open_cluster", lambda *a, **k: Capacity(8, 8, GIB))
    monkeypatch.setattr(session, "close_cluster", lambda **how: None)
    result = CliRunner().invoke(app, ["submit", str(write(tmp_path, {"backend": "cuda"})), "--json", "--quiet"])
    assert result.exit_code == 4
    error = json.loads(result.stdout)["error"]
    assert error["type"] == ClusterError.__name__
    assert error["message"].startswith("this machine has no device for the cuda backend")


@pytest.mark.parametrize("name", [1, "GPU-00000001", "GPU-00000001-AAAA", "0000:01:00.0", "01:00.0"])
def test_a_device_is_named_by_index_uuid_or_pci_address(two_gpus, tmp_path, name):
    prepared, _ = prepare(write(tmp_path, {"backend": "cuda", "id": name}))
    place = prepared.place
    assert (place.backend, place.device, place.devices) == ("cuda", name, 0)
    assert place.memory_bytes == 24 * GIB - max(24 * GIB // 20, 512 << 20)
    assert prepared.spec(prepared.trials[0])["device"] == name


@pytest.mark.parametrize(
    ("device", "local", "words"),
    [
        ({"backend": "cuda", "id": 2}, True, ["no cuda devices are called `2`", "0 (NVIDIA H200", "GPU-00000001-aaaa"]),
        ({"backend": "cuda", "id": "GPU-0000000"}, True, ["2 cuda devices are called `GPU-0000000`"]),
        ({"backend": "cuda", "id": "first"}, True, ["`first` does not name a device", "GPU-<uuid>"]),
        ({"backend": "cuda", "id": -1}, True, ["`-1` does not name a device"]),
        ({"backend": "cuda", "id": 0}, False, ["Ray chooses among the devices of a cluster", "leave `id` out"]),
        ({"backend": "cpu", "id": 0}, True, ["the cpu backend has one device"]),
        ({"backend": "vulkan"}, True, ["no vulkan device can be used"]),
    ],
)
def test_a_wrong_device_is_refused_with_its_line(two_gpus, monkeypatch, tmp_path, device, local, words):
    rows = [*devices.inventory(), BackendLine("vulkan", False, False, "no such device on this machine")]
    monkeypatch.setattr(devices, "inventory", lambda: rows)
    with pytest.raises(ConfigError) as error:
        prepare(write(tmp_path, device), local=local)
    assert all(word in str(error.value) for word in ["dev.yaml:4: ", *words])


def test_auto_is_a_gpu_where_there_is_one(two_gpus, tmp_path, monkeypatch):
    monkeypatch.setattr("qdrun.runner.ledger.inventory.backends", devices.inventory)
    place = prepare(write(tmp_path, {"backend": "auto"}))[0].place
    assert (place.backend, place.devices) == ("cuda", 2)
    cpu = [row for row in devices.inventory() if row.name == "cpu"]
    monkeypatch.setattr(devices, "inventory", lambda: cpu)
    assert prepare(write(tmp_path, {"backend": "auto"}))[0].place.backend == "cpu"


@pytest.mark.parametrize("backend", ["vulkan", "metal"])
def test_auto_knows_gpus_of_other_backends_and_leaves_programs_on_the_processor_alone(tmp_path, monkeypatch, backend):
    cpu = [row for row in devices.inventory() if row.name == "cpu"]
    uuid = "GPU-00000000-aaaa-bbbb-cccc-000000000001"
    for usable, taken in ((True, backend), (False, "cpu")):
        row = BackendLine(backend, usable, True, "only for programs that name it", 65_536, 24 * GIB, 0, uuid, "", "GPU")
        monkeypatch.setattr(devices, "inventory", lambda row=row: [*cpu, row])
        monkeypatch.setattr("qdrun.runner.ledger.inventory.backends", devices.inventory)
        assert prepare(write(tmp_path, {"backend": "auto"}))[0].place.backend == taken
        assert prepare(write(tmp_path, {"backend": ["cuda", backend, "cpu"]}))[0].place.backend == taken


def test_a_cluster_s_devices_need_not_be_here(tmp_path):
    """The plan is made on the CPU, for the GPU."""
    config = write(
        tmp_path, {"backend": "cuda"}, target="qdrun.jobs.mpm88:Mpm88", sweep={"particles": [9]}, params={"steps": 4}
    )
    prepared, job = prepare(config, local=False)
    (group,) = make_plan(prepared, job)
    assert group.error == "" and group.plan.arch == "cuda" and group.plan.footprint > group.plan.bytes + 500_000_000


@pytest.mark.slow
@pytest.mark.parametrize("gpu, steps, trials", [(EMULATED, 12, 2), (EMULATED_AMD, 2, 3)], ids=["cuda", "amdgpu"])
def test_a_job_runs_on_the_emulated_device_as_planned_and_as_on_the_cpu(local_ray, tmp_path, gpu, steps, trials):
    """Its trials run as a batch."""
    rows = {}
    for name, device in (("gpu", gpu), ("cpu", {"backend": "cpu"})):
        (tmp_path / name).mkdir()
        job = {"target": "qdrun.jobs.mass_spring:MassSpring", "params": {"steps": steps, "substeps": 10, "dt": 0.1}}
        config = write(tmp_path / name, device, sweep={"stiffness": [200.0 + 100.0 * k for k in range(trials)]}, **job)
        code, _, rows[name] = go(config)
        assert code == 0, rows[name]
        _, planned = run("plan", config, "--json")
        assert {row["used_of_planned"] for row in rows[name]} == {1.0}
        size = planned["batches"][0]["size"]
        assert size > 1 or gpu is EMULATED
        assert size > 1 or {row["used_bytes"] for row in rows[name]} == {planned["memory"][0]["bytes"]}
    for there, here in zip(rows["gpu"], rows["cpu"]):
        assert (
            there["device"].startswith("emulated gfx942" if gpu is EMULATED_AMD else "emulated device")
            and here["device"] == "cpu"
        )
        assert min(abs(here["loss"]), abs(here["grad.stiffness"])) > 1e-9
        assert there["loss"] == pytest.approx(here["loss"], rel=1e-9)
        assert there["grad.stiffness"] == pytest.approx(here["grad.stiffness"], rel=1e-7)


def test_plan_and_explain_for_a_gpu_list_what_its_process_takes(tmp_path):
    config = write(tmp_path, {"backend": "cpu"}, target="qdrun.jobs.mpm88:Mpm88", sweep={"particles": [9]}, params={"steps": 4})
    code, planned = run("plan", config, "--arch", "cuda", "--json")
    (memory,) = planned["memory"]
    assert code == 0 and (memory["arch"], planned["backend"], planned["at_once"]) == ("cuda", "cpu", None)
    beside = {kind: memory["by_kind"][kind] for kind in ("driver", "frames", "rounding")}
    assert memory["bytes"] + sum(beside.values()) == memory["footprint"] == sum(memory["by_kind"].values())
    text = CliRunner().invoke(app, ["plan", str(config), "--arch", "cuda"]).stdout
    assert "driver context" in text.replace("driver's", "driver") and "on the device" in text
    code, explained = run("explain", config, "--arch", "cuda", "--json")
    assert code == 0 and explained["memory"][0]["explanation"]["plan"]["by_kind"] == memory["by_kind"]
