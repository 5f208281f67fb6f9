"""Samplers of Optuna behind ask and tell, over the axes of a sweep. They are loaded when a search asks for one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ...compiler.errors import QdrunError
from ..config.axes import Axis
from ..config.search_section import SearchSection
from ..config.sweep import HERE, axis_column


class NoSampler(QdrunError, ImportError):
    """Optuna, or what one of its samplers needs, is not installed."""


class WrongAxis(QdrunError, ValueError):
    """An axis of a sweep has a form that Optuna does not draw from."""


class Sampler:
    """A study of Optuna that lives in memory: the same seed and the same results give the same points.

    Args:
        section: method and seed.
        axes: by parameter.
        folder: in which paths of files begin.

    Raises:
        NoSampler: a package is missing.
        WrongAxis: an axis cannot be drawn from.
    """

    def __init__(self, section: SearchSection, axes: Mapping[str, Axis], folder: Path = HERE) -> None:
        try:
            import optuna

            if section.method == "cmaes":
                import_module("cmaes")
        except ImportError as error:
            raise NoSampler(
                f"search.method {section.method} needs the package `{error.name}`\n"
                "  do: pip install 'qdrun[search]', or use method: descents"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        made = {
            "tpe": lambda: optuna.samplers.TPESampler(seed=section.seed, constant_liar=True, multivariate=True),
            "cmaes": lambda: optuna.samplers.CmaEsSampler(seed=section.seed),
            "random": lambda: optuna.samplers.RandomSampler(seed=section.seed),
        }[section.method]
        self._space = {name: _distribution(optuna.distributions, name, axis, folder) for name, axis in axes.items()}
        self._study = optuna.create_study(sampler=made())
        self._asked: list[Any] = []

    def ask(self, count: int) -> list[dict[str, Any]]:
        """So many points, by parameter."""
        self._asked = [self._study.ask(self._space) for _ in range(count)]
        return [dict(trial.params) for trial in self._asked]

    def tell(self, losses: Sequence[float | None]) -> None:
        """The losses at the points of the last ``ask``; None, or no finite number: the trial has failed."""
        import optuna

        for trial, loss in zip(self._asked, losses, strict=True):
            if loss is None or not math.isfinite(loss):
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(trial, loss)


def _distribution(of: Any, name: str, axis: Axis, folder: Path) -> Any:
    form, parts = axis.form
    if axis.shape is not None:
        raise WrongAxis(
            f"sweep.params.{name}: samplers of Optuna draw single values, not arrays\n"
            f"  do: sweep its items, {name}.0, {name}.1 and so on, or use method: descents"
        )
    if form in ("uniform", "loguniform"):
        return of.FloatDistribution(float(parts[0]), float(parts[1]), log=form == "loguniform")
    if form == "randint":
        return of.IntDistribution(int(parts[0]), int(parts[1]) - 1)
    if form == "normal":
        raise WrongAxis(
            f"sweep.params.{name}: samplers of Optuna have no normal distribution\n"
            "  do: write {uniform: [low, high]}, or use method: descents"
        )
    values = list(parts) if form == "choice" else axis_column(name, axis, 0, folder=folder).tolist()
    return of.CategoricalDistribution(values)


__all__ = ["NoSampler", "Sampler", "WrongAxis"]
