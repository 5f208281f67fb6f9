"""Whether the gradients of a sweep can be trusted: their sizes, their growth with time, and whether the losses agree with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
    """The gradient of one trial. ``norm``: Euclidean, over all parameters. ``growth``: ``norm ** (1 / steps)``, None without steps."""

    trial: str
    norm: float
    growth: float | None
    fault: str


@dataclass(frozen=True)
class Contradiction:
    """Two neighbours on a line of the sweep between which the losses change otherwise than their gradients say.

    Attributes:
        parameter: along which the line runs.
        trials: of the two points, one each.
        slope: of the losses between the two points.
        low, high: least and largest derivative at these points and the next ones on both sides.
    """

    parameter: str
    trials: tuple[str, str]
    slope: float
    low: float
    high: float


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
