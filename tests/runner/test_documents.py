"""Documents of ``--json``: every command's own, errors of every kind, and nothing else on stdout."""

import json
import os
import subprocess
import sys

import jsonschema
import pytest
from pydantic import ValidationError
from runner_helpers import trial_record, write_config
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.cli.documents import TYPES, adapter, document
from qdrun.runner.cli.output import EXIT_CODES
from qdrun.runner.store.attempts import Attempt, Log
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import create
from qdrun.runner.study.plan import make_plan
from qdrun.runner.study.prepare import prepare

CHATTY = """
import ctypes, os
from fakes import Quadratic

print("module")

class Chatty(Quadratic):
    def build(self):
        super().build()
        print("python says this")
        os.write(1, b"the descriptor says this\\n")
        ctypes.CDLL(None).printf(b"a kernel says this\\n")

class Rude(Quadratic):
    def plan(self, *, arch=None):
        raise SystemExit("I leave")

class Broken(Quadratic):
    @classmethod
    def shape_key(cls, params):
        raise KeyError("of the job's own")
"""


@pytest.fixture
def finished(tmp_path):
    """A run that has ended: two done, one failed, with a log."""
    prepared, job = prepare(write_config(tmp_path, sweep={"mood": ["good", "raise"], "x": [0, 3]}))
    folder = create(prepared, tmp_path / "runs")
    folder.save_plan(make_plan(prepared, job))
    with Journal(folder) as journal:
        journal.write("submitted")
        for trial in prepared.trials:
            journal.write("started", trial=trial.id, attempt=1)
            with Log(folder, Attempt(trial.id, 1, journal.owner.number), "stdout") as log:
                log.write(f"hello from {trial.label}\n".encode())
            journal.write("ended", trial=trial.id, attempt=1, **trial_record(prepared.spec(trial)))
        journal.write("finished", state="failed")
    return folder


def call(*words):
    """Exit code and document of a command."""
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    return result.exit_code, json.loads(result.stdout)


def process(*words, folder):
    code = "from qdrun.runner.cli.app import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False, cwd=folder
    )


def test_every_command_says_what_its_document_is(finished, tmp_path):
    config, runs = write_config(tmp_path), finished.path.parent
    lines = {
        "plan": [config],
        "status": [finished.path],
        "watch": [finished.path],
        "ls": ["--runs", runs],
        "results": [finished.path],
        "logs": [finished.path],
        "cancel": [finished.path],
        "devices": [],
        "dashboard": ["--runs", runs],
    }
    for command, words in lines.items():
        code, data = call(command, *words)
        assert (code, data["schema"]) == (4 if command == "dashboard" else 0, f"qdrun.{command}/1"), command
        shape = adapter(command).json_schema(mode="serialization")
        jsonschema.validate({name: value for name, value in data.items() if name != "schema"}, shape)
    assert set(TYPES) >= {*lines, "submit", "explain", "check", "error"}


def test_a_document_is_checked_against_its_model():
    with pytest.raises(ValidationError, match="cancel_requested"):
        document("cancel", {"run": "a", "trial": None, "state": "done"})
    with pytest.raises(ValidationError, match="surprise"):
        document("cancel", {"run": "a", "trial": None, "state": "done", "cancel_requested": False, "surprise": 1})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan"], "Missing argument"),
        (["plan", "a.yaml", "--bad"], "No such option: --bad"),
        (["plan", "a.yaml", "--arch", "abacus"], "'abacus' is not one of"),
        (["ls", "--last", "0"], "--last"),
        (["nonsense"], "No such command 'nonsense'"),
        (["logs", "x", "-f"], "a document has an end"),
        (["results", "x", "--format", "parquet", "--best", "loss"], "of some rows or columns is a file: name it, --out FILE"),
        (["results", "x", "--format", "arrow"], "--format arrow of a run is a file: name it, --out FILE"),
    ],
)
def test_usage_errors_are_documents_too(words, said):
    code, data = call(*words)
    assert (code, data["schema"], data["exit_code"]) == (2, "qdrun.error/1", 2)
    assert data["error"]["type"] == "UsageError" and said in data["error"]["message"]
    assert "--help`" in data["error"]["message"]


def test_usage_errors_without_json_stay_as_they_are():
    result = CliRunner().invoke(app, ["plan"])
    assert result.exit_code == 2 and result.stdout == "" and "Missing argument" in result.stderr


def test_what_a_job_prints_while_it_is_planned_goes_to_stderr(tmp_path, monkeypatch):
    own = tmp_path / "own.py"
    own.write_text(f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n" + CHATTY)
    config = write_config(tmp_path, target="own.py:Chatty")
    done = process("plan", config, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "qdrun.plan/1"
    for words in ("module", "python says this", "the descriptor says this", "a kernel says this"):
        assert words in done.stderr, words
    plain = process("plan", config, folder=tmp_path)
    assert "python says this" in plain.stdout, "only a document needs stdout for itself"


def test_exceptions_of_a_job_are_documents_with_their_traceback(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n" + CHATTY)
    done = process("plan", write_config(tmp_path, target="own.py:Broken"), "--json", folder=tmp_path)
    data = json.loads(done.stdout)
    assert (done.returncode, data["schema"], data["exit_code"]) == (1, "qdrun.error/1", 1)
    assert data["error"]["type"] == "KeyError" and "of the job's own" in data["error"]["message"]
    assert "in shape_key" in data["error"]["traceback"]
    done = process("plan", write_config(tmp_path, target="own.py:Rude"), "--json", folder=tmp_path)
    assert done.returncode == 1 and "I leave" in json.loads(done.stdout)["memory"][0]["error"]


def test_errors_that_name_a_run_are_documents(tmp_path):
    code, data = call("results", "nothing", "--runs", tmp_path)
    assert (code, data["error"]["type"]) == (2, "RunNotFound") and data["error"]["traceback"] is None


def test_a_reader_that_goes_away_is_no_error(finished, tmp_path):
    code = "from qdrun.runner.cli.app import main; main()"
    line = f'{sys.executable} -c "{code}" results {finished.path} --format json | head -c 1'
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == "[" and "Traceback" not in done.stderr


def test_exit_codes_are_those_of_the_design():
    assert list(EXIT_CODES) == [0, 1, 2, 3, 4, 5, 130]
