"""Scalar arguments of which each trial of a batched program has its own: an array of as many numbers."""

from __future__ import annotations

import numpy as np

from ...errors import QdrunFitError, QdrunTypeError
from ...ir.types import DType, limits
from ...program.call import Call
from ...program.program import current_program
from .host_staging import lend


def bind_column(values: np.ndarray, dtype: DType, call: Call, number: int) -> None:
    """Append the word of a scalar argument to the call: the address of one value for each trial, and of padding.

    Raises:
        QdrunTypeError: not one number for each trial, or numbers that the type does not hold.
    """
    program = current_program()
    trials = program.batch.layout
    if values.shape != trials.shape(()):
        raise QdrunFitError(
            f"expected {dtype}, or {trials.count} of them, one for each trial; got an array of shape {values.shape}"
        )
    if values.dtype.kind not in ("biuf" if dtype.is_real else "biu"):
        raise QdrunTypeError(f"expected {dtype} for each trial, got an array of {values.dtype}")
    if dtype.is_int:
        low, high = limits(dtype)
        wrong = values[(values < low) | (values > high)]
        if wrong.size:
            raise QdrunTypeError(f"{wrong[0]} does not fit {dtype} ({low} to {high})")
    column = np.empty(trials.padded, dtype.numpy)
    column[: trials.count], column[trials.count :] = values, values[-1]
    call.columns[number] = column[: trials.count]
    call.kept.append(column)
    call.words += column.ctypes.data.to_bytes(8, "little")
    if not program.device.on_host:
        lend(program, column, call, number, len(call.words) - 8)
