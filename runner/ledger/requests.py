"""The requests of a run in its ledger: those that wait, and the leases that some of them have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..packing import Claim, Request
from ..packing.claims import Key
from .leases import Lease

MOST_SPENT = 256
"""Number of finished shapes for which the ledger remembers durations."""


@dataclass(slots=True)
class RequestGroup:
    """The requests with equal claims that wait, the oldest first, and how long one takes where that is known."""

    key: Key
    claims: Mapping[str, Claim]
    waiting: dict[str, Request] = field(default_factory=dict)
    seconds: float | None = None

    def measured(self, seconds: float) -> None:
        """A request took so long at the fastest point."""
        self.seconds = seconds if self.seconds is None else 0.5 * (self.seconds + seconds)


@dataclass(slots=True)
class Grant:
    """A lease, and when it was granted. The packer knows the first of its requests."""

    lease: Lease
    shape: RequestGroup
    started: float


@dataclass(slots=True)
class Requests:
    """What a run waits for and holds.

    ``shapes``: those of which something waits or runs, and the last ones of which nothing does any more, ``spent``. ``kinds``: classes of
    devices that there have been claims for.
    """

    shapes: dict[Key, RequestGroup] = field(default_factory=dict)
    spent: dict[Key, RequestGroup] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    waiting: dict[str, RequestGroup] = field(default_factory=dict)
    grants: dict[str, Grant] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)

    def add(self, requests: Sequence[Request]) -> None:
        """Note what waits.

        Raises:
            ValueError: one of them waits or is held already; none is noted then.
        """
        names = [request.id for request in requests]
        again = [name for name in names if name in self.waiting or name in self.held]
        if again or len(set(names)) < len(names):
            name = again[0] if again else next(name for k, name in enumerate(names) if name in names[:k])
            raise ValueError(f"request {name} waits or is held already: ask again once it has ended")
        shapes: dict[int, RequestGroup] = {}
        for request in requests:
            shape = shapes.get(id(request.claims))
            if shape is None:
                shape = shapes[id(request.claims)] = self._shape(request)
            shape.waiting[request.id] = request
            self.waiting[request.id] = shape

    def _shape(self, request: Request) -> RequestGroup:
        key = request.key()
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = RequestGroup(key, request.claims)
            self.kinds.update(shape.claims)
        self.spent.pop(key, None)
        return shape

    def take(self, request: str) -> RequestGroup:
        """A request waits no longer."""
        shape = self.waiting.pop(request)
        del shape.waiting[request]
        return shape

    def granted(self, grant: Grant) -> None:
        """A lease covers requests that were taken."""
        self.grants[grant.lease.id] = grant
        self.held.update(grant.lease.requests)

    def ended(self, grant: Grant) -> None:
        """A lease is over."""
        del self.grants[grant.lease.id]
        self.held.difference_update(grant.lease.requests)
        self.over(grant.shape)

    def over(self, shape: RequestGroup) -> None:
        """Note that a request of a shape no longer waits or runs.

        Shapes without any are finished; the oldest finished ones are forgotten.
        """
        if shape.waiting or any(grant.shape is shape for grant in self.grants.values()):
            return
        if self.shapes.get(shape.key) is shape:
            self.spent[shape.key] = shape
        while len(self.spent) > MOST_SPENT:
            del self.shapes[next(iter(self.spent))]
            del self.spent[next(iter(self.spent))]

    def on(self, device: str) -> list[Grant]:
        """The leases on a device."""
        return [grant for grant in self.grants.values() if grant.lease.device == device]
