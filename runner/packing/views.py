"""Reports of the packer: why a request waits, and its state as plain data."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from .claims import Request, amount
from .pools import DeviceState, PoolState, Reservation, too_small
from .queue import ClaimGroup, Waiting


def why_waiting(
    request: Request,
    group: ClaimGroup,
    devices: Mapping[str, DeviceState],
    reserved: Reservation | None,
    touched: Container[str],
) -> str:
    """The arithmetic of why a request waits. ``touched``: pools where what starts now has not been decided yet."""
    states = [state for state in devices.values() if state.device.kind in request.claims]
    if not states:
        return f"has claims for devices of {', '.join(sorted(request.claims))}: there is none"
    able = [state for state in states if request.claims[state.device.kind].smallest <= state.most]
    if not able:
        return too_small(request, max(states, key=lambda state: state.most))
    if reserved is not None and reserved.request == request.id:
        pool = devices[reserved.device].pool
        free = f"pool {pool.pool.id} has {amount(max(0, pool.free))} free of {amount(pool.pool.capacity)}"
        return f"needs {amount(reserved.need)}: {free}; {reserved.device} is reserved for it ({reserved.why})"
    return _not_yet(request, group, max(able, key=lambda state: state.room), devices, reserved, touched)


def _not_yet(
    request: Request,
    group: ClaimGroup,
    state: DeviceState,
    devices: Mapping[str, DeviceState],
    reserved: Reservation | None,
    touched: Container[str],
) -> str:
    pool, device = state.pool, state.device
    need = group.bytes_on(device.kind)
    least = f"needs {amount(need)}"
    least += f" and {amount(state.opening)} for its process" if state.opening else ""
    free = f"pool {pool.pool.id} has {amount(max(0, pool.free))} free of {amount(pool.pool.capacity)}"
    if state.gate is not None and state.gate.full:
        return f"{least}: {state.gate.most} of its run are running, and no more may at once; {free}"
    if state.full:
        return f"{least}: all {device.lanes} lanes of {device.id} are taken, {free}"
    if need > state.room:
        return f"{least}: {free}"
    if reserved is not None and devices[reserved.device].pool is pool:
        return f"{least}: {free}, reserved for {reserved.request}"
    if pool.pool.id in touched:
        return f"{least}: {free}; what starts on {device.id} has not been decided yet"
    return f"{least}: {free}; others go first"


def snapshot(
    pools: Mapping[str, PoolState],
    devices: Mapping[str, DeviceState],
    waiting: Waiting,
    reserved: Reservation | None,
) -> dict[str, Any]:
    """Everything as plain data, see ``Packer.snapshot``."""
    return {
        "pools": pools_of(pools),
        "devices": [_device(state) for state in devices.values()],
        "waiting": [_group(group) for group in waiting.groups()],
        "reservation": None
        if reserved is None
        else {
            "request": reserved.request,
            "device": reserved.device,
            "bytes": reserved.need,
            "since": reserved.since,
            "why": reserved.why,
        },
    }


def pools_of(pools: Mapping[str, PoolState]) -> list[dict[str, Any]]:
    """The account of each pool, in bytes."""
    return [
        {
            "id": state.pool.id,
            "capacity": state.pool.capacity,
            "foreign": state.foreign,
            "process": state.process,
            "claimed": state.claimed,
            "free": state.free,
        }
        for state in pools.values()
    ]


def _device(state: DeviceState) -> dict[str, Any]:
    running = [
        {"request": name, "trials": len(run.request.trials), "bytes": run.point.bytes, "since": run.start}
        for name, run in state.running.items()
    ]
    device = state.device
    return {
        "id": device.id,
        "kind": device.kind,
        "pool": device.pool,
        "lanes": device.lanes,
        "worker": state.worker,
        "running": running,
    }


def _group(group: ClaimGroup) -> dict[str, Any]:
    curves = {kind: [[point.bytes, point.time] for point in claim.points] for kind, claim in group.shape.key}
    return {"count": group.size, "claims": curves, "fits": bool(group.bases)}
