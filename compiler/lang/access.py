"""Reading and writing one element of a numpy view from Python: index checks and vector elements."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..errors import QdrunIndexError, QdrunTypeError
from .matrix import Matrix, wrap


def element_index(index: Any, shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """A Python index as a checked tuple; ``None`` and ``()`` are the index of a 0-D tensor.

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
    for axis, (i, extent) in enumerate(zip(out, shape)):
        if not 0 <= i < extent:
            raise QdrunIndexError(f"index {i} is out of range for axis {axis} of `{name}` of extent {extent}")
    return out


def get_element(array: np.ndarray, index: tuple[int, ...]) -> Any:
    """A scalar element as a Python number; a vector element as a ``Matrix`` that writes through to ``array``."""
    found = array[index]
    return wrap(found) if isinstance(found, np.ndarray) and found.ndim else found.item()


def set_element(array: np.ndarray, index: tuple[int, ...], value: Any, name: str) -> None:
    """Write an element: a number, or for a vector element a vector, a list or a number for every component.

    Raises:
        QdrunTypeError: the shape of ``value`` is not that of an element.
    """
    element = array.shape[len(index) :]
    new = np.asarray(value.to_numpy() if isinstance(value, Matrix) else value)
    if new.shape not in ((), element):
        raise QdrunTypeError(f"`{name}` holds elements of shape {element}, not {new.shape}")
    array[index] = new


def fill_array(array: np.ndarray, value: Any, element: tuple[int, ...], name: str) -> None:
    """Write ``value`` to every element.

    Raises:
        QdrunTypeError: the shape of ``value`` is not that of an element.
    """
    new = np.asarray(value.to_numpy() if isinstance(value, Matrix) else value)
    if new.shape not in ((), element):
        raise QdrunTypeError(f"`{name}` holds elements of shape {element}, not {new.shape}")
    array[...] = new


def assign_array(array: np.ndarray, source: Any, name: str) -> None:
    """Copy a whole numpy array (or what numpy can read) of the same shape; values are cast.

    Raises:
        QdrunTypeError: the shapes differ.
    """
    new = np.asarray(source)
    if new.shape != array.shape:
        raise QdrunTypeError(f"`{name}` has shape {array.shape}, the array has shape {new.shape}")
    array[...] = new
