"""The devices on which trials of a run have begun, as its journal has them."""

from __future__ import annotations

from typing import Any

from ..store.follower import Follower
from ..store.layout import RunFolder

ABOUT = ("node", "backend", "model", "uuid", "pci", "driver", "memory_bytes")


def devices_of(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """Node, backend, model, UUID, PCI address, driver and bytes of memory of each device, by the ledger's name of it; what is not known of
    one is left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for entry in Follower(folder).look().entries:
        event = entry.event
        if event["event"] == "device":
            found[str(event["device"])] = {name: event[name] for name in ABOUT if name in event}
    return found


def kinds_of(devices: dict[str, dict[str, Any]]) -> list[str]:
    """Devices as text, equal ones once: backend, model and driver."""
    said = (" ".join(str(one[name]) for name in ("backend", "model", "driver") if name in one) for one in devices.values())
    return sorted(dict.fromkeys(said))


__all__ = ["devices_of", "kinds_of"]
