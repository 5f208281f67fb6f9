"""The properties that all AMD devices share."""

from __future__ import annotations

from ...codegen.amdgpu.chips import CHIPS
from ...codegen.amdgpu.hardware import amdgpu_target
from ...codegen.gpu.hardware import GpuTarget
from ...errors import DeviceError
from ..gpu.driver import DeviceInfo, DriverTraits
from ..inventory import UNMEASURED
from .results import RESULTS


def dotted(version: int) -> str:
    """A version of HIP, given as 10,000,000 * major + 100,000 * minor + patch."""
    return f"{version // 10_000_000}.{version // 100_000 % 100}"


def _speaks(info: DeviceInfo) -> str:
    return f"HIP {dotted(info.driver_version)}"


def _target(info: DeviceInfo) -> GpuTarget:
    if info.chip not in CHIPS:
        raise DeviceError(
            f"{info.name} cannot be used: it is a {info.chip}, and this version makes code for {', '.join(CHIPS)}"
            "\n  do: use another device (device=..)"
        )
    return amdgpu_target(info.chip)


AMDGPU = DriverTraits(
    arch="amdgpu",
    name="hip",
    title="AMDGPU",
    results=RESULTS,
    target=_target,
    speaks=_speaks,
    look="`rocminfo`, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES",
    blocking="HIP_LAUNCH_BLOCKING",
    process=UNMEASURED,
)
"""``dlpack``: none, as sharing memory with another library on an AMD device has not been tried."""
