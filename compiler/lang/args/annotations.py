"""Resolves the annotations of kernel parameters and of members of dataclasses."""

from __future__ import annotations

import types as python_types
from typing import Any, Final, Union, get_args, get_origin

from ...frontend.markers import Template, template
from ...ir.types import DType
from ..buffer_view import BufferView, BufferViewType
from ..data.element_types import MatrixType, NdarrayType, Optional
from ..data.struct import StructType
from ..data.tensor import Tensor
from ..data.types import NDArray


def meaning(annotation: Any) -> Any:
    """An annotation in the form that the binder knows, or None when kernels do not take it.

    One of: a ``DType``, int, float, bool, a vector, matrix or ndarray type, ``Tensor``, ``Template``, a struct type, a Python dataclass,
    ``Optional``.
    """
    if annotation is NDArray or annotation is NdarrayType:
        return NdarrayType(None, None)
    if annotation is BufferView:
        return BufferViewType()
    if annotation is Template or annotation is template or isinstance(annotation, Template):
        return Template
    if isinstance(annotation, (DType, MatrixType, NdarrayType)) or annotation in (int, float, bool, Tensor):
        return annotation
    if is_struct_type(annotation) or is_dataclass_type(annotation):
        return annotation
    if isinstance(annotation, Optional):
        return annotation
    if get_origin(annotation) in (Union, python_types.UnionType):
        parts = [a for a in get_args(annotation) if a is not type(None)]
        inner = meaning(parts[0]) if len(parts) == 1 else None
        return None if inner is None else Optional(inner)
    return None


def member_meaning(annotation: Any) -> Any:
    """As ``meaning``, of a member of a dataclass: any other class is known at compile time, as is ``Final[..]``."""
    if annotation is Final or get_origin(annotation) is Final:
        return Template
    found = meaning(annotation)
    return Template if found is None else found


def is_struct_type(annotation: Any) -> bool:
    """Whether an annotation is a struct type of the language."""
    return isinstance(annotation, StructType)


def is_dataclass_type(annotation: Any) -> bool:
    """Whether an annotation is a class made by Python's ``dataclasses``."""
    return isinstance(annotation, type) and hasattr(annotation, "__dataclass_fields__")
