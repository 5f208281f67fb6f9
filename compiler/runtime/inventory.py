"""The descriptions of a device: a line of the inventory, an open device, and the memory that a process needs on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackendLine:
    """One line of the inventory. ``usable`` says whether programs can run on it; ``detail`` says what it is, or why not.

    A GPU has a line for each device: ``index`` is its number in this process, ``uuid`` the name that it keeps everywhere, ``pci`` its
    address, if it has one. ``model`` is what the maker calls it, ``driver`` what its driver speaks.
    """

    name: str
    usable: bool
    present: bool
    detail: str
    threads: int = 0
    memory_bytes: int = 0
    index: int = 0
    uuid: str = ""
    pci: str = ""
    model: str = ""
    driver: str = ""


@dataclass(frozen=True, slots=True)
class ProcessBytes:
    """The measured device memory of a process besides its programs.

    Attributes:
        driver: bytes of the driver's context, once per process and device.
        unit: bytes of the units in which the driver allocates memory.
        frame: bytes of a thread's stack that are allocated from the start.
        measured: the device of the measurement; empty: there was none, and nothing else is known.
    """

    driver: int
    unit: int
    frame: int
    measured: str


UNMEASURED = ProcessBytes(driver=0, unit=1, frame=0, measured="")


class DeviceHandle(ABC):
    """A device that this process has taken.

    Attributes:
        name, uuid, pci: what it says of itself; empty where there is nothing to say.
    """

    name = uuid = pci = ""

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Bytes that are free, of all processes together, and all bytes; 0 where that is not known."""
