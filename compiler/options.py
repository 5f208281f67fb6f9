"""The options of ``qd.init``: their names, defaults and checks."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from numbers import Integral
from typing import Any

import numpy as np

from .amounts import bytes_in
from .errors import QdrunRuntimeError, warn_user
from .ir.types import DType, f32, f64, i32, i64
from .peer_options import PEER_ONLY, warn_without_effect
from .refused import REFUSED, refuse


class Arch(StrEnum):
    """The backends by name. ``python`` is the reference interpreter.

    ``gpu`` selects the GPU backend that this machine can use.
    """

    cpu = "cpu"
    python = "python"
    cuda = "cuda"
    amdgpu = "amdgpu"
    vulkan = "vulkan"
    metal = "metal"
    gpu = "gpu"


FOREIGN_ARCHS = ("opengl", "gles", "dx11", "dx12", "cc", "wasm")
"""Backends of Taichi that this package does not have. The CPU stands in for them, with a warning, as it does in Taichi."""


def arch_of(given: Arch | str | None) -> Arch:
    """Parse the name of a backend. None is the CPU.

    Raises:
        QdrunRuntimeError: no backend has this name.
    """
    names = [arch.value for arch in Arch]
    if isinstance(given, str) and given in FOREIGN_ARCHS:
        warn_user(
            f"qd.init: there is no backend {given}\n  the program runs on the CPU; qd.gpu is the GPU of this machine",
            RuntimeWarning,
        )
        return Arch.cpu
    if given is None or given in names:
        return Arch.cpu if given is None else Arch(given)
    near = difflib.get_close_matches(str(given), names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"give one of {', '.join(names)}"
    raise QdrunRuntimeError(f"qd.init: there is no backend {given!r}\n  do: {hint}")


@dataclass(frozen=True)
class Options:
    """Options of a program.

    Attributes:
        default_fp: type of a real literal (f32 or f64).
        default_ip: type of an integer literal (i32 or i64).
        debug: check asserts and index bounds in kernels, report integer operations that overflow; implies ``check_out_of_bound``.
        check_out_of_bound: check the indices of fields and ndarrays.
        nan_check: stop at the first operation that computes a NaN or an infinity from finite numbers, in values and in gradients.
        overflow_check: stop at the first integer operation with a result that does not fit its type.
        cpu_max_num_threads: threads of a parallel loop; 0: all cores that the process may use.
        cpu_lanes: iterations of a parallel loop that one thread runs at once, in SIMD lanes; 0: the compiler chooses. Each lane of a
            gradient needs an adstack row of its own; a plan may use fewer lanes at a time to save memory.
        memory_limit: bytes that the program may allocate at most; 0: no limit.
        memory_budget: target for the bytes of the program, a number or a text such as "2GiB"; 0: no budget. The planner subtracts what
            the rest of the program holds, and chooses the fastest plan of each gradient launch that fits. See docs/memory.md.
        ad_stack_size: adstack slots of a loop with a trip count that is unknown before it runs; 0: enough for a million iterations, by
            thinning.
        ad_checkpoint_levels: levels of checkpoints in loops with a known bound: 1, 2 or 3.
        offline_cache: keep compiled kernels on disk.
        random_seed: seed of ``qd.random``.
        fast_math: on CUDA, use the GPU's approximate instructions for f32 divisions, square roots, sines, cosines, tangents and
            exponentials; on Vulkan, GLSL's functions for the last four. They are two to four times faster; docs/gpu-math.md has their
            errors. No effect on other backends.
        batch: number of independent trials that the program runs at once (docs/batch.md); None: the program is not batched.
        gpu_lanes: threads that share the work of one trial of a batch on a GPU, in recorded launches (``qd.capture``); 0: as many as suit
            the number of trials and the iterations of their loops.
        device: the GPU, by number or by text: "GPU-" with its UUID, its PCI address "0000:3b:00.0", how its name begins, or "emulated",
            an emulated GPU for tests. None: the first one, but none that is a program on the processor.
        kernel_profiler: measure every launch, for ``qd.profiler``; launches then come through Python.
        raise_on_templated_floats: refuse a real number as template argument: the kernel would be compiled again for each value.
    """

    default_fp: DType = f32
    default_ip: DType = i32
    debug: bool = False
    check_out_of_bound: bool = False
    nan_check: bool = False
    overflow_check: bool = False
    cpu_max_num_threads: int = 0
    cpu_lanes: int = 0
    memory_limit: int = 0
    memory_budget: int = 0
    ad_stack_size: int = 0
    ad_checkpoint_levels: int = 1
    offline_cache: bool = True
    random_seed: int = 0
    fast_math: bool = False
    batch: int | None = None
    gpu_lanes: int = 0
    device: int | str | None = None
    kernel_profiler: bool = False
    raise_on_templated_floats: bool = False


def make_options(given: dict[str, Any]) -> Options:
    """Build options from keywords; environment variables ``QD_<NAME>`` supply the ones that are not given. None is not given.

    Raises:
        KeyError: a keyword is unknown; the message suggests the nearest known one.
        QdrunRuntimeError: a value is not allowed.
    """
    known = {f.name for f in fields(Options)}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if f"init({name}=..)" in REFUSED:
            refuse(f"init({name}=..)")
        if name not in known and name not in PEER_ONLY:
            near = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"; did you mean `{near[0]}`?" if near else f"; known: {', '.join(sorted(known))}"
            raise KeyError(f"Unrecognized keyword argument for qd.init: {name}{hint}")
    values = {name: value for name, value in given.items() if name in known}
    for f in fields(Options):
        text = os.environ.get(f"QD_{f.name.upper()}")
        if text is None or f.name in values:
            continue
        if f.name == "device":
            values[f.name] = int(text) if text.isdecimal() else text
        elif isinstance(f.default, (bool, int)):
            plain = f.name == "memory_budget"
            values[f.name] = text if plain else _number_of(f"QD_{f.name.upper()}", text, type(f.default))
    warn_without_effect(given)
    options = Options(**{name: _checked(name, value) for name, value in values.items()})
    if options.debug:
        options = replace(options, check_out_of_bound=True)
    _check(options)
    return options


_AMOUNTS = ("memory_budget", "memory_limit")
_DEFAULTS = {f.name: f.default for f in fields(Options)}


def _checked(name: str, value: Any) -> Any:
    """A value of the type that its option has.

    Raises:
        QdrunRuntimeError: it is of another.
    """
    whole = isinstance(value, Integral) and not isinstance(value, (bool, np.bool_))
    if name == "memory_limit" and whole and value < 0:
        raise QdrunRuntimeError(f"qd.init: {name}={value} is negative")
    if name in _AMOUNTS:
        return bytes_of(f"qd.init: {name}", value)
    if name == "batch":
        if not whole:
            raise _no_batch(value)
        return int(value)
    if name == "device":
        if not whole and not isinstance(value, str):
            raise QdrunRuntimeError(f"qd.init: device={value!r} is neither the number of a GPU nor its name\n  do: device=0")
        return value
    default = _DEFAULTS[name]
    if isinstance(default, bool):
        if not isinstance(value, (bool, np.bool_)) and not (whole and value in (0, 1)):
            raise QdrunRuntimeError(f"qd.init: {name}={value!r} is neither True nor False")
        return bool(value)
    if isinstance(default, int):
        if not whole:
            raise QdrunRuntimeError(f"qd.init: {name}={value!r} is not a whole number")
        return int(value)
    return value


def _no_batch(given: Any) -> QdrunRuntimeError:
    return QdrunRuntimeError(
        f"qd.init: batch={given!r} is not a number of trials\n  do: batch=1 or more; leave it out for a program of one simulation"
    )


def _number_of(variable: str, text: str, kind: type[int]) -> int:
    try:
        return kind(int(text))
    except ValueError:
        raise QdrunRuntimeError(f"the environment variable {variable}={text!r} is not a whole number") from None


def bytes_of(name: str, amount: object) -> int:
    """Parse an amount of memory, a whole number or a text such as "2GiB", "512 MB" or "4096". Returns bytes.

    Args:
        name: the name of the amount in error messages.
        amount: the number or the text.

    Raises:
        QdrunRuntimeError: the amount is neither, or negative.
    """
    if isinstance(amount, str):
        found = bytes_in(amount)
        if found is not None:
            return found
    elif isinstance(amount, Integral) and not isinstance(amount, bool) and int(amount) >= 0:
        return int(amount)
    raise QdrunRuntimeError(
        f'{name}={amount!r} is not an amount of memory; do: a number of bytes, or a text such as "2GiB" or "512MB"'
    )


def compile_choices(o: Options) -> tuple[int | bool, ...]:
    """The options that change the generated code of a kernel: a part of every cache key."""
    checked = o.debug, o.check_out_of_bound, o.nan_check, o.overflow_check
    return o.cpu_lanes, o.offline_cache, o.fast_math, *checked, o.batch is not None


def checks(o: Options) -> bool:
    """Whether kernels are compiled with checks."""
    return o.debug or o.check_out_of_bound or o.nan_check or o.overflow_check


def _check(o: Options) -> None:
    allowed: dict[str, tuple[object, tuple[object, ...]]] = {
        "default_fp": (o.default_fp, (f32, f64)),
        "default_ip": (o.default_ip, (i32, i64)),
        "cpu_lanes": (o.cpu_lanes, (0, 1, 4, 8, 16, 32)),
        "gpu_lanes": (o.gpu_lanes, (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
        "ad_checkpoint_levels": (o.ad_checkpoint_levels, (1, 2, 3)),
    }
    for name, (value, choices) in allowed.items():
        if not any(value is choice or value == choice for choice in choices if type(value) is type(choice)):
            raise QdrunRuntimeError(f"qd.init: {name}={value!r} is not one of {', '.join(map(str, choices))}")
    if o.batch is not None and o.batch < 1:
        raise _no_batch(o.batch)
    for name in ("cpu_max_num_threads", "ad_stack_size"):
        if getattr(o, name) < 0:
            raise QdrunRuntimeError(f"qd.init: {name}={getattr(o, name)} is negative")
