"""The scalar types under all their names, and what can be asked of a type."""

from __future__ import annotations

from typing import Any

from ...ir.types import DType, f16, f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64

float16, float32, float64 = f16, f32, f64
int8, int16, int32, int64 = i8, i16, i32, i64
uint1, uint8, uint16, uint32, uint64 = u1, u8, u16, u32, u64


def is_real(dtype: DType) -> bool:
    """Whether a scalar type is a real."""
    return isinstance(dtype, DType) and dtype.is_real


def is_integral(dtype: DType) -> bool:
    """Whether a scalar type is an integer; truth values count."""
    return isinstance(dtype, DType) and dtype.is_int


def is_signed(dtype: DType) -> bool:
    """Whether a scalar type has negative values."""
    return isinstance(dtype, DType) and dtype.is_signed


def is_tensor(dtype: Any) -> bool:
    """Whether a type is that of vectors or matrices."""
    return isinstance(getattr(dtype, "shape", None), tuple) and not isinstance(dtype, DType)
