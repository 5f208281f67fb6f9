"""Launches that end after their calls: what they report is looked at whenever the host has waited for the device."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..runtime.device import Device
    from .executable import Executable
    from .program import Program


def is_prompt(program: Program) -> bool:
    """Whether the call of a launch that fails is the one that raises: on a GPU, with ``debug=True``."""
    return program.pending is None or program.options.debug


class Pending:
    """The kernels of a program whose launches may not have ended.

    Args:
        device: calls ``look`` whenever it has waited: at ``qd.sync()``, and where a content or a returned value is read.
    """

    def __init__(self, device: Device) -> None:
        self._codes: list[memoryview] = []  # the first word of each status record is 0 as long as all is well
        self._users: list[weakref.ref[Executable]] = []
        self._device = device
        device.on_sync = self.look

    def enter(self, executable: Executable, status: np.ndarray) -> None:
        """A kernel, and its status record, which lives as long as the program."""
        self._codes.append(status[:1].view(np.int64).data)
        self._users.append(weakref.ref(executable))

    def look(self) -> None:
        """Raise the first failure that a kernel has reported, by the order in which they were compiled; others stay for the next look.

        Raises:
            QdrunAssertionError: an assert or a bounds check failed.
            AdStackOverflow: a loop ran further than its adstack was planned for.
            DeviceError: the driver refused a launch.
        """
        for number, code in enumerate(self._codes):
            if code[0]:
                user = self._users[number]()
                if user is None:
                    code[0] = 0
                    self._device.reported()
                else:
                    user.raise_status()
