"""Memory on a device that several libraries use: arrays of others that kernels take where they lie, and ours as theirs.

Our memory goes out through DLPack and ``__cuda_array_interface__``. Theirs is known by the latter, which torch, cupy, jax, warp and numba
have. Launches and other libraries are in order as far as these use the default stream of the device; what runs on another stream is
waited for where memory changes hands.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import QdrunRuntimeError, QdrunValueError
from ..program.memory.device_arrays import DLPACK_CUDA, is_torch, near_array

if TYPE_CHECKING:
    from ..runtime.mirror import Mirror

_DEVICE_AT = {b"dltensor": 8, b"dltensor_versioned": 40}
"""The offset of the device type and number (two 32-bit integers) in a DLPack record of each kind."""


# ---- ours
class SharedOnDevice:
    """The interfaces of fields, ndarrays and tensors for libraries on the same device."""

    __slots__ = ()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        tensor: Any = self
        mirror: Mirror | None = tensor._mirror_if_placed()
        if mirror is None or tensor._trials.batched or mirror.link.dlpack is None or mirror.link.dlpack[0] != DLPACK_CUDA:
            raise AttributeError("__cuda_array_interface__")
        form = _shared(tensor, tensor._form)
        return {
            "shape": form.shape,
            "typestr": form.dtype.str,
            "data": (mirror.device_address(form), False),
            "strides": form.strides,
            "version": 3,
            "stream": mirror.link.stream or None,
        }


def dlpack_device(tensor: Any) -> tuple[int, int]:
    """The DLPack device of a tensor on a device with memory of its own.

    Raises:
        QdrunValueError: other libraries cannot use this memory.
    """
    link = tensor._mirror.link
    if link.dlpack is None:
        raise QdrunValueError(
            f"{tensor._called()} lies in the memory of {link.name}, which is not shared with other libraries\n"
            "  do: x.to_numpy() for a copy, and x.from_numpy(array) to write it back"
        )
    return link.dlpack


def dlpack(tensor: Any, form: np.ndarray, version: tuple[int, int] | None, device: Any, copy: bool | None) -> Any:
    """``__dlpack__`` of a tensor, shown as ``form``, on a device with memory of its own.

    Raises:
        QdrunValueError: another device is asked for, or a copy on the device.
    """
    host = device is not None and tuple(device) == (1, 0)
    if host and copy is not False:
        made = tensor._mirror.copied(form)
        return made.__dlpack__(max_version=version) if version is not None else made.__dlpack__()
    own = dlpack_device(tensor)
    if device is not None and tuple(device) != own:
        raise QdrunValueError(f"{tensor._called()} lies on DLPack device {own}, not on {tuple(device)}")
    if copy:
        raise QdrunValueError(f"{tensor._called()} is shared, not copied, on its device; do: torch.from_dlpack(x).clone()")
    return capsule_of(tensor, form, version)


def capsule_of(tensor: Any, form: np.ndarray, version: tuple[int, int] | None) -> Any:
    """A DLPack capsule of a part of a tensor's memory on the device. What was launched has ended when it is handed out.

    numpy makes the record, and keeps its side alive, of an array that stands at the device's address; nothing reads it. Then the record is
    told the device.
    """
    number = dlpack_device(tensor)
    form = _shared(tensor, form)
    stand_in = np.asarray(_StandIn(tensor, form, tensor._mirror.device_address(form)))
    try:
        capsule = stand_in.__dlpack__(max_version=version) if version is not None else stand_in.__dlpack__()
    except (BufferError, RuntimeError) as e:
        raise QdrunValueError(f"the memory of {tensor._called()} has no DLPack form: {e}; do: use to_numpy()") from e
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    at = api.PyCapsule_GetPointer(capsule, name) + _DEVICE_AT[name]
    (ctypes.c_int32 * 2).from_address(at)[:] = number
    return capsule


class _StandIn:
    """The memory of a tensor as numpy is told of it. It keeps the tensor."""

    def __init__(self, tensor: Any, form: np.ndarray, address: int) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": form.shape,
            "typestr": form.dtype.str,
            "data": (address, False),
            "strides": form.strides,
        }


def _shared(tensor: Any, form: np.ndarray) -> np.ndarray:
    """Export a tensor's memory: from now on its mirror is copied at each read. The recorders are told."""
    mirror: Mirror = tensor._mirror
    mirror.link.join()
    mirror.link.settle()
    mirror.shared = True
    tensor._show()
    return form


def torch_of(tensor: Any, form: np.ndarray, device: Any, copy: bool | None) -> Any:
    """``to_torch`` of a part of a tensor on a device with memory of its own.

    Args:
        tensor: whose memory it is.
        form: the part.
        device: of the torch tensor. None: the host for a copy, else the device where the memory lies.
        copy: True for a copy, False for the memory itself, None for what can be had without a copy.

    Raises:
        QdrunRuntimeError: torch is not installed.
        QdrunValueError: ``copy=False`` with another device.
    """
    try:
        import torch
    except ImportError as e:
        raise QdrunRuntimeError("torch is not installed; do: pip install torch, or use to_numpy()") from e
    mirror: Mirror = tensor._mirror
    wanted = None if device is None else torch.device(device)
    place = mirror.link.dlpack
    here = place is not None and (
        copy is not True if wanted is None else wanted.type == "cuda" and wanted.index in (None, place[1])
    )
    if here:
        made = torch.utils.dlpack.from_dlpack(capsule_of(tensor, form, None))
        return made.clone() if copy else made
    if copy is False:
        where = "the device" if wanted is None else wanted
        raise QdrunValueError(f"copy=False: the memory of {tensor._called()} cannot be shown on {where}; do: copy=None or True")
    made = torch.from_numpy(mirror.copied(form))
    return made if wanted is None else made.to(wanted)


def assign_near(tensor: Any, value: Any, form: np.ndarray) -> bool:
    """Copy an array that lies on the tensor's device, without the host. False: that is not possible, nothing was done."""
    mirror: Mirror | None = tensor._mirror
    near = None if mirror is None else near_array(value, mirror.link)
    if mirror is None or near is None or not near.dense or near.dtype != form.dtype or near.shape != form.shape:
        return False
    if not form.flags.c_contiguous:
        return False
    if near.stream:
        mirror.link.settle(near.stream)
    mirror.overwrite(form, near.address)
    if near.stream:
        mirror.link.settle()
    return True


# ---- theirs
def offers_device_memory(value: Any) -> bool:
    """Whether a value is an array of another library on some device."""
    foreign = not isinstance(value, (np.ndarray, SharedOnDevice)) and not is_torch(value)
    return foreign and hasattr(type(value), "__cuda_array_interface__")
