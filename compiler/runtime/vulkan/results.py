"""The meanings of VkResult codes. Failures are negative there; a launch returns them without the sign, and so they are known here."""

from __future__ import annotations

from ..gpu.results import ResultCode, Results

OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, DEVICE_LOST, FEATURE_NOT_PRESENT, TOO_MANY_OBJECTS, UNKNOWN = 1, 2, 4, 8, 10, 13
INVALID_SHADER, VALIDATION_FAILED, NOT_PERMITTED = 1000012000, 1000011001, 1000174001

_BOUNDS = "run the kernel with qd.init(debug=True), which checks every index"
_UPDATE = "install a newer driver of the GPU"
_OURS = "this is a bug in qdrun; report it with the kernel's source"
_LOOK = "see that `vulkaninfo --summary` lists the GPU"
_AGAIN = "see the system's log for the GPU's driver; if it comes again, the device or its driver is at fault"

_KNOWN: dict[int, ResultCode] = {
    1: ResultCode("OUT_OF_HOST_MEMORY", "the host has no more memory for the driver", "close other programs"),
    2: ResultCode(
        "OUT_OF_DEVICE_MEMORY",
        "the device has no more memory",
        "see Program.usage(), and the GPU's own tool for the processes that hold it",
    ),
    3: ResultCode("INITIALIZATION_FAILED", "the driver could not be started", _LOOK),
    4: ResultCode(
        "DEVICE_LOST", "it was stopped by the device (an address that is not its own, or it ran too long)", _BOUNDS, True, True
    ),
    5: ResultCode("MEMORY_MAP_FAILED", "the host cannot see memory of the device", "close other programs"),
    6: ResultCode(
        "LAYER_NOT_PRESENT", "a layer is not installed", "install the validation layers, or unset QDRUN_VULKAN_VALIDATION"
    ),
    7: ResultCode("EXTENSION_NOT_PRESENT", "the driver lacks an extension", _UPDATE),
    8: ResultCode("FEATURE_NOT_PRESENT", "the device cannot do it", "use smaller blocks, or shared arrays of fewer bytes"),
    9: ResultCode("INCOMPATIBLE_DRIVER", "no driver for Vulkan was found", _LOOK),
    10: ResultCode(
        "TOO_MANY_OBJECTS", "the driver has no room for another object", "free fields, or make fewer and larger ones"
    ),
    12: ResultCode("FRAGMENTED_POOL", "a pool of the driver is fragmented", _AGAIN),
    13: ResultCode("UNKNOWN", "the driver does not say why", _AGAIN),
    1000069000: ResultCode("OUT_OF_POOL_MEMORY", "a pool of the driver is used up", _AGAIN),
    1000072003: ResultCode("INVALID_EXTERNAL_HANDLE", "the driver refused a handle", _OURS),
    1000161000: ResultCode("FRAGMENTATION", "a pool of the driver is fragmented", _AGAIN),
    1000257000: ResultCode("INVALID_OPAQUE_CAPTURE_ADDRESS", "the driver has no address for memory", _UPDATE),
    NOT_PERMITTED: ResultCode("NOT_PERMITTED_KHR", "it cannot be part of a graph", "take it out of the captured function"),
    VALIDATION_FAILED: ResultCode("VALIDATION_FAILED_EXT", "the validation layer has found an error", _OURS),
    INVALID_SHADER: ResultCode("INVALID_SHADER_NV", "the driver refuses the code", _OURS),
}

RESULTS = Results("VkResult", "VK_ERROR_", _KNOWN, OUT_OF_DEVICE_MEMORY, _AGAIN)
device_error = RESULTS.error
