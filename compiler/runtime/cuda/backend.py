"""NVIDIA's GPUs as a backend."""

from __future__ import annotations

from ..gpu.driver import Driver, GpuBackend
from . import driver
from .kind import CUDA


def _driver() -> Driver:
    return driver.CudaDriver()


BACKEND = GpuBackend(CUDA, _driver)
