"""AMD's cards as the kernel lists them, without opening one, and their numbers in a process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .memory import Card

NODES = Path("/sys/class/kfd/kfd/topology/nodes")
DRM = Path("/sys/class/drm")
DRIVER = Path("/sys/module/amdgpu/version")
ROCR, HIP = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class AmdCard:
    """A card.

    Attributes:
        number: among all of the machine, the one that ``ROCR_VISIBLE_DEVICES`` counts by.
        total: bytes of its memory; ``free``: those that no process holds, None where the driver does not say.
    """

    number: int
    uuid: str
    pci: str
    model: str
    total: int
    free: int | None = None


def cards(root: Path = NODES, drm: Path = DRM) -> list[AmdCard]:
    """The cards of this machine in the order of the driver."""
    out: list[AmdCard] = []
    try:
        folders = sorted((path for path in root.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    except OSError:
        return out
    for folder in folders:
        row = _properties(folder / "properties")
        if row.get("simd_count", 0) > 0:  # the others are processors
            banks = [_properties(path) for path in folder.glob("mem_banks/*/properties")]
            where, domain = row.get("location_id", 0), row.get("domain", 0)
            pci = f"{domain:04x}:{where >> 8 & 0xFF:02x}:{where >> 3 & 0x1F:02x}.{where & 7}"
            target = row.get("gfx_target_version", 0)
            model = f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}" if target else "AMD GPU"
            total = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in (1, 2))
            uuid = f"GPU-{row['unique_id']:016x}" if row.get("unique_id") else ""
            free = _free(drm / f"renderD{row.get('drm_render_minor', 0)}" / "device")
            out.append(AmdCard(len(out), uuid, pci, model, total, free))
    return out


def _free(device: Path) -> int | None:
    """Bytes of a card's memory that no process holds, as its driver says."""
    try:
        total, used = (int((device / f"mem_info_vram_{what}").read_text(encoding="ascii")) for what in ("total", "used"))
    except (OSError, ValueError):
        return None
    return max(0, total - used)


def memory(found: Sequence[AmdCard], driver: Path = DRIVER) -> dict[str, Card]:
    """The memory of cards, by the UUID that HIP knows them by, in lower case: a card without one has its PCI address there."""
    try:
        version = driver.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        version = ""
    out = {}
    for card in found:
        if card.free is not None:
            out[(card.uuid or f"GPU-{card.pci}").lower()] = Card(card.total, card.free, version)
    return out


def visible(found: Sequence[AmdCard], environ: Mapping[str, str] = os.environ) -> list[AmdCard]:
    """The cards that a process sees, in its own order: ``HIP_VISIBLE_DEVICES`` counts what ``ROCR_VISIBLE_DEVICES`` has left."""
    left = list(found)
    for name in (ROCR, HIP):
        if name in environ:
            left = _chosen(left, environ[name])
    return left


def _chosen(found: Sequence[AmdCard], text: str) -> list[AmdCard]:
    """Cards by number or UUID; the first that is not there ends the list, as for AMD's own runtime."""
    out: list[AmdCard] = []
    for word in (part.strip() for part in text.split(",")):
        if word.isdigit():
            match = [found[int(word)]] if int(word) < len(found) else []
        else:
            match = [card for card in found if card.uuid and card.uuid.lower() == word.lower()]
        if not match:
            break
        out += match
    return out


def _properties(path: Path) -> dict[str, int]:
    try:
        rows = [line.split() for line in path.read_text(encoding="ascii", errors="replace").splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
