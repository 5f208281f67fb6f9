"""NVIDIA's driver through cuda-python, which is imported when a driver is made, never before: the package and its tests run without it,
and without a GPU.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import Counter
from typing import Any

from ...errors import DeviceError
from ...ir.threads import new_lock
from ..gpu.driver import CodeImage, DeviceInfo, Texts
from ..gpu.library import LibraryDriver, LibraryNames, text_of
from ..interruptible import interruptible
from . import ptx
from .conditions import CudaConditions, has_conditions
from .kind import CUDA, dotted
from .native import Addresses, launchers
from .results import device_error

OLDEST_DRIVER = 12000
"""The CUDA version that PTX 8.0 needs, 1000 * major + 10 * minor."""

_LOG_BYTES = 16384
_LIBRARY = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
_INSTALL_DRIVER = (
    "install NVIDIA's driver, 525 or newer (in a container: start it with --gpus all), and see that `nvidia-smi` works"
)


def bindings() -> Any:
    """cuda-python's ``driver`` module.

    Raises:
        DeviceError: it is not installed.
    """
    try:
        from cuda.bindings import driver
    except ImportError as e:
        raise DeviceError(
            f"CUDA cannot be used: cuda-python is not installed for this Python ({e})\n  do: pip install 'cuda-python>=12.4'"
        ) from None
    return driver


def initialise() -> Any:
    """cuda-python's ``driver`` module after ``cuInit``.

    Raises:
        DeviceError: no cuda-python, no driver, too old a driver, or no device that it can use; says which.
    """
    d = bindings()
    try:
        (code,) = d.cuInit(0)
    except Exception as e:  # every version has an exception of its own for a library that is not there
        raise DeviceError(
            f"CUDA cannot be used: NVIDIA's driver is not installed on this machine ({_LIBRARY} was not found)\n  do: {_INSTALL_DRIVER}"
        ) from e
    if int(code):
        raise device_error(int(code), "CUDA cannot be used", code.name)
    code, version = d.cuDriverGetVersion()
    if int(code) or version < OLDEST_DRIVER:
        raise DeviceError(
            f"CUDA cannot be used: the driver speaks CUDA {dotted(version)}, and {dotted(OLDEST_DRIVER)} is needed"
            f"\n  do: {_INSTALL_DRIVER}"
        )
    return d


def addresses() -> Addresses:
    """The addresses of the driver's functions in this process. The driver must be installed."""
    library = ctypes.CDLL(_LIBRARY)
    names = "LaunchKernel LaunchCooperativeKernel MemsetD32Async MemcpyAsync CtxSetCurrent CtxPushCurrent_v2 CtxPopCurrent_v2"
    return Addresses(*(ctypes.cast(getattr(library, f"cu{n}"), ctypes.c_void_p).value or 0 for n in names.split()))


_contexts: dict[int, Any] = {}  # primary contexts by device: held until the process ends, as the modules in them are shared
_contexts_lock = new_lock(sys.modules[__name__], "_contexts_lock")
_streams: Counter[int] = Counter()  # open ones of each context: the programs that live side by side


AT_ONCE = 64 << 10
"""Bytes of memory that is not pinned which the driver copies on the way to the device before it returns, without waiting."""


NAMES = LibraryNames(
    prefix="cu",
    functions={
        "Malloc": "cuMemAlloc",
        "MallocFromPoolAsync": "cuMemAllocFromPoolAsync",
        "Free": "cuMemFree",
        "FreeAsync": "cuMemFreeAsync",
        "HostFree": "cuMemFreeHost",
    },
    pool=(
        "CUmemPoolProps",
        "CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED",
        "CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE",
        "CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE",
    ),
    keeps="CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD",
    used="CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT",
    reserved="CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT",
    capture="CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL",
    function="CUfunction_attribute.CU_FUNC_ATTRIBUTE_",
)


