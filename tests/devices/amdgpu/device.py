"""The device ``emulated:gfx942`` and its like: the emulated device, with an emulator of an AMD chip's instructions in it."""

from __future__ import annotations

from dataclasses import replace

from qdrun.compiler.codegen.amdgpu.hardware import amdgpu_target
from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime.amdgpu.kind import AMDGPU

from ..processor.driver import EmulatedDriver
from ..processor.machine import emulated_machine
from .executor import AmdExecutor

CHIPS = ("gfx942", "gfx90a", "gfx1100")
"""The chips whose instructions are tested; the first is the one that ``emulated`` alone means."""
BLOCK = 64
"""Threads of a block, by default: one wave."""

KIND = replace(
    AMDGPU,
    name="emulated",
    target=lambda info: amdgpu_target(info.chip, BLOCK),
    blocking="",
    dlpack=None,
    stays=False,
    process=None,
)
"""It stands for an AMD GPU; a failure ends with its test (``EmulatedMachine.heal``)."""


def emulated_driver(name: str) -> tuple[EmulatedDriver, str]:
    """A driver object of an emulated chip, and the number of the device.

    Args:
        name: a chip; with ``:1``, the second device. Empty: the first chip.

    Raises:
        DeviceError: no such chip is emulated.
    """
    chip, _, number = name.partition(":")
    if chip.isdecimal():
        chip, number = "", chip
    chip = chip or CHIPS[0]
    if chip not in CHIPS:
        raise DeviceError(f"no AMD chip `{chip}` is emulated\n  do: device='emulated:gfx942', or another of {', '.join(CHIPS)}")
    executor = AmdExecutor(chip, emulated_machine().executed)
    return EmulatedDriver(executor, KIND, f"emulated {chip}", chip, 2 * BLOCK), number or "0"
