"""Whether the gradients of a sweep can be trusted: their sizes, their growth with time, and whether the losses agree with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..fields import about
from .measures import lines
from .points import Samples

LARGE = 1e6
"""Times the median norm: a gradient that large is reported."""
CHAOTIC = 1.05
"""Growth of the norm for each time step from which a gradient is reported: 1,000 steps multiply it by 10^21."""
NOISE = 3.0
"""Standard errors of repeats that a contradiction must exceed."""


@dataclass(frozen=True)
class TrialHealth:
    """The gradient of one trial."""

    trial: Annotated[str, about("its id")]
    norm: Annotated[float, about("Euclidean norm of its gradient, over all parameters")]
    growth: Annotated[float | None, about("the norm to the power of 1 / time steps; null where the steps are not known")]
    fault: Annotated[str, about("what is wrong with it; empty where nothing is")]


@dataclass(frozen=True)
class Contradiction:
    """Two neighbours on a line of the sweep whose losses differ otherwise than their gradients say."""

    parameter: Annotated[str, about("the parameter in which they differ")]
    trials: Annotated[tuple[str, str], about("their ids")]
    slope: Annotated[float, about("difference of the losses divided by that of the parameter")]
    low: Annotated[float, about("least derivative at these and the next points")]
    high: Annotated[float, about("largest derivative at these and the next points")]


def health_of(s: Samples) -> list[TrialHealth]:
    """Each trial, in the order of the sweep."""
    norms = np.sqrt(sum((g**2).sum(axis=1) for g in s.gradients.values()))
    finite = norms[np.isfinite(norms)]
    middle = float(np.median(finite)) if finite.size else 0.0
    out = []
    for k, (trial, norm) in enumerate(zip(s.trials, norms.tolist(), strict=True)):
        growth = float(norm ** (1.0 / s.steps[k])) if s.steps.size and norm > 0.0 and np.isfinite(norm) else None
        fault = ""
        if not np.isfinite(norm):
            fault = "not finite"
        elif norm == 0.0:
            fault = "zero"
        elif middle > 0.0 and norm > LARGE * middle:
            fault = f"{norm / middle:.1e} times the median"
        elif growth is not None and growth > CHAOTIC:
            fault = f"grows {growth:.3f} times with each time step"
        out.append(TrialHealth(trial, norm, growth, fault))
    return out


def contradictions(s: Samples) -> tuple[list[Contradiction], int]:
    """Neighbours whose losses contradict their gradients, the worst first, and how many were looked at.

    Between two points of a line the slope of the losses is a mean of the derivative (mean value theorem). It is compared with the range of
    the derivative at the two points and at their neighbours, widened on both sides by as much again and by ``NOISE`` standard errors of
    repeats. Only lines of three points or more are looked at. A loss with waves between the points contradicts its gradients, too.
    """
    losses, noise = s.mean(s.losses), np.nan_to_num(s.error(s.losses))
    first = {int(p): trial for trial, p in zip(reversed(s.trials), s.point[::-1], strict=True)}
    found, looked = [], 0
    for name in (n for n in s.names if n in s.swept):
        at, slope = s.mean(s.swept[name]), s.mean(s.gradients[name][:, 0])
        unsure = np.nan_to_num(s.error(s.gradients[name][:, 0]))
        for line in lines(s, name):
            if len(line) < 3:
                continue
            for k in range(len(line) - 1):
                pair, near = line[k : k + 2], slope[line[max(0, k - 1) : k + 3]]
                step, change = float(np.diff(at[pair])[0]), float(np.diff(losses[pair])[0])
                looked += 1
                low, high = float(near.min()), float(near.max())
                slack = (high - low) + NOISE * (float(np.hypot(*noise[pair])) / step + float(unsure[pair].max()))
                slack += 1e-9 * max(abs(low), abs(high), abs(change / step))
                beyond = max(low - change / step, change / step - high)
                if beyond > slack:
                    one = Contradiction(name, (first[int(pair[0])], first[int(pair[1])]), change / step, low, high)
                    found.append((beyond / slack, one))
    return [one for _, one in sorted(found, key=lambda x: -x[0])], looked


__all__ = ["Contradiction", "TrialHealth", "contradictions", "health_of"]
