"""The devices of a machine: what they are, the memory that they share, and why one is absent. Never imports ray."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...compiler.runtime.inventory import BackendLine
from ...compiler.runtime.registry import devices as backends
from ..packing import DeviceSpec, Pool
from . import amd, memory

LANES = 4
"""Programs that run at once on a GPU, unless a config says otherwise: beyond some, launches wait for each other."""
RESERVE_PART, RESERVE_BYTES = 20, 512 << 20
"""The reserve of a pool: a twentieth, at least 512 MiB, for memory that no allocator counts."""
MIB = 1 << 20
PROCESS_BYTES = {"cuda": 576 * MIB, "amdgpu": 576 * MIB, "vulkan": 256 * MIB, "metal": 256 * MIB, "cpu": 320 * MIB}
"""Overhead of a worker process: the context on a device (551 MB on an H200; assumed for other GPUs); on a CPU Python, LLVM and Ray's client
(at most 287 MiB while it compiled a job of this package), and some more for imports of jobs.
"""
RESOURCES = {"cuda": "GPU", "amdgpu": "GPU", "vulkan": "qdrun_vulkan", "metal": "qdrun_metal", "cpu": "CPU"}
"""The resource of Ray that a device of a backend is; the ``qdrun_`` ones are declared with ``ray start --resources``."""

VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "amdgpu": "HIP_VISIBLE_DEVICES"}
"""The variable by which Ray, and people, show a process some devices, in an order of their own."""


@dataclass(frozen=True, slots=True)
class Found:
    """A device, or a backend without a device on this machine.

    Attributes:
        id: unique in a cluster.
        node: Ray's id of its node; empty for this machine without Ray.
        index: its number in a process that sees all of the node.
        uuid: its permanent id; ``pci`` its address; empty where there is none.
        model: as the driver calls it.
        kind: the class of devices for which one claim holds: backend, model and threads in flight.
        pool: the physical memory that it uses, by UUID or PCI address; devices of several backends may name the same.
        total: bytes of the pool; ``free``: its free bytes, None if unknown.
        threads: in flight when a trial runs: resident threads of a GPU, cores of one trial on a CPU.
        lanes: trials at once.
        process_bytes: what the process of a worker holds beside its trials; see ``charge``.
        usable: programs of this version run on it; otherwise ``why`` says why not.
        ray_id: what Ray calls it on its node: the name or the number that the node's own list of visible devices has.
    """

    id: str
    node: str
    backend: str
    index: int = 0
    uuid: str = ""
    pci: str = ""
    model: str = ""
    kind: str = ""
    pool: str = ""
    total: int = 0
    free: int | None = None
    driver: str = ""
    threads: int = 0
    lanes: int = 1
    process_bytes: int = 0
    usable: bool = True
    why: str = ""
    ray_id: str = ""

    @property
    def resource(self) -> str:
        """Its name in Ray."""
        return RESOURCES[self.backend]

    @property
    def capacity(self) -> int:
        """Bytes of the pool that may be used in all: its total less the reserve."""
        return max(0, self.total - max(self.total // RESERVE_PART, RESERVE_BYTES))

    def charge(self, lanes: int | None = None) -> int:
        """Bytes of all processes that ``lanes`` trials at once need (None: all lanes): one on a GPU, one for each on the CPU."""
        return self.process_bytes * ((lanes or self.lanes) if self.backend == "cpu" else 1)

    @property
    def foreign(self) -> int:
        """Bytes that others hold, as far as that is known."""
        return max(0, self.total - self.free) if self.free is not None else 0


def local(threads: int = 1, lanes: int | None = None, node: str = "") -> list[Found]:
    """The devices of this machine, and a row for each backend that has none.

    Args:
        threads: of one trial on the CPU, as far as there are cores; it runs as many trials at once as it has times so many cores.
        lanes: trials at once on each device, on the CPU no more than cores and memory allow; None: ``LANES``, and all cores.
        node: the id of this machine in a cluster.
    """
    cards, amd_cards = memory.nvidia(), amd.cards()
    cards |= amd.memory(amd_cards)
    rows = []
    for backend in backends():
        if backend.name == "cpu":
            rows.append(_host(backend, threads, lanes, node))
        elif backend.usable:
            rows.append(_card(backend, cards.get(backend.uuid.lower()), lanes or LANES, node))
        elif backend.name == "amdgpu" and not backend.uuid and (seen := amd.visible(amd_cards)):  # ROCm lists none
            rows += [_amd(backend, card, index, lanes or LANES, node) for index, card in enumerate(seen)]
        else:
            where = f"{backend.name}:{backend.index}" if backend.present else backend.name
            rows.append(Found(_named(where, node), node, backend.name, usable=False, why=backend.detail))
    return one_pool(rows)


def one_pool(rows: Iterable[Found]) -> list[Found]:
    """The rows, of which those at one PCI address have the pool of the first backend's: HIP and Vulkan have UUIDs of their own for a card.

    Parts of a card are devices of one backend at one address; their memory is their own.
    """
    out: list[Found] = []
    for row in rows:
        same = [other for other in out if row.pci and other.pci.lower() == row.pci.lower() and other.backend != row.backend]
        out.append(replace(row, pool=same[0].pool) if len({other.pool for other in same}) == 1 else row)
    return out


def _amd(row: BackendLine, card: amd.AmdCard, index: int, lanes: int, node: str) -> Found:
    name = card.uuid or card.pci
    return Found(
        id=f"{row.name}:{name}" if node else f"{row.name}:{index}",
        node=node,
        backend=row.name,
        index=index,
        uuid=card.uuid,
        pci=card.pci,
        model=card.model,
        kind=kind_of(row.name, card.model, row.threads),
        pool=name,
        total=card.total,
        free=card.free,
        threads=row.threads,
        lanes=lanes,
        usable=row.usable,
        why="" if row.usable else row.detail,
        process_bytes=PROCESS_BYTES[row.name],
        ray_id=str(index),
    )


def pools_and_devices(found: Iterable[Found]) -> tuple[list[Pool], list[DeviceSpec]]:
    """The usable devices and their pools for the packer, less the reserve and what other processes hold."""
    pools: dict[str, Pool] = {}
    devices = []
    for row in found:
        if row.usable:
            pools.setdefault(row.pool, Pool(row.pool, max(0, row.capacity - row.foreign)))
            devices.append(packing_device(row))
    return list(pools.values()), devices


def packing_device(row: Found) -> DeviceSpec:
    """A device as the packer knows it."""
    return DeviceSpec(row.id, row.pool, row.kind, row.lanes, row.charge())


def with_lanes(row: Found, lanes: int) -> Found:
    """A device with at most so many lanes; of a CPU, no more than have room for their processes in half of the memory that is free now.

    A lane of a CPU is a process with Python, LLVM and Ray's client: where they take the memory, none is left for trials.
    """
    if row.backend == "cpu" and row.process_bytes:
        lanes = min(lanes, max(0, row.capacity - row.foreign) // 2 // row.process_bytes)
    return replace(row, lanes=max(1, lanes))


def kind_of(backend: str, model: str, threads: int) -> str:
    """The class of a device, for instance ``cpu/znver3/2``."""
    return f"{backend}/{re.sub(r'[^A-Za-z0-9._+-]+', '-', model).strip('-') or 'unknown'}/{threads}"


def backend_of(kind: str) -> str:
    """The backend of a class of devices."""
    return kind.partition("/")[0]


def pretended(count: int, total: int, node: str = "", lanes: int = LANES, backend: str = "cuda") -> list[Found]:
    """Devices that do not exist, for tests of the machinery around them; ``total`` bytes each."""
    row = Found("", node, backend, model="pretended", total=total, free=total, driver="pretended", threads=1, lanes=lanes)
    row = replace(row, kind=kind_of(backend, "pretended", total >> 30), process_bytes=PROCESS_BYTES[backend])
    names = [f"pretended-{node[:8] or 'here'}-{k}" for k in range(count)]
    return [replace(row, id=f"{backend}:{name}", index=k, uuid=name, pool=name, ray_id=str(k)) for k, name in enumerate(names)]


def _host(row: BackendLine, threads: int, lanes: int | None, node: str) -> Found:
    total, free = memory.host()
    model, threads = row.model, max(1, min(threads, row.threads))
    most = row.threads // threads
    found = Found(
        id=_named("cpu", node, f"t{threads}" if node else ""),
        node=node,
        backend="cpu",
        model=model,
        kind=kind_of("cpu", model, threads),
        pool=_named("ram", node),
        total=total,
        free=free,
        driver=platform.system(),
        threads=threads,
        process_bytes=PROCESS_BYTES["cpu"],
    )
    return with_lanes(found, min(lanes or most, most))


def _card(row: BackendLine, card: memory.Card | None, lanes: int, node: str) -> Found:
    name = row.uuid or row.pci
    return Found(
        id=f"{row.name}:{name}" if node else f"{row.name}:{row.index}",
        node=node,
        backend=row.name,
        index=row.index,
        uuid=row.uuid,
        pci=row.pci,
        model=row.model,
        kind=kind_of(row.name, row.model, row.threads),
        pool=name,
        total=row.memory_bytes,
        free=card.free if card else None,
        driver=card.driver if card and card.driver else row.driver,
        threads=row.threads,
        lanes=lanes,
        process_bytes=PROCESS_BYTES[row.name],
        ray_id=_visible(row),
    )


def _visible(row: BackendLine) -> str:
    names = [name.strip() for name in os.environ.get(VISIBLE.get(row.name, ""), "").split(",") if name.strip()]
    return names[row.index] if row.index < len(names) else str(row.index)


def _named(what: str, *parts: str) -> str:
    return "@".join([what, *(part[:12] for part in parts if part)])
