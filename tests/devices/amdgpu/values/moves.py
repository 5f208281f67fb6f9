"""Values from other lanes: DPP, permutations through on-chip memory, single lanes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..faults import UnknownInstruction
from .integers import ones

if TYPE_CHECKING:
    from ..wave import Wave

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, eq=False)
class Movement:
    """Where each lane's value comes from.

    Attributes:
        source: a lane's number.
        valid: there is such a lane.
        enabled: the lane is written.
        zero: lanes without a source get zero; else they stay as they are.
    """

    source: np.ndarray
    valid: np.ndarray
    enabled: np.ndarray
    zero: bool


def movement(modifiers: Mapping[str, str], width: int) -> Movement:
    """The movement of a DPP instruction.

    Raises:
        UnknownInstruction: it is not known.
    """
    lane = np.arange(width)
    row, place = lane // 16 * 16, lane % 16
    valid = np.ones(width, bool)
    how = next((m for m in modifiers if m.startswith(("row_", "quad_perm", "wave_", "dpp8")) and m != "row_mask"), "")
    given = [int(k) for k in _NUMBERS.findall(modifiers.get(how, ""))] or [0]
    by = given[0]
    if how == "quad_perm":
        source = lane // 4 * 4 + np.array(given)[lane % 4]
    elif how == "dpp8":
        source = lane // 8 * 8 + np.array(given)[lane % 8]
    elif how == "row_shr":
        source, valid = lane - by, place >= by
    elif how == "row_shl":
        source, valid = lane + by, place + by < 16
    elif how == "row_ror":
        source = row + (place - by) % 16
    elif how in ("row_share", "row_newbcast"):
        source = row + by
    elif how == "row_xmask":
        source = row + (place ^ by)
    elif how == "row_mirror":
        source = row + 15 - place
    elif how == "row_half_mirror":
        source = lane // 8 * 8 + 7 - lane % 8
    elif how == "row_bcast" and by == 15:
        source, valid = row - 1, lane >= 16
    elif how == "row_bcast" and by == 31:
        source, valid = np.full(width, 31), lane >= 32
    elif how == "wave_shr":
        source, valid = lane - 1, lane >= 1
    else:
        raise UnknownInstruction(f"DPP {dict(modifiers)}")
    rows, banks = int(modifiers.get("row_mask", "0xf"), 0), int(modifiers.get("bank_mask", "0xf"), 0)
    enabled = ((rows >> lane // 16) & (banks >> place // 4) & 1).astype(bool)
    zero = modifiers.get("bound_ctrl", "") != "" or how == "dpp8"
    return Movement(np.where(valid, source, 0), valid, enabled, zero)


def moved(w: Wave, value: np.ndarray, how: Movement) -> tuple[np.ndarray, np.ndarray]:
    """Values from their lanes, and flags of the lanes that are written. A lane that takes no part has no value to give."""
    taking_part = w.taking_part()
    value = np.broadcast_to(value, (w.width,))
    found = how.valid & taking_part[how.source]
    out = np.where(found, value[how.source], value.dtype.type(0))
    return out, how.enabled & taking_part & (found if not how.zero else True)


def _half(w: Wave, chip: int) -> int:
    return 32 if chip in (10, 11) and w.width == 64 else w.width  # there, permutations stay in half a wave


def fetched(w: Wave, address: np.ndarray, value: np.ndarray, more: int, chip: int) -> np.ndarray:
    """``ds_bpermute_b32``: the value of the lane at address / 4; 0 of one that takes no part."""
    size = _half(w, chip)
    source = w.numbers // size * size + ((address.astype(np.int64) + more) // 4) % size
    return np.where(w.taking_part()[source], value[source], np.uint32(0))


def pushed(w: Wave, address: np.ndarray, value: np.ndarray, more: int, chip: int) -> np.ndarray:
    """``ds_permute_b32``: a lane's value goes to the lane at address / 4; of several, the one with the highest number wins."""
    size = _half(w, chip)
    target = w.numbers // size * size + ((address.astype(np.int64) + more) // 4) % size
    out, lanes = np.zeros(w.width, np.uint32), np.flatnonzero(w.taking_part())
    out[target[lanes]] = value[lanes]
    return out


def swizzled(w: Wave, value: np.ndarray, pattern: int) -> np.ndarray:
    """``ds_swizzle_b32``: by fours, or by masks of the lane's number among 32."""
    lane = w.numbers % 32
    if pattern & 0x8000:
        picks = np.array([pattern >> 2 * k & 3 for k in range(4)])
        source = w.numbers // 4 * 4 + picks[w.numbers % 4]
    else:
        source = w.numbers // 32 * 32 + (((lane & (pattern & 31)) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31))
    return np.where(w.taking_part()[source], value[source], np.uint32(0))


def first_lane(w: Wave, value: np.ndarray) -> int:
    """The value of the first lane that takes part; of lane 0 if none does."""
    mask = w.exec()
    return value.item((mask & -mask).bit_length() - 1 if mask else 0)


def other_half(w: Wave, value: np.ndarray) -> np.ndarray:
    """``v_permlane64_b32``: lanes change places with those 32 places away."""
    return np.roll(value, 32) if w.width == 64 else value


def permuted_row(w: Wave, value: np.ndarray, low: int, high: int, crossed: bool) -> np.ndarray:
    """``v_permlane16_b32``, ``v_permlanex16_b32``: each lane names a lane of its row, or of the other row of two, with four bits."""
    picks = np.array([(low | high << 32) >> 4 * k & 15 for k in range(16)])
    row = w.numbers // 16 ^ (1 if crossed else 0)
    source = row * 16 + picks[w.numbers % 16]
    return np.where(w.taking_part()[source], value[source], np.uint32(0))


def lanes_before(w: Wave, mask: np.ndarray, start: np.ndarray, high: bool) -> np.ndarray:
    """``v_mbcnt``: how many bits of half a mask belong to lanes with lower numbers, plus a start."""
    below = np.clip(w.numbers - 32, 0, 32) if high else np.minimum(w.numbers, 32)
    lower = ((1 << below.astype(np.uint64)) - np.uint64(1)).astype(np.uint32)
    return ones(np.uint32(mask) & lower) + start
