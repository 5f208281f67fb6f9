"""Gradients of a job beside central differences of its loss.

A difference is taken with a step relative to the parameter. Where it does not agree, it is taken again with other steps: too large a step
sees the curvature of the loss, too small a one the rounding of its digits. A gradient that is wrong agrees with none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from ..planning.plan import field_rows
from . import paths
from .job import Job
from .outcome import Outcome
from .session import Session

TOLERANCE = {"f64": 1e-4, "f32": 5e-2}
"""The largest relative error of a gradient that counts as right, by the precision of the job."""
STEPS = {"f64": (1e-5, 1e-6, 1e-4), "f32": (1e-2, 3e-3, 3e-2)}
"""Relative steps to try, in this order."""
EPSILON = {"f64": float(np.finfo(np.float64).eps), "f32": float(np.finfo(np.float32).eps)}
NOISE = 16.0
"""The loss may be off by so many of its roundings, and by half as many of its second differences between points that are nearly one."""
NEARLY = {"f64": (1e-9, 1e-8, 1e-7), "f32": (3e-5, 1e-4, 3e-4)}
"""Relative distances of points so close that a smooth loss is linear between them: the remaining differences are rounding."""
AGAIN = {"f64": 1e-8, "f32": 1e-4}
"""The largest relative difference between a run and the same one later in the same program: threads may add in another order."""
DIRECTION = "direction"
"""The ``index`` of the row that changes all elements of a gradient at once, in a random direction."""


class GradientCheck(BaseModel):
    """One gradient of a job compared with the central difference of its loss; ``relative_error`` is 0 if they agree.

    ``noise``: the error of the difference by rounding of the loss. ``index`` is empty for a number; for a direction see ``name``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    index: tuple[int, ...]
    given: float
    difference: float
    relative_error: float
    step: float = 0.0
    noise: float = 0.0

    def agrees(self, tolerance: float) -> bool:
        """Whether the two are equal, as far as a difference can tell."""
        off = abs(self.given - self.difference)
        return off <= tolerance * max(abs(self.given), abs(self.difference)) + self.noise

    @property
    def tells(self) -> bool:
        """Whether the larger of the two is above the noise: else they agree because nothing can be seen."""
        return not max(abs(self.given), abs(self.difference)) <= self.noise


class NothingToCheck(ValueError):
    """No gradient of the job has the name of a parameter."""


class NotRestored(ValueError):
    """A job gives another result after runs with other values: they have left something that is not put back."""


def checkable(job: type[Job[Any]], values: dict[str, Any], wanted: Sequence[str] | None = None) -> list[str]:
    """The gradients whose name is a parameter, or a dotted path to one.

    Raises:
        NothingToCheck: there is none.
    """
    names = [name for name in (job.gradients if wanted is None else wanted) if paths.has(values, name)]
    if not names:
        raise NothingToCheck(
            f"no gradient of {job.__name__} is a parameter\n  do: name a gradient as the parameter it belongs to"
        )
    return names


def precision_of(job: Job[Any]) -> str:
    """``f32`` where an open job has a field of that type, else ``f64``."""
    rows = field_rows(job) if job.program is not None else []
    return "f32" if any(row["dtype"].partition("[")[0] in ("f32", "f16") for row in rows) else "f64"


def check_gradients(
    job: type[Job[Any]], params: BaseModel, *, step: float | None = None, seed: int = 0, most: int | None = None, **options: Any
) -> list[GradientCheck]:
    """Compare every gradient that is named as a parameter (a float or a list of floats) with central differences of the loss.

    Each difference runs the job twice, so keep the run short.

    Args:
        job: the job's class.
        params: the point at which the gradients are computed.
        step: step size relative to the parameter, absolute at zero; None: one that fits the job's precision, and others if it disagrees.
        seed: the seed of the job.
        most: elements of one gradient that are looked at one by one, spread evenly; where there are more, one row more changes all of
            them in a random direction. None: every element.
        options: of ``Job.opened``: backend, device, threads.

    Raises:
        NothingToCheck: no gradient of the job has the name of a parameter.
        NotRestored: the job gives another result at the end than at the beginning.
    """
    return run_checks(job(params, seed=seed), step=step, most=most, **options)[0]


def run_checks(
    made: Job[Any], *, step: float | None = None, most: int | None = None, **options: Any
) -> tuple[list[GradientCheck], str, str, tuple[str, ...]]:
    """As ``check_gradients``, of a job that is not open, for the gradients that it wants.

    Returns:
        The rows, the job's precision, why it is built for each run although it has inputs (``Session.rebuilt``), and a line for each
        gradient that is 0 or incomplete whatever the parameters.
    """
    start, wanted = made.params, made.wanted
    values = paths.plain_params(start)
    names = checkable(type(made), values, made.wanted)
    with Session(made, **options) as session:
        precision = precision_of(made)
        outcome = session.run()
        told = tuple(str(path) for path in made.gradient_paths() if path.mistake)
        if made.program is not None and not made.declares():
            told += tuple(made.program.state.told)
        made.wanted = ()
        probe = _Probe(session, values, outcome.loss, precision, (step,) if step else STEPS[precision])
        rows = [row for name in names for row in probe.rows(name, np.asarray(outcome.gradients[name], np.float64), most)]
        made.wanted = wanted
        _same_again(made, outcome, session.run(start), AGAIN[precision])
    return rows, precision, session.rebuilt, told


