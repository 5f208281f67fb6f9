"""What ``device.backend: auto`` has become: the backends that could run the sweep, and the one chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """A backend that could run the sweep.

    Attributes:
        backend: its name.
        why: why it cannot run the sweep, or what is not known of it; empty otherwise.
        out: it cannot.
    """

    backend: str
    why: str = ""
    out: bool = False

    @property
    def text(self) -> str:
        """What is known of it, for people."""
        if not self.why:
            return f"{self.backend} holds every trial"
        return f"{self.backend} {'is out' if self.out else 'is not known'}: {self.why}"


@dataclass(frozen=True)
class Choice:
    """What ``auto`` has become, and why.

    Attributes:
        backend: the one that was taken.
        reason: in a few words.
        candidates: all of them, in the order in which they are taken where nothing is known.
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
