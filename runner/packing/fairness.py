"""Shares of users, and the order in which users get places."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, KeysView
from dataclasses import dataclass


@dataclass(slots=True)
class _HeldBytes:
    bytes: int = 0
    lanes: int = 0
    share: float = 0.0


class Shares:
    """The shares of users. A share is the larger one of two fractions: of all bytes, and of all lanes (dominant resource).

    The fair share is 1/n for n users that wait or run.

    Attributes:
        ranked: users that run something with their shares, the smallest first; equal shares by name.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.lanes = 0
        self._held: dict[str, _HeldBytes] = {}
        self.ranked: list[tuple[float, str]] = []

    def resize(self, bytes: int, lanes: int) -> None:
        """The cluster's bytes and lanes have changed."""
        self.bytes, self.lanes = bytes, lanes
        for held in self._held.values():
            held.share = self._share(held.bytes, held.lanes)
        self.ranked = sorted((held.share, user) for user, held in self._held.items())

    def add(self, user: str, bytes: int) -> None:
        """A request of ``bytes`` started."""
        held = self._held.get(user)
        if held is None:
            held = self._held[user] = _HeldBytes()
        else:
            del self.ranked[bisect_left(self.ranked, (held.share, user))]
        held.bytes += bytes
        held.lanes += 1
        held.share = self._share(held.bytes, held.lanes)
        insort(self.ranked, (held.share, user))

    def remove(self, user: str, bytes: int) -> None:
        """A request of ``bytes`` ended."""
        held = self._held[user]
        del self.ranked[bisect_left(self.ranked, (held.share, user))]
        held.bytes -= bytes
        held.lanes -= 1
        if held.lanes:
            held.share = self._share(held.bytes, held.lanes)
            insort(self.ranked, (held.share, user))
        else:
            del self._held[user]

    def held(self, user: str) -> tuple[int, int]:
        """Bytes and lanes of a user."""
        held = self._held.get(user)
        return (held.bytes, held.lanes) if held else (0, 0)

    def share(self, user: str, more: int | None = None) -> float:
        """A user's share, with one more request of ``more`` bytes if given."""
        held = self._held.get(user)
        if more is None:
            return held.share if held else 0.0
        return self._share((held.bytes if held else 0) + more, (held.lanes if held else 0) + 1)

    def _share(self, size: int, lanes: int) -> float:
        by_bytes = size / self.bytes if self.bytes else 0.0
        by_lanes = lanes / self.lanes if self.lanes else 0.0
        return by_bytes if by_bytes > by_lanes else by_lanes

    def holders(self) -> KeysView[str]:
        """Users that run something."""
        return self._held.keys()

    def active(self, waiting: Collection[str]) -> int:
        """The number of users that run something, or wait."""
        return len(self._held.keys() | set(waiting))

    def order(self, waiting: Collection[str]) -> list[tuple[float, str]]:
        """Users that wait with their shares, the smallest first; equal shares by name."""
        idle = [(0.0, user) for user in sorted(set(waiting) - self._held.keys())]
        return idle + [item for item in self.ranked if item[1] in waiting]

    def deserves(self, user: str, more: int, active: int) -> bool:
        """Whether a user with nothing that fits gets a reservation of ``more`` bytes.

        It does when it holds nothing and others do; or when it holds less than half the fair share of 1/``active`` and would not hold
        more than that share with the request.
        """
        if active < 2:
            return False
        if user not in self._held:
            return bool(self._held)
        return self.share(user) < 0.5 / active and self.share(user, more) <= 1.0 / active
