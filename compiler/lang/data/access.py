"""Reading and writing one element of a numpy view from Python: index checks and vector elements."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import QdrunFitError, QdrunIndexError, QdrunTypeError
from ...frontend.values import matrix as front
from ...frontend.values.values import flat_index
from ...ir.trials import ONE, TrialLayout
from ...ir.types import from_numpy
from ...runtime.mirror import Mirror, copy, store
from ...runtime.runs import unpacked
from ..fitting import fitting, numbers
from .matrix import Matrix, Vector, wrap


def element_index(index: Any, shape: tuple[int, ...], name: str, offset: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """A Python index as a checked tuple, counted from 0; ``None`` and ``()`` are the index of a 0-D tensor.

    ``offset``: the lowest index of each axis, None for zeros.

    Raises:
        QdrunIndexError: wrong number of indices, or one out of range.
        QdrunTypeError: an index that is not an integer.
    """
    if index is None:
        index = ()
    parts = tuple(index) if isinstance(index, (tuple, list, Matrix)) else (index,)
    if parts == (None,):
        parts = ()
    if len(parts) != len(shape):
        raise QdrunIndexError(f"`{name}` takes {len(shape)} indices, not {len(parts)}")
    try:
        out = tuple(operator.index(p) for p in parts)
    except TypeError as e:
        raise QdrunTypeError(f"the index {index!r} of `{name}` is not an integer") from e
    for axis, (i, extent, begin) in enumerate(zip(out, shape, offset or (0,) * len(shape))):
        if not begin <= i < begin + extent:
            limit = front.index_limit(extent, begin)
            raise QdrunIndexError(f"index {i} is out of range for axis {axis} of `{name}`{limit}")
    return out if offset is None else tuple(i - begin for i, begin in zip(out, offset))


class _Element:
    """A vector element of a tensor: writes go through, and ``_wrote`` is told before: by which indices, one in the other."""

    __slots__ = ()
    _slots = ("_data", "_dtype", "_wrote")
    if TYPE_CHECKING:
        _data: np.ndarray
        _wrote: Callable[..., Any]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._slots:
            object.__setattr__(self, name, value)
        else:
            positions = front.swizzle_positions(self._data.shape, name)
            self._wrote(*(() if positions is None else (list(positions),)))
            super().__setattr__(name, value)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)  # type: ignore[misc]
        if not isinstance(found, Matrix):
            return found
        return _element(
            found._data, functools.partial(self._wrote, tuple(index) if isinstance(index, (list, Matrix)) else index)
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        self._wrote(index)
        super().__setitem__(index, value)  # type: ignore[misc]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kw: Any) -> Any:
        if kw.get("out"):
            self._wrote()
        return super().__array_ufunc__(ufunc, method, *inputs, **kw)  # type: ignore[misc]

    def __copy__(self) -> Any:
        return wrap(self._data.copy())

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()

    def __reduce__(self) -> Any:
        return self.__copy__().__reduce__()

    def fill(self, val: Any) -> None:
        """Set every component."""
        self._wrote()
        super().fill(val)  # type: ignore[misc]


class _VectorElement(_Element, Vector):
    __slots__ = ("_wrote",)


class _MatrixElement(_Element, Matrix):
    __slots__ = ("_wrote",)


def _element(data: np.ndarray, wrote: Callable[..., Any]) -> Any:
    out: Any = object.__new__(_VectorElement if data.ndim == 1 else _MatrixElement)
    out._data, out._dtype, out._wrote = data, from_numpy(data.dtype), wrote
    return out


class _Mirrored:
    """A vector element in memory that the host cannot touch: each use of it reads there, each write goes there."""

    __slots__ = ()
    _slots = ("_dtype", "_mirror", "_place", "_wrote")
    if TYPE_CHECKING:
        _mirror: Mirror
        _place: np.ndarray

    @property
    def _data(self) -> np.ndarray:  # instead of the slot of that name
        return self._mirror.peek(self._place)

    def _changing(self) -> AbstractContextManager[np.ndarray]:
        return self._mirror.writing(self._data)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._slots:
            object.__setattr__(self, name, value)
        else:
            with self._changing():
                super().__setattr__(name, value)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)  # type: ignore[misc]
        return _mirrored(self._mirror, found._data, found._wrote) if isinstance(found, _Element) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        with self._changing():
            super().__setitem__(index, value)  # type: ignore[misc]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kw: Any) -> Any:
        with self._changing() if kw.get("out") else nullcontext():
            return super().__array_ufunc__(ufunc, method, *inputs, **kw)  # type: ignore[misc]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._data, dtype)

    @property
    def entries(self) -> np.ndarray:
        """A copy of the components."""
        return self._data.copy()

    def fill(self, val: Any) -> None:
        """Set every component."""
        with self._changing():
            super().fill(val)  # type: ignore[misc]


class _MirroredVector(_Mirrored, _VectorElement):  # pyright: ignore[reportIncompatibleVariableOverride]
    __slots__ = ("_mirror", "_place")


class _MirroredMatrix(_Mirrored, _MatrixElement):  # pyright: ignore[reportIncompatibleVariableOverride]
    __slots__ = ("_mirror", "_place")


def _mirrored(mirror: Mirror, place: np.ndarray, wrote: Callable[..., Any]) -> Any:
    if not mirror.covers(place):  # a copy of some components
        return _element(place, wrote)
    out: Any = object.__new__(_MirroredVector if place.ndim == 1 else _MirroredMatrix)
    out._mirror, out._place, out._dtype, out._wrote = mirror, place, from_numpy(place.dtype), wrote
    return out


def mirrored_element(mirror: Mirror, array: np.ndarray, index: tuple[int, ...], wrote: Callable[..., Any]) -> Any:
    """``get_element`` in memory that the host cannot touch; only the bytes of the element are read there."""
    found = array[(*index, ...)]
    if found.ndim:
        return _mirrored(mirror, found, lambda *parts: wrote(index, parts=parts))
    return mirror.peek(found).item()


def get_element(array: np.ndarray, index: tuple[int, ...], wrote: Callable[..., Any]) -> Any:
    """A scalar element as a Python number; a vector element as a ``Matrix`` that writes through to ``array``.

    ``wrote``: called before a component of the element is written, with ``index`` and ``parts``, the indices within the element.
    """
    found = array[index]
    if not (isinstance(found, np.ndarray) and found.ndim):
        return found.item()
    return _element(found, lambda *parts: wrote(index, parts=parts))


def set_element(array: np.ndarray, index: tuple[int, ...], value: Any, name: str, mirror: Mirror | None = None) -> None:
    """Write an element: a number, or for a vector element a vector, a list or a number for every component.

    Raises:
        QdrunFitError: the shape of ``value`` is not that of an element, or the type does not hold a number.
    """
    element = array.shape[len(index) :]
    new = _element_of(value, array.dtype, element, name)
    if mirror is None:
        array[index] = new
    elif (place := array[(*index, ...)]).shape != element:  # of many trials
        store(mirror, place, new)
    else:
        with mirror.writing(place) as found:
            found[...] = new


def _element_of(value: Any, dtype: np.dtype, element: tuple[int, ...], name: str) -> np.ndarray:
    """What is written to an element, or a number for all of its components."""
    new = numbers(value.to_numpy() if isinstance(value, Matrix) else value, dtype)
    if new.shape not in ((), element):
        raise QdrunFitError(f"`{name}` holds elements of shape {element}, not {new.shape}")
    return fitting(new, dtype, f"`{name}`")


def fill_array(array: np.ndarray, value: Any, element: tuple[int, ...], name: str, mirror: Mirror | None = None) -> None:
    """Write ``value`` to every element.

    Raises:
        QdrunFitError: the shape of ``value`` is not that of an element, or the type does not hold a number.
    """
    new = _element_of(value, array.dtype, element, name)
    if mirror is not None:
        mirror.fill(array, new)
    elif new.ndim and array.flags.c_contiguous and array.size >= 2 * ROW:
        repeat(array.reshape(-1), new.reshape(-1).astype(array.dtype))
    else:
        array[...] = new


ROW = 4096
"""Numbers that are copied at once: numpy broadcasts a vector of three with a loop of three."""


def repeat(array: np.ndarray, element: np.ndarray) -> None:
    """Fill an array without gaps with copies of an element, of the same type."""
    row = np.tile(element, ROW // element.size + 1)
    rows = array.size // row.size
    array[: rows * row.size].reshape(rows, row.size)[:] = row
    rest = array.size - rows * row.size
    array[rows * row.size :] = row[:rest]


def assign_array(
    array: np.ndarray,
    source: Any,
    name: str,
    mirror: Mirror | None = None,
    other: Mirror | None = None,
    trials: TrialLayout = ONE,
) -> None:
    """Copy a whole numpy array (or what numpy can read) of the same shape; values are cast.

    Args:
        array: the memory.
        source: the source of the copy.
        name: the name of the memory in messages.
        mirror: the mirror of the memory.
        other: the mirror of ``source``.
        trials: the trials of ``array``: ``source`` has them as first axis, or is the content of one trial, which is copied to each.

    Raises:
        QdrunFitError: the shapes differ, or the type does not hold a number.
    """
    new = fitting(np.asarray(source), array.dtype, f"`{name}`")
    if trials.batched:
        one = array.shape[2:]
        if new.shape not in (one, trials.shape(one)):
            shapes = f"{trials.shape(one)} with all trials, {one} with one"
            raise QdrunFitError(f"`{name}` has shape {shapes}; the array has shape {new.shape}")
        content = array if mirror is None else unpacked(np.empty(array.size, array.dtype), array)
        trials.assign(content, new if new.ndim > len(one) else np.broadcast_to(new, trials.shape(one)))
        if mirror is not None:
            mirror.assign(array, content)
        return
    if new.shape != array.shape:
        raise QdrunFitError(f"`{name}` has shape {array.shape}, the array has shape {new.shape}")
    copy(mirror, array, other, new)


def component_number(element: tuple[int, ...], name: str, indices: tuple[int, ...]) -> int:
    """The number of a component in an element. A matrix takes one index for a component of its first column.

    Raises:
        QdrunIndexError: there is no such component.
    """
    at = (*indices, 0) if len(element) == 2 and len(indices) == 1 else indices[: len(element) or None]
    if len(at) != len(element) or not all(0 <= i < n for i, n in zip(at, element)):
        raise QdrunIndexError(f"`{name}` has no component {indices}: its elements have shape {element}")
    return flat_index(element, at)


def part_indices(element: tuple[int, ...], k: int) -> tuple[int, ...]:
    """The indices of a component in an element, by its number."""
    return tuple(int(i) for i in np.unravel_index(k, element))
