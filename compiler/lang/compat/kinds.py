"""Quadrants' names for kinds of fields, ndarrays and tensors. ``isinstance(x, qd.MatrixField)`` asks what the elements are; calling an
array's class makes one.
"""

from __future__ import annotations

import inspect
from typing import Any

from ...errors import QdrunTypeError
from ..data.dtypes import resolve
from ..data.field import Field
from ..data.ndarray import Ndarray, make_ndarray
from ..data.tensor import Tensor, wrap


class _Kind(type):
    """A class of no objects of its own: ``instances of cls.base whose element has cls.axes axes``."""

    base: type
    axes: tuple[int, ...]

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, cls.base) and len(x.element_shape) in cls.axes

    def __subclasscheck__(cls, other: type) -> bool:
        return other is cls or (0 in cls.axes and issubclass(other, cls.base))  # of other elements the class does not tell

    def __call__(cls, *args: Any, **kw: Any) -> Any:
        return cls.make(*args, **kw)  # type: ignore[attr-defined]

    @property
    def __signature__(cls) -> inspect.Signature:
        return inspect.signature(cls.make)  # type: ignore[attr-defined]


class ScalarField(metaclass=_Kind):
    """Fields of numbers."""

    base, axes = Field, (0,)

    @staticmethod
    def make(*args: Any, **kw: Any) -> Any:
        """Fields are made by ``qd.field``."""
        raise QdrunTypeError("make fields with qd.field, qd.Vector.field or qd.Matrix.field")


class MatrixField(metaclass=_Kind):
    """Fields of vectors or matrices."""

    base, axes = Field, (1, 2)
    make = ScalarField.make


class ScalarNdarray(metaclass=_Kind):
    """Ndarrays of numbers: ``ScalarNdarray(dtype, shape)``."""

    base, axes = Ndarray, (0,)

    @staticmethod
    def make(dtype: Any, arr_shape: Any) -> Ndarray:
        """A new one."""
        return make_ndarray(resolve(dtype), arr_shape, ())


class VectorNdarray(metaclass=_Kind):
    """Ndarrays of vectors: ``VectorNdarray(n, dtype, shape)``."""

    base, axes = Ndarray, (1,)

    @staticmethod
    def make(n: int, dtype: Any, shape: Any) -> Ndarray:
        """A new one."""
        return make_ndarray(resolve(dtype), shape, (n,))


class MatrixNdarray(metaclass=_Kind):
    """Ndarrays of matrices: ``MatrixNdarray(n, m, dtype, shape)``."""

    base, axes = Ndarray, (2,)

    @staticmethod
    def make(n: int, m: int, dtype: Any, shape: Any) -> Ndarray:
        """A new one."""
        return make_ndarray(resolve(dtype), shape, (n, m))


class VectorTensor(metaclass=_Kind):
    """Tensors of vectors."""

    base, axes = Tensor, (1,)
    make = staticmethod(wrap)


class MatrixTensor(metaclass=_Kind):
    """Tensors of matrices."""

    base, axes = Tensor, (2,)
    make = staticmethod(wrap)
