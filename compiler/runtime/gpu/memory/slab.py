"""Small blocks cut from larger ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from ...host_memory import ALIGNMENT


def rounded(nbytes: int) -> int:
    """Bytes up to the next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(eq=False, slots=True)
class Chunk:
    """A block that smaller ones are cut from. ``top``: bytes given out at least once; ``live``: blocks in use."""

    base: int
    nbytes: int
    top: int = 0
    live: int = 0


class Slab:
    """Small blocks out of chunks, 64 bytes apart.

    A freed block waits in the bin of its size and is the next one of this size given out. A chunk goes back when nothing of it is in use;
    one empty chunk stays, so that a block that comes and goes does not take its chunk along. ``drop`` None: no chunk ever goes back.
    """

    def __init__(self, make: Callable[[int], int], drop: Callable[[int], None] | None, chunk_bytes: int) -> None:
        self._make, self._drop, self._chunk_bytes = make, drop, chunk_bytes
        self._chunks: list[Chunk] = []
        self._bins: defaultdict[int, list[tuple[int, Chunk]]] = defaultdict(list)
        self._live: dict[int, tuple[int, Chunk]] = {}

    @property
    def reserved(self) -> int:
        """Bytes of all chunks."""
        return sum(c.nbytes for c in self._chunks)

    def allocate(self, nbytes: int) -> int:
        """A block of at least so many bytes, not cleared."""
        size = rounded(nbytes)
        if self._bins[size]:
            address, chunk = self._bins[size].pop()
        else:
            chunk = next((c for c in self._chunks if c.nbytes - c.top >= size), None) or self._new_chunk(size)
            address = chunk.base + chunk.top
            chunk.top += size
        chunk.live += 1
        self._live[address] = size, chunk
        return address

    def owns(self, address: int) -> bool:
        """Whether a block at this address is in use."""
        return address in self._live

    def free(self, address: int) -> None:
        """Take a block back."""
        size, chunk = self._live.pop(address)
        chunk.live -= 1
        self._bins[size].append((address, chunk))
        if not chunk.live and self._drop is not None and sum(not c.live for c in self._chunks) > 1:
            self._release(chunk)

    def trim(self) -> None:
        """Give every chunk back that nothing uses."""
        for chunk in [c for c in self._chunks if not c.live and self._drop is not None]:
            self._release(chunk)

    def release(self) -> None:
        """Free every chunk, even if it is in use."""
        chunks, self._chunks = self._chunks, []
        self._bins.clear()
        self._live.clear()
        if self._drop is not None:
            for chunk in chunks:
                self._drop(chunk.base)

    def _new_chunk(self, size: int) -> Chunk:
        nbytes = max(size, self._chunk_bytes)
        chunk = Chunk(self._make(nbytes), nbytes)
        self._chunks.append(chunk)
        return chunk

    def _release(self, chunk: Chunk) -> None:
        self._chunks.remove(chunk)
        for size in list(self._bins):
            self._bins[size] = [(a, c) for a, c in self._bins[size] if c is not chunk]
        assert self._drop is not None
        self._drop(chunk.base)
