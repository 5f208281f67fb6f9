"""Over several launches: was a value that a gradient must read again overwritten in between? Where must a gradient stop?

Within one kernel ``passes.dependence.access`` answers that. Over a tape the answer depends on the arguments: ``x[t + 1]`` of one launch is
``x[t]`` of the next, and neither is overwritten. So each access is described, for each launch, by the indices that its scalar arguments
decide, as the kernel computes them; a later write is a conflict unless one of these differs. Everything is vectorised over the launches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import DataAccessError, DifferentiationError
from ...frontend.markers import Template
from ...ir.nodes import ArgDecl, GlobalStore, Loc, Op
from ...ir.walk import atomic_of
from ...passes.dependence.access import Access
from ...passes.dependence.argument_forms import Form
from ...program.memory.memory_regions import MemoryRegion, argument_region, may_meet, memory_base, tensor_regions
from ...runtime.mirror import changing, copied, store
from ..args.annotations import is_dataclass_type
from ..args.records import Frozen
from ..data.element_types import MatrixType
from ..data.ndarray import Ndarray
from ..data.struct import Struct
from .gradient_arrays import has_grad

if TYPE_CHECKING:
    from ...program.variant import Variant
    from ..args.binding import Bound, Param
    from ..kernel import KernelFunction

Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]
Axes = tuple["np.ndarray | None", ...]


class Timed(NamedTuple):
    """A launch with its number.

    ``hidden``: the name of the function with a gradient of its own that made it; the inputs of such a gradient are unknown, so only the
    writes of the launch are checked. ``cut``: it is a ``no_grad`` function. ``window``: of ``checkpointed_steps``; windows do not meet:
    each has the arrays to itself.
    """

    when: int
    launch: Launch
    hidden: str = ""
    cut: bool = False
    window: int = 0


@dataclass(frozen=True)
class HostWrite:
    """An assignment from Python: how many launches came before it, and what was written; ``index``: one element, or None for all."""

    before: int
    tensor: Any
    index: tuple[int, ...] | None = None
    source: Any = None  # the tensor that it is a copy of
    hidden: str = ""  # the name of the function with a gradient of its own that made it
    parts: tuple[Any, ...] = ()  # indices within the element, one in the other, when only a part of it is written
    window: int = 0  # see ``Timed``
    number: int = 0  # assignments of the tape before it

    def _memory(self, tensor: Any) -> np.ndarray:
        """The memory of the element that is written in a tensor of the same form, or of all elements."""
        array = tensor._in_memory_order  # as indices are noted
        return array if self.index is None else array[(*tensor._at(self.index), ...)]  # with the dots one number is memory, too

    def _place(self, content: np.ndarray) -> tuple[np.ndarray, Any]:
        """The written element: ``array[key]``."""
        for part in self.parts[:-1]:
            content = content[part]
        return content, self.parts[-1] if self.parts else ...

    def values(self, tensor: Any) -> np.ndarray:
        """A copy of what a tensor of the same form holds there."""
        array, key = self._place(copied(tensor._mirror, self._memory(tensor)))
        return np.array(array[key])

    def put(self, tensor: Any, values: Any) -> None:
        """Write there, without a note."""
        memory = self._memory(tensor)
        if self.parts:
            content = copied(tensor._mirror, memory)
            array, key = self._place(content)
            array[key] = values
            values = content
        store(tensor._mirror, memory, values)


@dataclass(eq=False)
class _Use:
    """One access of a kernel in several launches: times, windows, and known indices (None: any)."""

    when: np.ndarray
    axes: Axes
    name: str
    kernel: str
    loc: Loc | None
    window: np.ndarray | None = None  # None: 0 in each launch
    by_host: bool = False  # an assignment from Python
    constant: bool = False  # of numbers, which no gradient goes back to
    kept: bool = False  # what it overwrites was copied before, where an earlier gradient needs it

    def patterns(self) -> Iterable[tuple[int | None, ...]]:
        """The indices of each launch, None where they are not known."""
        columns = [[None] * len(self.when) if a is None else np.broadcast_to(a, self.when.shape).tolist() for a in self.axes]
        return set(zip(*columns)) if columns else {()}


Uses = dict[object, dict[tuple[object, int], list[_Use]]]  # base -> (layout, offset)


@dataclass
class Overwrites:
    """The reads of the backward pass, and the writes, of a tape's launches."""

    reads: Uses
    writes: Uses
    dropped: Uses  # what ``no_grad`` functions store to
    variants: list[Variant]  # of the launches that are not hidden
    loads: Uses = field(default_factory=dict)  # everything that is read, when it was asked for
    groups: list[_Group] = field(default_factory=list)

    @staticmethod
    def of(launches: list[Timed], host_writes: list[HostWrite], loads: bool = False) -> Overwrites:
        """Collect the accesses of a tape; the launches in their order. ``loads``: also all that the launches read."""
        found = Overwrites({}, {}, {}, [])
        for group in _groups(launches):
            group.collect(found, loads)
            found.groups.append(group)
            if not group.hidden:
                found.variants.append(group.variant)
        for write in host_writes:
            for spot, ndim in tensor_regions(write.tensor):
                add_use(found.writes, spot, _host_use(write, ndim))
        return found

    def check(self) -> None:
        """Refuse a tape whose gradients would read changed values, or flow through what a ``no_grad`` function overwrote.

        Raises:
            DataAccessError: naming the array, the line that reads it and the line that overwrites it.
            DifferentiationError: naming the array and the ``no_grad`` function.
        """
        for spot, read in all_uses(self.reads):
            for write, same in _meeting(self.writes, spot):
                if not write.kept and _conflict(read, write, same):
                    raise _error(read, write)
        for spot, drop in all_uses(self.dropped):
            for write, same in _meeting(self.writes, spot):
                if not write.constant and _conflict(write, drop, same):
                    raise _dropped(drop, write)

    def add(self, other: Overwrites) -> None:
        """Take the accesses of another one."""
        for target, uses in (
            (self.reads, other.reads),
            (self.writes, other.writes),
            (self.dropped, other.dropped),
            (self.loads, other.loads),
        ):
            for spot, use in all_uses(uses):
                add_use(target, spot, use)
        self.variants += other.variants

    def keep_all_but(self, unkept: set[int]) -> None:
        """Copies were made of what is overwritten, except by launches of these numbers."""
        for _, use in all_uses(self.writes):
            use.kept = not unkept or unkept.isdisjoint(np.ceil(use.when).astype(int).tolist())

    def wrote_after(self, base: object, launch: int) -> bool:
        """Whether a later launch, or Python by a call of ours, may have written to memory of this base."""
        return any(use.when[-1] > launch for uses in self.writes.get(base, {}).values() for use in uses)

    def wrote_region_after(self, spot: MemoryRegion, launch: int) -> bool:
        """Whether a later launch, or Python by a call of ours, may have written to this region."""
        return any(use.when[-1] > launch for use, _ in _meeting(self.writes, spot))

    def read_by(self, spot: MemoryRegion, launch: int) -> _Use | None:
        """What the gradient of a launch, or of one before, reads there again."""
        return next((use for use, _ in _meeting(self.reads, spot) if use.when[0] <= launch), None)

    def loses(self) -> bool:
        """Whether some kernel stores a differentiable value to an array without a gradient."""
        return any(variant.flows.loses for variant in self.variants)

    def happened_before(self, launches: int) -> None:
        """Enter all writes once more, so many launches earlier: the same ran before, and no gradient goes past an assignment to that."""
        for spot, use in list(all_uses(self.writes)):
            add_use(self.writes, spot, replace(use, when=use.when - launches, kernel="the step before"))

    def stops(self, write: HostWrite) -> bool:
        """Whether an earlier launch read or wrote, or a copy wrote, what Python overwrites: no gradient may flow past the assignment then,
        as the gradient there is that of the old value.
        """
        for spot, ndim in tensor_regions(write.tensor):
            mine = _host_use(write, ndim)
            if any(not w.constant and _conflict(w, mine, same) for w, same in _meeting(self.writes, spot)):
                return True
            if any(_conflict(r, mine, same) for uses in (self.loads, self.reads) for r, same in _meeting(uses, spot)):
                return True
        return False

    def reverse(self, write: HostWrite) -> None:
        """The reverse of an assignment from Python: a gradient goes to the source of a copy, and not to launches before the assignment."""
        tensor, source = write.tensor, write.source
        if not has_grad(tensor):
            return
        copies = source is not None and has_grad(source)
        if not copies and not self.stops(write):
            return
        if copies:
            assert source is not None
            to, gradient = source.grad, tensor.grad._content
            with changing(to._mirror, to._form) as array:
                array += gradient
        write.put(tensor.grad, 0)


