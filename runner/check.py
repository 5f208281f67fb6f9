"""``qdrun check``: the gradients of a config's job beside finite differences of its loss, on a short horizon, in f64 where it can."""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ..compiler.errors import QdrunError
from ..jobs import paths
from ..jobs.base import Job
from ..jobs.checks import TOLERANCE, GradientCheck, NothingToCheck, NotRestored, run_checks
from .plan import Prepared
from .show import grid

HORIZON = 32
"""Time steps of a check, unless the job has fewer or the command says how many: differences of long runs say little."""


class CheckError(QdrunError):
    """The gradients of a job cannot be checked: there is nothing to check, its horizon cannot be set, or it raises."""


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes:
        name: of the config.
        target: the job.
        trial: label of the trial whose parameters were taken.
        backend: what the job ran on.
        precision: f64, or f32 where the job has fields of that type.
        tolerance: the largest relative error that counts as equal.
        horizon: the parameter that was set, and its value; None where the job has none.
        whole: the value that it has in the config.
        rows: gradient beside difference.
        rebuilt: why a job with live parameters is built for each trial all the same; empty where it is not.
        others: gradients that no parameter belongs to: the loss cannot be asked for at another value of theirs.
    """

    name: str
    target: str
    trial: str
    backend: str
    precision: str
    tolerance: float
    horizon: tuple[str, int] | None
    whole: int | None
    rows: tuple[GradientCheck, ...]
    rebuilt: str = ""
    others: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether every gradient is equal to its difference, as far as that can tell, and something could be told at all."""
        return all(row.agrees(self.tolerance) for row in self.rows) and any(row.tells for row in self.rows)

    def data(self) -> dict[str, Any]:
        """The check as plain data; numbers that are not finite are null."""
        rows = [
            {name: _finite(value) for name, value in row.model_dump(mode="json").items()}
            | {"agrees": row.agrees(self.tolerance), "tells": row.tells}
            for row in self.rows
        ]
        head = {key: getattr(self, key) for key in ("name", "target", "trial", "backend", "precision", "tolerance", "rebuilt")}
        head["not_compared"] = list(self.others)
        return head | {"horizon": dict([self.horizon]) if self.horizon else None, "agrees": self.agrees, "rows": rows}

    def text(self) -> str:
        """The check for people: a table, and a last line that says whether they agree."""
        lines = [f"{self.name}: {self.target} on {self.backend}, at {self.trial}"]
        if self.horizon:
            lines.append(f"horizon: {self.horizon[0]} = {self.horizon[1]} of {self.whole}")
        lines.append(f"tolerance: {self.tolerance:g} relative, in {self.precision}")
        if self.rebuilt:
            lines.append(f"built for each trial, although it has live parameters: {self.rebuilt}")
        if self.others:
            lines.append(f"not compared, for no parameter of the job has this name: {', '.join(self.others)}")
        cells = [
            [
                row.name + "".join(f"[{i}]" for i in row.index),
                f"{row.given:.9g}",
                f"{row.difference:.9g}",
                f"{row.relative_error:.1e}",
                self._word(row),
            ]
            for row in self.rows
        ]
        lines += ["", grid(["parameter", "gradient", "difference", "relative error", ""], cells, indent="  "), ""]
        wrong = [row for row in self.rows if not row.agrees(self.tolerance)]
        blind = sum(not row.tells for row in self.rows)
        if blind == len(self.rows):
            return "\n".join(
                [*lines, "nothing to compare: all are below the noise of the differences", "  do: a longer --horizon"]
            )
        if not wrong:
            less = f", {blind} too small to tell" if blind else ""
            return "\n".join([*lines, f"{len(self.rows) - blind} gradients agree{less}"])
        hint = "see docs/gradients.md; a loss with kinks or chaos has differences that say little: try a shorter --horizon"
        return "\n".join([*lines, f"{len(wrong)} of {len(self.rows)} gradients differ", f"  do: {hint}"])

    def _word(self, row: GradientCheck) -> str:
        if not row.tells:
            return f"too small to tell (noise {row.noise:.0e})"
        return "equal" if row.agrees(self.tolerance) else "DIFFERS"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check(
    prepared: Prepared, job: type[Job[Any]], *, horizon: int | None = None, tolerance: float | None = None, most: int = 8
) -> Checked:
    """Compare the gradients of the first trial with differences.

    Args:
        prepared: what ``prepare`` gave.
        job: the class, too.
        horizon: time steps to run; None: ``HORIZON``, or fewer if the job has fewer.
        tolerance: the largest relative error that counts as equal; None: what suits the precision.
        most: elements of one gradient that are looked at one by one, see ``check_gradients``.

    Raises:
        CheckError: nothing can be checked, the horizon cannot be set, the job raises, or leaves something of a run behind.
    """
    trial, config = prepared.trials[0], prepared.loaded.config
    values = dict(trial.params)
    whole = values.get(job.horizon)
    set_to = _horizon(job, values, horizon)
    try:
        params = job.Params.model_validate(values)
    except ValidationError as error:
        what = f"{job.__name__} does not take {job.horizon} = {set_to and set_to[1]}: {error.errors()[0]['msg'].lower()}"
        raise CheckError(f"{what}\n  do: give another --horizon") from error
    made = job(params, wanted=prepared.gradients, seed=trial.seed)
    made.precision = "f64"
    place = {"backend": prepared.backend, "device": prepared.place.device, "threads": config.device.threads}
    try:
        rows, precision, rebuilt = run_checks(made, most=most, **place)
    except (NothingToCheck, NotRestored) as error:
        raise CheckError(str(error)) from error
    except (QdrunError, OSError):
        raise
    except Exception as error:  # a user's code
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename}:{frame.lineno}"
        raise CheckError(f"{job.__name__} raised {type(error).__name__} at {where}: {error}\n  do: correct the job") from error
    others = tuple(name for name in prepared.gradients if not paths.has(values, name))
    allowed = TOLERANCE[precision] if tolerance is None else tolerance
    head = {"name": config.name, "target": prepared.target.text, "trial": trial.label, "backend": prepared.backend}
    numbers = {"precision": precision, "tolerance": allowed, "horizon": set_to, "whole": whole}
    return Checked(**head, **numbers, rows=tuple(rows), rebuilt=rebuilt, others=others)


def _horizon(job: type[Job[Any]], values: dict[str, Any], horizon: int | None) -> tuple[str, int] | None:
    """Set the number of time steps in ``values``; the parameter and its value, None where the job has no such parameter."""
    name = job.horizon
    if name not in job.Params.model_fields:
        if horizon is not None:
            raise CheckError(
                f"{job.__name__} has no parameter `{name}` to set to --horizon {horizon}\n"
                f'  do: write horizon = "<name>" into the class, or leave --horizon out'
            )
        return None
    wanted = min(HORIZON, int(values[name])) if horizon is None else horizon
    paths.put(values, name, wanted)
    return name, wanted


__all__ = ["CheckError", "Checked", "check"]
