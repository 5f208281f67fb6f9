"""Whether two sides computed the same."""

from __future__ import annotations

import numpy as np

from benchmarks.batched.model import Columns, Model

Found = tuple[np.ndarray, Columns]
"""Losses and gradients of all trials."""


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference of two columns, relative to the largest value of its trial.

    A trial whose values are tiny is compared with a thousandth of the largest value of the column: such a gradient is a sum that cancels,
    and has the rounding errors of its terms.

    Raises:
        ValueError: the columns have different shapes.
    """
    if ours.shape != theirs.shape:
        raise ValueError(f"columns of shapes {ours.shape} and {theirs.shape}")
    a, b = ours.reshape(len(ours), -1), theirs.reshape(len(theirs), -1)
    size = np.maximum(np.abs(b).max(axis=1), 1e-3 * np.abs(b).max())
    return float((np.abs(a - b).max(axis=1) / size).max())


def disagreements(model: Model, ours: Found, theirs: Found) -> list[str]:
    """A line for each column in which the sides differ by more than the model's tolerance, or which is not finite."""
    columns = {"loss": (ours[0], theirs[0])} | {name: (ours[1][name], theirs[1][name]) for name in model.wanted}
    lines: list[str] = []
    for name, (a, b) in columns.items():
        off = difference(np.asarray(a, float), np.asarray(b, float))
        if not off <= model.tolerance:  # NaN, too
            lines.append(f"{model.name}, {len(a)} trials: {name} differs by {off:.2g}, allowed are {model.tolerance:.0e}")
    return lines
