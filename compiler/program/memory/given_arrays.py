"""Marks of the numpy arrays and torch tensors that launches of a tape were given: what Python changes before their gradient is noticed.

A gradient reads these arrays again. A tape keeps a mark of the content of each at its launch, and compares before the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import DataAccessError
from ...ir.nodes import ArgDecl
from .device_arrays import NearArray
from .memory_regions import base_of

if TYPE_CHECKING:
    from ...passes.dependence.access import Access
    from ..call import Call
    from ..variant import Variant

MARKED = 1 << 16
"""Bytes that a mark is made of: all of an array of at most so many, else 8-byte words at equal distances."""
_FACTORS = np.random.default_rng(0).integers(1 << 63, size=MARKED // 8, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

HINT = "give the launch a copy, `{}(.., w.copy())`, or change the array after the tape"


def content_mark(array: np.ndarray) -> int:
    """A number that differs, but for a chance of 2^-64, where the content does: in ``MARKED`` bytes of it."""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = content[: content.size // 8 * 8].view(np.uint64)
    rest = content[words.size * 8 :].tobytes()
    if words.size > len(_FACTORS):
        words = words[:: -(-words.size // len(_FACTORS))]
    mark = int(np.dot(words, _FACTORS[: words.size]))
    return hash((mark, rest)) if rest else mark


class _Mark(NamedTuple):
    """An array of one launch. ``number``: of the launch."""

    number: int
    array: np.ndarray
    content: int
    read: Access
    variant: Variant


class GivenArrays:
    """The marks of one tape."""

    def __init__(self) -> None:
        self._marks: list[_Mark] = []
        self._reads: dict[int, tuple[Variant, dict[int, Access]]] = {}  # of each variant: the arrays that its gradient reads

    def __bool__(self) -> bool:
        return bool(self._marks)

    def mark(self, number: int, variant: Variant, call: Call) -> None:
        """Mark what launch ``number`` was given and its gradient reads again. What the launch writes itself is not marked."""
        known = self._reads.get(id(variant))
        if known is None:
            known = self._reads[id(variant)] = variant, _read_again(variant)
        for index, read in known[1].items():
            array = call.sources.get(index, call.arrays[index])
            if index not in call.own | call.parts and not isinstance(array, NearArray) and array.size:
                self._marks.append(_Mark(number, array, content_mark(array), read, variant))

    def check(self, written: Callable[[object, int], bool]) -> None:
        """Compare all arrays with their marks.

        Args:
            written: whether a launch after that of a number may have written to memory of this base.

        Raises:
            DataAccessError: one has changed; names the kernel and the argument.
        """
        for mark in self._changed():
            kernel, device = mark.variant.head.name, mark.variant.program.device
            if not written(base_of(device, mark.array)[0], mark.number):
                raise DataAccessError(
                    f"the gradient of `{kernel}` needs the values of the argument `{mark.read[0].name}` read here, but Python changed"
                    " the array after the launch, in the same tape",
                    getattr(mark.read[2], "loc", None),
                    HINT.format(kernel),
                )

    def _changed(self) -> Iterator[_Mark]:
        now: dict[object, int] = {}
        for mark in self._marks:
            array = mark.array
            key = array.__array_interface__["data"][0], array.shape, array.strides, array.dtype
            if key not in now:
                now[key] = content_mark(array)
            if now[key] != mark.content:
                yield mark


def _read_again(variant: Variant) -> dict[int, Any]:
    """The array arguments that the gradient reads again and the kernel does not write, each with one of these reads."""
    found: dict[int, Any] = {}
    for access in variant.replayed():
        owner = access[0].buffer.owner
        if access[0].buffer.kind == "arg" and isinstance(owner, ArgDecl):
            found.setdefault(owner.index, access)
    for place, _, _ in variant.compiled_kernel.writes:
        if place.buffer.kind == "arg" and isinstance(place.buffer.owner, ArgDecl):
            found.pop(place.buffer.owner.index, None)
    return found


__all__ = ["GivenArrays", "content_mark"]
