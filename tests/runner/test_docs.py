"""The snippets of docs/writing-a-job.md run as they stand, and its config plans and gives right gradients."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from runner_helpers import trial_record
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.study.prepare import prepare

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "writing-a-job.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with the files of the page."""
    folder = tmp_path_factory.mktemp("job")
    for _, name, body in re.findall(r"```(\w+) file=(\S+)\n(.*?)```", PAGE, re.S):
        with (folder / name).open("a", encoding="utf-8") as stream:
            stream.write(body + "\n")
    return folder


@pytest.mark.slow
def test_the_snippets_run(written):
    snippets = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(snippets) == 9
    source = (
        "import json, sys\nfor text in json.load(sys.stdin):\n    exec(text, {'__name__': '__main__'})"  # in new names each
    )
    command, given = [sys.executable, "-c", source], json.dumps(snippets)
    done = subprocess.run(command, input=given, cwd=written, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_config_plans_what_the_trials_then_use(written):
    result = CliRunner().invoke(app, ["plan", str(written / "throw.yaml"), "--json"])
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)
    assert len(plan["trials"]) == 6
    prepared, _ = prepare(written / "throw.yaml")
    record = trial_record(prepared.spec(prepared.trials[0]))
    assert record["status"] == "done", record
    assert set(record["gradients"]) == {"speed", "angle"}
    used = {kind: n for kind, n in record["used"].items() if kind != "code"}  # plans compile none
    assert used == {kind: n for kind, n in plan["memory"][0]["by_kind"].items() if n}
    assert record["planned"]["gradients"] > 0


def test_the_commands_of_the_page_exist():
    words = set(re.findall(r"^qdrun (\w+)", PAGE, re.M))
    assert words == {"new", "plan", "submit", "status", "results", "cancel"}
    for word in words:
        assert CliRunner().invoke(app, [word, "--help"]).exit_code == 0


def test_the_quickstart_has_at_least_24_trials():
    result = CliRunner().invoke(app, ["plan", str(ROOT / "configs" / "quickstart.yaml"), "--json"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert len(plan["trials"]) >= 24
    assert plan["gradients"] == ["stiffness", "actuation"]
    assert set(plan["memory"][0]["by_kind"]) >= {"state", "gradients", "adstack", "context"}
