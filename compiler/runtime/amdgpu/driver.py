"""AMD's HIP through hip-python, which is imported when a driver is made, never before: the package and its tests run without it, without
ROCm and without a GPU.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ...errors import DeviceError
from ..gpu.driver import CodeImage, DeviceInfo, Texts
from ..gpu.library import LibraryDriver, LibraryNames, text_of
from . import build
from .kind import AMDGPU, dotted
from .results import device_error

OLDEST_HIP = 70_000_000
"""The version of HIP that has every function which is called: 10,000,000 * major + 100,000 * minor."""

_INSTALL_BINDINGS = "pip install 'hip-python>=10.0' (the extra `amd` of qdrun)"
_INSTALL_ROCM = "install ROCm 7.0 or newer, or set ROCM_PATH to where it is, and see that `rocminfo` works"


def bindings() -> Any:
    """hip-python's ``hip`` module.

    Raises:
        DeviceError: it is not installed, or it cannot be imported; says which.
    """
    try:
        from hip import hip
    except ImportError as e:
        raise DeviceError(
            f"AMDGPU cannot be used: hip-python is not installed for this Python ({e})\n  do: {_INSTALL_BINDINGS}"
        ) from None
    except Exception as e:
        raise DeviceError(
            f"AMDGPU cannot be used: hip-python cannot be imported ({type(e).__name__}: {e})\n  do: {_INSTALL_BINDINGS}"
        ) from e
    return hip


def initialise() -> Any:
    """hip-python's ``hip`` module after ``hipInit``.

    Raises:
        DeviceError: no hip-python, no ROCm, too old a ROCm, or no device that it can use; says which.
    """
    d = bindings()
    try:
        (code,) = d.hipInit(0)
    except RuntimeError as e:
        raise DeviceError(
            f"AMDGPU cannot be used: ROCm's HIP library (libamdhip64.so) cannot be loaded ({e})\n  do: {_INSTALL_ROCM}"
        ) from e
    if int(code):
        raise device_error(int(code), "AMDGPU cannot be used", code.name)
    code, version = d.hipRuntimeGetVersion()
    if int(code) or version < OLDEST_HIP:
        raise DeviceError(
            f"AMDGPU cannot be used: ROCm's HIP has version {dotted(version)}, and {dotted(OLDEST_HIP)} is needed\n  do: {_INSTALL_ROCM}"
        )
    return d


def addresses() -> tuple[int, int, int]:
    """The addresses of ``hipModuleLaunchKernel``, ``hipMemsetD32Async`` and ``hipMemcpyDtoDAsync`` in the library of hip-python, loaded.

    They have the signatures of ``qd_launch``, ``qd_memset`` and ``Driver.copy``, and take the device of the stream: so native code calls
    them as they are, on any thread, whichever device is current there.
    """
    from rocm.bindings.util.paths import get_library_path

    library = ctypes.CDLL(get_library_path("amdhip64").decode())
    functions = library.hipModuleLaunchKernel, library.hipMemsetD32Async, library.hipMemcpyDtoDAsync
    launch, memset, copy = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions)
    return launch, memset, copy


NAMES = LibraryNames(
    prefix="hip",
    functions={
        "StreamCreate": "hipStreamCreateWithFlags",
        "EventCreate": "hipEventCreateWithFlags",
        "GraphInstantiate": "hipGraphInstantiateWithFlags",
    },
    pool=(
        "hipMemPoolProps",
        "hipMemAllocationType.hipMemAllocationTypePinned",
        "hipMemAllocationHandleType.hipMemHandleTypeNone",
        "hipMemLocationType.hipMemLocationTypeDevice",
    ),
    keeps="hipMemPoolAttr.hipMemPoolAttrReleaseThreshold",
    used="hipMemPoolAttr.hipMemPoolAttrUsedMemCurrent",
    reserved="hipMemPoolAttr.hipMemPoolAttrReservedMemCurrent",
    capture="hipStreamCaptureMode.hipStreamCaptureModeThreadLocal",
    function="hipFunction_attribute.HIP_FUNC_ATTRIBUTE_",
)


class HipDriver(LibraryDriver):
    """HIP, for one device. See ``Driver``.

    Which device is current belongs to a thread, and other libraries of the process change it, too. A call of ours leaves it as it was.
    """

    kind, names = AMDGPU, NAMES

    def __init__(self) -> None:
        super().__init__(initialise())
        self._index: int | None = None

    # ---- calls
    def _call(self, doing: str, function: Any, *args: Any) -> Any:
        """Call HIP with our device current, and return what it gives.

        Raises:
            DeviceError: the result is not success, or this version of ROCm lacks the function.
        """
        d = self.d
        try:
            current = self._checked(doing, d.hipGetDevice()) if self._index is not None else None
            if current == self._index:
                return self._checked(doing, function(*args))
            self._checked(doing, d.hipSetDevice(self._index))
            try:
                return self._checked(doing, function(*args))
            finally:
                d.hipSetDevice(current)
        except RuntimeError as e:
            if isinstance(e, DeviceError):
                raise
            raise DeviceError(f"{doing}: {e}\n  do: {_INSTALL_ROCM}") from e

    # ---- devices
    def device_count(self) -> int:
        """The number of devices that ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES leave visible."""
        return int(self._call("counting devices failed", self.d.hipGetDeviceCount))

    def describe(self, index: int) -> DeviceInfo:
        d, doing = self.d, f"looking at AMD device {index} failed"
        found = self._call(doing, d.hipGetDeviceProperties, index)
        pci = text_of(self._call(doing, d.hipDeviceGetPCIBusId, 32, index)).lower()
        return DeviceInfo(
            index=index,
            name=text_of(found.name),
            uuid=_uuid(bytes(self._call(doing, d.hipDeviceGetUuid, index).bytes), pci),
            pci=pci,
            chip=text_of(found.gcnArchName).partition(":")[0],  # its features behind the name: code is made for either of them
            sms=int(found.multiProcessorCount),
            threads_per_sm=int(found.maxThreadsPerMultiProcessor),
            memory_bytes=int(found.totalGlobalMem),
            driver_version=int(self._call(doing, d.hipRuntimeGetVersion)),
        )

    def share(self, index: int) -> None:
        """Waiting threads sleep: the flag belongs to the device that is current."""
        doing, before, self._index = f"opening AMD device {index} failed", self._index, index
        try:
            self._call(doing, self.d.hipSetDeviceFlags, self.d.hipDeviceScheduleBlockingSync)
        finally:
            self._index = before

    def open(self, index: int) -> None:
        """Take a device, with a pool of our own."""
        d, doing = self.d, f"opening AMD device {index} failed"
        self._checked(doing, d.hipSetDevice(index))
        self._index = index
        self.launch_address, self.memset_address, self._copy_address = addresses()
        if self._call(doing, d.hipDeviceGetAttribute, d.hipDeviceAttribute_t.hipDeviceAttributeMemoryPoolsSupported, index):
            self._make_pool(doing, index)

    def _set_of_pool(self, attribute: Any, doing: str, nbytes: int) -> None:
        value = ctypes.c_uint64(nbytes)
        self._do("MemPoolSetAttribute", doing, self._pool, attribute, ctypes.addressof(value))

    def _of_pool(self, attribute: Any) -> int:
        value = ctypes.c_uint64()
        self._do("MemPoolGetAttribute", "reading the pool failed", self._pool, attribute, ctypes.addressof(value))
        return value.value

    def bind(self) -> None:
        """No effect: a stream belongs to its device on every thread."""

    # ---- memory
    def host_allocate(self, nbytes: int) -> int:
        """Pinned for every device; what a kernel writes is seen by the host without a copy (coherent)."""
        d = self.d
        flags = d.hipHostMallocPortable | d.hipHostMallocMapped | d.hipHostMallocCoherent
        return int(self._call(f"pinning {nbytes:,} bytes of host memory failed", d.hipHostMalloc, nbytes, flags))

    def is_pinned(self, address: int) -> bool:
        """Whether HIP knows it as memory of the host; of ordinary memory it says that it is not registered, or refuses the address."""
        code, found = self.d.hipPointerGetAttributes(address)
        return not int(code) and int(found.type) == int(self.d.hipMemoryType.hipMemoryTypeHost)

    def memset(self, ptr: int, word: int, count: int, width: int, stream: int) -> None:
        super().memset(ptr, ctypes.c_int32(word).value if width == 4 else word, count, width, stream)  # HIP takes a signed word

    def upload(self, dst: int, src_host: int, nbytes: int, stream: int) -> None:
        """In the stream. Memory that is not pinned has been read when the call returns: HIP copies it synchronously."""
        self._call(f"a copy of {nbytes:,} bytes to the device failed", self.d.hipMemcpyHtoDAsync, dst, src_host, nbytes, stream)

    def download(self, dst_host: int, src: int, nbytes: int, stream: int) -> None:
        self.fetch(dst_host, src, nbytes, stream)
        self.synchronize(stream)

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """In the stream; HIP finds out which devices the addresses belong to."""
        kind = self.d.hipMemcpyKind.hipMemcpyDefault
        self._call(f"a copy of {nbytes:,} bytes on the device failed", self.d.hipMemcpyAsync, dst, src, nbytes, kind, stream)

    def copy_rows(self, dst: int, dst_step: int, src: int, src_step: int, nbytes: int, rows: int, stream: int) -> None:
        doing, kind = f"a copy of {rows:,} rows of {nbytes:,} bytes failed", self.d.hipMemcpyKind.hipMemcpyDeviceToDevice
        self._call(doing, self.d.hipMemcpy2DAsync, dst, dst_step, src, src_step, nbytes, rows, kind, stream)

    # ---- code
    def build(self, texts: Texts, info: DeviceInfo, keep: bool) -> CodeImage:
        """A code object, by LLVM and our linker."""
        return build.build(texts, info.chip, keep)

    def load_module(self, image: bytes, name: str) -> int:
        return int(self._call(f"the code of kernel `{name}` cannot be loaded", self.d.hipModuleLoadData, image))


def _uuid(raw: bytes, pci: str) -> str:
    """``GPU-`` and what ``HIP_VISIBLE_DEVICES`` and the kernel's list know the card by: HIP gives its 16 hexadecimal digits as text. A card
    without a number of its own is known by its address.
    """
    text = raw.split(b"\0")[0].decode("ascii", errors="replace").lower()
    digits = len(text) == 16 and all(c in "0123456789abcdef" for c in text) and text.strip("0")
    return f"GPU-{text}" if digits else f"GPU-{pci}"
