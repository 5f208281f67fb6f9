"""Sweeps on one local Ray: what succeeds, fails, hangs, crashes or is cancelled; the rows and the exit codes."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas
import polars
import pytest
from runner_helpers import only_run, write_config
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.engine import session
from qdrun.runner.ray_adapter import cluster
from qdrun.runner.store import status
from qdrun.runner.store.layout import RunFolder

QDRUN = [sys.executable, "-c", "from qdrun.runner.cli.app import main; main()"]


def submit(config, *options):
    """Submit in this process; the exit code and the JSON document."""
    result = CliRunner().invoke(app, ["submit", str(config), "--json", "--quiet", *options])
    return result.exit_code, json.loads(result.stdout)


def rows_of(folder):
    result = CliRunner().invoke(app, ["results", str(folder), "--json"])
    return json.loads(result.stdout)["rows"]


def test_a_sweep_gives_exact_losses_and_gradients_in_a_table_that_pandas_and_polars_read(one_worker, tmp_path):
    config = write_config(
        tmp_path, sweep={"x": {"linspace": [0, 1, 3]}, "scale": {"logspace": [0, 1, 2]}}, limits={"memory": "1GiB"}
    )
    code, summary = submit(config)
    assert code == 0
    assert summary["counts"] == {"done": 6}
    assert summary["best"]["loss"] == 0.5
    table = pandas.read_parquet(summary["results"])
    away = [table["param.x"] - goal for goal in (0.0, 1.0)]
    assert table["loss"].tolist() == pytest.approx((table["param.scale"] * (away[0] ** 2 + away[1] ** 2)).tolist())
    assert table["grad.x"].tolist() == pytest.approx((2 * table["param.scale"] * (away[0] + away[1])).tolist())
    assert [len(value) for value in table["grad.target"]] == [2] * 6
    assert (table["planned_bytes"] == table["used_bytes"]).all()
    assert set(table.columns) >= {
        "trial",
        "status",
        "seconds",
        "error",
        "planned.state",
        "used.gradients",
        "out.reach",
        "seed",
    }
    assert polars.read_parquet(summary["results"])["grad.target"].dtype == polars.List(polars.Float64)
    timing = summary["timing"]
    assert 0 <= timing["submitted_s"] <= timing["first_start_s"] <= timing["ended_s"]
    assert timing["overhead_ms_per_trial"] is not None


@pytest.mark.slow
def test_a_submit_into_the_folder_of_a_run_goes_on_with_it(one_worker, tmp_path, monkeypatch):
    config = write_config(tmp_path, sweep={"x": {"linspace": [0, 1, 3]}})

    def lost(*args, **options):
        raise cluster.ClusterError("no cluster\n  do: start one")

    with monkeypatch.context() as patch:
        patch.setattr(session, "attend", lost)
        assert submit(config)[0] == 4
    run = RunFolder(str(only_run(tmp_path)))
    code, summary = submit(config, "--output", run.uri)
    assert code == 0 and summary["counts"] == {"done": 3} and only_run(tmp_path).name == run.name
    journal, rows = run.files.below("journal"), rows_of(run.uri)
    result = CliRunner().invoke(app, ["submit", str(config), "--output", run.uri])
    assert result.exit_code == 0 and f"run {run.name} has ended before; nothing is left to run" in result.stderr
    assert rows_of(run.uri) == rows and run.files.below("journal") == journal
    code, said = submit(config, "--output", run.uri, "--set", "name=other")
    assert code == 2 and f"{run.name} was made from another config; other now: name, overrides" in said["error"]["message"]
    assert "do: submit the new config as a run of its own, or" in said["error"]["message"]


def test_trials_that_raise_or_are_not_finite_are_rows_with_their_errors_and_the_sweep_goes_on(one_worker, tmp_path):
    ends = {"trial_end": ["tee", "-a", str(tmp_path / "rows")], "run_end": ["tee", str(tmp_path / "end")]}
    config = write_config(tmp_path, sweep={"mood": ["raise", "nan", "good"]}, more=f"callbacks: {json.dumps(ends)}\n")
    code, summary = submit(config)
    assert code == 1
    assert json.loads((tmp_path / "end").read_text())["counts"] == {"done": 1, "failed": 2}
    told = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert sorted((row["index"], row["status"]) for row in told) == [(0, "failed"), (1, "failed"), (2, "done")]
    raised, nan, good = rows_of(summary["folder"])
    assert (raised["status"], raised["error_type"], raised["error"]) == (
        "failed",
        "RuntimeError",
        "the fake job raises at x=1.0",
    )
    assert (nan["status"], nan["error_type"], nan["loss"]) == ("failed", "NotFinite", "NaN")
    assert (good["status"], good["loss"]) == ("done", 1.0)
    assert CliRunner().invoke(app, ["status", summary["folder"], "--json"]).stdout.count('"failed"') == 2
    events = next(Path(summary["folder"]).glob("events/*.jsonl")).read_text()
    assert "in run" in events
    assert "fakes.py" in events


@pytest.mark.slow
def test_a_crashed_worker_is_tried_again_and_a_hanging_trial_is_ended(local_ray, tmp_path):
    limits = {"trial_timeout_s": 4.0, "retries": 1}
    code, summary = submit(write_config(tmp_path, sweep={"mood": ["crash", "hang", "good"]}, limits=limits))
    assert code == 1
    crashed, hung, good = rows_of(summary["folder"])
    assert (crashed["status"], crashed["error_type"], crashed["attempts"]) == ("poisoned", "WorkerCrashedError", 2)
    assert crashed["error"].startswith("its process died without a word: killed, perhaps for its memory")
    assert "`qdrun logs" in crashed["error"] and "--workers`, workers/cpu/w" in crashed["error"]
    assert [row["error_type"] for row in summary["failures"]] == ["WorkerCrashedError", "Timeout"]
    assert (hung["status"], hung["error_type"], hung["attempts"]) == ("failed", "Timeout", 1)
    assert good["status"] == "done"


def test_a_trial_whose_plan_is_larger_than_its_limit_is_not_started(local_ray, tmp_path):
    code, summary = submit(write_config(tmp_path, sweep={"size": [4, 1 << 20]}, limits={"memory": "1MiB"}))
    assert code == 1
    small, large = rows_of(summary["folder"])
    assert (small["status"], large["status"], large["attempts"]) == ("done", "failed", 0)
    assert large["error"] == "the plan needs 16777216 bytes, limits.memory is 1048576; the trial was not started"


def test_a_worker_reads_the_job_in_the_runs_folder(local_ray, tmp_path):
    config = write_config(tmp_path, target="own.py:Quadratic")
    source = tmp_path / "own.py"
    source.write_text(Path(__file__).with_name("fakes.py").read_text())
    from qdrun.runner.provenance.record import record
    from qdrun.runner.store.layout import create
    from qdrun.runner.study.prepare import prepare

    def loss(spec, run):
        from qdrun.jobs.base import execute
        from qdrun.runner.study.target import Target, load

        kind = load(Target.model_validate(spec["target"]), run)
        job = kind(kind.Params.model_validate(spec["params"]), wanted=spec["gradients"])
        return execute(job, backend="cpu", threads=1, memory_limit_bytes=None).outcome.loss

    prepared, job = prepare(config)
    run = create(prepared, tmp_path / "runs")
    record(run.files, prepared, job)
    source.unlink()
    assert local_ray.get(local_ray.remote(loss).remote(prepared.spec(prepared.trials[0]), run.uri)) == 1.0


@pytest.mark.slow
def test_a_cancel_request_stops_the_run_and_keeps_the_finished_rows(local_ray, tmp_path):
    config = write_config(tmp_path, params={"sleep_s": 0.3}, sweep={"x": {"linspace": [0, 1, 200]}})

    def cancel_after_the_first_row():
        while (
            not list(tmp_path.glob("runs/*/events/*.jsonl"))
            or '"ended"' not in next(tmp_path.glob("runs/*/events/*.jsonl")).read_text()
        ):
            time.sleep(0.05)
        result = CliRunner().invoke(app, ["cancel", str(only_run(tmp_path))])
        assert "asked to stop" in result.output

    thread = threading.Thread(target=cancel_after_the_first_row)
    thread.start()
    code, summary = submit(config)
    thread.join()
    assert (code, summary["state"]) == (1, "cancelled")
    assert summary["counts"]["done"] >= 1
    assert summary["counts"]["cancelled"] >= 190
    assert status.status(RunFolder(Path(summary["folder"])))["state"] == "cancelled"


@pytest.mark.slow
def test_ctrl_c_keeps_the_finished_rows_and_exits_130(ray_folder, tmp_path):
    config = write_config(tmp_path, params={"sleep_s": 0.2}, sweep={"x": {"linspace": [0, 1, 500]}})
    submitting = subprocess.Popen([*QDRUN, "submit", str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and submitting.poll() is None:
        journal = list(tmp_path.glob("runs/*/events/*.jsonl"))
        if journal and '"ended"' in journal[0].read_text():
            break
        time.sleep(0.1)
    middle = rows_of(only_run(tmp_path))
    assert "done" in {row["status"] for row in middle}
    submitting.send_signal(signal.SIGINT)
    out, err = submitting.communicate(timeout=60)
    assert submitting.returncode == 130, err
    assert "interrupted: no more trials are started" in err
    assert "interrupted:" in out
    rows = pandas.read_parquet(only_run(tmp_path) / "results.parquet")
    assert set(rows["status"]) == {"done", "cancelled"}
    assert rows.loc[rows["status"] == "done", "loss"].notna().all()


@pytest.mark.slow
def test_ctrl_c_while_ray_still_starts_exits_130_and_leaves_a_readable_run(ray_folder, tmp_path):
    config = write_config(tmp_path)
    submitting = subprocess.Popen([*QDRUN, "submit", str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(
        '"submitted"' in path.read_text() for path in tmp_path.glob("runs/*/events/*.jsonl")
    ):
        time.sleep(0.02)
    submitting.send_signal(signal.SIGINT)
    _, err = submitting.communicate(timeout=90)
    assert submitting.returncode == 130, err
    assert {row["status"] for row in rows_of(only_run(tmp_path))} == {"cancelled"}


@pytest.mark.slow
def test_ctrl_c_while_batches_are_planned_ends_the_command_at_once(ray_folder, tmp_path):
    """Kernels are compiled there, which may take minutes."""
    script = (
        "import sys, time; from qdrun.runner.engine import start; from qdrun.runner.cli import main\n"
        "def batches_of(*_):\n    print('planning', file=sys.stderr, flush=True)\n    time.sleep(300)\n"
        "start.batches_of = batches_of; main()"
    )
    command = [sys.executable, "-c", script, "submit", str(write_config(tmp_path))]
    submitting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert any("planning" in line for line in submitting.stderr)
    submitting.send_signal(signal.SIGINT)
    _, err = submitting.communicate(timeout=60)
    assert submitting.returncode == 130, err
    assert {row["status"] for row in rows_of(only_run(tmp_path))} == {"cancelled"}


@pytest.mark.slow
def test_a_submit_of_its_own_starts_ray_with_a_token_that_only_its_owner_reads(ray_folder, tmp_path):
    token = tmp_path / "token"
    token.write_text("fedcba9876543210" * 4)
    token.chmod(0o644)
    environment = os.environ | {"RAY_AUTH_TOKEN_PATH": str(token)}
    done = subprocess.run(
        [*QDRUN, "submit", str(write_config(tmp_path)), "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "done"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


def test_ray_without_its_token_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    result = CliRunner().invoke(app, ["submit", str(write_config(tmp_path))])
    assert result.exit_code == 4
    assert "it listens on every interface" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_opening_ray_from_python_checks_the_token_mode_too(monkeypatch):
    with pytest.raises(cluster.ClusterError, match="RAY_AUTH_MODE=none"):
        monkeypatch.setenv("RAY_AUTH_MODE", "none")
        cluster.open_cluster(None)
