"""How much the loss depends on each parameter, and on pairs of them, from the gradients over a sweep. All of it is numpy in f64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..fields import about
from .points import Samples


@dataclass(frozen=True)
class Measure:
    """How much the loss depends on one parameter. Points with a loss of zero have no elasticity."""

    name: Annotated[str, about("name of the parameter")]
    numbers: Annotated[int, about("number of its numbers")]
    elasticity: Annotated[float, about("mean of d ln(loss) / d ln(parameter) over the points")]
    elasticity_spread: Annotated[float, about("standard deviation of it over the points")]
    elasticity_error: Annotated[float | None, about("standard error of the mean from repeats; null without repeats")]
    effect: Annotated[
        float,
        about("mean magnitude of the change of the loss over the width of the parameter, or for a change of it by 100 %"),
    ]
    effect_error: Annotated[float | None, about("standard error of it from repeats; null without repeats")]
    width: Annotated[
        float | None,
        about("from its least to its largest value in the sweep; null where it has one value or several numbers"),
    ]
    total_bound: Annotated[
        float | None,
        about("upper bound of its total Sobol index, for independent uniform parameters; null without a width"),
    ]


@dataclass(frozen=True)
class Interaction:
    """How much two parameters interact. The strength is a root mean square; 0: their effects add up."""

    one: Annotated[str, about("name of a parameter")]
    other: Annotated[str, about("name of another one")]
    strength: Annotated[float, about("mixed second derivative times both widths, as a share of the range of the losses")]
    pairs: Annotated[int, about("pairs of points that it was computed from; 0: from a fit of all points")]


def measures(s: Samples) -> list[Measure]:
    """All parameters with a gradient, the largest effect first."""
    return sorted((_measure(s, name) for name in s.names), key=lambda m: -m.effect if math.isfinite(m.effect) else math.inf)


def _measure(s: Samples, name: str) -> Measure:
    """One parameter.

    The effect is the mean of the derivative's magnitude (Kucherenko, Rodriguez-Fernandez, Pantelides, Shah, "Monte Carlo evaluation of
    derivative-based global sensitivity measures", 2009) times the width. The bound of the total index is ``width**2 / pi**2 *
    mean(derivative**2) / variance(loss)``, for independent uniform inputs (Sobol, Kucherenko, "Derivative based global sensitivity
    measures and their link with global sensitivity indices", 2009).
    """
    value, slope = s.values[name], s.gradients[name]
    width = float(np.ptp(s.swept[name])) if name in s.swept else None
    along = (value * slope).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(s.losses == 0.0, np.nan, along / s.losses)
    elastic, elastic_error = _mean(s, ratio)
    points = s.mean(ratio)
    size = np.abs(slope[:, 0]) * width if width is not None else np.sqrt(((value * slope) ** 2).sum(axis=1))
    effect, effect_error = _mean(s, size)
    variance = float(np.var(s.mean(s.losses)))
    bound = None
    if width is not None and variance > 0.0:
        bound = width**2 / math.pi**2 * float(np.mean(s.mean(slope[:, 0]) ** 2)) / variance
    spread = float(np.std(points[np.isfinite(points)])) if np.isfinite(points).any() else math.nan
    return Measure(name, value.shape[1], elastic, spread, elastic_error, effect, effect_error, width, bound)


def _mean(s: Samples, numbers: np.ndarray) -> tuple[float, float | None]:
    """The mean over points, and its standard error from repeats: points are fixed, repeats are drawn."""
    means, errors = s.mean(numbers), s.error(numbers)
    known = np.isfinite(means)
    if not known.any():
        return math.nan, None
    measured = errors[known & np.isfinite(errors)]
    error = float(np.sqrt(np.mean(measured**2) / known.sum())) if measured.size else None
    return float(means[known].mean()), error


def lines(s: Samples, along: str) -> Iterator[np.ndarray]:
    """The numbers of points that differ in one swept parameter alone, by its value: at least two each."""
    first = np.array([np.flatnonzero(s.point == p)[0] for p in range(s.points)])
    rest = [s.swept[name][first] for name in s.swept if name != along]
    keys = np.stack([*rest, s.others[first].astype(float)], axis=1)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.ravel()
    order = np.lexsort((s.swept[along][first], group))
    for part in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        if len(part) > 1:
            yield part


def interactions(s: Samples) -> list[Interaction]:
    """All pairs of swept parameters of which one has a gradient, the strongest first.

    The mixed second derivative is the change of one parameter's derivative along the other parameter; its mean square is a crossed
    derivative-based measure (Roustant, Fruth, Iooss, Kuhnt, "Crossed-derivative based sensitivity measures for interaction screening",
    2014). Where no two points lie on a line, it is the slope of the straight line that fits the derivatives best.
    """
    spread, out = float(np.ptp(s.mean(s.losses))), []
    if spread == 0.0:
        return out
    for one, other in itertools.combinations(s.swept, 2):
        found = [_mixed(s, a, b) for a, b in ((one, other), (other, one)) if a in s.gradients]
        squares = np.concatenate([mixed for mixed, _ in found]) ** 2 if found else np.zeros(0)
        if squares.size and np.isfinite(squares).all():
            scale = float(np.ptp(s.swept[one]) * np.ptp(s.swept[other])) / spread
            out.append(Interaction(one, other, math.sqrt(float(squares.mean())) * scale, sum(pairs for _, pairs in found)))
    return sorted(out, key=lambda x: -x.strength)


def _mixed(s: Samples, one: str, other: str) -> tuple[np.ndarray, int]:
    """Values of d2 loss / d one d other, and from how many pairs of points; 0: of a fit."""
    slope, at = s.mean(s.gradients[one][:, 0]), s.mean(s.swept[other])
    parts = [np.diff(slope[line]) / np.diff(at[line]) for line in lines(s, other)]
    if parts:
        found = np.concatenate(parts)
        return found, found.size
    columns = [np.ones(s.points), *(s.mean(x) for x in s.swept.values())]
    if s.points <= len(columns):
        return np.zeros(0), 0
    scales = [1.0, *(float(np.ptp(x)) for x in columns[1:])]
    fit, *_ = np.linalg.lstsq(np.stack([c / w for c, w in zip(columns, scales, strict=True)], axis=1), slope, rcond=None)
    k = 1 + list(s.swept).index(other)
    return np.array([fit[k] / scales[k]]), 0


__all__ = ["Interaction", "Measure", "interactions", "lines", "measures"]
