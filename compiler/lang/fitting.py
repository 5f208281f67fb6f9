"""Refuses numbers that Python writes to an array whose type cannot hold them, as kernels refuse such arguments and literals."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import QdrunFitError, QdrunTypeError
from ..ir.types import from_numpy, limits

_HINT = "write numbers that fit, or give the array a wider type; for the bits, write array.view(dtype)"


def numbers(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """What numpy makes of a number or a list; integers beyond 63 bits beside smaller ones stay exact for integer types."""
    found = np.asarray(value)
    if found.dtype.kind == "f" and dtype.kind in "iu" and isinstance(value, (list, tuple)):
        return np.asarray(value, object)
    return found


def fitting(values: np.ndarray, dtype: np.dtype[Any], name: str) -> np.ndarray:
    """``values`` for an array of ``dtype``: reals lose their fraction in integers, and are rounded to a narrower real type.

    Args:
        values: the numbers, of any type.
        dtype: the type of the array.
        name: what messages call the array, in quotes if it is a name.

    Raises:
        QdrunFitError: an integer type does not hold one of them.
        QdrunTypeError: they are no numbers.
    """
    if values.dtype.kind not in "fiub":
        return _from_objects(values, dtype, name)
    if dtype.kind not in "iu" or values.dtype.kind == "b" or np.can_cast(values.dtype, dtype) or not values.size:
        return values
    low, high = limits(from_numpy(dtype))
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            inside = (values > low - 1) & (values < high + 1)  # a NaN is not
        bad = None if inside.all() else ~inside
    else:
        bad = None if low <= int(values.min()) and int(values.max()) <= high else (values < low) | (values > high)
    if bad is not None:
        _refuse(values, np.argwhere(bad)[0], dtype, name)
    return values


def _from_objects(values: np.ndarray, dtype: np.dtype[Any], name: str) -> np.ndarray:
    """Integers of Python of more than 64 bits, and what is no number."""
    for where, x in np.ndenumerate(values):
        x = x.item() if isinstance(x, np.generic) else x
        if not isinstance(x, (int, float)):
            raise QdrunTypeError(f"{name} holds numbers, not {x!r} of type {type(x).__name__}")
        if dtype.kind in "iu":
            low, high = limits(from_numpy(dtype))
            if not low <= x <= high:
                _refuse(values, np.array(where, int), dtype, name)
    return values.astype(dtype)


def _refuse(values: np.ndarray, where: np.ndarray, dtype: np.dtype[Any], name: str) -> None:
    value, kind = values[tuple(where)], from_numpy(dtype)
    value = value.item() if isinstance(value, np.generic) else value
    low, high = limits(kind)
    at = f" at index {tuple(map(int, where))}" if values.ndim else ""
    raise QdrunFitError(f"{name}: {value}{at} does not fit {kind} ({low} to {high})", hint=_HINT)
