"""Devices that the processor plays, for tests and examples: ``device="emulated"`` of CUDA, AMDGPU and Metal.

Programs and workers load them by ``qdrun.compiler.runtime.registry``. They need a checkout: no installed package has them.
"""

from __future__ import annotations

from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime.gpu.driver import Driver


def emulated_driver(backend: str, name: str) -> tuple[Driver, str]:
    """A driver object of the device that stands for one of a backend's, and the number of the device.

    ``name``: what follows ``emulated:`` in the name of the device.

    Raises:
        DeviceError: the backend has no such device.
    """
    if backend == "cuda":
        from .processor.driver import EmulatedDriver

        return EmulatedDriver(), name or "0"
    if backend == "amdgpu":
        from .amdgpu import device as amd

        return amd.emulated_driver(name)
    if backend == "metal":
        from .metal import device as metal

        return metal.emulated_driver(name)
    raise DeviceError(
        "Vulkan has no emulated device: a software driver does the same"
        '\n  do: install one (Debian, Ubuntu: mesa-vulkan-drivers) and name it: device="llvmpipe"'
    )
