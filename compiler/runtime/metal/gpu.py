"""An Apple GPU as all programs of the process use it: memory that both sides write, our own kernels, and the recorder."""

from __future__ import annotations

import sys
from functools import partial

from ...ir.threads import new_lock
from ..gpu.commands.link import make_recorder
from ..gpu.commands.own_kernels import texts
from ..gpu.commands.stream import SERVE_ADDRESS, ArgumentRoom, CommandDevice
from .build import build
from .encoder import ENCODER, machine_constants
from .heaps import Heaps
from .library import MetalLibrary, load_library
from .objc import Objc
from .stream import MetalStream


class MetalGpu(CommandDevice[MetalStream]):
    """One device.

    Args:
        objc: the run time.
        device: the MTLDevice.

    Attributes:
        mapped: memory that the host writes at any time, and work of every stream may use. What is freed of it may be given out once no
            work uses it.
    """

    def __init__(self, objc: Objc, device: int) -> None:
        super().__init__(make_recorder(ENCODER, objc.address_of, SERVE_ADDRESS, machine_constants()))
        self._objc, self.device = objc, device
        self._libraries: list[MetalLibrary] = []
        self.mapped = Heaps(objc, device, lambda: self.streams)

    def load_helper(self, name: str) -> int:
        source = build(texts(name)).data.decode()
        self._libraries.append(load_library(self._objc, self.device, source, "of fills and copies"))
        return self._libraries[-1].function(name).handle

    def make_room(self, nbytes: int) -> ArgumentRoom:
        block = self.mapped.allocate(nbytes, "room for the arguments of launches is missing")
        return ArgumentRoom(block.host, block.address, block.buffer, partial(self.mapped.free, block.address))

    def stream(self, heaps: Heaps) -> MetalStream:
        """A new stream. ``heaps``: those that its work may use, besides those that all streams do."""
        return MetalStream(self, self._objc, self.device, lambda: tuple(h.handle for h in (*self.mapped.heaps, *heaps.heaps)))

    def release(self) -> None:
        """Give back what belongs to the device as long as the process lives."""
        self.mapped.release()
        for library in self._libraries:
            library.release()


_gpus: dict[int, MetalGpu] = {}
_lock = new_lock(sys.modules[__name__], "_lock")


def gpu(objc: Objc, device: int) -> MetalGpu:
    """The device behind an MTLDevice, the same for all programs of the process."""
    with _lock:
        if device not in _gpus:
            _gpus[device] = MetalGpu(objc, device)
        return _gpus[device]
