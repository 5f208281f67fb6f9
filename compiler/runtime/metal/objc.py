"""Messages to Objective-C objects by ctypes: all that the driver needs of the run time, without PyObjC.

An object, a class and a selector are plain integers; 0 is nil, and a message to nil gives 0. What ``new..`` and ``MTLCopy..`` give is ours
to release. All else lives until its autorelease pool ends, unless it is retained.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...errors import DeviceError

_OBJC, _METAL = "/usr/lib/libobjc.A.dylib", "/System/Library/Frameworks/Metal.framework/Metal"
_ID, _INT, _UINT, _BOOL, _DOUBLE, _TEXT = (
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_uint64,
    ctypes.c_bool,
    ctypes.c_double,
    ctypes.c_char_p,
)
_ERROR = ctypes.POINTER(ctypes.c_void_p)


class SizeAndAlign(ctypes.Structure):
    """``MTLSizeAndAlign``, in bytes."""

    _fields_ = (("size", ctypes.c_uint64), ("align", ctypes.c_uint64))


@dataclass(frozen=True, slots=True)
class Signature:
    """The C types of a message's result and of what follows the selector. ``waits``: others run Python meanwhile."""

    result: Any
    arguments: tuple[Any, ...] = ()
    waits: bool = False


SIGNATURES: dict[str, Signature] = {
    "retain": Signature(_ID),
    "release": Signature(None),
    "new": Signature(_ID),
    # NSString, NSArray, NSError
    "stringWithUTF8String:": Signature(_ID, (_TEXT,)),
    "UTF8String": Signature(_TEXT),
    "count": Signature(_UINT),
    "objectAtIndex:": Signature(_ID, (_UINT,)),
    "code": Signature(_INT),
    "localizedDescription": Signature(_ID),
    # MTLDevice
    "name": Signature(_ID),
    "registryID": Signature(_UINT),
    "hasUnifiedMemory": Signature(_BOOL),
    "supportsFamily:": Signature(_BOOL, (_INT,)),
    "recommendedMaxWorkingSetSize": Signature(_UINT),
    "currentAllocatedSize": Signature(_UINT),
    "maxBufferLength": Signature(_UINT),
    "newCommandQueue": Signature(_ID),
    "newFence": Signature(_ID),
    "newHeapWithDescriptor:": Signature(_ID, (_ID,), waits=True),
    "heapBufferSizeAndAlignWithLength:options:": Signature(SizeAndAlign, (_UINT, _UINT)),
    "newLibraryWithSource:options:error:": Signature(_ID, (_ID, _ID, _ERROR), waits=True),
    "newComputePipelineStateWithFunction:error:": Signature(_ID, (_ID, _ERROR), waits=True),
    # MTLHeapDescriptor, MTLHeap, MTLBuffer
    "setSize:": Signature(None, (_UINT,)),
    "setStorageMode:": Signature(None, (_UINT,)),
    "setHazardTrackingMode:": Signature(None, (_UINT,)),
    "maxAvailableSizeWithAlignment:": Signature(_UINT, (_UINT,)),
    "newBufferWithLength:options:": Signature(_ID, (_UINT, _UINT), waits=True),
    "contents": Signature(_ID),
    "gpuAddress": Signature(_UINT),
    # MTLCompileOptions, MTLLibrary, MTLComputePipelineState
    "setMathMode:": Signature(None, (_INT,)),
    "setLanguageVersion:": Signature(None, (_UINT,)),
    "newFunctionWithName:": Signature(_ID, (_ID,)),
    "maxTotalThreadsPerThreadgroup": Signature(_UINT),
    # MTLCommandBuffer; what machine code sends is in ``encoder``
    "waitUntilCompleted": Signature(None, waits=True),
    "error": Signature(_ID),
    "GPUEndTime": Signature(_DOUBLE),
}


class Objc:
    """The run time of this process.

    Args:
        objc, metal: the libraries.
    """

    def __init__(self, objc: ctypes.CDLL, metal: ctypes.CDLL) -> None:
        self._objc, self._metal = objc, metal
        self._message = _address(objc.objc_msgSend)
        for f, result, *arguments in (
            (objc.sel_registerName, _ID, _TEXT),
            (objc.objc_getClass, _ID, _TEXT),
            (objc.objc_autoreleasePoolPush, _ID),
            (objc.objc_autoreleasePoolPop, None, _ID),
            (metal.MTLCopyAllDevices, _ID),
        ):
            f.restype, f.argtypes = result, arguments
        self._sends = {name: self._prepared(name, s) for name, s in SIGNATURES.items()}

    def _prepared(self, name: str, s: Signature) -> Any:
        make = ctypes.CFUNCTYPE if s.waits else ctypes.PYFUNCTYPE
        return make(s.result, _ID, _ID, *s.arguments)(self._message), self.selector(name)

    def address_of(self, name: str) -> int:
        """Of what machine code imports: a function of the run time; ``sel_`` and a selector, with ``_`` for ``:``."""
        if name.startswith("sel_"):
            return self.selector(name.removeprefix("sel_").replace("_", ":"))
        return _address(getattr(self._objc, name))

    def selector(self, name: str) -> int:
        """A selector."""
        return self._objc.sel_registerName(name.encode())

    def send(self, receiver: int, name: str, *arguments: Any) -> Any:
        """Send a message, whose types are in ``SIGNATURES``. Pointers come back as integers."""
        function, selector = self._sends[name]
        found = function(receiver, selector, *arguments)
        return 0 if found is None else found

    def named_class(self, name: str) -> int:
        """A class; 0 if there is none."""
        return self._objc.objc_getClass(name.encode()) or 0

    def string(self, text: str) -> int:
        """An NSString that lives until the pool ends."""
        return self.send(self.named_class("NSString"), "stringWithUTF8String:", text.encode())

    def text(self, string: int) -> str:
        """The text of an NSString; of nil, an empty one."""
        return (self.send(string, "UTF8String") or b"").decode(errors="replace")

    def devices(self) -> list[int]:
        """Every MTLDevice; they stay until the process ends."""
        array = self._metal.MTLCopyAllDevices() or 0
        found = [self.send(array, "objectAtIndex:", k) for k in range(self.send(array, "count"))]
        for device in found:
            self.send(device, "retain")
        self.send(array, "release")
        return found

    @contextmanager
    def pool(self) -> Iterator[None]:
        """A block at whose end everything goes that was given and not retained in it."""
        pool = self._objc.objc_autoreleasePoolPush()
        try:
            yield
        finally:
            self._objc.objc_autoreleasePoolPop(pool)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def load() -> Objc:
    """The run time of macOS.

    Raises:
        DeviceError: this is another system, or its libraries cannot be loaded.
    """
    if sys.platform != "darwin":
        raise DeviceError(
            f"Metal cannot be used: it is a part of macOS, and this is {sys.platform}"
            "\n  do: use another backend, or device='emulated' for a slow test on the processor"
        )
    try:
        return Objc(ctypes.PyDLL(_OBJC), ctypes.PyDLL(_METAL))
    except OSError as e:
        raise DeviceError(
            f"Metal cannot be used: its libraries cannot be loaded ({e})\n  do: use macOS 15 or newer on a Mac with an Apple processor"
        ) from e
