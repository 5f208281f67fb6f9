"""Keys as unsigned numbers of the same order, and their digits."""

from __future__ import annotations

from typing import Any

from ...compiler.extend import DType
from ...compiler.face import QdrunTypeError, bit_cast, cast, f32, f64, func, i32, i64, isnan, static, u32, u64

__qd_wraps__ = True  # see FunctionSource.wraps

DIGITS = 256
"""Values of a digit, of 8 bits."""

_WIDE: dict[tuple[str, int], DType] = {
    ("f", 2): f32,
    ("f", 4): f32,
    ("f", 8): f64,
    **{("i", size): i32 for size in (1, 2, 4)},
    **{("u", size): u32 for size in (1, 2, 4)},
    ("i", 8): i64,
    ("u", 8): u64,
}
"""Kind and bytes of a key -> the type that it is ordered in."""


def ordered_type(dtype: DType, what: str) -> tuple[DType, DType]:
    """The type in which keys are ordered, and that of their bits.

    Raises:
        QdrunTypeError: keys of this type have no order.
    """
    wide = _WIDE.get((dtype.kind, dtype.size))
    if wide is None:
        raise QdrunTypeError(f"algorithms.{what}: keys of the type {dtype} are not sorted", hint="convert them to qd.i32")
    return wide, u64 if wide.size == 8 else u32


@func
def ordered(key: Any, wide: Any, bits: Any) -> Any:
    """The bits of a key as an unsigned number of the same order: -0.0 equals 0.0, and NaN comes last."""
    k = cast(key, wide)
    b = bit_cast(k, bits)
    if static(wide.is_real):
        sign = cast(1, bits) << static(8 * bits.size - 1)
        if b << cast(1, bits) == 0:  # the smallest numbers equal 0.0 where a device takes them for it
            b = sign
        elif isnan(k):
            b = ~cast(0, bits)
        elif b >= sign:
            b = ~b
        else:
            b = b | sign
    elif static(wide.is_signed):
        b = b ^ (cast(1, bits) << static(8 * bits.size - 1))
    return b


@func
def unordered(b: Any, wide: Any, bits: Any) -> Any:
    """The key of these bits: 0.0 of those that equal it, and one NaN for all."""
    sign = cast(1, bits) << static(8 * bits.size - 1)
    key = b
    if static(wide.is_real):
        key = ~b
        if b >= sign:
            key = b ^ sign
    elif static(wide.is_signed):
        key = b ^ sign
    return bit_cast(key, wide)


@func
def digit_of(b: Any, shift: Any, bits: Any) -> Any:
    """The digit that begins at a bit, i32."""
    return cast((b >> cast(shift, bits)) & cast(DIGITS - 1, bits), i32)
