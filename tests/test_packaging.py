"""What gets installed: every package and every config, under ``qdrun`` alone; and what importing it does not load."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


MODULES = ("compiler", "modules")


def installed(path: Path) -> Path:
    """Where a file or folder of ours lies in an installation: what is in ``compiler/modules`` lies in the package itself."""
    parts = path.relative_to(ROOT).parts
    return Path("qdrun", *(parts[2:] if parts[:2] == MODULES else parts))


def packages_on_disk() -> set[str]:
    folders = [p.parent for name in ("compiler", "runner", "jobs", "configs") for p in (ROOT / name).rglob("__init__.py")]
    return {"qdrun", *(".".join(installed(f).parts) for f in folders)}


def test_pyproject_lists_every_package():
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages_on_disk()


def test_the_page_about_installing_names_every_extra_and_the_container_has_a_python_that_fits():
    page = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    assert not [extra for extra in PROJECT["project"]["optional-dependencies"] if f"`{extra}`" not in page]
    minor = int(re.search(r"^FROM .*python:3\.(\d+)-", (ROOT / "Containerfile").read_text(encoding="utf-8"), re.M)[1])
    low, high = (int(n) for n in re.findall(r"3\.(\d+)", PROJECT["project"]["requires-python"]))
    assert low <= minor < high


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_every_config(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = [p for name in ("compiler", "runner", "jobs", "configs") for p in (ROOT / name).rglob("*.py")]
    expected = {installed(p).as_posix() for p in [*modules, *(ROOT / "configs").glob("*.yaml")]}
    assert expected <= names, expected - names
    assert {"qdrun/configs/quickstart.yaml", "qdrun/runner/observe/report/page.js", "qdrun/py.typed"} <= names
    assert f"qdrun-{PROJECT['project']['version']}.dist-info/licenses/LICENSE" in names
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
    assert "ray" not in loaded_by("import qdrun.runner.cli.app, qdrun.runner.observe.table, qdrun.runner.study.plan")


MODULE_IMPORTS = """
import importlib, pickle, sys
{before}
import qdrun.ad, qdrun.linalg, qdrun.math, qdrun.simt, qdrun.simt.block, qdrun.types
from qdrun.math import vec3
from qdrun.simt.block import reduce_add
import qdrun as qd
import qdrun.compiler.lang.math as inner
assert qdrun.math is qd.math is inner is sys.modules["qdrun.math"] and vec3 is qd.math.vec3
assert qdrun.ad is qd.ad and qdrun.types is qd.types and qdrun.simt is qd.simt and sys.modules["qdrun.simt.block"] is qd.simt.block
assert qdrun.linalg is qd.linalg and reduce_add is qd.simt.block.reduce_add and pickle.loads(pickle.dumps(vec3)) == vec3
assert importlib.reload(qdrun.types) is qd.types
assert len([f for f in (importlib.reload(qd), *sys.meta_path) if type(f).__name__ == "_Refusing"]) == 1
import qdrun.ad
try:
    from qdrun.tools import PLYWriter
except ImportError as e:
    print(type(e).__name__, e)
try:
    import qdrun.nothing
except ModuleNotFoundError as e:
    print(e)
"""


@pytest.mark.parametrize("before", ["", "import qdrun as qd; qd.math, qd.simt.block, qd.ad.Tape"])
def test_the_modules_of_the_language_can_be_imported_and_are_the_same_objects(before):
    command = [sys.executable, "-c", MODULE_IMPORTS.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "QdrunImportError `import qdrun.tools` is not available: its writers of PLY and VTK files are not supported\n"
        "  do: write x.to_numpy() with a library such as meshio\nNo module named 'qdrun.nothing'\n"
    )
