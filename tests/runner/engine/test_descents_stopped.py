"""Descents that are timed out, killed or interrupted leave their best point so far as the row, and go on from there."""

import time
from pathlib import Path

import numpy as np
import pytest
from runner_helpers import write_config

from qdrun.jobs.base import execute
from qdrun.runner.engine.resume import resume
from qdrun.runner.observe.table import rows
from qdrun.runner.optimize.descent import body_of
from qdrun.runner.optimize.results import STOPPED

from .jobs_for_descents import Slow, SlowParams
from .local import run_config

JOB = Path(__file__).with_name("jobs_for_descents.py")
ADAM = {"rule": "adam", "learning_rate": 0.01}


def config_of(tmp_path, steps, sweep, limits=None):
    given = {"target": f"{JOB}:Slow", "sweep": sweep, "limits": limits, "optimize": ADAM | {"steps": steps}}
    config = write_config(tmp_path, **given, more="batch: off\n")
    config.write_text(config.read_text().replace("gradients: [x, target]\n", "gradients: [x]\n"))
    return config


@pytest.mark.slow
def test_rows_of_descents_that_take_too_long_have_the_best_point_so_far_also_where_the_process_was_killed(local_ray, tmp_path):
    state, folder, _ = run_config(config_of(tmp_path, 5000, {"hang_at": [-1, 90]}, {"trial_timeout_s": 3}))
    found = rows(folder)
    assert state == "failed" and [row["failure"] for row in found] == ["timeout"] * 2
    for row in found:
        history = row["out.opt.history"]
        assert len(history) > 30 and row["loss"] == min(history) < 25.0
        assert STOPPED[int(row["out.opt.stopped"])] == "interrupted" and row["out.opt.x"] ** 2 == pytest.approx(row["loss"])
    assert len(found[1]["out.opt.history"]) <= 90, "the process hung, and was killed: what was saved last counts"


def test_a_second_ctrl_c_keeps_the_best_so_far_and_resume_goes_on_with_the_same_bits(local_ray, tmp_path):
    steps, began = 150, time.monotonic()

    class Twice:
        @property
        def count(self):
            kept = any(tmp_path.glob("runs/*/trials/*/descent.safetensors"))
            return 2 if kept or time.monotonic() - began > 60 else 0

    state, folder, _ = run_config(config_of(tmp_path, steps, {"x": [5.0]}), stops=Twice())
    (row,) = rows(folder)
    assert state == "interrupted" and row["status"] == "cancelled" and row["loss"] == min(row["out.opt.history"]) < 25.0
    assert 0 < row["out.opt.steps"] < steps
    resume(folder, quiet=True)
    (row,) = rows(folder)
    body = body_of(ADAM | {"steps": steps, "params": ["x"]})
    whole = execute(Slow(SlowParams(x=5.0)), backend="cpu", threads=1, memory_limit_bytes=None, body=body).outcome
    assert (row["status"], row["attempts"], row["loss"]) == ("done", 2, whole.loss)
    assert np.array(row["out.opt.history"]).tobytes() == np.asarray(whole.outputs["opt.history"]).tobytes()
    assert not any(tmp_path.glob("runs/*/trials/*/descent.safetensors"))
