"""The operand of an atomic update, where its type is not that of the element.

``x[i] += v`` casts v to the type of x and then adds, so that the update is one atomic instruction; ``x[i] = x[i] + v`` adds in the wider
type and casts the sum. The two agree for integers, which wrap, and up to rounding for reals. The rest is made to agree, or refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import QdrunTypeError
from ...ir.nodes import Const, Operand
from ...ir.types import DType, limits, promote, u1

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder

_SUMS = ("add", "sub", "mul")
_OF_BITS = ("add", "sub", "and", "xor", "min", "max")
"""Updates of a truth value whose result depends on more of a number than whether it is 0."""


def update_value(b: FrontBuilder, code: str, x: Operand, dtype: DType, name: str) -> Operand:
    """The operand, so that a cast to ``dtype`` does not change what the update gives.

    Args:
        b: the builder.
        code: of the update: "add", "min", ..
        x: the operand, in its own type.
        dtype: of the element.
        name: of the field or array, for messages.

    Raises:
        QdrunTypeError: the cast would change the result: a real updates an integer, a number a truth value, an unsigned integer the minimum
            or maximum of a signed one.
    """
    if x.dtype is dtype or (isinstance(x, Const) and float(x.value).is_integer()):
        return x
    if dtype is u1 and code in _OF_BITS:
        hint = "update it by a truth value: `value != 0`, or `qd.u1(value)`"
        raise QdrunTypeError(f"`{name}` holds truth values (u1), and is updated by a number ({x.dtype})", hint=hint)
    if code in _SUMS and dtype.is_int and dtype is not u1 and x.dtype.is_real:  # (x and v != 0) is x * v != 0
        raise QdrunTypeError(
            f"`{name}` holds integers ({dtype}), and is updated by a real number ({x.dtype}), which would lose its fraction first",
            hint=f"convert it: `qd.{dtype}(value)`; or, where no other iteration updates the element, round the result:"
            " `x[i] = x[i] * value`",
        )
    if code in ("min", "max") and dtype.is_int and x.dtype.is_int:
        return _compared(b, x, dtype, name)
    return x


def _compared(b: FrontBuilder, x: Operand, dtype: DType, name: str) -> Operand:
    """The operand of a minimum or maximum of integers: within the limits of ``dtype`` where the comparison is made in a wider type."""
    wide = promote(dtype, x.dtype)
    if wide is dtype:
        return x
    if dtype.is_signed and not wide.is_signed:
        raise QdrunTypeError(
            f"`{name}` holds {dtype}, and its minimum or maximum with {x.dtype} is one of unsigned numbers",
            hint=f"convert the value: `qd.{dtype}(value)`",
        )
    (low, high), (least, most) = limits(x.dtype), limits(dtype)
    if low < least:
        x = b.op("max", x, Const(least, x.dtype))
    return b.op("min", x, Const(most, x.dtype)) if most < high else x
