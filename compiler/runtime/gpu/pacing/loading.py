"""When a program's code is loaded: where several kernels are compiled together, all at once, so that the device is waited for once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from ....ir.threads import new_lock
from ..failing import Failing

if TYPE_CHECKING:
    from ...base import DeviceClient
    from ..code import GpuCode
    from ..memory.device_memory import Holdings


class Loading(Failing):
    """The code of one program.

    Attributes:
        waiting: there is code that is compiled and not loaded.
    """

    waiting = False
    client: DeviceClient | None
    _holdings: Holdings

    def _begin_loading(self) -> None:
        self._later: list[GpuCode] = []
        self._blocks = 0
        self._loads = new_lock(self, "_loads")

    @contextmanager
    def loading(self) -> Iterator[None]:
        """See ``Device``.

        Raises:
            DeviceError: the driver refuses code; names the kernel.
            OutOfMemory: the device has no room for it.
        """
        with self._loads:
            self._blocks += 1
        try:
            yield
        finally:
            with self._loads:
                self._blocks -= 1
                last = not self._blocks
        if last:
            self.load_waiting()

    def load_waiting(self) -> None:
        """See ``Device``, and ``loading`` for what it raises."""
        if not self.waiting:
            return
        self._alive()
        with self._loads, self._failing():  # launches wait meanwhile
            codes = [code for code in self._later if not code.loaded]
            with self._holdings.shared.gate.closed() if len(codes) > 1 else nullcontext():
                for code in codes:
                    code.load()
            self._later = []
            self._wait(False)

    def _ask_for(self, code: GpuCode) -> None:
        """Code that will be launched: it is loaded now, or with others."""
        if code.loaded:
            return
        with self._loads:
            if self._blocks:
                self._later.append(code)
                self._wait(True)
                return
        code.load()

    def _wait(self, waiting: bool) -> None:
        self.waiting = waiting
        if self.client is not None:
            self.client.waiting_changed()
