"""Kernels that are methods, with their object as first argument."""

from __future__ import annotations

from typing import Any

from ...program.plans.kernel_plan import KernelPlan
from ...tape.heap_plan import HeapPlan


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

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """See ``KernelFunction.prepare``."""
        self.kernel.prepare(self.instance, *args, **kwargs)

    def plan(self, *args: Any, **kwargs: Any) -> KernelPlan:
        """See ``KernelFunction.plan``."""
        return self.kernel.plan(self.instance, *args, **kwargs)

    def uncompiled(self, *args: Any, **kwargs: Any) -> dict[object, KernelPlan]:
        """See ``KernelFunction.uncompiled``."""
        return self.kernel.uncompiled(self.instance, *args, **kwargs)


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

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """See ``KernelGradient.prepare``."""
        self.kernel.grad.prepare(self.instance, *args, **kwargs)

    def load(self, *args: Any, **kwargs: Any) -> None:
        """See ``KernelGradient.load``."""
        self.kernel.grad.load(self.instance, *args, **kwargs)

    def plan(self, *args: Any, **kwargs: Any) -> HeapPlan:
        """See ``KernelGradient.plan``."""
        return self.kernel.grad.plan(self.instance, *args, **kwargs)

    def exists(self, *args: Any, **kwargs: Any) -> bool:
        """See ``KernelGradient.exists``."""
        return self.kernel.grad.exists(self.instance, *args, **kwargs)

    def uncompiled(self, *args: Any, **kwargs: Any) -> dict[object, KernelPlan]:
        """See ``KernelGradient.uncompiled``."""
        return self.kernel.grad.uncompiled(self.instance, *args, **kwargs)

    def remedies(self, *args: Any, **kwargs: Any) -> dict[str, HeapPlan]:
        """See ``KernelGradient.remedies``."""
        return self.kernel.grad.remedies(self.instance, *args, **kwargs)
