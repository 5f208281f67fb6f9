"""Attributes and methods of matrices inside kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from ...errors import QdrunNameError
from ...ir.nodes import Operand
from ..advice import similar
from ..values import ops
from ..values.matrix import filled, swizzle_positions
from ..values.values import Arg, MatrixValue, Value
from . import elimination, linalg

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder


@dataclass(frozen=True, slots=True, eq=False)
class MatrixMethod:
    """A method bound to a matrix value: the front end calls it as ``method(b, *args, **kw)``."""

    name: str
    matrix: MatrixValue
    lowering: Callable[..., Any]

    @property
    def __signature__(self) -> inspect.Signature:
        """Without the builder and the matrix."""
        found = inspect.signature(self.lowering)
        return found.replace(parameters=list(found.parameters.values())[2:])

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, b: FrontBuilder, *args: Any, **kw: Any) -> Any:
        """Emit the call."""
        return self.lowering(b, self.matrix, *args, **kw)


def attribute(b: FrontBuilder, m: MatrixValue, name: str) -> Any:
    """``m.name``: a swizzle, ``n``/``m``/``shape`` (Python ints), ``dtype``, or a method (``MatrixMethod``).

    Raises:
        QdrunNameError: there is no such attribute.
    """
    if name in METHODS:
        return MatrixMethod(name, m, METHODS[name])
    if name in ("n", "m", "shape", "dtype"):
        return getattr(m, name)
    positions = swizzle_positions(m.shape, name)
    if positions is None:
        hint = similar(name, (*METHODS, "n", "m", "shape", "dtype"), "its components are v[0], v[1], .. or v.x, v.y, ..")
        raise QdrunNameError(f"{ops.describe_value(m)} has no attribute `{name}`", hint=hint)
    if len(positions) == 1:
        return m.items[positions[0]]
    return MatrixValue((len(positions),), tuple(m.items[k] for k in positions))


def _cast(b: FrontBuilder, m: MatrixValue, dtype: Any) -> Value:
    return ops.convert_value(b, m, ops.as_dtype(b, dtype))


def _fill(b: FrontBuilder, m: MatrixValue, val: Arg) -> MatrixValue:
    """The filled matrix, of the same type; the front end assigns it to the variable that the method was called on."""
    return filled(b, m.shape, val, m.dtype)


def _extreme(op: str) -> Callable[[FrontBuilder, MatrixValue], Operand]:
    return lambda b, m: reduce(lambda p, q: ops.emit(b, op, p, q), m.items)


def _any(b: FrontBuilder, m: MatrixValue) -> Operand:
    return reduce(lambda p, q: ops.emit(b, "or", p, q), (ops.truth(b, x) for x in m.items))


def _all(b: FrontBuilder, m: MatrixValue) -> Operand:
    return reduce(lambda p, q: ops.emit(b, "and", p, q), (ops.truth(b, x) for x in m.items))


METHODS: dict[str, Callable[..., Any]] = {
    "norm": linalg.norm,
    "norm_sqr": linalg.norm_sqr,
    "norm_inv": linalg.norm_inv,
    "normalized": linalg.normalized,
    "dot": linalg.dot,
    "cross": linalg.cross,
    "outer_product": linalg.outer_product,
    "determinant": linalg.determinant,
    "inverse": elimination.inverse,
    "transpose": linalg.transpose,
    "trace": linalg.trace,
    "sum": linalg.total,
    "frobenius_inner": linalg.frobenius_inner,
    "max": _extreme("max"),
    "min": _extreme("min"),
    "all": _all,
    "any": _any,
    "cast": _cast,
    "fill": _fill,
    "get_shape": lambda b, m: m.shape,
}
