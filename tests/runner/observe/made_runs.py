"""Runs with journals written by hand."""

import random

from qdrun.jobs.planning.memory_plan import MemoryPlan, PlanEntry
from qdrun.runner.store import journal
from qdrun.runner.store.layout import write_run
from qdrun.runner.study.plan import PlannedGroup
from qdrun.runner.study.trials import Trial, trial_id

GIB = 1 << 30
SNAPSHOT = {
    "pools": [{"id": "gpu0", "capacity": 20 * GIB, "foreign": 0, "process": GIB, "claimed": 3 * GIB, "free": 16 * GIB}],
    "devices": [
        {
            **{"id": "gpu:0", "kind": "l4", "pool": "gpu0", "lanes": 4, "worker": True},
            "running": [{"request": "r", "user": "u", "trials": 2, "bytes": 3 * GIB, "since": 0.0}],
        }
    ],
    "waiting": [{"count": 7, "example": "t", "why": "needs 9 GiB: pool gpu0 has 2 GiB free of 20 GiB"}],
}


class Made:
    """A run under ``where``; ``swept`` gives the parameters of each trial."""

    def __init__(self, where, swept, name="made", planned=4 * GIB):
        again = [swept[:i].count(params) for i, params in enumerate(swept)] if len(swept) < 100 else [0] * len(swept)
        self.trials = [
            Trial(id=trial_id(params, replicate), index=i, replicate=replicate, seed=i, swept=params, params=params)
            for i, (params, replicate) in enumerate(zip(swept, again))
        ]
        self.folder = write_run(where, name, f"version: 1\nname: {name!r}\n", {"name": name}, self.trials, {})
        entries = (PlanEntry(kind="state", bytes=planned, source="build()"),)
        self.folder.save_plan(
            [PlannedGroup(places=range(len(self.trials)), first=0, example="", plan=MemoryPlan(entries=entries))]
        )
        self.began = self.folder.info()["created"]
        self.journal = journal.Journal(self.folder)

    def at(self, monkeypatch, seconds, event, index=None, **fields):
        """Write an event as if it were ``seconds`` after the run's start; ``index``: of its trial."""
        if index is not None:
            fields = {"trial": self.trials[index].id, "attempt": 1} | fields
        with monkeypatch.context() as patch:
            patch.setattr(journal, "now", lambda: self.began + seconds)
            self.journal.write(event, **fields)

    def start(self, monkeypatch, seconds, index, **place):
        self.at(monkeypatch, seconds, "started", index, **place)

    def end(self, monkeypatch, seconds, index, **record):
        self.at(monkeypatch, seconds, "ended", index, **({"status": "done", "loss": float(index)} | record))

    def finish(self, monkeypatch, seconds, state="done"):
        self.at(monkeypatch, seconds, "finished", state=state)
        self.journal.close()
        return self.folder


NASTY = "<script>alert('x')</script> & \"$\\frac{a}$\" \x1b[31m"


def large(made, monkeypatch, count=1000, seed=1):
    """A run of many trials on two devices with failures, gradients, histories and nasty texts."""
    rng = random.Random(seed)
    run = made([{"E": 10 ** rng.uniform(2, 5), "kind": rng.choice(["a", NASTY[:40]]), "n": i} for i in range(count)])
    run.at(monkeypatch, 0, "snapshot", **SNAPSHOT)
    with monkeypatch.context() as patch:
        now = [0.0]
        patch.setattr(journal, "now", lambda: run.began + now[0])
        for i, trial in enumerate(run.trials):
            now[0] = 1.0 + i * 0.1
            run.journal.write("started", trial=trial.id, attempt=1, device=f"gpu:{i % 2}", bytes=GIB * (1 + i % 3))
            now[0] += 0.09
            record = {"status": "done", "loss": rng.random() + 1e-3, "gradients": {"E": [3.0, 4.0 * i]}, "seconds": 0.01 * i}
            record |= {
                "planned_bytes": 100,
                "used_bytes": 99,
                "device": NASTY,
                "outputs": {"opt.history": [3.0, 2.0, 1.0 + 1e-3 * i]},
            }
            if i % 20 == 7:
                error = {"type": "Bad", "message": NASTY + "\nmore", "traceback": "Trace <b>"}
                record = {"status": "failed", "error": error, "failure": "user_error", "seconds": 1.0}
            run.journal.write("ended", trial=trial.id, attempt=1, **record)
    return run.finish(monkeypatch, count * 0.1 + 2, "failed")
