"""The side of the ledger that talks to Ray: nodes, what they have, and a placement group for each device. Blocking calls."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from ..ledger.inventory import LANES, Found, backend_of, local, pretended
from ..ledger.settings import Settings
from . import compat

PREFIX = "qdrun/"
MOST_BUNDLES = 1000
TINY = 0.001  # of a device: what an actor inside a group asks for; the group has the device alone


class Group(NamedTuple):
    """A placement group that there is: its id, whether Ray has it placed, its node, and how much it has of its resource."""

    id: str
    placed: bool
    node: str
    amount: float = 1.0


@dataclass(slots=True)
class Slot:
    """A placement group and its devices. ``group`` (hexadecimal) is empty before it is requested.

    ``amount``: of the resource, cores or one device; ``asked``: when it was requested; ``leaving``: it is given back when nothing runs in
    it any more; ``rests_until``: others take what was given back.
    """

    name: str
    node: str
    resource: str
    group: str = ""
    ready: bool = False
    devices: list[str] = field(default_factory=list)
    unwanted_since: float | None = None
    amount: float = 1.0
    asked: float = 0.0
    leaving: bool = False
    rests_until: float = 0.0

    @property
    def number(self) -> int:
        """Its number among those of its node and resource."""
        return int(self.name.rsplit("/", 1)[1])


def nodes() -> dict[str, dict[str, float]]:
    """The resources of every node that lives, by its id."""
    import ray

    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


STARTS = 10
HEAD = "node:__internal_head__"
"""The resource by which Ray marks the head node."""


def head_node() -> str | None:
    """The id of the head node, while it lives."""
    return next((id for id, resources in nodes().items() if HEAD in resources), None)


def is_misplaced() -> bool:
    """Whether this actor, which prefers the head node, was put elsewhere although that node lives, at one of its first ``STARTS``.

    Ray lets a random node decide where an actor without resources goes. One that has just joined does not know the head yet.
    """
    import ray

    return compat.restarts() < STARTS and head_node() not in (None, ray.get_runtime_context().get_node_id())


def most_cores() -> int:
    """The most cores that a node which lives has."""
    return max((int(resources.get("CPU", 0)) for resources in nodes().values()), default=0)


def ask_for(bundles: Sequence[Mapping[str, float]]) -> None:
    """Tell the autoscaler of the cluster what is needed beside what runs; it takes the place of what it was told before."""
    from ray.autoscaler.sdk import request_resources

    # before Ray 2.60 an amount must be an integer
    request_resources(bundles=[{name: math.ceil(amount) for name, amount in bundle.items()} for bundle in bundles])


def look(node: str, settings: Settings, gpus: int) -> list[Found]:
    """The devices of the machine that this runs on: the body of a short task on each node."""
    found = local(1, settings.lanes, node)
    if settings.pretended_bytes:
        found += pretended(gpus, settings.pretended_bytes, node, settings.lanes or LANES)
    return found


def sees() -> list[str]:
    """The GPUs that Ray has given this process, by their numbers on the node."""
    import ray

    return [str(name) for name in ray.get_runtime_context().get_accelerator_ids()["GPU"]]


def probe(node: str, settings: Settings, gpus: int) -> Any:
    """Ask a node for its devices; the reference of the answer. The process ends with the task: it has seen all devices."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_calls=1, max_retries=1)(look)
    where = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return task.options(name="qdrun-inventory", scheduling_strategy=where).remote(node, settings, gpus)


def ask_inside(group: str) -> Any:
    """Ask a process in a group which GPU it was given; the reference of the answer."""
    import ray

    task = ray.remote(num_cpus=0, max_calls=1, max_retries=1)(sees)
    return task.options(name="qdrun-inventory", **placed(group, "GPU")).remote()


