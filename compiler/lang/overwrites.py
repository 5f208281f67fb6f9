"""Over several launches: was a value that a gradient must read again overwritten in between?

Within one kernel ``transforms.access`` answers that. Over a tape the answer depends on the arguments: ``x[t + 1]`` of one launch is
``x[t]`` of the next, and neither is overwritten. So each access is described, for each launch, by the indices that are sums of literals
and scalar arguments; a later write is a conflict unless one of these differs. Everything is vectorised over the launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataAccessError
from ..frontend.syntax import Template
from ..ir.nodes import ArgDecl, Loc, Operand
from ..transforms.access import Access
from ..transforms.indexing import linear
from .ndarray import Ndarray

if TYPE_CHECKING:
    from .kernel import Kernel, Variant

Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]
Axes = tuple["np.ndarray | None", ...]
Spot = tuple[object, ...]  # one scalar-valued array in memory


@dataclass(eq=False)
class _Use:
    """One access of a kernel in several launches: when, and the indices that are known (None: anything)."""

    when: np.ndarray
    axes: Axes
    name: str
    kernel: str
    loc: Loc | None


def check_overwrites(launches: list[Launch], host_writes: list[tuple[int, Any]]) -> None:
    """Refuse a tape whose gradients would read changed values. ``host_writes``: how many launches came before, and what was written.

    Raises:
        DataAccessError: naming the array, the line that reads it and the line that overwrites it.
    """
    reads: dict[Spot, list[_Use]] = {}
    writes: dict[Spot, list[_Use]] = {}
    for group in _groups(launches):
        group.collect(reads, writes)
    for before, tensor in host_writes:
        for spot in _spots(tensor):
            # between launch ``before - 1`` and launch ``before``
            writes.setdefault(spot, []).append(_Use(np.array([before - 0.5]), (), "", "Python", None))
    for spot, uses in reads.items():
        for read in uses:
            for write in writes.get(spot, ()):
                if _conflict(read, write):
                    raise _error(read, write)


def _conflict(read: _Use, write: _Use) -> bool:
    """Whether some launch writes what an earlier launch reads."""
    if write.when[-1] <= read.when[0]:
        return False
    shared = [k for k, (a, b) in enumerate(zip(read.axes, write.axes)) if a is not None and b is not None]
    if not shared:
        return True
    last: dict[tuple[int, ...], float] = {}
    for key, when in zip(zip(*(_values(write, k) for k in shared)), write.when.tolist()):
        last[key] = when
    return any(last.get(key, -1.0) > when for key, when in zip(zip(*(_values(read, k) for k in shared)), read.when.tolist()))


def _values(use: _Use, axis: int) -> list[int]:
    known = use.axes[axis]
    assert known is not None
    return known.tolist()


def _error(read: _Use, write: _Use) -> DataAccessError:
    line = f", line {write.loc.line} (`{write.loc.text.strip()}`)," if write.loc else ""
    who = "Python" if write.kernel == "Python" else f"a later launch of `{write.kernel}`{line}"
    return DataAccessError(
        f"the gradient of `{read.kernel}` needs the value of `{read.name}` read here, but {who} overwrites it in the same tape",
        read.loc,
        "write to another field (for time steps: give the field a leading time axis), or use one tape for each part",
    )


# ---- launches that differ in their scalars only
@dataclass(eq=False)
class _Group:
    kernel: Kernel
    variant: Variant
    tensors: dict[str, Any]  # arguments that are not numbers, by parameter
    when: list[int]
    scalars: dict[str, list[int]]

    def collect(self, reads: dict[Spot, list[_Use]], writes: dict[Spot, list[_Use]]) -> None:
        """Add the group's accesses: what its gradient reads again, and what it writes."""
        for target, accesses in ((reads, self.variant.replayed()), (writes, self.variant.recipe.writes)):
            seen: set[object] = set()
            for access in accesses:
                spot = self._spot(access)
                form = spot, tuple(map(linear, access[1]))
                if spot is not None and form not in seen:
                    seen.add(form)
                    target.setdefault(spot, []).append(self._use(access))

    def _spot(self, access: Access) -> Spot | None:
        place = access[0]
        owner = place.buffer.owner
        if place.buffer.kind == "arg" and isinstance(owner, ArgDecl):
            tensor = self.tensors.get(owner.name)
            if isinstance(tensor, Ndarray):
                return "array", tensor.address, place.offset
            return ("numpy", _root(tensor).ctypes.data) if isinstance(tensor, np.ndarray) else None
        memory = self.variant.owners.get(place.buffer)
        return None if memory is None else ("field", memory.ptr, place.offset)

    def _use(self, access: Access) -> _Use:
        place, index, statement = access
        owner = place.buffer.owner
        tensor = self.tensors.get(owner.name) if isinstance(owner, ArgDecl) else None
        view = isinstance(tensor, np.ndarray)  # slices of one array overlap as they like: any element
        axes = tuple(None if view else self._axis(x) for x in index)
        return _Use(np.array(self.when, float), axes, place.name, self.kernel.source.name, getattr(statement, "loc", None))

    def _axis(self, x: Operand) -> np.ndarray | None:
        """The index in each launch, if scalar arguments decide it."""
        form = linear(x)
        out = np.full(len(self.when), form.constant, np.int64)
        for leaf, factor in form.leaves:
            arg = leaf[1] if isinstance(leaf, tuple) else None
            if not isinstance(arg, ArgDecl) or arg.name not in self.scalars:
                return None
            out += factor * np.array(self.scalars[arg.name], np.int64)
        return out


def _root(array: np.ndarray) -> np.ndarray:
    """The array that a view is a part of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _groups(launches: list[Launch]) -> list[_Group]:
    groups: dict[object, _Group] = {}
    variants: dict[object, Any] = {}
    for when, (kernel, args, kwargs) in enumerate(launches):
        names = kernel.binder.params
        values = args if len(args) == len(names) and not kwargs else kernel.binder.arguments(args, kwargs)
        fixed = [p.annotation is Template for p in names]
        types = tuple(
            type(v) if isinstance(v, (int, float)) and not f else (type(v), v) if isinstance(v, (int, float)) else id(v)
            for v, f in zip(values, fixed)
        )
        key = id(kernel), types
        if key not in variants:
            variants[key] = kernel.variant(args, kwargs)[0]
        group = groups.get(key)
        if group is None:
            tensors = {p.name: v for p, v in zip(names, values) if not isinstance(v, (int, float))}
            ints = {p.name: [] for p, v, f in zip(names, values, fixed) if isinstance(v, int) and not f}
            group = groups[key] = _Group(kernel, variants[key], tensors, [], ints)
        group.when.append(when)
        for p, v in zip(names, values):
            if p.name in group.scalars:
                group.scalars[p.name].append(v)
    return list(groups.values())


def _spots(tensor: Any) -> list[Spot]:
    """The scalar-valued arrays of a field or an ndarray."""
    if isinstance(tensor, Ndarray):
        size = tensor.dtype.size
        return [("array", tensor.address, k * size) for k in range(int(np.prod(tensor.element_shape, dtype=int)))]
    return [("field", p.buffer.owner.ptr, p.offset) for p in tensor.__qd_value__().places]
