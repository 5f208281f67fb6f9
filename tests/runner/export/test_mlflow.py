"""MLflow: the runs of an export, and that a second export doubles nothing. The real package where it is installed, else a stand-in."""

import importlib
import importlib.util
import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

from qdrun.runner import export as package
from qdrun.runner.config.export_section import MlflowExport


class Client:
    """What ``to_mlflow`` uses of ``mlflow.MlflowClient``, in memory."""

    stores: ClassVar = {}
    ids = itertools.count()

    def __init__(self, uri):
        self.experiments, self.runs = self.stores.setdefault(uri, ({}, {}))

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name):
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def create_run(self, experiment, run_name, tags):
        info = SimpleNamespace(run_id=f"r{next(self.ids)}", status="RUNNING", experiment=experiment)
        data = SimpleNamespace(tags={"mlflow.runName": run_name, **tags}, params={}, metrics={}, history=[])
        self.runs[info.run_id] = made = SimpleNamespace(info=info, data=data)
        return made

    def search_runs(self, experiments, text="", max_results=1000, page_token=None):
        class Page(list):
            token = ""

        wanted = text.split("'")[1] if text else None
        found = [
            r for r in self.runs.values() if r.info.experiment in experiments and wanted in (None, r.data.tags["qdrun.run"])
        ]
        return Page(found)

    def log_batch(self, run, metrics=(), params=(), tags=()):
        data = self.runs[run].data
        data.params |= {param.key: param.value for param in params}
        data.metrics |= {metric.key: metric.value for metric in metrics}
        data.history += [(metric.key, metric.step) for metric in metrics]
        data.tags |= {tag.key: tag.value for tag in tags}

    def set_terminated(self, run, status):
        self.runs[run].info.status = status

    def update_run(self, run, status):
        self.runs[run].info.status = status

    def delete_run(self, run):
        del self.runs[run]

    def get_run(self, run):
        return self.runs[run]

    def get_metric_history(self, run, key):
        return [SimpleNamespace(step=step) for name, step in self.runs[run].data.history if name == key]


@pytest.fixture
def to_mlflow(monkeypatch):
    if importlib.util.find_spec("mlflow") is None:
        mlflow, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
        mlflow.MlflowClient = Client
        entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step)
        entities.Param = entities.RunTag = lambda key, value: SimpleNamespace(key=key, value=value)
        monkeypatch.setitem(sys.modules, "mlflow", mlflow)
        monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
        monkeypatch.delitem(sys.modules, "qdrun.runner.export.to_mlflow", raising=False)
    return importlib.import_module("qdrun.runner.export.to_mlflow")


def test_a_second_export_doubles_no_run_and_no_point_and_follows_what_was_run_again(run, tmp_path, monkeypatch, to_mlflow):
    run.at(monkeypatch, 8, "requeued", 1)
    run.end(monkeypatch, 9, 1, status="failed", failure="user_error", loss=None, gradients={})
    where = MlflowExport(uri=f"sqlite:///{tmp_path}/m.db", experiment="robots")

    def export():
        package.export(run.folder, {"mlflow": to_mlflow.open_tracker(run.folder, where)})
        client = to_mlflow.MlflowClient(where.uri)
        made = client.search_runs([client.get_experiment_by_name("robots").experiment_id])
        by_trial = {one.data.tags.get("qdrun.trial", ""): one for one in made}
        assert len(by_trial) == len(made) == 6, "the sweep and five trials"
        return client, by_trial

    _, first = export()
    client, second = export()
    ids = lambda found: {trial: one.info.run_id for trial, one in found.items()}
    ended = {run.trials[k].id for k in (0, 1, 3, 4)}
    assert all(ids(first)[trial] == ids(second)[trial] for trial in ["", *ended])
    done = second[run.trials[0].id]
    assert [point.step for point in client.get_metric_history(done.info.run_id, "n")] == [1, 2]
    assert done.data.params == {"x": "0", "deep.y": "[1, 2]"} and done.info.status == "FINISHED"
    assert done.data.metrics["result.height"] == 3.0 and done.data.tags["mlflow.parentRunId"] == second[""].info.run_id
    assert second[run.trials[1].id].info.status == "FAILED" and second[""].info.status == "RUNNING"
    assert second[""].data.metrics == {"best_loss": 0.25, "trials.done": 3.0, "trials.failed": 1.0}
    assert second[""].data.tags["qdrun.config"].startswith("version: 1\nname:")

    run.at(monkeypatch, 10, "requeued", 1)
    run.at(monkeypatch, 11, "ended", 1, attempt=2, status="done", loss=0.125, gradients={"x": 4.0, "deep.y": [1.0, 2.0]})
    run.finish(monkeypatch, 20)
    client, third = export()
    again = third[run.trials[1].id]
    assert again.info.status == "FINISHED" and again.info.run_id != ids(second)[run.trials[1].id]
    assert again.data.metrics["result.grad.x"] == 4.0 and "result.grad.deep.y" not in again.data.metrics
    assert [point.step for point in client.get_metric_history(again.info.run_id, "n")] == [1, 2], "its points are there once"
    assert all(ids(third)[run.trials[k].id] == ids(second)[run.trials[k].id] for k in (0, 3, 4))
    assert third[""].data.metrics["best_loss"] == 0.125
