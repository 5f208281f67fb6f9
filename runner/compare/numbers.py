"""The numbers of trials that two runs have in common: equal to the bit, equal within a tolerance, or different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from ..fields import about
from ..observe.arrays import Arrays
from ..store.layout import RunFolder
from ..store.replay import Replay, replay
from ..store.trial_state import TrialState

KINDS = {"gradients": "grad", "outputs": "out"}
SHOWN = 5


@dataclass(frozen=True)
class Difference:
    """A number, or an array, of which two runs have different values."""

    column: Annotated[str, about("name of the column")]
    then: Annotated[Any, about("the value in the earlier run; of an array, where the two differ most")]
    now: Annotated[Any, about("the value in the new run")]
    relative: Annotated[
        float, about("the difference relative to the largest magnitude in either; `Infinity`: one is missing or not finite")
    ]

    @property
    def text(self) -> str:
        """As a phrase."""
        return f"{self.column} {_shown(self.then)} became {_shown(self.now)}" + (
            f" (relative {self.relative:.1e})" if np.isfinite(self.relative) else ""
        )


@dataclass
class Comparison:
    """The numbers of trials in two runs: losses, gradients, outputs, and how trials ended."""

    tolerance: Annotated[float, about("largest relative difference of numbers that count as equal")]
    equal: Annotated[list[str], about("trials with numbers that are equal to the bit")] = field(default_factory=list)
    close: Annotated[list[str], about("trials with numbers that are equal within the tolerance")] = field(default_factory=list)
    worst: Annotated[float, about("largest relative difference of these")] = 0.0
    different: Annotated[dict[str, list[Difference]], about("other trials, each with the numbers that differ")] = field(
        default_factory=dict
    )
    not_compared: Annotated[list[str], about("trials that have no row in one of the runs")] = field(default_factory=list)

    @property
    def text(self) -> str:
        """As lines of text."""
        counts = [f"{len(self.equal)} equal to the bit"] if self.equal or not (self.close or self.different) else []
        counts += [f"{len(self.close)} equal within {self.worst:.1e}"] if self.close else []
        counts += [f"{len(self.different)} different"] if self.different else []
        counts += [f"{len(self.not_compared)} not compared, as one run has no row of them"] if self.not_compared else []
        lines = [f"numbers: {', '.join(counts)}"]
        for trial, found in list(self.different.items())[:SHOWN]:
            lines.append(f"  {trial}: " + "; ".join(one.text for one in found[:SHOWN]))
        rest = len(self.different) - SHOWN
        return "\n".join([*lines, f"  .. and {rest} more"] if rest > 0 else lines)


def compared(then: RunFolder, now: RunFolder, trials: Sequence[str], tolerance: float = 0.0) -> Comparison:
    """Compare the losses, gradients, outputs and ends of trials in two runs. Arrays are read one trial at a time.

    Raises:
        ResultMissing: a file of arrays is gone or damaged.
    """
    before, after = replay(then), replay(now)
    arrays = {kind: (Arrays(then, before, kind), Arrays(now, after, kind)) for kind in KINDS}
    found = Comparison(tolerance)
    for trial in trials:
        old, new = _row(before, trial), _row(after, trial)
        if old is None or new is None:
            found.not_compared.append(trial)
            continue
        differ = list(_of_ends(old, new))
        for kind, (olds, news) in arrays.items():
            differ += _of_arrays(KINDS[kind], olds[trial], news[trial])
        beyond = [one for one in differ if not one.relative <= tolerance]
        if beyond:
            found.different[trial] = beyond
        elif differ:
            found.close.append(trial)
            found.worst = max(found.worst, *(one.relative for one in differ))
        else:
            found.equal.append(trial)
    return found


def _row(found: Replay, trial: str) -> Mapping[str, Any] | None:
    state: TrialState | None = found.trials.get(trial)
    return None if state is None or state.entry is None else state.entry.event


def _of_ends(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """The status, the kind of error and the loss."""
    found = []
    errors = [(row.get("error") or {}).get("type") for row in (old, new)]
    for name, then, now in (("status", old["status"], new["status"]), ("error_type", *errors)):
        if then != now:
            found.append(Difference(name, then, now, np.inf))
    losses = [{} if row.get("loss") is None else {"loss": np.asarray(float(row["loss"]))} for row in (old, new)]
    return found + _of_arrays("", *losses)


def _of_arrays(prefix: str, olds: Mapping[str, Any], news: Mapping[str, Any]) -> list[Difference]:
    found = []
    for name in dict.fromkeys((*olds, *news)):
        column = f"{prefix}.{name}" if prefix else name
        if name not in olds or name not in news:
            then, now = ("-" if name not in side else "there" for side in (olds, news))
            found.append(Difference(column, then, now, np.inf))
            continue
        old, new = np.asarray(olds[name]), np.asarray(news[name])
        if old.shape != new.shape or old.dtype != new.dtype:
            then, now = (f"{side.dtype}{list(side.shape)}" for side in (old, new))
            found.append(Difference(column, then, now, np.inf))
        elif old.tobytes() != new.tobytes() and not np.array_equal(old, new, equal_nan=old.dtype.kind in "fc"):
            found.append(_difference(column, old, new))
    return found


def _difference(name: str, old: np.ndarray[Any, Any], new: np.ndarray[Any, Any]) -> Difference:
    """Of arrays of one shape that are not equal."""
    a, b = old.astype(np.float64).ravel(), new.astype(np.float64).ravel()
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        away = np.where(same, 0.0, np.abs(a - b))
    away[np.isnan(away)] = np.inf
    at = int(np.argmax(away))
    size = max((float(np.abs(side[np.isfinite(side)]).max(initial=0.0)) for side in (a, b)), default=0.0)
    return Difference(name, float(a[at]), float(b[at]), float(away[at]) / size if size else np.inf)


def _shown(value: Any) -> str:
    return f"{value:.17g}" if isinstance(value, float) else str(value)


__all__ = ["Comparison", "Difference", "compared"]
