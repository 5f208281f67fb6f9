"""The meanings of hipError_t codes. The numbers are those of ``hip_runtime_api.h``, which no version of HIP changes."""

from __future__ import annotations

from ..gpu.results import ResultCode, Results

OUT_OF_MEMORY = 2

_BOUNDS = "run the kernel with qd.init(debug=True), which checks every index"
_UPDATE = "install a newer ROCm"
_OURS = "this is a bug in qdrun; report it with the kernel's source"
_INSTALL = "see that `rocminfo` works as this user (groups render and video, /dev/kfd)"
_VISIBLE = "see `rocminfo`, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES; the user must be in the groups render and video"
_AGAIN = "see the kernel's log (`dmesg | grep -i amdgpu`); if it comes again, the device or its driver is at fault"

_KNOWN: dict[int, ResultCode] = {
    1: ResultCode("InvalidValue", "a value was refused", _OURS),
    2: ResultCode(
        "OutOfMemory",
        "the device has no more memory",
        "see Program.usage() and `rocm-smi --showpids` for the processes that hold it",
    ),
    3: ResultCode("NotInitialized", "HIP is not initialised in this process", "after a fork, use multiprocessing's `spawn`"),
    4: ResultCode("Deinitialized", "HIP is shutting down in this process", "close the program before the interpreter ends"),
    9: ResultCode("InvalidConfiguration", "the launch has more threads than the device takes", _OURS),
    17: ResultCode("InvalidDevicePointer", "an address is not one of the device", _OURS),
    35: ResultCode(
        "InsufficientDriver", "the driver of the kernel (amdgpu) is too old for ROCm", "install a newer amdgpu driver"
    ),
    53: ResultCode("PriorLaunchFailure", "an earlier launch has failed", _BOUNDS, True, True),
    98: ResultCode("InvalidDeviceFunction", "the code has no such function for this device", "clear the kernel cache"),
    100: ResultCode("NoDevice", "ROCm has no device that it can use", _VISIBLE),
    101: ResultCode("InvalidDevice", "there is no such device", _VISIBLE),
    200: ResultCode("InvalidImage", "the code is damaged", "clear the kernel cache"),
    201: ResultCode("InvalidContext", "the device is not usable on this thread", _OURS),
    209: ResultCode("NoBinaryForGpu", "the code was made for another device", "clear the kernel cache"),
    214: ResultCode(
        "ECCNotCorrectable", "the device's memory has failed", "run `rocm-smi --showrasinfo` and take the device out", True
    ),
    302: ResultCode("SharedObjectSymbolNotFound", "a library of ROCm lacks a function", _UPDATE),
    303: ResultCode("SharedObjectInitFailed", "the code could not be loaded", _AGAIN),
    304: ResultCode("OperatingSystem", "a call of the operating system has failed", _INSTALL),
    400: ResultCode("InvalidHandle", "a handle of another device or a closed one was used", _OURS),
    401: ResultCode("IllegalState", "the device's queue has failed", _AGAIN, True, True),
    500: ResultCode("NotFound", "a name is not in the code", _OURS),
    600: ResultCode("NotReady", "work is still running", _OURS),
    700: ResultCode("IllegalAddress", "it read or wrote memory that is not its own", _BOUNDS, True, True),
    701: ResultCode("LaunchOutOfResources", "a block needs more registers or shared memory than there are", _OURS),
    702: ResultCode("LaunchTimeOut", "it ran longer than the driver allows", "use a device without a display", True),
    709: ResultCode(
        "ContextIsDestroyed", "another part of the process destroyed the device's context", "do not reset the device", True
    ),
    710: ResultCode("Assert", "an assertion of the device failed", _OURS, True),
    719: ResultCode("LaunchFailure", "it was stopped by the device (a trap, or a fault without a name)", _BOUNDS, True, True),
    801: ResultCode("NotSupported", "the device or this version of ROCm cannot do it", _UPDATE),
    900: ResultCode("StreamCaptureUnsupported", "it cannot be part of a graph", "take it out of the captured function"),
    901: ResultCode(
        "StreamCaptureInvalidated", "something in the captured function ended the recording", "capture launches only"
    ),
    906: ResultCode(
        "StreamCaptureImplicit", "it waits for the device, which a graph cannot", "take it out of the captured function"
    ),
    908: ResultCode("StreamCaptureWrongThread", "the recording was begun by another thread", "begin and end it on one thread"),
    999: ResultCode("Unknown", "the driver does not say why", _AGAIN, True),
    1052: ResultCode("RuntimeMemory", "the runtime below HIP could not get memory", "see `rocm-smi --showpids` and `free -g`"),
    1053: ResultCode("RuntimeOther", "the runtime below HIP has failed", _AGAIN, True),
}

RESULTS = Results("hipError_t", "hipError", _KNOWN, OUT_OF_MEMORY, _AGAIN)
device_error = RESULTS.error
