"""Opens the device of a program: the backend that ``arch`` names, or the GPU backend that this machine has."""

from __future__ import annotations

from ..errors import QdrunRuntimeError, warn_user
from ..options import Arch, Options
from ..runtime import registry
from ..runtime.base import Device
from ..runtime.cpu.device import CpuDevice
from ..runtime.python.device import PythonDevice


def open_device(arch: Arch, options: Options) -> Device:
    """Open the device of a new program.

    Raises:
        DeviceError: the device cannot be opened; names what is missing.
        QdrunRuntimeError: ``device`` is given for a backend that has a single device.
    """
    limit = options.memory_limit or None
    if registry.is_gpu(arch.value):
        return registry.open_gpu(arch.value, options.device, limit)
    if options.device not in (None, 0):
        raise QdrunRuntimeError(f"qd.init: device={options.device!r} chooses a GPU; do: qd.init(arch=qd.gpu, device=..)")
    if arch is Arch.python and options.batch is not None:
        raise QdrunRuntimeError(
            f"qd.init: batch={options.batch}, and the interpreter runs one simulation"
            "\n  do: qd.init(arch=qd.cpu, batch=..), or leave out batch="
        )
    if arch is Arch.python:
        return PythonDevice(limit)
    return CpuDevice(options.cpu_max_num_threads or None, limit)


def usable_gpu(fallback: bool) -> Arch:
    """Resolve ``qd.gpu`` to a backend.

    Args:
        fallback: use the CPU if no GPU can be used, with a ``RuntimeWarning`` that gives the reason.

    Raises:
        QdrunRuntimeError: no GPU can be used, and ``fallback`` is off; names what is missing.
    """
    found = [b for b in registry.devices() if registry.is_gpu(b.name)]
    usable = next((b for b in found if b.usable), None)
    if usable is not None:
        return Arch(usable.name)
    what = f"qd.init: no GPU can be used: {'; '.join(f'{b.name}: {b.detail}' for b in found)}"
    if not fallback:
        raise QdrunRuntimeError(f"{what}\n  do: qd.init(arch=qd.cpu), or see `qdrun devices`")
    warn_user(
        f"{what}\n  the program runs on the CPU; qd.init(arch=qd.gpu, enable_fallback=False) raises instead", RuntimeWarning
    )
    return Arch.cpu
