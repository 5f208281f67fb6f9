"""The one VkInstance of the process, and the devices that it lists: features, limits, names. Nothing is opened here."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from ...errors import DeviceError
from ...ir.threads import new_lock, once
from .library import Structures, VulkanLoader, library

VALIDATION = "QDRUN_VULKAN_VALIDATION"
"""With this variable set to 1, the Khronos validation layer checks every call; ``Instance.messages`` has what it says."""

OLDEST = 1 << 22 | 2 << 12
"""Vulkan 1.2, the first with buffer addresses, timeline semaphores and SPIR-V 1.5."""

_LAYER = "VK_LAYER_KHRONOS_validation"
_PORTABILITY, _DEBUG = "VK_KHR_portability_enumeration", "VK_EXT_debug_utils"
_LIST_PORTABILITY = 1  # VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
_WARNINGS_AND_ERRORS, _ALL_KINDS = 0x1100, 7
_COMPUTE = 2  # VK_QUEUE_COMPUTE_BIT
_FEATURES = ("VkPhysicalDeviceFeatures2", "VkPhysicalDeviceVulkan11Features", "VkPhysicalDeviceVulkan12Features")
_ATOMIC_FLOAT = "VK_EXT_shader_atomic_float"
_ATOMIC_FLOAT_FEATURES = "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT"
_WANTED = {
    "VkPhysicalDeviceFeatures2": ("shaderInt64", "shaderFloat64", "shaderInt16"),
    "VkPhysicalDeviceVulkan11Features": ("storageBuffer16BitAccess",),
    "VkPhysicalDeviceVulkan12Features": (
        *("bufferDeviceAddress", "timelineSemaphore", "shaderInt8", "shaderFloat16", "storageBuffer8BitAccess"),
        *("shaderBufferInt64Atomics", "shaderSharedInt64Atomics"),
    ),
    _ATOMIC_FLOAT_FEATURES: ("shaderBufferFloat32AtomicAdd", "shaderBufferFloat64AtomicAdd"),
}
"""The features that are used where a device has them, by the structure that says so."""

_CONTROLS = tuple(
    f"shader{control}Float{bits}"
    for control in ("SignedZeroInfNanPreserve", "DenormPreserve", "RoundingModeRTE")
    for bits in (16, 32, 64)
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a device: bytes of push constants, of on-chip memory of a block, threads of a block, blocks of a dispatch, bytes of one
    allocation with Vulkan's name of that limit, and allocations.
    """

    push_bytes: int
    shared_bytes: int
    block: int
    blocks: int
    most_bytes: int
    most_bytes_name: str
    allocations: int


@dataclass(frozen=True, slots=True, eq=False)
class PhysicalDevice:
    """A device of this machine, not opened.

    Attributes:
        handle: VkPhysicalDevice.
        index: its place in the loader's list.
        software: it is a program on the processor.
        version, driver_version: Vulkan's, as it packs them; the driver's number.
        driver: name and version in the driver's own words.
        uuid, driver_uuid, cache_uuid: 32 hexadecimal digits each: of the device, its driver, and the driver's compiled pipelines.
        pci: domain:bus:device.function, or empty.
        sms, threads_per_sm: multiprocessors and the threads of one, where the driver tells; else 0.
        memory_bytes: of the largest heap of the device's own memory.
        features: the names of features and float controls that it has, as in Vulkan's structures.
        extensions: those that are used.
        family, queues, time_bits: the number of a queue family that computes (-1: none), its queues, and the bits of its time stamps.
        tick_ns: nanoseconds of a time stamp's unit.
    """

    handle: Any
    index: int
    name: str
    software: bool
    version: int
    driver_version: int
    driver: str
    uuid: str
    driver_uuid: str
    cache_uuid: str
    pci: str
    sms: int
    threads_per_sm: int
    memory_bytes: int
    limits: Limits
    features: frozenset[str]
    extensions: frozenset[str]
    family: int
    queues: int
    time_bits: int
    tick_ns: float


