"""Copies between the host and the device, through memory that both see."""

from __future__ import annotations

import ctypes

from .buffers import Block
from .stream import Stream

INLINE = 16 << 10
"""Bytes that are written into the command buffer itself."""
PART = 2 << 20
"""Bytes of a staging buffer."""


class Transfers:
    """The copies of one stream, in its order. Two buffers take turns on the way to the device, and a third is for the way back."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._up: list[Block] = []
        self._busy = [0, 0]  # the values after which the device is done with these
        self._turn, self._at = 0, 0
        self._down: Block | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the staging buffers."""
        return sum(block.nbytes for block in (*self._up, *filter(None, [self._down])))

    def close(self) -> None:
        """Give the buffers back; the stream must be empty."""
        for block in (*self._up, *filter(None, [self._down])):
            self._stream.shared.buffers.destroy(block)
        self._up, self._down = [], None

    def upload(self, to: Block, offset: int, source: int, nbytes: int) -> None:
        """Host to device. The source may change on return.

        Raises:
            DeviceError: the device has failed, or there is no memory for a staging buffer.
        """
        stream, recorder = self._stream, self._stream.shared.recorder
        doing = f"a copy of {nbytes:,} bytes to the device failed"
        if nbytes <= INLINE and nbytes % 4 == 0 and offset % 4 == 0:
            stream.check(recorder.update(stream.handle, to.number, offset, nbytes, source), doing)
            return
        with stream.lock:
            for at in range(0, nbytes, PART):
                size = min(PART, nbytes - at)
                block = self._room(size)
                ctypes.memmove(block.host + self._at, source + at, size)
                here = block.address - block.base + self._at
                stream.check(recorder.copy(stream.handle, block.number, here, to.number, offset + at, size), doing)
                self._busy[self._turn] = stream.pending()
                self._at += -(-size // 64) * 64

    def _room(self, nbytes: int) -> Block:
        """The staging buffer that has room for so many bytes at ``_at``."""
        if self._up and self._at + nbytes <= PART:
            return self._up[self._turn]
        self._turn, self._at = (self._turn + 1) % 2 if self._up else 0, 0
        while len(self._up) <= self._turn:
            self._up.append(self._stream.shared.buffers.make(PART, "host"))
        if self._busy[self._turn] > self._stream.done():
            self._stream.submit()
            self._stream.wait(self._busy[self._turn])
        return self._up[self._turn]

    def download(self, to: int, source: Block, offset: int, nbytes: int) -> None:
        """Device to host, at the end of the stream. The bytes are there on return.

        Raises:
            DeviceError: the device, or what was in the stream, has failed; or there is no memory for a staging buffer.
        """
        stream = self._stream
        doing = f"a copy of {nbytes:,} bytes from the device failed"
        with stream.lock:
            if self._down is None:
                self._down = stream.shared.buffers.make(PART, "host")
            block = self._down
            here = block.address - block.base
            for at in range(0, nbytes, PART):
                size = min(PART, nbytes - at)
                code = stream.shared.recorder.copy(stream.handle, source.number, offset + at, block.number, here, size)
                stream.check(code, doing)
                stream.synchronize()
                ctypes.memmove(to + at, block.host, size)
