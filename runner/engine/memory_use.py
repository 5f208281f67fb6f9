"""Bytes that are in use, from what workers say of themselves: for people, and for the ledger. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ..ledger.inventory import Found
from ..workers.spec import Progress
from .messages import WorkerId

STEP = 1 << 20
"""Shown bytes are rounded to this unit, so that a steady run repeats the same figures."""


def used_of(found: Mapping[str, Found], seen: Mapping[WorkerId, Progress]) -> dict[str, int]:
    """Bytes in use by pool. Of a card, what its driver counts, others' and the processes' own included; of a host, its workers' processes.

    Args:
        found: the devices by id.
        seen: what each worker said last.
    """
    used: dict[str, int] = {}
    for worker, said in seen.items():
        row = found.get(worker.device)
        if row is None:
            continue
        if said.total_bytes and row.backend != "cpu":
            used[row.pool] = max(used.get(row.pool, 0), said.total_bytes - said.free_bytes)
        else:
            used[row.pool] = used.get(row.pool, 0) + said.process_bytes
    return {pool: -(-amount // STEP) * STEP for pool, amount in used.items()}


def observed(found: Mapping[str, Found], seen: Mapping[WorkerId, Progress]) -> dict[str, tuple[int, int]]:
    """By pool of a card: bytes that are free, and those that this run's programs hold now, its charged process included.

    What is neither free nor ours is others', or the process's beyond its charge (frames that no plan knew, memory that a driver keeps):
    the ledger takes it off the capacity. So a claim whose bytes are not allocated yet never hides what others hold.
    """
    out: dict[str, tuple[int, int]] = {}
    for worker, said in seen.items():
        row = found.get(worker.device)
        if row is None or not said.total_bytes or not (row.uuid or row.pci):
            continue
        free, ours = out.get(row.pool, (said.free_bytes, 0))
        held = sum(sum(lane.bytes.values()) - lane.bytes.get("staging", 0) for lane in said.lanes)
        out[row.pool] = min(free, said.free_bytes), ours + held + row.charge()
    return out


Seen = Mapping[str, tuple[int, int]]


def steadier(before: Seen, now: Seen) -> dict[str, tuple[int, int]]:
    """Combine two successive observations for the ledger: for each pool the one with less memory of other programs.

    Otherwise a program that closes between the readings of free and of own bytes would count as other memory until the next observation.
    """
    return {pool: max(said, before.get(pool, said), key=sum) for pool, said in now.items()}


__all__ = ["observed", "steadier", "used_of"]
