"""What the algorithms take, and the memory that they need besides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...errors import QdrunTypeError, QdrunValueError
from ...ir.types import DType
from ...program.program import current_program
from ..data.field import Field
from ..data.ndarray import Ndarray, make_ndarray
from ..data.tensor import Tensor, unwrap

OPS = ("add", "min", "max")


class Form(NamedTuple):
    """The form of an ndarray: its type, its shape, the shape of an element, and whether it has a gradient."""

    dtype: DType
    shape: tuple[int, ...]
    element_shape: tuple[int, ...] = ()
    grad: bool = False


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


def begin_of(array: Any) -> int:
    """The first index of a field of one axis with an offset; 0 of anything else."""
    begins = getattr(unwrap(array), "_begins", None)
    return begins[0] if begins is not None and len(begins) == 1 else 0


def from_zero(field: Any) -> Any:
    """A field with an offset as one on the same memory whose indices begin at 0, and anything else as it is. For kernels of the library."""
    if not isinstance(field, Field) or field._begins is None:
        return field
    if field._at_zero is None:
        view, out = field._all, Field(field._root, field.dtype, field.element, field.name, field.role)
        out.level, out._layout, out.per_trial, out.planar = field.parent(), field._layout, field.per_trial, field.planar
        out._places, out._view, out._storage = field._places, view, field._storage
        for role, relative in field._relatives.items():
            if relative.placed:
                out._relatives[role] = from_zero(relative)
                out._relatives[role].primal = out
        field._at_zero = out
    return field._at_zero


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
    recorded = program.tape is not None and any(a.has_grad() for a in arrays)
    return recorded or (program.forward is not None and any(a.has_dual() for a in arrays))


def no_gradient(what: str, why: str, hint: str, *arrays: Any) -> None:
    """Check that no derivative is lost.

    Raises:
        QdrunTypeError: a tape records or forward mode is on, and an array has a gradient or a dual.
    """
    if differentiated(*arrays):
        raise QdrunTypeError(f"algorithms.{what} has no derivative: {why}", hint=hint)


@contextmanager
def borrowed(what: str, form: Form, count: int) -> Iterator[list[Ndarray]]:
    """Arrays with any content. The program keeps them for later calls; a call inside of the block gets others.

    Args:
        what: whose they are.
        form: what they are.
        count: how many.
    """
    pool: list[Ndarray] = current_program().scratch.setdefault((what, form), [])
    made = [pool.pop(0) if pool else make_ndarray(*form, layout=None) for _ in range(count)]
    try:
        yield made
    finally:
        pool[:0] = made


def scratch(what: str, length: int, dtype: DType, like: Any = None, lasting: bool = False) -> Ndarray:
    """An ndarray for values in between. The program keeps it, and gives the same one to the next call.

    Args:
        what: whose it is; no two arrays of one call have the same.
        length: elements, at least 1.
        dtype: of the numbers.
        like: an array whose elements have the same shape, and which has a gradient or a dual if this one needs it.
        lasting: the gradient reads the values again: an open tape gets a new array at each call.
    """
    program = current_program()
    element = () if like is None else like.element_shape
    grad, dual = (False, False) if like is None else (like.has_grad(), like.has_dual())
    key = (what, length, dtype, element, grad, dual)
    if lasting and program.tape is not None:
        return make_ndarray(dtype, (length,), element, grad, needs_dual=dual)
    if key not in program.scratch:
        program.scratch[key] = make_ndarray(dtype, (length,), element, grad, needs_dual=dual)
    return program.scratch[key]
