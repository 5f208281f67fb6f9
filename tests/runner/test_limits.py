"""What limits and optimize of a config do to a run, as its rows show it."""

import json

import pytest
from runner_helpers import write_config
from typer.testing import CliRunner

from qdrun.runner.cli.app import app


def submit(config, *words):
    result = CliRunner().invoke(app, ["submit", str(config), "--json", "--quiet", *words])
    return result.exit_code, json.loads(result.stdout)


def rows_of(summary):
    return json.loads(CliRunner().invoke(app, ["results", summary["folder"], "--json"]).stdout)["rows"]


@pytest.mark.slow
def test_a_run_in_which_too_many_trials_fail_is_given_up(local_ray, tmp_path):
    params = {"mood": "raise", "sleep_s": 0.0}
    config = write_config(tmp_path, params=params, sweep={"x": {"range": [0, 200]}}, limits={"max_failed": "1%"})
    code, summary = submit(config)
    assert (code, summary["state"]) == (1, "failed")
    assert summary["counts"]["failed"] >= 3
    assert summary["counts"]["cancelled"] >= 60  # two leases of 64 may have been on their way
    assert sum(summary["counts"].values()) == 200


@pytest.mark.slow
def test_as_many_failures_as_are_allowed_do_not_stop_a_run(one_worker, tmp_path):
    config = write_config(tmp_path, sweep={"mood": ["raise", "good"], "x": [0, 1]}, limits={"max_failed": 2})
    code, summary = submit(config)
    assert (code, summary["counts"]) == (1, {"failed": 2, "done": 2})


@pytest.mark.slow
def test_a_crash_is_tried_again_as_often_as_its_class_says(one_worker, tmp_path):
    limits = {"retries": {"crash": 0, "infra": 3}, "trial_timeout": "1m"}
    code, summary = submit(write_config(tmp_path, sweep={"mood": ["crash", "good"]}, limits=limits))
    crashed, good = rows_of(summary)
    assert (code, crashed["status"], crashed["attempts"], good["status"]) == (1, "poisoned", 1, "done")


@pytest.mark.slow
def test_an_optimisation_is_a_row_with_its_start_its_end_and_its_way(one_worker, tmp_path):
    optimize = {"rule": "sgd", "learning_rate": 0.1, "steps": 4, "params": ["x"]}
    config = write_config(tmp_path, sweep={"x": [5.0, 9.0]}, optimize=optimize)
    assert submit(config, "--set", f"storage={tmp_path}")[0] == 2  # the file says output
    config.write_text(config.read_text().replace("output:", "storage:"))
    code, summary = submit(config, "--set", "optimize.steps=6")
    assert code == 0
    for row, start in zip(rows_of(summary), (5.0, 9.0)):
        assert row["param.x"] == start
        assert len(row["out.opt.history"]) == 7
        assert row["loss"] == row["out.opt.history"][-1] < row["out.opt.history"][0]
        expected = 0.5 + (start - 0.5) * 0.6**6
        assert abs(row["out.opt.x"] - expected) < 1e-12
        assert row["grad.x"] == 4 * (row["out.opt.x"] - 0.5)
