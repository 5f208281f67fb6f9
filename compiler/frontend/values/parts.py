"""Slices of vectors and matrices: which components ``m[1, :]`` names, in the order of the result."""

from __future__ import annotations

import itertools
from typing import Any

from ...errors import QdrunIndexError

Index = tuple[Any, ...]


def has_slice(index: Index) -> bool:
    """Whether a part of the index is a slice."""
    return any(isinstance(part, slice) for part in index)


def components(shape: tuple[int, ...], index: Index) -> tuple[tuple[int, ...], list[Index]]:
    """The shape of what a slice selects, and the index of each of its components, row-major.

    The ends of a slice are Python's: negative ones count from the end, those beyond it are cut. The other indices may be known only at run
    time. One index of a matrix is a row.

    Raises:
        QdrunIndexError: wrong number of indices, or nothing is selected.
    """
    whole = (*index, slice(None)) if len(index) == 1 and len(shape) == 2 else index
    if len(whole) != len(shape):
        kind = "a matrix takes two indices" if len(shape) == 2 else "a vector takes one index"
        raise QdrunIndexError(f"{kind}, not {len(whole)}")
    axes = [range(*p.indices(extent)) if isinstance(p, slice) else (p,) for p, extent in zip(whole, shape)]
    out = tuple(len(axis) for axis, p in zip(axes, whole) if isinstance(p, slice))
    if not all(out):
        raise QdrunIndexError(
            f"the slice selects nothing of shape {shape}", hint="its ends are those of Python: begin:end:step"
        )
    return out, list(itertools.product(*axes))
