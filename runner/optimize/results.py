"""What a descent gives: the outcome of the point that is kept, with further outputs below ``opt.``.

``opt.<parameter>``: the values found; ``opt.history``: the loss before the first step and after each; ``opt.steps``; ``opt.kept``: the step
of the point that is shown; ``opt.gradient_norm`` there; ``opt.stopped``: why it was over, as a number of ``STOPPED``; ``opt.builds``: how
often the job was built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...jobs.base import Outcome
from ...jobs.core.batch import BatchOutcome

STOPPED = ("steps", "gradient_norm", "loss", "patience", "not_finite", "interrupted", "no_descent", "behind")
"""Why a descent was over, by the number in ``out.opt.stopped``. ``interrupted``: by a time-out or a cancel; its row is not ``done``.
``no_descent``: the rule finds no step that lowers the loss, as at a minimum. ``behind``: others had less, see ``rungs``.
"""
REPORTED = ("history", "steps", "kept", "gradient_norm", "stopped", "builds")
"""Outputs below ``opt.`` that are no parameters."""


@dataclass(frozen=True)
class Ends(Sequence[Outcome | BaseException]):
    """How descents have ended, as columns with a row for each; an item is the outcome of one, or its error.

    Attributes:
        losses: (B,), at the points that are kept.
        gradients: there, by name, (B, ...).
        outputs: there, and those below ``opt.`` but for ``history`` and ``steps``, by name, (B, ...).
        history: the loss at each step, (B, S + 1); of a row up to its own steps.
        steps: (B,), that each took.
        errors: of the rows without a result. Their numbers mean nothing.
    """

    losses: np.ndarray
    gradients: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    history: np.ndarray
    steps: np.ndarray
    errors: dict[int, BaseException]

    def __len__(self) -> int:
        return len(self.losses)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[one] for one in range(len(self))[row]]
        return self.errors.get(range(len(self))[row]) or self.outcome(range(len(self))[row])

    def outcome(self, row: int) -> Outcome:
        """The numbers of one row."""
        found = self.columns(np.array([row]))
        gradients, outputs = ({name: value[0] for name, value in of.items()} for of in (found.gradients, found.outputs))
        outputs = {
            name: float(value) if name.startswith("opt.") and not value.ndim else value for name, value in outputs.items()
        }
        return Outcome(float(found.losses[0]), gradients, outputs)

    def columns(self, rows: np.ndarray) -> BatchOutcome:
        """Rows of equal length, as the outcome of a batch."""
        steps = self.steps[rows]
        gradients = {name: value[rows] for name, value in self.gradients.items()}
        outputs = {name: value[rows] for name, value in self.outputs.items()}
        outputs |= {"opt.history": self.history[rows, : steps[0] + 1], "opt.steps": steps.astype(np.float64)}
        return BatchOutcome(self.losses[rows], gradients, outputs)

    def groups(self) -> Iterator[np.ndarray]:
        """The rows with a result, those of equal length together."""
        well = np.ones(len(self), bool)
        well[list(self.errors)] = False
        for steps in np.unique(self.steps[well]):
            yield np.flatnonzero(well & (self.steps == steps))


def in_order(parts: Sequence[tuple[Sequence[int], Ends]]) -> Ends:
    """Ends of several groups of descents as one. ``parts``: the rows of each group, and their ends."""
    order = np.argsort(np.concatenate([rows for rows, _ in parts]))
    longest = max(ends.history.shape[1] for _, ends in parts)

    def column(of: Callable[[Ends], np.ndarray]) -> np.ndarray:
        return np.concatenate([of(ends) for _, ends in parts])[order]

    return Ends(
        column(lambda ends: ends.losses),
        {name: column(lambda ends, name=name: ends.gradients[name]) for name in parts[0][1].gradients},
        {name: column(lambda ends, name=name: ends.outputs[name]) for name in parts[0][1].outputs},
        column(lambda ends: np.pad(ends.history, ((0, 0), (0, longest - ends.history.shape[1])))),
        column(lambda ends: ends.steps),
        {rows[row]: error for rows, ends in parts for row, error in ends.errors.items()},
    )


def found_by(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a descent has found, by name, from the outputs of its row; empty for a trial that was not optimised."""
    if "opt.stopped" not in outputs:
        return {}
    found = {name.removeprefix("opt."): value for name, value in outputs.items() if name.startswith("opt.")}
    return {name: value for name, value in found.items() if name not in REPORTED}


def best_at(label: str, outputs: Mapping[str, Any]) -> str:
    """The parameters of a trial's loss as text: those that its descent has found, or ``label`` if it was not optimised.

    Args:
        label: of the trial: the parameters that it began with.
        outputs: of its row, as the journal or the table has them.
    """
    if "opt.stopped" not in outputs:
        return label
    return ", ".join(f"{name}={value_text(value)}" for name, value in found_by(outputs).items())


def value_text(value: Any) -> str:
    """A value of a parameter in few characters: six digits, the first three items of a list."""
    if isinstance(value, Mapping | tuple):  # an array that is in a file of its own, by its shape
        return f"[{'x'.join(map(str, value['shape'] if isinstance(value, Mapping) else value))}]"
    if isinstance(value, list):
        return "[" + ", ".join(map(value_text, value[:3])) + (", .." if len(value) > 3 else "") + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


__all__ = ["REPORTED", "STOPPED", "Ends", "best_at", "found_by", "in_order", "value_text"]
