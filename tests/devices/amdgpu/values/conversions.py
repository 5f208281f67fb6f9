"""Conversions between types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .integers import packed

Array = np.ndarray


def to_integer(kind: type) -> Callable[[Array], Array]:
    """Toward zero; what does not fit becomes the nearest value that does, NaN becomes zero."""
    limits = np.iinfo(kind)

    def function(x: Array) -> Array:
        wide = np.where(np.isnan(x), 0.0, np.trunc(x.astype(np.float64)))
        return np.clip(wide, limits.min, limits.max).astype(np.int64).astype(kind)

    return function


def to_type(kind: type) -> Callable[[Array], Array]:
    """The nearest value."""

    def function(x: Array) -> Array:
        return x.astype(kind)

    return function


def byte_to_float(number: int) -> Callable[[Array], Array]:
    """One byte of 32 bits."""

    def function(x: Array) -> Array:
        return ((x >> np.uint32(8 * number)) & np.uint32(255)).astype(np.float32)

    return function


def _toward_zero(x: Array) -> Array:
    near = x.astype(np.float16)
    beyond = np.abs(near.astype(np.float32)) > np.abs(x)
    return np.where(beyond & np.isfinite(x), (near.view(np.uint16) - np.uint16(1)).view(np.float16), near)


def two_halves(a: Array, b: Array) -> Array:
    """Two floats as 16-bit ones, rounded toward zero."""
    return packed(_toward_zero(a), _toward_zero(b))


def rounded_down(x: Array) -> Array:
    """``floor`` as an integer."""
    return _INT32(np.floor(x))


def rounded_near(x: Array) -> Array:
    """``floor(x + 0.5)`` as an integer."""
    return _INT32(np.floor(x + x.dtype.type(0.5)))


_INT32: Any = to_integer(np.int32)
