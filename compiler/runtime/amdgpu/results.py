"""The meanings of hipError_t codes. The numbers are those of ``hip_runtime_api.h``, which no version of HIP changes."""

from __future__ import annotations

from ..gpu.results import Result, Results

OUT_OF_MEMORY = 2

_BOUNDS = "run the kernel with qd.init(debug=True), which checks every index"
_UPDATE = "install a newer ROCm"
_OURS = "this is a bug in qdrun; report it with the kernel's source"
_INSTALL = "see that `rocminfo` works as this user (groups render and video, /dev/kfd)"
_VISIBLE = "see `rocminfo`, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES; the user must be in the groups render and video"
_AGAIN = "see the kernel's log (`dmesg | grep -i amdgpu`); if it comes again, the device or its driver is at fault"

_KNOWN: dict[int, Result] = {
    1: Result("InvalidValue", "a value was refused", _OURS),
    2: Result(
        "OutOfMemory",
        "the device has no more memory",
        "see Program.usage() and `rocm-smi --showpids` for the processes that hold it",
    ),
    3: Result("NotInitialized", "HIP is not initialised in this process", "after a fork, use multiprocessing's `spawn`"),
    4: Result("Deinitialized", "HIP is shutting down in this process", "close the program before the interpreter ends"),
    9: Result("InvalidConfiguration", "the launch has more threads than the device takes", _OURS),
    17: Result("InvalidDevicePointer", "an address is not one of the device", _OURS),
    35: Result("InsufficientDriver", "the driver of the kernel (amdgpu) is too old for ROCm", "install a newer amdgpu driver"),
    53: Result("PriorLaunchFailure", "an earlier launch has failed", _BOUNDS, True, True),
    98: Result("InvalidDeviceFunction", "the code has no such function for this device", "clear the kernel cache"),
    100: Result("NoDevice", "ROCm has no device that it can use", _VISIBLE),
    101: Result("InvalidDevice", "there is no such device", _VISIBLE),
    200: Result("InvalidImage", "the code is damaged", "clear the kernel cache"),
    201: Result("InvalidContext", "the device is not usable on this thread", _OURS),
    209: Result("NoBinaryForGpu", "the code was made for another device", "clear the kernel cache"),
    214: Result(
        "ECCNotCorrectable", "the device's memory has failed", "run `rocm-smi --showrasinfo` and take the device out", True
    ),
    302: Result("SharedObjectSymbolNotFound", "a library of ROCm lacks a function", _UPDATE),
    303: Result("SharedObjectInitFailed", "the code could not be loaded", _AGAIN),
    304: Result("OperatingSystem", "a call of the operating system has failed", _INSTALL),
    400: Result("InvalidHandle", "a handle of another device or a closed one was used", _OURS),
    401: Result("IllegalState", "the device's queue has failed", _AGAIN, True, True),
    500: Result("NotFound", "a name is not in the code", _OURS),
    600: Result("NotReady", "work is still running", _OURS),
    700: Result("IllegalAddress", "it read or wrote memory that is not its own", _BOUNDS, True, True),
    701: Result("LaunchOutOfResources", "a block needs more registers or shared memory than there are", _OURS),
    702: Result("LaunchTimeOut", "it ran longer than the driver allows", "use a device without a display", True),
    709: Result(
        "ContextIsDestroyed", "another part of the process destroyed the device's context", "do not reset the device", True
    ),
    710: Result("Assert", "an assertion of the device failed", _OURS, True),
    719: Result("LaunchFailure", "it was stopped by the device (a trap, or a fault without a name)", _BOUNDS, True, True),
    801: Result("NotSupported", "the device or this version of ROCm cannot do it", _UPDATE),
    900: Result("StreamCaptureUnsupported", "it cannot be part of a graph", "take it out of the captured function"),
    901: Result("StreamCaptureInvalidated", "something in the captured function ended the recording", "capture launches only"),
    906: Result(
        "StreamCaptureImplicit", "it waits for the device, which a graph cannot", "take it out of the captured function"
    ),
    908: Result("StreamCaptureWrongThread", "the recording was begun by another thread", "begin and end it on one thread"),
    999: Result("Unknown", "the driver does not say why", _AGAIN, True),
    1052: Result("RuntimeMemory", "the runtime below HIP could not get memory", "see `rocm-smi --showpids` and `free -g`"),
    1053: Result("RuntimeOther", "the runtime below HIP has failed", _AGAIN, True),
}

RESULTS = Results("hipError_t", "hipError", _KNOWN, OUT_OF_MEMORY, _AGAIN)
device_error = RESULTS.error
