"""What gets installed: every package and every config, under ``qdrun`` alone; and what importing it does not load."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def packages_on_disk() -> set[str]:
    folders = [p.parent for name in ("compiler", "runner", "jobs", "configs") for p in (ROOT / name).rglob("__init__.py")]
    return {"qdrun", *(".".join(("qdrun", *f.relative_to(ROOT).parts)) for f in folders)}


def test_pyproject_lists_every_package():
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages_on_disk()


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_every_config(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = [p for name in ("compiler", "runner", "jobs", "configs") for p in (ROOT / name).rglob("*.py")]
    expected = {f"qdrun/{p.relative_to(ROOT).as_posix()}" for p in [*modules, *(ROOT / "configs").glob("*.yaml")]}
    assert expected <= names, expected - names
    assert "qdrun/configs/quickstart.yaml" in names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"qdrun", f"qdrun-{PROJECT['project']['version']}.dist-info"}


HEAVY = ("ray", "typer", "pyarrow", "pydantic", "yaml", "rich")


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_the_kernel_language_loads_nothing_of_the_runner():
    assert not loaded_by("import qdrun").intersection(HEAVY)


def test_reading_results_does_not_load_ray():
    assert "ray" not in loaded_by("import qdrun.runner.cli, qdrun.runner.store.table, qdrun.runner.plan")
