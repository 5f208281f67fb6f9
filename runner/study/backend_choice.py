"""``device.backend: auto``: of the backends that this machine, or the cluster, has, the one that suits the sweep.

One trial of each shape is built on the CPU and planned for every backend. A backend with devices that cannot hold a shape is excluded. Of
the others a GPU is chosen if the job's launches are wide (``jobs.planning.parallel_width``), those of a batch for all of its trials.
Nothing runs and nothing is compiled. With a single backend nothing is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ...jobs.base import Job, MemoryPlan
from ...jobs.planning.parallel_width import parallel_width
from ..ledger.inventory import Found, pools_and_devices
from ..packing import Claim, Request, misfit
from ..value_columns import Places
from .batches import side_by_side
from .devices import AutoChoice, Candidate, ChosenDevice
from .placement import OUT_OF_MEMORY, at_most, devices_of, usable
from .plan import Hung, PlannedGroup, Prepared, each_within, opened, planned_for, shapes
from .requests import claim_of, curve
from .trial_list import Trial, Trials

MOST_SHAPES = 16
"""Maximum number of planned shapes. Of more, evenly spaced ones represent all."""
WIDE = 4096
"""Iterations of a parallel loop from which on a GPU is taken: 8 threads of a CPU take about as long for so many short ones as a GPU takes
to start a task (4 us)."""


@dataclass(frozen=True)
class _Seen:
    """A shape on a backend: what a trial claims, or why it cannot be planned; and the iterations of its launches, None: unknown."""

    claim: Claim | None = None
    width: float | None = None
    error: str = ""
    plan: MemoryPlan | None = None


@dataclass
class _ShapeCosts:
    """Trials of one shape: one of them with its place, their number, how many run at once in a batch, and what they are on each backend."""

    example: Trial
    first: int
    trials: int
    seen: Mapping[str, _Seen] = field(default_factory=dict)
    together: float = 1.0


def chosen(
    prepared: Prepared, job: type[Job[Any]], places: Sequence[ChosenDevice], there: Sequence[Found] | None = None
) -> tuple[ChosenDevice, AutoChoice]:
    """The place that suits the sweep.

    Args:
        prepared: the config, with all of its trials.
        job: the class, too.
        places: of the backends that can be used, those first that are taken where nothing is known.
        there: the devices of the cluster that the trials will run on; None: those of this machine.
    """
    groups = shapes(prepared, job)
    sample = _sample(prepared.trials, groups)
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
    _find_batches(prepared, job, groups, sample)
    at = [prepared.model_copy(update={"place": place}) for place in places]
    candidates = tuple(_candidate(one, sample, job.__name__, _rows(one, there)) for one in at)
    best, reason = _best(candidates, _width(sample))
    return next(place for place in places if place.backend == best), AutoChoice(best, reason, candidates)


def _width(sample: Sequence[_ShapeCosts]) -> float | None:
    """Iterations of a launch, the mean over all trials; None: those of one shape are unknown."""
    total = 0.0
    for shape in sample:
        known = [seen.width for seen in shape.seen.values() if seen.width is not None]
        if not known:
            return None
        total += shape.trials * known[0] * shape.together
    return total / sum(shape.trials for shape in sample)


def _best(candidates: Sequence[Candidate], width: float | None) -> tuple[str, str]:
    able = [c for c in candidates if not c.out]
    if not able:
        return candidates[0].backend, "though no backend can hold every trial"
    if len(able) == 1:
        return able[0].backend, "the only one that can hold every trial"
    if width is None or any(c.why for c in able):
        return able[0].backend, "GPUs come first where not everything is known"
    wide = width >= WIDE
    taken = next((c for c in able if (c.backend != "cpu") == wide), able[0])
    how = f"{WIDE:,} and more are for a GPU" if wide else f"fewer than {WIDE:,} are for the CPU"
    return taken.backend, f"as its launches have {width:,.0f} iterations side by side: {how}"


def _find_batches(prepared: Prepared, job: type[Job[Any]], groups: Sequence[Places], sample: Sequence[_ShapeCosts]) -> None:
    """Set how many trials of each shape run at once; 1 where that cannot be told."""
    examples = {group[0]: group for group in groups}
    for shape in sample:
        plan = next((seen.plan for seen in shape.seen.values() if seen.plan is not None), None)
        with suppress(Exception, SystemExit):  # of a user's code; the plans of batches report it
            head = {"places": examples[shape.first], "first": shape.first, "example": shape.example.label}
            shape.together = side_by_side(prepared, job, PlannedGroup(**head, plan=plan))


def _sample(trials: Trials, groups: Sequence[Places]) -> list[_ShapeCosts]:
    """The planned shapes, each with the trials that it represents."""
    many = min(len(groups), MOST_SHAPES)
    out: list[_ShapeCosts] = []
    for k in range(many):
        first, after = k * len(groups) // many, (k + 1) * len(groups) // many
        place = groups[first][0]
        out.append(_ShapeCosts(trials[place], place, sum(map(len, groups[first:after]))))
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
    return _Seen(claim_of(plan, points), parallel_width(made), plan=plan)


def _rows(prepared: Prepared, there: Sequence[Found] | None) -> list[Found]:
    """The devices of the backend that the trials may run on."""
    return devices_of(prepared) if there is None else at_most(usable(prepared, there), prepared)


def _candidate(prepared: Prepared, sample: Sequence[_ShapeCosts], job: str, rows: Sequence[Found]) -> Candidate:
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
        why = misfit(Request(shape.example.id, claims, 0.0), pools, devices)
        if why is not None:
            return Candidate(backend, why=f"{shape.example.label} {why}", out=True)
        unknown = unknown or ("" if seen.width is not None else f"{job} names no launches() whose iterations can be told")
    return Candidate(backend, why=unknown)


__all__ = ["WIDE", "chosen"]
