"""Which trial runs where: bytes of pools, lanes of devices. Pure: no Ray, no clock, no I/O."""

from .claims import Claim, ClaimPoint, Placement, Request
from .packer import Packer
from .pools import DeviceSpec, Pool, Reservation
from .predict import Bound, Forecast, lower_bound, misfit, simulate

__all__ = [
    "Bound",
    "Claim",
    "ClaimPoint",
    "DeviceSpec",
    "Forecast",
    "Packer",
    "Placement",
    "Pool",
    "Request",
    "Reservation",
    "lower_bound",
    "misfit",
    "simulate",
]
