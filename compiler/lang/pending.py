"""Launches that end after their calls: what they report is looked at whenever the host has waited for the device."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np

from ..codegen.abi import STATUS_WORDS

if TYPE_CHECKING:
    from ..runtime.device import Allocation, Device
    from .executable import Executable

RECORDS = 64
"""Status records of one page."""


class Pending:
    """The status records of a program's kernels, side by side, so that one look tells that all is well.

    Args:
        device: calls ``look`` whenever it has waited: at ``qd.sync()``, and where a content or a returned value is read.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pages: list[Allocation] = []
        self._words: list[np.ndarray] = []  # of each page: a row for each record
        self._users: list[weakref.ref[Executable]] = []
        device.on_sync = self.look

    def record(self, executable: Executable) -> np.ndarray:
        """A status record for a kernel. It lives as long as the program."""
        number = len(self._users)
        if number == RECORDS * len(self._pages):
            page = self._device.host_words(RECORDS * STATUS_WORDS, "context")
            self._pages.append(page)
            self._words.append(page.view.view(np.uint64).reshape(RECORDS, STATUS_WORDS))
        self._users.append(weakref.ref(executable))
        return self._words[number // RECORDS][number % RECORDS]

    def look(self) -> None:
        """Raise the first failure that a kernel has reported, by the order in which they were compiled; others stay for the next look.

        Raises:
            QdrunAssertionError: an assert or a bounds check failed.
            AdStackOverflow: a loop ran further than its adstack was planned for.
            DeviceError: the driver refused a launch.
        """
        for page, words in enumerate(self._words):
            codes = words[:, 0]
            if codes.any():
                for number in np.flatnonzero(codes).tolist():
                    user = self._users[RECORDS * page + number]()
                    if user is None:
                        words[number] = 0
                    else:
                        user.raise_status()
