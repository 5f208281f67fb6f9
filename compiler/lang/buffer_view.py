"""``qd.BufferView``: consecutive elements of an ndarray with one axis, as an argument of kernels."""

from __future__ import annotations

import operator
from typing import Any

from ..errors import QdrunFitError, QdrunTypeError, QdrunValueError
from ..frontend.values.tensor import TensorRef
from ..refused import refuse
from .data.element_types import NdarrayType


class BufferViewType(NdarrayType):
    """The annotation of a view: ``v: qd.BufferView[qd.f32]``. An ndarray with one axis is accepted, too.

    Args:
        dtype: the type of an element; None: that of the argument.
        boundary: "unsafe"; see ``qd.types.ndarray``.

    Raises:
        QdrunTypeError: another ``boundary``.
    """

    __slots__ = ()

    def __init__(self, dtype: Any = None, boundary: str = "unsafe") -> None:
        if boundary != "unsafe":
            refuse("ndarray(boundary=..)")
        super().__init__(dtype, 1)


class BufferView:
    """A part of an ndarray: ``x[a:b]``, or ``qd.BufferView(x, offset, size)``. It shares the memory of the array, and that of its gradient.

    In kernels it is an array with one axis, whose indices begin at 0. There a view of a part is ``v[a:b]``, ``v.subview(a, n)`` or
    ``qd.BufferView(v, a, n)``, with ends that are known at run time.

    Attributes:
        arr: the ndarray.
        offset: the index of its first element there.
        size: the number of elements.
    """

    __slots__ = ("_part", "arr", "offset", "size")
    __qd_view__ = True
    arr: Any
    offset: int
    size: int

    def __init__(self, arr: Any, offset: int, size: int) -> None:
        """Make a view.

        Args:
            arr: an ndarray with one axis, or a tensor on one.
            offset: the index of the first element.
            size: the number of elements.

        Raises:
            QdrunTypeError: it is no such array, or the numbers are no integers.
            QdrunValueError: the elements are not in the array.
        """
        if isinstance(arr, BufferView):
            raise QdrunTypeError("a view of a view is made by its method", hint="write view.subview(offset, size)")
        array = getattr(arr, "_impl", arr)
        if not hasattr(array, "_packed"):
            raise QdrunTypeError(f"a view is of an ndarray, not of a {type(arr).__name__}", hint="make qd.ndarray(..)")
        if len(array.shape) != 1:
            raise QdrunFitError(
                f"a view is of an ndarray with one axis, not of shape {array.shape}", hint="use one with one axis"
            )
        begin, count = _integer("offset", offset), _integer("size", size)
        _check_part(begin, count, array.shape[0], f"the ndarray `{array.name}`")
        for name, value in (("arr", array), ("offset", begin), ("size", count), ("_part", array.part(begin, count))):
            object.__setattr__(self, name, value)

    def __class_getitem__(cls, dtype: Any) -> BufferViewType:
        return BufferViewType(*dtype) if isinstance(dtype, tuple) else BufferViewType(dtype)

    @staticmethod
    def __qd_lower__(b: Any, arr: Any, offset: Any, size: Any) -> TensorRef:
        """The constructor inside a kernel."""
        if not isinstance(arr, TensorRef):
            raise QdrunTypeError("a view is of an ndarray or of another view", hint="give a parameter of the kernel")
        return arr.part(b, offset, size)

    def __setattr__(self, name: str, value: Any) -> None:
        raise QdrunTypeError(f"a view does not change: `{name}` cannot be set", hint="make another view")

    @property
    def shape(self) -> tuple[int]:
        """``(size,)``"""
        return (self.size,)

    @property
    def dtype(self) -> Any:
        """The type of an element, or of a component of it."""
        return self.arr.dtype

    @property
    def grad(self) -> BufferView | None:
        """The same part of the gradient; None when none is stored."""
        return None if self.arr.grad is None else BufferView(self.arr.grad, self.offset, self.size)

    def subview(self, offset: int, size: int) -> BufferView:
        """A part of the view. ``offset``: the index of its first element here; ``size``: the number of elements.

        Raises:
            QdrunTypeError: the numbers are no integers.
            QdrunValueError: the elements are not in the view.
        """
        begin, count = _integer("offset", offset), _integer("size", size)
        _check_part(begin, count, self.size, f"the view {self!r}")
        return BufferView(self.arr, self.offset + begin, count)

    def __getitem__(self, key: slice) -> BufferView:
        """``view[a:b]``: a part of the view, with the ends of Python.

        Raises:
            QdrunTypeError: the key is no slice.
            QdrunValueError: the slice has a step.
        """
        if not isinstance(key, slice):
            raise QdrunTypeError(
                f"a view has slices in Python, and no elements: [{key!r}]", hint="index the ndarray, view.arr[view.offset + i]"
            )
        return self.subview(*part_of(key, self.size))

    def __setitem__(self, key: object, value: object) -> None:
        raise QdrunTypeError("Python does not write to a view", hint="write to the ndarray, view.arr[view.offset + i] = ..")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a view has no `{name}`\n  do: use that of the ndarray, view.arr.{name}")

    def __len__(self) -> int:
        return self.size

    def get_ndarray(self) -> Any:
        """The ndarray."""
        return self.arr

    def to_numpy(self) -> Any:
        """A copy of the elements."""
        return self.arr.to_numpy()[self.offset : self.offset + self.size]

    def __repr__(self) -> str:
        return f"<{self.arr!r}[{self.offset}:{self.offset + self.size}]>"


def part_of(key: slice, extent: int) -> tuple[int, int]:
    """The first index of a slice, and the number of its elements.

    Raises:
        QdrunValueError: it has a step.
    """
    begin, end, step = key.indices(extent)
    if step != 1:
        raise QdrunValueError(f"a view has no step, and the slice has {step}\n  do: copy with numpy, x.to_numpy()[::{step}]")
    return begin, max(end - begin, 0)


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise QdrunTypeError(f"the {name} of a view is an integer, not {value!r}", hint="give an int") from None


def _check_part(begin: int, count: int, extent: int, what: str) -> None:
    if begin < 0 or count < 0 or begin + count > extent:
        raise QdrunValueError(
            f"the elements {begin} to {begin + count} are not in {what}, which has {extent}\n  do: choose a part of it"
        )
