"""The meanings of Metal's failures.

Numbers below 100 are those of ``MTLCommandBufferError``; where a message gives nil, the number is ours.
"""

from __future__ import annotations

from ..gpu.results import ResultCode, Results

OUT_OF_MEMORY, NO_LIBRARY, NO_PIPELINE, NO_OBJECT, INVALID_HANDLE, CAPTURE_UNSUPPORTED, UNKNOWN = (
    8,
    100,
    101,
    102,
    103,
    104,
    999,
)

_BOUNDS = "run the kernel with qd.init(debug=True), which checks every index"
_OURS = "this is a bug in qdrun; report it with the kernel's source"
_AGAIN = "see Console.app for messages of the GPU's driver; if it comes again, macOS or the device is at fault"
_REPORT = "report it with the message above, the kernel's source, and the versions of macOS and qdrun"

_KNOWN: dict[int, ResultCode] = {
    1: ResultCode("MTLCommandBufferErrorInternal", "Metal has failed inside", _AGAIN, True, True),
    2: ResultCode("MTLCommandBufferErrorTimeout", "it ran longer than macOS allows", "give each launch fewer iterations", True),
    3: ResultCode("MTLCommandBufferErrorPageFault", "it read or wrote memory that is not its own", _BOUNDS, True, True),
    4: ResultCode(
        "MTLCommandBufferErrorAccessRevoked",
        "macOS has taken the GPU from this process, after other failures",
        _BOUNDS,
        True,
        True,
    ),
    7: ResultCode(
        "MTLCommandBufferErrorNotPermitted",
        "this process may not use the GPU now",
        "run it in the foreground, and not in a sandbox",
    ),
    8: ResultCode(
        "MTLCommandBufferErrorOutOfMemory",
        "the device has no more memory",
        "see Program.usage(), and Activity Monitor for other processes",
    ),
    9: ResultCode("MTLCommandBufferErrorInvalidResource", "memory was freed while work used it", _OURS, True),
    10: ResultCode("MTLCommandBufferErrorMemoryless", "memory of a tile does not suffice", _OURS),
    11: ResultCode("MTLCommandBufferErrorDeviceRemoved", "the device is gone", "connect it again", True),
    12: ResultCode("MTLCommandBufferErrorStackOverflow", "a thread's stack does not suffice", _OURS, True),
    NO_LIBRARY: ResultCode("no MTLLibrary", "Metal's compiler has made no library", _REPORT),
    NO_PIPELINE: ResultCode("no MTLComputePipelineState", "Metal has made no pipeline", _REPORT),
    NO_OBJECT: ResultCode("nil", "Metal has given no object", _AGAIN),
    INVALID_HANDLE: ResultCode("InvalidHandle", "a handle of another device or a closed one was used", _OURS),
    CAPTURE_UNSUPPORTED: ResultCode(
        "CaptureUnsupported", "it cannot be part of a graph", "take it out of the captured function"
    ),
    UNKNOWN: ResultCode("Unknown", "the recorder has failed; the traceback is above", _OURS, True),
}

RESULTS = Results("MTLCommandBufferError", "", _KNOWN, OUT_OF_MEMORY, _AGAIN)
device_error = RESULTS.error
