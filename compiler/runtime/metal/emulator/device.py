"""The device ``emulated``: the emulated device, which runs what is translated to Metal's language."""

from __future__ import annotations

from dataclasses import replace

from ....codegen.metal.hardware import metal_target
from ....errors import DeviceError
from ...emulated.driver import EmulatedDriver
from ..kind import METAL
from .executor import MetalExecutor, clang

BLOCK = 32
"""Threads of a block, by default: those of a SIMD group."""

KIND = replace(METAL, name="emulated", target=lambda info: metal_target(info.chip, BLOCK), stays=False)
"""It stands for an Apple GPU; a failure ends with its test (``EmulatedMachine.heal``)."""


def emulated_driver(name: str) -> tuple[EmulatedDriver, str]:
    """A driver object of an emulated GPU, and the number of the device.

    Args:
        name: the number of the device; empty: the first.

    Raises:
        DeviceError: there is no such device, or no clang to compile with.
    """
    if name and not name.isdecimal():
        raise DeviceError(f"no Apple GPU `{name}` is emulated\n  do: device='emulated'")
    clang()
    return EmulatedDriver(MetalExecutor(), KIND, "emulated Apple GPU", "apple7", 2 * BLOCK), name or "0"
