"""The scalar types under all their names, as users write them outside of kernels, and what can be asked of a type."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import QdrunTypeError
from ...ir import types as ir_types
from ...ir.types import DType, f16, f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64
from ...program.program import current_program

float16, float32, float64 = f16, f32, f64
int8, int16, int32, int64 = i8, i16, i32, i64
uint1, uint8, uint16, uint32, uint64 = u1, u8, u16, u32, u64


def resolve(dtype: Any) -> DType:
    """A ``DType``, a numpy type, or ``float`` / ``int`` / ``bool`` for the defaults of the current program.

    Raises:
        QdrunTypeError: it is not a scalar type.
    """
    if isinstance(dtype, DType):
        return ir_types.ALL[dtype.name]  # a copied or unpickled type is the type itself again: types are compared by identity
    if dtype is bool:
        return ir_types.u1
    if dtype is float or dtype is int or dtype is ir_types.Unsigned:
        fp, ip = defaults()
        return fp if dtype is float else ip if dtype is int else ir_types.unsigned(ip)
    try:
        return ir_types.from_numpy(np.dtype(dtype))
    except (KeyError, TypeError, ValueError) as e:
        raise QdrunTypeError(f"{dtype!r} is not a scalar type", hint="use qd.f32, qd.i32, ..") from e


def defaults() -> tuple[DType, DType]:
    """``default_fp`` and ``default_ip`` of the current program."""
    options = current_program().options
    return options.default_fp, options.default_ip


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
