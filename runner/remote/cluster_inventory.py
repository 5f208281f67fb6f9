"""Lists the devices of a cluster before a run is submitted to it, to decide ``device.backend: auto``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..config.model import Loaded
from ..ledger.inventory import Found
from ..ray_adapter.cluster import ClusterError, close_cluster, open_cluster

DASHBOARD = ("http://", "https://")


def devices_at(address: str | None) -> Callable[[Loaded], Sequence[Found]] | None:
    """A function that lists the devices of the cluster at an address; None if the trials run on this machine."""
    return None if address is None else lambda loaded: _ask(address, loaded)


def _ask(address: str, loaded: Loaded) -> list[Found]:
    """Join the cluster, ask its nodes, and leave again; a Ray that this program has open stays open.

    Raises:
        ClusterError: it cannot be joined, or not be asked from outside.
    """
    if address.startswith(DASHBOARD):
        raise ClusterError(
            f"device.backend is auto, and what devices the cluster at {address} has cannot be seen through its dashboard\n"
            "  do: name the backend in the config, or with --set device.backend=..\n"
            "  or: give the host:port that `ray start --head` printed as --address"
        )
    from ..ray_adapter.node_inventory import NodeInventory, Settings

    device = loaded.config.device
    open_cluster(address, job={"job_name": "qdrun devices"})
    try:
        nodes = NodeInventory(Settings(device.slots, device.threads))
        nodes.first()
        return [row for rows in nodes.rows.values() for row in rows]
    finally:
        close_cluster()


__all__ = ["devices_at"]
