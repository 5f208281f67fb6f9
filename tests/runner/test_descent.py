"""Gradient descent in a trial: equal to the same loop written by hand, in one program; stops, bounds, and what is wrong."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from fakes import Quadratic, QuadraticParams
from runner_helpers import trial_record, write_config
from typer.testing import CliRunner

from qdrun.jobs.base import BadOutcome, Job, Outcome, Session, execute
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams
from qdrun.runner.cli.app import app
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.config.yaml_lines import ConfigError
from qdrun.runner.optimize.descent import DescentError, body_of, descend
from qdrun.runner.optimize.results import STOPPED
from qdrun.runner.study.prepare import prepare

CONFIGS = Path(__file__).parents[2] / "configs"


def section(**keys):
    return OptimizeSection.model_validate({"learning_rate": 0.1, "params": ["x"]} | keys)


def quadratic(**keys):
    """The outcome of a descent of scale * sum((x - target)^2) from x = 5, with targets 0 and 2: the minimum is 2 at x = 1."""
    params = QuadraticParams(x=5.0, target=[0.0, 2.0])
    with Session(Quadratic(params, wanted=["x"])) as session:
        return descend(session, section(**keys))


STARTS = [(700.0, [0.2, 0.25, 0.15, 0.3]), (1100.0, [0.28, 0.11, 0.21, 0.17]), (1800.0, [0.1, 0.3, 0.3, 0.1])]


@pytest.mark.parametrize("start", range(len(STARTS)))
def test_optimisation_of_a_robot_is_the_descent_written_by_hand_to_the_bit(start):
    stiffness, actuation = STARTS[start]
    rate, steps = 2.0, 6
    losses, k, a = [], stiffness, np.array(actuation)
    for _ in range(steps + 1):  # each time a program of its own
        params = MassSpringParams(steps=50, stiffness=k, actuation=a.tolist())
        with MassSpring(params).opened(threads=1) as job:
            found = job.run()
        losses.append(found.loss)
        last = k, a
        k, a = k - rate * float(found.gradients["stiffness"]), a - rate * np.asarray(found.gradients["actuation"])
    assert losses[-1] < losses[0]
    given = {"rule": "sgd", "learning_rate": rate, "steps": steps, "params": ["stiffness", "actuation"], "keep": "last"}
    job = MassSpring(MassSpringParams(steps=50, stiffness=stiffness, actuation=actuation))
    done = execute(job, backend="cpu", threads=1, memory_limit_bytes=None, body=body_of(given))
    outputs = done.outcome.outputs
    assert outputs["opt.history"].tolist() == losses
    assert (float(outputs["opt.stiffness"]), outputs["opt.actuation"].tolist()) == (last[0], last[1].tolist())
    assert (done.outcome.loss, outputs["opt.steps"], outputs["opt.builds"]) == (losses[-1], steps, 1)
    assert np.array_equal(done.outcome.gradients["actuation"], found.gradients["actuation"])
    assert done.plan.bytes == done.peak_bytes  # what is planned for one run holds for all of them


def test_every_start_of_the_config_gets_better_in_one_program_each():
    prepared, _ = prepare(CONFIGS / "optimize.yaml", overrides=["optimize.steps=8", "job.params.steps=60"])
    assert len(prepared.trials) == 6
    for trial in prepared.trials:
        record = trial_record(prepared.spec(trial))
        assert record["status"] == "done", record
        history = record["outputs"]["opt.history"]
        assert record["loss"] == min(history) < history[0]
        assert record["outputs"]["opt.builds"] == 1
        assert all(0 <= value <= 0.5 for value in record["outputs"]["opt.actuation"])


@pytest.mark.slow
def test_the_config_runs_as_it_is(ray_folder, tmp_path):
    result = CliRunner().invoke(app, ["submit", str(CONFIGS / "optimize.yaml"), "--output", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["counts"] == {"done": 6} and summary["best"]["loss"] < -0.01


def test_a_job_with_nothing_live_is_built_for_each_step_and_gives_the_same():
    class Rebuilt(Quadratic):
        live = ()

    params = QuadraticParams(x=5.0, target=[0.0, 2.0])
    found = {}
    for job in (Quadratic, Rebuilt):
        with Session(job(params, wanted=["x"])) as session:
            found[job] = descend(session, section(rule="momentum", steps=9)).outputs
    assert found[Quadratic]["opt.history"].tolist() == found[Rebuilt]["opt.history"].tolist()
    assert (found[Quadratic]["opt.builds"], found[Rebuilt]["opt.builds"]) == (10, 10)


@pytest.mark.parametrize("rule", ["sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "adagrad", "lion"])
def test_every_rule_finds_the_minimum_of_a_parabola(rule):
    rate = {"adagrad": 2.0, "sgd": 0.1, "momentum": 0.02, "nesterov": 0.02}.get(rule, {"cosine": {"start": 0.2, "end": 1e-4}})
    options = {"weight_decay": 0.0} if rule == "adamw" else {}
    outcome = quadratic(rule=rule, steps=200, learning_rate=rate, options=options)
    assert float(outcome.outputs["opt.x"]) == pytest.approx(1.0, abs=2e-3)
    assert outcome.loss == pytest.approx(2.0, abs=1e-5)
    assert outcome.outputs["opt.kept"] <= outcome.outputs["opt.steps"] == 200


def test_the_best_point_is_kept_or_the_last():
    swings = {"rule": "sgd", "learning_rate": 0.6, "steps": 3}  # each step multiplies x - 1 by 1 - 0.6 * 4 = -1.4
    best, last = quadratic(**swings), quadratic(**swings, keep="last")
    assert best.outputs["opt.history"].tolist() == last.outputs["opt.history"].tolist()
    assert (best.loss, best.outputs["opt.kept"], float(best.outputs["opt.x"])) == (34.0, 0, 5.0)
    assert float(last.outputs["opt.x"]) == pytest.approx(1 + 4 * (-1.4) ** 3)
    assert last.loss == last.outputs["opt.history"][-1] > best.loss
    assert best.gradients["x"] == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("stop", "reason", "steps"),
    [
        ({}, "steps", 30),
        ({"gradient_norm": 1.0}, "gradient_norm", 6),  # 16 * 0.6^k <= 1
        ({"loss": 3.0}, "loss", 4),  # 32 * 0.36^k <= 1
        (
            {"patience": 2, "progress": 1.0},
            "patience",
            7,
        ),  # 34, 13.5, 6.1, 3.5, 2.5, 2.2: the last one that is better by 1 than one before
    ],
)
def test_a_descent_stops_for_the_reason_that_it_says(stop, reason, steps):
    outcome = quadratic(rule="sgd", learning_rate=0.1, steps=30, stop=stop)
    assert STOPPED[int(outcome.outputs["opt.stopped"])] == reason
    assert outcome.outputs["opt.steps"] == steps
    assert len(outcome.outputs["opt.history"]) == steps + 1


def test_bounds_hold_to_the_bit_and_a_minimum_at_a_bound_counts_as_one():
    outcome = quadratic(rule="sgd", steps=50, bounds={"x": [3.3, None]}, scale={"x": 0.7}, stop={"gradient_norm": 0.0})
    assert float(outcome.outputs["opt.x"]) == 3.3
    assert STOPPED[int(outcome.outputs["opt.stopped"])] == "gradient_norm"
    assert outcome.outputs["opt.steps"] < 50


def test_a_step_past_a_bound_starts_again_from_the_bound():
    outcome = quadratic(rule="sgd", steps=2, learning_rate=0.6, bounds={"x": [-1, None]}, keep="last")
    assert float(outcome.outputs["opt.x"]) == pytest.approx(-1 + 0.6 * 8)  # 5 -> -4.6, held at -1 -> 3.8


def test_scale_changes_the_unit_of_a_parameter_and_clip_the_length_of_a_step():
    one = quadratic(rule="sgd", steps=1, learning_rate=0.1, scale={"x": 0.5}, keep="last")
    assert float(one.outputs["opt.x"]) == pytest.approx(5 - 0.1 * 0.25 * 16)
    cut = quadratic(rule="sgd", steps=1, learning_rate=0.1, clip=2.0, keep="last")
    assert float(cut.outputs["opt.x"]) == pytest.approx(5 - 0.1 * 2)
    assert cut.outputs["opt.gradient_norm"] == pytest.approx(4 * 3.8)


def test_a_descent_that_blows_up_is_a_failed_row_with_its_numbers(tmp_path):
    config = write_config(tmp_path, sweep={"x": [1e100]}, optimize={"rule": "sgd", "learning_rate": 1e20, "params": ["x"]})
    prepared, _ = prepare(config)
    record = trial_record(prepared.spec(prepared.trials[0]))
    assert (record["status"], record["error"]["type"]) == ("failed", "NotFinite")
    assert STOPPED[int(record["outputs"]["opt.stopped"])] == "not_finite"
    assert math.isfinite(record["outputs"]["opt.history"][0])
    assert not math.isfinite(record["loss"])


class Halved(Job[QuadraticParams]):
    gradients = ("scale", "target")
    needs_compiler = False

    def build(self): ...

    def run(self):
        return Outcome(self.params.scale, {"scale": 1.0, "target": [1.0, 2.0, 3.0]})


def test_a_step_that_the_job_refuses_names_the_step_the_value_and_what_to_do():
    with Session(Halved(QuadraticParams(scale=0.5), wanted=("scale",))) as session, pytest.raises(DescentError) as caught:
        descend(session, section(rule="sgd", learning_rate=0.3, params=["scale"]))
    text = str(caught.value)
    assert text.startswith("step 2 sets scale to -0.0999999") and "greater than 0" in text
    assert "do: give optimize.bounds for scale, or a smaller optimize.learning_rate" in text


def test_a_gradient_of_another_shape_is_refused():
    with (
        Session(Halved(QuadraticParams())) as session,
        pytest.raises(BadOutcome, match=r"`target` with shape \(3,\), the parameter has shape \(2,\)"),
    ):
        descend(session, section(params=["target"]))


def error_of(tmp_path, optimize, **more):
    path = write_config(tmp_path, optimize=optimize, **more)
    with pytest.raises(ConfigError) as caught:
        prepare(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("optimize", "said"),
    [
        ({}, ["`adam` needs `learning_rate`", "add learning_rate: 0.01"]),
        (
            {"rule": "lbfgs"},
            ["`lbfgs` has no learning rate: it finds the length of each step", "remove learning_rate; options.first"],
        ),
        ({"rule": "lbfgs", "learning_rate": None, "clip": 1.0}, ["`lbfgs` compares gradients, which `clip` would change"]),
        ({"rule": "lbfgs", "learning_rate": None, "keep": "last"}, ["the last point of `lbfgs` may be a try of a step length"]),
        (
            {"rule": "lbfgs", "learning_rate": None, "options": {"history": 0}},
            ["`history` is `0", "a whole number from 1 to 100"],
        ),
        (
            {"rule": "levenberg_marquardt", "learning_rate": 0.1},
            ["`levenberg_marquardt` has no learning rate", "remove learning_rate"],
        ),
        ({"rule": "levenberg_marquardt", "learning_rate": None, "options": {"damping": -1}}, ["`damping` is `-1", "0 or more"]),
        ({"rule": "lbfgs", "learning_rate": None, "options": {"first": 0}}, ["`first` is `0", "above 0", "the default is 1.0"]),
        ({"rule": "adma"}, ["`adma` is not allowed here", "adagrad", "did you mean `adam`?"]),
        ({"learning_rate": 0}, ["`0` is not a learning rate", "allowed: a number above 0", "exponential"]),
        ({"learning_rate": {"cosin": {}}}, ["is not a learning rate", "did you mean `cosine`?"]),
        ({"learning_rate": {"cosine": {"begin": 1}}}, ["`cosine` has no `begin`", "allowed: start, end, steps"]),
        ({"learning_rate": {"warmup": {"peak": 1}}}, ["`warmup` needs `warmup_steps`", "add warmup_steps:"]),
        ({"learning_rate": {"exponential": {"start": 1, "factor": -1}}}, ["`factor` of `exponential` is `-1`"]),
        ({"rule": "sgd", "options": {"b1": 0.5}}, ["`sgd` has no option `b1`", "allowed: none"]),
        ({"options": {"b3": 0.5}}, ["`adam` has no option `b3`", "allowed: b1, b2, eps", "do: remove it"]),
        ({"options": {"b1": 1.5}}, ["the option `b1` is `1.5`", "from 0 to below 1", "the default is 0.9"]),
        ({"params": ["y"]}, ["`optimize.params[0]`: `y` is not a parameter with a gradient", "allowed: x, target"]),
        ({"params": ["x", "x"]}, ["`x` stands twice"]),
        ({"bounds": {"scale": [0, 1]}}, ["`optimize.bounds.scale`: `scale` is not optimised", "allowed: x, target"]),
        ({"bounds": {"x": [2, 1]}}, ["`optimize.bounds.x`: `[2, 1]` are not bounds", "[low, null]", "low <= high"]),
        ({"bounds": {"x": [0.5, 9]}}, ["trial x=0 starts with x = 0, outside of [0.5, 9]", "widen the bounds"]),
        ({"stop": {"progress": 1e-3}}, ["`patience` needs `progress`", "add patience: 20"]),
        ({"scale": {"x": 0}}, ["`optimize.scale.x`", "greater than 0"]),
        ({"keep": "first"}, ["`first` is not allowed here", "allowed: best, last"]),
        ({"steps": 0}, ["`optimize.steps`", "greater than or equal to 1"]),
    ],
)
def test_what_is_wrong_with_the_section_names_key_allowed_values_and_a_fix(tmp_path, optimize, said):
    given = ({"learning_rate": 0.1} | optimize) if optimize else {"steps": 3}
    text = error_of(tmp_path, {name: value for name, value in given.items() if value is not None})
    assert "fake.yaml:10: `optimize" in text
    for part in said:
        assert part in text


def test_a_job_without_gradients_that_are_parameters_has_nothing_to_optimise(tmp_path):
    path = write_config(tmp_path, optimize={"learning_rate": 0.1})
    path.write_text(path.read_text().replace("gradients: [x, target]", "gradients: []"))
    with pytest.raises(ConfigError, match="no gradient is a parameter: there is nothing to optimise"):
        prepare(path)


def test_the_parameters_are_those_of_gradients_unless_named_and_the_resolved_config_says_so(tmp_path):
    prepared, _ = prepare(write_config(tmp_path, optimize={"learning_rate": 0.1}))
    assert prepared.resolved["optimize"]["params"] == ["x", "target"]
    spec = json.loads(json.dumps(prepared.spec(prepared.trials[0])))  # crosses processes as plain data
    record = trial_record(spec)
    assert set(record["outputs"]) >= {"opt.x", "opt.target", "opt.history", "opt.steps", "opt.stopped", "reach"}
    shown = CliRunner().invoke(app, ["plan", str(tmp_path / "fake.yaml")]).stdout
    assert "optimize: x, target by adam, at most 100 steps, learning rate 0.1" in shown
