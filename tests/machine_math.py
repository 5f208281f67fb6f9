"""The mathematical functions of scalar machine code on this processor, as functions of numpy's numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from qdrun.compiler.codegen.llvm.function import Fn, LlvmModule
from qdrun.compiler.codegen.llvm.target import LLVM_TYPES, Target
from qdrun.compiler.codegen.math import library
from qdrun.compiler.ir.ops import TABLE
from qdrun.compiler.ir.types import f32, f64
from qdrun.compiler.runtime import cache as compiled
from qdrun.compiler.runtime import jit


@cache
def machine_function(name: str, double: bool) -> Callable[..., float]:
    """A function by the name of its operation: ours, or C's where machine code calls that."""
    dtype, count = f64 if double else f32, TABLE[name].arity
    host = jit.host()
    module = LlvmModule(Target("cpu", host.triple, host.cpu, host.features))
    f, ty = Fn(module, 1), LLVM_TYPES[dtype.name]
    args = ["%a", "%b"][:count]
    call = library.call(f, name, dtype, False, args) if module.target.fused else library.libm(f, name, dtype, args)
    parameters = ", ".join(f"{ty} {a}" for a in args)
    body = "\n".join(f.lines)
    module.functions.append(f"define {ty} @f({parameters}) {{\nentry:\n{body}\n  ret {ty} {call}\n}}")
    code = compiled.load_cached(module.text(""), "a function", ["f"], {}, 2)[0]
    kind = ctypes.c_double if double else ctypes.c_float
    found = ctypes.CFUNCTYPE(kind, *[kind] * count)(code.addresses["f"])

    def run(*values: float, _keeps: Any = code) -> float:
        return found(*values)

    return run


def of_numbers(name: str) -> Callable[..., Any]:
    """The same for numpy's numbers; f16 by way of f32."""

    def run(*args: Any) -> Any:
        kind = type(args[0])
        return kind(machine_function(name, kind is np.float64)(*map(float, args)))

    return run
