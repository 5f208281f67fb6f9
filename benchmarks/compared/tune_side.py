"""Ray Tune."""

import json
import sys

from ray import tune
from trial import POINTS, square


def sweep(folder, row="sweep", name="x", **limits):
    tuner = tune.Tuner(
        lambda config: {"loss": square(config["x"], row, folder)},
        param_space={name: tune.grid_search(POINTS)},
        run_config=tune.RunConfig(name="run", storage_path=folder, verbose=0, **limits),
    )
    rows(tuner.fit(), folder)


def rows(results, folder):
    table = results.get_dataframe()
    json.dump(table["loss"].dropna().tolist() if "loss" in table else [], open(f"{folder}/rows", "w"))


def crash(folder):
    sweep(folder, "crash")


def hang(folder):
    sweep(folder, "hang", stop={"time_total_s": 2})


def typo(folder):
    sweep(folder, name="xx")


def killed(folder):
    if not tune.Tuner.can_restore(f"{folder}/run"):
        return sweep(folder, "killed")
    work = lambda config: {"loss": square(config["x"], "killed", folder)}  # noqa: E731
    tuner = tune.Tuner.restore(f"{folder}/run", work, resume_unfinished=True, param_space={"x": tune.grid_search(POINTS)})
    rows(tuner.fit(), folder)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
