"""Amounts of memory as people write them."""

from __future__ import annotations

import re

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def bytes_in(text: str) -> int | None:
    """The bytes that a text such as ``2GiB``, ``1.5 GB`` or ``4096`` names; None when it names none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", text)
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        return None
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
