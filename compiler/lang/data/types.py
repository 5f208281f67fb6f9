"""Types that users write in annotations and call as constructors: ``qd.types`` and ``qd.template``."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from ...errors import QdrunFitError, QdrunTypeError
from ...frontend.markers import Template, ref, template
from ...refused import refuse, refused_names
from ..assembly import Assembly
from ..buffer_view import BufferViewType
from .dtypes import (
    f16,
    f32,
    f64,
    float16,
    float32,
    float64,
    i8,
    i16,
    i32,
    i64,
    int8,
    int16,
    int32,
    int64,
    is_integral,
    is_real,
    is_signed,
    is_tensor,
    u1,
    u8,
    u16,
    u32,
    u64,
    uint1,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .element_types import AnyMatrixType, MatrixType, NdarrayType
from .struct import StructType


def vector(n: int | None = None, dtype: Any = None, *, unpacked: bool = False) -> MatrixType | AnyMatrixType:
    """The type of vectors of ``n`` components; without ``n`` an annotation of vectors of any length.

    ``unpacked`` is a hint of Quadrants that means nothing here.
    """
    del unpacked
    return AnyMatrixType(1, dtype) if n is None else MatrixType((n,), dtype)


def matrix(n: int | None = None, m: int | None = None, dtype: Any = None) -> MatrixType | AnyMatrixType:
    """The type of n x m matrices; without ``n`` and ``m`` an annotation of matrices of any shape."""
    if n is None and m is None:
        return AnyMatrixType(2, dtype)
    if n is None or m is None:
        raise QdrunTypeError("a matrix type has both n and m, or neither")
    return MatrixType((n, m), dtype)


def argpack(**members: Any) -> type:
    """Make a dataclass of arguments, from their names and types.

    With ``P = argpack(a=f32, x=ndarray())`` a kernel takes ``p: P`` and is called as ``k(P(a=1.0, x=x))``. Objects have their members as
    attributes and by ``p["a"]``; both can be assigned, and the next launch sees it.
    """

    def prepared(name: str, value: Any) -> Any:
        return members[name](value) if isinstance(members[name], MatrixType) else value

    def set_item(self: Any, name: str, value: Any) -> None:
        if name not in members:
            raise KeyError(name)
        setattr(self, name, prepared(name, value))

    def begin(self: Any) -> None:
        for name in members:
            setattr(self, name, prepared(name, getattr(self, name)))

    def item(self: Any, name: str) -> Any:
        return getattr(self, name)

    def as_dict(self: Any) -> dict[str, Any]:
        return {name: getattr(self, name) for name in members}

    names = {"__getitem__": item, "__setitem__": set_item, "__post_init__": begin, "to_dict": as_dict}
    return dataclasses.make_dataclass("ArgPack", members.items(), namespace=names, eq=False)


def sparse_matrix_builder() -> type[Assembly]:
    """The type of a parameter that takes a ``qd.linalg.SparseMatrixBuilder`` or a ``SparseMatrix``: ``A[i, j] += v``."""
    return Assembly


def struct(**members: Any) -> Any:
    """The type of structs with these members: ``qd.types.struct(pos=vec3, m=qd.f32)``; see ``StructType``."""
    return StructType(**members)


def _ndarray(
    dtype: Any = None,
    ndim: int | None = None,
    element_dim: int | None = None,
    element_shape: tuple[int, ...] | None = None,
    field_dim: None = None,
    needs_grad: bool | None = None,
    boundary: str = "unsafe",
) -> NdarrayType:
    """The annotation; see ``ndarray``."""
    if field_dim is not None:
        refuse("ndarray(field_dim=..)")
    if boundary != "unsafe":
        refuse("ndarray(boundary=..)")
    shape = None if element_shape is None else tuple(element_shape)
    if element_dim is not None and element_dim not in (0, 1, 2):
        raise QdrunTypeError(f"element_dim={element_dim!r} is not 0, 1 or 2", hint="numbers have 0 axes, vectors 1, matrices 2")
    if isinstance(dtype, MatrixType):
        if shape is not None:
            raise QdrunTypeError(f"element_shape={shape} contradicts dtype={dtype!r}", hint="leave element_shape out")
        shape = dtype.shape
    if shape is not None and element_dim is not None and element_dim != len(shape):
        raise QdrunFitError(f"element_dim={element_dim} contradicts the element's shape {shape}", hint="leave element_dim out")
    if shape and not isinstance(dtype, MatrixType):
        dtype = MatrixType(shape, dtype)
    return NdarrayType(dtype, ndim, needs_grad, len(shape) if shape is not None else element_dim)


class ndarray:
    """The annotation of an array parameter: ``x: qd.types.ndarray(dtype=qd.f32, ndim=1)`` or ``qd.types.ndarray[qd.f32, 1]``.

    The bare class takes any array. ``NDArray`` is the same class.

    Args:
        dtype: a scalar type, or a vector or matrix type.
        ndim: the number of axes.
        element_dim: the number of axes of an element: 0 for numbers, 1 for vectors of any size, 2 for matrices of any size.
        element_shape: (n,) for vectors, (n, m) for matrices of ``dtype``, () for numbers.
        field_dim: Quadrants' former name of ``ndim``; refused.
        needs_grad: True or False when the array must have a gradient or must have none.
        boundary: "unsafe": an index out of range is undefined. Nothing else is supported.

    Raises:
        QdrunTypeError: an option that is not supported, or that contradicts another.
    """

    __signature__ = inspect.signature(_ndarray)

    def __new__(cls, *args: Any, **options: Any) -> Any:
        return _ndarray(*args, **options)

    def __class_getitem__(cls, item: Any) -> NdarrayType:
        parts = item if isinstance(item, tuple) else (item, None)
        if len(parts) != 2:
            raise QdrunFitError(
                f"ndarray[..] takes a type and a number of axes, not {len(parts)} values", hint="write ndarray[dtype, ndim]"
            )
        return NdarrayType(*parts)


NDArray = ndarray


__getattr__ = refused_names(__name__)


__all__ = [
    "BufferViewType",
    "NDArray",
    "Template",
    "f16",
    "f32",
    "f64",
    "float16",
    "float32",
    "float64",
    "i8",
    "i16",
    "i32",
    "i64",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_integral",
    "is_real",
    "is_signed",
    "is_tensor",
    "matrix",
    "ndarray",
    "ref",
    "sparse_matrix_builder",
    "struct",
    "template",
    "u1",
    "u8",
    "u16",
    "u32",
    "u64",
    "uint1",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "vector",
]