class Instance:
    """The instance.

    Attributes:
        handle: VkInstance.
        messages: what the validation layer has said.
    """

    def __init__(self, api: VulkanLoader) -> None:
        self.api, self.messages, self.pid = api, list[str](), os.getpid()
        version = api.ffi.new("uint32_t*")
        api.check(api.lib.vkEnumerateInstanceVersion(version), "Vulkan cannot be used")
        if version[0] < OLDEST:
            raise DeviceError(
                f"Vulkan cannot be used: the loader speaks Vulkan {dotted(version[0])}, and {dotted(OLDEST)} is needed\n"
                "  do: install a newer Vulkan loader"
            )
        self._validated = os.environ.get(VALIDATION) == "1"
        self.handle = self._make()
        if self._validated:
            self._listen()

    def _make(self) -> Any:
        api, new = self.api, Structures(self.api)
        offered = self._names("vkEnumerateInstanceExtensionProperties", "VkExtensionProperties", "extensionName", api.ffi.NULL)
        extensions = [n for n in (_PORTABILITY, *([_DEBUG] if self._validated else [])) if n in offered]
        layers = [_LAYER] if self._validated else []
        made = api.ffi.new("VkInstance*")
        info = new(
            "VkInstanceCreateInfo",
            flags=_LIST_PORTABILITY if _PORTABILITY in extensions else 0,
            pApplicationInfo=new("VkApplicationInfo", apiVersion=OLDEST),
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=new.texts(layers),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=new.texts(extensions),
        )
        api.check(api.lib.vkCreateInstance(info, api.ffi.NULL, made), "Vulkan cannot be used")
        return made[0]

    def _names(self, function: str, kind: str, field: str, *first: Any) -> frozenset[str]:
        """The names in a list that a function gives."""
        return frozenset(self.api.text(getattr(x, field)) for x in self._list(function, kind, *first))

    def _list(self, function: str, kind: str, *first: Any) -> list[Any]:
        """What a function gives that is called twice: for the number of items, and for the items."""
        count, call = self.api.ffi.new("uint32_t*"), getattr(self.api.lib, function)
        self.api.check(call(*first, count, self.api.ffi.NULL) or 0, "looking at Vulkan's devices failed")
        items = self.api.ffi.new(f"{kind}[]", count[0])
        self.api.check(call(*first, count, items) or 0, "looking at Vulkan's devices failed")
        return list(items)

    def _listen(self) -> None:
        """Keep what the validation layer says."""
        api, new = self.api, Structures(self.api)
        kind = (
            "VkBool32(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT, "
            "const VkDebugUtilsMessengerCallbackDataEXT*, void*)"
        )
        self._heard = api.ffi.callback(kind, self._hear)  # the layer calls it until the process ends
        info = new(
            "VkDebugUtilsMessengerCreateInfoEXT",
            messageSeverity=_WARNINGS_AND_ERRORS,
            messageType=_ALL_KINDS,
            pfnUserCallback=self._heard,
        )
        address = api.lib.vkGetInstanceProcAddr(self.handle, b"vkCreateDebugUtilsMessengerEXT")
        make = api.ffi.cast("PFN_vkCreateDebugUtilsMessengerEXT", address)
        made = api.ffi.new("VkDebugUtilsMessengerEXT*")
        api.check(make(self.handle, info, api.ffi.NULL, made), "the validation layer cannot be heard")

    def _hear(self, severity: int, kind: int, data: Any, user: Any) -> int:
        self.messages.append(self.api.text(data.pMessage))
        return 0

    # ---- devices
    @once
    def devices(self) -> tuple[PhysicalDevice, ...]:
        """The devices that the loader lists, in its order."""
        handles = self._list("vkEnumeratePhysicalDevices", "VkPhysicalDevice", self.handle)
        return tuple(self._describe(k, handle) for k, handle in enumerate(handles))

    def _describe(self, index: int, handle: Any) -> PhysicalDevice:
        api = self.api
        plain = api.ffi.new("VkPhysicalDeviceProperties*")
        api.lib.vkGetPhysicalDeviceProperties(handle, plain)
        offered = self._names(
            "vkEnumerateDeviceExtensionProperties", "VkExtensionProperties", "extensionName", handle, api.ffi.NULL
        )
        new = Structures(api)  # what is asked for below points to its structures
        found = _properties(new, handle, offered, plain.apiVersion)
        ids, driver = found["VkPhysicalDeviceIDProperties"], found.get("VkPhysicalDeviceDriverProperties")
        family, queues, bits = self._family(handle)
        sms, threads = _processors(found)
        words = (api.text(driver.driverName), api.text(driver.driverInfo)) if driver is not None else ()
        return PhysicalDevice(
            handle=handle,
            index=index,
            name=api.text(plain.deviceName),
            software=plain.deviceType == api.constant("PHYSICAL_DEVICE_TYPE_CPU"),
            version=plain.apiVersion,
            driver_version=plain.driverVersion,
            driver=" ".join(w for w in words if w),
            uuid=bytes(ids.deviceUUID).hex(),
            driver_uuid=bytes(ids.driverUUID).hex(),
            cache_uuid=bytes(plain.pipelineCacheUUID).hex(),
            pci=_pci(found.get("VkPhysicalDevicePCIBusInfoPropertiesEXT")),
            sms=sms,
            threads_per_sm=threads,
            memory_bytes=self._memory_bytes(handle),
            limits=_limits(plain.limits, found),
            features=self._features(handle, offered, plain.apiVersion, found),
            extensions=offered & {_ATOMIC_FLOAT, "VK_EXT_memory_budget"},
            family=family,
            queues=queues,
            time_bits=bits,
            tick_ns=plain.limits.timestampPeriod,
        )

    def _features(self, handle: Any, offered: frozenset[str], version: int, found: dict[str, Any]) -> frozenset[str]:
        if version < OLDEST:
            return frozenset()
        names = (*_FEATURES, *([_ATOMIC_FLOAT_FEATURES] if _ATOMIC_FLOAT in offered else []))
        new = Structures(self.api)
        chain = dict(zip(names, new.chain(*names), strict=True))
        self.api.lib.vkGetPhysicalDeviceFeatures2(handle, chain["VkPhysicalDeviceFeatures2"])
        has = {
            n
            for kind, s in chain.items()
            for n in _WANTED[kind]
            if getattr(s.features if kind == "VkPhysicalDeviceFeatures2" else s, n)
        }
        controls = found["VkPhysicalDeviceFloatControlsProperties"]
        return frozenset(has | {n for n in _CONTROLS if getattr(controls, n)})

    def _family(self, handle: Any) -> tuple[int, int, int]:
        families = self._list("vkGetPhysicalDeviceQueueFamilyProperties", "VkQueueFamilyProperties", handle)
        computing = [(k, f.queueCount, f.timestampValidBits) for k, f in enumerate(families) if f.queueFlags & _COMPUTE]
        return next((f for f in computing if f[2]), computing[0] if computing else (-1, 0, 0))

    def _memory_bytes(self, handle: Any) -> int:
        found = self.api.ffi.new("VkPhysicalDeviceMemoryProperties*")
        self.api.lib.vkGetPhysicalDeviceMemoryProperties(handle, found)
        heaps = [found.memoryHeaps[k] for k in range(found.memoryHeapCount)]
        return max((h.size for h in heaps if h.flags & 1), default=0)  # VK_MEMORY_HEAP_DEVICE_LOCAL_BIT


