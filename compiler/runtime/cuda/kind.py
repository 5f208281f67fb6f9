"""The properties that all NVIDIA devices share."""

from __future__ import annotations

from ...codegen.cuda.hardware import cuda_target
from ..gpu.driver import DeviceInfo, DriverTraits
from ..inventory import ProcessBytes
from .ptx import target_cpu
from .results import RESULTS

DLPACK = 2  # kDLCUDA
CONNECTIONS = "32"
"""Queues of the hardware, as many as there can be: by default, streams wait for one another when there are more than 8."""

MEASURED = ProcessBytes(driver=552_000_000, unit=32 << 20, frame=1024, measured="an H200 with driver 580 (CUDA 13.0)")


def dotted(version: int) -> str:
    """A version of CUDA, given as 1000 * major + 10 * minor."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _speaks(info: DeviceInfo) -> str:
    return f"CUDA {dotted(info.driver_version)}"


CUDA = DriverTraits(
    arch="cuda",
    name="cuda",
    title="CUDA",
    results=RESULTS,
    target=lambda info: cuda_target(target_cpu(info)),
    speaks=_speaks,
    look="`nvidia-smi -L` and CUDA_VISIBLE_DEVICES",
    blocking="CUDA_LAUNCH_BLOCKING",
    shared_environment={"CUDA_DEVICE_MAX_CONNECTIONS": CONNECTIONS},
    dlpack=DLPACK,
    process=MEASURED,
)
