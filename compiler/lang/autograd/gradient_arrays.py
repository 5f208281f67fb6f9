"""The gradients and the duals that fields and ndarrays store."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import numpy as np

from ...errors import (
    QdrunRuntimeError,
)
from ...program.program import Program, current_program
from ...runtime.mirror import changing, clear, copy, store
from ..data.field import Field
from ..data.ndarray import Ndarray
from ..data.tensor import Tensor
from ..interop import bare


def has_grad(tensor: Any) -> bool:
    """Whether a field, the dual of one, or an ndarray stores a gradient."""
    if not tensor.dtype.is_real or getattr(tensor, "role", "") == "grad":
        return False
    grad = tensor.grad
    return grad is not None and getattr(grad, "placed", True)


WORTH = 2
"""Times that the same gradients are cleared before it is kept how."""


class SNodeGradType(StrEnum):
    """Which gradients ``clear_all_gradients`` clears. Adjoints are those of reverse mode, duals those of forward mode."""

    ADJOINT = "adjoint"
    DUAL = "dual"


def clear_all_gradients(gradient_type: SNodeGradType | str = SNodeGradType.ADJOINT) -> None:
    """Set the gradients (or the duals) of all fields and ndarrays of the current program to zero.

    Raises:
        QdrunRuntimeError: no such type.
    """
    program = current_program()
    program.materialize()
    name = str(getattr(gradient_type, "value", gradient_type)).lower()
    if name == SNodeGradType.DUAL:
        clear_duals(program)
    elif name == SNodeGradType.ADJOINT:
        _clear_adjoints(program)
        for passed in program.state.passed:
            passed.clear()
    else:
        raise QdrunRuntimeError(
            f"clear_all_gradients: {gradient_type!r} is neither ADJOINT nor DUAL; do: qd.ad.SNodeGradType.ADJOINT"
        )


def _clear_adjoints(program: Program) -> None:
    followed = program.recorders.active()
    if callable(program.arrays.clearing) and not followed:
        program.arrays.clearing()
        return
    every = [each for tensor in program.tensors() for each in (tensor, dual_of(tensor)) if each is not None]
    found = [(grad, grad._written()) for grad in (tensor.grad for tensor in every if has_grad(tensor))]
    clear((grad._mirror, view) for grad, view in found)
    if not (followed or callable(program.arrays.clearing)):  # gradients that stay are found once
        program.arrays.clearing = program.arrays.clearing + 1 if program.arrays.clearing < WORTH else _clearing(program, found)


def _clearing(program: Program, found: list[tuple[Any, np.ndarray]]) -> Callable[[], None]:
    """Sets gradients to zero as long as no memory comes or goes."""
    counters = list({id(count): count for grad, _ in found for count in program.data.writes_to(grad)}.values())
    run = program.device.clearing([(grad._mirror, view) for grad, view in found])

    def clear_them() -> None:
        for count in counters:
            count.value += 1
        run()

    return clear_them


def dual_of(tensor: Any) -> Any:
    """The dual of a field or an ndarray that has memory, or None."""
    if not tensor.dtype.is_real or getattr(tensor, "role", ""):
        return None
    dual = tensor.dual
    return dual if dual is not None and getattr(dual, "placed", True) else None


def clear_duals(program: Program) -> None:
    """Set the duals of all fields and ndarrays of a program to zero."""
    found = [dual for tensor in program.tensors() if (dual := dual_of(tensor)) is not None]
    clear((dual._mirror, dual._form) for dual in found)


def assign_tangent(dual: Any, tangent: Any, index: tuple[int, ...] | None, parts: tuple[Any, ...]) -> None:
    """Do to a dual what an assignment of Python does to its field or ndarray: the tangent of a constant is 0, that of a copy is copied.

    Args:
        dual: of the tensor that is written.
        tangent: the dual of what it is copied from; None: constants.
        index: of the element; None: all elements.
        parts: what of the element, as indices of indices.
    """
    if index is None:
        if tangent is None:
            store(dual._mirror, dual._form, 0)
        else:
            copy(dual._mirror, dual._form, tangent._mirror, tangent._form)
        return
    element, path = dual._in_memory_order, (dual._at(index), *parts)
    for part in path[:-1]:
        element = element[part]
    with changing(dual._mirror, element):
        element[path[-1]] = 0


# ---- the loss of a tape: a 0-D field, or an ndarray, tensor or torch tensor of one element
def unwrapped_loss(tensor: Any) -> Any:
    """The field or ndarray behind a ``qd.Tensor``."""
    return tensor._unwrap() if isinstance(tensor, Tensor) else tensor


def _is_torch(loss: Any) -> bool:
    return type(loss).__module__.split(".", maxsplit=1)[0] == "torch" and hasattr(loss, "requires_grad")


def check_loss(loss: Any) -> None:
    """Refuse what is no loss.

    Raises:
        QdrunRuntimeError: it has no gradient, or more than one element, or is something else.
    """
    if _is_torch(loss):
        if loss.numel() != 1:
            raise QdrunRuntimeError("The loss of Tape must be a tensor of one element")
        if not loss.requires_grad:
            raise QdrunRuntimeError("Gradients of loss are not allocated; do: create it with requires_grad=True")
        return
    if not isinstance(loss, (Field, Ndarray)):
        raise QdrunRuntimeError(f"the loss of a Tape is a field, an ndarray or a torch tensor, not {type(loss).__name__}")
    size = 1
    for extent in loss.shape:
        size *= extent
    element = loss.element if isinstance(loss, Field) else loss.element_shape
    if (isinstance(loss, Field) and loss.shape != ()) or size != 1 or element:
        raise QdrunRuntimeError(
            "The loss of Tape must be a 0-D field, i.e. scalar (or an ndarray of one element)\n"
            "  do: loss = qd.field(qd.f32, shape=(), needs_grad=True), and add to loss[None] in a kernel"
        )
    if not has_grad(loss):
        raise QdrunRuntimeError("Gradients of loss are not allocated; do: create it with needs_grad=True")


def loss_gradient(loss: Any) -> Any:
    """The gradient of a loss; torch allocates its own when it is first wanted."""
    if _is_torch(loss) and loss.grad is None:
        loss.grad = bare(loss).clone()
    return loss.grad


def fill_loss(tensor: Any, value: float) -> None:
    """Set a loss, or its gradient."""
    if isinstance(tensor, (Field, Ndarray)):
        tensor.fill(value)
    else:
        bare(tensor).fill_(value)