def _same_again(job: Job[Any], first: Outcome, again: Outcome, tolerance: float) -> None:
    """Raise ``NotRestored`` where a result has changed between two runs with the same values, others in between."""
    for name, before in {"loss": first.loss, **first.gradients}.items():
        now = np.asarray(again.loss if name == "loss" else again.gradients[name], np.float64)
        was = np.asarray(before, np.float64)
        off = np.abs(now - was)
        if not np.all((off <= tolerance * np.max(np.abs(was), initial=0.0)) | (now == was) | (np.isnan(now) & np.isnan(was))):
            k = int(np.argmax(off))
            what = "the loss" if name == "loss" else f"the gradient of `{name}`"
            raise NotRestored(
                f"{type(job).__name__}.run() gives {what} as {now.flat[k]:.9g} after runs with other values, and gave {was.flat[k]:.9g}\n"
                "  do: keep what a run changes in fields and attributes of the job, which are put back;"
                " globals and attributes of classes are not"
            )


class _Probe:
    """Takes differences of one job around one point."""

    def __init__(self, session: Session, values: dict[str, Any], loss: float, precision: str, steps: Sequence[float]) -> None:
        self.session, self.values, self.loss, self.precision, self.steps = session, values, loss, precision, steps
        self.noise = 0.0  # of the loss, along the checked gradient

    def rows(self, name: str, given: np.ndarray, most: int | None) -> Iterable[GradientCheck]:
        """Rows of one gradient: its elements, and a direction where not all of them are shown."""
        point = np.array(paths.get(self.values, name), dtype=np.float64)
        count = point.size
        self.noise = self._rounding(name, point)
        every = most is None or count <= most
        chosen = range(count) if every else np.unique(np.linspace(0, count - 1, most or 1).astype(int))
        for flat in chosen:
            index = tuple(int(i) for i in np.unravel_index(int(flat), point.shape))
            along = np.zeros(point.shape)
            along[index] = abs(point[index]) or 1.0
            yield self._row(name, index, point, along, float(given[index]) * float(along[index]), float(along[index]))
        if not every:
            along = np.random.default_rng(0).choice([-1.0, 1.0], point.shape) * np.where(point == 0.0, 1.0, np.abs(point))
            yield self._row(f"{name} ({DIRECTION})", (), point, along, float(np.sum(given * along)), 1.0)

    def _rounding(self, name: str, point: np.ndarray) -> float:
        """The estimated error of the loss: a sum of large parts has an error beyond its own last digits."""
        along = np.random.default_rng(1).choice([-1.0, 1.0], point.shape) * np.where(point == 0.0, 1.0, np.abs(point))
        bent = 0.0
        for near in NEARLY[self.precision]:
            try:
                ends = [self._loss(name, point + side * near * along) for side in (-1.0, 1.0)]
            except ValidationError:  # at an edge of what the model allows
                continue
            bent = max(bent, abs(ends[0] - 2.0 * self.loss + ends[1]))
        return NOISE * (EPSILON[self.precision] * abs(self.loss) + bent / 2.0)

    def _row(
        self, name: str, index: tuple[int, ...], point: np.ndarray, along: np.ndarray, slope: float, unit: float
    ) -> GradientCheck:
        """The derivative along ``along`` beside the differences, both divided by ``unit``; the step that agrees best."""
        found: GradientCheck | None = None
        for step in self.steps:
            difference, noise = self._difference(name.partition(" ")[0], point, along, step)
            scale = max(abs(slope), abs(difference), 1e-300)
            error = abs(slope - difference) / scale
            numbers = {"given": slope / unit, "difference": difference / unit, "noise": noise / unit}
            row = GradientCheck(name=name, index=index, relative_error=error, step=step, **numbers)
            found = row if found is None or row.relative_error < found.relative_error else found
            if row.agrees(TOLERANCE[self.precision] / 10):
                break
        assert found is not None
        return found

    def _difference(self, name: str, point: np.ndarray, along: np.ndarray, step: float) -> tuple[float, float]:
        """The derivative of the loss along a direction, and its noise: central, one-sided where the model refuses one of the sides."""
        noise = self.noise / step
        refused: ValidationError | None = None
        for low, high in ((-1.0, 1.0), (0.0, 2.0), (-2.0, 0.0)):
            try:
                ends = [self._loss(name, point + side * step * along) for side in (low, high)]
                if low + high == 0.0:
                    return (ends[1] - ends[0]) / (2.0 * step), noise
                middle = self._loss(name, point + (low + high) / 2.0 * step * along)
            except ValidationError as error:
                refused = refused or error
                continue
            sign = 1.0 if low == 0.0 else -1.0
            here, there = (ends[0], ends[1]) if low == 0.0 else (ends[1], ends[0])
            return sign * (4.0 * middle - 3.0 * here - there) / (2.0 * step), 4.0 * noise
        assert refused is not None
        raise refused

    def _loss(self, name: str, point: np.ndarray) -> float:
        values = paths.plain_params(self.session.job.Params.model_validate(self.values))
        paths.put(values, name, point.tolist(), self.session.job.Params)
        return self.session.run(self.session.job.Params.model_validate(values)).loss


__all__ = ["GradientCheck", "NotRestored", "NothingToCheck", "check_gradients", "checkable", "precision_of", "run_checks"]
