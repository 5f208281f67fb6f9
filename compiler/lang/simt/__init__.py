"""``qd.simt``: what the threads of a GPU do together."""

from __future__ import annotations

from . import block, grid, subgroup, warp
from .matrix_tiles import Tile16x16, Tile32x32

__all__ = ["Tile16x16", "Tile32x32", "block", "grid", "subgroup", "warp"]
