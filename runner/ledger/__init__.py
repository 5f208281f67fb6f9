"""The ledger: which run may hold how many bytes of which device, for how long."""

from .client import LedgerClient, LocalLedger
from .inventory import Found, local, pools_and_devices
from .leases import BEAT_S, EXPIRE_S, Exchange, Held, Lease, LeaseEnd
from .ledger import Ledger

__all__ = [
    "BEAT_S",
    "EXPIRE_S",
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
