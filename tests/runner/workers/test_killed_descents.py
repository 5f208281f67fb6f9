"""A worker's process is killed at a random moment of a descent; another one goes on, with the bits of a descent that was never killed."""

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from qdrun.runner.store.columns import decoded
from qdrun.runner.store.layout import RunFolder, write_run
from qdrun.runner.store.owner import take
from qdrun.runner.study.target import resolve
from qdrun.runner.workers import BatchSpec, Worker, WorkerSpec
from qdrun.runner.workers.spec import BatchColumns

HERE = Path(__file__).parent
STEPS = 1500
SECTION = {"rule": "adam", "steps": STEPS, "learning_rate": 0.01, "params": ["speed"]}
CHILD = """
import sys
sys.path.insert(0, sys.argv[4])
from test_killed_descents import batch_of, worker
from qdrun.runner.optimize import kept
kept.EVERY_S, kept.SHARE = 0.0, 1e9
worker(sys.argv[1], sys.argv[2]).run(batch_of(int(sys.argv[3])))
"""


def worker(uri, token):
    target = resolve("jobs_that_log.py:Roll", HERE).model_dump()
    limits = {"threads": 1, "memory_limit_bytes": None, "memory_budget_bytes": None, "optimize": None}
    job = limits | {"target": target, "gradients": ["speed"]}
    return Worker(WorkerSpec(run=uri, owner=1, token=token, device="cpu", own_process=False, lanes=1, job=job))


def batch_of(trials, attempt=1, launch=1):
    speeds = np.linspace(2.0, 3.0, trials).tolist()
    if trials == 1:
        return BatchSpec("l", ("t0",), (attempt,), BatchColumns({"speed": speeds[0]}, {}, [0], SECTION), launch=launch)
    names = tuple(f"t{k}" for k in range(trials))
    columns = BatchColumns({"speed": speeds[0]}, {"speed": speeds}, [0] * trials, SECTION)
    return BatchSpec("l", names, (attempt,) * trials, columns, launch=launch)


def records(end):
    """The numbers of each trial, of those in columns, too."""
    found = {
        name: {**one, "gradients": plain(one["gradients"]), "outputs": plain(one["outputs"])} for name, one in end.ends.items()
    }
    for rows in end.rows:
        columns = {
            group: {name: decoded(column._asdict()) for name, column in getattr(rows, group).items()}
            for group in ("columns", "gradients", "outputs")
        }
        for row, name in enumerate(rows.trials):
            numbers = {group: {key: column[row].tolist() for key, column in of.items()} for group, of in columns.items()}
            found[name] = numbers | numbers.pop("columns")
    return found


def plain(numbers):
    return {name: np.asarray(value).tolist() for name, value in numbers.items()}


def ends(uri, token, batch):
    made = worker(uri, token)
    try:
        return records(made.run(batch))
    finally:
        made.close()


@pytest.mark.parametrize("trials", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_another_process_goes_on_with_the_same_bits(tmp_path, trials):
    folders = [write_run(str(tmp_path / name), "killed", "", {}, [], {}) for name in ("whole", "killed")]
    owners = [take(folder) for folder in folders]
    whole = ends(folders[0].uri, owners[0].token, batch_of(trials))
    child = subprocess.Popen([sys.executable, "-c", CHILD, folders[1].uri, owners[1].token, str(trials), str(HERE)])
    kept = Path(folders[1].uri) / ("trials/t0/descent.safetensors" if trials == 1 else "descents/000001-000001.safetensors")
    try:
        end = time.monotonic() + 120
        while not kept.exists():
            assert child.poll() is None and time.monotonic() < end
            time.sleep(0.002)
        time.sleep(random.uniform(0.0, 0.3))
    finally:
        child.kill()
        child.wait()
    assert RunFolder(folders[1].uri).files.read(kept.relative_to(folders[1].uri).as_posix()), "it was killed in the middle"
    again = ends(folders[1].uri, owners[1].token, batch_of(trials, attempt=2, launch=2))
    assert again.keys() == whole.keys() and len(whole) == trials
    for name, record in whole.items():
        assert len(record["outputs"]["opt.history"]) == STEPS + 1
        for what in ("loss", "gradients", "outputs", "gradient_norm"):
            assert again[name][what] == record[what], (name, what)
    assert trials > 1 or not kept.exists()
