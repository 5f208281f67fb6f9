"""Runs made by hand, with live values."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "observe"))


@pytest.fixture
def made(tmp_path):
    """See ``observe/conftest.py``."""
    from made_runs import Made

    return lambda *args, **options: Made(tmp_path / "runs", *args, **options)


@pytest.fixture
def run(made, monkeypatch):
    """Three trials and a batch of two, with live values: one done, one failed, one that runs, the batch done."""
    import numpy as np

    from qdrun.runner.store.columns import made as rows

    run = made([{"x": i, "deep": {"y": [1, 2]}} for i in range(5)], name="exported")
    for k in range(3):
        run.start(monkeypatch, 1 + k, k, device="cpu", bytes=1)
    run.end(monkeypatch, 5, 0, loss=0.25, gradient_norm=2.0, outputs={"height": 3.0, "path": [1.0, 2.0]}, ended_t=run.began + 5)
    error = {"type": "Bad", "message": "no", "traceback": ""}
    run.end(monkeypatch, 6, 1, status="failed", failure="user_error", loss=None, error=error)
    names = (run.trials[3].id, run.trials[4].id)
    (made_rows,) = rows(names, (1, 1), {"status": "done"}, np.array([5.0, 6.0]), None, {}, {"height": np.array([7.0, 8.0])})
    run.at(monkeypatch, 7, "rows", **made_rows.event())
    run.logged = logged(run)
    yield run
    run.journal.close()


def logged(run):
    """Writes live values of all trials; gives those of each."""
    import numpy as np

    from qdrun.jobs.core.watch import StepValues
    from qdrun.runner.live.points import Logged, live_values
    from qdrun.runner.live.writer import LiveWriter

    writer = LiveWriter(run.folder, "workers/cpu/w1", list, lambda: None)
    for trial in run.trials[:3]:
        points = [StepValues(k, run.began + k, {"loss": 1.0 / (k + 1)} | ({"n": float(k)} if k else {})) for k in range(3)]
        writer.put(Logged.of([trial.id], [1], points))
    both = [StepValues(k, run.began + k, {"loss": np.array([5.0 + k, 6.0 + k])}) for k in range(2)]
    writer.put(Logged.of([run.trials[3].id, run.trials[4].id], [1, 1], both))
    writer.close()
    return live_values(run.folder)
