"""Apple's GPUs as a backend."""

from __future__ import annotations

from ..gpu.driver import Driver, GpuBackend
from . import driver
from .kind import METAL


def _driver() -> Driver:
    return driver.MetalDriver()


BACKEND = GpuBackend(METAL, _driver)
