"""Devices with a Vulkan driver as a backend."""

from __future__ import annotations

from ...errors import DeviceError
from ..gpu.driver import Driver, GpuBackend
from . import driver
from .kind import VULKAN


def _driver() -> Driver:
    return driver.VulkanDriver()


def _emulated(name: str) -> tuple[Driver, str]:
    raise DeviceError(
        "Vulkan has no emulated device: a software driver does the same"
        '\n  do: install one (Debian, Ubuntu: mesa-vulkan-drivers) and name it: device="llvmpipe"'
    )


BACKEND = GpuBackend(VULKAN, _driver, _emulated)
