"""What a kernel returns is of the form that its annotation says: Python gets what the signature promises."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from ..errors import QdrunFitError, QdrunTypeError
from ..ir.types import DType
from .state.context import describe
from .values.values import MatrixValue, StructForm

_NUMBERS = (int, float, bool)
_SAYS_NOTHING = (Any, tuple, object)
"""Annotations that leave the result as it is."""


def check_returned(name: str, value: Any, annotation: Any) -> None:
    """Refuse what a conversion would turn into something else than the annotation says.

    Args:
        name: that of the kernel.
        value: the result, before its numbers are converted.
        annotation: that of the result.

    Raises:
        QdrunTypeError: a vector or a matrix where a number is annotated, or the annotation is no type of results.
        QdrunFitError: vectors, matrices or tuples of another shape.
    """
    parts = tuple(annotation) if isinstance(annotation, (tuple, list)) else get_args(annotation)
    if get_origin(annotation) not in (None, tuple) or Ellipsis in parts:
        raise _no_result(name, annotation)
    if parts:
        found = value.items if isinstance(value, MatrixValue) and len(value.shape) == 1 else value
        if not isinstance(found, (tuple, list)):
            raise QdrunTypeError(f"`{name}` returns {describe(value)}, and its annotation says {_shown(annotation)}")
        if len(found) != len(parts):
            raise QdrunFitError(f"`{name}` returns {len(found)} values, and its annotation says {len(parts)}")
        for one, part in zip(found, parts):
            check_returned(name, one, part)
        return
    if isinstance(annotation, DType) or annotation in _NUMBERS:
        if isinstance(value, MatrixValue):
            hint = f"write `-> {_type_of(value, annotation)}`, or return one of its components"
            raise QdrunTypeError(f"`{name}` returns {describe(value)}, and its annotation says {_shown(annotation)}", hint=hint)
        return
    shape = getattr(annotation, "shape", None)
    if shape and isinstance(value, MatrixValue) and value.shape != shape:
        raise QdrunFitError(f"`{name}` returns {describe(value)}, and its annotation says shape {shape}")
    if not (parts or shape or isinstance(annotation, StructForm) or annotation in _SAYS_NOTHING):
        raise _no_result(name, annotation)


def _no_result(name: str, annotation: Any) -> QdrunTypeError:
    what = f"kernel `{name}` has {_shown(annotation)} as annotation of its result, which kernels do not return"
    return QdrunTypeError(what, hint="write a number type, a vector, matrix or struct type, or tuple[..] of these")


def _shown(annotation: Any) -> str:
    if isinstance(annotation, (tuple, list)):
        return f"({', '.join(map(_shown, annotation))})"
    return getattr(annotation, "__name__", str(annotation)) if get_origin(annotation) is None else str(annotation)


def _type_of(value: MatrixValue, annotation: Any) -> str:
    kind = "vector" if len(value.shape) == 1 else "matrix"
    number = f"qd.{annotation}" if isinstance(annotation, DType) else annotation.__name__
    return f"qd.types.{kind}({', '.join(map(str, value.shape))}, {number})"
