"""A ledger as plain data, for the commands and the live views."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .lanes import DeviceUsers
from .runs import MARK, Run, shown

MOST_GROUPS = 100
"""A snapshot goes to every run every few seconds."""


def snapshot(
    packer: Mapping[str, Any], places: Mapping[str, DeviceUsers], runs: Iterable[Run], clean: Callable[[str], str]
) -> dict[str, Any]:
    """Pools, devices with what runs there, runs, users and the first groups that wait. Bytes, counts, seconds, shares of 1."""
    runs = list(runs)
    reserved = packer["reservation"]
    return {
        "pools": packer["pools"],
        "devices": [_device(place, runs) for place in places.values()],
        "runs": [_run(run) for run in runs],
        "users": packer["users"],
        "waiting": [_group(group) for group in packer["waiting"][:MOST_GROUPS]],
        "reservation": None if reserved is None else {**reserved, "device": clean(reserved["device"])},
    }


def _device(place: DeviceUsers, runs: Iterable[Run]) -> dict[str, Any]:
    found = place.found
    running = [
        {
            "request": f"{shown(run.id)}/{grant.lease.requests[0]}",
            "lease": grant.lease.id,
            "run": shown(run.id),
            "user": run.user,
            "trials": len(grant.lease.requests),
            "bytes": grant.lease.point.bytes,
            "since": grant.started,
        }
        for run in runs
        for grant in run.grants.values()
        if grant.lease.device == found.id
    ]
    return {
        "id": found.id,
        "node": found.node,
        "kind": found.kind,
        "pool": found.pool,
        "lanes": found.lanes,
        "worker": bool(place.workers),
        "runs": sorted(shown(run) for run in place.workers),
        "running": running,
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "run": shown(run.id),
        "user": run.user,
        "waiting": len(run.waiting),
        "leases": len(run.grants),
        "heard": run.beat,
    }


def _group(group: Mapping[str, Any]) -> dict[str, Any]:
    return {**group, "claims": {kind.split(MARK, 1)[0]: points for kind, points in group["claims"].items()}}
