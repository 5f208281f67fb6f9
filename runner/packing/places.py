"""Finds the device that will have the bytes of a request first, and idle workers that block requests."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from .pools import DeviceState, PoolState
from .queue import ClaimGroup, Waiting


def soonest(devices: Iterable[DeviceState], group: ClaimGroup, now: float) -> DeviceState | None:
    """The device that has the bytes of a group first: by the known ends, else the one with the most free.

    None if not even an empty device has them.
    """
    able = []
    for state in devices:
        if state.device.kind in group.bases:
            need = group.bytes_on(state.device.kind)
            if need <= state.most:
                able.append((state.pool.free - state.opening - need, state.device.id, state, need))
    best = min(
        heapq.nlargest(4, able, key=lambda item: item[0]),
        key=lambda item: (item[2].free_at(item[3], now)[0] + group.seconds(item[2].device.kind), -item[0], item[1]),
        default=None,
    )
    return None if best is None else best[2]


def in_the_way(pool: PoolState, waiting: Waiting) -> list[str]:
    """The devices of a pool with idle workers that block a waiting request: it would fit without their bytes."""
    idle = {name: state.device.process_bytes for name, state in pool.devices.items() if state.worker and not state.running}
    if not idle or len(pool.devices) < 2:
        return []
    for state in pool.devices.values():
        if not state.full:
            others = {name: size for name, size in idle.items() if size and name != state.device.id}
            room, most = state.room, state.most
            if others and waiting.between(state.device.kind, room, min(most, room + sum(others.values()))):
                return list(others)
    return []