def placed(group: str, resource: str) -> dict[str, Any]:
    """Options of an actor or a task in a group."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    where = PlacementGroupSchedulingStrategy(_handle(group), placement_group_bundle_index=0)
    part: dict[str, Any] = {"GPU": {"num_cpus": 0, "num_gpus": TINY}, "CPU": {"num_cpus": TINY}}.get(
        resource, {"num_cpus": 0, "resources": {resource: TINY}}
    )
    return {**part, "scheduling_strategy": where}


def _handle(group: str) -> Any:
    from ray import PlacementGroupID
    from ray.util.placement_group import PlacementGroup

    return PlacementGroup(PlacementGroupID(bytes.fromhex(group)))


def create(slot: Slot) -> str:
    """Ask Ray for the group of a slot, on its node; the id. It outlives the ledger: a later one finds it by its name."""
    from ray.util.placement_group import placement_group

    made = placement_group(
        [{slot.resource: slot.amount}],
        name=slot.name,
        lifetime="detached",
        bundle_label_selector=[{"ray.io/node-id": slot.node}],
    )
    return made.id.hex()


def node_of(name: str) -> str:
    """The node of a group, by its name."""
    return name.removeprefix(PREFIX).partition("/")[0]


def existing() -> dict[str, Group]:
    """The groups of all ledgers that there were, by name."""
    from ray.util import placement_group_table

    out = {}
    for group, row in placement_group_table().items():
        if row["name"].startswith(PREFIX) and row["state"] != "REMOVED":
            amount = next(iter(row["bundles"][0].values()))
            out[row["name"]] = Group(group, row["state"] == "CREATED", (row["bundles_to_node_id"] or {}).get(0, ""), amount)
    return out


def free_cores() -> dict[str, int]:
    """The whole cores of each node that no task, actor or group has, by the node's id; empty where Ray does not say it."""
    return {node: int(resources.get("CPU", 0)) for node, resources in compat.available().items()}


def remove(group: str) -> None:
    """Give a group back to Ray; what runs in it is killed."""
    from ray.util.placement_group import remove_placement_group

    remove_placement_group(_handle(group))


def cores_wanted(ours: Container[str]) -> list[float]:
    """The cores that others wait for, who want nothing else; a number for each kind of what waits. ``ours``: ids of groups of ours."""
    return [
        want["CPU"]
        for want in compat.waiting(ours)
        if want.get("CPU") and want.keys() <= {"CPU", "memory", "object_store_memory"}
    ]


def bundles_of(demand: Mapping[str, int], rows: Sequence[Found], others: int) -> list[dict[str, float]]:
    """What an autoscaler is to provide in all.

    Args:
        demand: trials or batches that run or wait, by the class of their device.
        rows: the devices that there are: of another class than that of a CPU one is known, or none is asked for.
        others: cores that others have.
    """
    known, found = {row.kind: row for row in rows if row.usable}, [{"CPU": 1.0}] * others
    for kind, count in sorted(demand.items()):
        if backend_of(kind) == "cpu":
            found += [{"CPU": float(kind.rpartition("/")[2])}] * count
        elif kind in known:
            found += [{known[kind].resource: 1.0}] * -(-count // known[kind].lanes)
    return found[:MOST_BUNDLES]


def enough(cores: float, parts: Sequence[Slot], free: Mapping[str, int], totals: Mapping[str, int]) -> list[Slot]:
    """The fewest groups of cores of one node that make so many free there, of a node of which runs have more than half; none: no node does.

    Args:
        cores: that are wanted.
        parts: the groups of cores that are placed.
        free: free cores by node.
        totals: cores by node.
    """
    found = list[list[Slot]]()
    for node in {slot.node for slot in parts}:
        here, missing = sorted((s for s in parts if s.node == node), key=lambda slot: slot.amount), cores - free.get(node, 0)
        sums = list(accumulate(slot.amount for slot in here))
        if 2 * sums[-1] > totals[node] and sums[-1] >= missing > 0:
            found.append(here[: 1 + bisect_left(sums, missing)])
    return min(found, key=lambda slots: sum(slot.amount for slot in slots), default=[])


def slots_of(node: str, resources: Mapping[str, float], found: list[Found]) -> list[Slot]:
    """The groups that a node can have: one for each GPU that Ray counts, for each declared device, and the first one of its cores."""
    out = []
    for resource in dict.fromkeys(row.resource for row in found if row.usable):
        rows = sum(row.usable and row.resource == resource for row in found)
        most = min(1 if resource == "CPU" else rows, int(resources.get(resource, 0)))
        out += [Slot(f"{PREFIX}{node}/{resource}/{k}", node, resource) for k in range(most)]
    return out
