"""What all commands share: a start that loads next to nothing, and the shell's completion."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from runner_helpers import write_config
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.cli.base import complete_configs, complete_keys
from qdrun.runner.store.layout import write_run
from qdrun.runner.study.trials import Trial

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
    "plotly",
    "qdrun.compiler.lang",
    "qdrun.jobs",
)


def modules_after(*words):
    """The modules that a process has loaded after a command."""
    code = f"""
import sys
from qdrun.runner.cli.app import app
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
    assert len(ours) <= 31, ours
    assert len(loaded) <= 450, len(loaded)


def test_a_ctrl_c_while_the_command_loads_ends_it_in_silence():
    """At the first import, in the middle of the app, and in what a command loads."""
    code = """
import sys
import qdrun.runner.cli as cli
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            raise KeyboardInterrupt
module, sys.argv = sys.argv[1], ["qdrun", "ls"]
sys.meta_path.insert(0, Finder())
cli.main()
"""
    for module in ("qdrun.runner.cli.app", "typer", "qdrun.runner.cli.runs.removing", "qdrun.runner.observe.listing"):
        done = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (130, False), (module, done.stderr)


def test_the_schema_needs_no_compiler():
    assert not [name for name in ("ray", "llvmlite", "qdrun.compiler.lang") if name in modules_after("schema")]


def completed(line, folder):
    """What the shell is offered for a command line."""
    words = line.split(" ")
    variables = {"_QDRUN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    code = "from qdrun.runner.cli.app import app; app(prog_name='qdrun')"
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
    context = SimpleNamespace(params={}, args=[])
    assert "optimize.learning_rate=" in complete_keys(context, "opt")
    assert complete_keys(context, "job.params.") == []
    (tmp_path / "sub" / "a.yaml").write_text("version: 1\nname: x\njob: {target: 'no.py:Job'}\n")
    assert complete_keys(SimpleNamespace(params={"config": "sub/a.yaml"}, args=[]), "job.params.") == []


def test_the_shell_completes_parameters_trials_and_columns(tmp_path):
    config = write_config(tmp_path)
    assert completed(f"qdrun plan {config} --set job.params.s", tmp_path) == [
        f"job.params.{name}=" for name in ("scale", "size", "sleep_s")
    ]
    trials = [Trial(id=name, index=0, replicate=0, seed=0, swept={}, params={"E": 1.0}) for name in ("ab1", "ab2", "cd3")]
    run = write_run(tmp_path / "runs", "named", "", {}, trials, {}).name
    assert completed(f"qdrun logs {run} ab", tmp_path) == ["ab1", "ab2"]
    assert completed(f"qdrun results {run} --sort lo", tmp_path) == ["loss"]
    assert completed(f"qdrun results {run} --best max:lo", tmp_path) == ["max:loss"]
    assert completed(f"qdrun results {run} --columns trial,param.", tmp_path) == ["trial,param.E"]
    assert completed("qdrun logs nothing a", tmp_path) == []


def test_a_word_that_is_none_of_several_is_refused_with_those_that_there_are():
    result = CliRunner().invoke(app, ["results", "latest", "--format", "xlsx"])
    said = "Invalid value for '--format' / '-f': 'xlsx' is not one of 'table', 'csv', 'json', 'parquet', 'arrow'."
    assert result.exit_code == 2 and said in result.stderr
    result = CliRunner().invoke(app, ["results", "latest", "--format", "xlsx", "--json"])
    assert said in json.loads(result.stdout)["error"]["message"]


def test_completion_can_be_installed():
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).stdout
