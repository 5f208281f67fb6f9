"""The targets of the emitter, and the LLVM text of types and literals."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...ir.nodes import Const, Task
from ...ir.types import DType, f16, f32, f64, u1


class Unsupported(Exception):
    """The emitter has no code for this at this lane width (or on this target). The caller may ask again with ``lanes=1``."""


@dataclass(frozen=True, slots=True)
class SimdWidth:
    """The number of iterations of a parallel task that one thread runs in SIMD lanes.

    Attributes:
        width: the number in tasks that are not ``narrow``.
        narrow: numbers of the tasks that run a single iteration.
        fewer: the plan of a launch may give adstacks to fewer iterations at a time.
    """

    width: int = 1
    narrow: frozenset[int] = frozenset()
    fewer: bool = False


ONE_LANE = SimdWidth()


@dataclass(frozen=True, slots=True)
class Target:
    """A machine that code is generated for.

    Attributes:
        name: of the backend.
        triple, cpu, features: LLVM's names.
        lanes: iterations that one thread runs in SIMD lanes, in the tasks that are not ``narrow``.
        narrow: see ``SimdWidth``.
        trials: the trials of a group of a batch (``trials.TrialLayout``); 0: kernels are not batched.
        libm: scalar code may call C's math library.
        layout: LLVM's data layout, if the text must contain it.
        fast_math: f32 operations may be ``approximations``.
        approximations: by operation, what emits the machine's approximate instructions for it on f32 registers.
        f32_to_i32: the intrinsic that converts f32 to a 32-bit integer and saturates by itself, with ``{}`` for ``i`` or ``ui``;
            empty: LLVM's own, which saturates in several instructions.
        constant_space: the address space of constant tables.
        slot_space: the address space of a function's own variables.
        i128: integers of 128 bits exist.
        missing: types of the language that the machine does not have.
        atomic_facts: metadata of atomics on fields and arrays.
    """

    name: str = "cpu"
    triple: str = ""
    cpu: str = ""
    features: str = ""
    lanes: int = 1
    narrow: frozenset[int] = frozenset()
    libm: bool = True
    layout: str = ""
    fast_math: bool = False
    approximations: Mapping[str, Callable[..., str]] = field(default_factory=dict, repr=False, compare=False)
    f32_to_i32: str = ""
    constant_space: int = 0
    slot_space: int = 0
    i128: bool = True
    missing: frozenset[DType] = frozenset()
    atomic_facts: str = ""
    trials: int = 0

    @property
    def doubles(self) -> bool:
        """The machine has f64."""
        return f64 not in self.missing

    @property
    def fused(self) -> bool:
        """The processor has a fused multiply-add, which our functions rest on. Without it each would be a call."""
        return "+fma" in self.features.split(",") or self.triple.startswith(("aarch64", "arm64"))

    def lanes_of(self, number: int, task: Task) -> int:
        """The lanes of a task, the one of this number in its kernel."""
        return self.lanes if task.parallel and number not in self.narrow else 1


LLVM_TYPES = {"f16": "half", "f32": "float", "f64": "double", "u1": "i1"}
LLVM_TYPES |= {f"{kind}{bits}": f"i{bits}" for kind in "iu" for bits in (8, 16, 32, 64)}
"""Scalars in registers: signedness is in the operations, a truth value is one bit."""


def memory_type(dtype: DType) -> str:
    """A scalar type in memory: a truth value takes one byte."""
    return "i8" if dtype is u1 else LLVM_TYPES[dtype.name]


def float_text(value: float, dtype: DType) -> str:
    """A float literal, rounded once to its type."""
    if dtype is f16:
        with np.errstate(over="ignore"):
            return f"0xH{np.float16(value).view(np.uint16):04X}"
    if dtype is f32:
        value = ctypes.c_float(value).value
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def const_text(c: Const) -> str:
    """A literal as scalar LLVM text."""
    if c.dtype.kind == "f":
        return float_text(float(c.value), c.dtype)
    if c.dtype is u1:
        return "true" if c.value else "false"
    return str(int(c.value))


def lowest(dtype: DType) -> int | float:
    """The least value of a type (minus infinity for floats)."""
    if dtype.is_real:
        return -np.inf
    return -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0


def highest(dtype: DType) -> int | float:
    """The greatest value of a type (infinity for floats)."""
    if dtype.is_real:
        return np.inf
    return (1 << (dtype.bits - (dtype.kind == "i"))) - 1
