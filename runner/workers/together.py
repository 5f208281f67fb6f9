"""A batch on a lane: trials that differ in inputs alone run at once in one program, and come back as columns.

A trial that a kernel has failed, or whose numbers are not finite, has a record of its own, as if it had run alone; the others are not
concerned. What stops the whole batch is said of each of its trials: the runner then tries it again in halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...jobs.base import MemoryPlan
from ...jobs.core.batch import BatchOutcome
from ..optimize.results import Ends
from ..store.attempts import INLINE_BYTES, Record
from ..store.columns import BatchRows, made
from .records import failed_record, judged, place_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Ran:
    """A batch that has run.

    Attributes:
        outcome: a row for each of its trials that was not stopped before.
        seconds: of each part.
        plan: the memory of the whole batch.
        used: the most bytes of each kind.
        peak_bytes: the most at once; None for a job without a program.
        device: what it ran on.
        launched: how, see ``Job.launched``.
        ends: of trials that are optimised, how each ended. ``outcome`` is empty then.
    """

    outcome: BatchOutcome
    seconds: dict[str, float]
    plan: MemoryPlan
    used: dict[str, int]
    peak_bytes: int | None
    device: str
    launched: str
    ends: Ends | None = None

    def shared(self, trials: int) -> Record:
        """The common part of the records of all trials: each has its share of the seconds and bytes of the batch."""
        return {
            "status": "done",
            "seconds": sum(self.seconds.values()) / trials,
            "parts": {name: value / trials for name, value in self.seconds.items()},
            "planned": {kind: value // trials for kind, value in self.plan.by_kind().items()},
            "planned_bytes": self.plan.bytes // trials,
            "used": {kind: value // trials for kind, value in self.used.items()},
            "used_bytes": None if self.peak_bytes is None else self.peak_bytes // trials,
            "device": self.device,
            "launched": self.launched,
        }


def split(
    ran: Ran, trials: Sequence[str], attempts: Sequence[int], shared: Record
) -> tuple[tuple[BatchRows, ...], dict[str, Record]]:
    """The rows of the trials that ended well, and the records of the others; of large arrays each trial has a record of its own, which goes
    to files.
    """
    if ran.ends is None:
        return _split(ran.outcome, trials, attempts, shared)
    rows, alone = list[BatchRows](), dict[str, Record]()
    for group in ran.ends.groups():
        at: list[int] = group.tolist()
        named, tried = [trials[k] for k in at], [attempts[k] for k in at]
        found, others = _split(ran.ends.columns(group), named, tried, shared)
        rows += found
        alone |= others
    for k, error in ran.ends.errors.items():
        alone[trials[k]] = shared | failed_record(error, place_of(error, trials[k], None))
    return tuple(rows), alone


def _split(
    outcome: BatchOutcome, trials: Sequence[str], attempts: Sequence[int], shared: Record
) -> tuple[tuple[BatchRows, ...], dict[str, Record]]:
    """``split`` of columns, a row for each trial."""
    norms = norms_of(outcome.gradients, len(trials))
    good = np.isfinite(outcome.losses)
    good &= True if norms is None else np.isfinite(norms) | _all_finite(outcome.gradients, len(trials))
    good[list(outcome.errors)] = False
    columns = (*outcome.gradients.values(), *outcome.outputs.values())
    if sum(column[:1].nbytes for column in columns) > INLINE_BYTES:
        good[:] = False
    well = np.flatnonzero(good)
    alone = {trials[k]: _record(outcome, k, trials[k], shared, norms) for k in np.flatnonzero(~good).tolist()}
    if not len(well):
        return (), alone
    picked = (lambda column: column) if len(well) == len(trials) else lambda column: column[well]
    rows = made(
        tuple([trials[k] for k in well.tolist()]),
        tuple([attempts[k] for k in well.tolist()]),
        shared,
        picked(np.asarray(outcome.losses, dtype=np.float64)),
        None if norms is None else picked(norms),
        {name: picked(column) for name, column in outcome.gradients.items()},
        {name: picked(column) for name, column in outcome.outputs.items()},
    )
    return tuple(rows), alone


def norms_of(gradients: Mapping[str, Array], count: int) -> Array | None:
    """The 2-norm over all gradients of each trial, in double precision; None where there are none."""
    if not gradients:
        return None
    flat = [np.asarray(column, dtype=np.float64).reshape(count, -1) for column in gradients.values()]
    out = np.zeros(count)
    with np.errstate(over="ignore", invalid="ignore"):
        for part in flat:
            out = np.hypot(out, np.sqrt(np.einsum("ij,ij->i", part, part)))
    return out


def _all_finite(gradients: Mapping[str, Array], count: int) -> Array:
    """Mask of the trials with finite numbers only; a norm of finite numbers may overflow."""
    out = np.ones(count, dtype=bool)
    for column in gradients.values():
        out &= np.isfinite(column).reshape(count, -1).all(axis=1)
    return out


def _record(outcome: BatchOutcome, row: int, trial: str, shared: Record, norms: Array | None) -> Record:
    """The record of one trial, as it would be had it run alone."""
    if row in outcome.errors:
        error = outcome.errors[row]
        return shared | failed_record(error, place_of(error, trial, None))
    return judged(
        shared
        | {
            "loss": float(outcome.losses[row]),
            "gradients": {name: column[row] for name, column in outcome.gradients.items()},
            "gradient_norm": None if norms is None else float(norms[row]),
            "outputs": {name: column[row] for name, column in outcome.outputs.items()},
        }
    )


__all__ = ["Ran", "norms_of", "split"]
