"""Array arguments on a device with memory of its own: those of the host are lent for one launch, those of the device taken as they lie."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ...errors import QdrunTypeError
from ...program.memory.device_arrays import InOrder, NearArray, is_torch
from ..interop import bare

if TYPE_CHECKING:
    from ...program.call import Call
    from ...program.program import Program
    from ...runtime.mirror import Link


class Loan:
    """Device memory for one array of the host: allocated, filled, brought back if the kernel has written to it, and freed.

    Args:
        program: whose device it is.
        array: the caller's array; its content is what it is at the launch.
        call: the launch.
    """

    def __init__(self, program: Program, array: np.ndarray, call: Call) -> None:
        self._program, self._array, self._call = program, array, call
        self.uses: list[
            tuple[object, int]
        ] = []  # what ``Call.after`` names the array, and the byte of ``Call.words`` for its address

    @contextmanager
    def __call__(self, written: Container[object]) -> Iterator[None]:
        """Provides the staged memory during the launch. After a failed launch the array is unchanged."""
        device, array = self._program.device, self._array
        dtype = array.dtype.newbyteorder("=")
        memory = self._program.allocate(array.nbytes, "arguments")
        link: Link = device.link  # type: ignore[assignment]
        try:
            plain = np.ascontiguousarray(array, dtype)
            if array.size:
                link.upload(memory.ptr, plain.ctypes.data, plain.nbytes)
            for _, at in self.uses:
                self._call.words[at : at + 8] = memory.ptr.to_bytes(8, "little")
            yield
            if array.size and array.flags.writeable and any(number in written for number, _ in self.uses):
                direct = array.flags.c_contiguous and array.dtype.isnative
                back = array if direct else plain if plain.base is None and plain is not array else np.empty(array.shape, dtype)
                link.download(back.ctypes.data, memory.ptr, array.nbytes)
                if back is not array:
                    np.copyto(array, back)
                link.arrived()
        finally:
            device.free(memory)


def lend(program: Program, array: np.ndarray, call: Call, number: object, word: int) -> None:
    """Let a launch have an array of the host.

    Args:
        program: the current one.
        array: the array; the same view given twice has one memory.
        call: the launch.
        number: what ``Call.after`` names it: its ``ArgDecl.index``, or ("grad", index).
        word: the byte of ``Call.words`` where its address goes.
    """
    twin = next((x for x in call.loans if isinstance(x, Loan) and same_view(x._array, array)), None)
    if twin is None:
        twin = Loan(program, array, call)
        call.loans.append(twin)
    twin.uses.append((number, word))


def same_view(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays show the same elements."""
    return a is b or (
        a.__array_interface__["data"] == b.__array_interface__["data"]
        and (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides)
    )


def take(near: NearArray, call: Call, number: int) -> NearArray:
    """The array that the launch works on: an array of the device where it lies, or a dense copy that torch makes of it there.

    Raises:
        QdrunTypeError: it is not dense, and no array of torch.
    """
    value = near.owner
    if near.stream:
        call.loans.append(InOrder(near.link, near.stream))
    if near.dense:
        return near
    if not is_torch(value):
        raise QdrunTypeError(
            f"an array of the device with strides {near.strides} is not row-major", hint="pass a contiguous copy of it"
        )
    copy = bare(value).contiguous()
    call.kept.append(copy)
    call.after.append((number, lambda: bare(value).copy_(copy)))
    return NearArray(copy.data_ptr(), near.shape, near.dense_strides(), near.dtype, copy, near.link, near.readonly, near.stream)
