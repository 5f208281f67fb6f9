"""What the annotations of kernel parameters, and of the members of dataclasses, mean."""

from __future__ import annotations

import inspect
import sys
import types as python_types
from typing import Any, Final, Union, get_args, get_origin

from ..errors import QdrunTypeError
from ..frontend.syntax import Template, template
from ..ir.types import DType
from .tensor import Tensor
from .types import MatrixType, NDArray, NdarrayType, Optional


def meaning(annotation: Any) -> Any:
    """An annotation in the form that the binder knows, or None when kernels do not take it.

    One of: a ``DType``, int, float, bool, a vector, matrix or ndarray type, ``Tensor``, ``Template``, a struct type, a Python dataclass,
    ``Optional``.
    """
    if annotation is NDArray or annotation is NdarrayType:
        return NdarrayType(None, None)
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
    """Whether an annotation is a struct type of ours."""
    from .struct import StructType

    return isinstance(annotation, StructType)


def is_dataclass_type(annotation: Any) -> bool:
    """Whether an annotation is a class made by Python's ``dataclasses``."""
    return isinstance(annotation, type) and hasattr(annotation, "__dataclass_fields__")


def evaluated(cls: type, name: str, annotation: Any) -> Any:
    """The annotation of a member; text (``from __future__ import annotations``) means what it means where the class was defined.

    Raises:
        QdrunTypeError: it names something unknown.
    """
    if not isinstance(annotation, str):
        return annotation
    module = sys.modules.get(cls.__module__)
    spaces = [(vars(module) if module is not None else {}, dict(vars(cls)))]
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == cls.__module__:
            spaces.append((frame.f_globals, dict(frame.f_locals)))
        frame = frame.f_back
    for names, local in spaces:
        try:
            return eval(annotation, names, local)
        except (NameError, AttributeError):
            continue
    hint = "put what it names at the top of the module"
    raise QdrunTypeError(f"the annotation `{annotation}` of `{name}` in {cls.__name__} cannot be evaluated", hint=hint)
