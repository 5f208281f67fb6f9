"""AMD's GPUs as a backend."""

from __future__ import annotations

from ..gpu.driver import Driver, GpuBackend
from . import driver
from .kind import AMDGPU


def _driver() -> Driver:
    return driver.HipDriver()


BACKEND = GpuBackend(AMDGPU, _driver)
