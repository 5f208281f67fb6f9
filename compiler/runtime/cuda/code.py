"""A kernel's code on a device: machine code of its device functions, loaded, and the host's entry that launches them."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import DeviceError
from ...ir.nodes import Kernel
from ..cache import Memo, disk_cache, key_of, load_cached, load_known
from ..cpu import Compiled, Options
from ..jit import LoadedCode
from . import results
from .driver import DeviceInfo, Driver, Function
from .ptx import build

FREE_FRAME = 1024
"""Bytes of stack that every thread has without the context growing."""


class GpuCode(LoadedCode):
    """Code in memory: the host's entry, and the device functions that it launches.

    Attributes:
        functions: of the device, in the order of their handles.
        handles: the address of an array of their handles.
        source: the kernel and how it was compiled, where it is known: for variants.
        variants: other codes of the same kernel, by what lies in on-chip memory.
    """

    __slots__ = ("_array", "functions", "handles", "source", "variants")

    def __init__(self, host: LoadedCode, image: bytes, key: str, functions: list[Function]) -> None:
        super().__init__(host.object_bytes + image, host.addresses, host, key)
        self.functions = functions
        self._array = (ctypes.c_uint64 * max(1, len(functions)))(*(f.handle for f in functions))
        self.handles = ctypes.addressof(self._array)
        self.source: Source | None = None
        self.variants: dict[frozenset[str], GpuKernel] = {}


Source = Callable[[], tuple[Kernel, Options]]


@dataclass(frozen=True, slots=True, eq=False)
class GpuKernel(Compiled):
    """A kernel for a GPU: ``address`` is that of its entry on the host.

    Attributes:
        function_names: of the device functions, in the order of the launches.
        frames: bytes of stack of a thread of each device function; those of more than ``FREE_FRAME`` cost memory of the device.
    """

    function_names: tuple[str, ...] = ()
    frames: tuple[int, ...] = ()

    @property
    def gpu(self) -> GpuCode:
        """The code, of both sides."""
        assert isinstance(self.code, GpuCode)
        return self.code

    @property
    def functions(self) -> list[Function]:
        """The device functions."""
        return self.gpu.functions


def frame_bytes(compiled: GpuKernel, info: DeviceInfo) -> int:
    """Bytes that the device's context grows by for the stacks of a kernel's threads: every resident thread of the device has one."""
    return info.sms * info.threads_per_sm * max(0, max(compiled.frames, default=0) - FREE_FRAME)


@dataclass(frozen=True, slots=True)
class Texts:
    """What the code generator wrote of a kernel. ``features``: the PTX version, empty where the device functions are no PTX."""

    name: str
    device: str
    host: str
    entry: str
    functions: tuple[str, ...]
    features: str


_codes = Memo()  # by kernel, device and launcher: programs of one process share modules


def load_code(
    texts: Texts, driver: Driver, info: DeviceInfo, imports: dict[str, int], options: Options, place: str
) -> tuple[GpuCode, bool]:
    """A kernel's code, and whether it came from this process or the disk instead of LLVM.

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
        OutOfMemory: the device has no room for the code.
    """
    from_cache = False

    def make() -> GpuCode:
        nonlocal from_cache
        host, host_known = load_cached(texts.host, texts.name, [texts.entry], imports, options.opt_level, options.offline_cache)
        if texts.features:
            image, key, known = build(texts.device, texts.name, texts.features, driver, info, options.offline_cache)
        else:
            image, key, known = texts.device.encode(), _keep_text(texts, options), host_known
        from_cache = host_known and known
        return _load(host, image, f"{host.key} {key}", texts, driver)

    code, shared = _codes.get(key_of(place, texts.device, texts.host, str(sorted(imports.items()))), make)
    assert isinstance(code, GpuCode)
    return code, shared or from_cache


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
        return _load(host, entry[0], key, texts, driver)

    try:
        code = _codes.get(key_of(place, key, str(sorted(imports.items()))), make)[0]
    except KeyError:
        return None
    assert isinstance(code, GpuCode)
    return code


def _keep_text(texts: Texts, options: Options) -> str:
    """Keep device functions that are no PTX as they are, so that they can be restored, too."""
    key = key_of("device text", texts.device)
    disk = disk_cache() if options.offline_cache else None
    if disk:
        disk.put(key, texts.device.encode(), {"name": texts.name})
    return key


def _load(host: LoadedCode, image: bytes, key: str, texts: Texts, driver: Driver) -> GpuCode:
    _unload_unused()
    try:
        module = driver.load_module(image, texts.name)
        try:
            functions = [driver.function(module, n) for n in texts.functions]
        except DeviceError:
            driver.unload(module)
            raise
    except DeviceError as e:
        if results.is_full(e):
            raise results.out_of_memory(e, f"the code of kernel `{texts.name}` does not fit") from e
        raise
    code = GpuCode(host, image, key, functions)
    # At exit the driver may be gone; modules go with the process.
    weakref.finalize(code, _unused.append, (driver, module)).atexit = False
    return code


_unused: deque[tuple[Driver, int]] = deque()


def _unload_unused() -> None:
    """Unload modules that nobody uses any more. Not in the collector, which may run anywhere, in a recording say."""
    while _unused:
        try:
            driver, module = _unused.popleft()
            driver.unload(module)
        except (DeviceError, IndexError):
            pass  # the device has failed, and its modules with it; or another thread was faster


def _after_fork() -> None:
    _codes.reset_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
