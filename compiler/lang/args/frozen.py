"""The arguments of a launch as they are now, for a tape."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.element_types import MatrixType, NdarrayType
from ..data.matrix import Matrix
from ..data.ndarray import Ndarray
from ..data.tensor import Tensor
from ..data.types import Template
from .binding import Binder
from .records import Frozen, frozen_record, template_key

_PLAIN = frozenset((int, float, bool, Ndarray))


def frozen_arguments(
    binder: Binder, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
    """All arguments as they are now: ``args`` itself where these are numbers and ndarrays.

    The second result has the ndarrays of objects after them: launches are alike where the numbers in it have the same types, and all else
    is the same object. None: identities do not tell the arguments apart.
    """
    if not kwargs and _PLAIN.issuperset(map(type, args)):
        return args, args
    now = tuple(_frozen(p.annotation, a) for p, a in zip(binder.params, binder.arguments(args, kwargs), strict=True))
    return now, _flat(binder, now)


def _flat(binder: Binder, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    out, arrays = list(args), list[Any]()
    for k, (param, arg) in enumerate(zip(binder.params, args)):
        if type(arg) in _PLAIN:
            continue
        if isinstance(arg, Frozen):
            if arg.numbers:
                return None
            out[k] = arg.value
            arrays += [array for _, array in arg.arrays]
        if param.annotation is not Template or template_key(out[k]) != ("id", id(out[k])):
            return None
    return (*out, *arrays) if all(type(a) is Ndarray for a in arrays) else None


def _frozen(annotation: Any, value: Any) -> Any:
    """An argument as it is now: numbers and vectors are copied, arrays are followed by their memory."""
    is_array = annotation is Tensor or isinstance(annotation, NdarrayType)
    typed = annotation is Template and isinstance(value, (np.generic, np.ndarray))  # kernels see the type of such a constant
    number = getattr(value, "ndim", None) == 0 and hasattr(value, "item")  # of numpy or torch
    if number and not is_array and not typed:
        return value.item()
    if isinstance(value, np.ndarray) and not is_array and annotation is not Template:
        return value.copy()  # a number for each trial
    if isinstance(annotation, MatrixType):
        return np.array(value.to_numpy() if isinstance(value, Matrix) else value)
    return frozen_record(annotation, value, _frozen)


def copied(value: Any) -> Any:
    """An argument of a Python function: vectors are copied, everything else is the caller's own object."""
    return value.__copy__() if isinstance(value, Matrix) else value
