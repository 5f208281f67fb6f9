"""``qdrun check``: the gradients of a config's job beside finite differences of its loss, on a short horizon, in f64 where it can."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, ValidationError, computed_field, field_serializer

from ...compiler.errors import QdrunError
from ...jobs.base import Job
from ...jobs.core import paths
from ...jobs.core.checks import TOLERANCE, GradientCheck, NothingToCheck, NotRestored, run_checks
from ...jobs.core.debug import BOUNDS
from ...jobs.core.inputs import located
from ..fields import Data, about
from ..text_grid import grid
from ..user_lines import described
from .plan import Prepared
from .trials import short

HORIZON = 32
"""Time steps of a check, unless the job has fewer or the command says how many: differences of long runs say little."""


class CheckError(QdrunError):
    """The gradients of a job cannot be checked: there is nothing to check, its horizon cannot be set, or it raises."""


class CheckDied(CheckError):
    """The process of a check ended by a signal."""

    exit_code = 1


def died(prepared: Prepared, signal: str, command: str) -> CheckDied:
    """The error of a check whose process died.

    Args:
        prepared: what was checked.
        signal: by which it died, in words.
        command: that runs it again.
    """
    trial, debug = prepared.trials[0], prepared.loaded.config.debug or BOUNDS
    checked = debug.bounds or debug.asserts or prepared.place.interpreted
    if signal.startswith("SIGKILL"):
        why = "it was killed, perhaps for its memory (`dmesg` says so)"
    elif checked:
        why = "every index of its kernels was checked, so other native code that it calls is the likelier cause; its stack is above"
    else:
        why = "its indices were not checked, as `debug.bounds` is false"
    params = ", ".join(f"{name}={short(value)}" for name, value in trial.params.items())
    return CheckDied(
        f"the process of {prepared.target.text} died by {signal} while it was checked\n"
        f"  at {trial.label} ({params})\n  {why}\n"
        f"  do: `gdb --args {command}` shows where"
    )


@dataclass(frozen=True)
class Checked:
    """Gradients compared with finite differences."""

    name: Annotated[str, about("name of the config")]
    target: Annotated[str, about("the job")]
    trial: Annotated[str, about("the first trial of the config")]
    backend: Annotated[str, about("backend of the check")]
    precision: Annotated[str, about("float type of the fields")]
    tolerance: Annotated[float, about("largest allowed relative error")]
    horizon: Annotated[dict[str, int] | None, about("the parameter that was shortened, and its value")]
    whole: Annotated[int | None, Field(exclude=True)]  # the value of that parameter in the config
    rows: Annotated[tuple[GradientCheck, ...], about("the compared elements")]
    rebuilt: Annotated[str, about("why a job with inputs is built for each trial; empty if it is not")] = ""
    not_compared: Annotated[tuple[str, ...], about("gradients without a parameter of that name")] = ()
    cut: Annotated[tuple[str, ...], about("lists of parameters with an item per time step, shortened to the horizon")] = ()
    unshortened: Annotated[str, about("why the horizon was not shortened; empty if it was, or is short")] = ""
    warnings: Annotated[
        tuple[str, ...],
        about("gradients that are 0 or incomplete whatever the parameters, with the line that cuts the path"),
    ] = ()

    @computed_field(description="whether all gradients agree")
    @property
    def agrees(self) -> bool:
        """Whether every gradient agrees with its differences, and at least one could be compared."""
        return all(row.agrees(self.tolerance) for row in self.rows) and any(row.tells for row in self.rows)

    @field_serializer("rows")
    def _rows_data(self, rows: tuple[GradientCheck, ...]) -> list[Data]:
        """The elements with their verdicts; numbers that are not finite are null."""
        return [
            {name: _finite(value) for name, value in row.model_dump(mode="json").items()}
            | {"agrees": row.agrees(self.tolerance), "tells": row.tells}
            for row in rows
        ]

    def text(self) -> str:
        """The check for people: a table, and a last line that says whether they agree."""
        lines = [f"{self.name}: {self.target} on {self.backend}, at {self.trial}"]
        if self.horizon:
            cut = f", and {', '.join(self.cut)} cut to it" if self.cut else ""
            lines += [f"horizon: {name} = {value} of {self.whole}{cut}" for name, value in self.horizon.items()]
        if self.unshortened:
            lines.append(f"the whole horizon was run, for with fewer steps: {self.unshortened}")
        lines.append(f"tolerance: {self.tolerance:g} relative, in {self.precision}")
        if self.rebuilt:
            lines.append(f"built for each trial, although it has inputs: {self.rebuilt}")
        if self.not_compared:
            lines.append(f"not compared, for no parameter of the job has this name: {', '.join(self.not_compared)}")
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
        lines += [f"warning: {text}" for text in self.warnings]
        wrong = [row for row in self.rows if not row.agrees(self.tolerance)]
        blind = sum(not row.tells for row in self.rows)
        if blind == len(self.rows):
            hint = [] if self.warnings else ["  do: a longer --horizon"]
            return "\n".join([*lines, "nothing to compare: all are below the noise of the differences", *hint])
        if not wrong:
            less = f", {blind} too small to tell" if blind else ""
            return "\n".join([*lines, f"{len(self.rows) - blind} gradients agree{less}"])
        hint = "see docs/gradients.md; a loss with kinks or chaos has differences that say little: try a shorter --horizon"
        hint = "mend what the warning names" if self.warnings else hint
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
    """Compare the gradients of the first trial with differences. Every index is checked, unless the config's ``debug`` says otherwise.

    Args:
        prepared: the result of ``prepare``.
        job: the job's class.
        horizon: time steps to run; None: ``HORIZON``, or fewer if the job has fewer.
        tolerance: the largest relative error that counts as equal; None: what suits the precision.
        most: elements of one gradient that are looked at one by one, see ``check_gradients``.

    Raises:
        QdrunAssertionError: an index is out of bounds, or an assert of a kernel failed.
        CheckError: nothing can be checked, the horizon cannot be set, the job raises, or leaves something of a run behind.
    """
    trial, config = prepared.trials[0], prepared.loaded.config
    whole = int(trial.params[job.horizon]) if job.horizon in job.Params.model_fields else None
    if whole is None and horizon is not None:
        raise CheckError(
            f"{job.__name__} has no parameter `{job.horizon}` to set to --horizon {horizon}\n"
            f'  do: write horizon = "<name>" into the class, or leave --horizon out'
        )
    short = None if whole is None else min(HORIZON, whole) if horizon is None else horizon
    done, failed = None, None
    for attempt in _attempts(job.horizon, trial.params, whole, short, fall_back=horizon is None):
        if attempt.needs_reason and not (failed and failed.by_horizon):
            break
        try:
            done = attempt, *_rows(prepared, job, attempt.values, most)
            break
        except Exception as error:  # also of a user's code
            failed = _FailedCheck(_said(job, attempt, error), error)
            if isinstance(error, (NothingToCheck, NotRestored, MemoryError)):
                break
    if done is None:
        assert failed is not None
        raise failed.said from failed.error
    attempt, rows, precision, rebuilt, told = done
    others = tuple(name for name in prepared.gradients if not paths.has(attempt.values, name))
    allowed = TOLERANCE[precision] if tolerance is None else tolerance
    head = {"name": config.name, "target": prepared.target.text, "trial": trial.label, "backend": prepared.arch}
    set_to = None if attempt.horizon is None else {job.horizon: attempt.horizon}
    numbers = {"precision": precision, "tolerance": allowed, "horizon": set_to, "whole": whole}
    why = str(failed.said).partition("\n")[0] if failed is not None and attempt.horizon == whole else ""
    return Checked(
        **head, **numbers, rows=rows, rebuilt=rebuilt, not_compared=others, cut=attempt.cut, unshortened=why, warnings=told
    )


@dataclass(frozen=True)
class _CheckPoint:
    """Parameters to check with.

    Attributes:
        values: of the trial.
        horizon: their number of time steps; None without such a parameter.
        whole: what it is in the config.
        cut: the lists that were cut to the horizon, by their dotted names.
        needs_reason: only where the attempt before failed because of the horizon.
    """

    values: dict[str, Any]
    horizon: int | None
    whole: int | None
    cut: tuple[str, ...] = ()
    needs_reason: bool = False


@dataclass(frozen=True)
class _FailedCheck:
    said: QdrunError | OSError
    error: Exception

    @property
    def by_horizon(self) -> bool:
        """The model of the parameters has refused the number of time steps."""
        return isinstance(self.error, ValidationError)


def _attempts(
    name: str, values: dict[str, Any], whole: int | None, short: int | None, *, fall_back: bool
) -> Iterator[_CheckPoint]:
    """The parameters to try, in this order: a shorter horizon; the same with lists of that length cut; the whole horizon."""
    if whole is None or short is None:
        yield _CheckPoint(values, None, None)
        return
    shorter = copy.deepcopy(values)
    shorter[name] = short
    yield _CheckPoint(shorter, short, whole)
    if short == whole:
        return
    along = _lists_of_steps(values, whole) if short < whole else {}
    if along:
        cut = copy.deepcopy(shorter)
        for path, longer in along.items():
            paths.put(cut, path, paths.get(values, path)[: short + longer])
        yield _CheckPoint(cut, short, whole, tuple(along))
    if fall_back:
        yield _CheckPoint(values, whole, whole, needs_reason=not along)


def _lists_of_steps(values: Any, steps: int, prefix: str = "") -> dict[str, int]:
    """The lists in parameters that have an item for each time step, by dotted name, with how many items they have more (-1, 0 or 1)."""
    found: dict[str, int] = {}
    for name, value in values.items():
        if isinstance(value, list) and abs(len(value) - steps) <= 1:
            found[f"{prefix}{name}"] = len(value) - steps
        elif isinstance(value, dict):
            found |= _lists_of_steps(value, steps, f"{prefix}{name}.")
    return found


def _rows(
    prepared: Prepared, job: type[Job[Any]], values: dict[str, Any], most: int
) -> tuple[tuple[GradientCheck, ...], str, str, tuple[str, ...]]:
    """Gradients beside differences, the precision, why the job was built again, and warnings."""
    params = located(job.Params.model_validate(values), prepared.inputs)
    made = job(params, wanted=prepared.gradients, seed=prepared.trials[0].seed)
    made.precision = "f64"
    debug = prepared.loaded.config.debug or BOUNDS
    threads = prepared.loaded.config.device.threads
    rows, precision, rebuilt, told = run_checks(
        made, most=most, backend=prepared.arch, device=prepared.place.device, threads=threads, debug=debug
    )
    return tuple(rows), precision, rebuilt, told


def _said(job: type[Job[Any]], attempt: _CheckPoint, error: Exception) -> QdrunError | OSError:
    """An error of an attempt as the user reads it; one that is told as it is stays itself."""
    short = ""
    if attempt.horizon != attempt.whole:
        lists = f", and {', '.join(attempt.cut)} cut with it" if attempt.cut else ""
        short = f"\n  with {job.horizon} = {attempt.horizon} of {attempt.whole}{lists}; `--horizon {attempt.whole}` runs all of them"
    if isinstance(error, ValidationError):
        what = f"{job.__name__} does not take {job.horizon} = {attempt.horizon}: {error.errors()[0]['msg'].lower()}"
        return CheckError(f"{what}\n  do: give another --horizon")
    if isinstance(error, (NothingToCheck, NotRestored)):
        return CheckError(str(error))
    if isinstance(error, OSError) or (isinstance(error, QdrunError) and not short):
        return error
    hint = "" if "\n  do: " in str(error) else "\n  do: correct the job"
    return CheckError(f"{job.__name__} raised {described(error)}{short}{hint}")


__all__ = ["CheckDied", "CheckError", "Checked", "check"]
