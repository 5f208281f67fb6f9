"""``byte_bounds`` of numpy, which numpy 2 has moved."""

from __future__ import annotations

try:
    from numpy.lib.array_utils import byte_bounds
except ImportError:
    from numpy import byte_bounds  # type: ignore[attr-defined,no-redef]

__all__ = ["byte_bounds"]
