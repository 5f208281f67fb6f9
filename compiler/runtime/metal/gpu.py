"""An Apple GPU as all programs of the process use it: memory that both sides write, our own kernels, and the recorder."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import partial

from ...ir.threads import Living, new_lock
from . import native, transfers
from .heaps import Heap, HeapBlock, Heaps
from .library import MetalLibrary, load_library
from .objc import Objc
from .stream import MetalStream, MetalStreams, slow

_SLOW = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_uint64, *[ctypes.c_uint32] * 3, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64
)
_ENCODE = ctypes.PYFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * 3, *[ctypes.c_uint32] * 3, ctypes.c_uint64, ctypes.c_int64)
_REPLAY = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_uint64] * 3, *[ctypes.c_int64] * 2, ctypes.c_void_p)
_TAKE = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)
_GIVE = ctypes.PYFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)
_slow = _SLOW(slow)


class MetalGpu:
    """One device.

    Args:
        objc: the run time.
        device: the MTLDevice.

    Attributes:
        shared: what its streams have in common.
        launch_address, memset_address: of the recorder.
    """

    def __init__(self, objc: Objc, device: int) -> None:
        self._lock = new_lock(self, "_lock")
        self._streams = Living[MetalStream]()
        self._transfers: MetalLibrary | None = None
        self._retired: list[Heap] = []
        self._fill = ctypes.c_uint64()
        selectors = tuple((name, objc.selector(text)) for name, text in native.SELECTORS.items())
        slow_address = ctypes.cast(_slow, ctypes.c_void_p).value or 0
        made = native.recorder(native.Imports(objc.message_address, selectors, slow_address, ctypes.addressof(self._fill)))
        self.launch_address, self.memset_address = made.launch, made.memset
        functions = _TAKE(made.take), _GIVE(made.give), _ENCODE(made.encode), _REPLAY(made.replay)
        mapped = Heaps(objc, device, lambda heap: None, self._retired.append)
        self.shared = MetalStreams(objc, device, mapped, *functions, self._transfer)

    def prepare(self) -> None:
        """Load our own kernels, before the first stream is made.

        Raises:
            DeviceError: Metal refuses them.
        """
        with self._lock:
            if self._transfers is None:
                library = load_library(self.shared.objc, self.shared.device, transfers.source(), "of fills and copies")
                self._fill.value = library.function("qd_fill_4").handle
                self._transfers = library

    def _transfer(self, name: str) -> int:
        assert self._transfers is not None
        return self._transfers.function(name).handle

    # ---- streams
    def stream(self, heaps: Callable[[], list[Heap]]) -> MetalStream:
        """A new stream. ``heaps``: see ``MetalStream``."""
        stream = MetalStream(self.shared, heaps)
        self._streams.add(stream)
        return stream

    def drop(self, stream: MetalStream) -> None:
        """Close a stream.

        Raises:
            DeviceError: its work has failed.
        """
        try:
            stream.close()
        finally:
            self.settle()

    # ---- memory that both sides write. No stream is asked for while its lock or that of the memory is held
    def map_memory(self, nbytes: int, doing: str) -> HeapBlock:
        """Memory that work of every stream may use.

        Raises:
            DeviceError: see ``Heaps.allocate``.
        """
        block = self.shared.take_mapped(nbytes, doing)
        for stream in list(self._streams):
            stream.use(block.heap)
        self.settle()
        return block

    def settle(self) -> None:
        """Release heaps in which nothing lives, once no encoder that was told of them is left."""
        while self._retired:
            heap, left = self._retired.pop(), list(self._streams)
            if not left:
                self.shared.objc.send(heap.handle, "release")
            for stream in list(left):
                stream.later(partial(self._passed, heap, left))

    def _passed(self, heap: Heap, left: list[MetalStream]) -> None:
        left.pop()
        if not left:
            self.shared.objc.send(heap.handle, "release")


_gpus: dict[int, MetalGpu] = {}
_lock = new_lock(sys.modules[__name__], "_lock")


def gpu(objc: Objc, device: int) -> MetalGpu:
    """The device behind an MTLDevice, the same for all programs of the process.

    Raises:
        DeviceError: Metal refuses our own kernels.
    """
    with _lock:
        if device not in _gpus:
            _gpus[device] = MetalGpu(objc, device)
        found = _gpus[device]
    found.prepare()
    return found