class CudaDriver(LibraryDriver):
    """NVIDIA's driver, for one device. See ``Driver``.

    The device's primary context is used, which other libraries of the process (PyTorch, CuPy) use, too; so their memory and ours can be
    given to one another. A call on a thread that has another device's context current leaves that one current.
    """

    kind, names = CUDA, NAMES

    def __init__(self) -> None:
        super().__init__(initialise())
        self.context, self._device = 0, None
        self._conditions: CudaConditions | None = None

    # ---- calls
    def _call(self, doing: str, function: Any, *args: Any) -> Any:
        """Call the driver with the context current, and return what it gives.

        Raises:
            DeviceError: the result is not success.
        """
        d = self.d
        current = int(d.cuCtxGetCurrent()[1] or 0)
        if current == self.context or not self.context:
            return self._checked(doing, function(*args))
        if not current:
            self._checked(doing, d.cuCtxSetCurrent(self.context))
            return self._checked(doing, function(*args))
        self._checked(doing, d.cuCtxPushCurrent(self.context))
        try:
            return self._checked(doing, function(*args))
        finally:
            d.cuCtxPopCurrent()

    # ---- devices
    def device_count(self) -> int:
        """The number of devices that CUDA_VISIBLE_DEVICES leaves visible."""
        return self._call("counting devices failed", self.d.cuDeviceGetCount)

    def describe(self, index: int) -> DeviceInfo:
        """A device, without a context on it."""
        d, doing = self.d, f"looking at CUDA device {index} failed"
        device = self._call(doing, d.cuDeviceGet, index)
        names = d.CUdevice_attribute

        def attribute(name: str) -> int:
            return int(self._call(doing, d.cuDeviceGetAttribute, getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

        raw = bytes(self._call(doing, d.cuDeviceGetUuid, device).bytes).hex()
        return DeviceInfo(
            index=index,
            name=text_of(self._call(doing, d.cuDeviceGetName, 128, device)),
            uuid=f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}",
            pci=text_of(self._call(doing, d.cuDeviceGetPCIBusId, 32, device)).lower(),
            chip=f"sm_{attribute('COMPUTE_CAPABILITY_MAJOR')}{attribute('COMPUTE_CAPABILITY_MINOR')}",
            sms=attribute("MULTIPROCESSOR_COUNT"),
            threads_per_sm=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
            memory_bytes=int(self._call(doing, d.cuDeviceTotalMem, device)),
            driver_version=int(self._call(doing, d.cuDriverGetVersion)),
        )

    def share(self, index: int) -> None:
        """The threads of a context spin by default: with more of them than processors, those that launch do not get one."""
        doing, blocking = f"opening CUDA device {index} failed", 4  # CU_CTX_SCHED_BLOCKING_SYNC
        self._call(doing, self.d.cuDevicePrimaryCtxSetFlags, self._call(doing, self.d.cuDeviceGet, index), blocking)

    def open(self, index: int) -> None:
        """Take a device, with its primary context and a pool of our own."""
        d, doing = self.d, f"opening CUDA device {index} failed"
        self._device = self._call(doing, d.cuDeviceGet, index)
        with _contexts_lock:
            if index not in _contexts:
                _contexts[index] = self._call(doing, d.cuDevicePrimaryCtxRetain, self._device)
        self.context = int(_contexts[index])
        self.bind()
        made = launchers(self.context, addresses())
        self.launch_address, self.memset_address, self.together_address = made.launch, made.memset, made.together
        self._copy_address = made.copy
        has_pools = d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        if self._call(doing, d.cuDeviceGetAttribute, has_pools, self._device):
            self._make_pool(doing, index)

    def _set_of_pool(self, attribute: Any, doing: str, nbytes: int) -> None:
        self._do("MemPoolSetAttribute", doing, self._pool, attribute, self.d.cuuint64_t(nbytes))

    def _of_pool(self, attribute: Any) -> int:
        return int(self._do("MemPoolGetAttribute", "reading the pool failed", self._pool, attribute))

    @property
    def conditions(self) -> CudaConditions | None:
        """From CUDA 12.4 on."""
        if self._conditions is None and has_conditions(self.d):
            capture = self._value(self.names.capture)
            self._conditions = CudaConditions(self.d, self._call, self.context, self.load_module, capture)
        return self._conditions

    def bind(self) -> None:
        """Make the context current, if this thread has none."""
        if not int(self.d.cuCtxGetCurrent()[1] or 0):
            self._checked("taking the device on this thread failed", self.d.cuCtxSetCurrent(self.context))

    # ---- streams
    def stream(self, ordered: bool) -> int:
        """PyTorch and others work on the default one: streams of programs that share memory with them are in order with it."""
        made = super().stream(ordered)
        with _contexts_lock:
            _streams[self.context] += 1
        return made

    def stream_free(self, stream: int) -> None:
        with _contexts_lock:
            _streams[self.context] -= 1
        super().stream_free(stream)

    def close(self, stream: int) -> None:
        """Destroy the stream and the pool. The last of the context's streams shrinks what that keeps for stacks: it waits for the whole
        device, and the kernels of others would need their stacks again.
        """
        with _contexts_lock:
            _streams[self.context] -= 1
        super().close(stream)

    def _closing(self, doing: str) -> None:
        if _streams[self.context] <= 0:  # the context would keep the stacks of kernels with large frames
            self._call(doing, self.d.cuCtxSetLimit, self.d.CUlimit.CU_LIMIT_STACK_SIZE, 1024)

    # ---- memory
    def host_allocate(self, nbytes: int) -> int:
        """Pinned for every context."""
        portable = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for every context
        return int(self._call(f"pinning {nbytes:,} bytes of host memory failed", self.d.cuMemHostAlloc, nbytes, portable))

    def is_pinned(self, address: int) -> bool:
        """Whether the driver has a kind for it. (Asked by ``cuPointerGetAttribute``, it fails for ordinary memory; a host's address it has
        for that, too, where the device can read all of the host's memory.)
        """
        self.bind()
        try:
            code, found = self.d.cuPointerGetAttributes(
                1, [self.d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE], address
            )
        except ValueError:  # 0 is no name of a kind: what the driver has not made
            return False
        return not int(code) and int(found[0]) == int(self.d.CUmemorytype.CU_MEMORYTYPE_HOST)

    def upload(self, dst: int, src_host: int, nbytes: int, stream: int) -> None:
        """In the stream. What the driver does not copy at once it copies when the stream has come there, see ``download``."""
        if nbytes > AT_ONCE:
            self.synchronize(stream)
        self._call(f"a copy of {nbytes:,} bytes to the device failed", self.d.cuMemcpyHtoDAsync, dst, src_host, nbytes, stream)

    def download(self, dst_host: int, src: int, nbytes: int, stream: int) -> None:
        """Copy and wait.

        A copy between the device and memory that is not pinned waits inside of the driver for what is before it in its stream, and until
        then no thread can make or destroy a stream or an event: so the host waits for the stream first, which blocks no other thread (both
        measured on an H200, driver 580).
        """
        self.synchronize(stream)
        self.fetch(dst_host, src, nbytes, stream)
        self.synchronize(stream)

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """In the stream; the driver finds out which devices the addresses belong to."""
        self._call(f"a copy of {nbytes:,} bytes on the device failed", self.d.cuMemcpyAsync, dst, src, nbytes, stream)

    def copy_rows(self, dst: int, dst_step: int, src: int, src_step: int, nbytes: int, rows: int, stream: int) -> None:
        copy, device = self.d.CUDA_MEMCPY2D(), self.d.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.WidthInBytes, copy.Height = nbytes, rows
        copy.srcMemoryType, copy.srcDevice, copy.srcPitch = device, src, src_step
        copy.dstMemoryType, copy.dstDevice, copy.dstPitch = device, dst, dst_step
        self._call(f"a copy of {rows:,} rows of {nbytes:,} bytes failed", self.d.cuMemcpy2DAsync, copy, stream)

    # ---- code
    def build(self, texts: Texts, info: DeviceInfo, keep: bool) -> CodeImage:
        """A cubin, by LLVM and the compiler in the driver."""
        return ptx.build(texts, self.assemble, info, keep)

    def assemble(self, text: bytes, name: str) -> bytes:
        """PTX to a cubin, by the compiler in the driver, which may take minutes: Ctrl-C is served meanwhile."""
        return interruptible(lambda: self._assemble(text, name))

    def _assemble(self, text: bytes, name: str) -> bytes:
        d, (options, values, log) = self.d, self._logged()
        doing = f"the driver cannot compile kernel `{name}`"
        state = self._call(doing, d.cuLinkCreate, len(options), options, values)
        try:
            ptx, data = d.CUjitInputType.CU_JIT_INPUT_PTX, text.rstrip(b"\0") + b"\0"
            label = f"{name}.ptx".encode()
            self._explained(doing, log, d.cuLinkAddData, state, ptx, data, len(data), label, 0, [], [])
            address, size = self._explained(doing, log, d.cuLinkComplete, state)
            return ctypes.string_at(int(address), int(size))
        finally:
            d.cuLinkDestroy(state)

    def load_module(self, image: bytes, name: str) -> int:
        """A cubin, or PTX text."""
        options, values, log = self._logged()
        doing = f"the code of kernel `{name}` cannot be loaded"
        data = image if image.startswith(b"\x7fELF") else image.rstrip(b"\0") + b"\0"
        return int(self._explained(doing, log, self.d.cuModuleLoadDataEx, data, len(options), options, values))

    def _logged(self) -> tuple[list[Any], list[Any], bytearray]:
        """Options of the driver's compiler with a buffer for what it complains of."""
        j, log = self.d.CUjit_option, bytearray(_LOG_BYTES)
        return [j.CU_JIT_ERROR_LOG_BUFFER, j.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES], [log, len(log)], log

    def _explained(self, doing: str, log: bytearray, function: Any, *args: Any) -> Any:
        """A call of the compiler; its log is part of the error."""
        try:
            return self._call(doing, function, *args)
        except DeviceError as e:
            said = log.split(b"\0")[0].decode(errors="replace")
            raise device_error(e.code, doing, e.result, said) from None