def add_use(uses: Uses, spot: MemoryRegion, use: _Use) -> None:
    """Enter a use of a spot."""
    uses.setdefault(spot.base, {}).setdefault((spot.layout, spot.offset), []).append(use)


def all_uses(uses: Uses) -> Iterable[tuple[MemoryRegion, _Use]]:
    """Every use with its spot."""
    for base, layouts in uses.items():
        for (layout, offset), found in layouts.items():
            for use in found:
                yield MemoryRegion(base, layout, offset), use


def _meeting(uses: Uses, spot: MemoryRegion) -> Iterable[tuple[_Use, bool]]:
    """The uses that may meet a spot, and whether their indices can be compared with its own."""
    layouts = uses.get(spot.base, {})
    for use in layouts.get((spot.layout, spot.offset), ()):
        yield use, True
    for (layout, _), found in layouts.items():
        if layout != spot.layout and may_meet(layout, spot.layout):  # views of one array may overlap
            for use in found:
                yield use, False


def _host_use(write: HostWrite, ndim: int) -> _Use:
    known = write.index is not None and len(write.index) == ndim
    axes = tuple(np.array([i]) for i in write.index) if known and write.index is not None else (None,) * ndim
    # between launch ``before - 1`` and launch ``before``, in the order of the assignments
    when, window = np.array([write.before - 0.5 / (1 + write.number)]), np.array([write.window])
    constant = not write.hidden and (write.source is None or not has_grad(write.source))
    return _Use(when, axes, "", write.hidden or "Python", None, window, by_host=True, constant=constant)


