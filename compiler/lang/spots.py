"""Where an access of a launch goes: which memory, and which indices of it are known."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..frontend.values import count
from ..ir.nodes import ArgDecl, Operand
from ..runtime.mirror import reading
from ..transforms.indexing import linear
from .near import NearArray, address_of

if TYPE_CHECKING:
    from ..runtime.device import Allocation, Device
    from ..transforms.access import Access
    from .call import Call
    from .kernel import Variant

Region = tuple["int | None", ...]
"""An index for each axis; None: any. Shorter than the axes: any for the rest."""

ANYWHERE: Region = ()

EXTERNAL = "external"
"""The category of memory that others own."""


class Spot(NamedTuple):
    """One scalar-valued array. Different offsets of one layout are different numbers; different layouts of one base may overlap.

    Attributes:
        base: the memory: the serial number of one of our allocations, or the address of somebody else's memory.
        layout: "" for our own memory; else where and how a view lies in it.
        offset: bytes from one element's start to this component.
    """

    base: object
    layout: object
    offset: int


def memory_of(tensor: Any) -> Allocation:
    """The allocation that a field or an ndarray lies in."""
    memory = getattr(tensor, "_memory", None)
    return tensor._places[0].buffer.owner if memory is None else memory


def memory_base(memory: Allocation) -> object:
    """The base of an allocation."""
    return memory.ptr if memory.category == EXTERNAL else memory.serial


def base_of(device: Device, array: Any, ours: bool = False) -> tuple[object, object]:
    """Base and layout of an array that a launch got; ``ours``: it is the memory of an ndarray of ours, and all of it."""
    address = address_of(array)
    own = device.owner(address)
    if own is not None:
        return own.serial, "" if ours else (address, array.shape, array.strides)
    return root_address(array), (address, array.shape, array.strides, array.dtype.str)


def argument_spot(device: Device, call: Call, index: int, offset: int) -> Spot | None:
    """The component at ``offset`` of an array argument; None when the array is empty."""
    array = call.sources.get(index, call.arrays[index])
    return Spot(*base_of(device, array, index in call.own), offset) if array.size else None


def access_spot(variant: Variant, call: Call, access: Access) -> tuple[Spot | None, Region]:
    """Where an access of a launch goes, and which indices of it are known; no spot for an empty array."""
    place, index, _ = access
    region = tuple(None if f is None else f.value(call) for f in forms(index))
    owner = place.buffer.owner
    if place.buffer.kind == "arg" and isinstance(owner, ArgDecl):
        return argument_spot(variant.program.device, call, owner.index, place.offset), region
    memory = variant.owners.get(place.buffer)
    return None if memory is None else Spot(memory_base(memory), "", place.offset), region


def root_address(array: Any) -> int:
    """The address of the array that a view is a part of."""
    if isinstance(array, NearArray):
        return array.address
    while isinstance(array.base, np.ndarray):
        array = array.base
    storage = getattr(array.base, "untyped_storage", None)  # numpy's view of a torch tensor
    return storage().data_ptr() if storage is not None else array.__array_interface__["data"][0]


def tensor_spots(tensor: Any) -> list[tuple[Spot, int]]:
    """The scalar-valued arrays of a field or an ndarray, each with the number of its axes."""
    memory = getattr(tensor, "_memory", None)
    if memory is not None:
        size, base = tensor.dtype.size, memory_base(memory)
        return [(Spot(base, "", k * size), len(tensor.shape)) for k in range(count(tensor.element_shape))]
    return [(Spot(memory_base(p.buffer.owner), "", p.offset), p.ndim) for p in tensor.__qd_value__().places]


@dataclass(frozen=True)
class Shown:
    """A field or an ndarray whose memory was handed out: somebody may write to it without a call of ours."""

    spots: tuple[Spot, ...]
    content: Callable[[], np.ndarray | None]  # None: the ndarray is gone


def shown(tensor: Any) -> Shown:
    """What must be watched of a tensor. An ndarray is not kept alive by it."""
    spots = tuple(spot for spot, _ in tensor_spots(tensor))
    if hasattr(tensor, "_memory"):
        held = weakref.ref(tensor)
        return Shown(spots, lambda: None if (alive := held()) is None else alive._content)
    form, mirror = tensor._form, tensor._mirror
    return Shown(spots, lambda: reading(mirror, form))


@dataclass(frozen=True, slots=True)
class Form:
    """An index as constant + sum(factor * argument) + sum(factor * extent)."""

    constant: int
    scalars: tuple[tuple[int, int], ...]  # (ArgDecl.index, factor)
    extents: tuple[tuple[int, int, int], ...]  # (ArgDecl.index, axis, factor)

    def value(self, call: Call) -> int:
        """The index in one launch."""
        out = self.constant
        for arg, factor in self.scalars:
            out += factor * int(call.scalars[arg])
        for arg, axis, factor in self.extents:
            out += factor * call.arrays[arg].shape[axis]
        return out


def form_of(x: Operand) -> Form | None:
    """The form of an index that the arguments of a launch decide; None: they do not."""
    found = linear(x)
    scalars: list[tuple[int, int]] = []
    extents: list[tuple[int, int, int]] = []
    for leaf, factor in found.leaves:
        kind, what = leaf if isinstance(leaf, tuple) else (None, None)
        if kind == "arg" and isinstance(what, ArgDecl):
            scalars.append((what.index, factor))
        elif kind == "shape" and isinstance(what, tuple) and isinstance(what[0], ArgDecl):
            extents.append((what[0].index, what[1], factor))
        else:
            return None
    return Form(found.constant, tuple(scalars), tuple(extents))


def forms(index: tuple[Operand, ...]) -> tuple[Form | None, ...]:
    """``form_of`` of each index."""
    return tuple(map(form_of, index))
