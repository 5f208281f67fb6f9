"""Kernels that are methods, with their object as first argument."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any


def forwarded(name: str) -> Callable[..., Any]:
    """A method of the kernel, or of its gradient (``grad.plan``), with the object as first argument."""
    method_of = operator.attrgetter(name)
    return lambda self, *args, **kwargs: method_of(self.kernel)(self.instance, *args, **kwargs)


class GradientOfBound:
    """``grad`` in the class of bound kernels: ``obj.k.grad(..)`` comes here without a ``BoundGradient`` in between."""

    def __get__(self, bound: BoundKernel | None, owner: type | None = None) -> Any:
        return self if bound is None else BoundGradient(bound.kernel, bound.instance)

    def __call__(self, bound: BoundKernel, *args: Any, **kwargs: Any) -> None:
        self.slow_call(bound, *args, **kwargs)

    def slow_call(self, bound: BoundKernel, *args: Any, **kwargs: Any) -> None:
        """The launch in Python."""
        bound.kernel.grad(bound.instance, *args, **kwargs)


class BoundKernel:
    """A kernel that is a method, with its object as first argument."""

    __slots__ = ("instance", "kernel")
    __qd_kernel__ = True
    grad = GradientOfBound()
    """The reverse kernel, bound to the same object."""

    def __init__(self, kernel: Any, instance: Any) -> None:
        self.kernel, self.instance = kernel, instance

    @property
    def __name__(self) -> str:
        """The name of the function."""
        return self.kernel.fn.__name__

    @property
    def __wrapped__(self) -> Any:
        """The function."""
        return self.kernel.fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.slow_call(*args, **kwargs)

    def slow_call(self, *args: Any, **kwargs: Any) -> Any:
        """The launch in Python."""
        return self.kernel(self.instance, *args, **kwargs)

    prepare, plan, uncompiled = map(forwarded, ("prepare", "plan", "uncompiled"))


class BoundGradient:
    """``obj.k.grad``"""

    __slots__ = ("instance", "kernel")

    def __init__(self, kernel: Any, instance: Any) -> None:
        self.kernel, self.instance = kernel, instance

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.slow_call(*args, **kwargs)

    def slow_call(self, *args: Any, **kwargs: Any) -> None:
        """The launch in Python."""
        self.kernel.grad(self.instance, *args, **kwargs)

    prepare, load, plan = map(forwarded, ("grad.prepare", "grad.load", "grad.plan"))
    exists, uncompiled, remedies = map(forwarded, ("grad.exists", "grad.uncompiled", "grad.remedies"))
