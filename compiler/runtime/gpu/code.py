"""A kernel's code on a device: machine code of its device functions, loaded, and the host's entry that launches them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import DeviceError
from ...ir.nodes import Kernel, Op
from ...ir.threads import new_lock
from .. import cache
from ..cache import disk_cache, key_of, load_cached, load_known
from ..compiled import Compiled, CompileOptions
from ..jit import LoadedCode
from .driver import DeviceInfo, Driver, LoadedFunction, Texts
from .memory.deferred_release import DeferredRelease, Unused, shared
from .results import out_of_memory

FREE_FRAME = 1024
"""Bytes of stack that every thread has without the context growing."""


class GpuCode(LoadedCode):
    """Loaded code of a kernel: the host's entry, and the device functions that it launches. These are loaded on first use.

    Args:
        host: the entry.
        image: machine code of the device functions.
        key: the key of both on disk.
        texts: names.
        driver: of the open device.
        here: the state that the programs on the device share.

    Attributes:
        handles: the address of an array of the functions' handles, once they are loaded.
        source: the kernel and how it was compiled, where it is known: for variants, and for walks of recorded launches.
        far: the tapes that lie in the heap, where ``source`` is known.
        us: microseconds that a launch took when it was last looked at.
        variants: other codes of the same kernel, by what lies in on-chip memory.
    """

    __slots__ = (
        "_array",
        "_driver",
        "_functions",
        "_here",
        "_image",
        "_loading",
        "_texts",
        "far",
        "handles",
        "source",
        "us",
        "variants",
    )

    def __init__(self, host: LoadedCode, image: bytes, key: str, texts: Texts, driver: Driver, here: DeferredRelease) -> None:
        super().__init__(host.object_bytes + image, host.addresses, host, key)
        self._image, self._texts, self._driver, self._here = image, texts, driver, here
        self._array = (ctypes.c_uint64 * max(1, len(texts.functions)))()
        self._functions: list[LoadedFunction] | None = None
        self._loading = new_lock(self, "_loading")
        self.handles = ctypes.addressof(self._array)
        self.source: Source | None = None
        self.far: frozenset[str] = frozenset()
        self.us: float | None = None
        self.variants: dict[frozenset[str], GpuKernel] = {}

    def trial_source(self) -> tuple[Kernel, frozenset[Op], frozenset[str]]:
        """The kernel of a batched program, its plain atomics, and its tapes that lie in the heap."""
        assert self.source is not None
        kernel, options = self.source()
        return kernel, options.plain, self.far

    @property
    def loaded(self) -> bool:
        """Whether the functions can be launched."""
        return self._functions is not None

    @property
    def functions(self) -> list[LoadedFunction]:
        """The device functions, in the order of their handles. Raises what ``load`` raises."""
        self.load()
        assert self._functions is not None
        return self._functions

    def load(self) -> None:
        """Load the device functions, if they are not loaded yet.

        Raises:
            DeviceError: the driver refuses them; names the kernel.
            OutOfMemory: the device has no room for them.
        """
        if self._functions is not None:
            return
        with self._loading:
            if self._functions is None:
                module, functions = self._load()
                self._array[:] = [f.handle for f in functions] or [0]
                self._functions = functions
                gone = Unused(self._driver, module, len(self._image))
                self._image = b""
                # At exit the driver may be gone; modules go with the process.
                weakref.finalize(self, self._here.unused.append, gone).atexit = False

    def _load(self) -> tuple[int, list[LoadedFunction]]:
        name, driver = self._texts.name, self._driver
        self._here.unload()
        try:
            try:
                module = driver.load_module(self._image, name)
            except DeviceError as e:
                if not (driver.kind.results.is_full(e) and reclaim(self._here)):
                    raise
                module = driver.load_module(self._image, name)
            try:
                return module, [driver.function(module, n) for n in self._texts.functions]
            except DeviceError:
                driver.unload(module)
                raise
        except DeviceError as e:
            if driver.kind.results.is_full(e):
                raise out_of_memory(e, f"the code of kernel `{name}` does not fit") from e
            raise


Source = Callable[[], tuple[Kernel, CompileOptions]]


@dataclass(frozen=True, slots=True, eq=False)
class GpuKernel(Compiled):
    """A kernel for a GPU: ``address`` is that of its entry on the host."""

    @property
    def gpu(self) -> GpuCode:
        """The code, of both sides."""
        assert isinstance(self.code, GpuCode)
        return self.code

    @property
    def functions(self) -> list[LoadedFunction]:
        """The device functions, loaded."""
        return self.gpu.functions

    @property
    def frames(self) -> tuple[int, ...]:
        """Bytes of stack of a thread of each device function; those of more than ``FREE_FRAME`` cost memory of the device."""
        return tuple(f.local_bytes for f in self.functions)


def frame_bytes(compiled: GpuKernel, info: DeviceInfo) -> int:
    """Bytes that the device's context grows by for the stacks of a kernel's threads: every resident thread of the device has one."""
    return info.sms * info.threads_per_sm * max(0, max(compiled.frames, default=0) - FREE_FRAME)


def reclaim(here: DeferredRelease) -> bool:
    """Unload all unused code because the device is full; every program waits for that. Returns whether there was any."""
    cache.LOADED.release()
    return here.unload(must=True) > 0


def load_code(
    texts: Texts, driver: Driver, info: DeviceInfo, imports: dict[str, int], options: CompileOptions, place: str
) -> tuple[GpuCode, bool]:
    """A kernel's code, to be loaded, and whether it came from this process or the disk instead of LLVM.

    Args:
        texts: both modules.
        driver: of the open device.
        info: the device.
        imports: what the host's entry calls, by address.
        options: how to compile.
        place: the process's name of the device: modules of different devices are different.

    Raises:
        QdrunRuntimeError: LLVM refuses the code; names the kernel.
        DeviceError: the driver refuses it; names the kernel.
    """
    from_cache, linked = False, str(sorted(imports.items()))

    def make() -> GpuCode:
        nonlocal from_cache
        host, host_known = load_cached(texts.host, texts.name, [texts.entry], imports, options.opt_level, options.offline_cache)
        image = driver.build(texts, info, options.offline_cache)
        from_cache = host_known and image.known
        return GpuCode(host, image.data, f"{host.key} {image.key}", texts, driver, shared(place, driver))

    code, known = cache.LOADED.get(key_of(place, texts.device, texts.host, linked), make)
    assert isinstance(code, GpuCode)
    if not known:
        cache.LOADED.know(key_of(place, code.key, linked), code)  # what is on disk may be damaged or swept
    return code, known or from_cache


def restore_code(key: str, texts: Texts, driver: Driver, imports: dict[str, int], place: str) -> GpuCode | None:
    """The code of a key that ``load_code`` has given out, here or in another process; None when it is not kept any more.

    Args:
        key: the code's ``key``.
        texts: names only: the modules are not needed.
        driver: of the open device, of the same chip.
        imports: what the host's entry calls, by address.
        place: the process's name of the device.
    """
    host_key, _, image_key = key.partition(" ")

    def make() -> GpuCode:
        host = load_known(host_key, texts.name, [texts.entry], imports)
        disk = disk_cache()
        entry = disk.get(image_key) if disk else None
        if host is None or entry is None:
            raise KeyError(key)
        return GpuCode(host, entry[0], key, texts, driver, shared(place, driver))

    try:
        code = cache.LOADED.get(key_of(place, key, str(sorted(imports.items()))), make)[0]
    except KeyError:
        return None
    assert isinstance(code, GpuCode)
    return code
