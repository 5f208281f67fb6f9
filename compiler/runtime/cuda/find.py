"""Which device is meant, and what the machine has."""

from __future__ import annotations

from ...errors import DeviceError
from ..device import Backend
from .driver import DeviceInfo, Driver

EMULATED = "emulated"


def open_driver(which: int | str | None) -> Driver:
    """The driver of a device: NVIDIA's, or the one on the processor for ``emulated`` (``emulated:1``: its second device).

    Raises:
        DeviceError: NVIDIA's cannot be used; says why, and what to install.
    """
    if isinstance(which, str) and which.partition(":")[0] == EMULATED:
        from .emulated import EmulatedDriver

        return EmulatedDriver()
    from .nvidia import CudaDriver

    return CudaDriver()


def find(driver: Driver, which: int | str | None = None) -> DeviceInfo:
    """The device that a name means.

    Args:
        driver: knows the devices that this process may use (CUDA_VISIBLE_DEVICES).
        which: its number among them, its UUID (``GPU-..``, the first digits are enough), or its PCI id (``0000:3b:00.0``). None: the first.

    Raises:
        DeviceError: no device, or more than one, is called so; lists those that there are.
    """
    count = driver.device_count()
    if not count:
        raise DeviceError("CUDA cannot be used: this process has no device\n  do: see `nvidia-smi -L` and CUDA_VISIBLE_DEVICES")
    infos = [driver.describe(k) for k in range(count)]
    name = str(0 if which is None else which).strip().lower()
    if name.partition(":")[0] == EMULATED:
        name = name.partition(":")[2] or "0"
    found = [i for i in infos if _is(i, name)]
    if len(found) == 1:
        return found[0]
    there = "\n".join(f"  {i.index}: {i.name}, {i.uuid}, {i.pci}" for i in infos)
    what = "no CUDA device is" if not found else f"{len(found)} CUDA devices are"
    raise DeviceError(f"{what} called {which!r}; this process has\n{there}\n  do: give a number, a UUID or a PCI id of these")


def _is(info: DeviceInfo, name: str) -> bool:
    if name.isdecimal():
        return info.index == int(name)
    if name.startswith(("gpu-", "mig-")):
        return len(name) > 4 and info.uuid.lower()[4:].startswith(name[4:])
    return info.pci.lower().removeprefix("0000:") == name.removeprefix("0000:")


def backends() -> list[Backend]:
    """The rows of the inventory: one for each device of this process, or one that says why there is none."""
    from .nvidia import CudaDriver

    try:
        driver = CudaDriver()
        infos = [driver.describe(k) for k in range(driver.device_count())]
    except DeviceError as e:
        return [Backend("cuda", False, False, _line(e))]
    return [_row(i) for i in infos] or [Backend("cuda", False, False, "no device that this process may use")]


def _line(error: DeviceError) -> str:
    return " ".join(str(error).split())


def _row(info: DeviceInfo) -> Backend:
    from .ptx import target_cpu

    version = f"{info.driver_version // 1000}.{info.driver_version % 1000 // 10}"
    detail = f"{info.name}, {info.chip}, {info.memory_bytes / 2**30:.1f} GiB, CUDA {version}, {info.uuid}, {info.pci}"
    usable = True
    try:
        target_cpu(info)
    except DeviceError as e:
        usable, detail = False, _line(e)
    return Backend("cuda", usable, True, detail, info.sms * info.threads_per_sm, info.memory_bytes, info.index, info.uuid)
