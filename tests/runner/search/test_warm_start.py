"""``optimize.warm_start``: descents begin where those of another run have ended, of the same trial or of the best one."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))

from fakes import Quadratic, QuadraticParams
from runner_helpers import write_config

from qdrun.runner.config.yaml_lines import ConfigError
from qdrun.runner.search.warm_start import warm_started
from qdrun.runner.store.attempts import Attempt, ended, pack
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import write_run
from qdrun.runner.study.prepare import prepare
from qdrun.runner.study.trials import trial_id, trial_seed


def config_of(tmp_path, sweep, warm=None, **keys):
    optimize = {"learning_rate": 0.1, "params": ["x"], "steps": 3} | keys | ({} if warm is None else {"warm_start": warm})
    config = write_config(tmp_path, sweep=sweep, optimize=optimize)
    config.write_text(config.read_text().replace("gradients: [x, target]\n", "gradients: [x]\n"))
    return config


def other_run(tmp_path, sweep, losses, found=None):
    """A run of these trials whose descents have ended with these losses (None: without one), at ``found``."""
    prepared, _ = prepare(config_of(tmp_path, sweep))
    folder = write_run(str(tmp_path / "runs"), "other", "", {"gradients": ["x"]}, prepared.trials, {})
    with Journal(folder) as journal:
        for trial, loss, x in zip(prepared.trials, losses, found or [10.0 + k for k in range(len(losses))], strict=True):
            attempt = Attempt(trial.id, 1, journal.owner.number)
            record = {"status": "failed", "error": {"type": "x", "message": "x", "traceback": ""}}
            if loss is not None:
                outputs = {} if found == "none" else {"opt.x": x, "opt.stopped": 0.0, "opt.history": [loss], "opt.steps": 0.0}
                record = {"status": "done", "loss": loss, "gradients": {"x": 0.0}, "outputs": outputs}
            ended(journal, [(attempt, pack(folder, attempt, record))])
        journal.write("finished", state="done")
    return folder


def started(config):
    prepared, job = prepare(config)
    return warm_started(prepared, job).trials


def test_each_trial_goes_on_from_the_trial_with_its_parameters(tmp_path):
    sweep = {"x": [1.0, 2.0], "scale": [1.0, 3.0]}
    folder = other_run(tmp_path, sweep, [5.0, 4.0, 3.0, 2.0])
    trials = started(config_of(tmp_path, sweep, folder.name))
    assert [trial.params["x"] for trial in trials] == [10.0, 11.0, 12.0, 13.0]
    assert [trial.params["scale"] for trial in trials] == [1.0, 3.0, 1.0, 3.0]
    seed = prepare(config_of(tmp_path, sweep))[0].loaded.config.sweep.seed
    for trial in trials:
        assert trial.id == trial_id(trial.params, 0) and trial.seed == trial_seed(seed, trial.id)
        assert trial.swept == {"x": trial.params["x"], "scale": trial.params["scale"]}


def test_a_trial_that_the_other_run_does_not_have_begins_at_the_best_that_differs_in_what_is_optimised_alone(tmp_path):
    folder = other_run(tmp_path, {"x": [1.0, 2.0], "scale": [1.0, 3.0]}, [5.0, 4.0, 3.0, None])
    trials = started(config_of(tmp_path, {"x": [7.0], "scale": [1.0, 3.0]}, {"run": folder.uri}))
    assert [trial.params["x"] for trial in trials] == [12.0, 11.0]


def test_all_trials_begin_at_the_best_of_all_if_asked(tmp_path):
    folder = other_run(tmp_path, {"x": [1.0, 2.0, 3.0]}, [5.0, 1.0, 3.0])
    (tmp_path / "deep").mkdir()
    config = config_of(tmp_path, {"scale": [1.0, 2.0, 8.0]}, {"run": f"runs/{folder.name}", "take": "best"})
    assert [trial.params["x"] for trial in started(config)] == [11.0] * 3


def test_a_run_that_was_not_optimised_gives_the_parameters_of_its_trials(tmp_path):
    prepared, _ = prepare(config_of(tmp_path, {"x": [1.0, 2.0, 3.0]}))
    folder = write_run(str(tmp_path / "runs"), "plain", "", {"gradients": ["x"]}, prepared.trials, {})
    with Journal(folder) as journal:
        for trial, loss in zip(prepared.trials, (3.0, 1.0, 2.0), strict=True):
            attempt = Attempt(trial.id, 1, journal.owner.number)
            ended(journal, [(attempt, pack(folder, attempt, {"status": "done", "loss": loss, "gradients": {"x": 0.0}}))])
    (trial,) = started(config_of(tmp_path, {"scale": [4.0]}, {"run": folder.uri, "take": "best"}))
    assert (trial.params["x"], trial.params["scale"]) == (2.0, 4.0)


def test_arrays_in_files_are_found_and_other_parameters_stay(tmp_path):
    target = np.random.default_rng().normal(size=20_000).tolist()
    base = QuadraticParams(target=target)
    assert base.target == target and Quadratic.gradients == ("x", "target")
    config = config_of(tmp_path, {"x": [1.0]}, params=["target"])
    config.write_text(config.read_text().replace("gradients: [x]\n", "gradients: [target]\n"))
    prepared, job = prepare(config)
    folder = write_run(str(tmp_path / "runs"), "arrays", "", {"gradients": ["target"]}, prepared.trials, {})
    with Journal(folder) as journal:
        attempt = Attempt(prepared.trials[0].id, 1, journal.owner.number)
        record = {
            "status": "done",
            "loss": 1.0,
            "gradients": {},
            "outputs": {"opt.target": np.array(target), "opt.stopped": 0.0},
        }
        ended(journal, [(attempt, packed := pack(folder, attempt, record))])
    assert "file" in packed["outputs"]["opt.target"]
    config.write_text(
        config.read_text().replace('"params": ["target"]', f'"params": ["target"], "warm_start": "{folder.name}"')
    )
    prepared, job = prepare(config)
    assert warm_started(prepared, job).trials[0].params["target"] == target


@pytest.mark.parametrize(
    ("sweep", "warm", "keys", "said"),
    [
        ({"scale": [9.0]}, {}, {}, "has no point for trial scale=9: no trial with a loss has its other parameters"),
        ({"x": [5.0, 6.0]}, {}, {}, "trials 0 and 1 begin at the same point, x=11"),
        ({"x": [1.0]}, {}, {"bounds": {"x": [0, 5]}}, "starts with x = 10, outside of [0, 5]"),
        ({"x": [1.0]}, {"run": "no-such-run"}, {}, "no run at `no-such-run`"),
        ({"x": [1.0]}, {"take": "bst"}, {}, "`optimize.warm_start.take`: `bst` is not allowed here"),
        ({"x": [1.0]}, {"runn": "x"}, {}, "`optimize.warm_start.runn`: unknown key"),
    ],
)
def test_what_cannot_be_is_said_with_the_line_of_the_config(tmp_path, sweep, warm, keys, said):
    folder = other_run(tmp_path, {"x": [1.0, 2.0, 3.0]}, [5.0, 1.0, None])
    with pytest.raises(ConfigError) as caught:
        started(config_of(tmp_path, sweep, {"run": folder.name} | warm, **keys))
    assert said in str(caught.value) and "fake.yaml:" in str(caught.value)


def test_without_the_key_nothing_changes(tmp_path):
    prepared, job = prepare(config_of(tmp_path, {"x": [1.0]}))
    assert warm_started(prepared, job) is prepared
