"""Optuna."""

import json
import sys

import optuna
from trial import POINTS, square


def sweep(folder, row="sweep", name="x"):
    study = optuna.create_study(
        study_name="run",
        storage=f"sqlite:///{folder}/study.db",
        sampler=optuna.samplers.GridSampler({"x": POINTS}),
        load_if_exists=True,
    )
    study.optimize(lambda trial: square(trial.suggest_categorical(name, POINTS), row, folder), n_jobs=2)
    table = study.trials_dataframe()
    json.dump(table["value"].dropna().tolist(), open(f"{folder}/rows", "w"))


def crash(folder):
    sweep(folder, "crash")


def hang(folder):
    sweep(folder, "hang")


def typo(folder):
    sweep(folder, name="xx")


def killed(folder):
    sweep(folder, "killed")


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
