"""Multiply and add with one rounding, on the processor: NumPy has no such function."""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

import numpy as np

from qdrun.compiler.runtime.cache import load_cached
from qdrun.compiler.runtime.jit import LoadedCode

_LANES = 64
_TEXT = """
define void @fuse_{ty}(ptr %a, ptr %b, ptr %c, ptr %out) nounwind {{
entry:
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %next]
  %pa = getelementptr {ty}, ptr %a, i64 %k
  %pb = getelementptr {ty}, ptr %b, i64 %k
  %pc = getelementptr {ty}, ptr %c, i64 %k
  %po = getelementptr {ty}, ptr %out, i64 %k
  %x = load {ty}, ptr %pa
  %y = load {ty}, ptr %pb
  %z = load {ty}, ptr %pc
  %r = call {ty} @llvm.fma.{short}({ty} %x, {ty} %y, {ty} %z)
  store {ty} %r, ptr %po
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %n
  br i1 %more, label %next, label %done
done:
  ret void
}}
declare {ty} @llvm.fma.{short}({ty}, {ty}, {ty})
""".replace("%n\n", f"{_LANES}\n")


class _Fused(threading.local):
    """The function of a type, and the arrays that it works on, of each thread."""

    def __init__(self, ty: str, short: str, dtype: type) -> None:
        address = _code(ty, short).addresses[f"fuse_{ty}"]
        self.arrays = [np.zeros(_LANES, dtype) for _ in range(4)]
        self.places = [ctypes.c_void_p(a.ctypes.data) for a in self.arrays]
        self.call: Any = ctypes.PYFUNCTYPE(None, *[ctypes.c_void_p] * 4)(address)

    def __call__(self, a: Any, b: Any, c: Any) -> np.ndarray:
        x, y, z, out = self.arrays
        lanes = max(a.size, b.size, c.size)
        if lanes < _LANES:
            x, y, z, out = x[:lanes], y[:lanes], z[:lanes], out[:lanes]
        x[:], y[:], z[:] = a, b, c
        self.call(*self.places)
        return out


@cache
def _code(ty: str, short: str) -> LoadedCode:
    return load_cached(_TEXT.format(ty=ty, short=short), f"fuse_{ty}", [f"fuse_{ty}"], {})[0]


@cache
def _fused(kind: str) -> _Fused:
    return _Fused("float", "f32", np.float32) if kind == "f" else _Fused("double", "f64", np.float64)


def fma32(a: Any, b: Any, c: Any) -> np.ndarray:
    """``a * b + c`` of float32; the result is overwritten by this thread's next call."""
    return _fused("f")(a, b, c)


def fma64(a: Any, b: Any, c: Any) -> np.ndarray:
    """``a * b + c`` of float64; the result is overwritten by this thread's next call."""
    return _fused("d")(a, b, c)


def fma16(a: Any, b: Any, c: Any) -> np.ndarray:
    """``a * b + c`` of float16: products and sums of them are exact in float64."""
    return np.asarray(np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float16)
