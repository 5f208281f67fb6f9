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


def usable_arch(wanted: Arch, fallback: bool | None) -> Arch:
    """The backend of a new program: a GPU backend for ``qd.gpu``, and the CPU in place of one that cannot be used, if that is allowed.

    Args:
        wanted: what the user asks for.
        fallback: use the CPU where no such GPU can be used, with a ``RuntimeWarning`` that gives the reason. None: for ``qd.gpu`` only; a
            program that names its backend runs on it or not at all.

    Raises:
        QdrunRuntimeError: no GPU can be used for ``qd.gpu``, and ``fallback`` is off; names what is missing.
    """
    if wanted is not Arch.gpu and not (fallback and registry.is_gpu(wanted.value)):
        return wanted
    found = [b for b in registry.devices() if (registry.is_gpu(b.name) if wanted is Arch.gpu else b.name == wanted.value)]
    usable = next((b for b in found if b.usable), None)
    if usable is not None:
        return Arch(usable.name)
    reasons = "; ".join(f"{b.name}: {b.detail}" for b in found)
    what = f"qd.init: {'no GPU can' if wanted is Arch.gpu else f'{wanted} cannot'} be used: {reasons}"
    if fallback is False:
        raise QdrunRuntimeError(f"{what}\n  do: qd.init(arch=qd.cpu), or see `qdrun devices`")
    warn_user(
        f"{what}\n  the program runs on the CPU; qd.init(arch=qd.{wanted}, enable_fallback=False) raises instead",
        RuntimeWarning,
    )
    return Arch.cpu
