"""The numbers on the device that decide what a graph kernel with stages launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import QdrunTypeError
from ...program.memory.device_arrays import is_torch
from ...runtime.gpu.driver import DeviceFlag
from ...runtime.recording import Unrecordable
from ..data.field import Field
from ..data.ndarray import Ndarray
from ..data.tensor import unwrap
from ..interop import host_array
from .stages import Flag


def number_of(flag: Flag, arguments: Sequence[Any]) -> int:
    """The integer in an array without axes.

    Raises:
        QdrunTypeError: it is another thing.
    """
    value = unwrap(flag.value(arguments))
    if _is_integer(value):
        return int(value._content[()])  # a tenth of the time of value[None]
    if isinstance(value, np.ndarray) or is_torch(value):
        array = host_array(value)
        if array.shape == () and array.dtype.kind in "iu":
            return int(array)
    raise QdrunTypeError(
        f"{flag.use} takes an integer ndarray or field without axes, not {value!r}",
        flag.loc,
        "make qd.ndarray(qd.i32, shape=())",
    )


def word_of(flag: Flag, arguments: Sequence[Any]) -> DeviceFlag:
    """The place of a flag on the device.

    Raises:
        Unrecordable: it is no ndarray and no field of the program, so that the host must read it.
    """
    return place_of(flag, unwrap(flag.value(arguments)))


def place_of(flag: Flag, value: Any) -> DeviceFlag:
    """The place of an array that is a flag. See ``word_of``."""
    if not _is_integer(value) or value._mirror is None:
        raise Unrecordable(f"the number of {flag.use} is not on the device\n  do: make it a qd.ndarray or a qd.field")
    return DeviceFlag(value._mirror.device_address(value._form), value.dtype.size)


def _is_integer(value: Any) -> bool:
    if not isinstance(value, (Ndarray, Field)):
        return False
    element = value.element if isinstance(value, Field) else value.element_shape
    return value.shape == () and value.dtype.is_int and not element
