"""Metal's streams: a command queue, and the heaps that its work may use."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ..gpu.commands.stream import WORK_FAILED, CommandDevice, CommandStream
from . import encoder
from .objc import Objc
from .results import CAPTURE_UNSUPPORTED, NO_OBJECT, RESULTS, UNKNOWN, device_error


class MetalStream(CommandStream):
    """One stream.

    Args:
        device: what the device's streams have in common.
        objc, metal_device: the run time, and the MTLDevice.
        heaps: gives the heaps that its work may use.
    """

    results, not_in_graph, unknown = RESULTS, CAPTURE_UNSUPPORTED, UNKNOWN

    def __init__(self, device: CommandDevice[Any], objc: Objc, metal_device: int, heaps: Callable[[], tuple[int, ...]]) -> None:
        super().__init__(device)
        self.objc, self._heaps = objc, heaps
        self._objects = [objc.send(metal_device, name) for name in ("newCommandQueue", "newFence")]
        if not all(self._objects):
            raise device_error(NO_OBJECT, "making a stream failed")
        self._words[encoder.QUEUE], self._words[encoder.FENCE] = self._objects
        self._known: tuple[int, ...] | None = None
        self.use_heaps()
        self.open()

    def use_heaps(self) -> None:
        """Launches from now on may use the heaps that there are now. Hold no lock of the memory's."""
        while True:
            handles = self._heaps()
            if handles == self._known:
                return
            with self.lock:
                table = (ctypes.c_uint64 * (1 + len(handles)))(len(handles), *handles)
                new = [h for h in handles if h not in (self._known or ())]
                added = (ctypes.c_uint64 * len(new))(*new)
                self.device.recorder.own["use"](self.handle, ctypes.addressof(table), ctypes.addressof(added), len(new))
                self._known, self._table = handles, table

    # ---- see ``CommandStream``
    def await_submission(self, value: int) -> None:
        buffer = self.hold(value)
        with self.objc.pool():
            self.objc.send(buffer, "waitUntilCompleted")
        self.objc.send(buffer, "release")

    def hold(self, value: int) -> int:
        """The command buffer of a submission, retained; nil: it has ended."""
        return self.device.recorder.own["hold"](self.handle, value)

    def raise_failure(self) -> None:
        """By the error of the first command buffer that has failed."""
        with self.lock:
            buffer, self._words[encoder.FAILED_BUFFER] = int(self._words[encoder.FAILED_BUFFER]), 0
        if buffer:
            objc = self.objc
            with objc.pool():
                error = objc.send(buffer, "error")
                code, said = objc.send(error, "code") or 1, objc.text(objc.send(error, "localizedDescription"))
            objc.send(buffer, "release")
            raise device_error(code, WORK_FAILED, detail=said)

    @property
    def ended(self) -> float:
        """When the last command buffer that has ended did, in seconds."""
        return ctypes.c_double.from_buffer(self._words, 8 * encoder.ENDED).value

    def release(self) -> None:
        for one in self._objects:
            self.objc.send(one, "release")
