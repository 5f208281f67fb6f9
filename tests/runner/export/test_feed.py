"""Exports: what a tracker is told of a run, while it goes on and afterwards, and what a tracker that fails costs."""

import json
import math
import time

import pytest

from qdrun.runner import export as package
from qdrun.runner.config.export_section import ExportSection
from qdrun.runner.export import feed as feed_module
from qdrun.runner.export.feed import Feed, exporting
from qdrun.runner.export.tracker import BadExport, TrackerMissing, asked_for, named_in, open_tracker
from qdrun.runner.live.points import Logged
from qdrun.runner.live.writer import LiveWriter


def without_nan(column):
    return [None if math.isnan(x) else x for x in column.tolist()]


class Lines:
    """A tracker that writes what it is told to a file, a line for each."""

    def __init__(self, path):
        self.path = path
        path.write_text("")

    def _say(self, *what):
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(what) + "\n")

    def begin(self, trial):
        self._say("begin", trial.trial, trial.index, trial.label, dict(trial.params))

    def log(self, logged):
        columns = {name: without_nan(column) for name, column in logged.values.items()}
        self._say("log", *logged.trials, logged.step.tolist(), logged.t.tolist(), columns)

    def end(self, trial, record):
        self._say("end", trial, record["status"], record.get("loss"), record.get("outputs"))

    def close(self, state):
        self._say("close", state)

    def said(self):
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def test_a_tracker_is_told_of_each_trial_its_points_and_its_end_in_that_order(run, tmp_path):
    tracker = Lines(tmp_path / "said")
    found = package.export(run.folder, {"lines": tracker})
    said = tracker.said()
    assert said[-1] == ["close", "running"] and found.counts() == {"trials": 5, "points": 3 * 3 + 2 * 2}
    for k, trial in enumerate(run.trials):
        own = [line for line in said if line[1] == trial.id]
        assert own[0] == ["begin", trial.id, k, trial.label, {"x": k, "deep.y": [1, 2]}]
        series = run.logged[trial.id]
        columns = {name: without_nan(column) for name, column in series.values.items()}
        assert own[1] == ["log", trial.id, series.step.tolist(), series.t.tolist(), columns]
        ends = {
            0: ["done", 0.25, {"height": 3.0, "path": [1.0, 2.0]}],
            1: ["failed", None, None],
            **{3: ["done", 5.0, {"height": 7.0}], 4: ["done", 6.0, {"height": 8.0}]},
        }
        assert own[2:] == ([["end", trial.id, *ends[k]]] if k in ends else [])


def test_while_a_run_goes_on_only_what_is_new_is_told_and_a_row_waits_for_its_last_points(run, tmp_path, monkeypatch):
    tracker = Lines(tmp_path / "said")
    feed = Feed(run.folder, {"lines": tracker})
    feed.look()
    first = tracker.said()
    assert [line[0] for line in first].count("begin") == 5 and not [line for line in first if line[0] == "end"]
    feed.look()
    assert tracker.said() == first
    run.end(monkeypatch, 8, 2, loss=9.0)
    last = LiveWriter(run.folder, "workers/cpu/w2", list, lambda: None)
    series = run.logged[run.trials[2].id]
    last.put(Logged((run.trials[2].id,), (1,), series.step[:1] + 7, series.t[:1], {"loss": series["loss"][:1]}))
    feed.look()
    last.close()
    feed.look()
    own = [line for line in tracker.said()[len(first) :] if line[1] == run.trials[2].id]
    assert [line[:3] for line in own] == [["log", run.trials[2].id, [7]]]
    monkeypatch.setattr(feed_module, "SETTLE_S", 0.0)
    feed.look()
    assert {line[1] for line in tracker.said() if line[0] == "end"} == {trial.id for trial in run.trials}
    feed.close("done")
    assert tracker.said()[-1] == ["close", "done"] and len([line for line in tracker.said() if line[0] == "end"]) == 5


def test_a_row_that_a_resume_takes_back_is_not_told(run, tmp_path, monkeypatch):
    tracker = Lines(tmp_path / "said")
    run.at(monkeypatch, 8, "requeued", 1)
    run.end(monkeypatch, 9, 1, loss=4.0)
    package.export(run.folder, {"lines": tracker})
    (end,) = [line for line in tracker.said() if line[0] == "end" and line[1] == run.trials[1].id]
    assert end[2:4] == ["done", 4.0]


def test_no_more_trials_are_exported_than_were_asked_for(run, tmp_path):
    tracker, notes = Lines(tmp_path / "said"), []
    found = package.export(run.folder, {"lines": tracker}, most=2, note=notes.append)
    assert {line[1] for line in tracker.said() if line[0] != "close"} == {trial.id for trial in run.trials[:2]}
    assert notes == ["3 trials are not exported: `export.trials` is 2"] and found.counts()["trials"] == 2


@pytest.mark.parametrize("what", ["begin", "log", "end", "close"])
def test_a_tracker_that_fails_is_told_no_more_and_the_others_are(run, tmp_path, what):
    class Fails(Lines):
        pass

    def fail(self, *args):
        raise ConnectionError("the server is away\nand more")

    setattr(Fails, what, fail)
    bad, good, notes = Fails(tmp_path / "bad"), Lines(tmp_path / "good"), []
    found = package.export(run.folder, {"bad": bad, "good": good}, note=notes.append)
    assert notes == ["the export to bad has ended: ConnectionError: the server is away"]
    assert set(found.trackers) == {"good"} and good.said()[-1] == ["close", "running"] and len(bad.said()) < len(good.said())


