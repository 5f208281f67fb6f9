"""NVIDIA's GPUs as a backend."""

from __future__ import annotations

from ..gpu.driver import Driver, GpuBackend
from . import driver
from .kind import CUDA


def _driver() -> Driver:
    return driver.CudaDriver()


def _emulated(name: str) -> tuple[Driver, str]:
    from ..emulated.driver import EmulatedDriver

    return EmulatedDriver(), name or "0"


BACKEND = GpuBackend(CUDA, _driver, _emulated)
