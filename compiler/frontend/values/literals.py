"""Refuses a literal that its type cannot hold. Values that only running can tell wrap or saturate; a number in the source is a mistake."""

from __future__ import annotations

from math import isfinite

from ...errors import QdrunFitError
from ...ir.nodes import Const
from ...ir.types import DType, limits

_CONVERT = "write a number that fits, or give it a wider type"
_WRAP = "to have it wrap or saturate, write qd.cast({value}, qd.{dtype})"


def check_fits(x: Const, dtype: DType, modular: bool = False) -> None:
    """Refuse to convert a number of the source to an integer type that does not hold it.

    Reals are rounded to a real type, and are infinite if they are too big for it, as in numpy.

    Args:
        x: a literal, or what literals gave.
        dtype: the type that it takes.
        modular: it is an operand of ``+ - * & | ^``, which give the same for all numbers that are equal modulo the type's size: a negative
            number may stand for an unsigned one, and the other way round.

    Raises:
        QdrunFitError: it does not fit.
    """
    if not x.exact or not dtype.is_int or dtype.kind == "b":
        return
    low, high = limits(dtype)
    value = x.value
    inside = low <= (int(value) if isfinite(value) else value) <= high
    if modular and not inside and not isinstance(value, float):
        inside = -(1 << (dtype.bits - 1)) <= value < 1 << dtype.bits
    if not inside:
        hint = f"{_CONVERT}; {_WRAP.format(value=value, dtype=dtype)}"
        raise QdrunFitError(f"the literal {value} does not fit {dtype} ({low} to {high})", hint=hint)


def check_shift(count: Const, dtype: DType) -> None:
    """Refuse to shift by a literal that is no number of bits of the type.

    Raises:
        QdrunFitError: it is negative, or not less than the bits of the type.
    """
    if count.exact and not 0 <= count.value < dtype.bits:
        hint = f"shift by 0 to {dtype.bits - 1}, or shift a wider type: qd.u64(x) << {count.value}"
        raise QdrunFitError(f"a shift by {count.value} leaves the {dtype.bits} bits of {dtype}", hint=hint)
