"""The ledger: which run may hold how many bytes of which device, for how long. Ray is imported by ``ActorLedger`` alone, when made."""

from .client import ActorLedger, LedgerClient, LocalLedger
from .inventory import Found, local, pools_and_devices
from .leases import BEAT_S, EXPIRE_S, Exchange, Held, Lease, LeaseEnd
from .ledger import Ledger

__all__ = [
    "BEAT_S",
    "EXPIRE_S",
    "ActorLedger",
    "Exchange",
    "Found",
    "Held",
    "Lease",
    "LeaseEnd",
    "Ledger",
    "LedgerClient",
    "LocalLedger",
    "local",
    "pools_and_devices",
]
