"""Placement groups of one bundle by which runs hold parts of a Ray cluster. Each call asks Ray, and may wait for its head.

A group belongs to the job of its run: Ray removes it when that process ends, however it ends. Its name says whose it is, so that runs see
what other runs hold, and a run that goes on takes away what a stopped owner of it still holds.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Container, Iterable
from typing import Any

from ..ledger.cluster_shares import Group
from . import compat

PREFIX = "qdrun/"
TINY = 0.001  # of a resource: what an actor inside a group asks for; the group has the rest for it
MEMORY = frozenset(("memory", "object_store_memory"))
NODE = "ray.io/node-id"
"""The label by which Ray knows a node."""


def create(run: str, owner: int, resource: str, amount: float, *, node: str = "", without: Collection[str] = ()) -> str:
    """Ask Ray for a group; its id. On ``node``, or on any node that is not in ``without``."""
    from ray.util.placement_group import placement_group

    where = node if node else f"!in({','.join(sorted(without))})" if without else ""
    labels = {"bundle_label_selector": [{NODE: where}]} if where else {}
    name = f"{PREFIX}{run}/{owner}/{secrets.token_hex(4)}"  # Ray refuses a name that it has
    return placement_group([{resource: amount}], name=name, **labels).id.hex()


def existing() -> list[Group]:
    """The groups of all runs on the cluster."""
    from ray.util import placement_group_table

    found = []
    for id, row in placement_group_table().items():
        if row["name"].startswith(PREFIX) and row["state"] != "REMOVED":
            run, owner, _ = row["name"].removeprefix(PREFIX).rsplit("/", 2)
            ((resource, amount),) = row["bundles"][0].items()
            node = (row["bundles_to_node_id"] or {}).get(0, "") if row["state"] == "CREATED" else ""
            found.append(Group(id, run, int(owner), resource, amount, node))
    return found


def remove(group: str) -> None:
    """Give a group back to Ray; what runs in it is killed."""
    from ray.util.placement_group import remove_placement_group

    remove_placement_group(_handle(group))


def remove_earlier(run: str, owner: int) -> None:
    """Give back what earlier owners of a run hold: one may be stopped (Ctrl-Z) for ever, and may not write the run any more."""
    for group in existing():
        if group.run == run and group.owner < owner:
            remove(group.id)


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


def _sees() -> list[str]:
    """The GPUs that Ray has given this process, by their numbers on the node."""
    import ray

    return [str(name) for name in ray.get_runtime_context().get_accelerator_ids()["GPU"]]


def ask_inside(group: str) -> Any:
    """Ask a process in a group which GPU it was given; the reference of the answer."""
    import ray

    task = ray.remote(num_cpus=0, max_calls=1, max_retries=1)(_sees)
    return task.options(name="qdrun-inventory", **placed(group, "GPU")).remote()


def strangers_want(resource: str, groups: Iterable[Group]) -> float:
    """The least of a resource that anything but a run of qdrun waits for in Ray's queue, and 0 if nothing does. ``groups``: of all runs.

    Requests for other resources, too, are left out: a run could not satisfy them.
    """
    ours: Container[str] = {group.id for group in groups}
    wanted = [want for want in compat.waiting(ours) if want.get(resource) and want.keys() <= {resource, "CPU", *MEMORY}]
    return min((want[resource] for want in wanted), default=0.0)


class _Holder:
    """Has the name of a device while it lives."""


def claim(group: str, resource: str, device: str) -> Any:
    """Take a device by its name while the group lives: Ray does not tell those of a custom resource apart. None: another run has it."""
    import ray

    options = {"name": f"qdrun-device-{device}", "namespace": "qdrun", **placed(group, resource)}
    try:
        return ray.remote(_Holder).options(**options).remote()
    except ValueError:
        return None
