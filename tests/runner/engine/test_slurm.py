"""Runs in an allocation of Slurm, with stand-ins for its commands: what is queued, what is refused, what a node does."""

import json
import os
import stat

import pytest
from runner_helpers import only_run, write_config
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.remote import slurm, slurm_node
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.store.owner import take
from qdrun.runner.store.status import status


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Makes a command of Slurm that is a shell script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    (tmp_path / "token").write_text("t")

    def make(name, text):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return make


def submitted(config, *words):
    result = CliRunner().invoke(app, ["submit", str(config), "--address", "slurm", "--json", *words])
    return result.exit_code, json.loads(result.stdout)


def test_a_run_is_queued_as_one_job_with_a_task_for_each_node(tmp_path, commands):
    commands("sbatch", f"cat > {tmp_path}/script; echo '41;cluster'")
    code, said = submitted(write_config(tmp_path), "--sbatch", "partition=gpu", "--sbatch", "nodes=2", "--sbatch", "exclusive")
    folder = only_run(tmp_path)
    assert code == 0 and (said["job"], said["address"], said["log"]) == ("41", "Slurm", f"{folder}/slurm.log")
    script = (tmp_path / "script").read_text().splitlines()
    options = {line.removeprefix("#SBATCH --") for line in script if line.startswith("#SBATCH")}
    assert {
        "partition=gpu",
        "nodes=2",
        "exclusive",
        "ntasks-per-node=1",
        "requeue",
        "no-kill",
        f"output={folder}/slurm.log",
    } <= options
    assert script[-1].startswith("exec srun ") and script[-1].endswith(f"-m qdrun.runner.remote.slurm_node {folder}")
    assert json.loads((folder / "launch.json").read_text())["slurm"] == "41"


def test_a_cancel_takes_a_queued_job_out_of_slurm_and_only_one_that_this_user_has_queued(tmp_path, commands):
    commands("sbatch", "cat > /dev/null; echo 41")
    commands("scancel", f"echo $@ >> {tmp_path}/ended")
    submitted(write_config(tmp_path))
    folder = only_run(tmp_path)
    launch = (folder / "launch.json").read_text()
    (folder / "launch.json").write_text(launch.replace('"41"', '"40"'))  # by whoever can write to the folder
    result = CliRunner().invoke(app, ["cancel", str(folder)])
    assert result.exit_code == 0 and "asked to stop" in result.output
    assert (tmp_path / "ended").read_text() == "41\n"
    assert status(RunFolder(str(folder)))["state"] == "cancelled"
    commands("scancel", "echo 'scancel: error: Invalid user' >&2; exit 1")
    other = tmp_path / "other"
    other.mkdir()
    submitted(write_config(other))
    refused = CliRunner().invoke(app, ["cancel", str(only_run(other))])
    assert refused.exit_code == 4 and "Slurm does not cancel job 41: scancel: error: Invalid user" in refused.output


def test_what_slurm_cannot_do_is_refused_and_the_run_does_not_wait(tmp_path, commands):
    commands("sbatch", "echo 'sbatch: error: invalid partition specified: none' >&2; exit 1")
    config = write_config(tmp_path)
    code, said = submitted(config)
    assert code == 4 and "Slurm refuses the job: invalid partition specified: none" in said["error"]["message"]
    assert status(RunFolder(str(only_run(tmp_path))))["state"] == "failed"
    for option, why in (
        ("--nodes=2", "is no long option of sbatch without its dashes"),
        ("output=x", "is set by the run itself"),
    ):
        code, said = submitted(config, "--sbatch", option)
        assert code == 4 and why in said["error"]["message"]
    code, said = submitted(config, "--set", "device.backend=auto")
    assert code == 4 and "the nodes that Slurm will give are not known yet" in said["error"]["message"]


def test_without_slurm_the_command_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
    code, said = submitted(write_config(tmp_path))
    assert code == 4 and "there is no `sbatch` on this machine" in said["error"]["message"]


def test_a_job_that_ends_before_its_run_begins_makes_it_a_failed_one(tmp_path, commands):
    commands("sbatch", "echo 7")
    submitted(write_config(tmp_path))
    folder = RunFolder(str(only_run(tmp_path)))
    commands("squeue", "echo PENDING")
    assert slurm._over(folder, "7", "log") == ""
    commands("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    assert slurm._over(folder, "7", "log") == "", "nothing is known"
    commands("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert slurm._over(folder, "7", "log") == "job 7 of Slurm is over"
    assert status(folder)["state"] == "failed"


def test_the_first_node_has_the_head_and_a_job_that_slurm_starts_again_goes_on(tmp_path, commands, monkeypatch):
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.3")
    monkeypatch.setenv("SLURM_JOB_ID", "120042")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "16")
    head = slurm_node.address()
    first, other = (" ".join(slurm_node.ray_words(head, "/tmp/x", first=first)) for first in (True, False))
    assert head == "10.0.0.3:30042" and "--num-cpus 16" in first and "--num-cpus 16" in other
    assert "--head --node-ip-address 10.0.0.3 --port 30042" in first and other.endswith("--address 10.0.0.3:30042")
    commands("sbatch", "echo 7")
    submitted(write_config(tmp_path))
    folder = RunFolder(str(only_run(tmp_path)))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert slurm_node.again(folder.uri) == [], "it had not begun"
    take(folder)
    assert slurm_node.again(folder.uri) == ["--resume"]
    monkeypatch.delenv("SLURM_RESTART_COUNT")
    assert slurm_node.again(folder.uri) == []
