"""Memory on a device that several libraries use: arrays of others that kernels take where they lie, and ours as theirs.

Our memory goes out through DLPack and ``__cuda_array_interface__``. Theirs is known by the latter, which torch, cupy, jax, warp and numba
have. Launches and other libraries are in order as far as these use the default stream of the device; what runs on another stream is
waited for where memory changes hands.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import QdrunRuntimeError, QdrunTypeError, QdrunValueError

if TYPE_CHECKING:
    from ..runtime.mirror import Link, Mirror

_CUDA = 2  # DLPack's number of the device
_DEVICE_AT = {b"dltensor": 8, b"dltensor_versioned": 40}
"""Where a DLPack record of each kind holds the type and the number of its device, two 32-bit integers."""


@dataclass(frozen=True, eq=False)
class NearArray:
    """An array of another library in the memory of a program's device.

    Attributes:
        address: of its first element, on the device.
        shape: extents.
        strides: bytes from one element to the next along each axis.
        dtype: of its elements.
        owner: the library's own object: it keeps the memory alive.
        link: the device.
        readonly: it must not be written.
        stream: on which its library works; 0: the default one.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any
    link: Link
    readonly: bool = False
    stream: int = 0

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    @property
    def dense(self) -> bool:
        """Whether it lies as numpy's row-major arrays do."""
        return self.size == 0 or all(
            n == 1 or stride == step for n, stride, step in zip(self.shape, self.strides, _row_major(self.shape, self.dtype))
        )

    def dense_strides(self) -> tuple[int, ...]:
        """The strides of a row-major array of this shape."""
        return _row_major(self.shape, self.dtype)

    def copy(self) -> np.ndarray:
        """The content as an array of the host.

        Raises:
            QdrunTypeError: it is not dense.
        """
        if not self.dense:
            raise QdrunTypeError(f"an array with strides {self.strides} is not read from the device", hint="make it contiguous")
        out = np.empty(self.shape, self.dtype)
        if self.size:
            self.link.settle(self.stream)
            self.link.download(out.ctypes.data, self.address, out.nbytes)
            self.link.arrived()
        return out

    def write(self, content: np.ndarray) -> None:
        """Overwrite a dense array with one of the host, of its shape and type."""
        if self.size:
            plain = np.ascontiguousarray(content, self.dtype)
            self.link.settle(self.stream)
            self.link.upload(self.address, plain.ctypes.data, plain.nbytes)
            if self.stream:
                self.link.settle()


def _row_major(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    out, step = [], dtype.itemsize
    for n in reversed(shape):
        out.append(step)
        step *= n
    return tuple(reversed(out))


def address_of(array: np.ndarray | NearArray) -> int:
    """Where the first element of an array of the host or of the device lies."""
    return array.address if isinstance(array, NearArray) else array.__array_interface__["data"][0]


def host_content(array: np.ndarray | NearArray) -> np.ndarray:
    """The content of an array of the host or of the device."""
    return array.copy() if isinstance(array, NearArray) else array


def put_content(array: np.ndarray | NearArray, content: np.ndarray) -> None:
    """Overwrite an array of the host or of the device."""
    if isinstance(array, NearArray):
        array.write(content)
    else:
        np.copyto(array, content)


# ---- theirs
def offers_device_memory(value: Any) -> bool:
    """Whether a value is an array of another library on some device."""
    foreign = not isinstance(value, (np.ndarray, SharedOnDevice)) and not _is_torch(value)
    return foreign and hasattr(type(value), "__cuda_array_interface__")


def near_array(value: Any, link: Link | None) -> NearArray | None:
    """An array of another library, if it lies in the memory of this device; None: of the host, or of another device.

    What the program does is in order with the other library from then on.

    Raises:
        QdrunTypeError: elements of a type that numpy does not have.
    """
    if link is None or link.dlpack is None or link.dlpack[0] != _CUDA or isinstance(value, np.ndarray):
        return None
    near = _near_torch(value, link) if _is_torch(value) else _near_other(value, link)
    if near is not None:
        link.join()
    return near


def _near_other(value: Any, link: Link) -> NearArray | None:
    assert link.dlpack is not None
    found = getattr(value, "__cuda_array_interface__", None)
    if not isinstance(found, dict) or _number_of(value) not in (None, link.dlpack[1]):
        return None
    shape, dtype = tuple(found["shape"]), np.dtype(found["typestr"])
    address, readonly = found["data"]
    strides = found.get("strides") or _row_major(shape, dtype)
    return NearArray(int(address or 0), shape, tuple(strides), dtype, value, link, bool(readonly), stream_of(value) or 0)


def _near_torch(value: Any, link: Link) -> NearArray | None:
    torch = sys.modules["torch"]
    if not value.is_cuda or value.layout is not torch.strided or link.dlpack is None or value.get_device() != link.dlpack[1]:
        return None
    if value.is_conj() or value.is_neg():
        return None
    try:
        dtype = torch.empty(0, dtype=value.dtype).numpy().dtype
    except TypeError as e:
        raise QdrunTypeError(f"{value.dtype} has no kernel type", hint="use tensor.float()") from e
    strides = tuple(dtype.itemsize * s for s in value.stride())
    return NearArray(value.data_ptr(), tuple(value.shape), strides, dtype, value, link, stream=stream_of(value) or 0)


def _number_of(value: Any) -> int | None:
    """The number of the device that an array lies on, as far as its library says it: cupy's and numba's arrays, jax's."""
    device = getattr(value, "device", None)
    number = getattr(device, "id", device)
    return number if isinstance(number, int) else None


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def stream_of(value: Any) -> int | None:
    """The stream on which another library works on an array, None where that is in order with launches: the default stream."""
    if _is_torch(value):
        torch = sys.modules["torch"]
        found = torch.cuda.current_stream(value.device).cuda_stream if value.is_cuda else None
    else:
        found = getattr(value, "__cuda_array_interface__", {}).get("stream")
    return None if found in (None, 0, 1) else found


def may_share(a: Any, b: Any) -> bool:
    """Whether two arrays of the host or of the device may have bytes in common."""
    if isinstance(a, NearArray) and isinstance(b, NearArray):
        return a.address < b.address + b.nbytes and b.address < a.address + a.nbytes
    return not isinstance(a, NearArray) and not isinstance(b, NearArray) and np.may_share_memory(a, b)


# ---- ours
class SharedOnDevice:
    """What fields, ndarrays and tensors are to libraries that work on the same device."""

    __slots__ = ()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        tensor: Any = self
        mirror: Mirror | None = tensor._mirror_if_placed()
        if mirror is None or mirror.link.dlpack is None or mirror.link.dlpack[0] != _CUDA:
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
        QdrunValueError: nobody else can use that memory.
    """
    place = tensor._mirror.link.dlpack
    if place is None:
        raise QdrunValueError(f"{tensor._called()} lies in memory that other libraries do not know; do: use to_numpy()")
    return place


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
    """Hand a tensor's memory out: its mirror is copied anew each time from now on, and whoever keeps records is told."""
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


__all__ = ["NearArray", "SharedOnDevice", "address_of", "assign_near", "host_content", "near_array", "put_content", "torch_of"]
