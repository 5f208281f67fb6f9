"""Host writes in a graph: as fills with numbers, which are part of the graph. A copy would read the host's memory when the graph runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

MOST = 64
"""Fills of one write."""


def fills(to: int, data: np.ndarray) -> list[tuple[int, int, int, int]] | None:
    """The fills that write some bytes to an address: address, word, count and width in bytes of each. None: more than ``MOST``.

    Args:
        to: the address.
        data: u8 of shape (n,), the bytes.
    """
    out = []
    whole = len(data) % 4 == 0 and to % 4 == 0
    for at, word, count, width in _runs(data.view(np.uint32) if whole else data):
        if len(out) == MOST:
            return None
        out.append((to + at, word, count, width))
    return out


def repeated(to: int, data: np.ndarray) -> list[tuple[int, int, int, int, int, int]]:
    """Fills that write a repeated number of 8 bytes, a vector or a struct: address, distance of rows, word, count and width in bytes of
    the words of each row, and rows. Empty: the bytes are no repetition of at most ``MOST`` words.
    """
    words = data.view(np.uint32) if len(data) % 4 == 0 and to % 4 == 0 else data[:0]
    for period in range(1, min(MOST, len(words) // 2) + 1):
        if len(words) % period == 0 and np.array_equal(words[period:], words[:-period]):
            rows = len(words) // period
            return [(to + 4 * k, 4 * period, int(word), 1, 4, rows) for k, word in enumerate(words[:period])]
    return []


def _runs(words: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    edges = [0, *(np.flatnonzero(words[1:] != words[:-1]) + 1).tolist(), len(words)]
    for first, end in pairwise(edges):
        yield first * words.itemsize, int(words[first]), end - first, words.itemsize
