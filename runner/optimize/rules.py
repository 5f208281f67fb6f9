"""From the results at the points of descents to their next points, by whatever rule a config names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..config.optimize_section import OptimizeSection
from . import lbfgs, least_squares
from .evaluate import Evaluate, Evaluated
from .state import Descents, Rows
from .update_rules import SEARCHES, RuleState, clipped_rows, options_of, projected, rate_at, update

Bounds = Mapping[str, tuple[float, float]]
WHOLE = ""
"""The name, in the memory of a rule, of what belongs to all parameters together."""


def advance(
    section: OptimizeSection, now: Descents, found: Evaluated, g: Rows, bounds: Bounds, evaluate: Evaluate
) -> tuple[Rows, RuleState]:
    """The next points of descents and what their rule keeps, from the results at ``now.x``.

    Args:
        section: the options.
        now: the state.
        found: the results.
        g: the gradients, with respect to x / scale.
        bounds: of x / scale.
        evaluate: gives the Jacobian at ``now.x``.
    """
    if section.rule in SEARCHES:
        return _search(section, now, found, g, bounds, evaluate)
    assert section.learning_rate is not None
    g = g if section.clip is None else clipped_rows(g, section.clip)
    rate = rate_at(now.step, section.learning_rate, section.steps)
    moved, state = update(section.rule, section.options, now.rule, now.x, g, rate)
    return projected(moved, bounds), state


def probes(now: Descents) -> np.ndarray:
    """Mask of the points that are tries of a step length, which may be of no use."""
    return _flag(now, "probe")


def done(now: Descents) -> np.ndarray:
    """Mask of the descents whose rule finds no step that lowers the loss."""
    return _flag(now, "done")


def _flag(now: Descents, name: str) -> np.ndarray:
    found = now.rule.memory.get(WHOLE, {}).get(name)
    return np.zeros(len(now.stopped), bool) if found is None else found > 0


def _search(
    section: OptimizeSection, now: Descents, found: Evaluated, g: Rows, bounds: Bounds, evaluate: Evaluate
) -> tuple[Rows, RuleState]:
    names = list(section.params or ())  # saved descents have theirs in another order
    x, options, before = flat(now.x, names), options_of(section.rule) | dict(section.options), now.rule.memory.get(WHOLE)
    ends = [np.broadcast_to(np.array(bounds.get(name, (-np.inf, np.inf))), (now.x[name][0].size, 2)) for name in names]
    low, high = np.concatenate(ends).T
    here = x, found.losses, flat(g, names), low, high
    if section.rule == "lbfgs":
        moved, memory = lbfgs.advance(before or lbfgs.begin(x, int(options["history"])), *here, options["first"])
    else:
        scale = np.concatenate([np.full(now.x[name][0].size, section.scale.get(name, 1.0)) for name in names])
        before = before or least_squares.begin(x, options["damping"])
        moved, memory = least_squares.advance(before, *here, lambda: evaluate.jacobian(names) * scale)
    return shaped(moved, now.x, names), RuleState(now.rule.count + 1, {WHOLE: memory})


def flat(arrays: Rows, names: Sequence[str]) -> np.ndarray:
    """The numbers of all arrays of each row, one after the other."""
    return np.concatenate([arrays[name].reshape(len(arrays[name]), -1) for name in names], axis=1)


def shaped(x: np.ndarray, like: Rows, names: Sequence[str]) -> Rows:
    """The arrays of ``flat`` again, in the shapes of ``like``."""
    out, at = {}, 0
    for name in names:
        size = like[name][0].size
        out[name], at = x[:, at : at + size].reshape(like[name].shape), at + size
    return out


__all__ = ["WHOLE", "advance", "done", "flat", "probes", "shaped"]
