"""What a run asks of a cluster, and what it gives to others who wait. Pure: the clock is given, no Ray."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from .inventory import Found

PARTS = 4
"""The cores of a node are asked for in so many groups, so that a run can give some of them back."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a run can use now.

    Attributes:
        lanes: the lanes that could be at work, by resource: requests that wait or run, as far as the run may run them at once.
        kinds: classes of devices that it has claims for; None: it does not know yet.
        waits: whether a request waits.
    """

    lanes: Mapping[str, int] = field(default_factory=dict)
    kinds: frozenset[str] | None = frozenset()
    waits: bool = False

    def suits(self, row: Found, resource: str) -> bool:
        """Whether the run can use a device, as part of this resource."""
        return row.usable and row.resource == resource and (self.kinds is None or row.kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Group:
    """A placement group of a run.

    Attributes:
        id: Ray's, hexadecimal.
        run: the run's folder; ``owner``: which of its owners has asked for it.
        resource: what it has of a node: ``CPU``, ``GPU`` or a custom resource; ``amount``: how much.
        node: where it is; empty while it waits.
    """

    id: str
    run: str
    owner: int
    resource: str
    amount: float
    node: str


@dataclass(slots=True)
class HeldGroup:
    """A placement group of this run, and the device that it is.

    Attributes:
        id: Ray's.
        resource, amount: what it has.
        lanes: trials at once that it was asked for.
        asked: when; ``pinned``: for which node, empty: for any ``without`` some.
        node: where it is, empty while it waits.
        device: once it is known which one it is; ``useless``: the run cannot use that one, and has it lest Ray gives it again.
        inside: the answer of the process in it that says which GPU it sees; ``holder``: the actor that has the device's name.
        idle_since: since when nothing runs there.
        leaving: why it is given back when nothing runs there any more; empty: it is not.
    """

    id: str
    resource: str
    amount: float
    lanes: int
    asked: float
    pinned: str = ""
    without: frozenset[str] = frozenset()
    node: str = ""
    device: Found | None = None
    inside: Any = None
    holder: Any = None
    useless: bool = False
    idle_since: float | None = None
    leaving: str = ""


class WantedGroup(NamedTuple):
    """A group to ask for: so many ``lanes`` and their ``amount``, on ``node``, or on any."""

    lanes: int
    amount: float
    node: str = ""


def asks(
    missing: int, rows: Iterable[Found], held: Mapping[str, int], free: Mapping[str, int], part: WantedGroup, most: int
) -> list[WantedGroup]:
    """Groups for ``missing`` lanes: what is free now, evenly over the nodes, and for the rest groups that wait for any node.

    Args:
        missing: lanes.
        rows: the devices that the run can use, of one resource.
        held: lanes that it has, or has asked for, by node.
        free: of the resource, by node.
        part: the group that waits for any node.
        most: groups.
    """
    threads, sizes, spare = dict[str, int](), dict[str, int](), dict[str, int]()
    for row in rows:
        if row.backend == "cpu":
            threads[row.node], sizes[row.node] = row.threads, -(-row.lanes // PARTS)
            spare[row.node] = min(free.get(row.node, 0) // row.threads, row.lanes - held.get(row.node, 0))
        else:
            sizes[row.node], spare[row.node] = row.lanes, free.get(row.node, 0) * row.lanes
    spare = {node: lanes for node, lanes in spare.items() if lanes > 0}
    got, found, even = Counter(held), list[WantedGroup](), max(1, missing // max(1, len(spare)))
    while missing > 0 and spare and len(found) < most:
        node = min(spare, key=lambda name: (got[name], name))
        lanes = min(sizes[node], spare[node], even, missing) if node in threads else sizes[node]
        found.append(WantedGroup(lanes, float(lanes * threads[node]) if node in threads else 1.0, node))
        got[node] += lanes
        missing -= lanes
        spare[node] -= lanes
        if spare[node] <= 0:
            del spare[node]
    return found + [part] * max(0, min(most - len(found), -(-missing // part.lanes)))


def to_give(
    mine: Sequence[HeldGroup],
    others: Iterable[Group],
    strangers: float,
    free: Mapping[str, int],
    totals: Mapping[str, float],
) -> list[HeldGroup]:
    """The groups of one resource that a run gives to others who wait for it, the fewest; none: it keeps what it has.

    Other runs of qdrun get as much as this run has. To anybody else a run gives what it has beyond half of a node's cores, or beyond one
    device.

    Args:
        mine: the groups that the run holds.
        others: those of other runs, which hold them or wait for them.
        strangers: the least that programs other than qdrun wait for, and 0 if none does.
        free: of the resource, by node.
        totals: the same that a node has in all.
    """
    have, held, wanted = sum(group.amount for group in mine), Counter[str](), dict[str, float]()
    for group in others:
        held[group.run] += int(group.amount) if group.node else 0
        if not group.node:
            wanted[group.run] = min(group.amount, wanted.get(group.run, group.amount))
    poorest = min(wanted, key=lambda run: (held[run], run), default="")
    if poorest and (given := _fewest(wanted[poorest], mine, free, lambda _, gone: have - gone >= held[poorest] + gone)):
        return given
    cores = any(group.resource == "CPU" for group in mine)
    here = Counter[str]()
    for group in mine:
        here[group.node] += int(group.amount)
    much = lambda node, _: 2 * here[node] > totals.get(node, 0) if cores else have > 1  # noqa: E731
    return _fewest(strangers, mine, free, much) if strangers and len(mine) > 1 else []


def _fewest(
    amount: float, mine: Sequence[HeldGroup], free: Mapping[str, int], may: Callable[[str, float], bool]
) -> list[HeldGroup]:
    """The fewest groups of one node that make so much free there; ``may``: of a node, if it gives so much."""
    found = list[list[HeldGroup]]()
    for node in {group.node for group in mine}:
        here, missing = sorted((g for g in mine if g.node == node), key=lambda group: group.amount), amount - free.get(node, 0)
        sums = list(accumulate(group.amount for group in here))
        if sums[-1] >= missing > 0:
            count = 1 + bisect_left(sums, missing)
            if may(node, sums[count - 1]):
                found.append(here[:count])
    return min(found, key=lambda groups: sum(group.amount for group in groups), default=[])


def full_nodes(groups: Iterable[HeldGroup], rows: Collection[Found]) -> set[str]:
    """Nodes whose cores are all given to lanes already, as far as their memory has room for processes."""
    lanes = Counter[str]()
    for group in groups:
        lanes[group.node or group.pinned] += group.lanes
    return {row.node for row in rows if row.backend == "cpu" and lanes[row.node] >= row.lanes}