def _conflict(first: _Use, then: _Use, same: bool) -> bool:
    """Whether some launch of ``then`` may touch what an earlier one of ``first`` touched."""
    if then.when[-1] <= first.when[0]:
        return False
    shared = [k for k, (a, b) in enumerate(zip(first.axes, then.axes)) if same and a is not None and b is not None]
    windows = first.window is not None or then.window is not None
    if not shared and not windows:
        return True
    last: dict[tuple[int, ...], float] = {}
    for key, when in zip(_keys(then, shared, windows), then.when.tolist()):
        last[key] = when
    return any(last.get(key, -1.0) > when for key, when in zip(_keys(first, shared, windows), first.when.tolist()))


def _keys(use: _Use, axes: list[int], windows: bool) -> Iterable[tuple[int, ...]]:
    """The indices of each launch on some axes, and its window."""
    known = [a.tolist() for k in axes if (a := use.axes[k]) is not None]
    window = [0] * len(use.when) if use.window is None else use.window.tolist()
    return zip(*known, window) if windows else zip(*known)


def _error(read: _Use, write: _Use) -> DataAccessError:
    line = f", line {write.loc.line} (`{write.loc.text.strip()}`)," if write.loc else ""
    who = "Python" if write.kernel == "Python" else f"a later launch of `{write.kernel}`{line}"
    return DataAccessError(
        f"the gradient of `{read.kernel}` needs the value of `{read.name}` read here, but {who} overwrites it in the same tape",
        read.loc,
        "write to another field (for time steps: give the field a leading time axis; for a loop until nothing changes:"
        " qd.ad.fixed_point), or use one tape for each part",
    )


