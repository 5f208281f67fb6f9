"""The memory region of each access of a launch, and the indices that are known."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from ...frontend.values.values import count
from ...runtime.base import Allocation
from ...runtime.mirror import reading
from .device_arrays import NearArray, address_of

if TYPE_CHECKING:
    from ...runtime.base import Device
    from ..call import Call

IndexPattern = tuple["int | None", ...]
"""An index for each axis; None: any. Shorter than the axes: any for the rest."""

ANYWHERE: IndexPattern = ()

EXTERNAL = "external"
"""The category of memory that others own."""


def patterns_meet(one: IndexPattern, other: IndexPattern) -> bool:
    """Whether an element may fit both."""
    return all(a is None or b is None or a == b for a, b in zip(one, other))


class PlacedArray(Protocol):
    """An ndarray, as the program knows it."""

    _memory: Allocation
    _view: np.ndarray

    @property
    def address(self) -> int:
        """The address of the first element."""
        ...

    @property
    def grad(self) -> PlacedArray | None:
        """Its gradient."""
        ...


class MemoryRegion(NamedTuple):
    """One scalar-valued array. Different offsets of one layout are different numbers; different layouts of one base may overlap.

    Attributes:
        base: the memory: the serial number of one of our allocations, or the address of foreign memory.
        layout: "" for our own memory; else where and how a view lies in it.
        offset: bytes from one element's start to this component.
    """

    base: object
    layout: object
    offset: int


T = TypeVar("T")


class RegionTable(Generic[T]):
    """Values by memory region."""

    def __init__(self) -> None:
        self._of: dict[object, dict[tuple[object, int], T]] = {}  # base -> (layout, offset)

    def __bool__(self) -> bool:
        return bool(self._of)

    def __contains__(self, base: object) -> bool:
        return base in self._of

    def items(self) -> Iterator[tuple[MemoryRegion, T]]:
        """Every value with its region."""
        for base, layouts in self._of.items():
            for (layout, offset), found in layouts.items():
                yield MemoryRegion(base, layout, offset), found

    def of_base(self, base: object) -> Iterable[T]:
        """The values of all regions in some memory."""
        return self._of.get(base, {}).values()

    def at(self, region: MemoryRegion, make: Callable[[], T]) -> T:
        """The value of a region, which is made when it is first asked for."""
        layouts, key = self._of.setdefault(region.base, {}), region[1:]
        if key not in layouts:
            layouts[key] = make()
        return layouts[key]

    def put(self, region: MemoryRegion, value: T) -> None:
        """Replace the value of a region."""
        self._of.setdefault(region.base, {})[region[1:]] = value

    def overlapping(self, region: MemoryRegion) -> Iterator[tuple[MemoryRegion, T, bool]]:
        """The values whose regions may overlap one: with their own region, and whether it is the same, so that indices can be compared."""
        layouts = self._of.get(region.base, {})
        if region[1:] in layouts:
            yield region, layouts[region[1:]], True
        for (layout, offset), found in layouts.items():
            if layout != region.layout and may_meet(layout, region.layout):  # views of one array may overlap
                yield MemoryRegion(region.base, layout, offset), found, False


def memory_of(tensor: Any) -> Allocation:
    """The allocation that a field or an ndarray lies in."""
    memory = getattr(tensor, "_memory", None)
    return tensor._places[0].buffer.owner if memory is None else memory


def memory_base(memory: Allocation) -> object:
    """The base of an allocation."""
    return memory.ptr if memory.category == EXTERNAL else memory.serial


def base_of(device: Device, array: Any, ours: bool = False) -> tuple[object, object]:
    """Base and layout of an array argument; ``ours``: it is the whole memory of an ndarray of the program."""
    address = address_of(array)
    own = device.owner(address)
    if own is not None:
        return own.serial, "" if ours else (address, array.shape, array.strides)
    return root_address(array), (address, array.shape, array.strides, array.dtype.str)


def may_meet(one: object, other: object) -> bool:
    """Whether two different layouts of one base may have bytes in common: not those of two views that lie apart."""
    spans = [_span(layout) for layout in (one, other)]
    first, second = spans
    return first is None or second is None or (first[0] < second[1] and second[0] < first[1])


def _span(layout: object) -> tuple[int, int] | None:
    """The bytes that a view lies in; None: any of the base."""
    if not isinstance(layout, tuple):
        return None
    address, shape, strides = layout[:3]
    if not shape or min(strides) <= 0:
        return None
    return address, address + sum((extent - 1) * stride for extent, stride in zip(shape, strides)) + min(strides)


def argument_region(device: Device, call: Call, index: int, offset: int) -> MemoryRegion | None:
    """The component at ``offset`` of an array argument; None when the array is empty."""
    array = call.sources.get(index, call.arrays[index])
    return MemoryRegion(*base_of(device, array, index in call.own), offset) if array.size else None


def root_address(array: Any) -> int:
    """The address of the array that a view is a part of."""
    if isinstance(array, NearArray):
        return array.address
    while isinstance(array.base, np.ndarray):
        array = array.base
    storage = getattr(array.base, "untyped_storage", None)  # numpy's view of a torch tensor
    return storage().data_ptr() if storage is not None else array.__array_interface__["data"][0]


def tensor_regions(tensor: Any) -> list[tuple[MemoryRegion, int]]:
    """The scalar-valued arrays of a field or an ndarray, each with the number of its axes."""
    memory = getattr(tensor, "_memory", None)
    if memory is not None:
        size, base = tensor.dtype.size, memory_base(memory)
        return [(MemoryRegion(base, "", k * size), len(tensor.shape)) for k in range(count(tensor.element_shape))]
    return [(MemoryRegion(memory_base(p.buffer.owner), "", p.offset), p.ndim) for p in tensor.__qd_value__().places]


@dataclass(frozen=True)
class ExportedMemory:
    """A field or an ndarray with escaped memory: other code may write to it without the program's knowledge."""

    spots: tuple[MemoryRegion, ...]
    content: Callable[[], np.ndarray | None]  # None: the ndarray is gone
    on_host: bool  # the content is the memory itself, no copy


def shown(tensor: Any) -> ExportedMemory:
    """The memory of a tensor that is watched. It does not keep an ndarray alive."""
    spots = tuple(spot for spot, _ in tensor_regions(tensor))
    if hasattr(tensor, "_memory"):
        held = weakref.ref(tensor)
        content = lambda: None if (alive := held()) is None else alive._content  # noqa: E731
        return ExportedMemory(spots, content, tensor._mirror is None)
    form, mirror = tensor._form, tensor._mirror
    return ExportedMemory(spots, lambda: reading(mirror, form), mirror is None)


@dataclass(eq=False, slots=True)
class NdarrayAllocation(Allocation):
    """The memory of an ndarray that kernels refer to by name. It keeps the ndarray, and so the memory, alive."""

    holder: object = None
