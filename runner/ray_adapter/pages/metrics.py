"""Figures of a run for Ray's metrics page, Prometheus and Grafana, through ``ray.util.metrics``.

Exported by the process of the runner: series of a worker would end with it. On a node's metrics port each name has the prefix ``ray_``;
a counter ends in ``_total``, a histogram has ``_bucket``, ``_sum`` and ``_count``. That port has no password, so that no tag holds
anything of the user's: a run is named by its time stamp and its last digits, see ``run_tag``. Imports ray when it is made, not before.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...observe.view import RunView
from ...store.trial_state import FINAL
from ...workers.records import gradient_norm
from .job_record import JobRecord

STATES = ("waiting", "running", *FINAL)
DECADES = tuple(10.0**k for k in range(-9, 10))
_PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (("bucket", ("le",)), ("sum", ()), ("count", ()))
SECONDS = tuple(mantissa * 10.0**k for k in range(-3, 5) for mantissa in (1, 2, 5))


@dataclass(frozen=True)
class Spec:
    """A metric: its name without the prefix, its kind, its tags, what it says, and the buckets of a histogram."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    tags: tuple[str, ...]
    says: str
    buckets: tuple[float, ...] = ()

    @property
    def exported(self) -> tuple[str, ...]:
        """The names on the metrics port."""
        if self.kind == "histogram":
            return tuple(f"ray_{self.name}_{part}" for part, _ in _PARTS)
        return (f"ray_{self.name}",)


SPECS = (
    Spec("qdrun_trials", "gauge", ("run", "state"), "Trials by state."),
    Spec("qdrun_device_bytes", "gauge", ("run", "device", "kind"), "Memory of a device: capacity, claimed, used; bytes."),
    Spec("qdrun_device_lanes", "gauge", ("run", "device", "kind"), "Lanes of a device: total, running."),
    Spec("qdrun_batch_trials", "histogram", ("run",), "Trials of one batch.", tuple(2.0**k for k in range(13))),
    Spec("qdrun_trial_seconds", "histogram", ("run",), "Seconds of a trial's own work.", SECONDS),
    Spec("qdrun_queue_wait_seconds", "histogram", ("run",), "Seconds from a trial's submission to its start.", SECONDS),
    Spec(
        "qdrun_used_of_planned",
        "histogram",
        ("run",),
        "Bytes used by bytes planned.",
        (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0, 1.01, 1.05, 1.1, 1.25, 1.5, 2.0),
    ),
    Spec("qdrun_gradient_norm", "histogram", ("run",), "2-norm over all gradients of a trial.", DECADES),
    Spec("qdrun_oom_total", "counter", ("run",), "Attempts that ran out of device memory."),
    Spec(
        "qdrun_retries_total", "counter", ("run", "failure"), "Attempts that failed and are tried again, by class of failure."
    ),
)


def run_tag(run: str) -> str:
    """A run without the name that its user gave it: ``20260727-101500-drop-0a1b`` becomes ``20260727-101500-0a1b``."""
    parts = run.split("-")
    return "-".join([*parts[:2], parts[-1]]) if len(parts) > 3 else run if len(parts) == 3 else "run"


