"""Marks of memory that Python may write to unseen: numpy arrays and torch tensors that the launches of a tape were given, and fields and
ndarrays whose memory was handed out, as by ``x.view``. What Python changes before their gradient is noticed.

A gradient reads these arrays again. A tape keeps a mark of the content of each at its launch, and compares before the gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np

from ...errors import DataAccessError
from ...ir.nodes import ArgDecl, Loc
from .device_arrays import NearArray
from .effects import Effect, accesses_of
from .memory_regions import ExportedMemory, MemoryRegion, base_of

if TYPE_CHECKING:
    from ..call import Call
    from ..variant import Variant

MARKED = 1 << 16
"""Bytes that a mark is made of: all of an array of at most so many, else 8-byte words at equal distances."""
_FACTORS = np.random.default_rng(0).integers(1 << 63, size=MARKED // 8, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

HINT = "give the launch a copy, `{}(.., w.copy())`, or change the array after the tape"
HINT_OF_VIEW = "change it by `x[i] = ..`, `x.fill(..)` or `x.from_numpy(..)`, which a tape follows, or after the tape"


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
    read: Effect
    variant: Variant


class _ExportMark(NamedTuple):
    """Memory that was handed out, after launch ``number``, or as this found it."""

    number: int
    array: np.ndarray
    content: int
    spots: tuple[MemoryRegion, ...]


AnyMark = TypeVar("AnyMark", _Mark, _ExportMark)


class Read(Protocol):
    """A read of a gradient, as messages name it."""

    name: str
    kernel: str
    loc: Loc | None


class TapeWrites(Protocol):
    """What the gradients of a tape read, and its launches and assignments write."""

    def wrote_after(self, base: object, launch: int) -> bool:
        """Whether something after a launch may have written to memory of this base."""
        ...

    def wrote_region_after(self, spot: MemoryRegion, launch: int) -> bool:
        """Whether something after a launch may have written to this region."""
        ...

    def read_by(self, spot: MemoryRegion, launch: int) -> Read | None:
        """What the gradient of a launch, or of one before, reads there again."""
        ...


class GivenArrays:
    """The marks of one tape."""

    def __init__(self) -> None:
        self._marks: list[_Mark] = []
        self._shown: list[_ExportMark] = []

    def __bool__(self) -> bool:
        return bool(self._marks or self._shown)

    @property
    def shown(self) -> bool:
        """Whether memory that was handed out is marked."""
        return bool(self._shown)

    def mark(self, number: int, variant: Variant, call: Call) -> None:
        """Mark what launch ``number`` was given and its gradient reads again. What the launch writes itself is not marked."""
        for index, read in read_again(variant).items():
            array = call.sources.get(index, call.arrays[index])
            if index not in call.own | call.parts and not isinstance(array, NearArray) and array.size:
                self._marks.append(_Mark(number, array, content_mark(array), read, variant))

    def mark_shown(self, number: int, shown: Iterable[ExportedMemory], reads: Collection[MemoryRegion]) -> None:
        """Mark the memory that was handed out and that the gradient of launch ``number`` reads again."""
        for one in shown:
            if any(spot in reads for spot in one.spots):
                self.show(number, one)

    def show(self, number: int, shown: ExportedMemory) -> None:
        """Mark memory that was handed out, as launch ``number`` and those before it have left it, or found it."""
        array = shown.content() if shown.on_host else None
        if array is not None and array.size:
            self._shown.append(_ExportMark(number, array, content_mark(array), shown.spots))

    def check(self, found: TapeWrites) -> None:
        """Compare all arrays with their marks.

        Raises:
            DataAccessError: one has changed, and nothing in the tape writes to it later; names the kernel and the array.
        """
        for mark in self._changed(self._shown):
            read = next((read for spot in mark.spots if (read := found.read_by(spot, mark.number)) is not None), None)
            if read is not None and not any(found.wrote_region_after(spot, mark.number) for spot in mark.spots):
                raise DataAccessError(
                    f"the gradient of `{read.kernel}` needs the values of `{read.name}` read here, but Python changed them after the"
                    " launch, in the same tape, through memory that was handed out (`x.view`, `to_numpy(copy=False)`)",
                    read.loc,
                    HINT_OF_VIEW,
                )
        for mark in self._changed(self._marks):
            if not found.wrote_after(base_of(mark.variant.program.device, mark.array)[0], mark.number):
                raise changed_array(mark.variant, mark.read)

    @staticmethod
    def _changed(marks: Iterable[AnyMark]) -> Iterator[AnyMark]:
        now: dict[object, int] = {}
        for mark in marks:
            array = mark.array
            key = array.__array_interface__["data"][0], array.shape, array.strides, array.dtype
            if key not in now:
                now[key] = content_mark(array)
            if now[key] != mark.content:
                yield mark


def changed_array(variant: Variant, read: Effect) -> DataAccessError:
    """The error of a launch that was given an array which Python has changed since. ``read``: what reads it again."""
    kernel = variant.head.name
    return DataAccessError(
        f"the gradient of `{kernel}` needs the values of the argument `{read.place.name}` read here, but Python changed"
        " the array after the launch, in the same tape",
        read.loc,
        HINT.format(kernel),
    )


def read_again(variant: Variant) -> dict[int, Effect]:
    """The array arguments that the gradient reads again and the kernel does not write, each with a read of it. The variant keeps them."""
    if "given" in variant.accesses:
        return variant.accesses["given"]
    found: dict[int, Effect] = {}
    for effect in accesses_of(variant, "repeats"):
        owner = effect.place.buffer.owner
        if effect.place.buffer.kind == "arg" and isinstance(owner, ArgDecl):
            found.setdefault(owner.index, effect)
    for effect in accesses_of(variant, "writes"):
        owner = effect.place.buffer.owner
        if effect.place.buffer.kind == "arg" and isinstance(owner, ArgDecl):
            found.pop(owner.index, None)
    variant.accesses["given"] = found
    return found


__all__ = ["GivenArrays", "changed_array", "content_mark", "read_again"]
