"""What gets installed: every package and every config, under ``qdrun`` alone; and what importing it does not load."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from qdrun.compiler import versions

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


MODULES = ("compiler", "modules")


def installed(path: Path) -> Path:
    """Where a file or folder of ours lies in an installation: what is in ``compiler/modules`` lies in the package itself."""
    parts = path.relative_to(ROOT).parts
    return Path("qdrun", *(parts[2:] if parts[:2] == MODULES else parts))


def packages_on_disk() -> set[str]:
    folders = [
        p.parent for name in ("compiler", "library", "runner", "jobs", "configs") for p in (ROOT / name).rglob("__init__.py")
    ]
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
    modules = [p for name in ("compiler", "library", "runner", "jobs", "configs") for p in (ROOT / name).rglob("*.py")]
    expected = {installed(p).as_posix() for p in [*modules, *(ROOT / "configs").glob("*.yaml")]}
    assert expected <= names, expected - names
    assert {"qdrun/configs/quickstart.yaml", "qdrun/runner/observe/report/page.js", "qdrun/py.typed"} <= names
    assert f"qdrun-{PROJECT['project']['version']}.dist-info/licenses/LICENSE" in names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"qdrun", f"qdrun-{PROJECT['project']['version']}.dist-info"}


# -- versions of packages


def lowest(*extras: str) -> list[str]:
    command = [sys.executable, str(ROOT / ".ci" / "lowest.py"), *extras]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


def test_ci_tests_the_lowest_version_of_each_package_that_is_declared():
    declared = [
        Requirement(r) for r in [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["search"]]
    ]
    pins = [Requirement(r) for r in lowest("search")]
    assert [(p.name, p.extras) for p in pins] == [(d.name, d.extras) for d in declared]
    for pin, requirement in zip(pins, declared, strict=True):
        (version,) = (s.version for s in pin.specifier if s.operator == "==")
        assert requirement.specifier.contains(version)
        assert any(s.operator == ">=" and s.version == version for s in requirement.specifier)


def test_the_versions_that_are_compared_at_each_import_are_the_declared_ones():
    assert set(versions._COMPARED) <= set(PROJECT["project"]["dependencies"])


@pytest.mark.parametrize(
    "requirement, found, lowest",
    [
        ("numpy>=1.26", "1.25.2", "1.26"),
        ("numpy>=1.26", "1.26.0rc1", None),
        ("numpy>=1.26", "2.0", None),
        ("numpy>=1.26", "1.9", "1.26"),
        ("rich>=13", "13", None),
        ("rich>=13.0.1", "13", "13.0.1"),
        ("ray[default]<3,>=2.55", "2.9.3", "2.55"),
        ("ray[default]<3,>=2.55", "2.60.0", None),
        ("numpy>=1.26", None, None),
        ("ruff==0.17.5", "0.1", None),
    ],
)
def test_versions_are_compared_as_numbers(requirement, found, lowest):
    name = re.match(r"\w+", requirement)[0]
    expected = [(name, found, lowest, requirement)] if lowest else []
    assert versions.too_old([requirement], {name: found}.get) == expected


def old_package(folder: Path, name: str, version: str, code: str) -> None:
    """A package that is found before the one that is installed."""
    for made in (folder / name, folder / f"{name}-{version}.dist-info"):
        made.mkdir()
    (folder / name / "__init__.py").write_text(code)
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )


def said_with(folder: Path, code: str) -> tuple[int, str]:
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    return done.returncode, done.stderr


NUMPY_124 = (
    "a package is too old for qdrun: numpy 1.24.0 is installed, and 1.26 is the lowest version that works{}\n"
    "  do: pip install 'numpy>=1.26'\n"
)


def test_an_import_that_fails_with_an_old_package_names_it(tmp_path):
    old_package(tmp_path, "numpy", "1.24.0", "__version__ = '1.24.0'")
    code, said = said_with(tmp_path, "import qdrun as qd; qd.f32")
    because = re.search(r"^\w+Error: .*numpy.*", said, re.M)[0]
    assert code == 1 and "QdrunImportError: " + NUMPY_124.format(f" ({because})") in said


def test_a_package_that_is_old_but_imports_is_refused():
    code = "import numpy; numpy.__version__ = '1.24.0'; import qdrun as qd; qd.f32"
    assert said_with(ROOT, code)[1].endswith("QdrunImportError: " + NUMPY_124.format(""))
    code = "import llvmlite; llvmlite.__version__ = '0.47.0'; import qdrun as qd; qd.f32"
    assert said_with(ROOT, code)[1].endswith(
        "llvmlite 0.47.0 is installed, and 0.48 is the lowest version that works\n  do: pip install 'llvmlite>=0.48'\n"
    )


@pytest.mark.parametrize(
    "name, command",
    [
        ("typer", "import sys; sys.argv = ['qdrun', 'devices']; from qdrun.runner.cli import main; main()"),
        ("pydantic", "import sys; sys.argv = ['qdrun', 'plan', 'none.yaml']; from qdrun.runner.cli import main; main()"),
        ("pydantic", "from qdrun.runner import load"),
    ],
)
def test_a_command_and_the_runner_name_the_package_that_is_too_old(name, command, tmp_path):
    old_package(tmp_path, name, "0.1", "")
    code, said = said_with(tmp_path, command)
    (requirement,) = (r for r in requires("qdrun") or () if r.startswith(name))
    assert (
        f"a package is too old for qdrun: {name} 0.1 is installed, and" in said and f"do: pip install '{requirement}'" in said
    )
    assert code == (2 if "main()" in command else 1) and ("Traceback" in said) == (code == 1)


def test_an_import_that_fails_for_another_reason_is_left_alone():
    with pytest.raises(ModuleNotFoundError, match="qdrun_nothing"), versions.new_enough():
        import qdrun_nothing  # noqa: F401


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
import qdrun.ad, qdrun.linalg, qdrun.math, qdrun.simt, qdrun.simt.block, qdrun.tools, qdrun.types
from qdrun.math import vec3
from qdrun.simt.block import reduce_add
import qdrun as qd
import qdrun.compiler.lang.math as inner
assert qdrun.math is qd.math is inner is sys.modules["qdrun.math"] and vec3 is qd.math.vec3
assert qdrun.ad is qd.ad and qdrun.types is qd.types and qdrun.simt is qd.simt and sys.modules["qdrun.simt.block"] is qd.simt.block
assert qdrun.tools is qd.tools
assert qdrun.linalg is qd.linalg and reduce_add is qd.simt.block.reduce_add and pickle.loads(pickle.dumps(vec3)) == vec3
assert importlib.reload(qdrun.types) is qd.types
assert len([f for f in (importlib.reload(qd), *sys.meta_path) if type(f).__name__ == "_Refusing"]) == 1
import qdrun.ad
try:
    from qdrun.experimental import real_func
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
        "QdrunImportError `import qdrun.experimental` is not available: it is an inner module of Quadrants\n"
        "  do: the names that programs need are names of `qd`\nNo module named 'qdrun.nothing'\n"
    )
