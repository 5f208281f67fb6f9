"""The gradients and the duals that fields and ndarrays store."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from ...errors import (
    QdrunRuntimeError,
)
from ...program.program import Program, current_program
from ...runtime.mirror import changing, clear, copy, store


def has_grad(tensor: Any) -> bool:
    """Whether a field, the dual of one, or an ndarray stores a gradient."""
    if not tensor.dtype.is_real or getattr(tensor, "role", "") == "grad":
        return False
    grad = tensor.grad
    return grad is not None and getattr(grad, "placed", True)


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
        _clear_adjoints(program.tensors())
    else:
        raise QdrunRuntimeError(
            f"clear_all_gradients: {gradient_type!r} is neither ADJOINT nor DUAL; do: qd.ad.SNodeGradType.ADJOINT"
        )


def _clear_adjoints(tensors: Iterable[Any]) -> None:
    every = [each for tensor in tensors for each in (tensor, dual_of(tensor)) if each is not None]
    found = [tensor.grad for tensor in every if has_grad(tensor)]
    clear((grad._mirror, view) for grad, view in [(grad, grad._written()) for grad in found])


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
