"""Scalar types as users write them outside of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import QdrunTypeError
from ...ir import types as ir_types
from ...ir.types import DType
from ...program.program import current_program


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
