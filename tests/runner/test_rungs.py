"""Descents that are compared with those of other trials: the rules, what workers tell each other, and whole sweeps."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from fakes import Quadratic, QuadraticParams
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from runner_helpers import write_config
from typer.testing import CliRunner

from qdrun.jobs.base import Session
from qdrun.runner.cli.app import app
from qdrun.runner.config.optimize_section import OptimizeSection, TrialsSection
from qdrun.runner.observe.table import rows
from qdrun.runner.optimize.descent import descend
from qdrun.runner.optimize.kept import KeptFiles, forget_batches
from qdrun.runner.optimize.results import STOPPED
from qdrun.runner.optimize.rungs import ENDS, Rungs, behind, compared, is_rung
from qdrun.runner.store.files import open_files
from qdrun.runner.store.layout import find

from .engine.local import run_config


def rule(**keys):
    return TrialsSection.model_validate(keys)


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({"rule": "halving", "first": 4}, [4, 12, 36]),
        ({"rule": "halving", "first": 3, "factor": 1.5}, [3, 5, 7, 11, 16, 23, 35]),
        ({"rule": "median", "first": 15}, [15, 30, 45]),
    ],
)
def test_descents_are_compared_at_the_rungs_of_their_rule(keys, steps):
    assert [step for step in range(47) if is_rung(rule(**keys), step)] == steps


@given(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=60, unique=True), st.sampled_from(["halving", "median"]))
def test_the_best_share_goes_on_and_never_fewer_than_one(losses, name):
    found = behind(rule(rule=name, factor=4.0) if name == "halving" else rule(rule=name), np.array(losses), np.array(losses))
    share = 4 if name == "halving" else 2
    stay = np.array(losses)[~found]
    assert 1 <= len(stay) <= len(losses) // share + 1
    assert sorted(losses)[: len(stay)] == sorted(stay)


def test_while_too_few_have_come_all_go_on_and_a_loss_that_is_not_finite_is_no_rival():
    rungs, how = Rungs(), rule(rule="median", first=5, least=3)

    def run(names, best):
        return compared(how, rungs, 5, names, np.array(best), np.ones(len(best), bool)).tolist()

    assert run(["a"], [1.0]) == [False]
    assert run(["b", "c"], [9.0, np.inf]) == [False, False]
    assert run(["d"], [2.0]) == [False]
    assert run(["e"], [3.0]) == [True]
    assert run(["f"], [1.5]) == [False]


def test_workers_read_what_others_have_reached_and_a_damaged_line_costs_only_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("qdrun.runner.optimize.rungs.READ_EVERY_S", 0.0)
    files = open_files(tmp_path)
    one, two = Rungs(files, "workers/cpu/w0"), Rungs(files, "workers/cpu/w1")
    assert one.reached(5, {"a": 1.0, "b": 2.5}).tolist() == [1.0, 2.5]
    assert sorted(two.reached(5, {"c": 3.0})) == [1.0, 2.5, 3.0]
    assert two.reached(10, {"c": 2.0}).tolist() == [2.0]
    assert sorted(one.reached(5, {"a": 0.5})) == [0.5, 2.5, 3.0], "of a trial that comes again the last loss counts"
    one.close()
    two.close()
    _, second = sorted((tmp_path / "rungs").iterdir())
    second.write_bytes(second.read_bytes().replace(b"3.0", b"4.0"))
    after = Rungs(files, "workers/cpu/w0-owner2")
    assert sorted(after.reached(5, {"d": 7.0})) == [0.5, 2.5, 7.0]
    after.close()
    forget_batches(files)
    assert not list((tmp_path / "rungs").iterdir())


def test_where_an_earlier_run_decides_trials_end_at_its_steps_whatever_others_have_reached(tmp_path):
    files, how = open_files(tmp_path), rule(rule="median", first=5, least=2)
    files.put(ENDS, b'{"b": 5, "d": 7}')
    ends = [
        compared(how, Rungs(files, "w"), step, ["a", "b", "d"], np.array([9.0, 1.0, 2.0]), np.ones(3, bool)) for step in (5, 7)
    ]
    assert [found.tolist() for found in ends] == [[False, True, False], [False, False, True]]


def test_a_descent_that_is_behind_ends_with_its_best_point(tmp_path):
    files = open_files(tmp_path)
    rungs = Rungs(files, "w")
    found = []
    for trial, x in enumerate([1.5, 2.0, 3.0, 50.0, 1.2]):
        kept = KeptFiles(files, f"{trial}", lambda: None, rungs=rungs)
        how = {
            "rule": "sgd",
            "learning_rate": 0.01,
            "params": ["x"],
            "steps": 40,
            "stop": {"trials": {"rule": "median", "first": 6}},
        }
        with Session(Quadratic(QuadraticParams(x=x, target=[0.0, 2.0]), wanted=["x"])) as session:
            found.append(descend(session, OptimizeSection.model_validate(how), kept, str(trial)))
    why = [STOPPED[int(one.outputs["opt.stopped"])] for one in found]
    assert why == ["steps", "steps", "steps", "behind", "steps"]
    assert (found[3].outputs["opt.steps"], len(found[3].outputs["opt.history"])) == (6, 7)
    assert found[3].loss == min(found[3].outputs["opt.history"])


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ({"rule": "median", "factor": 2}, "`factor` belongs to rule `halving`, not to `median`"),
        ({"rule": "asha"}, "'halving' or 'median'"),
        ({"rule": "halving", "factor": 1}, "greater than 1"),
        ({"rule": "halving", "least": 1}, "greater than or equal to 2"),
    ],
)
def test_what_is_no_rule_is_refused(stop, message):
    with pytest.raises(ValidationError) as error:
        OptimizeSection.model_validate({"rule": "lbfgs", "stop": {"trials": stop}})
    assert message in str(error.value)
    assert OptimizeSection.model_validate({"rule": "lbfgs", "stop": {"trials": "halving"}}).stop.trials.factor == 3.0


@pytest.mark.parametrize("batch", ["off", "auto"])
def test_most_descents_of_a_sweep_end_early_and_the_best_one_goes_to_its_end(local_ray, tmp_path, batch):
    starts = np.random.default_rng().permutation(np.linspace(1.0, 9.0, 24)).tolist()
    stop = {"trials": {"rule": "halving", "first": 2, "factor": 2}}
    job = Path(__file__).with_name("jobs_for_rungs.py")
    config = write_config(
        tmp_path,
        target=f"{job}:Wells",
        sweep={"x": starts},
        optimize={"rule": "sgd", "learning_rate": 0.01, "params": ["x"], "steps": 32, "stop": stop},
        more=f"batch: '{batch}'\n",
    )
    config.write_text(config.read_text().replace("gradients: [x, target]\n", "gradients: [x]\n"))
    state, folder, _ = run_config(config)
    found = sorted(rows(folder), key=lambda row: row["loss"])
    assert state == "done" and len(found) == 24 and {row["status"] for row in found} == {"done"}
    why = [STOPPED[int(row["out.opt.stopped"])] for row in found]
    assert why[0] == "steps" and found[0]["param.x"] == 1.0, "the start that leads is never behind"
    assert why.count("behind") >= 4
    for row, ended in zip(found, why, strict=True):
        assert row["out.opt.steps"] in ((32,) if ended == "steps" else (2, 4, 8, 16))
        assert row["loss"] == min(row["out.opt.history"])


@pytest.mark.slow
def test_a_study_with_early_stopping_is_run_again_with_equal_numbers_and_tells_nobody(local_ray, tmp_path):
    starts = np.random.default_rng().permutation(np.linspace(1.0, 9.0, 24)).tolist()
    how = {"rule": "sgd", "learning_rate": 0.01, "params": ["x"], "steps": 32}
    config = write_config(
        tmp_path,
        target=f"{Path(__file__).with_name('jobs_for_rungs.py')}:Wells",
        sweep={"x": starts},
        optimize=how | {"stop": {"trials": {"rule": "halving", "first": 2, "factor": 2}}},
        more=f"callbacks: {{run_end: 'touch {tmp_path}/told'}}\nexport: {{tensorboard: {{folder: {tmp_path}/events}}}}\n",
    )
    config.write_text(config.read_text().replace("gradients: [x, target]\n", "gradients: [x]\n"))
    if importlib.util.find_spec("tensorboard") is None:
        config.write_text(re.sub("export: .*", "", config.read_text()))
    first = CliRunner().invoke(app, ["submit", str(config), "--quiet", "--json"])
    assert first.exit_code == 0, first.output
    (tmp_path / "told").unlink()
    shutil.rmtree(tmp_path / "events", ignore_errors=True)
    rows_then = rows(find(json.loads(first.stdout)["folder"]))
    assert sum(STOPPED[int(row["out.opt.stopped"])] == "behind" for row in rows_then) >= 4
    again = CliRunner().invoke(
        app, ["rerun", json.loads(first.stdout)["folder"], "--output", str(tmp_path / "again"), "--quiet", "--json"]
    )
    numbers = json.loads(again.stdout)["numbers"]
    assert again.exit_code == 0 and not numbers["different"] and len(numbers["equal"] + numbers["close"]) == 24
    assert not (tmp_path / "told").exists() and not (tmp_path / "events").exists()
