"""What must not bring a run, or the look at the others, down."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from qdrun.jobs.base import Finished, Job, JobParams, MemoryPlan, Outcome
from qdrun.runner.cli.app import app
from qdrun.runner.config.sweep import SweepError, axis_column
from qdrun.runner.config.values import TARGET
from qdrun.runner.query.run_table import as_arrow, as_column, values_of
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.store.status import list_runs
from qdrun.runner.workers import error_record, finished_record


@pytest.mark.parametrize(
    "values", [[[1, "a"]], [[1, [2]]], [2**70, None], [[1.5], ["b"]], [True, [1]], [2**60 + 1, 0.5], ["x", 1]]
)
def test_a_column_of_mixed_values_becomes_text_and_loses_nothing(values):
    column = as_column(values, "param.mixed")
    assert values_of(column) == values and list(map(type, values_of(column))) == list(map(type, values))
    stored = as_arrow(column, "param.mixed")
    assert isinstance(stored, pa.Array) and len(stored) == len(values)


def test_text_that_no_file_can_hold_is_escaped():
    record = error_record(RuntimeError("bad \udc80 text"))
    record["message"].encode("utf-8")
    assert "\\udc80" in record["message"]


def test_an_exception_whose_message_raises_is_still_a_record():
    class Rude(Exception):
        def __str__(self):
            raise ValueError("no")

    assert "ValueError" in error_record(Rude())["message"]


def test_gradients_given_as_text_are_refused_with_the_missing_comma():
    with pytest.raises(TypeError, match=r'write gradients = \("stiff",\)'):

        class Mine(Job[JobParams]):
            gradients = "stiff"


def test_a_damaged_run_does_not_hide_the_others(tmp_path):
    for name in ("20260101-000000-a-0001", "20260101-000000-b-0002"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{ not json")
    states = list_runs(tmp_path)
    assert [row["state"] for row in states] == ["damaged", "damaged"]
    shown = CliRunner().invoke(app, ["status", "--runs", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("damaged") == 2


def test_a_damaged_heartbeat_is_no_heartbeat(tmp_path):
    (tmp_path / "heartbeat.json").write_text("")
    assert RunFolder(tmp_path).silent_s() == float("inf")


def test_a_sweep_over_infinite_values_is_refused():
    from qdrun.runner.config.model import Axis

    with pytest.raises(SweepError, match="not finite"):
        axis_column("x", Axis.model_validate({"logspace": [400, 401, 2]}), 0)


def test_a_job_file_may_stand_in_a_folder_with_a_space():
    assert TARGET.fullmatch("my jobs/walker.py:Walker")
    assert not TARGET.fullmatch("my jobs.walker:Walker")


def test_an_array_among_the_outputs_stays_one():
    outcome = Outcome(1.0, {}, {"path": np.array([1.0, 2.0]), "height": 3.0})
    record = finished_record(Finished(outcome, MemoryPlan(), {}, None, {"run": 0.1}))
    assert {name: value.tolist() for name, value in record["outputs"].items()} == {"path": [1.0, 2.0], "height": 3.0}
