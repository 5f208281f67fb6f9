"""Measures the seconds of a submit: before the first trial, and the overhead of each trial."""

from __future__ import annotations

import itertools
import os
import resource
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..clock import now

_IMPORTED = now()
_LOADED_S = time.process_time()
_WAS_SHELL = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt > 0
"""``sh -c "pip install ..; qdrun submit .."`` runs the command in the shell's own process, which began long before: it has waited for
children, and the system counts them on after it has become this command.
"""
IMPORTS_S = 30.0
"""The most that Python and its modules may take to load."""


def process_started() -> float:
    """When this command began, in seconds since the epoch: when its process did, or, where the system does not say or the process was a
    shell before, when this module was imported, less the seconds of computing time until then.
    """
    if _WAS_SHELL:
        return _IMPORTED - _LOADED_S
    try:
        with open("/proc/self/stat", encoding="ascii") as stream:
            ticks = int(stream.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime", encoding="ascii") as stream:
            uptime = float(stream.read().split()[0])
    except FileNotFoundError:  # not Linux
        return _IMPORTED
    started = now() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))
    return started if _IMPORTED - started < IMPORTS_S else _IMPORTED


class TrialTiming(NamedTuple):
    """A trial that has ended: its lane (host, process, number), when it started and ended there, the seconds that its worker had it, those
    of its own work, and when its row had come back. A batch is one, with the seconds of all of its ``trials``.
    """

    lane: tuple[Any, ...]
    started_t: Any
    ended_t: Any
    worker_seconds: float | None
    seconds: float | None
    collected_t: float
    trials: int = 1


@dataclass
class Timing:
    """Time stamps of a submit, in seconds since the epoch, and of its trials."""

    command_t: float
    submitted_t: float
    planned_t: float | None = None
    ray_ready_t: float | None = None
    first_start_t: float | None = None
    ended_t: float | None = None
    trials: list[TrialTiming] = field(default_factory=list)

    def add(self, message: Mapping[str, Any], at: float, trials: int = 1) -> None:
        """Note an ended trial that has come back ``at`` that time: its worker, when it started and ended there, and the seconds of its own
        work. Of so many ``trials`` of a batch the message says what is the same for all.
        """
        get = message.get
        lane = (get("host"), get("pid"), get("lane"))
        seconds = get("seconds")
        own = None if seconds is None else trials * seconds
        self.trials.append(TrialTiming(lane, get("started_t"), get("ended_t"), get("worker_seconds"), own, at, trials))

    def summary(self) -> dict[str, float | None]:
        """The figures that ``--json`` prints; seconds from the command on, and milliseconds for each trial.

        ``dispatch_ms_per_trial`` is the mean gap between two trials in one lane of a worker, ``worker_ms_per_trial`` what the worker adds
        inside (import, checks, packing of results), ``collect_ms_per_trial`` the mean delay of a record on its way back (not on the
        critical path; as far as the clocks of two processes agree, and never below 0), and ``overhead_ms_per_trial`` the first two
        together.
        """
        lanes: dict[tuple[Any, ...], list[TrialTiming]] = defaultdict(list)
        for trial in self.trials:
            lanes[trial.lane].append(trial)
        gaps, inside, collect = [], [], []  # seconds, and of how many trials
        for own in lanes.values():
            own.sort(key=lambda trial: trial.started_t)
            gaps += [(after.started_t - before.ended_t, after.trials) for before, after in itertools.pairwise(own)]
        for trial in self.trials:
            if trial.seconds is not None:
                inside.append((trial.ended_t - trial.started_t - trial.seconds, trial.trials))
            collect.append((max(0.0, trial.collected_t - trial.ended_t), trial.trials))
        dispatch_ms, worker_ms = _mean_ms(gaps), _mean_ms(inside)
        both = dispatch_ms + worker_ms if dispatch_ms is not None and worker_ms is not None else None
        return {
            "command_t": self.command_t,
            "submitted_s": self._since(self.submitted_t),
            "planned_s": self._since(self.planned_t),
            "ray_ready_s": self._since(self.ray_ready_t),
            "first_start_s": self._since(self.first_start_t),
            "ended_s": self._since(self.ended_t),
            "dispatch_ms_per_trial": dispatch_ms,
            "worker_ms_per_trial": worker_ms,
            "collect_ms_per_trial": _mean_ms(collect),
            "overhead_ms_per_trial": both,
        }

    def _since(self, stamp: float | None) -> float | None:
        return None if stamp is None else max(0.0, stamp - self.command_t)  # the command may be of another process


def _mean_ms(parts: list[tuple[float, int]]) -> float | None:
    return 1000.0 * sum(seconds for seconds, _ in parts) / sum(trials for _, trials in parts) if parts else None
