"""What travels to a cluster: where it lies there, what is left out and why, and that a job is found again in it."""

import json
import os
import sys
from pathlib import Path

import pytest
from runner_helpers import FAKES, trial_record, write_config

from qdrun.runner.config.yaml_lines import ConfigError
from qdrun.runner.engine.resume import config_of
from qdrun.runner.provenance.record import record
from qdrun.runner.store.layout import create
from qdrun.runner.study import shipping
from qdrun.runner.study.prepare import prepare
from qdrun.runner.study.shipping import Shipped, home_of, pack
from qdrun.runner.study.target import Target, load


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


@pytest.fixture
def project(tmp_path):
    """A config that names its job by ``../jobs/own.py``, and things beside that are not for the cluster."""
    for name in ("configs", "jobs/shapes", "jobs/__pycache__", "jobs/.git", "configs/runs/old", "jobs/runs-of-mine"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "jobs/own.py").write_text("from shapes.round import ONE\n" + FAKES.read_text())
    (tmp_path / "jobs/shapes/round.py").write_text("ONE = 1\n")
    for name in ("jobs/__pycache__/own.pyc", "jobs/.git/config", "configs/runs/old/run.json", "jobs/runs-of-mine/run.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "jobs/mesh.bin").write_bytes(bytes(100))
    (tmp_path / "secret.txt").write_text("not for the cluster")
    (tmp_path / "jobs/link.txt").symlink_to(tmp_path / "secret.txt")
    config = write_config(tmp_path / "configs", target="../jobs/own.py:Quadratic")
    return config.rename(tmp_path / "configs" / "sweep.yaml")


def test_the_config_and_the_job_lie_as_at_home_and_no_run_cache_or_secret_goes_along(project, tmp_path):
    into = tmp_path / "parcel"
    parcel = pack(prepare(project)[0], into)
    assert files_of(into) == [
        "shipped/configs/sweep.yaml",
        "shipped/jobs/mesh.bin",
        "shipped/jobs/own.py",
        "shipped/jobs/shapes/round.py",
    ]
    assert parcel.shipped == Shipped("shipped/configs/sweep.yaml", "shipped/jobs")
    assert parcel.shipped.words() == ["--config", "shipped/configs/sweep.yaml", "--root", "shipped/jobs"]
    assert parcel.left_out == [(str(tmp_path / "jobs/link.txt"), "a link that leads out of the folder")]
    size = sum(path.stat().st_size for path in into.rglob("*") if path.is_file())
    assert parcel.text() == (
        f"shipped 4 files, {size} bytes\n  not shipped: {tmp_path}/jobs/link.txt: a link that leads out of the folder"
    )


def test_the_file_of_a_notebooks_job_lies_elsewhere_and_travels_too(project, tmp_path):
    away = tmp_path / "cache" / "cells" / "own.py"
    away.parent.mkdir(parents=True)
    away.write_text((tmp_path / "jobs/own.py").read_text().replace("from shapes.round import ONE\n", ""))
    text = project.read_text().replace("../jobs/own.py", str(away))
    into = tmp_path / "parcel"
    shipped = pack(prepare(project, text=text, root=str(project.parent))[0], into).shipped
    assert files_of(into) == ["shipped/cache/cells/own.py", "shipped/configs/sweep.yaml"]
    assert shipped == Shipped("shipped/configs/sweep.yaml", "shipped/configs")


def test_files_beyond_the_limits_are_named_and_code_goes_first(project, tmp_path, monkeypatch):
    own = (tmp_path / "jobs/own.py").stat().st_size + project.stat().st_size
    (tmp_path / "jobs/small.bin").write_bytes(bytes(10))
    monkeypatch.setattr(shipping, "ALL_BYTES", own + 30)
    (tmp_path / "jobs/huge.bin").write_bytes(bytes((8 << 20) + 1))
    parcel = pack(prepare(project)[0], tmp_path / "parcel")
    names = {Path(name).name: why for name, why in parcel.left_out}
    assert names["huge.bin"] == "8388609 bytes, more than 8 MiB"
    assert names["mesh.bin"] == "beyond 0 MiB in all"
    assert (tmp_path / "parcel/shipped/jobs/shapes/round.py").is_file()
    assert (tmp_path / "parcel/shipped/jobs/small.bin").is_file()
    monkeypatch.setattr(shipping, "MOST_FILES", 3)
    assert dict(pack(prepare(project)[0], tmp_path / "again").left_out)[str(tmp_path / "jobs/small.bin")] == "beyond 3 files"


def test_of_a_home_folder_goes_the_config_alone(tmp_path, monkeypatch):
    (tmp_path / "private.txt").write_text("mine")
    config = write_config(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    parcel = pack(prepare(config)[0], tmp_path / "parcel")
    assert not any(name.endswith("private.txt") for name in files_of(tmp_path / "parcel"))
    assert (str(tmp_path), "no folder of a sweep; put the config and its job into one of their own") in parcel.left_out


def test_the_package_of_a_module_target_goes_along_and_an_installed_one_does_not(tmp_path, monkeypatch):
    package = tmp_path / "src" / "shipsims" / "deep"
    package.mkdir(parents=True)
    (package / "drop.py").write_text(FAKES.read_text())
    (tmp_path / "src" / "unrelated.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "src")
    (tmp_path / "configs").mkdir()
    config = write_config(tmp_path / "configs", target="shipsims.deep.drop:Quadratic")
    parcel = pack(prepare(config)[0], tmp_path / "parcel")
    assert files_of(tmp_path / "parcel") == ["shipped/configs/fake.yaml", "shipped/src/shipsims/deep/drop.py"]
    assert parcel.shipped == Shipped("shipped/configs/fake.yaml", "shipped/src")
    assert home_of("json") is None and home_of("pydantic.main") is None and home_of("qdrun.runner.study.plan") is None
    assert home_of("shipsims.deep.drop") == (tmp_path / "src" / "shipsims", tmp_path / "src")


def test_what_was_shipped_is_prepared_there_as_it_was_here_and_a_worker_elsewhere_finds_its_imports(
    project, tmp_path, monkeypatch
):
    prepared, job = prepare(project)
    run = create(prepared, tmp_path / "configs/runs")
    record(run.files, prepared, job)
    parcel = pack(prepared, tmp_path / "parcel")
    for path in (project, tmp_path / "jobs/own.py", tmp_path / "jobs/shapes/round.py"):
        path.unlink()
    monkeypatch.chdir(tmp_path / "parcel")
    again, _ = config_of(run, local=False, shipped=parcel.shipped, code="kept")
    assert again.trials == prepared.trials and again.backend == prepared.backend
    assert again.target.file == str(tmp_path / "jobs/own.py") and again.target.home == "shipped/jobs"
    sent = Target.model_validate(json.loads(again.target.model_dump_json()))
    other = tmp_path / "other-node"
    os.rename(tmp_path / "parcel", other)
    monkeypatch.chdir(other)
    monkeypatch.setattr("qdrun.runner.study.target._codes", {})
    kind = load(sent, run.uri)
    assert kind.__name__ == "Quadratic"
    assert sys.modules["shapes.round"].__file__ == str(other / "shipped/jobs/shapes/round.py"), "where files beside it are"
    assert kind.build.__code__.co_filename == str(tmp_path / "jobs/own.py"), "as errors name it"


def test_an_absolute_target_is_found_in_the_parcel(tmp_path, monkeypatch):
    home, elsewhere = tmp_path / "configs", tmp_path / "else-where"
    home.mkdir()
    elsewhere.mkdir()
    (elsewhere / "own.py").write_text(FAKES.read_text())
    config = home / "fake.yaml"
    text = write_config(home).read_text().replace(f"{FAKES}:Quadratic", f"{elsewhere}/own.py:Quadratic")
    config.write_text(text)
    prepared, job = prepare(config)
    run = create(prepared, tmp_path / "runs")
    record(run.files, prepared, job)
    parcel = pack(prepared, tmp_path / "parcel")
    (elsewhere / "own.py").unlink()
    monkeypatch.chdir(tmp_path / "parcel")
    again, _ = config_of(run, local=False, shipped=parcel.shipped)
    assert again.target.file == f"{elsewhere}/own.py" and again.target.home == "shipped/else-where"


def test_files_beside_the_config_come_along_and_a_worker_elsewhere_reads_them(tmp_path, monkeypatch):
    configs, jobs = tmp_path / "configs", Path(__file__).parents[1] / "workers" / "jobs_with_files.py"
    (configs / "data").mkdir(parents=True)
    (configs / "own.py").write_text(jobs.read_text())
    (configs / "data" / "two.txt").write_text("4 5")
    config = write_config(configs, target="own.py:Reads", params={"table": "data/two.txt"}, sweep={"scale": [1.0]})
    config.write_text(config.read_text().replace("gradients: [x, target]\n", ""))
    prepared, job = prepare(config)
    run = create(prepared, tmp_path / "runs")
    record(run.files, prepared, job)
    parcel = pack(prepared, tmp_path / "parcel")
    (configs / "data" / "two.txt").unlink()
    monkeypatch.chdir(tmp_path / "parcel")
    again, _ = config_of(run, local=False, shipped=parcel.shipped)
    assert again.trials == prepared.trials and again.shared_spec()["folder"] == "shipped"
    os.rename(tmp_path / "parcel", tmp_path / "other-node")
    monkeypatch.chdir(tmp_path / "other-node")
    assert trial_record(again.spec(again.trials[0]))["loss"] == 9.0
    (tmp_path / "other-node/shipped/data/two.txt").unlink()
    with pytest.raises(ConfigError, match=r"`data/two\.txt` is not there"):
        config_of(run, local=False, shipped=parcel.shipped)
