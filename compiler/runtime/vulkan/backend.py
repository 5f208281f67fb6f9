"""Devices with a Vulkan driver as a backend."""

from __future__ import annotations

from ..gpu.driver import Driver, GpuBackend
from . import driver
from .kind import VULKAN


def _driver() -> Driver:
    return driver.VulkanDriver()


BACKEND = GpuBackend(VULKAN, _driver)
