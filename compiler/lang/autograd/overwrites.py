"""Over several launches: was a value that a gradient must read again overwritten in between? Where must a gradient stop?

Within one kernel ``passes.dependence.access`` answers that. Over a tape the answer depends on the arguments: ``x[t + 1]`` of one launch is
``x[t]`` of the next, and neither is overwritten. So each access is described, for each launch, by the indices that its scalar arguments
decide, as the kernel computes them; a later write is a conflict unless one of these differs. Everything is vectorised over the launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import DataAccessError, DifferentiationError
from ...ir.nodes import Loc
from ...ir.threads import once
from ...passes.dependence.argument_forms import Form
from ...program.memory.effects import Effects, Part
from ...program.memory.memory_regions import MemoryRegion, RegionTable, tensor_regions
from ...runtime.mirror import changing, copied, store
from ..args.records import Frozen
from ..data.struct import Struct
from .gradient_arrays import has_grad

if TYPE_CHECKING:
    from ...program.variant import Variant
    from ..args.binding import Bound
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
class Use:
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

    @property
    def known(self) -> tuple[int, ...]:
        """The axes whose indices are known."""
        return tuple(k for k, axis in enumerate(self.axes) if axis is not None)

    def elements(self, axes: Iterable[int]) -> Iterable[tuple[tuple[int, ...], float]]:
        """The indices of each launch on some axes with its window, and when it is."""
        size = len(self.when)
        window = [0] * size if self.window is None else self.window.tolist()
        indices = [np.broadcast_to(a, size).tolist() for k in axes if (a := self.axes[k]) is not None]
        return zip(zip(*indices, window), self.when.tolist())

    def patterns(self) -> Iterable[tuple[int | None, ...]]:
        """The indices of each launch, None where they are not known."""
        columns = [[None] * len(self.when) if a is None else np.broadcast_to(a, self.when.shape).tolist() for a in self.axes]
        return set(zip(*columns)) if columns else {()}


Uses = RegionTable[list[Use]]


@dataclass(eq=False)
class Overwrites:
    """The reads of the backward pass, and the writes, of a tape's launches. Each kind is collected when it is first asked for.

    Attributes:
        groups: the launches.
        host_writes: assignments from Python.
        unkept: the launches that overwrite something of which no copy was made; None: no copies were made.
        variants: of the launches that are not hidden.
    """

    groups: list[_Group] = field(default_factory=list)
    host_writes: list[HostWrite] = field(default_factory=list)
    unkept: set[int] | None = None
    variants: list[Variant] = field(default_factory=list)

    @staticmethod
    def of(launches: list[Timed], host_writes: list[HostWrite], unkept: set[int] | None = None) -> Overwrites:
        """The accesses of a tape; the launches in their order."""
        groups = _groups(launches)
        return Overwrites(groups, host_writes, unkept, [group.variant for group in groups if not group.hidden])

    @once
    def reads(self) -> Uses:
        """What the gradients read again."""
        return self._collect(lambda g: () if g.hidden else g.effects.repeats)

    @once
    def loads(self) -> Uses:
        """Everything that is read."""
        return self._collect(lambda g: g.effects.reads)

    @once
    def dropped(self) -> Uses:
        """What ``no_grad`` functions store to."""
        return self._collect(lambda g: [p for p in g.effects.writes if g.cut and p.place.differentiable and not p.effect.adds])

    @once
    def writes(self) -> Uses:
        """Everything that is written."""
        found = self._collect(lambda g: g.effects.writes)
        for write in self.host_writes:
            for spot, ndim in tensor_regions(write.tensor):
                add_use(found, spot, _host_use(write, ndim))
        if self.unkept is not None:
            for _, use in all_uses(found):
                use.kept = not self.unkept or self.unkept.isdisjoint(np.ceil(use.when).astype(int).tolist())
        return found

    def _collect(self, parts: Callable[[_Group], Iterable[Part]]) -> Uses:
        found = Uses()
        for group in self.groups:
            for part in parts(group):
                add_use(found, part.spot, group.use(part))
        return found

    def check(self) -> None:
        """Refuse a tape whose gradients would read changed values, or flow through what a ``no_grad`` function overwrote.

        Raises:
            DataAccessError: naming the array, the line that reads it and the line that overwrites it.
            DifferentiationError: naming the array and the ``no_grad`` function.
        """
        if "writes" in self.__dict__ or self.unkept != set():  # else copies were made of all that is overwritten
            found = first_conflict(self.reads, self.writes, lambda write: not write.kept)
            if found is not None:
                raise _error(*found)
        found = (
            first_conflict(self.dropped, self.writes, lambda write: not write.constant, earlier=True) if self.dropped else None
        )
        if found is not None:
            raise _dropped(*found)

    def add(self, other: Overwrites) -> None:
        """Take the accesses of another one."""
        for kind in ("reads", "writes", "dropped", "loads"):
            for spot, use in all_uses(getattr(other, kind)):
                add_use(getattr(self, kind), spot, use)
        self.variants += other.variants

    def wrote_after(self, base: object, launch: int) -> bool:
        """Whether a later launch, or Python by a call of ours, may have written to memory of this base."""
        return any(use.when[-1] > launch for uses in self.writes.of_base(base) for use in uses)

    def wrote_region_after(self, spot: MemoryRegion, launch: int) -> bool:
        """Whether a later launch, or Python by a call of ours, may have written to this region."""
        return any(use.when[-1] > launch for _, found, _ in self.writes.overlapping(spot) for use in found)

    def read_by(self, spot: MemoryRegion, launch: int) -> Use | None:
        return next((use for _, found, _ in self.reads.overlapping(spot) for use in found if use.when[0] <= launch), None)

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
        mine = Uses()
        for spot, ndim in tensor_regions(write.tensor):
            add_use(mine, spot, _host_use(write, ndim))
        earlier = first_conflict(mine, self.writes, lambda use: not use.constant, earlier=True)
        return any((earlier, *(first_conflict(mine, uses, earlier=True) for uses in (self.loads, self.reads))))

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


def add_use(uses: Uses, spot: MemoryRegion, use: Use) -> None:
    """Enter a use of a spot."""
    uses.at(spot, list).append(use)


def all_uses(uses: Uses) -> Iterable[tuple[MemoryRegion, Use]]:
    """Every use with its spot."""
    return ((spot, use) for spot, found in uses.items() for use in found)


def _host_use(write: HostWrite, ndim: int) -> Use:
    known = write.index is not None and len(write.index) == ndim
    axes = tuple(np.array([i]) for i in write.index) if known and write.index is not None else (None,) * ndim
    # between launch ``before - 1`` and launch ``before``, in the order of the assignments
    when, window = np.array([write.before - 0.5 / (1 + write.number)]), np.array([write.window])
    constant = not write.hidden and (write.source is None or not has_grad(write.source))
    return Use(when, axes, "", write.hidden or "Python", None, window, by_host=True, constant=constant)


class _Times:
    """When the elements of one spot were used first and last, by the indices on the axes that a use names."""

    def __init__(self, uses: Iterable[Use]) -> None:
        self._groups: dict[tuple[int, ...], list[Use]] = {}
        for use in uses:
            self._groups.setdefault(use.known, []).append(use)
        self._tables: dict[tuple[object, ...], dict[tuple[int, ...], tuple[float, float]]] = {}

    def meet(self, use: Use, same: bool, earlier: bool) -> bool:
        """Whether elements of ``use`` are used here later, or ``earlier``. ``same``: indices can be compared."""
        for known, group in self._groups.items():
            axes = tuple(k for k in known if k in use.known) if same else ()
            if (known, axes) not in self._tables:
                self._tables[known, axes] = _table(group, axes)
            table = self._tables[known, axes]
            for key, when in use.elements(axes):
                first, last = table.get(key, (when, when))
                if first < when if earlier else last > when:
                    return True
        return False


def _table(uses: Iterable[Use], axes: tuple[int, ...]) -> dict[tuple[int, ...], tuple[float, float]]:
    table: dict[tuple[int, ...], tuple[float, float]] = {}
    for use in uses:
        for key, when in use.elements(axes):
            first, last = table.get(key, (when, when))
            table[key] = min(first, when), max(last, when)
    return table


def first_conflict(
    uses: Uses, others: Uses, counts: Callable[[Use], bool] | None = None, earlier: bool = False
) -> tuple[Use, Use] | None:
    """The first use whose elements another use touches later, or ``earlier``, with the first such other use.

    Takes time linear in the accesses. ``counts``: which of the others count.
    """
    times: dict[MemoryRegion, _Times] = {}
    for spot, use in all_uses(uses):
        for there, found, same in others.overlapping(spot):
            if there not in times:
                times[there] = _Times(filter(counts, found))
            if times[there].meet(use, same, earlier):
                return use, next(u for u in filter(counts, found) if _Times([u]).meet(use, same, earlier))
    return None


def _error(read: Use, write: Use) -> DataAccessError:
    line = f", line {write.loc.line} (`{write.loc.text.strip()}`)," if write.loc else ""
    who = "Python" if write.kernel == "Python" else f"a later launch of `{write.kernel}`{line}"
    return DataAccessError(
        f"the gradient of `{read.kernel}` needs the value of `{read.name}` read here, but {who} overwrites it in the same tape",
        read.loc,
        "write to another field (for time steps: give the field a leading time axis; for a loop until nothing changes:"
        " qd.ad.fixed_point), or use one tape for each part",
    )


def _dropped(drop: Use, write: Use) -> DifferentiationError:
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
    axes: dict[Form, np.ndarray | None] = field(default_factory=dict)  # the indices of all launches that were computed

    @once
    def effects(self) -> Effects:
        """What the launches read and write."""
        return Effects(self.variant, self.bound.call)

    @once
    def _times(self) -> tuple[np.ndarray, np.ndarray | None]:
        return np.array(self.when, float), np.array(self.windows) if any(self.windows) else None

    def use(self, part: Part) -> Use:
        """What the launches do of one of their effects."""
        (when, window), name = self._times, self.hidden or self.kernel.source.name
        return Use(when, tuple(map(self._axis, part.forms)), part.place.name, name, part.effect.loc, window)

    def _axis(self, form: Form | None) -> np.ndarray | None:
        """The index in each launch, if arguments decide it."""
        if form is None:
            return None
        if form not in self.axes:
            known, arrays = form.arguments <= self.scalars.keys(), self.bound.call.arrays
            at = form.values(lambda arg: np.array(self.scalars[arg]), lambda arg: arrays[arg].shape) if known else None
            self.axes[form] = None if at is None else np.broadcast_to(np.asarray(at), len(self.when))
        return self.axes[form]


def _groups(launches: list[Timed]) -> list[_Group]:
    made = _Groups()
    for timed in launches:
        made.add(timed)
    found = [group for group, _ in made.found.values()]
    for variant in {id(g.variant): g.variant for g in found}.values():
        variant.begin_gradient()
    return found


class _Groups:
    """Groups as they are found, launch by launch: by their keys, each with the positions of the numbers that decide indices."""

    def __init__(self) -> None:
        self.found: dict[object, tuple[_Group, list[tuple[int, int]]]] = {}

    def add(self, timed: Timed) -> None:
        """Add a launch."""
        kernel, args, kwargs = timed.launch
        fixed, records = kernel.binder.is_template, kernel.binder.is_record
        values = args if len(args) == len(fixed) and not kwargs else kernel.binder.arguments(args, kwargs)
        made: tuple[Variant, Bound] | None = None
        if any(records) or any(isinstance(value, (Frozen, Struct)) for value in values):
            # made anew for each record of a tape: its members are looked up in each launch, and arrays told apart by identity
            variant, bound = made = kernel.variant(args, kwargs)
            key = id(variant), *map(id, bound.call.arrays.values())
        else:
            key = id(kernel), *map(_kind, values, fixed)
        if (key, timed.hidden, timed.cut) not in self.found:
            self.found[key, timed.hidden, timed.cut] = _new_group(timed, values, fixed, made)
        group, columns = self.found[key, timed.hidden, timed.cut]
        group.when.append(timed.when)
        group.windows.append(timed.window)
        for index, k in columns:
            group.scalars[index].append(int(values[k] if made is None else made[1].call.scalars[index]))


def _new_group(
    timed: Timed, values: Sequence[Any], fixed: tuple[bool, ...], made: tuple[Variant, Bound] | None
) -> tuple[_Group, list[tuple[int, int]]]:
    """The group of a launch, empty, and the positions of its scalars. ``made``: what it is bound to, if they are members of arguments."""
    kernel, args, kwargs = timed.launch
    variant, bound = made or kernel.variant(args, kwargs)
    if made is not None:
        columns = [(index, -1) for index, value in bound.call.scalars.items() if isinstance(value, int)]
    else:
        at = {p.name: k for k, p in enumerate(kernel.binder.params) if isinstance(values[k], int) and not fixed[k]}
        columns = [(d.index, at[d.name]) for d in variant.head.args if d.name in at]
    return _Group(kernel, variant, bound, timed.hidden, timed.cut, [], {index: [] for index, _ in columns}, []), columns


def _kind(value: Any, fixed: bool) -> object:
    """The key of an argument in a group of launches: the type of a number, the identity of any other object."""
    if isinstance(value, (int, float)):
        return (type(value), value) if fixed else type(value)
    return id(value)