def enabled(new: Structures, device: PhysicalDevice) -> Any:
    """The structures with all of a device's features that are used, to be enabled with it."""
    names = (*_FEATURES, *([_ATOMIC_FLOAT_FEATURES] if _ATOMIC_FLOAT in device.extensions else []))
    chain = new.chain(*names)
    for kind, structure in zip(names, chain, strict=True):
        for name in _WANTED[kind]:
            setattr(
                structure.features if kind == "VkPhysicalDeviceFeatures2" else structure, name, int(name in device.features)
            )
    return chain[0]


def _properties(new: Structures, handle: Any, offered: frozenset[str], version: int) -> dict[str, Any]:
    """The structures of properties that a device fills in, by name."""
    names = ["VkPhysicalDeviceProperties2", "VkPhysicalDeviceIDProperties", "VkPhysicalDeviceMaintenance3Properties"]
    if version >= OLDEST:
        names += ["VkPhysicalDeviceDriverProperties", "VkPhysicalDeviceFloatControlsProperties"]
    optional = {
        "VK_EXT_pci_bus_info": "VkPhysicalDevicePCIBusInfoPropertiesEXT",
        "VK_KHR_maintenance4": "VkPhysicalDeviceMaintenance4Properties",
        "VK_NV_shader_sm_builtins": "VkPhysicalDeviceShaderSMBuiltinsPropertiesNV",
        "VK_AMD_shader_core_properties": "VkPhysicalDeviceShaderCorePropertiesAMD",
    }
    names += [kind for extension, kind in optional.items() if extension in offered]
    found = dict(zip(names, new.chain(*names), strict=True))
    new.library.lib.vkGetPhysicalDeviceProperties2(handle, found["VkPhysicalDeviceProperties2"])
    return found


