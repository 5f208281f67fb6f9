"""The type slots of classes with native launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...codegen.builder import I64, Builder, NativeFunction, NativeModule, Ptr, Value, external, function
from .launch_ir import F_CLOSED, F_SLOW, PYTHON, dec_ref, inc_ref, native
from .pack_ir import P_BOUND, P_NONE, P_SLOW, has_type, length, member, process

_call = external("PyObject_Call", "ptr", "ptr", "ptr", "ptr")
_get_attr = external("PyObject_GetAttr", "ptr", "ptr", "ptr")
_allocate = external("PyType_GenericAlloc", "ptr", "ptr", "i64")

_Launch = Callable[[Builder, Value, Value, Value], Value]
"""Emits the native call of an object with ``n`` arguments at an address; the result is ``PYTHON`` where Python must make it."""


@function("ptr")
def slow(f: Builder, of: Ptr, args: Ptr, keywords: Ptr) -> None:
    """Make a call in Python, by ``slow_call``."""
    method = f.call(_get_attr, of, process(f, P_SLOW))
    f.ret(0, when=method == 0)
    result = f.call(_call, method, args, keywords)
    f.call(dec_ref, method)
    f.ret(result)


def _slot(name: str, launch: _Launch) -> NativeFunction:
    """The call slot of a class: ``launch`` unless there are keywords, else ``slow``."""

    def emit(f: Builder, of: Value, given: Value, keywords: Value) -> None:
        plain = f.var(True, "i1")
        with f.if_(keywords != 0):
            plain.value = length(keywords) == 0
        with f.if_(plain.value):
            result = launch(f, of, given + f.constants["TUPLE_ITEMS"], length(given))
            f.ret(result, unless=result == PYTHON)
        f.ret(f.call(slow, of, given, keywords))

    return NativeFunction(name, "ptr", ("ptr", "ptr", "ptr"), emit)


@function("ptr")
def native_of(f: Builder, bound: Ptr, at: I64, args: Ptr, n: I64) -> None:
    """``native`` with the object of a bound kernel before the other arguments."""
    count = n + 1
    every = f.stack(count)
    every[0] = member(bound, "BOUND_INSTANCE_AT")
    f.copy(every.words(1), args, n << 3)
    f.ret(f.call(native, member(bound, "BOUND_KERNEL_AT"), at, F_SLOW, every, count))


def _of_kernel(f: Builder, of: Value, args: Value, n: Value) -> Value:
    return f.call(native, of, f.constants["LAUNCHES_AT"], F_SLOW, args, n)


def _of_gradient(table: str, flag: int) -> _Launch:
    return lambda f, of, args, n: f.call(native, member(of, "GRADIENT_KERNEL_AT"), f.constants[table], flag, args, n)


def _of_bound(table: str) -> _Launch:
    return lambda f, of, args, n: f.call(native_of, of, f.constants[table], args, n)


def _gradient_of_bound(f: Builder, of: Value, args: Value, n: Value) -> Value:
    """``obj.k.grad(..)``: the first argument is the bound kernel."""
    result = f.var(PYTHON, "ptr")
    with f.if_(n > 0), f.if_(has_type(args.load("ptr"), P_BOUND)):
        result.value = f.call(native_of, args[0], f.constants["GRADIENTS_AT"], args.words(1), n - 1)
    return result.value


@function("ptr")
def bind(f: Builder, kernel: Ptr, instance: Ptr, cls: Ptr) -> None:
    """``obj.k``: a bound kernel; ``cls.k``: the kernel."""
    with f.if_((instance == 0) | (instance == process(f, P_NONE))):
        f.call(inc_ref, kernel)
        f.ret(kernel)
    made = f.call(_allocate, process(f, P_BOUND), 0)
    f.ret(0, when=made == 0)
    for name, value in (("BOUND_KERNEL_AT", kernel), ("BOUND_INSTANCE_AT", instance)):
        f.call(inc_ref, value)
        (made + f.constants[name]).store(value)
    f.ret(made)


_SLOTS = (
    _slot("launch", _of_kernel),
    _slot("reverse", _of_gradient("GRADIENTS_AT", F_SLOW)),
    _slot("launch_bound", _of_bound("LAUNCHES_AT")),
    _slot("reverse_bound", _of_bound("GRADIENTS_AT")),
    _slot("reverse_of", _gradient_of_bound),
    _slot("launch_taped", _of_gradient("LAUNCHES_AT", F_CLOSED)),  # a launch that a tape records
    bind,
)
"""Calls of kernels, of their gradients, and of both bound to an object."""


def launcher_module(offsets: Mapping[str, int]) -> NativeModule:
    """The launcher's module for an interpreter whose objects have these byte offsets."""
    return NativeModule(_SLOTS, offsets)
