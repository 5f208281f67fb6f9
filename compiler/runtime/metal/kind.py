"""The properties that all of Apple's GPUs share."""

from __future__ import annotations

from ...codegen.gpu.hardware import GpuTarget
from ...codegen.metal.hardware import metal_target
from ...errors import DeviceError
from ..gpu.driver import DeviceInfo, DriverTraits
from .results import RESULTS

OLDEST_SYSTEM = 1500
"""macOS 15, the first with version 3.2 of Metal's language: before that, nothing orders the accesses of one block for another."""
OLDEST_FAMILY = 7
"""Apple7 is the M1's."""


def _speaks(info: DeviceInfo) -> str:
    return f"Metal of macOS {info.driver_version // 100}.{info.driver_version % 100}"


def _target(info: DeviceInfo) -> GpuTarget:
    family = info.chip.removeprefix("apple")
    if not family.isdecimal() or int(family) < OLDEST_FAMILY:
        raise DeviceError(
            f"{info.name} cannot be used: code is made for Apple's own processors, from the M1 on"
            "\n  do: use another device (device=..), or another backend"
        )
    return metal_target()


METAL = DriverTraits(
    arch="metal",
    name="metal",
    title="Metal",
    results=RESULTS,
    target=_target,
    speaks=_speaks,
    look="`system_profiler SPDisplaysDataType`",
)
"""``dlpack``: none, as sharing memory with another library has not been tried; ``process``: not measured."""
