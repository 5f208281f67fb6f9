"""The properties that all devices with Vulkan share, and which of them can be used."""

from __future__ import annotations

from dataclasses import fields, replace

from ...codegen.gpu.hardware import GpuTarget
from ...codegen.spirv.features import Features
from ...codegen.spirv.target import spirv_target
from ...errors import DeviceError
from ..gpu.driver import DeviceInfo, DriverTraits
from .instance import OLDEST, PhysicalDevice, dotted, instance
from .results import RESULTS

PUSH_BYTES = 128
THREADS, PROCESSORS = 1024, 64
"""Of a device that does not tell: together as many threads as a plan has rows (65,536)."""

_NEEDED = {
    "bufferDeviceAddress": "addresses of memory in code (bufferDeviceAddress)",
    "shaderInt64": "64-bit integers (shaderInt64)",
    "timelineSemaphore": "timeline semaphores (timelineSemaphore)",
}
_ON_METAL = ("moltenvk", "kosmickrisp")
_FAULTY = "llvmpipe"


def features_of(device: PhysicalDevice) -> Features:
    """What code may use of a device, as far as it tells. What a fused multiply-add is, ``probe`` asks for."""
    has = device.features
    widths = (16, 32, 64)
    return Features(
        float64="shaderFloat64" in has,
        float16="shaderFloat16" in has,
        int16="shaderInt16" in has,
        int8="shaderInt8" in has,
        storage16="storageBuffer16BitAccess" in has,
        storage8="storageBuffer8BitAccess" in has,
        int64_atomics="shaderBufferInt64Atomics" in has,
        shared_int64_atomics="shaderSharedInt64Atomics" in has,
        float32_atomic_add="shaderBufferFloat32AtomicAdd" in has,
        float64_atomic_add="shaderBufferFloat64AtomicAdd" in has,
        denorm_preserve=frozenset(b for b in widths if f"shaderDenormPreserveFloat{b}" in has),
        round_to_even=frozenset(b for b in widths if f"shaderRoundingModeRTEFloat{b}" in has),
        signed_zero=frozenset(b for b in widths if f"shaderSignedZeroInfNanPreserveFloat{b}" in has),
        fused=frozenset(widths),
        fence_waits=_FAULTY in device.driver,
        folds_wrongly=_FAULTY in device.driver,
        cuts_loops=_FAULTY in device.driver,
    )


def chip_of(features: Features) -> str:
    """The features in words, in an order of their own: the name of the target of compilation."""
    words = ["SPIR-V 1.5"]
    for name in (f.name for f in fields(Features)):
        value = getattr(features, name)
        if value:
            words.append(name if value is True else f"{name}[{','.join(map(str, sorted(value)))}]")
    return " ".join(words)


def refusal(device: PhysicalDevice) -> str:
    """Why a device cannot be used at all; empty if it can."""
    if any(name in device.driver.lower() for name in _ON_METAL):
        return f"its driver ({device.driver}) stands on Metal, whose compiler reorders accesses by address; use arch=qd.metal"
    if device.version < OLDEST:
        return f"it speaks Vulkan {dotted(device.version)}, and {dotted(OLDEST)} is needed"
    missing = [what for name, what in _NEEDED.items() if name not in device.features]
    if device.family < 0:
        missing.append("a queue that computes")
    elif not device.time_bits:
        missing.append("time stamps (timestampValidBits)")
    if device.limits.push_bytes < PUSH_BYTES:
        missing.append(f"{PUSH_BYTES} bytes of push constants (maxPushConstantsSize)")
    return f"it lacks {', '.join(missing)}" if missing else ""


def only_named(device: PhysicalDevice) -> str:
    """Why a device is used only by programs that name it; empty if others get it, too."""
    return refusal(device) or ("it is a program on the processor" if device.software else "")


def describe(device: PhysicalDevice) -> DeviceInfo:
    """A device, as programs see it. Its UUID is what CUDA calls the same card."""
    raw = device.uuid
    return DeviceInfo(
        index=device.index,
        name=device.name,
        uuid=f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}",
        pci=device.pci,
        chip=chip_of(replace(features_of(device), fused=frozenset())),
        sms=device.sms or PROCESSORS,
        threads_per_sm=device.threads_per_sm or THREADS,
        memory_bytes=device.memory_bytes,
        driver_version=device.driver_version,
        only_named=only_named(device),
        most_bytes=device.limits.most_bytes,
        most_bytes_name=device.limits.most_bytes_name,
    )


def physical(info: DeviceInfo) -> PhysicalDevice:
    """The device that a description is of."""
    return instance().devices[info.index]


def _speaks(info: DeviceInfo) -> str:
    device = physical(info)
    return f"Vulkan {dotted(device.version)} ({device.driver})"


def _target(info: DeviceInfo) -> GpuTarget:
    why = refusal(physical(info))
    if why:
        raise DeviceError(f"{info.name} cannot be used with Vulkan: {why}\n  do: use another device (device=..) or backend")
    return spirv_target(features_of(physical(info)))


VULKAN = DriverTraits(
    arch="vulkan",
    name="vulkan",
    title="Vulkan",
    results=RESULTS,
    target=_target,
    speaks=_speaks,
    look="`vulkaninfo --summary`, and VK_DRIVER_FILES",
)
"""``dlpack``: none, as no other library uses memory by Vulkan's addresses; ``process``: not measured."""
