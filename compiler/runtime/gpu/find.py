"""Which device is meant, what the machine has, and the device that a process has taken."""

from __future__ import annotations

from ...errors import DeviceError
from ..inventory import BackendLine, DeviceHandle
from .driver import DeviceInfo, Driver, DriverTraits, GpuBackend


def find(driver: Driver, which: int | str | None = None) -> DeviceInfo:
    """The device that a name means.

    Args:
        driver: knows the devices that this process may use.
        which: its number among them, its UUID (``GPU-..``, the first digits are enough), its PCI id (``0000:3b:00.0``), or how its name
            begins. None: the first one that needs not be named.

    Raises:
        DeviceError: no device, or more than one, is called so; lists those that there are.
    """
    kind, count = driver.kind, driver.device_count()
    if not count:
        raise DeviceError(f"{kind.title} cannot be used: this process has no device\n  do: see {kind.look}")
    infos = [driver.describe(k) for k in range(count)]
    if which is None:
        return _first(kind, infos)
    name = str(which).strip().lower()
    if name.partition(":")[0] == kind.name:
        name = name.partition(":")[2] or "0"
    found = [i for i in infos if _is(i, name)]
    if len(found) == 1:
        return found[0]
    what = f"no {kind.title} device is" if not found else f"{len(found)} {kind.title} devices are"
    raise DeviceError(
        f"{what} called {which!r}; this process has\n{_list(infos)}\n  do: give a number, a UUID or a PCI id of these"
    )


def _first(kind: DriverTraits, infos: list[DeviceInfo]) -> DeviceInfo:
    """The device of a program that names none."""
    found = next((i for i in infos if not i.only_named), None)
    if found is None:
        raise DeviceError(
            f"{kind.title} cannot be used: this process has only devices that programs must name\n{_list(infos)}"
            f"\n  do: see {kind.look} for why there is no other, or name one of these (device=..)"
        )
    return found


def _list(infos: list[DeviceInfo]) -> str:
    """Lines of a message."""
    parts = ((f"{i.index}: {i.name}", i.uuid, i.pci, i.only_named) for i in infos)
    return "\n".join("  " + ", ".join(filter(None, p)) for p in parts)


def _is(info: DeviceInfo, name: str) -> bool:
    if name.isdecimal():
        return info.index == int(name)
    if name.startswith(("gpu-", "mig-")):
        return len(name) > 4 and info.uuid.lower()[4:].startswith(name[4:])
    if info.pci and info.pci.lower().removeprefix("0000:") == name.removeprefix("0000:"):
        return True
    return bool(name) and info.name.lower().startswith(name)


def rows(backend: GpuBackend) -> list[BackendLine]:
    """The lines of the inventory: one for each device of this process, or one that says why there is none."""
    arch = backend.kind.arch
    try:
        driver = backend.driver()
        infos = [driver.describe(k) for k in range(driver.device_count())]
    except DeviceError as e:
        return [BackendLine(arch, False, False, _line(e))]
    return [_row(backend.kind, i) for i in infos] or [BackendLine(arch, False, False, "no device that this process may use")]


def _line(error: DeviceError) -> str:
    return " ".join(str(error).split())


def _row(kind: DriverTraits, info: DeviceInfo) -> BackendLine:
    memory, speaks = f"{info.memory_bytes / 2**30:.1f} GiB", kind.speaks(info)
    detail = ", ".join(filter(None, (info.name, info.chip, memory, speaks, info.uuid, info.pci)))
    usable = not info.only_named
    if info.only_named:
        detail += f"; only for programs that name it: {info.only_named}"
    try:
        kind.target(info)
    except DeviceError as e:
        usable, detail = False, _line(e)
    size = info.sms * info.threads_per_sm, info.memory_bytes
    return BackendLine(kind.arch, usable, True, detail, *size, info.index, info.uuid, info.pci, info.name, speaks)


class HeldDevice(DeviceHandle):
    """The device that programs with the option ``device=which`` get. Its context stays until the process ends."""

    def __init__(self, driver: Driver, which: int | str | None = None, shared: bool = False) -> None:
        self._driver = driver
        info = find(driver, which)
        if shared:
            driver.share(info.index)
        driver.open(info.index)
        self.name, self.uuid, self.pci = info.name, info.uuid, info.pci

    def memory(self) -> tuple[int, int]:
        """As the driver says it.

        Raises:
            DeviceError: the device has failed.
        """
        return self._driver.memory_info()
