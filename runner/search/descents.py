"""Which of many descents go on: those that are predicted to end lowest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FASTEST = 0.95
"""No fall is predicted to shrink more slowly: a sum of such a series is 19 times its first term."""
STILL = 1e-6
"""An optimisation run is over when a round lowers its loss by less than this part of all that it has come down."""


@dataclass(frozen=True)
class Descent:
    """One descent after a round.

    Attributes:
        values: swept parameters, those that are optimised where the descent is now.
        loss: the least so far.
        history: of the last round: the loss at its start and after each step.
        over: it has ended by itself, as at a minimum, or has failed, or makes no progress.
        fallen: how far its loss has come down since its start.
    """

    values: Mapping[str, Any]
    loss: float
    history: Sequence[float] = field(default=())
    over: bool = False
    fallen: float = 0.0

    @property
    def predicted(self) -> float:
        """The loss at its end, if its fall shrinks as it did from the first half of the last round to the second: a geometric series."""
        least = list(self.history)
        for k in range(1, len(least)):
            least[k] = min(least[k - 1], least[k])
        if self.over or len(least) < 3:
            return self.loss
        middle = len(least) // 2
        first, second = least[0] - least[middle], least[middle] - least[-1]
        if not (math.isfinite(first) and first > 0.0 and second > 0.0):
            return self.loss
        ratio = min(second / first, FASTEST)
        return self.loss - second * ratio / (1.0 - ratio)


def progress(before: Descent, history: Sequence[float]) -> tuple[float, bool]:
    """How far a loss has come down since its start, and whether the last round made progress.

    A rule such as adam does not end by itself: without this, a run at a minimum would take part in every further round.

    Args:
        before: the run before the round.
        history: of the round: the loss at its start and after each step.
    """
    least = min((x for x in history if math.isfinite(x)), default=math.inf)
    start = before.loss if math.isfinite(before.loss) else history[0]
    gain = max(0.0, start - least) if math.isfinite(start) else math.inf
    fallen = before.fallen + gain
    return fallen, gain > STILL * fallen


def go_on(descents: Sequence[Descent], keep: float) -> list[Descent]:
    """Those of the next round, the best predicted first: a share of those that are not over, at least one."""
    live = sorted((one for one in descents if not one.over and math.isfinite(one.loss)), key=lambda one: one.predicted)
    return live[: max(1, math.ceil(keep * len(live)))] if live else []


def steps_of(first: int, trials: int, count: int, left: int) -> int:
    """Steps of each descent of a round, so that it costs as much as the first one, within ``left`` evaluations. 0: there are too few.

    Args:
        first: steps of each in the first round.
        trials: descents of the first round.
        count: descents of this one.
        left: evaluations that are left.
    """
    return min(max(first, first * trials // count), left // count - 1)  # the start of a round is an evaluation, too


__all__ = ["Descent", "go_on", "progress", "steps_of"]
