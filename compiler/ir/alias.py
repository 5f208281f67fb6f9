"""Which places can be the same memory.

Distinct components of one buffer never overlap when their layouts prove it. Two ndarray arguments may be the same array, passed
twice: then they have one type, one number of axes and one element size. Arrays that overlap in part are the caller's fault.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from math import gcd

from .nodes import Buffer, Const, Operand, Place

_ARGS = ("arg", "arg_grad", "arg_dual")


def base(buffer: Buffer) -> object:
    """The key of a buffer in a launch: buffers with equal keys have the same address."""
    if buffer.kind in ("field", "block"):
        return buffer
    return (buffer.kind, buffer.owner) if buffer.kind in _ARGS else buffer.kind


def array_of(p: Place) -> object:
    """Equal for places of which equal indices are certainly the same element: one component, perhaps described twice."""
    return base(p.buffer), p.dtype, p.ndim, p.offset, p.strides, p.shape, p.elem_bytes, p.trial_bytes


def same_array(p: Place, q: Place) -> bool:
    """Whether equal indices of ``p`` and ``q`` are certainly the same element."""
    return p is q or array_of(p) == array_of(q)


def may_alias(p: Place, q: Place) -> bool:
    """Whether some element of ``p`` can share bytes with some element of ``q``."""
    if p is q:
        return True
    if base(p.buffer) == base(q.buffer):
        return not (_apart(p, q) or _interleaved(p, q))
    if not (p.buffer.kind in _ARGS and q.buffer.kind in _ARGS) or p.buffer.owner is q.buffer.owner:
        return False  # fields, temporaries and an argument's own gradient and dual are different allocations
    return (p.dtype, p.ndim, p.elem_bytes) == (q.dtype, q.ndim, q.elem_bytes) and not _interleaved(p, q)


def may_meet(p: Place, at: tuple[Operand, ...], q: Place, there: tuple[Operand, ...]) -> bool:
    """Whether an element of ``p`` can share bytes with one of ``q``: not if along an axis of one array the indices differ by a literal."""
    if not may_alias(p, q):
        return False
    return not (same_array(p, q) and any(x is y and a != b for (x, a), (y, b) in zip(map(_parts, at), map(_parts, there))))


def _parts(x: Operand) -> tuple[Operand | None, object]:
    """An index as a value and a literal that is added to it."""
    if isinstance(x, Const):
        return None, x.value
    if x.op == "add" and isinstance(x.args[1], Const):
        return x.args[0], x.args[1].value
    return x, 0


def _steps(p: Place) -> tuple[int, ...]:
    """Distances in bytes of which every distance between two elements is a sum."""
    blocks = () if p.pool is None else (p.pool.stride,)
    return (p.elem_bytes,) if p.strides is None else (*p.strides, *blocks)


def _apart(p: Place, q: Place) -> bool:
    """Whether the byte ranges of two places of one buffer are disjoint."""
    ranges = []
    for x in (p, q):
        if x.shape is None or x.strides is None:
            return False
        extents = x.shape if x.pool is None else x.pool.sizes
        last = sum((n - 1) * s for n, s in zip(extents, x.strides))
        last += 0 if x.pool is None else (x.pool.blocks - 1) * x.pool.stride
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
    """For each place, the places among ``places`` that may share memory with it (itself included); found once each.

    Places are sorted by layout, and those of one layout by offset: the thousand components of a large matrix are not compared in pairs.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self.all = self._places = list(dict.fromkeys(places))
        self._known: dict[Place, list[Place]] = {}
        layouts: dict[object, dict[object, list[int]]] = {}
        for number, p in enumerate(self._places):
            layouts.setdefault(_memory(p), {}).setdefault(_layout(p), []).append(number)
        self._layouts = {
            memory: {layout: _Offsets(self._places, numbers) for layout, numbers in found.items()}
            for memory, found in layouts.items()
        }

    def of(self, place: Place) -> list[Place]:
        """The places that a write to ``place`` may change."""
        if place not in self._known:
            numbers: list[int] = []
            for layout, offsets in self._layouts.get(_memory(place), {}).items():
                numbers += offsets.near(place) if layout == _layout(place) else offsets.numbers
            near = [self._places[number] for number in sorted(numbers)]
            self._known[place] = [q for q in near if may_alias(place, q)]
        return self._known[place]


class _Offsets:
    """Places of one layout, by their numbers."""

    def __init__(self, places: list[Place], numbers: list[int]) -> None:
        self.numbers = numbers
        first = places[numbers[0]]
        self._size, self._period = first.dtype.size, gcd(*_steps(first))
        reach = (
            None
            if first.shape is None or first.strides is None or first.pool is not None
            else sum((n - 1) * s for n, s in zip(first.shape, first.strides))
        )
        self._span = None if reach is None else max(reach, 0) + self._size
        self._by_offset = sorted((places[n].offset, n) for n in numbers)
        self._by_phase = sorted((places[n].offset % self._period, n) for n in numbers) if self._period else []

    def near(self, place: Place) -> list[int]:
        """The places that may overlap a place of this layout, by their offsets."""
        ranges: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]] = []
        if self._span is not None:
            ranges.append((self._by_offset, [_within(self._by_offset, place.offset, self._span)]))
        if self._period:
            phases = (place.offset % self._period + turn for turn in (-self._period, 0, self._period))
            ranges.append((self._by_phase, [_within(self._by_phase, phase, self._size) for phase in phases]))
        if not ranges:
            return self.numbers
        ordered, parts = min(ranges, key=lambda r: sum(end - begin for begin, end in r[1]))
        return list(dict.fromkeys(n for begin, end in parts for _, n in ordered[begin:end]))


def _within(ordered: list[tuple[int, int]], at: int, distance: int) -> tuple[int, int]:
    """The range of the offsets within a given distance."""
    return bisect_left(ordered, (at - distance + 1, -1)), bisect_left(ordered, (at + distance, -1))


def _memory(p: Place) -> object:
    """The key of places that may share memory."""
    return "argument" if p.buffer.kind in _ARGS else base(p.buffer)


def _layout(p: Place) -> object:
    """All that decides which bytes a place takes, beside its offset."""
    return p.dtype.size, p.ndim, p.shape, p.strides, p.elem_bytes, p.pool and (p.pool.slots, p.pool.stride)
