"""Apple's GPUs as a backend."""

from __future__ import annotations

from ..gpu.driver import Driver, GpuBackend
from . import driver
from .kind import METAL


def _driver() -> Driver:
    return driver.MetalDriver()


def _emulated(name: str) -> tuple[Driver, str]:
    from .emulator.device import emulated_driver

    return emulated_driver(name)


BACKEND = GpuBackend(METAL, _driver, _emulated)
