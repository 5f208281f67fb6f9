"""Classes as ``compiler.lang`` has them, with nothing in them: what the native launcher reads, without a compiler."""

import contextvars

from qdrun.compiler.runtime.native.launch import Natives, install

VARIABLE = contextvars.ContextVar("program")


class Program:
    __slots__ = ("__weakref__", "native_gradients", "native_launches")

    def __init__(self):
        self.native_launches, self.native_gradients = {}, {}


class Kernel:
    """``fallback`` takes what no launch knows."""

    __slots__ = ("__dict__", "__weakref__", "token")

    def __init__(self, fallback):
        self.slow_call, self.token = fallback, object()
        self.grad, self.taped = _Of(self), _Taped(self)

    def __call__(self, *args, **kwargs):
        return self.slow_call(*args, **kwargs)

    def __get__(self, instance, owner=None):
        return self if instance is None else Bound(self, instance)


class _Of:
    __slots__ = ("kernel",)

    def __init__(self, kernel):
        self.kernel = kernel

    def slow_call(self, *args, **kwargs):
        return "slow gradient"

    def __call__(self, *args, **kwargs):
        return self.slow_call(*args, **kwargs)


class _Taped(_Of):
    __slots__ = ()

    def slow_call(self, *args, **kwargs):
        return "slow although taped"


class GradientOfBound:
    def __get__(self, bound, owner=None):
        return self if bound is None else BoundGradient(bound.kernel, bound.instance)

    def __call__(self, bound, *args, **kwargs):
        return self.slow_call(bound, *args, **kwargs)

    def slow_call(self, bound, *args, **kwargs):
        return bound.kernel.grad(bound.instance, *args, **kwargs)


class Bound:
    __slots__ = ("instance", "kernel")
    grad = GradientOfBound()

    def __init__(self, kernel, instance):
        self.kernel, self.instance = kernel, instance

    def __call__(self, *args, **kwargs):
        return self.slow_call(*args, **kwargs)

    def slow_call(self, *args, **kwargs):
        return self.kernel(self.instance, *args, **kwargs)


class BoundGradient(Bound):
    __slots__ = ()
    grad = None

    def slow_call(self, *args, **kwargs):
        return self.kernel.grad(self.instance, *args, **kwargs)


class Array:
    __slots__ = ("__weakref__", "_key", "_packed", "alpha")


NATIVE = install(Natives(VARIABLE, Program, Kernel, _Of, _Taped, Bound, BoundGradient, GradientOfBound, Array))
