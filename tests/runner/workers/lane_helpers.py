"""A run with its owner, and workers for it in this process."""

import threading
import time
from pathlib import Path

from qdrun.runner.store import layout
from qdrun.runner.store.owner import take
from qdrun.runner.study.target import resolve
from qdrun.runner.workers import BatchColumns, BatchSpec, Worker, WorkerSpec

HERE = Path(__file__).parent
LIMITS = {"threads": 1, "memory_limit_bytes": None, "memory_budget_bytes": None, "optimize": None}


class Bench:
    """Makes workers and batches for one run."""

    def __init__(self, uri):
        self.folder = layout.write_run(uri, "lanes", "", {}, [], {})
        self.owner = take(self.folder)
        self.workers = []

    def worker(self, job="Plain", lanes=2, *, target="jobs_for_lanes.py", gradients=None, limits=None, **options):
        found = resolve(f"{target}:{job}", HERE).model_dump()
        known = {"backend": "cpu", "own_process": False} | options
        spec = WorkerSpec(
            run=self.folder.uri,
            owner=self.owner.number,
            token=self.owner.token,
            device="dev0",
            lanes=lanes,
            job=LIMITS
            | (limits or {})
            | {"target": found, "gradients": self.gradients(job) if gradients is None else gradients},
            **known,
        )
        self.workers.append(Worker(spec))
        return self.workers[-1]

    @staticmethod
    def gradients(job):
        import jobs_for_lanes

        return list(getattr(jobs_for_lanes, job).gradients)

    @staticmethod
    def batch(name, attempt=1, *, claim=None, strict=True, budget=None, launch=0, **params):
        columns = BatchColumns(params, {}, [0])
        return BatchSpec(f"lease of {name}", (name,), (attempt,), columns, claim, strict, budget, launch)


def at_once(*calls):
    """The results of calls that run at the same time."""
    found = [None] * len(calls)

    def call(k):
        found[k] = calls[k]()

    threads = [threading.Thread(target=call, args=(k,), daemon=True) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    return found


def record(end):
    """Of the only trial of a batch."""
    (only,) = end.ends.values()
    return only


def wait_for(condition):
    """Until it holds; a test that waits a minute has failed."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.002)
