"""Deferred errors of asynchronous launches: status records are read whenever the host has waited for the device."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ...errors import QdrunError
from ...runtime.base import Device


class Reporting(Protocol):
    """A kernel that reports its failures in a status record."""

    def raise_status(self) -> None:
        """Raise what the status record says."""
        ...

    def raise_message(self) -> None:
        """Raise it as the message of a launch, and forget it."""
        ...

    def take_status(self) -> bool:
        """Whether the status record says something, which it forgets."""
        ...

    def error_of(self, code: int, values: Sequence[int]) -> QdrunError:
        """The error of a message; ``values``: the words of its first operands."""
        ...


class Pending:
    """The kernels of a program whose launches may not have ended.

    Args:
        device: theirs. Its program calls ``look`` whenever the host has waited for it: at ``qd.sync()``, and where a content or a returned
            value is read.
    """

    def __init__(self, device: Device) -> None:
        self._codes: list[memoryview] = []  # the first word of each status record is 0 as long as all is well
        self._users: list[weakref.ref[Reporting]] = []
        self._device = device

    def enter(self, kernel: Reporting, status: np.ndarray) -> None:
        """A kernel, and its status record, which lives until it ``leave``s."""
        self._codes.append(status[:1].view(np.int64).data)
        self._users.append(weakref.ref(kernel))

    def leave(self, kernel: Reporting) -> None:
        """A kernel is closed, and its record is given back."""
        at = next((k for k, user in enumerate(self._users) if user() is kernel), None)
        if at is not None:
            del self._codes[at], self._users[at]

    def look(self) -> None:
        """Raise the first failure that a kernel has reported, by the order in which they were compiled; others stay for the next look.

        Raises:
            QdrunAssertionError: an assert or a bounds check failed.
            AdStackOverflow: a loop ran further than its adstack was planned for.
            DeviceError: the driver refused a launch.
        """
        for user, code in list(zip(self._users, self._codes)):
            if code[0]:
                kernel = user()
                if kernel is None:
                    code[0] = 0
                    self._device.reported()
                else:
                    kernel.raise_status()
