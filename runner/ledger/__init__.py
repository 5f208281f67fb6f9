"""The ledger: how many bytes of which device each trial of a run may hold."""

from .client import RunLedger
from .inventory import Found, local, pools_and_devices
from .leases import Exchange, Lease, LeaseEnd
from .ledger import Ledger
from .machine import Machine

__all__ = [
    "Exchange",
    "Found",
    "Lease",
    "LeaseEnd",
    "Ledger",
    "Machine",
    "RunLedger",
    "local",
    "pools_and_devices",
]
