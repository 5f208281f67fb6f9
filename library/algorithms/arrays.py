"""What the algorithms take."""

from __future__ import annotations

from typing import Any

from ...compiler.extend import DType, from_zero
from ...compiler.face import Field, Ndarray, QdrunTypeError, QdrunValueError, Tensor, current_program

OPS = ("add", "min", "max")


def unwrapped(array: Any, what: str, name: str) -> Any:
    """The field or the ndarray.

    Raises:
        QdrunTypeError: it is something else, such as a numpy array, or sparse.
    """
    array = array._unwrap() if isinstance(array, Tensor) else array
    if not isinstance(array, (Field, Ndarray)):
        given = type(array).__name__
        raise QdrunTypeError(f"algorithms.{what}: `{name}` is {given}, not a field or an ndarray", hint="make a qd.ndarray")
    array.refuse_sparse(f"algorithms.{what}")
    return array


def line(array: Any, what: str, name: str, length: int | None = None, scalars: bool = True) -> Any:
    """An array of one axis, whose indices begin at 0.

    Args:
        array: a field, an ndarray or a tensor.
        what: the algorithm, for messages.
        name: the parameter, for messages.
        length: what its length must be; None: any.
        scalars: its elements are numbers.

    Raises:
        QdrunTypeError: it is no such array, or its elements are vectors or matrices.
        QdrunValueError: it has not one axis, or another length.
    """
    array = unwrapped(array, what, name)
    if scalars and array.element_shape:
        raise QdrunTypeError(
            f"algorithms.{what}: the elements of `{name}` are vectors or matrices", hint="copy a component to an array"
        )
    if len(array.shape) != 1:
        raise QdrunValueError(
            f"algorithms.{what}: `{name}` has the shape {array.shape}, not one axis\n  do: copy it to one axis"
        )
    if length is not None and array.shape != (length,):
        raise QdrunValueError(f"algorithms.{what}: `{name}` has {array.shape[0]:,} elements, and {length:,} are needed")
    return from_zero(array)


def number(array: Any, what: str, name: str, dtype: DType | None = None) -> Any:
    """An array of one number: of the shape () or (1,).

    Raises:
        QdrunTypeError: it is no such array, or has another type.
        QdrunValueError: it has another shape.
    """
    array = unwrapped(array, what, name)
    if array.element_shape or array.shape not in ((), (1,)):
        raise QdrunValueError(f"algorithms.{what}: `{name}` has the shape {array.shape}, not () or (1,)")
    return from_zero(array) if dtype is None else typed(from_zero(array), what, name, dtype)


def typed(array: Any, what: str, name: str, dtype: DType) -> Any:
    """The array.

    Raises:
        QdrunTypeError: its numbers have another type.
    """
    if array.dtype != dtype:
        raise QdrunTypeError(f"algorithms.{what}: `{name}` has the type {array.dtype}, not {dtype}")
    return array


def different(what: str, *arrays: Any) -> None:
    """Check that no array is given twice.

    Raises:
        QdrunValueError: one is.
    """
    if len({id(a) for a in arrays}) < len(arrays):
        raise QdrunValueError(f"algorithms.{what}: an array is given twice\n  do: give one of its own for each result")


def operation(op: str, what: str) -> str:
    """The name of an operation.

    Raises:
        QdrunValueError: there is no such operation.
    """
    if op not in OPS:
        raise QdrunValueError(f"algorithms.{what}: op={op!r} is not one of {', '.join(map(repr, OPS))}")
    return op


def differentiated(*arrays: Any) -> bool:
    """Whether a tape records, or forward mode is on, and an array has a gradient or a dual."""
    program = current_program()
    recorded = program.recorders.tape is not None and any(a.has_grad() for a in arrays)
    return recorded or (program.recorders.forward is not None and any(a.has_dual() for a in arrays))


def no_gradient(what: str, why: str, hint: str, *arrays: Any) -> None:
    """Check that no derivative is lost.

    Raises:
        QdrunTypeError: a tape records or forward mode is on, and an array has a gradient or a dual.
    """
    if differentiated(*arrays):
        raise QdrunTypeError(f"algorithms.{what} has no derivative: {why}", hint=hint)
