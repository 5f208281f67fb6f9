"""The settings of a cluster's ledger."""

from __future__ import annotations

from dataclasses import dataclass

from .leases import BEAT_S, EXPIRE_S, LEASE_REQUESTS

NAME, NAMESPACE = "qdrun-ledger", "qdrun"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a ledger. The first run of a cluster chooses them.

    Attributes:
        lanes: trials at once on each device, None: see ``inventory.local``.
        beat_s: seconds between heartbeats of a run; a restarted ledger waits two of them before it grants.
        expire_s: seconds of silence after which a run loses its leases.
        idle_s: seconds after which a device without claims is returned to Ray.
        look_s: seconds between two looks at the nodes of the cluster.
        lease_requests: most requests of a lease.
        pretended_bytes: for tests of the machinery alone: each GPU that Ray was told of, and that is not there, has so many bytes.
    """

    lanes: int | None = None
    beat_s: float = BEAT_S
    expire_s: float = EXPIRE_S
    idle_s: float = 60.0
    look_s: float = 1.0
    lease_requests: int = LEASE_REQUESTS
    pretended_bytes: int = 0
