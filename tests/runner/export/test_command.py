"""``qdrun export``: what it says, and its exit codes."""

import json

from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.export import tracker as tracker_module


class Counts:
    """A tracker that counts what it is told; ``fails``: it cannot end."""

    def __init__(self, fails=False):
        self.fails, self.begun, self.points = fails, 0, 0

    def begin(self, trial):
        self.begun += 1

    def log(self, logged):
        self.points += len(logged.step)

    def end(self, trial, record): ...

    def close(self, state):
        if self.fails:
            raise ConnectionError("away")


def call(*args):
    return CliRunner().invoke(app, ["export", *map(str, args)])


def test_the_command_says_what_it_has_exported_and_fails_where_a_tracker_did(run, monkeypatch):
    monkeypatch.setattr(tracker_module.importlib.util, "find_spec", lambda name: object())
    made = {"wandb": Counts(), "mlflow": Counts(fails=True)}
    monkeypatch.setattr(tracker_module, "open_tracker", lambda name, section, folder: made[name])
    done = call(run.folder.uri, "--to", "wandb")
    assert (done.exit_code, done.stdout) == (0, "wandb: 5 trials, 13 points\n")
    assert (made["wandb"].begun, made["wandb"].points) == (5, 13)
    done = call(run.folder.uri, "--to", "mlflow", "--to", "wandb", "--option", "trials=2", "--json")
    data = json.loads(done.stdout)
    assert done.exit_code == data["exit_code"] == 1
    assert (data["trackers"], data["trials"], data["points"]) == (["wandb"], 2, 6)
    assert data["notes"] == [
        "3 trials are not exported: `export.trials` is 2",
        "the export to mlflow has ended: ConnectionError: away",
    ]


def test_a_run_whose_config_names_no_tracker_needs_one_named(run):
    done = call(run.folder.uri, "--json")
    assert done.exit_code == 2 and json.loads(done.stdout)["error"]["type"] == "BadExport"
