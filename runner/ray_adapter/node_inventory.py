"""The nodes of a Ray cluster and the devices that they have: each node is asked once, by a short task on it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...compiler.errors import QdrunError
from ..exit_codes import NO_CLUSTER
from ..ledger.inventory import LANES, Found, kind_of, local, pretended, with_lanes

FIRST_S, ANSWER_S = 20.0, 60.0
"""Seconds that a starting run waits for all nodes, and for the first of them; of one that is late it hears later."""
LOG = logging.getLogger(__name__)


class NoInventory(QdrunError, RuntimeError):
    """No node of the cluster says what devices it has."""

    exit_code = NO_CLUSTER


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run uses the nodes of a cluster.

    Attributes:
        lanes: trials at once on each device, None: see ``inventory.local``.
        threads: of one trial on a CPU.
        frames: bytes of the stack frames of the run's kernels, which a process holds on a GPU.
        look_s: seconds between two looks at the nodes of the cluster.
        idle_s: seconds after which a device without a trial is returned to Ray.
        pretended_bytes: for tests of the machinery alone: each GPU that Ray was told of, and that is not there, has so many bytes.
    """

    lanes: int | None = None
    threads: int = 1
    frames: int = 0
    look_s: float = 1.0
    idle_s: float = 30.0
    pretended_bytes: int = 0


class NodeInventory:
    """The devices of each node that lives. One thread looks; others may read ``rows``.

    Attributes:
        alive: the resources of each node that lives, by its id.
        rows: its devices, once it has answered, and why backends are absent.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._asked: dict[str, Any] = {}
        self._error = ""
        self.alive: dict[str, dict[str, float]] = {}
        self.rows: dict[str, list[Found]] = {}

    def first(self) -> None:
        """Wait until the nodes have answered; a node that does not delays a run by ``FIRST_S`` at the most.

        Raises:
            NoInventory: no node answers, or all of them fail.
        """
        begun = time.monotonic()
        self.look()
        while self._asked and time.monotonic() - begun < (FIRST_S if self.rows else ANSWER_S):
            self.look(wait_s=0.2)
        if self.alive and not self.rows:
            why = self._error or f"none has answered for {ANSWER_S:.0f} s"
            raise NoInventory(
                f"no node of the cluster says what devices it has: {why}\n"
                "  do: see that the nodes can import this version of qdrun; `ray status` lists the nodes that live"
            )

    def look(self, wait_s: float = 0.0) -> None:
        """Ask new nodes what they have, take the answers that there are, and forget nodes that are gone."""
        import ray

        self.alive = nodes()
        for node in [node for node in self.rows if node not in self.alive]:
            del self.rows[node]
        for node in [node for node in self._asked if node not in self.alive]:
            del self._asked[node]
        for node in self.alive.keys() - self.rows.keys() - self._asked.keys():
            self._asked[node] = probe(node, self._settings, int(self.alive[node].get("GPU", 0)))
        for node, ref in list(self._asked.items()):
            if ray.wait([ref], timeout=wait_s)[0]:
                del self._asked[node]
                try:
                    self.rows[node] = self._as_ray_has_them(node, ray.get(ref))
                except Exception as error:  # of any kind: the node's Python may lack this package
                    self._error = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
                    LOG.warning("node %s does not say what devices it has: %s", node, self._error)

    def _as_ray_has_them(self, node: str, rows: list[Found]) -> list[Found]:
        """The devices of a node with no more cores than Ray hands out there, and with the frames of the run's kernels."""
        cores = int(self.alive[node].get("CPU", 0))
        return [self._host(row, cores) if row.backend == "cpu" else self._card(row) for row in rows]

    def _card(self, row: Found) -> Found:
        return replace(row, process_bytes=row.process_bytes + self._settings.frames) if row.usable else row

    def _host(self, row: Found, cores: int) -> Found:
        """The CPU of a node; a smaller node than the run's threads ask for gives one trial all of its cores."""
        if cores < 1:
            return replace(row, usable=False, why="Ray hands out no cores of this node")
        threads = max(1, min(self._settings.threads, cores))
        name, kind = f"cpu@{row.node[:12]}@t{threads}", kind_of("cpu", row.model, threads)
        row = replace(row, id=name, kind=kind, threads=threads)
        return with_lanes(row, min(self._settings.lanes or cores, cores // threads))


def nodes() -> dict[str, dict[str, float]]:
    """The resources of every node that lives, by its id."""
    import ray

    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


def most_cores() -> int:
    """The most cores that a node which lives has."""
    return max((int(resources.get("CPU", 0)) for resources in nodes().values()), default=0)


def _devices_here(node: str, settings: Settings, gpus: int) -> list[Found]:
    """The devices of the machine that this runs on: the body of a short task on each node."""
    found = local(1, settings.lanes, node)
    if settings.pretended_bytes:
        found += pretended(gpus, settings.pretended_bytes, node, settings.lanes or LANES)
    return found


def probe(node: str, settings: Settings, gpus: int) -> Any:
    """Ask a node for its devices; the reference of the answer. The process ends with the task: it has seen all devices."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_calls=1, max_retries=1)(_devices_here)
    where = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return task.options(name="qdrun-inventory", scheduling_strategy=where).remote(node, settings, gpus)


def free_of(available: Mapping[str, Mapping[str, float]], resource: str) -> dict[str, int]:
    """The whole units of a resource that no task, actor or group has, by node."""
    return {node: int(resources.get(resource, 0)) for node, resources in available.items()}
