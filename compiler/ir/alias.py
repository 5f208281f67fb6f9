"""Which places can be the same memory.

Distinct components of one buffer never overlap when their layouts prove it. Two ndarray arguments may be the same array, passed
twice: then they have one type, one number of axes and one element size. Arrays that overlap in part are the caller's fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from .nodes import Buffer, Place

_ARGS = ("arg", "arg_grad", "arg_dual")


def base(buffer: Buffer) -> object:
    """What a launch supplies one address for: buffers with equal bases are the same bytes."""
    if buffer.kind in ("field", "block"):
        return buffer
    return (buffer.kind, buffer.owner) if buffer.kind in _ARGS else buffer.kind


def same_array(p: Place, q: Place) -> bool:
    """Whether equal indices of ``p`` and ``q`` are certainly the same element: one component, perhaps described twice."""
    if p is q:
        return True
    layout = (p.dtype, p.ndim, p.offset, p.strides, p.shape, p.elem_bytes)
    return base(p.buffer) == base(q.buffer) and layout == (q.dtype, q.ndim, q.offset, q.strides, q.shape, q.elem_bytes)


def may_alias(p: Place, q: Place) -> bool:
    """Whether some element of ``p`` can share bytes with some element of ``q``."""
    if p is q:
        return True
    if base(p.buffer) == base(q.buffer):
        return not (_apart(p, q) or _interleaved(p, q))
    if not (p.buffer.kind in _ARGS and q.buffer.kind in _ARGS) or p.buffer.owner is q.buffer.owner:
        return False  # fields, temporaries and an argument's own gradient and dual are different allocations
    return (p.dtype, p.ndim, p.elem_bytes) == (q.dtype, q.ndim, q.elem_bytes) and not _interleaved(p, q)


def _steps(p: Place) -> tuple[int, ...]:
    """Distances in bytes of which every distance between two elements is a sum."""
    return (p.elem_bytes,) if p.strides is None else p.strides


def _apart(p: Place, q: Place) -> bool:
    """Whether the byte ranges of two places of one buffer are disjoint."""
    ranges = []
    for x in (p, q):
        if x.shape is None or x.strides is None:
            return False
        last = sum((n - 1) * s for n, s in zip(x.shape, x.strides))
        ranges.append((x.offset, x.offset + last + x.dtype.size))
    (a, a_end), (b, b_end) = ranges
    return a_end <= b or b_end <= a


def _interleaved(p: Place, q: Place) -> bool:
    """Whether two places keep different bytes of every element: an array of structs."""
    period = gcd(*_steps(p), *_steps(q))
    if period == 0:  # no axes: one element each
        return p.offset + p.dtype.size <= q.offset or q.offset + q.dtype.size <= p.offset
    distance = (q.offset - p.offset) % period
    return distance >= p.dtype.size and period - distance >= q.dtype.size


class Aliases:
    """For each place, the places among ``places`` that may share memory with it (itself included); found once each."""

    def __init__(self, places: Iterable[Place]) -> None:
        self.all = self._places = list(dict.fromkeys(places))
        self._known: dict[Place, list[Place]] = {}

    def of(self, place: Place) -> list[Place]:
        """What a write to ``place`` may change."""
        if place not in self._known:
            self._known[place] = [q for q in self._places if may_alias(place, q)]
        return self._known[place]
