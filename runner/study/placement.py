"""Simulates the placement of a plan's trials with the packer on virtual time, on this machine's devices or on hypothetical cards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from typing_extensions import TypedDict

from ...compiler.amounts import bytes_in
from ...compiler.errors import QdrunError
from ...jobs.base import Job
from ..fields import about
from ..ledger import inventory, memory
from ..ledger.inventory import Found
from ..packing import DeviceSpec, Forecast, Pool, Request, lower_bound, misfit
from ..packing.claims import amount
from .batches import Batches
from .devices import cores, emulated, free_for_trials
from .plan import PlannedGroup, Prepared, make_plan, opened, planned_for
from .requests import Points, choose, claim_of, curve

MOST_CARDS = 10_000
OUT_OF_MEMORY = "OutOfMemory: "
"""The prefix of the error of a plan with a budget that is too small."""


class CardsError(QdrunError, ValueError):
    """``--device-memory`` cannot be read."""


@dataclass(frozen=True)
class Park:
    """The devices that trials are placed on.

    Attributes:
        what: where they are, for people.
        pools: their memory, the reserve taken off.
        devices: one for each card, or the CPU.
        total: bytes of each pool before the reserve was taken off.
    """

    what: str
    pools: tuple[Pool, ...]
    devices: tuple[DeviceSpec, ...]
    total: Mapping[str, int]

    def threads(self, prepared: Prepared) -> dict[str, int | None]:
        """CPU threads of a program, by class of devices."""
        return dict.fromkeys((device.kind for device in self.devices), prepared.loaded.config.device.threads)


@dataclass(frozen=True)
class Misfit:
    """Trials of one shape that fit on no device."""

    trials: Annotated[int, about("number of trials")]
    example: Annotated[str, about("the label of one of them")]
    bytes: Annotated[int | None, about("bytes that one needs")]
    why: Annotated[str, about("the comparison of bytes, in words")]


class PlacedDevice(TypedDict):
    """A device of a placement."""

    device: Annotated[str, about("name of the device")]
    kind: Annotated[str, about("device class; the devices of a class share one claim")]
    pool: Annotated[str, about("its memory pool")]
    memory_bytes: Annotated[int, about("size of the pool")]
    for_trials_bytes: Annotated[int, about("size of the pool less the reserve (a twentieth, at least 512 MiB)")]
    process_bytes: Annotated[int, about("overhead of a process on the device")]
    lanes: Annotated[int, about("number of trials that may run at once")]
    at_once: Annotated[int, about("largest number of trials that run at once")]
    trials: Annotated[int, about("number of trials that it runs in total")]
    peak_bytes: Annotated[int, about("largest number of bytes of the pool in use")]
    busy: Annotated[float, about("mean fraction of the pool in use")]


class PlacementData(TypedDict):
    """Simulated placement of the trials, all with the same duration."""

    where: Annotated[str, about("`this machine`, or the text of --device-memory")]
    devices: Annotated[list[PlacedDevice], about("the devices")]
    placed: Annotated[int, about("number of trials that fit")]
    at_once: Annotated[int, about("largest number of trials that run at once")]
    waves: Annotated[int, about("rounds of trials on the device with the most rounds")]
    finish: Annotated[float, about("time until the last one ends, in units of the longest trial")]
    bound: Annotated[float, about("lower bound of the finish of any placement")]
    bound_by: Annotated[str, about("what limits the bound: bytes, lanes, longest")]
    misfits: Annotated[Sequence[Misfit], about("trials that do not fit")]


@dataclass(frozen=True)
class Predicted:
    """The simulated placement.

    All trials count as equally long: ``forecast.finish`` is in units of the longest one. ``bound``: a lower bound of the finish;
    ``bound_by``: its cause (bytes, lanes, longest).
    """

    park: Park
    forecast: Forecast
    bound: float
    bound_by: str
    placed: int
    misfits: tuple[Misfit, ...]

    @property
    def at_once(self) -> int:
        """The most trials that run at the same time, those of a batch included."""
        changes = sorted(self._changes())
        most = now = 0
        for _, change in changes:
            now += change
            most = max(most, now)
        return most

    def _changes(self) -> list[tuple[float, int]]:
        """Starts (more) and ends (less) of trials; at the same time, ends come first."""
        starts = [(self.forecast.starts[p.request.id], p.point.time, len(p.request.trials)) for p in self.forecast.placements]
        return [(t + shift, sign * count) for t, took, count in starts for shift, sign in ((0.0, 1), (took, -1))]

    def data(self) -> PlacementData:
        """The prediction as plain data."""
        forecast, trials = self.forecast, Counter[str]()
        for placement in forecast.placements:
            trials[placement.device] += len(placement.request.trials)
        rows: list[PlacedDevice] = [
            {
                "device": device.id,
                "kind": device.kind,
                "pool": device.pool,
                "memory_bytes": self.park.total[device.pool],
                "for_trials_bytes": pool.capacity,
                "process_bytes": device.process_bytes,
                "lanes": device.lanes,
                "at_once": forecast.at_once.get(device.id, 0),
                "trials": trials[device.id],
                "peak_bytes": forecast.peak.get(device.pool, 0),
                "busy": forecast.busy.get(device.pool, 0.0),
            }
            for device in self.park.devices
            for pool in self.park.pools
            if pool.id == device.pool
        ]
        return {
            "where": self.park.what,
            "devices": rows,
            "placed": self.placed,
            "at_once": self.at_once,
            "waves": forecast.waves,
            "finish": forecast.finish,
            "bound": self.bound,
            "bound_by": self.bound_by,
            "misfits": self.misfits,
        }


def cards(text: str, kind: str, lanes: int, process_bytes: int) -> Park:
    """The devices of a text such as ``24GiB*2,80GiB*2``: of each so many, with memory of their own.

    Raises:
        CardsError: the text is not such a list.
    """
    pools: list[Pool] = []
    total: dict[str, int] = {}
    for part in text.split(","):
        size, _, count = part.partition("*")
        number, memory = count.strip() or "1", bytes_in(size)
        if memory is None or not re.fullmatch(r"[1-9]\d{0,4}", number) or len(pools) + int(number) > MOST_CARDS:
            raise CardsError(
                f"--device-memory: `{part.strip()}` is not an amount of memory, or one times a number of cards (at most {MOST_CARDS})\n"
                "  do: write for example 24GiB*2,80GiB*2"
            )
        for _ in range(int(number)):
            name = f"{kind}:{len(pools)}"
            pools.append(Pool(name, max(0, free_for_trials(memory))))
            total[name] = memory
    park = [DeviceSpec(pool.id, pool.id, kind, lanes, process_bytes) for pool in pools]
    return Park(text, tuple(pools), tuple(park), total)


def devices_of(prepared: Prepared) -> list[Found]:
    """The devices of this machine that the trials may run on: those of their backends, or the one that the config names, with
    ``device.slots`` lanes, and no more in all than ``limits.max_concurrent``.
    """
    return at_most([row for one in prepared.each.values() for row in _of_one_backend(one)], prepared)


def _of_one_backend(prepared: Prepared) -> list[Found]:
    config, wanted = prepared.loaded.config.device, prepared.place.device
    if emulated(wanted):
        total, free = memory.host()
        name, kind = f"{prepared.backend}:{wanted}", inventory.kind_of(prepared.backend, "emulated", config.threads)
        size = {"total": total, "free": free, "lanes": config.slots or 1}
        rows = [Found(name, "", prepared.backend, model="emulated", kind=kind, pool="ram", **size)]
    else:
        rows = [row for row in inventory.local(config.threads, config.slots) if row.backend == prepared.backend and row.usable]
        if config.min_memory is not None and prepared.backend != "cpu":
            rows = [row for row in rows if row.capacity >= config.min_memory]
        if wanted is not None:
            rows = [row for row in rows if _called(row, wanted)]
    return rows


def usable(prepared: Prepared, rows: Iterable[Found]) -> list[Found]:
    """The devices of a ledger that the trials may run on: those of their backends with ``device.min_memory``.

    A node's cores are several rows, by the threads of a trial that runs have asked for: the one counts that has as many as the config
    says, or all cores of a smaller node.
    """
    known = [row for row in rows if row.usable]
    return [row for one in prepared.each.values() for row in _usable_of_one_backend(one, known)]


def _usable_of_one_backend(prepared: Prepared, rows: Iterable[Found]) -> list[Found]:
    config = prepared.loaded.config.device
    found = [row for row in rows if row.backend == prepared.backend]
    if prepared.backend != "cpu":
        small = {row.kind for row in found if row.capacity < (config.min_memory or 0)}  # claims are by class
        return [row for row in found if row.kind not in small]
    most: dict[str, int] = {}
    for row in found:
        if row.threads <= config.threads:
            most[row.node] = max(most.get(row.node, 0), row.threads)
    return [row for row in found if row.threads == most.get(row.node)]


def at_most(rows: Sequence[Found], prepared: Prepared) -> list[Found]:
    """Devices with no more lanes in all than ``limits.max_concurrent``; those that are left with none are not among them."""
    lanes = shared_out([row.lanes for row in rows], prepared.loaded.config.limits.max_concurrent)
    return [replace(row, lanes=count) for row, count in zip(rows, lanes, strict=True) if count]


def shared_out(lanes: Sequence[int], most: int | None) -> list[int]:
    """The lanes of devices, ``most`` in all: taken from the devices in turn."""
    if most is None or sum(lanes) <= most:
        return list(lanes)
    out = [0] * len(lanes)
    while sum(out) < most:
        for number, count in enumerate(lanes):
            if out[number] < count and sum(out) < most:
                out[number] += 1
    return out


def with_frames(rows: Sequence[Found], groups: Sequence[PlannedGroup]) -> list[Found]:
    """Devices whose worker's process is charged for the largest stack frames of the kernels, too, as far as plans know them.

    The driver keeps room for the frames of all resident threads from the launch of a kernel on.
    """
    frames = frames_of(groups)
    return [replace(row, process_bytes=row.process_bytes + (0 if row.backend == "cpu" else frames)) for row in rows]


def frames_of(groups: Sequence[PlannedGroup]) -> int:
    """Bytes of the largest stack frames of all kernels, for all resident threads of a GPU, as far as plans know them."""
    return max((group.plan.by_kind().get("frames", 0) for group in groups if group.plan is not None), default=0)


def here(prepared: Prepared, groups: Sequence[PlannedGroup] = ()) -> Park:
    """The devices of this machine that the trials of a config may run on, as the ledger knows them."""
    rows = with_frames(devices_of(prepared), groups)
    pools, devices = inventory.pools_and_devices(rows)
    return Park("this machine", tuple(pools), tuple(devices), {row.pool: row.total for row in rows})


def _called(row: Found, wanted: int | str) -> bool:
    """Whether a device has this number, name, UUID (its beginning is enough) or PCI address."""
    if isinstance(wanted, int):
        return row.index == wanted
    name = wanted.lower()
    same_place = bool(row.pci) and row.pci.lower().lstrip("0:") == name.lstrip("0:")
    return same_place or wanted == row.id or (bool(row.uuid) and row.uuid.lower().startswith(name))


def park_of(prepared: Prepared, groups: Sequence[PlannedGroup], device_memory: str | None) -> Park | None:
    """The devices for the placement; None if the plan is for a backend of another machine and ``device_memory`` is not given.

    Raises:
        CardsError: ``device_memory`` cannot be read.
    """
    arch = next((group.plan.arch for group in groups if group.plan), prepared.backend)
    config = prepared.loaded.config
    if device_memory is not None:
        threads = max(1, cores() // config.device.threads)
        lanes = min(config.device.slots or threads, threads) if arch == "cpu" else config.device.slots or inventory.LANES
        process = inventory.PROCESS_BYTES[arch] * (lanes if arch == "cpu" else 1)
        return _at_most(cards(device_memory, arch, lanes, process), config.limits.max_concurrent)
    return None if arch != prepared.backend else here(prepared, groups)


def _at_most(park: Park, most: int | None) -> Park:
    """The park with so many lanes in all, taken from the devices in turn; on the CPU each is a process."""
    kept = []
    for device, lanes in zip(park.devices, shared_out([device.lanes for device in park.devices], most), strict=True):
        process = device.process_bytes * lanes // device.lanes if device.kind == "cpu" else device.process_bytes
        kept += [replace(device, lanes=lanes, process_bytes=process)] if lanes else []
    return replace(park, devices=tuple(kept))


def plans_beside(prepared: Prepared, job: type[Job[Any]]) -> dict[str, Sequence[PlannedGroup]]:
    """The plans for the other backends of ``device.together``."""
    return {backend: make_plan(one, job) for backend, one in prepared.each.items() if backend != prepared.backend}


def curves(prepared: Prepared, job: type[Job[Any]], groups: Sequence[PlannedGroup], arch: str | None) -> dict[int, Points]:
    """With ``memory_budget: auto``: the points that trials of each shape may be placed at, by the first trial of the shape; else none."""
    if not prepared.loaded.config.elastic:
        return {}
    found: dict[int, Points] = {}
    for group in groups:
        if group.plan is not None:
            with opened(prepared, job, prepared.trials[group.first], None, arch, machine_code=False) as made:
                found[group.first] = curve(made, group.plan, planned_for(prepared, arch))
    return found


def fits(group: PlannedGroup, limits: Mapping[str, int | None]) -> bool:
    """Whether the trials of a group stay within ``limits`` (see ``Prepared.byte_limits``), and are not refused for their budget."""
    if group.plan is None:
        return not group.error.startswith(OUT_OF_MEMORY)
    return _too_large(group, limits) is None


def predict(
    prepared: Prepared,
    groups: Sequence[PlannedGroup],
    park: Park,
    points: Mapping[int, Points] | None = None,
    batches: Batches | None = None,
    beside: Mapping[str, Sequence[PlannedGroup]] | None = None,
) -> Predicted:
    """Run the packer on virtual time. Trials that cannot be planned are left out; those that are too large are misfits.

    Args:
        prepared: the config.
        groups: its plan.
        park: the devices.
        points: other points than the plan that trials may be placed at, see ``curves``.
        batches: trials that run together; None: none do.
        beside: the plans for the other backends of ``device.together``.
    """
    others = {backend: {group.first: group.plan for group in more} for backend, more in (beside or {}).items()}
    together = batches or Batches()
    requests: list[Request] = []
    misfits: list[Misfit] = []
    for group in groups:
        if group.plan is None:
            if not fits(group, {}):
                misfits.append(Misfit(len(group.places), group.example, None, group.error))
            continue
        claim = claim_of(group.plan, (points or {}).get(group.first, ()), seconds=1.0)
        of_backend = {backend: claim_of(plans.get(group.first), seconds=1.0) for backend, plans in others.items()}
        need, claims = claim.smallest, {d.kind: of_backend.get(inventory.backend_of(d.kind), claim) for d in park.devices}
        made = [
            Request(str(own[0]), together.claims(own) if len(own) > 1 else claims, 0.0, own)
            for own in (together.of(group.places) if claims else ())
        ]
        why = _too_large(group, prepared.byte_limits) or (misfit(made[0], park.pools, park.devices) if made else "no device")
        if why is None:
            requests += made
        else:
            misfits.append(Misfit(len(group.places), group.example, need, why))
    bound = lower_bound(requests, park.pools, park.devices)
    forecast, _ = choose(requests, park.pools, park.devices)
    placed = sum(len(request.trials) for request in requests)
    return Predicted(park, forecast, bound.seconds, bound.by, placed, tuple(misfits))


def _too_large(group: PlannedGroup, limits: Mapping[str, int | None]) -> str | None:
    """The arithmetic of a plan beyond a limit of the config."""
    assert group.plan is not None
    for name, limit in limits.items():
        if limit is not None and group.plan.bytes > limit:
            return f"needs {amount(group.plan.bytes)} ({group.plan.bytes} bytes), {name} is {amount(limit)} ({limit} bytes)"
    return None
