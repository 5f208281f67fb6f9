"""Copies between the host and the device, through memory that both see."""

from __future__ import annotations

import ctypes

from ...errors import DeviceError
from .buffers import DeviceBuffer
from .results import OUT_OF_DEVICE_MEMORY
from .stream import VulkanStream

INLINE = 16 << 10
"""Bytes that are written into the command buffer itself."""
PART, LEAST = 2 << 20, 64 << 10
"""Bytes of a staging buffer; at least so many where memory is short."""


class Transfers:
    """The copies of one stream, in its order. Two buffers take turns on the way to the device, and a third is for the way back."""

    def __init__(self, stream: VulkanStream) -> None:
        self._stream = stream
        self._up: list[DeviceBuffer] = []
        self._busy = [0, 0]  # the values after which the device is done with these
        self._turn, self._at = 0, 0
        self._down: DeviceBuffer | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the staging buffers."""
        return sum(block.nbytes for block in (*self._up, *filter(None, [self._down])))

    def close(self) -> None:
        """Give the buffers back; the stream must be empty."""
        for block in (*self._up, *filter(None, [self._down])):
            self._stream.shared.buffers.destroy(block)
        self._up, self._down = [], None

    def upload(self, to: DeviceBuffer, offset: int, source: int, nbytes: int) -> None:
        """Host to device. The source may change on return.

        Raises:
            DeviceError: the device has failed, or there is no memory for a staging buffer.
        """
        stream, own = self._stream, self._stream.device.recorder.own
        doing = f"a copy of {nbytes:,} bytes to the device failed"
        if nbytes <= INLINE and nbytes % 4 == 0 and offset % 4 == 0:
            stream.check(own["update"](stream.handle, to.number, offset, nbytes, source), doing)
            return
        with stream.lock:
            at = 0
            while at < nbytes:
                block, size = self._room(nbytes - at)
                ctypes.memmove(block.host + self._at, source + at, size)
                here = block.address - block.base + self._at
                stream.check(own["copy"](stream.handle, block.number, here, to.number, offset + at, size), doing)
                self._busy[self._turn] = stream.pending()
                self._at += -(-size // 64) * 64
                at += size

    def _room(self, nbytes: int) -> tuple[DeviceBuffer, int]:
        """The staging buffer that is filled next, and how many of so many bytes it has room for at ``_at``."""
        if not self._up:
            self._up = [self._make()]
        block = self._up[self._turn]
        if self._at + min(nbytes, block.nbytes) <= block.nbytes:
            return block, min(nbytes, block.nbytes)
        self._turn, self._at = 1 - self._turn, 0
        if self._turn == len(self._up):
            self._up.append(self._make())
        if self._busy[self._turn] > self._stream.done():
            self._stream.submit()
            self._stream.wait(self._busy[self._turn])
        block = self._up[self._turn]
        return block, min(nbytes, block.nbytes)

    def _make(self) -> DeviceBuffer:
        """A staging buffer."""
        size = PART
        while True:
            try:
                return self._stream.shared.buffers.make(size, "host")
            except DeviceError as e:
                if e.code != OUT_OF_DEVICE_MEMORY or size <= LEAST:
                    raise
                size //= 2

    def download(self, to: int, source: DeviceBuffer, offset: int, nbytes: int) -> None:
        """Device to host, at the end of the stream. The bytes are there on return.

        Raises:
            DeviceError: the device, or what was in the stream, has failed; or there is no memory for a staging buffer.
        """
        stream = self._stream
        doing = f"a copy of {nbytes:,} bytes from the device failed"
        with stream.lock:
            block = self._down = self._down or self._make()
            here = block.address - block.base
            for at in range(0, nbytes, block.nbytes):
                size = min(block.nbytes, nbytes - at)
                code = stream.device.recorder.own["copy"](stream.handle, source.number, offset + at, block.number, here, size)
                stream.check(code, doing)
                stream.synchronize()
                ctypes.memmove(to + at, block.host, size)