def test_a_run_is_exported_from_a_thread_while_it_goes_on(run, tmp_path, monkeypatch):
    tracker, notes = Lines(tmp_path / "said"), []
    monkeypatch.setattr(feed_module, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(feed_module, "named_in", lambda section: ["tensorboard", "mlflow"])

    def opened(name, section, folder):
        if name == "mlflow":
            raise OSError("no server")
        return tracker

    monkeypatch.setattr(feed_module, "open_tracker", opened)
    with exporting(run.folder, ExportSection.model_validate("tensorboard"), notes.append):
        end = time.monotonic() + 30
        while len(tracker.said()) < 10 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(tracker.said()) == 10, "five trials have begun, and their points were told"
        run.finish(monkeypatch, 20, "failed")
    assert tracker.said()[-1] == ["close", "failed"] and notes == ["the export to mlflow has ended: OSError: no server"]


def test_a_config_names_trackers_in_a_list_or_a_map_and_slips_are_refused():
    section = ExportSection.model_validate(["wandb", "mlflow"])
    assert section.tensorboard is None and section.wandb is not None and section.mlflow is not None
    section = ExportSection.model_validate({"tensorboard": None, "wandb": {"mode": "offline"}, "trials": 5})
    assert section.tensorboard is not None and section.wandb.mode == "offline" and section.trials == 5


def test_a_package_that_is_not_installed_is_named_before_anything_starts(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "wandb" else object())
    assert named_in(ExportSection.model_validate("mlflow")) == ["mlflow"] and named_in(None) == []
    with pytest.raises(TrackerMissing) as caught:
        named_in(ExportSection.model_validate(["tensorboard", "wandb"]))
    assert str(caught.value) == (
        "`export` names wandb, whose package is not installed\n  do: pip install 'qdrun[wandb]', or take wandb out of `export`"
    )


def test_a_command_line_names_trackers_and_their_options():
    section = asked_for({"wandb": {"project": "a"}, "trials": 7}, ["wandb"], ["wandb.mode=offline", "trials=9"])
    assert (section.wandb.project, section.wandb.mode, section.trials, section.mlflow) == ("a", "offline", 9, None)
    assert asked_for({"mlflow": {}}, [], []).mlflow is not None
    where = "do: --to tensorboard, wandb, mlflow"
    for given, said in (
        (
            (None, ["tensorbord"], []),
            f"`tensorbord` is no tracker or option\n  {where}; their options are in docs/monitoring.md",
        ),
        (
            (None, [], ["wandb.mod=x"]),
            f"`wandb.mod` is no tracker or option\n  {where}; their options are in docs/monitoring.md",
        ),
        ((None, [], []), "the run's config has no `export`\n  do: say where to: --to tensorboard, wandb, mlflow"),
    ):
        with pytest.raises(BadExport) as caught:
            asked_for(*given)
        assert str(caught.value) == said


# ---- the real packages, where they are installed


def test_tensorboard_reads_what_was_written(run, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    section = ExportSection.model_validate({"tensorboard": {"folder": str(tmp_path)}})
    for _ in range(2):  # the second time replaces the first
        package.export(run.folder, {"tensorboard": open_tracker("tensorboard", section, run.folder)})
    (folder,) = (tmp_path / run.folder.name).glob("00000-*")
    found = accumulator.EventAccumulator(str(folder)).Reload()
    series = run.logged[run.trials[0].id]
    assert [event.step for event in found.Scalars("loss")] == series.step.tolist()
    assert [event.value for event in found.Scalars("loss")] == pytest.approx(series["loss"].tolist())
    assert [event.value for event in found.Scalars("result/height")] == [3.0]
    assert len(list((tmp_path / run.folder.name).iterdir())) == 5


def test_mlflow_has_a_run_for_each_trial(run, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    section = ExportSection.model_validate({"mlflow": {"uri": uri, "experiment": "e"}})
    package.export(run.folder, {"mlflow": open_tracker("mlflow", section, run.folder)})
    client = mlflow.MlflowClient(uri)
    runs = {
        made.data.tags.get("qdrun.trial"): made
        for made in client.search_runs([client.get_experiment_by_name("e").experiment_id])
    }
    first, failed, still = (runs[trial.id] for trial in run.trials[:3])
    assert [m.value for m in client.get_metric_history(first.info.run_id, "loss")] == run.logged[run.trials[0].id][
        "loss"
    ].tolist()
    assert (first.info.status, failed.info.status, still.info.status) == ("FINISHED", "FAILED", "RUNNING")
    assert first.data.params == {"x": "0", "deep.y": "[1, 2]"} and first.data.metrics["result.height"] == 3.0


def test_wandb_has_a_run_for_each_trial_offline(run, tmp_path):
    pytest.importorskip("wandb")
    section = ExportSection.model_validate({"wandb": {"mode": "offline", "folder": str(tmp_path)}})
    found = package.export(run.folder, {"wandb": open_tracker("wandb", section, run.folder)})
    made = sorted(path.name.partition("-run-")[2] for path in (tmp_path / "wandb").glob("offline-run-*"))
    assert set(found.trackers) == {"wandb"} and {name[-12:] for name in made} == {trial.id for trial in run.trials}
