"""What a descent gives: the outcome of the point that is kept, with further outputs below ``opt.``.

``opt.<parameter>``: the values found; ``opt.history``: the loss before the first step and after each; ``opt.steps``; ``opt.kept``: the step
of the point that is shown; ``opt.gradient_norm`` there; ``opt.stopped``: why it was over, as a number of ``STOPPED``; ``opt.builds``: how
often the job was built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...jobs.base import Outcome
from .update_rules import Arrays

STOPPED = ("steps", "gradient_norm", "loss", "patience", "not_finite", "interrupted", "no_descent", "behind")
"""Why a descent was over, by the number in ``out.opt.stopped``. ``interrupted``: by a time-out or a cancel; its row is not ``done``.
``no_descent``: the rule finds no step that lowers the loss, as at a minimum. ``behind``: others had less, see ``rungs``.
"""
REPORTED = ("history", "steps", "kept", "gradient_norm", "stopped", "builds")
"""Outputs below ``opt.`` that are no parameters."""


def result_of(
    outcome: Outcome, point: Arrays, history: np.ndarray, kept: float, norm: float, stopped: float, builds: float
) -> Outcome:
    """The outcome of a descent.

    Args:
        outcome: at the point that is kept.
        point: the parameters there, in their own units.
        history: the loss at each step.
        kept: the step of the point.
        norm: of the gradient there.
        stopped: a number of ``STOPPED``.
        builds: how often the job was built.
    """
    found: dict[str, Any] = {f"opt.{name}": value for name, value in point.items()}
    found |= {"opt.history": history, "opt.steps": float(len(history) - 1), "opt.kept": kept}
    found |= {"opt.gradient_norm": norm, "opt.stopped": stopped, "opt.builds": builds}
    return Outcome(outcome.loss, outcome.gradients, {**outcome.outputs, **found})


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


__all__ = ["REPORTED", "STOPPED", "best_at", "found_by", "result_of", "value_text"]
