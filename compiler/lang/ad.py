"""Automatic differentiation over several launches: the tape."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from ..errors import NothingToDifferentiate, QdrunRuntimeError
from .field import Field
from .matrix import Matrix
from .ndarray import Ndarray
from .overwrites import Launch, check_overwrites
from .program import Program, current_program
from .types import MatrixType


class Tape:
    """``with qd.ad.Tape(loss=loss):`` records the launches inside and, at the end, runs their gradients last to first.

    On entry all gradients of the program are cleared and the loss is set to zero; at the end the loss's gradient is set to one.
    When the body raises, nothing is replayed.

    Args:
        loss: a 0-D field or a one-element ndarray with a gradient; None when the caller seeds gradients by hand.
        clear_gradients: False to accumulate over several tapes.

    Raises:
        QdrunRuntimeError: no such loss, a tape inside a tape, or a second use of the same tape.
    """

    def __init__(
        self, loss: Any = None, clear_gradients: bool = True, validation: bool = False, grad_check: Any = None
    ) -> None:
        if validation or grad_check:
            name = "validation=True" if validation else "grad_check"
            raise QdrunRuntimeError(f"Tape({name}) is not part of this version; do: leave it out, and compare with differences")
        self.loss, self.clear_gradients = loss, clear_gradients
        self._calls: list[Launch] = []
        self._host_writes: list[tuple[int, Any]] = []
        self._program: Program | None = None

    def record(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember one launch."""
        if not all(type(a) in _PLAIN for a in args) or kwargs:
            params = kernel.binder.params
            args, kwargs = tuple(kernel.binder.arguments(args, kwargs)), {}
            args = tuple(_frozen(p.annotation, a) for p, a in zip(params, args, strict=True))
        self._calls.append((kernel, args, kwargs))

    def wrote(self, tensor: Any) -> None:
        """Remember that Python wrote to a field or an ndarray between two launches."""
        self._host_writes.append((len(self._calls), tensor))

    def __enter__(self) -> Tape:
        if self._program is not None:
            raise QdrunRuntimeError("Tape can be entered only once; do: make a new one")
        program = self._program = current_program()
        if program.tape is not None:
            raise QdrunRuntimeError("a tape is open already; do: put both parts into one tape, or close the first")
        program.materialize()
        if self.loss is not None:
            _check_loss(self.loss)
        if self.clear_gradients:
            clear_all_gradients()
        if self.loss is not None:
            self.loss.fill(0)
        program.tape = self
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        assert self._program is not None
        self._program.tape = None
        if kind is None:
            if current_program() is not self._program:
                raise QdrunRuntimeError("another program became current inside the tape; do: one tape in one program")
            self.grad()

    def grad(self) -> None:
        """Run the gradients of the recorded launches, last to first.

        Raises:
            DataAccessError: a later launch, or Python, overwrote what the gradient of an earlier launch must read again.
        """
        check_overwrites(self._calls, self._host_writes)
        if self.loss is not None:
            self.loss.grad.fill(1)
        for kernel, args, kwargs in reversed(self._calls):
            with contextlib.suppress(NothingToDifferentiate):
                kernel.grad(*args, **kwargs)


_PLAIN = frozenset((int, float, bool, Ndarray))


def _frozen(annotation: Any, value: Any) -> Any:
    """An argument as it is now: numbers and vectors are copied, arrays are followed by their memory."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    if isinstance(annotation, MatrixType):
        return np.array(value.to_numpy() if isinstance(value, Matrix) else value)
    return value


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, (Field, Ndarray)):
        raise QdrunRuntimeError(f"the loss of a Tape is a field or an ndarray, not {type(loss).__name__}")
    size = 1
    for extent in loss.shape:
        size *= extent
    element = loss.element if isinstance(loss, Field) else loss.element_shape
    if (isinstance(loss, Field) and loss.shape != ()) or size != 1 or element:
        raise QdrunRuntimeError("The loss of Tape must be a 0-D field, i.e. scalar (or an ndarray of one element)")
    if not _has_grad(loss):
        raise QdrunRuntimeError("Gradients of loss are not allocated; do: create it with needs_grad=True")


def _has_grad(tensor: Any) -> bool:
    if not tensor.dtype.is_real:
        return False
    grad = tensor.grad
    return grad is not None and getattr(grad, "placed", True)


def clear_all_gradients() -> None:
    """Set the gradients of all fields and ndarrays of the current program to zero."""
    program = current_program()
    program.materialize()
    for tensor in program.tensors():
        if _has_grad(tensor):
            tensor.grad.fill(0)
