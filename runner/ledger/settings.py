"""What a ledger of a cluster is started with."""

from __future__ import annotations

from dataclasses import dataclass

from .leases import BEAT_S, EXPIRE_S, LEASE_TRIALS

NAME, NAMESPACE = "qdrun-ledger", "qdrun"


@dataclass(frozen=True, slots=True)
class Settings:
    """How a ledger works. The first run of a cluster chooses.

    Attributes:
        lanes: trials at once on each device, None: see ``inventory.local``.
        beat_s: runs are to be heard from so often; one that starts again waits two of them before it grants.
        expire_s: a run that is silent for so long loses its leases.
        idle_s: a device that no run has claims for is given back to Ray after so many seconds.
        look_s: seconds between two looks at the nodes of the cluster.
        lease_trials: most trials of a lease.
        pretended_bytes: for tests of the machinery alone: each GPU that Ray was told of, and that is not there, has so many bytes.
    """

    lanes: int | None = None
    beat_s: float = BEAT_S
    expire_s: float = EXPIRE_S
    idle_s: float = 60.0
    look_s: float = 1.0
    lease_trials: int = LEASE_TRIALS
    pretended_bytes: int = 0
