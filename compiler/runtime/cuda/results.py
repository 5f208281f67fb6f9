"""The meanings of CUresult codes. The numbers are those of ``cuda.h``, which no version of the driver changes."""

from __future__ import annotations

from ..gpu.results import ResultCode, Results

OUT_OF_MEMORY, INVALID_CONTEXT, INVALID_HANDLE, NOT_READY = 2, 201, 400, 600

_BOUNDS = "run the kernel with qd.init(debug=True), which checks every index"
_UPDATE = "install a newer NVIDIA driver"
_OURS = "this is a bug in qdrun; report it with the kernel's source"
_INSTALL = "see that `nvidia-smi` works as this user"
_AGAIN = "see the driver's log (`dmesg | grep -i xid`); if it comes again, the device or its driver is at fault"

_KNOWN: dict[int, ResultCode] = {
    1: ResultCode("INVALID_VALUE", "a value was refused", _OURS),
    2: ResultCode(
        "OUT_OF_MEMORY", "the device has no more memory", "see Program.usage() and `nvidia-smi` for the processes that hold it"
    ),
    3: ResultCode("NOT_INITIALIZED", "CUDA is not initialised in this process", "after a fork, use multiprocessing's `spawn`"),
    4: ResultCode("DEINITIALIZED", "CUDA is shutting down in this process", "close the program before the interpreter ends"),
    34: ResultCode(
        "STUB_LIBRARY", "libcuda is the stub of the toolkit", "take it off LD_LIBRARY_PATH; the driver brings the real one"
    ),
    36: ResultCode("CALL_REQUIRES_NEWER_DRIVER", "the driver is too old", _UPDATE),
    46: ResultCode(
        "DEVICE_UNAVAILABLE", "another process has the device for itself", "wait for it, or see `nvidia-smi -q -d COMPUTE`"
    ),
    100: ResultCode("NO_DEVICE", "the driver has no device that it can use", "see `nvidia-smi -L` and CUDA_VISIBLE_DEVICES"),
    101: ResultCode("INVALID_DEVICE", "there is no such device", "see `nvidia-smi -L` and CUDA_VISIBLE_DEVICES"),
    200: ResultCode("INVALID_IMAGE", "the code is damaged", "clear the kernel cache"),
    201: ResultCode("INVALID_CONTEXT", "the device's context is not current on this thread", _OURS),
    209: ResultCode("NO_BINARY_FOR_GPU", "the code was made for another device", "clear the kernel cache"),
    214: ResultCode(
        "ECC_UNCORRECTABLE", "the device's memory has failed", "run `nvidia-smi -q -d ECC` and take the device out", True
    ),
    218: ResultCode("INVALID_PTX", "the driver refuses the code", _OURS),
    220: ResultCode("NVLINK_UNCORRECTABLE", "the link between devices has failed", _AGAIN, True),
    221: ResultCode(
        "JIT_COMPILER_NOT_FOUND", "the driver's compiler is missing", "install the driver's libnvidia-ptxjitcompiler"
    ),
    222: ResultCode("UNSUPPORTED_PTX_VERSION", "the driver is too old for the code", _UPDATE),
    223: ResultCode("JIT_COMPILATION_DISABLED", "CUDA_DISABLE_PTX_JIT forbids compiling", "unset CUDA_DISABLE_PTX_JIT"),
    226: ResultCode("CONTAINED", "the device's memory has failed", _AGAIN, True),
    304: ResultCode("OPERATING_SYSTEM", "a call of the operating system has failed", _INSTALL),
    400: ResultCode("INVALID_HANDLE", "a handle of another device or a closed one was used", _OURS),
    600: ResultCode("NOT_READY", "work is still running", _OURS),
    700: ResultCode("ILLEGAL_ADDRESS", "it read or wrote memory that is not its own", _BOUNDS, True, True),
    701: ResultCode("LAUNCH_OUT_OF_RESOURCES", "a block needs more registers or shared memory than there are", _OURS),
    702: ResultCode(
        "LAUNCH_TIMEOUT", "it ran longer than the display's watchdog allows", "use a device without a display", True
    ),
    709: ResultCode(
        "CONTEXT_IS_DESTROYED", "another part of the process destroyed the device's context", "do not reset the device", True
    ),
    710: ResultCode("ASSERT", "an assertion of the device failed", _OURS, True),
    714: ResultCode("HARDWARE_STACK_ERROR", "its call stack was overrun", _BOUNDS, True, True),
    715: ResultCode("ILLEGAL_INSTRUCTION", "it met an instruction that the device does not have", _OURS, True),
    716: ResultCode("MISALIGNED_ADDRESS", "it used an address that is not aligned", _BOUNDS, True, True),
    717: ResultCode("INVALID_ADDRESS_SPACE", "it used an address of the wrong space", _BOUNDS, True, True),
    718: ResultCode("INVALID_PC", "it jumped out of its code", _BOUNDS, True, True),
    719: ResultCode("LAUNCH_FAILED", "it was stopped by the device (a trap, or a fault without a name)", _BOUNDS, True, True),
    720: ResultCode(
        "COOPERATIVE_LAUNCH_TOO_LARGE",
        "its blocks meet in qd.simt.grid.sync(), and the device cannot hold all of them at the same time",
        "run the loop over fewer iterations, each of which does more, or end the loop there and begin another one",
    ),
    800: ResultCode(
        "NOT_PERMITTED", "this user or this moment does not permit it", "read nothing back while a graph is recorded"
    ),
    801: ResultCode("NOT_SUPPORTED", "the device or its driver cannot do it", _UPDATE),
    802: ResultCode("SYSTEM_NOT_READY", "the system's devices are not ready", "start nvidia-fabricmanager"),
    803: ResultCode(
        "SYSTEM_DRIVER_MISMATCH", "libcuda and the kernel's driver have different versions", "reboot, or reload the driver"
    ),
    804: ResultCode("COMPAT_NOT_SUPPORTED_ON_DEVICE", "the compatibility libcuda does not run on this device", _UPDATE),
    900: ResultCode("STREAM_CAPTURE_UNSUPPORTED", "it cannot be part of a graph", "take it out of the captured function"),
    901: ResultCode(
        "STREAM_CAPTURE_INVALIDATED", "something in the captured function ended the recording", "capture launches only"
    ),
    906: ResultCode(
        "STREAM_CAPTURE_IMPLICIT", "it waits for the device, which a graph cannot", "take it out of the captured function"
    ),
    908: ResultCode(
        "STREAM_CAPTURE_WRONG_THREAD", "the recording was begun by another thread", "begin and end it on one thread"
    ),
    999: ResultCode("UNKNOWN", "the driver does not say why", _AGAIN, True),
}

RESULTS = Results("CUresult", "CUDA_ERROR_", _KNOWN, OUT_OF_MEMORY, _AGAIN)
device_error = RESULTS.error
