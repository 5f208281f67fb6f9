"""``qdrun up`` and ``down``: one Ray for many runs, with what its record says of it and what a run takes from its own shell."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from runner_helpers import zombie

from qdrun.runner.api import submit
from qdrun.runner.processes import pid_space, started
from qdrun.runner.ray_adapter import standing as module
from qdrun.runner.ray_adapter.cluster import ClusterError, check_environment
from qdrun.runner.ray_adapter.standing import Standing, changed, hold, standing, standing_folder
from qdrun.runner.remote.keeper import STOP_S, start, stop

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


@pytest.fixture(autouse=True)
def own_state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("QDRUN_MACHINE_DIR", str(tmp_path / "machine"))


def record(**changes):
    pid = os.getpid()
    made = Standing(pid, started(pid), pid_space(), "127.0.0.1:6379", "", sys.prefix, 2, 0)
    made = replace(made, **changes)
    (standing_folder() / module.RECORD).write_text(json.dumps(asdict(made)))
    return made


def test_a_record_is_believed_while_its_process_lives():
    assert standing() is None and stop() is None
    made = record()
    assert standing() == made
    for stale in ({"pid": 2**22 + 1}, {"began": "1"}, {"space": "another boot/1"}):
        record(**stale)
        assert standing() is None and not (standing_folder() / module.RECORD).exists()
    (standing_folder() / module.RECORD).write_text("{")
    assert standing() is None


def test_a_keeper_that_ended_and_was_never_waited_for_is_gone():
    with zombie() as pid:
        record(pid=pid, began=started(pid))
        assert standing() is None


def test_down_ends_a_keeper_that_nobody_waits_for():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as keeper:
        record(pid=keeper.pid, began=started(keeper.pid))
        began = time.monotonic()
        assert stop() == keeper.pid and time.monotonic() - began < STOP_S / 2
        assert started(keeper.pid), "it is a zombie until the end of this block"


def test_a_run_of_another_environment_or_with_more_devices_starts_its_own_ray():
    assert record().suits(0) and not record().suits(1) and record(gpus=2).suits(2)
    assert not record(python="/another/venv").suits(0)


def test_workers_get_the_variables_that_the_shell_has_changed():
    there = {"A": "1", "B": "2", "PWD": "/", "SSH_TTY": "x", "RAY_JOB": "1"}
    here = {"A": "1", "B": "3", "C": "4", "PWD": "/home", "SHLVL": "2", "RAY_AUTH_MODE": "token"}
    assert changed(there, here) == {"B": "3", "C": "4"}
    assert record().changes() == {k: v for k, v in record().changes().items() if k not in ("PWD", "SHLVL")}


def test_down_leaves_a_ray_that_runs_use():
    record()
    users = hold()
    try:
        with pytest.raises(
            ClusterError, match="runs of yours use the Ray of `qdrun up`\n  do: wait for them, or `qdrun cancel` them"
        ):
            stop()
    finally:
        os.close(users)


@pytest.mark.parametrize("missing", ["aiohttp_cors", "opentelemetry.exporter.prometheus"])
def test_a_dashboard_without_its_packages_is_refused_at_once(monkeypatch, missing):
    def started(*args, **options):
        raise OSError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", started)
    with pytest.raises(OSError, match="a process was started"):
        start(dashboard=True)  # nothing is missing here
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ClusterError) as refused:
        start(dashboard=True)
    assert str(refused.value) == (
        f"Ray's dashboard needs packages that are not installed: {missing}\n"
        "  do: pip install 'ray[default]'; or `qdrun up --no-dashboard`"
    )
    with pytest.raises(OSError, match="a process was started"):
        start(dashboard=False)


def test_a_run_with_a_dashboard_without_its_packages_is_refused_before_it_has_a_folder(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "aiohttp_cors", None)
    monkeypatch.setattr(module, "standing", lambda: None)
    said = "not installed: aiohttp_cors\\n  do: pip install 'ray\\[default\\]'; or leave out --dashboard"
    for detach in (False, True):
        with pytest.raises(ClusterError, match=said):
            submit(CONFIG, output=tmp_path / "runs", dashboard=True, detach=detach)
    assert not (tmp_path / "runs").exists()
    assert check_environment(None) is None


JOB = """
import os
import ray
from qdrun.jobs.base import Job, JobParams, MemoryPlan, Outcome

class Params(JobParams):
    x: float = 1.0

class Told(Job[Params]):
    needs_compiler = False
    gradients = ()

    def build(self): ...

    def plan(self, *, arch=None):
        return MemoryPlan(entries=(), arch=arch or "cpu")

    def run(self):
        port = ray.get_runtime_context().gcs_address.rpartition(":")[2]
        return Outcome(1.0, {}, {"told": float(os.environ["QDRUN_TOLD"]), "port": float(port)})
"""


@pytest.mark.slow
def test_runs_use_the_ray_that_is_up_with_their_own_variables_until_it_is_down(tmp_path):
    def qdrun(*words, **variables):
        command = [str(Path(sys.executable).parent / "qdrun"), *words, "--json"]
        environment = {**os.environ, **variables}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    (tmp_path / "told.py").write_text(JOB)
    (tmp_path / "told.yaml").write_text(
        "version: 1\nname: told\njob: {target: 'told.py:Told'}\nsweep: {params: {x: [1.0, 2.0]}}\n"
    )
    first = qdrun("up", "--no-dashboard")
    try:
        assert first["begun"] and not qdrun("up")["begun"]
        port = float(first["address"].rpartition(":")[2])
        for said in (3.0, 4.0):
            made = qdrun("submit", "told.yaml", "--quiet", QDRUN_TOLD=str(said))
            rows = qdrun("results", made["run"])["rows"]
            assert [(row["out.told"], row["out.port"]) for row in rows] == [(said, port)] * 2
        assert standing().pid == first["pid"]
    finally:
        assert qdrun("down")["pid"] == first["pid"]
    assert standing() is None and qdrun("down")["pid"] is None
