"""Arrays that are passed to kernels as arguments, with their gradient beside them when they have one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import QdrunRuntimeError, QdrunTypeError
from ..frontend.values import count
from ..ir.types import DType
from ..runtime.device import Allocation
from .access import assign_array, element_index, fill_array, get_element, set_element
from .dtypes import resolve
from .types import MatrixType

if TYPE_CHECKING:
    from .program import Program

Key = tuple[DType, int, tuple[int, ...], bool]
_KEYS: dict[Key, Key] = {}


def intern_key(dtype: DType, ndim: int, element: tuple[int, ...], has_grad: bool) -> Key:
    """The one tuple object for (dtype, ndim, element shape, has a gradient): launchers compare it by identity."""
    key = (dtype, ndim, element, has_grad)
    return _KEYS.setdefault(key, key)


def pack(address: int, shape: tuple[int, ...], grad_address: int | None) -> bytes:
    """The words of an ndarray argument (see ``codegen.abi``): address, extents, and the gradient's address if there is one."""
    words = (address, *shape) if grad_address is None else (address, *shape, grad_address)
    return struct.pack(f"<{len(words)}Q", *words)


class Ndarray:
    """An array of numbers, vectors or matrices; row-major, the components of an element side by side. Made by ``qd.ndarray``.

    A native launcher reads the first two slots, so their order is part of the interface.
    """

    __slots__ = ("_key", "_packed", "_program", "_memory", "_view", "dtype", "element_shape", "grad", "shape", "__weakref__")  # noqa: RUF023

    def __init__(
        self, program: Program, dtype: DType, shape: tuple[int, ...], element: tuple[int, ...], needs_grad: bool, category: str
    ) -> None:
        self._program = program
        self.dtype, self.shape, self.element_shape = dtype, shape, element
        nbytes = count(shape) * count(element) * dtype.size
        self._memory: Allocation = program.allocate(nbytes, category)
        self._view = np.ndarray(shape + element, dtype.numpy, self._memory.view.data)
        self.grad: Ndarray | None = Ndarray(program, dtype, shape, element, False, "gradients") if needs_grad else None
        self._key = intern_key(dtype, len(shape), element, needs_grad)
        self._packed = pack(self._memory.ptr, shape, None if self.grad is None else self.grad._memory.ptr)
        if needs_grad:
            program.differentiable.add(self)

    def __del__(self) -> None:
        memory = getattr(self, "_memory", None)
        if memory is not None:
            self._program.device.free(memory)

    @property
    def view(self) -> np.ndarray:
        """The memory as a numpy array of shape ``shape + element_shape``, written through.

        Raises:
            QdrunRuntimeError: the program is closed.
        """
        if getattr(self._program, "closed", False):
            raise QdrunRuntimeError("this ndarray belongs to a program that is closed; do: make it after qd.init()")
        return self._view

    @property
    def address(self) -> int:
        """Where the first element lies."""
        return self._memory.ptr

    @property
    def ndim(self) -> int:
        """Number of indices."""
        return len(self.shape)

    @property
    def needs_grad(self) -> bool:
        """Whether a gradient is stored."""
        return self.grad is not None

    def __getitem__(self, index: Any) -> Any:
        return get_element(self.view, element_index(index, self.shape, "ndarray"))

    def _written(self) -> np.ndarray:
        """The memory, about to be written by Python: an open tape takes note."""
        tape = getattr(self._program, "tape", None)
        if tape is not None:
            tape.wrote(self)
        return self.view

    def __setitem__(self, index: Any, value: Any) -> None:
        set_element(self._written(), element_index(index, self.shape, "ndarray"), value, "ndarray")

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        raise QdrunTypeError("an ndarray cannot be iterated in Python", hint="use x.to_numpy(), or a kernel")

    def fill(self, value: Any) -> None:
        """Write ``value`` (a number, or a vector for arrays of vectors) to every element."""
        fill_array(self._written(), value, self.element_shape, "ndarray")

    def to_numpy(self, dtype: Any = None) -> np.ndarray:
        """A copy of shape ``shape + element_shape``."""
        return np.array(self.view, None if dtype is None else resolve(dtype).numpy, order="C")

    def from_numpy(self, array: Any) -> None:
        """Copy an array of shape ``shape + element_shape``; values are cast.

        Raises:
            QdrunTypeError: the shapes differ.
        """
        assign_array(self._written(), array, "ndarray")

    def copy_from(self, other: Ndarray) -> None:
        """Copy another ndarray of the same shape."""
        assign_array(self._written(), other.view, "ndarray")

    def __copy__(self) -> Ndarray:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: Any) -> Ndarray:
        out = Ndarray(self._program, self.dtype, self.shape, self.element_shape, self.needs_grad, self._memory.category)
        out.copy_from(self)
        return out

    def __repr__(self) -> str:
        return f"<ndarray {self.dtype}{list(self.element_shape) or ''}, {self.shape}>"


def ndarray(dtype: Any, shape: int | tuple[int, ...], needs_grad: bool = False) -> Ndarray:
    """Make an ndarray of zeros in the current program.

    Args:
        dtype: a scalar type (``qd.f32``, ``float``) or a vector or matrix type.
        shape: the extents, () for one number.
        needs_grad: also store a gradient.

    Raises:
        QdrunTypeError: a gradient of integers, or a shape that is no tuple of positive integers.
    """
    if isinstance(dtype, MatrixType):
        return dtype.ndarray(shape, needs_grad)
    return make_ndarray(resolve(dtype), shape, (), needs_grad)


def make_ndarray(
    dtype: DType, shape: Any, element: tuple[int, ...], needs_grad: bool = False, program: Program | None = None
) -> Ndarray:
    """An ndarray of any element shape; ``program`` is the current one unless it is given."""
    if needs_grad and not dtype.is_real:
        raise QdrunTypeError(f"{dtype} is not supported for an ndarray with needs_grad=True", hint="use qd.f32 or qd.f64")
    extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if any(not isinstance(e, (int, np.integer)) or e < 0 for e in extents):
        raise QdrunTypeError(f"the shape of an ndarray is made of integers that are not negative, not {shape!r}")
    if program is None:
        from .program import current_program

        program = current_program()
    return Ndarray(program, dtype, tuple(int(e) for e in extents), element, needs_grad, "ndarrays")
