"""AMD's HIP through hip-python, which is imported when a driver is made, never before: the package and its tests run without it, without
ROCm and without a GPU.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ...errors import DeviceError
from ..gpu.driver import DeviceInfo, Function, Image, Texts
from . import build
from .kind import AMDGPU, dotted
from .results import device_error

OLDEST_HIP = 70_000_000
"""The version of HIP that has every function which is called: 10,000,000 * major + 100,000 * minor."""

KEEP_BYTES = 64 << 20
"""Freed bytes that a pool keeps for the next allocation instead of giving them back to the device at the next synchronization. Small: other
processes pack their memory beside ours."""

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


def addresses() -> tuple[int, int]:
    """The addresses of ``hipModuleLaunchKernel`` and ``hipMemsetD32Async`` in the library that hip-python calls, which is loaded.

    They have the signatures of ``qd_launch`` and ``qd_memset``, and take the device of the stream: so kernels call them as they are, on any
    thread, whichever device is current there.
    """
    from rocm.bindings.util.paths import get_library_path

    library = ctypes.CDLL(get_library_path("amdhip64").decode())
    launch, memset = (
        ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (library.hipModuleLaunchKernel, library.hipMemsetD32Async)
    )
    return launch, memset


class HipDriver:
    """HIP, for one device. See ``Driver``.

    Which device is current belongs to a thread, and other libraries of the process change it, too. A call of ours leaves it as it was.
    """

    kind = AMDGPU

    def __init__(self) -> None:
        self.d = initialise()
        self.launch_address = self.memset_address = 0
        self._index: int | None = None
        self._pool: Any = None

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

    @staticmethod
    def _checked(doing: str, outcome: tuple[Any, ...]) -> Any:
        code, *rest = outcome
        if int(code):
            raise device_error(int(code), doing, getattr(code, "name", ""))
        return rest[0] if len(rest) == 1 else tuple(rest)

    # ---- devices
    def device_count(self) -> int:
        """The number of devices that ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES leave visible."""
        return int(self._call("counting devices failed", self.d.hipGetDeviceCount))

    def describe(self, index: int) -> DeviceInfo:
        """A device, without opening it."""
        d, doing = self.d, f"looking at AMD device {index} failed"
        found = self._call(doing, d.hipGetDeviceProperties, index)
        pci = _text(self._call(doing, d.hipDeviceGetPCIBusId, 32, index)).lower()
        return DeviceInfo(
            index=index,
            name=_text(found.name),
            uuid=_uuid(bytes(self._call(doing, d.hipDeviceGetUuid, index).bytes), pci),
            pci=pci,
            chip=_text(found.gcnArchName).partition(":")[0],  # its features behind the name: code is made for either of them
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
        self.launch_address, self.memset_address = addresses()
        if self._call(doing, d.hipDeviceGetAttribute, d.hipDeviceAttribute_t.hipDeviceAttributeMemoryPoolsSupported, index):
            self._pool = self._make_pool(doing, index)

    def _make_pool(self, doing: str, index: int) -> Any:
        """A pool of our own: what it keeps and how much it holds is not mixed with other libraries' use of the device's default pool."""
        d = self.d
        properties = d.hipMemPoolProps()
        properties.allocType = d.hipMemAllocationType.hipMemAllocationTypePinned
        properties.handleTypes = d.hipMemAllocationHandleType.hipMemHandleTypeNone
        properties.location.type = d.hipMemLocationType.hipMemLocationTypeDevice
        properties.location.id = index
        pool, keep = self._call(doing, d.hipMemPoolCreate, properties), ctypes.c_uint64(KEEP_BYTES)
        threshold = d.hipMemPoolAttr.hipMemPoolAttrReleaseThreshold
        self._call(doing, d.hipMemPoolSetAttribute, pool, threshold, ctypes.addressof(keep))
        return pool

    def bind(self) -> None:
        """No effect: a stream belongs to its device on every thread."""

    # ---- streams
    def stream(self, ordered: bool) -> int:
        """Other libraries work on the default one: streams of programs that share memory with them are in order with it."""
        flags = 0 if ordered else self.d.hipStreamNonBlocking
        return int(self._call("making a stream failed", self.d.hipStreamCreateWithFlags, flags))

    def stream_free(self, stream: int) -> None:
        """Destroy it."""
        self._call("giving a stream back failed", self.d.hipStreamDestroy, stream)

    def close(self, stream: int) -> None:
        """Destroy the stream and the pool."""
        doing = "closing the device failed"
        self._call(doing, self.d.hipStreamDestroy, stream)
        if self._pool is not None:
            self._call(doing, self.d.hipMemPoolDestroy, self._pool)
            self._pool = None

    def synchronize(self, stream: int) -> None:
        """Wait for the stream. The default one waits for all that are in order with it."""
        self._call("work on the device failed", self.d.hipStreamSynchronize, stream)

    # ---- memory
    def allocate(self, nbytes: int, stream: int) -> int:
        """From the pool; it is aligned to 256 bytes."""
        doing = f"allocating {nbytes:,} bytes of device memory failed"
        if self._pool is None:
            return int(self._call(doing, self.d.hipMalloc, nbytes))
        return int(self._call(doing, self.d.hipMallocFromPoolAsync, nbytes, self._pool, stream))

    def free(self, ptr: int, stream: int) -> None:
        """In the order of the stream."""
        if self._pool is None:
            self._call("freeing device memory failed", self.d.hipFree, ptr)  # waits for the device
        else:
            self._call("freeing device memory failed", self.d.hipFreeAsync, ptr, stream)

    def trim(self) -> None:
        """Give back what the pool keeps."""
        if self._pool is not None:
            self._call("giving memory back failed", self.d.hipMemPoolTrimTo, self._pool, 0)

    def pool_bytes(self) -> tuple[int, int]:
        """Bytes of the pool; 0 if the device has none."""
        if self._pool is None:
            return 0, 0
        names = self.d.hipMemPoolAttr
        return (
            self._pool_attribute(names.hipMemPoolAttrUsedMemCurrent),
            self._pool_attribute(names.hipMemPoolAttrReservedMemCurrent),
        )

    def _pool_attribute(self, name: Any) -> int:
        value = ctypes.c_uint64()
        self._call("reading the pool failed", self.d.hipMemPoolGetAttribute, self._pool, name, ctypes.addressof(value))
        return value.value

    def memory_info(self) -> tuple[int, int]:
        """Free and total, of all processes."""
        free, total = self._call("reading the device's memory failed", self.d.hipMemGetInfo)
        return int(free), int(total)

    def host_allocate(self, nbytes: int) -> int:
        """Pinned for every device; what a kernel writes is seen by the host without a copy (coherent)."""
        d = self.d
        flags = d.hipHostMallocPortable | d.hipHostMallocMapped | d.hipHostMallocCoherent
        return int(self._call(f"pinning {nbytes:,} bytes of host memory failed", d.hipHostMalloc, nbytes, flags))

    def device_address(self, address: int) -> int:
        """The same."""
        return address

    def host_free(self, ptr: int) -> None:
        """Unpin and free."""
        self._call("freeing pinned memory failed", self.d.hipHostFree, ptr)

    def is_pinned(self, address: int) -> bool:
        """Whether HIP knows it as memory of the host; of ordinary memory it says that it is not registered, or refuses the address."""
        code, found = self.d.hipPointerGetAttributes(address)
        return not int(code) and int(found.type) == int(self.d.hipMemoryType.hipMemoryTypeHost)

    def memset(self, ptr: int, word: int, count: int, width: int, stream: int) -> None:
        """In the stream."""
        fill = {1: self.d.hipMemsetD8Async, 2: self.d.hipMemsetD16Async, 4: self.d.hipMemsetD32Async}[width]
        value = ctypes.c_int32(word).value if width == 4 else word  # this one takes a signed word
        self._call(f"filling {count * width:,} bytes failed", fill, ptr, value, count, stream)

    def upload(self, dst: int, src_host: int, nbytes: int, stream: int) -> None:
        """In the stream. Memory that is not pinned has been read when the call returns: HIP copies it synchronously."""
        self._call(f"a copy of {nbytes:,} bytes to the device failed", self.d.hipMemcpyHtoDAsync, dst, src_host, nbytes, stream)

    def download(self, dst_host: int, src: int, nbytes: int, stream: int) -> None:
        """Copy and wait."""
        self.fetch(dst_host, src, nbytes, stream)
        self.synchronize(stream)

    def fetch(self, dst_pinned: int, src: int, nbytes: int, stream: int) -> None:
        """In the stream."""
        doing = f"a copy of {nbytes:,} bytes from the device failed"
        self._call(doing, self.d.hipMemcpyDtoHAsync, dst_pinned, src, nbytes, stream)

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """In the stream; HIP finds out which devices the addresses belong to."""
        kind = self.d.hipMemcpyKind.hipMemcpyDefault
        self._call(f"a copy of {nbytes:,} bytes on the device failed", self.d.hipMemcpyAsync, dst, src, nbytes, kind, stream)

    def copy_rows(self, dst: int, dst_step: int, src: int, src_step: int, nbytes: int, rows: int, stream: int) -> None:
        """In the stream."""
        doing, kind = f"a copy of {rows:,} rows of {nbytes:,} bytes failed", self.d.hipMemcpyKind.hipMemcpyDeviceToDevice
        self._call(doing, self.d.hipMemcpy2DAsync, dst, dst_step, src, src_step, nbytes, rows, kind, stream)

    def memset_rows(self, ptr: int, step: int, word: int, count: int, width: int, rows: int, stream: int) -> None:
        """In the stream."""
        fill = {1: self.d.hipMemsetD2D8Async, 2: self.d.hipMemsetD2D16Async, 4: self.d.hipMemsetD2D32Async}[width]
        self._call(f"filling {rows:,} rows of {count * width:,} bytes failed", fill, ptr, step, word, count, rows, stream)

    # ---- code
    def build(self, texts: Texts, info: DeviceInfo, keep: bool) -> Image:
        """A code object, by LLVM and our linker."""
        return build.build(texts, info.chip, keep)

    def load_module(self, image: bytes, name: str) -> int:
        """A code object."""
        return int(self._call(f"the code of kernel `{name}` cannot be loaded", self.d.hipModuleLoadData, image))

    def function(self, module: int, name: str) -> Function:
        """With what a thread of it takes."""
        d, doing = self.d, f"kernel function `{name}` is not in its code"
        handle = int(self._call(doing, d.hipModuleGetFunction, module, name.encode()))
        names = d.hipFunction_attribute

        def attribute(of: Any) -> int:
            return int(self._call(doing, d.hipFuncGetAttribute, of, handle))

        return Function(
            handle,
            attribute(names.HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
            attribute(names.HIP_FUNC_ATTRIBUTE_NUM_REGS),
            attribute(names.HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
        )

    def unload(self, module: int) -> None:
        """Drop a module."""
        self._call("unloading code failed", self.d.hipModuleUnload, module)

    # ---- events
    def event(self, sleeps: bool = False) -> int:
        """With a time stamp."""
        flags = self.d.hipEventBlockingSync if sleeps else 0
        return int(self._call("making an event failed", self.d.hipEventCreateWithFlags, flags))

    def event_free(self, event: int) -> None:
        """Destroy it."""
        self._call("freeing an event failed", self.d.hipEventDestroy, event)

    def record(self, event: int, stream: int) -> None:
        """In the stream."""
        self._call("recording an event failed", self.d.hipEventRecord, event, stream)

    def event_wait(self, event: int) -> None:
        """On the host."""
        self._call("work on the device failed", self.d.hipEventSynchronize, event)

    def elapsed_ms(self, begin: int, end: int) -> float:
        """Between two events."""
        return float(self._call("reading two events failed", self.d.hipEventElapsedTime, begin, end))

    # ---- graphs
    def capture_begin(self, stream: int) -> None:
        """Only this thread's calls are watched."""
        mode = self.d.hipStreamCaptureMode.hipStreamCaptureModeThreadLocal
        self._call("recording a graph failed", self.d.hipStreamBeginCapture, stream, mode)

    def capture_end(self, stream: int) -> int:
        """End the recording, and instantiate."""
        doing = "recording a graph failed"
        graph = self._call(doing, self.d.hipStreamEndCapture, stream)
        try:
            return int(self._call(doing, self.d.hipGraphInstantiateWithFlags, graph, 0))
        finally:
            self.d.hipGraphDestroy(graph)

    def graph_launch(self, graph: int, stream: int) -> None:
        """Launch the whole graph."""
        self._call("launching a graph failed", self.d.hipGraphLaunch, graph, stream)

    def graph_free(self, graph: int) -> None:
        """Destroy it."""
        self._call("freeing a graph failed", self.d.hipGraphExecDestroy, graph)


def _uuid(raw: bytes, pci: str) -> str:
    """``GPU-`` and what ``HIP_VISIBLE_DEVICES`` and the kernel's list know the card by: HIP gives its 16 hexadecimal digits as text. A card
    without a number of its own is known by its address.
    """
    text = raw.split(b"\0")[0].decode("ascii", errors="replace").lower()
    digits = len(text) == 16 and all(c in "0123456789abcdef" for c in text) and text.strip("0")
    return f"GPU-{text}" if digits else f"GPU-{pci}"


def _text(raw: Any) -> str:
    """What HIP has written as text: a string, bytes, or a ``CStr`` of hip-python."""
    data = raw.encode() if isinstance(raw, str) else bytes(raw)
    return data.split(b"\0")[0].decode(errors="replace")
