"""Arrays of other libraries that lie in the memory of a device.

They are known by ``__cuda_array_interface__``, which torch, cupy, jax, warp and numba have. Launches and other libraries are in order as
far as these use the default stream of the device; work on another stream is waited for where memory changes hands.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import QdrunTypeError
from ..layout.offsets import row_major

if TYPE_CHECKING:
    from ...runtime.mirror import Link


DLPACK_CUDA = 2  # DLPack's number of the device


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
            n == 1 or stride == step
            for n, stride, step in zip(self.shape, self.strides, row_major(self.shape, self.dtype.itemsize))
        )

    def dense_strides(self) -> tuple[int, ...]:
        """The strides of a row-major array of this shape."""
        return row_major(self.shape, self.dtype.itemsize)

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


def address_of(array: np.ndarray | NearArray) -> int:
    """The address of the first element of an array on the host or the device."""
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


def near_array(value: Any, link: Link | None) -> NearArray | None:
    """An array of another library, if it lies in the memory of this device; None: of the host, or of another device.

    What the program does is in order with the other library from then on.

    Raises:
        QdrunTypeError: elements of a type that numpy does not have.
    """
    if link is None or link.dlpack is None or link.dlpack[0] != DLPACK_CUDA or isinstance(value, np.ndarray):
        return None
    near = _near_torch(value, link) if is_torch(value) else _near_other(value, link)
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
    strides = found.get("strides") or row_major(shape, dtype.itemsize)
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


def is_torch(value: Any) -> bool:
    """Whether a value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def stream_of(value: Any) -> int | None:
    """The stream on which another library works on an array, None where that is in order with launches: the default stream."""
    if is_torch(value):
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


class InOrder:
    """Lets a launch come after, and before, what another library does on a stream that is not in order with ours."""

    def __init__(self, link: Link, stream: int) -> None:
        self.link, self.stream = link, stream

    @contextmanager
    def __call__(self, written: Container[object]) -> Iterator[None]:
        """The launch is made in this block."""
        del written
        self.link.settle(self.stream)
        yield
        self.link.settle()
