"""What one Ray task does: import the job, give it a program of its own, run it, and hand back plain data. Never imports ray."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..jobs.base import Finished, execute
from .descent import body_of
from .target import Target, load
from .work.records import error_record


def run_trial(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run the trial that ``spec`` describes: first a note that it has started, then its record. The job's errors are data too."""
    start = time.time()
    yield {"kind": "started", "t": start, "pid": os.getpid(), "host": platform.node()}
    record = trial_record(spec)
    yield {"kind": "ended", "pid": os.getpid(), "started_t": start, "ended_t": time.time(), **record}


class TrialWorker:
    """The process of a device: runs trials one after the other, and keeps the device and the compiled kernels warm."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def __repr__(self) -> str:
        return f"TrialWorker({self.backend})"

    def run(self, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Run one trial, see ``run_trial``."""
        yield from run_trial(spec)


def trial_record(spec: dict[str, Any]) -> dict[str, Any]:
    """Run one trial here and now; the result as plain data, with ``status`` done or failed."""
    clock = time.perf_counter()
    try:
        job = load(Target.model_validate(spec["target"]))
        made = job(job.Params.model_validate(spec["params"]), wanted=spec["gradients"], seed=spec["seed"])
        options = {name: spec[name] for name in ("backend", "device", "threads", "memory_limit_bytes", "memory_budget_bytes")}
        record = finished_record(execute(made, **options, body=body_of(spec.get("optimize"))))
    except (Exception, SystemExit) as error:
        # a device that is lost to this process, see ``DeviceError``: the error is a record, the process is to be replaced
        record = {"status": "failed", "error": error_record(error)}
        if getattr(error, "restart", False):
            record["restart"] = True
    return {**record, "worker_seconds": time.perf_counter() - clock}


def finished_record(finished: Finished) -> dict[str, Any]:
    """A finished run as plain data. A loss or a gradient that is not finite makes it a failed one that keeps its numbers."""
    outcome = finished.outcome
    gradients = {name: _listed(value) for name, value in outcome.gradients.items()}
    bad = [name for name, value in outcome.gradients.items() if not np.all(np.isfinite(value))]
    record: dict[str, Any] = {
        "status": "done",
        "loss": float(outcome.loss),
        "gradients": gradients,
        "outputs": {name: _listed(value) for name, value in outcome.outputs.items()},
        "seconds": sum(finished.seconds.values()),
        "parts": finished.seconds,
        "planned": finished.plan.by_kind(),
        "planned_bytes": finished.plan.bytes,
        "used": finished.used,
        "used_bytes": finished.peak_bytes,
        "device": finished.device,
    }
    if not math.isfinite(record["loss"]) or bad:
        what = [f"the loss is {record['loss']}"] if not math.isfinite(record["loss"]) else []
        what += [f"the gradient of {name} is not finite" for name in bad]
        record |= {"status": "failed", "error": {"type": "NotFinite", "message": "; ".join(what), "traceback": ""}}
    return record


def _listed(value: Any) -> Any:
    array = np.asarray(value, dtype=np.float64)
    return float(array) if array.ndim == 0 else array.tolist()