def _limits(limits: Any, found: dict[str, Any]) -> Limits:
    sizes = {"maxMemoryAllocationSize": found["VkPhysicalDeviceMaintenance3Properties"].maxMemoryAllocationSize}
    if "VkPhysicalDeviceMaintenance4Properties" in found:
        sizes["maxBufferSize"] = found["VkPhysicalDeviceMaintenance4Properties"].maxBufferSize
    name = min(sizes, key=lambda n: sizes[n])
    return Limits(
        push_bytes=limits.maxPushConstantsSize,
        shared_bytes=limits.maxComputeSharedMemorySize,
        block=min(limits.maxComputeWorkGroupInvocations, limits.maxComputeWorkGroupSize[0]),
        blocks=limits.maxComputeWorkGroupCount[0],
        most_bytes=sizes[name],
        most_bytes_name=name,
        allocations=limits.maxMemoryAllocationCount,
    )


def _processors(found: dict[str, Any]) -> tuple[int, int]:
    nvidia = found.get("VkPhysicalDeviceShaderSMBuiltinsPropertiesNV")
    if nvidia is not None and nvidia.shaderSMCount:
        return nvidia.shaderSMCount, 32 * nvidia.shaderWarpsPerSM
    amd = found.get("VkPhysicalDeviceShaderCorePropertiesAMD")
    if amd is not None and amd.shaderEngineCount:
        units = amd.shaderEngineCount * amd.shaderArraysPerEngineCount * amd.computeUnitsPerShaderArray
        return units, amd.simdPerComputeUnit * amd.wavefrontsPerSimd * amd.wavefrontSize
    return 0, 0


def _pci(found: Any) -> str:
    if found is None:
        return ""
    return f"{found.pciDomain:04x}:{found.pciBus:02x}:{found.pciDevice:02x}.{found.pciFunction:x}"


def dotted(version: int) -> str:
    """A version as Vulkan packs it, in digits."""
    return f"{version >> 22 & 127}.{version >> 12 & 1023}"


def messages() -> list[str]:
    """What the validation layer has said in this process."""
    return _instance.messages if _instance is not None else []


_instance: Instance | None = None
_lock = new_lock(sys.modules[__name__], "_lock")


def instance() -> Instance:
    """The instance, made once for the process and never destroyed.

    Raises:
        DeviceError: the package, the loader or a driver is missing, or this process is a fork of one that has used Vulkan.
    """
    global _instance
    with _lock:
        if _instance is None:
            _instance = Instance(library())
        if _instance.pid != os.getpid():
            raise DeviceError("Vulkan cannot be used by a forked process\n  do: start processes with multiprocessing's `spawn`")
        return _instance
