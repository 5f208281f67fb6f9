"""``qd.simt``: what the threads of a GPU do together."""

from __future__ import annotations

from ...refused import refused_names
from . import block, grid, subgroup, warp

__getattr__ = refused_names(__name__, "simt.")


__all__ = ["block", "grid", "subgroup", "warp"]
