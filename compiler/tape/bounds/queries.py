"""The questions that a plan asks about a launch: arguments, extents, arrays, and three questions about the content of arrays.

The questions: how many iterations pass a gate, the largest trip count of a loop over a range of indices, and the least and the most
element of a part of an array. Each has one answer: that of numpy over the arrays themselves. A ``Reducer`` gives the same number for
arrays that lie on a device. Where it gives none, the arrays are copied to the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...ir.nodes import ArgDecl, Place
from ...ir.types import DType
from .row_predicates import RowPredicate
from .sizeexpr import ElementRead, Range

Values = Any
Interval = tuple[int, int]


class HostInputs(Protocol):
    """The inputs of a launch that the host can read before it. An attribute ``reducer`` answers for arrays on a device."""

    def scalar(self, arg: ArgDecl) -> int | float:
        """The value of a scalar argument."""
        ...

    def extent(self, arg: ArgDecl, axis: int) -> int:
        """The extent of an ndarray argument along an axis."""
        ...

    def array(self, place: Place) -> np.ndarray:
        """The current content of an array, by its indices."""
        ...


@dataclass(frozen=True)
class IterationRange:
    """The iterations of a task: first index and number of indices of each axis; ``used``: the axes that the gate's conditions read."""

    begins: tuple[int, ...]
    sizes: tuple[int, ...]
    used: tuple[int, ...]

    @property
    def iterations(self) -> int:
        """All iterations."""
        return math.prod(self.sizes)

    @property
    def looked_at(self) -> int:
        """The index tuples that a full count evaluates."""
        return math.prod(self.sizes[k] for k in self.used)


@dataclass(frozen=True)
class Space:
    """All tuples of ``used`` indices (outermost first; a range may use those before it), and a loop inside.

    Attributes:
        few: of each index only so many values from both ends; 0: all.
    """

    loop: Range
    used: tuple[Range, ...]
    host: HostInputs
    few: int = 0


class Reducer(Protocol):
    """Answers questions about the content of arrays on a device. None: it cannot, or copies of the arrays cost less."""

    def far(self, place: Place) -> bool:
        """Whether an array stays on the device, and is not copied to evaluate a formula."""
        ...

    def element(self, place: Place, at: tuple[int, ...]) -> np.generic:
        """Read one element of an array; the index is in range."""
        ...

    def ends(self, read: ElementRead, window: tuple[tuple[int, int], ...], dtype: DType) -> tuple[int, int] | None:
        """The least and the most of the elements that a read may meet, as integers.

        Args:
            read: of the array.
            window: first index, and the one after the last, along each axis; they lie inside, and there is an element.
            dtype: the integer type that each element is taken in.
        """
        ...

    def passing(self, gate: RowPredicate, extent: IterationRange) -> int | None:
        """Count the tuples of the used indices of ``extent`` that pass a row predicate."""
        ...

    def trips(self, space: Space) -> tuple[int, int] | None:
        """The largest trip count over all tuples of a space, and the sum of all counts if that fits 62 bits (else -1)."""
        ...


def reducer_of(host: HostInputs) -> Reducer | None:
    """The reducer for arrays on a device; None for a host that has all arrays itself."""
    return getattr(host, "reducer", None)


def shape_of(host: HostInputs, place: Place) -> tuple[int, ...]:
    """The extents of an array, without reading its content."""
    if place.shape is not None:
        return place.shape
    owner = place.buffer.owner
    assert isinstance(owner, ArgDecl)
    return tuple(host.extent(owner, k) for k in range(place.ndim))


def single(host: HostInputs, place: Place, index: list[tuple[Values, Values]]) -> tuple[Values, Values] | None:
    """A read of one element of an array that lies elsewhere, and whether it is undefined; None: read the array itself.

    Args:
        host: the launch.
        place: the array.
        index: the indices, each with whether it means nothing.
    """
    if any(np.ndim(value) or np.ndim(bad) for value, bad in index):
        return None
    at = tuple(int(value) for value, _ in index)
    inside = all(0 <= k < n for k, n in zip(at, shape_of(host, place))) and not any(bad for _, bad in index)
    reducer = reducer_of(host)
    assert reducer is not None
    return (reducer.element(place, at), np.False_) if inside else (place.dtype.numpy.type(0), np.True_)
