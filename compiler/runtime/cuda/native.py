"""Launches from machine code on any thread: the driver's functions behind a few lines that make our context current where it is not.

A kernel's entry calls the driver by address. On a thread that has never used the device the driver refuses (``INVALID_CONTEXT``); where
another library has made another device current it refuses the stream (``INVALID_HANDLE``). Only then the lines below do more than call:
a thread without a context gets ours, one with another keeps it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ...codegen.builder import Builder, NativeFunction, NativeModule, Value, external
from ...ir.threads import new_lock
from ..cache import load_cached

_INVALID_CONTEXT, _INVALID_HANDLE = 201, 400
_GRID = ("ptr", *["i32"] * 7, "ptr", "ptr")
_set_current = external("cuCtxSetCurrent", "i32", "ptr")
_push_current = external("cuCtxPushCurrent", "i32", "ptr")
_pop_current = external("cuCtxPopCurrent", "i32", "ptr")


def _guarded(name: str, callee: str, *types: str) -> NativeFunction:
    """A function of the driver, called again with our context where the thread has none, or another one."""
    driver = external(callee, "i32", *types)

    def emit(f: Builder, *args: Value) -> None:
        result, context = f.call(driver, *args), f.symbol("qd_context")
        with f.if_(result == _INVALID_CONTEXT):
            f.call(_set_current, context)
            f.ret(f.call(driver, *args))
        with f.if_(result == _INVALID_HANDLE):
            f.call(_push_current, context)
            inside = f.call(driver, *args)
            f.call(_pop_current, f.stack())
            f.ret(inside)
        f.ret(result)

    return NativeFunction(name, "i32", types, emit)


_launch = _guarded("qd_launch", "cuLaunchKernel", *_GRID, "ptr")
_launch_parameters = _guarded("qd_launch_parameters", "cuLaunchCooperativeKernel", *_GRID)
_memset = _guarded("qd_memset", "cuMemsetD32Async", "ptr", "i32", "i64", "ptr")
_copy = _guarded("qd_copy", "cuMemcpyAsync", "ptr", "ptr", "i64", "ptr")


def _emit_together(f: Builder, *args: Value) -> None:
    """``cuLaunchCooperativeKernel`` takes the address of each parameter, and no packed ones."""
    *grid, _, extra = args
    words, count = extra[1], extra[3][0] >> 3
    parameters = f.stack(count)
    with f.range(count) as k:
        parameters[k] = words.words(k)
    f.ret(f.call(_launch_parameters, *grid, parameters))


_launch_together = NativeFunction("qd_launch_together", "i32", _launch.types, _emit_together)


@dataclass(frozen=True, slots=True)
class Addresses:
    """C functions of the driver in this process."""

    launch: int
    launch_together: int
    memset: int
    copy: int
    set_current: int
    push_current: int
    pop_current: int


@dataclass(frozen=True, slots=True)
class Launchers:
    """Addresses with the signatures of ``cuLaunchKernel``, ``cuMemsetD32Async`` and ``cuMemcpyAsync``; ``together`` has that of
    ``launch``.
    """

    launch: int
    memset: int
    together: int
    copy: int


_made: dict[tuple[int, Addresses], Launchers] = {}
_lock = new_lock(sys.modules[__name__], "_lock")


def launchers(context: int, found: Addresses) -> Launchers:
    """The functions for a context, made once and never unloaded: kernels' code calls them until the process ends."""
    key = context, found
    with _lock:
        if key not in _made:
            imports = {
                "cuLaunchKernel": found.launch,
                "cuLaunchCooperativeKernel": found.launch_together,
                "cuMemsetD32Async": found.memset,
                "cuMemcpyAsync": found.copy,
                "cuCtxSetCurrent": found.set_current,
                "cuCtxPushCurrent": found.push_current,
                "cuCtxPopCurrent": found.pop_current,
                "qd_context": context,
            }
            # the context is a symbol, whose address it is: so the code is the same for all and is kept on disk
            made = NativeModule((_launch, _memset, _launch_together, _copy))
            code = load_cached(made.text, "launch", list(made.exports), imports, 1)[0]
            code.make_immortal()
            _made[key] = Launchers(*(code.addresses[name] for name in made.exports))
        return _made[key]
