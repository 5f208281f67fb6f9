"""``device.backend: auto``: of the backends that this machine, or the cluster, has, the one on which the sweep is predicted to end first.

One trial of each shape is built on the CPU, planned for every backend, and timed by what the compiler predicts of its launches
(``jobs.trial_time``). Nothing runs and nothing is compiled. Where there is one backend, nothing is done at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...jobs.base import Job
from ...jobs.trial_time import TrialTime, trial_time
from ..ledger.inventory import Found, pools_and_devices
from ..packing import Claim, Request, misfit
from .candidates import Candidate, Choice
from .devices import ChosenDevice
from .placement import OUT_OF_MEMORY, at_most, devices_of, usable
from .plan import Prepared, opened, planned_for, shapes
from .plan_threads import Hung, each_within
from .requests import claim_of, curve
from .trials import Trial

MOST_SHAPES = 16
"""Shapes that are looked at; of more, so many evenly spaced ones stand for all."""
SIDE_BY_SIDE = 4.5
"""What programs on streams of their own gain on a GPU at the most: beyond, launches wait for one another."""


@dataclass(frozen=True)
class _Seen:
    """A shape on a backend: what a trial claims, how long it takes, or why it cannot be planned."""

    claim: Claim | None = None
    time: TrialTime | None = None
    error: str = ""


@dataclass
class _Shape:
    """Trials of one shape, and what they are on each backend."""

    example: Trial
    trials: int
    seen: Mapping[str, _Seen] = field(default_factory=dict)


def chosen(
    prepared: Prepared, job: type[Job[Any]], places: Sequence[ChosenDevice], there: Sequence[Found] | None = None
) -> tuple[ChosenDevice, Choice]:
    """The place where the sweep is predicted to end first.

    Args:
        prepared: the config, with all of its trials.
        job: the class, too.
        places: of the backends that can be used, those first that are taken where nothing can be predicted.
        there: the devices of the cluster that the trials will run on; None: those of this machine.
    """
    sample = _sample(prepared, job)
    limit = prepared.loaded.config.limits.timeout_s
    backends = [place.backend for place in places]
    for shape, found in zip(
        sample, each_within(lambda s: _look(prepared, job, s.example, backends), sample, limit), strict=True
    ):
        if isinstance(found, KeyboardInterrupt):
            raise found
        if isinstance(found, BaseException):
            why = str(found) if isinstance(found, Hung) else f"{type(found).__name__}: {found}"
            found = dict.fromkeys(backends, _Seen(error=why.splitlines()[0]))
        shape.seen = found
    at = [prepared.model_copy(update={"place": place}) for place in places]
    candidates = tuple(_candidate(one, sample, job.__name__, _rows(one, there)) for one in at)
    best, reason = _best(candidates)
    return next(place for place in places if place.backend == best), Choice(best, reason, candidates)


def _best(candidates: Sequence[Candidate]) -> tuple[str, str]:
    able = [c for c in candidates if not c.out]
    if not able:
        return candidates[0].backend, "though no backend can hold every trial"
    if len(able) == 1:
        return able[0].backend, "the only one that can hold every trial"
    if any(c.seconds is None for c in able):
        return able[0].backend, "GPUs come first where not everything can be predicted"
    return min(able, key=lambda c: c.seconds or 0.0).backend, "which is predicted to end first"


def _sample(prepared: Prepared, job: type[Job[Any]]) -> list[_Shape]:
    """The shapes that are looked at, each with the trials that it stands for."""
    groups = shapes(prepared, job)
    many = min(len(groups), MOST_SHAPES)
    out: list[_Shape] = []
    for k in range(many):
        first, after = k * len(groups) // many, (k + 1) * len(groups) // many
        out.append(_Shape(groups[first][0], sum(map(len, groups[first:after]))))
    return out


def _look(prepared: Prepared, job: type[Job[Any]], trial: Trial, backends: Sequence[str]) -> dict[str, _Seen]:
    """One trial on every backend; it is built again for each one only where a budget is planned into."""
    host, config = prepared.model_copy(update={"place": ChosenDevice("cpu")}), prepared.loaded.config
    if config.budget_bytes is None:
        with opened(host, job, trial, None, "cpu", machine_code=False) as made:
            return {backend: _planned(host, made, backend) for backend in backends}
    out = {}
    for backend in backends:
        try:
            with opened(host, job, trial, config.budget_bytes, backend, machine_code=False) as made:
                out[backend] = _planned(host, made, backend)
        except MemoryError as error:
            out[backend] = _Seen(error=OUT_OF_MEMORY + str(error).splitlines()[0])
    return out


def _planned(host: Prepared, made: Job[Any], backend: str) -> _Seen:
    other = planned_for(host, backend)
    try:
        plan = made.plan(**({} if other is None else {"arch": other}))
        points = curve(made, plan, other) if host.loaded.config.elastic else ()
    except MemoryError as error:
        return _Seen(error=OUT_OF_MEMORY + str(error).splitlines()[0])
    return _Seen(claim_of(plan, points), trial_time(made, backend, host.loaded.config.device.threads))


def _rows(prepared: Prepared, there: Sequence[Found] | None) -> list[Found]:
    """The devices of the backend that the trials may run on."""
    return devices_of(prepared) if there is None else at_most(usable(prepared, there), prepared)


def _candidate(prepared: Prepared, sample: Sequence[_Shape], job: str, rows: Sequence[Found]) -> Candidate:
    """A backend, by what its devices make of every shape."""
    backend, (pools, devices) = prepared.backend, pools_and_devices(rows)
    if not rows:
        return Candidate(backend, why="it has no device", out=True)
    unknown = ""
    for shape in sample:
        seen = shape.seen[backend]
        if seen.claim is None:
            if seen.error.startswith(OUT_OF_MEMORY):
                return Candidate(backend, why=f"{shape.example.label}: {seen.error.removeprefix(OUT_OF_MEMORY)}", out=True)
            unknown = unknown or f"{shape.example.label} cannot be planned: {seen.error}"
            continue
        claims = {device.kind: seen.claim for device in devices}
        why = misfit(Request(shape.example.id, "", "", claims, 0.0), pools, devices)
        if why is not None:
            return Candidate(backend, why=f"{shape.example.label} {why}", out=True)
        unknown = unknown or ("" if seen.time is not None else f"{job} names no launches()")
    if unknown:
        return Candidate(backend, why=unknown)
    room = {pool.id: pool.capacity for pool in pools}
    able = [(row, room[row.pool] - row.charge()) for row in rows]
    runs = prepared.loaded.config.optimize.steps if prepared.loaded.config.optimize else 1
    return _finish(backend, sample, able, runs)


def _finish(backend: str, sample: Sequence[_Shape], devices: Sequence[tuple[Found, int]], runs: int) -> Candidate:
    """When the last trial ends: each device takes what it holds at once, one after the other.

    Args:
        backend: of the devices.
        sample: every shape with its claim and its time.
        devices: with the bytes that each has for trials.
        runs: how often a trial runs its job.
    """
    total = alone = longest = slots = 0.0
    trials = sum(shape.trials for shape in sample)
    for shape in sample:
        claim, time = shape.seen[backend].claim, shape.seen[backend].time
        assert claim is not None and time is not None
        rate = held = 0.0
        for row, room in devices:
            at_once = min(row.lanes, room // max(1, claim.points[0].bytes)) or (1 if room >= claim.smallest else 0)
            if at_once:
                rate += _rate(row, time, at_once)
                held += at_once
        total += shape.trials * runs / rate
        alone += shape.trials * runs * time.seconds
        longest = max(longest, runs * time.seconds)
        slots += shape.trials * held
    return Candidate(backend, max(total, longest), alone / trials, slots / trials)


def _rate(row: Found, time: TrialTime, at_once: int) -> float:
    """Trials a second on one device."""
    if row.backend == "cpu":
        return at_once / time.seconds
    return 1.0 / time.beside(at_once, SIDE_BY_SIDE, row.threads)


__all__ = ["chosen"]
