"""Operators on front-end values: typing, promotion, broadcasting and the folding of literals.

A literal has the default type of its kind and keeps its full precision, so literals fold in Python arithmetic; integers wrap to
their type. What has no value in Python (a division by an integer zero) is emitted and left to the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from ...errors import QdrunFitError, QdrunTypeError
from ...ir.builder import convert
from ...ir.nodes import Const, Op, Operand
from ...ir.types import DType, Unsigned, i32, i64, promote, u1, u64, unsigned
from ..syntax import overflow
from .fold import fold, rounded_literal
from .literals import check_fits, check_shift
from .values import Arg, MatrixValue, StructValue, Value

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder

ARITHMETIC = {"+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod"}
BITWISE = {"&": "and", "|": "or", "^": "xor"}
SHIFTS = {"<<": "shl", ">>": "shr"}
COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
MODULAR = frozenset("+-*")
"""Operators whose result modulo the size of a type depends on the operands modulo that size only, as that of ``& | ^``."""
MAX_EXPANDED_EXPONENT = 64


def is_number(x: object) -> TypeGuard[int | float | bool]:
    """Whether ``x`` is a Python or numpy number (a compile-time scalar)."""
    return isinstance(x, (bool, int, float, np.bool_, np.integer, np.floating))


def literal(b: FrontBuilder, x: int | float | bool) -> Const:
    """A compile-time number as a literal: u1, ``default_ip`` (i64 or u64 when it does not fit) or ``default_fp``.

    Raises:
        QdrunTypeError: an integer that fits no type.
    """
    if isinstance(x, (bool, np.bool_)):
        return Const(bool(x), u1, True)
    if isinstance(x, (float, np.floating)):
        return Const(float(x), b.default_fp, True)
    for dtype in (b.default_ip, i64, u64):
        if convert(x, dtype) == x:
            return Const(int(x), dtype, True)
    raise QdrunTypeError(f"the integer {x} needs more than 64 bits", hint="write it as a float")


def as_value(b: FrontBuilder, x: Any) -> Value:
    """``x`` as a scalar operand or a matrix; numbers become literals, objects with ``__qd_value__`` are asked.

    Raises:
        QdrunTypeError: ``x`` is nothing that can be computed with.
    """
    if isinstance(x, (Op, Const, MatrixValue)):
        return x
    if is_number(x):
        return literal(b, x)
    offer = getattr(type(x), "__qd_value__", None)
    if offer is not None:
        value = offer(x)
        if isinstance(value, MatrixValue):
            return value
    if isinstance(x, np.ndarray) and x.ndim == 0 and is_number(x.item()):
        return literal(b, x.item())
    raise QdrunTypeError(f"a number or a matrix is needed here, not {describe_value(x)}")


def describe_value(x: object) -> str:
    """A value as a user would call it."""
    if isinstance(x, MatrixValue):
        return f"a matrix of shape {x.shape}" if len(x.shape) == 2 else f"a vector of {x.n}"
    if isinstance(x, (Op, Const)):
        return f"a scalar of type {x.dtype}"
    if isinstance(x, StructValue):
        return "a struct"
    return f"{type(x).__name__} {x!r}" if isinstance(x, (str, tuple, list)) else f"an object of type {type(x).__name__}"


def to_operand(b: FrontBuilder, x: Any) -> Operand:
    """``x`` as a scalar operand.

    Raises:
        QdrunTypeError: ``x`` is a matrix, or nothing that can be computed with.
    """
    value = as_value(b, x)
    if isinstance(value, MatrixValue):
        raise QdrunTypeError(f"a scalar is needed here, not {describe_value(value)}")
    return value


def emit(b: FrontBuilder, code: str, *args: Operand, dtype: DType | None = None) -> Operand:
    """Emit one scalar operation; literal operands are folded."""
    folded = fold(code, args, dtype) if all(isinstance(a, Const) for a in args) else None
    if folded is not None and not _to_be_checked(b, code, args, folded):
        return folded
    result = b.op(code, *args, dtype=dtype)
    if b.overflow != "wrap":
        overflow.check(b, code, result, args)
    return result


def _to_be_checked(b: FrontBuilder, code: str, args: tuple[Operand, ...], folded: Const) -> bool:
    """Whether an operation on literals is left to the machine, as a check may find a fault in it."""
    if folded.dtype.is_real:
        return b.nan_check and not isfinite(folded.value) and all(isfinite(a.value) for a in args if isinstance(a, Const))
    return b.overflow != "wrap" and not overflow.fits(code, args, folded)


def common_shape(*values: Value) -> tuple[int, ...] | None:
    """The shape that the matrices among ``values`` share; None when all are scalars.

    Raises:
        QdrunTypeError: two of them differ in shape.
    """
    shapes = [v.shape for v in values if isinstance(v, MatrixValue)]
    for other in shapes[1:]:
        if other != shapes[0]:
            raise QdrunFitError(
                f"shapes {shapes[0]} and {other} do not fit: element by element operations need equal shapes",
                hint="use `@` for a matrix product",
            )
    return shapes[0] if shapes else None


def as_matrix(b: FrontBuilder, x: Any, what: str) -> MatrixValue:
    """``x`` as a matrix.

    Raises:
        QdrunTypeError: it is not one.
    """
    value = as_value(b, x)
    if not isinstance(value, MatrixValue):
        raise QdrunTypeError(f"{what} takes a vector or a matrix, not {describe_value(value)}")
    return value


def detached(b: FrontBuilder, x: Operand) -> Operand:
    """A scalar without its gradient; integers have none."""
    return b.op("detach", x) if isinstance(x, Op) and x.dtype.is_real else x


def elementwise(f: Callable[..., Operand], *values: Value) -> Value:
    """``f`` for each component; scalars are broadcast to the shape of the matrices."""
    shape = common_shape(*values)
    if shape is None:
        return f(*values)
    columns = [v.items if isinstance(v, MatrixValue) else None for v in values]
    size = next(len(c) for c in columns if c is not None)
    rows = [[v if c is None else c[k] for v, c in zip(values, columns)] for k in range(size)]
    return MatrixValue(shape, tuple(f(*row) for row in rows))


def number_type(b: FrontBuilder, *args: Operand) -> DType:
    """The promoted type of the operands for arithmetic; truth values count as ``default_ip``."""
    out = args[0].dtype
    for a in args[1:]:
        out = promote(out, a.dtype)
    return b.default_ip if out is u1 else out


def real_type(b: FrontBuilder, *args: Operand) -> DType:
    """Like ``number_type``, but ``default_fp`` when no operand is real."""
    out = number_type(b, *args)
    return out if out.is_real else b.default_fp


def binary(b: FrontBuilder, op: str, x: Arg, y: Arg) -> Value:
    """``x op y`` for ``+ - * / // % ** & | ^ << >>`` and ``@``.

    Raises:
        QdrunTypeError: the operator does not take these types, or the shapes do not fit.
    """
    if op == "@":
        return matmul(b, x, y)
    one = _SCALAR_BINARY.get(op)
    if one is None:
        raise QdrunTypeError(f"kernels have no binary operator `{op}`")
    return elementwise(lambda p, q: one(b, op, p, q), as_value(b, x), as_value(b, y))


def of_one_type(b: FrontBuilder, code: str, x: Arg, y: Arg, real: bool = False) -> Value:
    """An operation on two numbers of one type, by component. ``real``: on real numbers."""

    def one(p: Operand, q: Operand) -> Operand:
        dtype = real_type(b, p, q) if real else number_type(b, p, q)
        return emit(b, code, cast_scalar(b, p, dtype), cast_scalar(b, q, dtype))

    return elementwise(one, as_value(b, x), as_value(b, y))


def add(b: FrontBuilder, *terms: Operand) -> Operand:
    """The sum of scalars, left to right."""
    return reduce(lambda p, q: to_operand(b, binary(b, "+", p, q)), terms)


def sub(b: FrontBuilder, x: Operand, y: Operand) -> Operand:
    """``x - y`` of scalars."""
    return to_operand(b, binary(b, "-", x, y))


def mul(b: FrontBuilder, x: Operand, y: Operand) -> Operand:
    """``x * y`` of scalars."""
    return to_operand(b, binary(b, "*", x, y))


def inner(b: FrontBuilder, x: Sequence[Operand], y: Sequence[Operand]) -> Operand:
    """The sum of the products of two rows of scalars."""
    return add(b, *(mul(b, p, q) for p, q in zip(x, y)))


def matmul(b: FrontBuilder, x: Any, y: Any) -> Value:
    """``x @ y`` for matrix-matrix, matrix-vector, vector-matrix and vector-vector (dot).

    Raises:
        QdrunTypeError: a scalar operand, or inner extents that differ.
    """
    p, q = as_value(b, x), as_value(b, y)
    if not isinstance(p, MatrixValue) or not isinstance(q, MatrixValue):
        raise QdrunTypeError(f"`@` multiplies matrices, not {describe_value(q if isinstance(p, MatrixValue) else p)}")
    if p.shape[-1] != q.shape[0]:
        raise QdrunFitError(
            f"`@` cannot multiply shapes {p.shape} and {q.shape}: {p.shape[-1]} is not {q.shape[0]}",
            hint="transpose() one of them, or use `*` for element by element",
        )
    rows = [p.items] if len(p.shape) == 1 else [p.items[i * p.m : (i + 1) * p.m] for i in range(p.n)]
    columns = [q.items] if len(q.shape) == 1 else [q.items[j :: q.m] for j in range(q.m)]
    items = tuple(inner(b, row, column) for row in rows for column in columns)
    shape = p.shape[:-1] + q.shape[1:]
    return MatrixValue(shape, items) if shape else items[0]


def _arithmetic(b: FrontBuilder, op: str, x: Operand, y: Operand) -> Operand:
    dtype = real_type(b, x, y) if op == "/" else number_type(b, x, y)
    modular = op in MODULAR
    return emit(b, ARITHMETIC[op], cast_scalar(b, x, dtype, modular), cast_scalar(b, y, dtype, modular))


def _bitwise(b: FrontBuilder, op: str, x: Operand, y: Operand) -> Operand:
    _need_int(op, x, y)
    dtype = promote(x.dtype, y.dtype)
    return emit(b, BITWISE[op], cast_scalar(b, x, dtype, modular=True), cast_scalar(b, y, dtype, modular=True))


def _shift(b: FrontBuilder, op: str, x: Operand, y: Operand) -> Operand:
    """The result has the type of the left side, as in Quadrants: ``u8 << i32`` is u8."""
    _need_int(op, x, y)
    dtype = b.default_ip if x.dtype is u1 else x.dtype
    code = "sar" if op == ">>" and dtype.kind == "i" else SHIFTS[op]
    if isinstance(y, Const):
        check_shift(y, dtype)
    return emit(b, code, cast_scalar(b, x, dtype), cast_scalar(b, y, dtype))


def _need_int(op: str, *args: Operand) -> None:
    for a in args:
        if not a.dtype.is_int:
            raise QdrunTypeError(f"`{op}` takes integers, not {a.dtype}", hint="cast the operand with qd.i32(x)")


def _power(b: FrontBuilder, op: str, x: Operand, y: Operand) -> Operand:
    """``x ** y``. A small whole constant exponent is multiplied out: exact for negative bases, and cheap to differentiate."""
    dtype = number_type(b, x, y)
    x = cast_scalar(b, x, dtype)
    if isinstance(x, Const) and isinstance(y, Const) and x.exact and y.exact:
        return emit(b, "pow", x, cast_scalar(b, y, dtype))
    if isinstance(y, Const) and float(y.value).is_integer() and abs(y.value) <= MAX_EXPANDED_EXPONENT:
        return _expand_power(b, x, int(y.value))
    if isinstance(y, Const) and y.value == 0.5:
        return emit(b, "sqrt", x)
    return emit(b, "pow", x, cast_scalar(b, y, dtype))


def _expand_power(b: FrontBuilder, x: Operand, n: int) -> Operand:
    one = Const(convert(1, x.dtype), x.dtype)
    if n < 0 and x.dtype.is_int:
        raise QdrunTypeError(f"an integer to the power {n} is not an integer", hint="make the base a float: qd.f32(x)")
    result, square, rest = None, x, abs(n)
    while rest:
        if rest & 1:
            result = square if result is None else emit(b, "mul", result, square)
        rest >>= 1
        if rest:
            square = emit(b, "mul", square, square)
    if result is None:
        return one
    return emit(b, "div", one, result) if n < 0 else result


_SCALAR_BINARY: dict[str, Callable[[Any, str, Operand, Operand], Operand]] = {
    **dict.fromkeys(ARITHMETIC, _arithmetic),
    **dict.fromkeys(BITWISE, _bitwise),
    **dict.fromkeys(SHIFTS, _shift),
    "**": _power,
}


def unary(b: FrontBuilder, op: str, x: Arg) -> Value:
    """``op x`` for ``- + ~ not``.

    Raises:
        QdrunTypeError: the operator does not take this type.
    """

    def one(p: Operand) -> Operand:
        if op == "not":
            return emit(b, "not", truth(b, p))
        if op == "~":
            _need_int(op, p)
            return emit(b, "not" if p.dtype is u1 else "bitnot", p)
        p = cast_scalar(b, p, number_type(b, p))
        return p if op == "+" else emit(b, "neg", p)

    if op not in ("-", "+", "~", "not"):
        raise QdrunTypeError(f"kernels have no unary operator `{op}`")
    return elementwise(one, as_value(b, x))


def absolute(b: FrontBuilder, x: Arg) -> Value:
    """The absolute value of each component."""

    def one(p: Operand) -> Operand:
        return p if p.dtype.kind in "ub" else emit(b, "abs", p)

    return elementwise(one, as_value(b, x))


def compare(b: FrontBuilder, op: str, x: Arg, y: Arg) -> Value:
    """``x op y`` for ``< <= > >= == !=``; u1, element by element for matrices.

    Raises:
        QdrunTypeError: no such comparison, or the shapes do not fit.
    """
    code = COMPARISONS.get(op)
    if code is None:
        raise QdrunTypeError(f"kernels have no comparison `{op}`")

    def one(p: Operand, q: Operand) -> Operand:
        dtype = promote(p.dtype, q.dtype)
        return emit(b, code, cast_scalar(b, p, dtype), cast_scalar(b, q, dtype))

    return elementwise(one, as_value(b, x), as_value(b, y))


def logical(b: FrontBuilder, op: str, x: Arg, y: Arg) -> Value:
    """``x and y`` / ``x or y`` where both sides are already evaluated: u1, element by element for matrices."""
    code = {"and": "and", "or": "or"}[op]
    return elementwise(lambda p, q: emit(b, code, truth(b, p), truth(b, q)), as_value(b, x), as_value(b, y))


def select(b: FrontBuilder, cond: Arg, x: Arg, y: Arg) -> Value:
    """``x`` where ``cond`` holds, else ``y``; both sides are evaluated and meet in their promoted type.

    Raises:
        QdrunTypeError: the shapes do not fit.
    """

    def one(c: Operand, p: Operand, q: Operand) -> Operand:
        dtype = promote(p.dtype, q.dtype)
        c, p, q = truth(b, c), cast_scalar(b, p, dtype), cast_scalar(b, q, dtype)
        if isinstance(c, Const):
            chosen = p if c.value else q  # a value of the type, as where the condition is known when the kernel runs
            return rounded_literal(chosen) if isinstance(chosen, Const) else chosen
        return b.op("select", c, p, q)

    return elementwise(one, as_value(b, cond), as_value(b, x), as_value(b, y))


def truth(b: FrontBuilder, x: Arg) -> Operand:
    """``x`` as u1: whether it differs from zero.

    Raises:
        QdrunTypeError: ``x`` is a matrix.
    """
    value = as_value(b, x)
    if isinstance(value, MatrixValue):
        raise QdrunTypeError(f"the truth of {describe_value(value)} is ambiguous", hint="use .any() or .all()")
    if value.dtype is u1:
        return value
    if isinstance(value, Const) and value.exact:  # 5e-324 is not zero, though f32 would round it to that
        return Const(bool(value.value), u1, True)
    return emit(b, "ne", value, Const(convert(0, value.dtype), value.dtype))


def cast_scalar(b: FrontBuilder, x: Operand, dtype: DType, modular: bool = False) -> Operand:
    """``x`` as ``dtype``; a literal stays a literal of full precision, a cast to u1 tests for zero.

    Raises:
        QdrunFitError: a literal that does not fit; ``modular``: see ``literals.check_fits``.
    """
    if x.dtype is dtype:
        return x
    if dtype is u1:
        return truth(b, x)
    if isinstance(x, Const):
        check_fits(x, dtype, modular)
    result = b.cast(x, dtype)
    if b.overflow == "raise" and not (isinstance(x, Const) and isinstance(result, Const) and x.value == result.value):
        overflow.check_cast(b, result, x)
    return result


def cast(b: FrontBuilder, x: Arg, dtype: DType) -> Value:
    """``x`` as ``dtype``, component by component; what a user asks for by ``qd.f32(x)`` or an annotation.

    Unlike the casts of promotion it rounds a float literal to the type.

    Raises:
        QdrunFitError: an integer type does not hold a literal.
    """

    def one(p: Operand) -> Operand:
        out = cast_scalar(b, p, dtype)
        return rounded_literal(out) if isinstance(out, Const) else out

    return elementwise(one, as_value(b, x))


def convert_value(b: FrontBuilder, x: Arg, dtype: DType) -> Value:
    """``x`` as ``dtype``, what a user asks for by ``qd.cast``: a literal wraps or saturates as any value does."""
    return elementwise(
        lambda p: cast(b, Const(p.value, p.dtype) if isinstance(p, Const) else p, dtype),  # pyright: ignore[reportArgumentType,reportReturnType]
        as_value(b, x),
    )


def static_int(x: Any, what: str) -> int:
    """An extent or a static index as a Python int.

    Raises:
        QdrunTypeError: it is not a whole number that is known at compile time.
    """
    value = x.value if isinstance(x, Const) else x
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise QdrunTypeError(f"{what} is a whole number that is known at compile time, not {describe_value(x)}")
    return int(value)


def as_dtype(b: FrontBuilder, dtype: Any) -> DType:
    """A type as users write it: a ``DType``, or ``float`` / ``int`` / ``bool`` for the default ones.

    Raises:
        QdrunTypeError: it is not a type.
    """
    if isinstance(dtype, DType):
        return dtype
    if dtype is float:
        return b.default_fp
    if dtype is int:
        return b.default_ip
    if dtype is bool:
        return u1
    if dtype is Unsigned:
        return unsigned(b.default_ip)
    raise QdrunTypeError(f"{dtype!r} is not a scalar type", hint="use qd.f32, qd.i32, float, int, ..")


def index_operand(b: FrontBuilder, x: Arg) -> Operand:
    """An index as i32 or i64, whatever integer it was.

    Raises:
        QdrunTypeError: it is not an integer.
    """
    value = to_operand(b, x)
    if not value.dtype.is_int:
        raise QdrunTypeError(f"an index is an integer, not {value.dtype}", hint="convert it: int(x)")
    wide = value.dtype.bits == 64 or value.dtype.name == "u32"
    return cast_scalar(b, value, i64 if wide else i32)
