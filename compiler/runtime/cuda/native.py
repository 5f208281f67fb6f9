"""Launches from machine code on any thread: the driver's functions behind a few lines that make our context current where it is not.

A kernel's entry calls the driver by address. On a thread that has never used the device the driver refuses (``INVALID_CONTEXT``); where
another library has made another device current it refuses the stream (``INVALID_HANDLE``). Only then the lines below do more than call:
a thread without a context gets ours, one with another keeps it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ...ir.threads import new_lock
from ..cache import load_cached

_GRID = "ptr {0}f, i32 {0}gx, i32 {0}gy, i32 {0}gz, i32 {0}bx, i32 {0}by, i32 {0}bz, i32 {0}b, ptr {0}s"
_PARAMETERS = _GRID + ", ptr {0}p"
_LAUNCH = _PARAMETERS + ", ptr {0}e"
_TOGETHER = """
define i32 @qd_launch_together({params}) {{
entry:
  %at = getelementptr i64, ptr %e, i64 1
  %words = load ptr, ptr %at
  %size_at = getelementptr i64, ptr %e, i64 3
  %size_p = load ptr, ptr %size_at
  %size = load i64, ptr %size_p
  %n = lshr i64 %size, 3
  %table = alloca ptr, i64 %n
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %next]
  %word = getelementptr i64, ptr %words, i64 %k
  %slot = getelementptr ptr, ptr %table, i64 %k
  store ptr %word, ptr %slot
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %n
  br i1 %more, label %next, label %call
call:
  %r = call i32 @qd_launch_parameters({grid}, ptr %table)
  ret i32 %r
}}
"""
"""``cuLaunchCooperativeKernel`` takes the address of each parameter, and no packed ones."""
_MEMSET = "ptr {0}f, i32 {0}v, i64 {0}n, ptr {0}s"
_WRAPPER = """
declare i32 @{callee}({types})
define i32 @{name}({params}) {{
  %r = call i32 @{callee}({values})
  switch i32 %r, label %end [ i32 201, label %bind  i32 400, label %push ]
end:
  ret i32 %r
bind:
  %set = call i32 @cuCtxSetCurrent(ptr @qd_context)
  %again = call i32 @{callee}({values})
  ret i32 %again
push:
  %slot = alloca ptr
  %u = call i32 @cuCtxPushCurrent(ptr @qd_context)
  %inside = call i32 @{callee}({values})
  %o = call i32 @cuCtxPopCurrent(ptr %slot)
  ret i32 %inside
}}
"""
_HEAD = """
@qd_context = external global i8
declare i32 @cuCtxSetCurrent(ptr)
declare i32 @cuCtxPushCurrent(ptr)
declare i32 @cuCtxPopCurrent(ptr)
"""


@dataclass(frozen=True, slots=True)
class Addresses:
    """C functions of the driver in this process."""

    launch: int
    launch_together: int
    memset: int
    set_current: int
    push_current: int
    pop_current: int


@dataclass(frozen=True, slots=True)
class Launchers:
    """Addresses with the signatures of ``cuLaunchKernel`` and ``cuMemsetD32Async``; ``together`` has that of ``launch``."""

    launch: int
    memset: int
    together: int


_made: dict[tuple[int, Addresses], Launchers] = {}
_lock = new_lock(sys.modules[__name__], "_lock")


def text() -> str:
    """The module. The context is a symbol whose address it is, so that the code is the same for all and is kept on disk."""
    parts = [_HEAD]
    for name, callee, signature in (
        ("qd_launch", "cuLaunchKernel", _LAUNCH),
        ("qd_launch_parameters", "cuLaunchCooperativeKernel", _PARAMETERS),
        ("qd_memset", "cuMemsetD32Async", _MEMSET),
    ):
        values = signature.format("%")
        types = ", ".join(x.split()[0] for x in values.split(", "))
        parts.append(_WRAPPER.format(name=name, callee=callee, types=types, params=values, values=values))
    parts.append(_TOGETHER.format(params=_LAUNCH.format("%"), grid=_GRID.format("%")))
    return "".join(parts)


def launchers(context: int, found: Addresses) -> Launchers:
    """The functions for a context, made once and never unloaded: kernels' code calls them until the process ends."""
    key = context, found
    with _lock:
        if key not in _made:
            imports = {
                "cuLaunchKernel": found.launch,
                "cuLaunchCooperativeKernel": found.launch_together,
                "cuMemsetD32Async": found.memset,
                "cuCtxSetCurrent": found.set_current,
                "cuCtxPushCurrent": found.push_current,
                "cuCtxPopCurrent": found.pop_current,
                "qd_context": context,
            }
            exports = ["qd_launch", "qd_memset", "qd_launch_together"]
            code = load_cached(text(), "launch", exports, imports, 1)[0]
            code.make_immortal()
            _made[key] = Launchers(*(code.addresses[name] for name in exports))
        return _made[key]
