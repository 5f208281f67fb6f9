"""Gradients that the user writes: ``grad_replaced``, ``grad_for``, ``no_grad``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...errors import QdrunRuntimeError
from ...program.plans.tape_budget import compile_all
from ...program.program import CURRENT, Program
from ..function import Function
from ..kernel import BoundKernel, KernelFunction


class Replaced:
    """A Python function that a tape records as one step: its launches are hidden, its gradient is a function of its own.

    Made by ``grad_replaced`` and ``no_grad``. It may be a method; then its gradient is one too.
    """

    def __init__(self, fn: Callable[..., Any], backward: Callable[..., Any] | None = None) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.backward = fn, backward
        self.rehearsal: Callable[[], Any] | None = None  # launches what its gradient will, in a rehearsal
        self.cuts = backward is not None

    @property
    def name(self) -> str:
        return getattr(self.fn, "__qualname__", repr(self.fn)).rsplit("<locals>.", maxsplit=1)[-1]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function. An open tape records it instead of the launches inside.

        Raises:
            QdrunRuntimeError: a ``no_grad`` function in forward mode.
        """
        program = CURRENT.get()
        if program is not None and program.recorders.forward is not None and self.cuts:
            raise QdrunRuntimeError(
                f"`{self.name}` is decorated with no_grad, and forward mode would carry tangents through its kernels\n"
                "  do: run it before FwdMode, or stop the tangent in the kernel: qd.stop_grad(x)"
            )
        if program is not None and program.recorders.rehearsal is not None:
            if not self.cuts:
                program.recorders.rehearsal.custom(self.name)
            with program.recorders.rehearsal.unseen(self.name):
                return self.fn(*args, **kwargs)
        if program is not None:
            program.recorders.refuse_unrecorded(repr(self), "is called")
        tape = None if program is None else program.recorders.tape
        return self.fn(*args, **kwargs) if tape is None else tape.custom(self, args, kwargs)

    def grad(self, *args: Any, **kwargs: Any) -> Any:
        """Run its gradient with the arguments of the call.

        Raises:
            QdrunRuntimeError: it has none.
        """
        return self.gradient()(*args, **kwargs)

    def reserve(self, program: Program) -> int:
        if self.rehearsal is not None:
            compile_all(program, self.rehearsal)
        return 0

    def gradient(self) -> Callable[..., Any]:
        """Its gradient.

        Raises:
            QdrunRuntimeError: it has none.
        """
        if self.backward is None:
            raise QdrunRuntimeError(
                f"`{self.name}` is decorated with grad_replaced and has no gradient\n"
                f"  do: write one and decorate it with @qd.ad.grad_for({self.fn.__name__}), or use @qd.ad.no_grad"
            )
        return self.backward

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundReplaced(self, instance)

    def __repr__(self) -> str:
        return f"<{'no_grad' if self.cuts else 'grad_replaced'} {self.name}>"


class BoundReplaced:
    """A function with a gradient of its own that is a method, with its object."""

    def __init__(self, function: Replaced, instance: Any) -> None:
        self.function, self.instance = function, instance
        functools.update_wrapper(self, function.fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.instance, *args, **kwargs)

    def grad(self, *args: Any, **kwargs: Any) -> Any:
        """Run its gradient on the same object; see ``Replaced.grad``."""
        return self.function.grad(self.instance, *args, **kwargs)


_KERNELS = (KernelFunction, BoundKernel, Function)
_REPLACED = (Replaced, BoundReplaced)


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", repr(fn))


def _refuse_kernel(fn: Any, decorator: str) -> None:
    if isinstance(fn, _KERNELS):
        kind = "func" if isinstance(fn, Function) else "kernel"
        raise QdrunRuntimeError(
            f"{decorator} takes a Python function, and `{_name(fn)}` is a {kind}\n"
            f"  do: write a Python function that calls the kernel, and decorate it with @qd.ad.{decorator}"
        )
    if isinstance(fn, _REPLACED):
        raise QdrunRuntimeError(f"`{_name(fn)}` has a gradient of its own already; do: leave out @qd.ad.{decorator}")
    if not callable(fn):
        raise QdrunRuntimeError(f"{decorator} takes a Python function, not {type(fn).__name__}")


def grad_replaced(func: Callable[..., Any]) -> Any:
    """Give a Python function a gradient of its own; ``grad_for`` says which.

    Inside a tape one call counts as one step: the kernels launched inside are not recorded, and the tape runs the given gradient in their
    place, with the same arguments.

    Raises:
        QdrunRuntimeError: ``func`` is a kernel, or has a gradient of its own already.
    """
    _refuse_kernel(func, "grad_replaced")
    return Replaced(func)


def grad_for(primal: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function the gradient of ``primal``, which is decorated with ``grad_replaced``.

    Raises:
        QdrunRuntimeError: ``primal`` is a kernel, is not decorated, or has a gradient already.
    """
    if isinstance(primal, _KERNELS):
        raise QdrunRuntimeError(
            f"grad_for: the primal must be a Python function, and `{_name(primal)}` is a kernel, which has its own gradient\n"
            "  do: call the kernel in a Python function that is decorated with @qd.ad.grad_replaced"
        )
    function = primal.function if isinstance(primal, BoundReplaced) else primal
    if not isinstance(function, Replaced):
        raise QdrunRuntimeError(f"grad_for: `{_name(primal)}` must be decorated with @qd.ad.grad_replaced")
    if function.backward is not None:
        why = "is decorated with no_grad" if function.cuts else "has a gradient already"
        raise QdrunRuntimeError(f"grad_for: `{function.name}` {why}; do: one gradient for one function")

    def attach(fn: Callable[..., Any]) -> Callable[..., Any]:
        if isinstance(fn, _REPLACED) or not callable(fn):
            raise QdrunRuntimeError(f"grad_for({function.name}) takes a Python function, not {fn!r}")
        function.backward = fn
        return fn

    return attach


def no_grad(func: Callable[..., Any]) -> Any:
    """Hide a Python function or a kernel from the tape: what it computes counts as constant.

    Raises:
        QdrunRuntimeError: ``func`` is a function of kernels, or has a gradient of its own already.
    """
    if not isinstance(func, KernelFunction):
        _refuse_kernel(func, "no_grad")
    return Replaced(func, _nothing)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """The gradient of a constant."""
