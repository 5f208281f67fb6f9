"""A model of this benchmark: one of our jobs, and the same simulation as functions of JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Columns = dict[str, np.ndarray]
"""A row for each trial, by the name of the parameter."""


@dataclass(frozen=True)
class Model:
    """One simulation, written twice.

    Attributes:
        name: of the model.
        job: gives our job's class, and what its parameters are apart from ``sample``.
        sample: gives the parameters that differ between trials, for a number of trials.
        wanted: the parameters whose gradients are measured.
        variants: JAX's function from the parameters of one trial to its loss, written in several ways.
        tolerance: largest relative difference of losses and gradients between the two, see ``check.difference``.
        default_batches: numbers of trials to measure.
    """

    name: str
    job: Callable[[], tuple[Any, Mapping[str, Any]]]
    sample: Callable[[np.random.Generator, int], Columns]
    wanted: tuple[str, ...]
    variants: Callable[[], Mapping[str, Callable[[Any], Any]]]
    tolerance: float
    default_batches: tuple[int, ...]


def uniform(rng: np.random.Generator, low: Any, high: Any, count: int) -> np.ndarray:
    """``count`` rows between two values, which may be arrays."""
    low = np.asarray(low, dtype=float)
    return rng.uniform(low, high, size=(count, *low.shape))
