"""The decision of ``device.backend: auto``: the candidate backends, and the chosen one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """A backend that could run the sweep.

    Attributes:
        backend: its name.
        why: why it cannot run the sweep, or which fact is unknown; empty otherwise.
        out: it cannot run the sweep.
    """

    backend: str
    why: str = ""
    out: bool = False

    @property
    def text(self) -> str:
        """The facts about it, as text."""
        if not self.why:
            return f"{self.backend} holds every trial"
        return f"{self.backend} {'is out' if self.out else 'is not known'}: {self.why}"


@dataclass(frozen=True)
class Choice:
    """The decision of ``auto``, with its reason.

    Attributes:
        backend: the chosen backend.
        reason: a short text.
        candidates: all candidates, in the order of preference without any facts.
    """

    backend: str
    reason: str
    candidates: tuple[Candidate, ...]

    @property
    def head(self) -> str:
        """The chosen candidate."""
        return f"device auto: {self.backend}, {self.reason}"

    @property
    def text(self) -> str:
        """All of it in one line."""
        return f"{self.head}: " + "; ".join(c.text for c in self.candidates)

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {"backend": self.backend, "reason": self.reason, "candidates": [vars(c) for c in self.candidates]}