def _dropped(drop: _Use, write: _Use) -> DifferentiationError:
    who = "Python copied before" if write.kernel == "Python" else f"an earlier launch of `{write.kernel}` wrote"
    return DifferentiationError(
        f"`{drop.kernel}` has no gradient (no_grad) and overwrites `{drop.name}` here, which {who}:"
        " a gradient would go back to the old value",
        drop.loc,
        f"let the no_grad function write to a field of its own, or give it a gradient that sets `{drop.name}.grad` to zero (grad_for)",
    )


# ---- launches that differ in their scalars only
@dataclass(eq=False)
class _Group:
    kernel: KernelFunction
    variant: Variant
    bound: Bound
    hidden: str
    cut: bool
    when: list[int]
    scalars: dict[int, list[int]]  # integers of each launch, by ArgDecl.index
    windows: list[int]

    def collect(self, found: Overwrites, loads: bool) -> None:
        """Add the group's accesses: what its gradient reads again, and what it writes; with ``loads`` all that it reads."""
        writes = self.variant.compiled_kernel.writes
        if loads:
            self._collect(found.loads, self.variant.compiled_kernel.loads)
        self._collect(found.writes, writes)
        if not self.hidden:
            self._collect(found.reads, self.variant.replayed())
        if self.cut:
            self._collect(found.dropped, [a for a in writes if a[0].differentiable and not _adds(a)])

    def _collect(self, target: Uses, accesses: Iterable[Access]) -> None:
        seen: set[object] = set()
        for access in accesses:
            spot, axes = self.spot(access), self.variant.compiled_kernel.forms(access)
            if spot is not None and (spot, axes) not in seen:
                seen.add((spot, axes))
                add_use(target, spot, self._use(access, axes))

    def spot(self, access: Access) -> MemoryRegion | None:
        """The memory region of an access."""
        place, call = access[0], self.bound.call
        owner = place.buffer.owner
        if place.buffer.kind == "arg" and isinstance(owner, ArgDecl):
            return argument_region(self.variant.program.device, call, owner.index, place.offset)
        memory = self.variant.owners.get(place.buffer)
        return None if memory is None else MemoryRegion(memory_base(memory), "", place.offset)

    def _use(self, access: Access, axes: tuple[Form | None, ...]) -> _Use:
        name = self.hidden or self.kernel.source.name
        return _Use(
            *(np.array(self.when, float), tuple(map(self._axis, axes)), access[0].name, name, getattr(access[2], "loc", None)),
            np.array(self.windows) if any(self.windows) else None,
        )

    def _axis(self, form: Form | None) -> np.ndarray | None:
        """The index in each launch, if arguments decide it."""
        if form is None:
            return None
        if not form.arguments <= self.scalars.keys():
            return None
        arrays = self.bound.call.arrays
        found = form.values(lambda arg: np.array(self.scalars[arg]), lambda arg: arrays[arg].shape)
        return np.broadcast_to(np.asarray(found), len(self.when))


def _adds(access: Access) -> bool:
    """Whether a write is a sum, past which the gradient of what was there flows unchanged."""
    s = access[2]
    return isinstance(s, Op) and not isinstance(s, GlobalStore) and atomic_of(s)[1] == "add"


