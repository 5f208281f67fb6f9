"""A GPU that a process has taken, before and between its programs."""

from __future__ import annotations

import os

from ..device import Held
from .find import find, open_driver

QUEUES = "32"
"""Of the hardware, as many as there can be."""


class HeldDevice(Held):
    """The device that programs with the option ``device=which`` get. Its context stays until the process ends."""

    def __init__(self, which: int | str | None = None, shared: bool = False) -> None:
        if shared:  # read when the driver is loaded: by default, streams wait for one another when there are more than 8
            os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", QUEUES)
        self._driver = open_driver(which)
        info = find(self._driver, which)
        if shared:
            self._driver.share(info.index)
        self._driver.open(info.index)
        self.name, self.uuid, self.pci = info.name, info.uuid, info.pci

    def memory(self) -> tuple[int, int]:
        """As the driver says it.

        Raises:
            DeviceError: the device has failed.
        """
        return self._driver.memory_info()
