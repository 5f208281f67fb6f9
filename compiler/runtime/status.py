"""Turns a status record into the user's exception, and print records into text."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TextIO

import numpy as np

from ..codegen.abi import STATUS_VALUES, STATUS_WORDS
from ..errors import AdStackOverflow, Fault, QdrunAssertionError, QdrunError, QdrunRuntimeError, describe
from ..ir.nodes import Assert, ClaimRow, Loop, Operand, Overflow, Print
from ..print_formats import Formatter, formatted
from .compiled import Compiled

Capacity = Callable[[Loop], int | str | None]
OUTPUT: ContextVar[TextIO | None] = ContextVar("qdrun_output", default=None)
"""The output stream of kernels that are prepared in this context, on any thread; None: ``sys.stdout`` at the time of the print."""


def read_word(word: int, operand: Operand) -> int | float | bool:
    """The value of an operand from its 8 bytes (given as a signed integer)."""
    dtype = operand.dtype
    if dtype.is_real:
        return struct.unpack("<d", struct.pack("<q", word))[0]
    if dtype.kind == "b":
        return bool(word)
    return word if dtype.is_signed else word & ((1 << dtype.bits) - 1)


def take_status(address: int) -> list[int]:
    """The words of a status record, which is zero afterwards: the program stays usable."""
    record = (ctypes.c_int64 * STATUS_WORDS).from_address(address)
    words = list(record)
    ctypes.memset(address, 0, ctypes.sizeof(record))
    return words


def raise_status(compiled: Compiled, address: int, capacity: Capacity | None = None) -> None:
    """Raise what the record at ``address`` says and clear it; do nothing when all is well.

    Args:
        compiled: the kernel that ran.
        address: its context's status record.
        capacity: how many iterations a loop's adstacks were planned for, for the message.

    Raises:
        QdrunAssertionError: a check failed.
        AdStackOverflow: a loop ran further than planned, or more threads than planned needed an adstack row.
    """
    code, *rest = take_status(address)
    if code:
        raise error_of(compiled, code, rest[STATUS_VALUES - 1 :], capacity)


def error_of(compiled: Compiled, code: int, values: Sequence[int], capacity: Capacity | None = None) -> QdrunError:
    """The error of a status code. ``values``: the words of the message's first operands; ``capacity``: see ``raise_status``."""
    if not 1 <= code <= len(compiled.messages):
        return QdrunRuntimeError(
            f"kernel `{compiled.name}` reported status {code}, which it does not define: memory was overwritten"
        )
    message = compiled.messages[code - 1]
    if isinstance(message, Assert):
        return failed(message, [read_word(w, x) for w, x in zip(values, message.args)])
    if isinstance(message, ClaimRow):
        return AdStackOverflow(_row_text(message, compiled, compiled.task_names[code - 1]))
    return AdStackOverflow(_overflow_text(message, compiled, compiled.task_names[code - 1], capacity))


_NO_DERIVATIVE = "the derivative is not finite here: keep the operand away from this value, as in qd.sqrt(x + 1e-12)"
_HINTS = {
    "nan": "guard the operation, or keep its operands where its result is finite",
    "input": "look at what was written there before: by Python, by a kernel without nan_check, or a NaN that was meant",
    "overflow": "compute in a wider type, such as qd.i64; where it shall wrap, leave overflow_check out: debug=True reports it and goes on",
}


def failed(message: Assert, values: Sequence[int | float | bool]) -> QdrunAssertionError:
    """The error of a check that failed. ``values``: of the first of its operands, as many as are known."""
    own = len(message.args) - len(message.loops)
    operands, counts = values[:own], values[own:]
    texts: list[object] = [_shown(v, x) if message.kind in ("nan", "input") else v for v, x in zip(operands, message.args)]
    texts += ["?"] * (own - len(texts))  # the record holds the first few only
    text = Formatter().format(message.message, *texts) if own else message.message
    iteration = (*zip(message.loops, map(int, counts)), *(message.loc.at if message.loc else ()))
    hint = _NO_DERIVATIVE if message.kind == "nan" and message.loc and message.loc.mode else _HINTS.get(message.kind, "")
    return QdrunAssertionError(Fault(message.kind, text or "assertion failed", message.loc, iteration, tuple(operands), hint))


def _shown(value: int | float | bool, operand: Operand) -> object:
    """A number with the digits of its type."""
    if not operand.dtype.is_real:
        return value
    with np.errstate(over="ignore"):
        return str(operand.dtype.numpy.type(value))


def _overflow_text(message: Overflow, compiled: Compiled, task: str, capacity: Capacity | None) -> str:
    loop = message.loop
    planned = capacity(loop) if capacity else None
    room = "" if planned is None else f", which is {planned}"
    where = f" (task `{task}`)" if task else ""
    return describe(
        f"a loop of kernel `{compiled.name}`{where} ran more iterations than its adstack holds{room}",
        loop.loc,
        "give the loop a bound that covers every run, or ask for a larger adstack; the gradients of this launch are not valid",
    )


def _row_text(message: ClaimRow, compiled: Compiled, task: str) -> str:
    return describe(
        f"more threads of kernel `{compiled.name}` (task `{task}`) need an adstack row than its plan has rows",
        message.loc,
        "the plan counted the iterations that pass the condition here: do not change the arrays that it reads while the launch is"
        " planned; the gradients of this launch are not valid",
    )


def print_text(site: Print, words: Sequence[int]) -> str:
    """The text of a print statement: its parts one after another, without a line end."""
    left = iter(words)
    return site_text(site, [read_word(next(left), p) for p in site.parts if not isinstance(p, str)])


def site_text(site: Print, values: Sequence[int | float | bool]) -> str:
    """The parts of a print statement with these values."""
    left = iter(values)
    formats = site.formats or ("",) * len(site.parts)
    texts = (
        p if isinstance(p, str) else formatted(next(left), f) if f else str(next(left)) for p, f in zip(site.parts, formats)
    )
    return "".join(texts)