def _groups(launches: list[Timed]) -> list[_Group]:
    made = _Groups()
    # launches that differ in their numbers only, by kernel, the types of the numbers, and the arrays
    alike: dict[object, tuple[_Group, list[tuple[int, list[int]]]]] = {}
    counts: dict[int, int] = {}  # arguments of a kernel that is checked here; -1: of another one
    for timed in launches:
        kernel, args, kwargs = timed.launch
        count = counts.get(id(kernel))
        if count is None:
            params = kernel.binder.params
            count = counts[id(kernel)] = -1 if any(map(_is_special, params)) else len(params)
        if count != len(args) or kwargs or not _PLAIN.issuperset(map(type, args)):
            made.add(timed)
            continue
        key = id(kernel), timed.hidden, timed.cut, *[id(a) if type(a) is Ndarray else type(a) for a in args]
        known = alike.get(key)
        if known is None:
            group = made.add(timed)
            alike[key] = group, made.columns(group)
            continue
        group, columns = known
        group.when.append(timed.when)
        group.windows.append(timed.window)
        for k, column in columns:
            column.append(int(args[k]))
    found = made.found()
    for variant in {id(g.variant): g.variant for g in found}.values():
        variant.begin_gradient()
    return found


_PLAIN = frozenset((int, float, bool, Ndarray))


def _is_special(param: Param) -> bool:
    """Whether launches may differ in more than numbers, arrays and other objects that are the same each time."""
    return param.annotation is Template or isinstance(param.annotation, MatrixType) or is_dataclass_type(param.annotation)


class _Groups:
    """Groups as they are found, launch by launch."""

    def __init__(self) -> None:
        self._groups: dict[object, _Group] = {}
        self._variants: dict[object, tuple[Variant, Bound]] = {}

    def found(self) -> list[_Group]:
        """All of them."""
        return list(self._groups.values())

    def columns(self, group: _Group) -> list[tuple[int, list[int]]]:
        """Which arguments of a launch go to which of the group's lists."""
        names = {p.name: k for k, p in enumerate(group.kernel.binder.params)}
        return [(names[d.name], group.scalars[d.index]) for d in group.variant.head.args if d.index in group.scalars]

    def add(self, timed: Timed) -> _Group:
        """Add a launch, and give its group."""
        kernel, args, kwargs = timed.launch
        params = kernel.binder.params
        values = args if len(args) == len(params) and not kwargs else kernel.binder.arguments(args, kwargs)
        if any(map(_is_record, params, values)):
            # its members are looked up in each launch; arrays are told apart by identity
            variant, bound = kernel.variant(args, kwargs)
            found = variant, bound
            key: object = id(variant), tuple(map(id, bound.call.arrays.values()))
            scalars = {k: int(v) for k, v in bound.call.scalars.items() if isinstance(v, int)}
        else:
            fixed = [p.annotation is Template for p in params]
            key = id(kernel), tuple(_kind(v, f) for v, f in zip(values, fixed))
            if key not in self._variants:
                self._variants[key] = kernel.variant(args, kwargs)
            found = self._variants[key]
            by_name = {p.name: v for p, v, f in zip(params, values, fixed) if isinstance(v, int) and not f}
            scalars = {d.index: int(by_name[d.name]) for d in found[0].head.args if d.name in by_name}
        group = self._groups.get((key, timed.hidden, timed.cut))
        if group is None:
            group = _Group(kernel, *found, timed.hidden, timed.cut, [], {k: [] for k in scalars}, [])
            self._groups[key, timed.hidden, timed.cut] = group
        group.when.append(timed.when)
        group.windows.append(timed.window)
        for k, values_of in group.scalars.items():
            values_of.append(scalars[k])
        return group


def _kind(value: Any, fixed: bool) -> object:
    """The key of an argument in a group of launches: the type of a number, the identity of any other object."""
    if isinstance(value, (int, float)):
        return (type(value), value) if fixed else type(value)
    return id(value)


def _is_record(param: Param, value: Any) -> bool:
    """Whether an argument is made anew for each record of a tape: a struct, a dataclass, a matrix, an object with arrays."""
    return (
        isinstance(value, (Frozen, Struct)) or isinstance(param.annotation, MatrixType) or is_dataclass_type(param.annotation)
    )
