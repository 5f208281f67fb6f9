"""submitit, with its local executor: a process for each trial, all at once."""

import json
import sys

import submitit
from trial import POINTS, square


def sweep(folder, row="sweep", minutes=5, work=square):
    executor = submitit.AutoExecutor(folder=f"{folder}/jobs", cluster="local")
    executor.update_parameters(timeout_min=minutes)
    count = len(POINTS)
    jobs = executor.map_array(work, POINTS, [row] * count, [folder] * count)
    losses = []
    for job in jobs:
        try:
            losses.append(job.result())
        except (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError) as error:
            print(str(error).splitlines()[0][:120])
    json.dump(losses, open(f"{folder}/rows", "w"))


def crash(folder):
    sweep(folder, "crash")


def hang(folder):
    sweep(folder, "hang", minutes=1)


def typo(folder):
    sweep(folder, work=lambda *, xx: square(xx, "sweep", folder))


def killed(folder):
    sweep(folder, "killed")


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
