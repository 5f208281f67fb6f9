"""``Outcome``, the result of one run of a job, and its validation."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from . import paths

Gradient = float | np.ndarray
EXACT = 2.0**53
"""Every integer up to this is a float."""


class BadOutcome(TypeError):
    """``run`` gave something that is no result, or one with a part missing or of the wrong kind."""


@dataclass(frozen=True)
class Outcome:
    """The result of one run: the loss, d(loss)/d(name) for each wanted gradient, and other numbers that become columns."""

    loss: float
    gradients: Mapping[str, Gradient] = field(default_factory=dict)
    outputs: Mapping[str, Gradient] = field(default_factory=dict)


def check_outcome(outcome: Any, job: str, params: BaseModel, wanted: Sequence[str]) -> None:
    """Refuse an invalid result of a job of class ``job``. Checks only the shapes of arrays, because it runs for each trial.

    Raises:
        BadOutcome: it is no ``Outcome``, has no loss, lacks a gradient in ``wanted``, or a gradient has another shape than its parameter.
    """
    if not isinstance(outcome, Outcome):
        raise BadOutcome(
            f"{job}.run() gave {_short(outcome)} instead of an Outcome\n"
            "  do: end it with `return Outcome(loss, gradients, outputs)`"
        )
    try:
        loss_of(outcome.loss)
    except Exception as error:  # also what an object's own __float__ raises
        raise BadOutcome(
            f"{job}.run() gave a loss that is not one number: {_short(outcome.loss)}\n"
            "  do: give a float, as `float(self.loss[None])` is one"
        ) from error
    for part in (outcome.gradients, outcome.outputs):
        if not isinstance(part, Mapping) or not all(isinstance(name, str) and _encodes(name) for name in part):
            raise BadOutcome(
                f"{job}.run() gave gradients or outputs that are no map from names to numbers: {_short(part)}\n"
                "  do: give dictionaries whose keys are texts, as in Outcome(loss, {'x': gradient}, {'height': 1.5})"
            )
    missing = [name for name in wanted if name not in outcome.gradients]
    if missing:
        raise BadOutcome(f"{job}.run() gave no gradient for {', '.join(missing)}\n  do: put it into Outcome.gradients")
    for name in wanted:
        expected = _shape_of_parameter(paths.value_of(params, name))
        given = shape_of(outcome.gradients[name])
        if expected is not None and given is not None and given != expected:
            raise BadOutcome(
                f"{job}.run() gave the gradient of `{name}` with shape {given}, the parameter has shape {expected}\n"
                "  do: give one number for each number of the parameter; a gradient of something else needs another name"
            )


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of a number (an empty one), an array, or nested lists of numbers; None for anything else, and for ragged lists."""
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (list, tuple)):
            inner = {shape_of(item) for item in value}
            first = inner.pop()
            return None if inner or first is None else (len(value), *first)
        first = shape_of(value[0]) if value else ()  # of a long list only one number is checked
        return None if first is None else (len(value), *first)
    if isinstance(value, (bool, str, bytes)) or value is None:
        return None
    shape = () if isinstance(value, (int, float)) else getattr(value, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) else None


def _shape_of_parameter(value: Any) -> tuple[int, ...] | None:
    """The shape of a parameter as results have it: a value of another type counts as what it is in JSON."""
    found = shape_of(value)
    return found if found is not None or value is None else shape_of(to_jsonable_python(value, fallback=str))


def arrays_of(values: Mapping[str, Any], what: str) -> dict[str, np.ndarray[Any, Any]]:
    """The gradients or outputs of a result as arrays. Floats of up to 64 bits keep their width; everything else becomes 64 bits of it.

    Nothing is lost but digits of wider floats: complex numbers, masked arrays, texts, and integers that no float is equal to are refused.

    Args:
        values: by name.
        what: ``gradient`` or ``output``, for messages.

    Raises:
        BadOutcome: one of them is neither a number nor an array of numbers.
    """
    name, value = "", None
    found = {}
    try:
        for name, value in values.items():
            found[name] = array_of(value)
    except Exception as error:  # also what an object's own __array__ or __float__ raises
        kind = str(error) if isinstance(error, OverflowError) else "which is neither a number nor an array of numbers"
        raise BadOutcome(
            f"run() gave the {what} `{name}` as {_short(value)}, {kind}\n"
            "  do: give numbers; what else a trial has to say can be printed: `qdrun logs` shows it"
        ) from error
    return found


def array_of(value: Any) -> np.ndarray[Any, Any]:
    """A number, an array, or nested lists of numbers as an array of floats of at most 64 bits.

    Raises:
        TypeError, ValueError: it is something else.
        OverflowError: a number is too large for a float, or an integer is equal to none.
    """
    if np.ma.is_masked(value) or (isinstance(value, list | tuple) and any(item is np.ma.masked for item in value)):
        raise TypeError("masked")
    array = np.asarray(value)
    kind = array.dtype.kind
    if kind == "f" and array.dtype.itemsize <= 8:
        return array
    if kind == "O":
        return np.array([_number(item) for item in array.flat], dtype=np.float64).reshape(array.shape)
    if kind not in "biuf":
        raise TypeError(array.dtype)
    with np.errstate(over="ignore"):
        out = array.astype(np.float64)
    if kind == "f" and np.isinf(out).sum() > np.isinf(array).sum():
        raise OverflowError("which is too large for 64 bits")
    if kind in "iu" and array.dtype.itemsize == 8 and (np.abs(out) >= EXACT).any():
        for item in array.flat:
            _number(int(item))
    return out


def loss_of(value: Any) -> float:
    """A loss as a float. Raises as ``array_of``, and where it is more than one number."""
    if type(value) is float:
        return value
    array = array_of(value)
    if array.size != 1:
        raise TypeError(array.shape)
    return float(array.reshape(())[()])


def _number(item: Any) -> float:
    """Validate one number of a list of mixed types."""
    if item is None or isinstance(item, str | bytes | complex | np.complexfloating):
        raise TypeError(type(item))
    number = float(item)
    if isinstance(item, int) and int(number) != item:
        raise OverflowError("and no float is equal to such an integer")
    return number


def _encodes(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(value: Any) -> str:
    """A value in a line: its type, the shape of an array, and the beginning of its text."""
    if isinstance(value, np.ma.MaskedArray):
        return f"a masked array of shape {value.shape}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} of {value.dtype}"
    return "None" if value is None else f"{reprlib.repr(value)} ({type(value).__name__})"


__all__ = ["BadOutcome", "Gradient", "Outcome", "array_of", "arrays_of", "check_outcome", "loss_of", "shape_of"]
