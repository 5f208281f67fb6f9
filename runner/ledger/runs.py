"""The ledger's state of each run: waiting requests, leases, and news that it has not received yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..packing import Claim, Request
from ..packing.claims import Key
from .leases import Exchange, Lease, LeaseEnd

MOST_SPENT = 256
"""Number of finished shapes of a run for which the ledger remembers durations."""
News = Lease | LeaseEnd | str
"""A news item of a run. A text: the device with the idle worker that should end."""

MARK = " of run "
"""Between the name of a device or of a class and the run: the packer gets a device of its own for each run, see ``Ledger``."""


def shown(run: str) -> str:
    """The name of a run without the mark of its incarnation."""
    return run.split("#", 1)[0]


@dataclass(slots=True)
class RequestGroup:
    """The requests of a run with equal claims that wait, the oldest first, and how long one takes where that is known."""

    key: Key
    claims: Mapping[str, Claim]
    waiting: dict[str, Request] = field(default_factory=dict)
    seconds: float | None = None

    def measured(self, seconds: float) -> None:
        """A request took so long at the fastest point."""
        self.seconds = seconds if self.seconds is None else 0.5 * (self.seconds + seconds)


@dataclass(slots=True)
class Grant:
    """A lease that a run has. ``device``, ``request``: the packer's names; ``made``: the requests, if it was granted here.

    ``took``: seconds of one of its requests at the fastest point, when that was measured at its end.
    """

    lease: Lease
    shape: RequestGroup
    device: str
    request: str
    started: float
    made: tuple[Request, ...] = ()
    took: float | None = None


@dataclass(slots=True)
class Run:
    """A run that has joined. ``resting``: devices that it avoids, and until when.

    ``shapes``: those of which something waits or runs, and the last ones of which nothing does any more, ``spent``. ``kinds``: classes of
    devices that it has had claims for.
    """

    id: str
    user: str
    beat: float
    shapes: dict[Key, RequestGroup] = field(default_factory=dict)
    spent: dict[Key, RequestGroup] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    waiting: dict[str, RequestGroup] = field(default_factory=dict)
    grants: dict[str, Grant] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    closing: set[str] = field(default_factory=set)
    news: dict[int, News] = field(default_factory=dict)
    last: int = 0
    ended: dict[str, Grant] = field(default_factory=dict)
    resting: dict[str, float] = field(default_factory=dict)

    def tell(self, news: News) -> None:
        """Keep news until the run says that it has seen them."""
        self.last += 1
        self.news[self.last] = news

    def unseen(self, seen: int) -> list[Grant]:
        """Grants that ended before the run could know of them, by the number of the news that it has seen last: it is told nothing."""
        for number in [n for n in self.news if n <= seen]:
            del self.news[number]
        gone = {item.id for item in self.news.values() if isinstance(item, Lease) and item.id in self.ended}
        out = [grant for lease, grant in self.ended.items() if lease in gone]
        for number, item in list(self.news.items()):
            if (isinstance(item, Lease) and item.id in gone) or (isinstance(item, LeaseEnd) and item.lease in gone):
                del self.news[number]
        self.ended.clear()
        return out

    def again(self, grant: Grant) -> list[Request]:
        """Requeue the requests of a grant. Returns them for the packer."""
        prefix = f"{self.id}/"
        out = {request.id.removeprefix(prefix): request for request in grant.made}
        out = {name: request for name, request in out.items() if name not in self.waiting and name not in self.held}
        shape = self.shapes.setdefault(grant.shape.key, grant.shape)
        self.spent.pop(shape.key, None)
        shape.waiting.update(out)
        self.waiting.update(dict.fromkeys(out, shape))
        return list(out.values())

    def answer(self) -> Exchange:
        """All news that the run has not seen."""
        news = list(self.news.values())
        ended = {end.lease for end in news if isinstance(end, LeaseEnd)}
        return Exchange(
            leases=tuple(item for item in news if isinstance(item, Lease) and item.id not in ended),
            ended=tuple(item for item in news if isinstance(item, LeaseEnd)),
            close=tuple(item for item in news if isinstance(item, str)),
            last=self.last,
        )

    def add(self, requests: Sequence[Request], now: float) -> list[Request]:
        """Note what waits; the same as the packer is to have it."""
        names = [request.id for request in requests]
        again = [name for name in names if name in self.waiting or name in self.held]
        if again or len(set(names)) < len(names):
            name = again[0] if again else next(name for k, name in enumerate(names) if name in names[:k])
            raise ValueError(f"request {name} of run {shown(self.id)} waits or is held already: ask again once it has ended")
        shapes: dict[int, RequestGroup] = {}
        out = []
        for request in requests:
            shape = shapes.get(id(request.claims))
            if shape is None:
                shape = shapes[id(request.claims)] = self.shape(request)
            made = self.marked(request, shape, now)
            shape.waiting[request.id] = made
            self.waiting[request.id] = shape
            out.append(made)
        return out

    def shape(self, request: Request) -> RequestGroup:
        """The shape of a request, with the claims by the classes of devices of this run."""
        key = request.key()
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = RequestGroup(
                key, {kind + MARK + self.id: claim for kind, claim in request.claims.items()}
            )
            self.kinds.update(shape.claims)
        self.spent.pop(key, None)
        return shape

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

    def marked(self, request: Request, shape: RequestGroup, now: float) -> Request:
        """A request as the packer knows it."""
        name = f"{self.id}/{request.id}"
        return Request(name, self.user, self.id, shape.claims, min(request.submitted, now), request.trials)

    def take(self, request: str) -> RequestGroup:
        """A request waits no longer."""
        shape = self.waiting.pop(request)
        del shape.waiting[request]
        return shape
