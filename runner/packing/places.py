"""Where a request would fit: the device that has the bytes first, and idle workers that are in its way."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from .pools import DeviceState, PoolState
from .queue import Group, first_fitting


def soonest(devices: Iterable[DeviceState], group: Group, now: float) -> tuple[DeviceState, int] | None:
    """The device that has the bytes of a group first, and the point: by the known ends, else the one with the most free.

    None when no device has them, were all of ours gone.
    """
    able = []
    for state in devices:
        if state.device.kind in group.bases:
            k = first_fitting(group.claims[state.device.kind], state.most)
            if k is not None:
                need = group.point_bytes(state.device.kind, k)
                able.append((state.pool.free - state.opening - need, state.device.id, state, k, need))
    best = min(
        heapq.nlargest(4, able, key=lambda item: item[0]),
        key=lambda item: (
            item[2].free_at(item[4], now)[0] + group.seconds(item[2].device.kind, item[3]),
            -item[0],
            item[1],
        ),
        default=None,
    )
    return None if best is None else (best[2], best[3])


def in_the_way(pool: PoolState, idle: Mapping[str, int], groups: Iterable[Group]) -> list[str]:
    """Of the devices of a pool with ``idle`` workers, those whose bytes the first group needs that would fit without them."""
    able = [state for state in pool.devices.values() if len(state.running) < state.device.lanes]
    if not able:
        return []
    for group in groups:
        for state in able:
            if state.device.kind not in group.bases:
                continue
            others = {name: size for name, size in idle.items() if name != state.device.id}
            k = first_fitting(group.claims[state.device.kind], state.most)
            if k is None:
                continue
            need = group.point_bytes(state.device.kind, k)
            if state.room < need <= state.room + sum(others.values()):
                return [name for name, size in others.items() if size]
    return []
