"""The backends of GPUs by name: which of them this version has, and what of them this machine has.

Adding a backend is adding its folders (``runtime/<name>`` with a ``backend.py``, ``codegen/<name>``) and its line in ``BACKENDS``.
Nothing of a backend is imported before it is asked for.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DeviceError, QdrunRuntimeError
from .cpu import inventory as cpu
from .inventory import BackendLine, DeviceHandle, ProcessBytes

if TYPE_CHECKING:
    from .gpu.device import GpuDevice
    from .gpu.driver import Driver, GpuBackend

EMULATED = "emulated"
"""The device on the processor, which programs for a GPU can run on for tests: ``emulated``, or ``emulated:1`` for the second one; with
``arch=qd.amdgpu`` ``emulated:gfx942`` and ``emulated:gfx942:1``."""
TEST_DEVICES = "qdrun.tests.devices"
"""The package that has it: a part of a checkout, and of no installed package."""


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """A backend of GPUs.

    Attributes:
        name: what programs ask for.
        detect: what this machine has of it, in words; empty: nothing.
        missing: what to say where it has nothing.
        load: imports the backend.
    """

    name: str
    detect: Callable[[], str]
    missing: str
    load: Callable[[], GpuBackend]


def _cuda() -> GpuBackend:
    from .cuda.backend import BACKEND

    return BACKEND


def _amdgpu() -> GpuBackend:
    from .amdgpu.backend import BACKEND

    return BACKEND


def _vulkan() -> GpuBackend:
    from .vulkan.backend import BACKEND

    return BACKEND


def _metal() -> GpuBackend:
    from .metal.backend import BACKEND

    return BACKEND


def _find_cuda() -> str:
    if not (Path("/dev/nvidiactl").exists() or Path("/dev/nvidia0").exists() or Path("/dev/dxg").exists() or os.name == "nt"):
        return ""
    library = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
    return "an NVIDIA driver is loaded" if _loadable(library) else ""


def _find_amdgpu() -> str:
    return "an AMD GPU driver is loaded (/dev/kfd)" if Path("/dev/kfd").exists() else ""


def _find_vulkan() -> str:
    library = {"win32": "vulkan-1.dll", "darwin": "libvulkan.dylib"}.get(sys.platform, "libvulkan.so.1")
    return "a Vulkan loader is installed" if _loadable(library) else ""


def _find_metal() -> str:
    return "macOS has Metal" if sys.platform == "darwin" and ctypes.util.find_library("Metal") else ""


def _loadable(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


BACKENDS = {
    entry.name: entry
    for entry in (
        BackendEntry("cuda", _find_cuda, "no such device on this machine: no NVIDIA driver is loaded", _cuda),
        BackendEntry(
            "amdgpu", _find_amdgpu, "no such device on this machine: no AMD GPU driver is loaded (no /dev/kfd)", _amdgpu
        ),
        BackendEntry("vulkan", _find_vulkan, "no such device on this machine: no Vulkan loader is installed", _vulkan),
        BackendEntry("metal", _find_metal, "no such device on this machine: Metal is a part of macOS", _metal),
    )
}


def is_gpu(name: str) -> bool:
    """Whether a backend of GPUs is called so."""
    return name in BACKENDS


def gpu(name: str) -> GpuBackend:
    """A backend of GPUs.

    Raises:
        QdrunRuntimeError: there is none that is called so.
    """
    if name not in BACKENDS:
        raise QdrunRuntimeError(f"there is no backend {name!r} of GPUs\n  do: see `qdrun devices`")
    return BACKENDS[name].load()


def process_bytes(name: str) -> ProcessBytes | None:
    """The device memory of a process besides its programs; None if it was not measured."""
    return BACKENDS[name].load().kind.process if name in BACKENDS else None


def _driver(name: str, which: int | str | None) -> tuple[Driver, int | str | None]:
    """A driver object, and what it calls the device."""
    backend = gpu(name)
    if isinstance(which, str) and which.partition(":")[0] == EMULATED:
        return _emulated(name, which.partition(":")[2])
    return backend.driver(), which


def _emulated(backend: str, name: str) -> tuple[Driver, str]:
    """A driver object of the device on the processor that stands for one of a backend's, and the number of the device.

    ``name``: what follows ``emulated:`` in its name.
    """
    try:
        devices = importlib.import_module(TEST_DEVICES)
    except ModuleNotFoundError as error:
        if not TEST_DEVICES.startswith(error.name or "?"):
            raise
        raise DeviceError(
            "emulated devices are for tests, and are no part of an installed qdrun"
            "\n  do: clone the repository and `pip install -e .` there; or use a device of this machine: `qdrun devices`"
        ) from None
    return devices.emulated_driver(backend, name)


def open_gpu(name: str, which: int | str | None = None, byte_limit: int | None = None) -> GpuDevice:
    """Open the device of a new program.

    Raises:
        DeviceError: the device cannot be used, or the name matches none or several; names what is missing.
        QdrunRuntimeError: there is no backend that is called so.
    """
    driver = _driver(name, which)
    from .gpu.device import GpuDevice  # a program on the CPU needs nothing of it

    return GpuDevice(*driver, byte_limit)


def hold(name: str, which: int | str | None = None, *, shared: bool = False) -> DeviceHandle:
    """Take a device for this process, as programs with these options will, and say which one it is.

    ``shared``: several programs will run on it at once, each on a thread of its own.

    Raises:
        DeviceError: there is none that is called so, or it cannot be used.
        QdrunRuntimeError: there is no backend that is called so.
    """
    if name == "cpu":
        return cpu.HeldHost()
    backend = gpu(name)
    from .gpu.find import HeldDevice

    if shared:
        for variable, value in backend.kind.shared_environment.items():  # read when the driver is loaded
            os.environ.setdefault(variable, value)
    return HeldDevice(*_driver(name, which), shared)


def keep_namespaces() -> None:
    """Before folders of users are added to ``sys.path``: a file ``cuda.py`` there would win over cuda-python's namespace package, even
    from the end of the path.
    """
    with suppress(ImportError):
        importlib.import_module("cuda")


def devices() -> list[BackendLine]:
    """Every backend: whether this machine has the hardware and whether this version can use it."""
    return [cpu.row(), *(row for entry in BACKENDS.values() for row in _rows(entry))]


def _rows(entry: BackendEntry) -> list[BackendLine]:
    """A line for each device. What a backend needs of other packages is loaded only where there is hardware for it."""
    if not entry.detect():
        return [BackendLine(entry.name, False, False, entry.missing)]
    backend = entry.load()
    from .gpu.find import rows

    return [b if b.usable else replace(b, present=True) for b in rows(backend)]
