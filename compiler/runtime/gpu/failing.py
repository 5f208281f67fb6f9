"""When a device fails: which kernel it was, as far as the host can know, and that nothing can be done with the device afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ...codegen.abi import RECENT, TABLE_LAUNCHES, TABLE_RECENT, TABLE_WORDS
from ...errors import DeviceError, OutOfMemory
from .driver import DeviceInfo, Driver
from .results import out_of_memory

NAMED = 16
"""Launches that a message names at most."""

_failed: dict[str, DeviceError] = {}  # devices that this process cannot use any more


class Failing:
    """The failures of one device.

    Attributes:
        driver, info: the device.
        identity: names it in this process.
        table: the words that kernels' entries read and write: which launches there were.
    """

    def __init__(self, driver: Driver, info: DeviceInfo) -> None:
        self.driver, self.info = driver, info
        self.identity = f"{driver.kind.name} {info.uuid}"
        self.table = np.zeros(TABLE_WORDS, np.int64)
        self._kernels: dict[int, str] = {}  # names by the address of their contexts
        self._waited = 0  # launches when the host last waited
        self._dead: DeviceError | None = _failed.get(self.identity)
        self._alive()

    def launches(self) -> int:
        """Kernels launched so far."""
        return int(self.table[TABLE_LAUNCHES])

    def launch_error(self, code: int, kernel: str) -> DeviceError | OutOfMemory:
        """The error of a launch that the driver refused with this code."""
        doing = f"kernel `{kernel}` could not be launched"
        results = self.driver.kind.results
        error = results.error(code, doing, detail=self.driver.explain())
        if results.is_full(
            error
        ):  # every thread that the device can hold gets its stack when a kernel needs more of it than any before
            return out_of_memory(error, f"{doing}: no room for the stacks of its threads")
        if not error.restart:
            return error
        # With it the launch has waited for the kernel, and so did those before.
        blocking = os.environ.get(self.driver.kind.blocking) == "1"
        own = f"kernel `{kernel}` failed on {self.info.name}" if blocking or self.launches() == self._waited else ""
        return self._dead or self._die(code, doing=own)

    @property
    def dead(self) -> bool:
        """Whether a failure that stays has been raised."""
        return self._dead is not None

    def _alive(self) -> None:
        """Raise the failure that ended this device, if one has."""
        if self._dead is not None:
            e = self._dead
            raise DeviceError(f"the device has failed before: {e}", e.result, e.code, e.restart, e.bounds)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A block of driver calls: a failure that stays ends the device, and says which kernels were running."""
        try:
            yield
        except DeviceError as e:
            if not e.restart:
                raise
            raise self._die(e.code, e.result) from e

    def _die(self, code: int, name: str = "", doing: str = "") -> DeviceError:
        """The error of a failure that stays; later calls raise it again, those of programs that this process opens later, too."""
        self._dead = self.driver.kind.results.error(code, doing or self._suspects(), name)
        if self.driver.kind.stays:
            _failed[self.identity] = self._dead
        return self._dead

    def _suspects(self) -> str:
        """The kernels that may have failed: those that were launched since the host last waited."""
        count = self.launches()
        numbers = range(max(self._waited, count - NAMED), count)
        contexts = dict.fromkeys(int(self.table[TABLE_RECENT + n % RECENT]) for n in numbers)
        names = list(dict.fromkeys(f"`{self._kernels[c]}`" for c in contexts if c in self._kernels))
        if len(names) <= 1:
            return f"{f'kernel {names[0]}' if names else 'work'} failed on {self.info.name}"
        some = "one of the kernels" if count - self._waited <= NAMED else "an earlier kernel or one of"
        variable = self.driver.kind.blocking
        tells = f" ({variable}=1 tells which)" if variable else ""
        return f"{some} {', '.join(names)} failed on {self.info.name}{tells}"
