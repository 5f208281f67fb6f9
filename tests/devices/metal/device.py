"""The device ``emulated``: the emulated device, which runs what is translated to Metal's language."""

from __future__ import annotations

from dataclasses import replace

from qdrun.compiler.codegen.gpu.hardware import GpuTarget
from qdrun.compiler.codegen.metal.hardware import metal_target
from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime.cuda.results import RESULTS
from qdrun.compiler.runtime.gpu.driver import DeviceInfo
from qdrun.compiler.runtime.metal.kind import METAL

from ..processor.driver import EmulatedDriver
from .executor import MetalExecutor, clang

BLOCK = 32
"""Threads of a block, by default: those of a SIMD group."""

WIDE = "f64"
"""The name of a GPU that has f64 and atomics of 8 bytes beside all that Apple's have: most tests use f64."""


def _target(info: DeviceInfo) -> GpuTarget:
    return metal_target(BLOCK, wide=info.chip == WIDE)


KIND = replace(METAL, name="emulated", results=RESULTS, target=_target, stays=False)
"""It stands for an Apple GPU, with the results of the emulated machine; a failure ends with its test (``EmulatedMachine.heal``)."""


def emulated_driver(name: str) -> tuple[EmulatedDriver, str]:
    """A driver object of an emulated GPU, and the number of the device.

    Args:
        name: the number of the device; empty: the first. ``f64``, or ``f64:1``: one that has f64.

    Raises:
        DeviceError: there is no such device, or no clang to compile with.
    """
    wide = name.partition(":")[0] == WIDE
    number = name.removeprefix(WIDE).removeprefix(":") if wide else name
    if number and not number.isdecimal():
        raise DeviceError(f"no Apple GPU `{name}` is emulated\n  do: device='emulated', or 'emulated:f64' for one that has f64")
    clang()
    label, chip = ("emulated Apple GPU with f64", WIDE) if wide else ("emulated Apple GPU", "apple7")
    return EmulatedDriver(MetalExecutor(), KIND, label, chip, 2 * BLOCK), number or "0"
