"""A GPU that a process has taken, before and between its programs."""

from __future__ import annotations

from ..device import Held
from .find import find, open_driver


class HeldDevice(Held):
    """The device that programs with the option ``device=which`` get. Its context stays until the process ends."""

    def __init__(self, which: int | str | None = None) -> None:
        self._driver = open_driver(which)
        info = find(self._driver, which)
        self._driver.open(info.index)
        self.name, self.uuid, self.pci = info.name, info.uuid, info.pci

    def memory(self) -> tuple[int, int]:
        """As the driver says it.

        Raises:
            DeviceError: the device has failed.
        """
        return self._driver.memory_info()
