"""What ``device.backend: auto`` has become: the backends that could run the sweep, what is predicted of each, and the one chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """A backend that could run the sweep.

    Attributes:
        backend: its name.
        seconds: when the last trial is predicted to end; None: not known.
        trial_seconds: of one trial alone, the mean over all trials.
        at_once: trials that run at the same time, on all devices together, the mean over the shapes.
        why: why it cannot run the sweep, or why nothing is known; empty otherwise.
        out: it cannot.
    """

    backend: str
    seconds: float | None = None
    trial_seconds: float | None = None
    at_once: float | None = None
    why: str = ""
    out: bool = False

    @property
    def text(self) -> str:
        """What is predicted of it, for people."""
        if self.seconds is None or self.trial_seconds is None:
            return f"{self.backend} {'is out' if self.out else 'is not predicted'}: {self.why}"
        return f"{self.backend} {_time(self.seconds)} (a trial {_time(self.trial_seconds)}, {self.at_once:.3g} at once)"


def _time(seconds: float) -> str:
    """Three digits in a unit that suits them."""
    units = (("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("h", 3600.0))
    word, size = max((unit for unit in units if seconds >= unit[1]), key=lambda unit: unit[1], default=units[0])
    number = seconds / size
    return f"{number:.0f} {word}" if number >= 100 else f"{number:.3g} {word}"


@dataclass(frozen=True)
class Choice:
    """What ``auto`` has become, and why.

    Attributes:
        backend: the one that was taken.
        reason: in a few words.
        candidates: all of them, in the order in which they are taken where nothing can be predicted.
    """

    backend: str
    reason: str
    candidates: tuple[Candidate, ...]

    @property
    def head(self) -> str:
        """What was chosen."""
        return f"device auto: {self.backend}, {self.reason}"

    @property
    def text(self) -> str:
        """All of it in one line."""
        return f"{self.head}: " + "; ".join(c.text for c in self.candidates)

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {"backend": self.backend, "reason": self.reason, "candidates": [vars(c) for c in self.candidates]}
