"""What all commands share: a start that loads next to nothing, and the shell's completion."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from qdrun.runner.cli import app
from qdrun.runner.cli_base import complete_configs, complete_keys

HEAVY = (
    "numpy",
    "yaml",
    "safetensors",
    "pydantic",
    "ray",
    "llvmlite",
    "pyarrow",
    "fsspec",
    "torch",
    "matplotlib",
    "qdrun.compiler.lang",
    "qdrun.jobs",
)


def modules_after(*words):
    """The modules that a process has loaded after a command."""
    code = f"""
import sys
from qdrun.runner.cli import app
try:
    app({list(words)!r})
except SystemExit as end:
    assert not end.code, end.code
print("MODULES", *sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split("MODULES", 1)[1].split()


@pytest.mark.parametrize("words", [["--help"], ["submit", "--help"], ["check", "--help"], ["schema", "--help"]])
def test_help_loads_nothing_heavy(words):
    loaded = modules_after(*words)
    heavy = HEAVY if words == ["--help"] else set(HEAVY) - {"pydantic"}  # Typer itself loads that to explain one command
    assert not [name for name in heavy if name in loaded]
    ours = [name for name in loaded if name.startswith("qdrun")]
    assert len(ours) <= 16, ours
    assert len(loaded) <= 450, len(loaded)


def test_the_schema_needs_no_compiler():
    assert not [name for name in ("ray", "llvmlite", "qdrun.compiler.lang") if name in modules_after("schema")]


def completed(line, folder):
    """What the shell is offered for a command line."""
    words = line.split(" ")
    variables = {"_QDRUN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    code = "from qdrun.runner.cli import app; app(prog_name='qdrun')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | variables, cwd=folder
    )
    return done.stdout.split()


def test_the_shell_completes_commands_runs_configs_and_keys(tmp_path):
    for name in ("20260101-a", "20260102-b", "20250101-c"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("{}")
    (tmp_path / "runs" / "2026-no-run").mkdir()
    (tmp_path / "own.yaml").write_text("")
    (tmp_path / "other.txt").write_text("")
    assert completed("qdrun che", tmp_path) == ["check"]
    assert completed("qdrun results 2026", tmp_path) == ["20260102-b", "20260101-a"]
    assert completed("qdrun plan o", tmp_path) == ["own.yaml"]
    assert completed("qdrun plan own.yaml --set limits.retries.", tmp_path) == [
        f"limits.retries.{name}=" for name in ("infra", "oom", "crash")
    ]


def test_completion_of_configs_goes_into_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.yaml").write_text("")
    (tmp_path / "sub" / "a.py").write_text("")
    assert complete_configs("s") == ["sub/"]
    assert complete_configs("sub/") == ["sub/a.yaml"]
    assert complete_configs(f"{tmp_path}/sub/a") == [f"{tmp_path}/sub/a.yaml"]
    assert complete_configs("gone/x") == []
    assert "optimize.learning_rate=" in complete_keys("opt")


def test_completion_can_be_installed():
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).stdout