class Histogram:
    """Values counted here, and exported now and then as the gauges that a histogram of Prometheus consists of.

    Ray's own takes a call for each value, several for each trial: a sixth of what the runner does for a short one. And it keeps no sum of
    the values, but of the middles of their buckets.
    """

    def __init__(self, spec: Spec, tags: Mapping[str, str], gauge: Callable[..., Any]) -> None:
        self._bounds, self._counts, self._sum = spec.buckets, [0] * (len(spec.buckets) + 1), 0.0
        self._labels = [{"le": repr(bound)} for bound in spec.buckets] + [{"le": "+Inf"}]
        made = (gauge(f"{spec.name}_{part}", spec.says, spec.tags + also) for part, also in _PARTS)
        self._bucket, self._total, self._count = (one.set_default_tags(dict(tags)) for one in made)

    def observe(self, value: float, count: int = 1) -> None:
        """Record a value, ``count`` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def export(self) -> None:
        """Say what there is so far."""
        below = 0
        for count, label in zip(self._counts, self._labels, strict=True):
            below += count
            self._bucket.set(below, tags=label)
        self._total.set(self._sum)
        self._count.set(below)


class Metrics:
    """The metrics of one run, and its ``record`` among the jobs of Ray. Make it after ``ray.init``; every call is cheap and none raises for
    what the run does.
    """

    def __init__(self, run: str, record: JobRecord | None = None) -> None:
        from ray.util import metrics

        self.run, self.record = run_tag(run), record
        self._devices: set[str] = set()
        self._made: dict[str, Any] = {}
        self._histograms: dict[str, Histogram] = {}
        own = {"run": self.run}
        for spec in SPECS:
            if spec.kind == "gauge":
                self._made[spec.name] = metrics.Gauge(spec.name, spec.says, spec.tags).set_default_tags(own)
            elif spec.kind == "counter":
                self._made[spec.name] = metrics.Counter(spec.name, spec.says, spec.tags).set_default_tags(own)
            else:
                self._histograms[spec.name] = Histogram(spec, own, metrics.Gauge)

    def observe(self, view: RunView) -> None:
        """Set the gauges: trials by state, devices, and what was counted. Call it about once a second, and once at the end."""
        if self.record is not None:
            self.record.show(view)
        for histogram in self._histograms.values():
            histogram.export()
        for state in STATES:
            self._set("qdrun_trials", view.counts.get(state, 0), state=state)
        for device in view.devices:
            values = {"capacity": device.capacity, "claimed": device.claimed, "used": device.used}
            for kind, value in values.items():
                if value is not None:
                    self._set("qdrun_device_bytes", value, device=device.id, kind=kind)
            for kind, lanes in (("total", device.lanes), ("running", device.running)):
                if lanes is not None:
                    self._set("qdrun_device_lanes", lanes, device=device.id, kind=kind)
        here = {device.id for device in view.devices}
        for gone in self._devices - here:
            for kind in ("capacity", "claimed", "used"):
                self._set("qdrun_device_bytes", 0, device=gone, kind=kind)
            for kind in ("total", "running"):
                self._set("qdrun_device_lanes", 0, device=gone, kind=kind)
        self._devices |= here

    def over(self, state: str, view: RunView) -> None:
        """The run has ended in ``state``."""
        if self.record is not None:
            self.record.over(state, view)

    def started(self, trials: int, waited_s: float) -> None:
        """A batch of so many trials has started, so many seconds after it was submitted."""
        self._histograms["qdrun_batch_trials"].observe(trials)
        self._histograms["qdrun_queue_wait_seconds"].observe(waited_s)

    def ended(self, record: Mapping[str, Any], trials: int = 1) -> None:
        """A trial has its row, or ``count`` trials of a batch have, with their common part."""
        planned, used = record.get("planned_bytes"), record.get("used_bytes")
        self._observe("qdrun_trial_seconds", record.get("seconds"), trials)
        self._observe("qdrun_used_of_planned", used / planned if planned and used is not None else None, trials)
        self._observe("qdrun_gradient_norm", gradient_norm(record))
        self._failed(record.get("failure"))

    def retried(self, failure: str) -> None:
        """An attempt failed and its trial waits again; ``failure`` is a ``store.attempts.Failure``."""
        self._made["qdrun_retries_total"].inc(tags={"failure": str(failure)})
        self._failed(failure)

    def _observe(self, name: str, value: float | None, count: int = 1) -> None:
        if value is not None and math.isfinite(value):
            self._histograms[name].observe(value, count)

    def _failed(self, failure: str | None) -> None:
        if failure == "out_of_memory":
            self._made["qdrun_oom_total"].inc()

    def _set(self, name: str, value: float, **tags: str) -> None:
        self._made[name].set(value, tags=tags)
