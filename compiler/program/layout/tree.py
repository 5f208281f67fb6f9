"""The layout tree: ``qd.root.dense(qd.ij, (n, m)).place(x, x.grad)``, and how a tree gets memory.

What is placed waits in the root until it is materialised (by the first kernel or the first access from Python); then it gets one buffer
for fields and one for gradients. What is placed later gets further buffers at the next materialisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from ...errors import OutOfMemory, QdrunRuntimeError
from ...ir.nodes import Buffer, Place
from ...ir.trials import TRIAL_ALIGNMENT, TrialLayout, trial_bytes
from ...ir.types import DType
from ...refused import refusing
from ...runtime.base import Allocation
from .offsets import AXIS_NAMES, CHILD_ALIGNMENT, PLANES, Dense, Layout, Leaf, Placement, layout

Allocate = Callable[[int, str], Allocation]
CATEGORIES = ("fields", "gradients")


class Axes(tuple[int, ...]):
    """The axes of a dense level, in the order of their nesting: ``qd.ij`` is (0, 1)."""

    __slots__ = ()

    def __repr__(self) -> str:
        letters = all(a < len(AXIS_NAMES) for a in self)
        return "qd." + "".join(AXIS_NAMES[a] for a in self) if letters else f"qd.axes{tuple(self)}"


def axes(*numbers: int) -> Axes:
    """The axes of these numbers: ``axes(0, 1)`` is ``qd.ij``."""
    return Axes(numbers)


NAMED_AXES = {"".join(p): Axes(AXIS_NAMES.index(c) for c in p) for n in range(1, 5) for p in permutations("ijkl", n)}
"""``i``, ``j``, ``ij``, ``ji``, ``ijk``, ..: every order of up to four axes. ``qd`` hands them on by these names."""
i, j, k, l = (NAMED_AXES[c] for c in "ijkl")  # noqa: E741
ij, ik, jk, ji = (NAMED_AXES[c] for c in ("ij", "ik", "jk", "ji"))
ijk, ijl, ikl, jkl, ijkl = (NAMED_AXES[c] for c in ("ijk", "ijl", "ikl", "jkl", "ijkl"))


class TreeLeaf:
    """A tensor that can be placed in the tree: a field, or the gradient or the dual of one.

    Attributes:
        dtype: the component type.
        element: ``()`` for scalars, ``(n,)`` or ``(n, m)``.
        name: the name in messages.
        role: "" for a field, "grad" or "dual" for its gradient or dual.
        planar: each component has its own plane.
        per_trial: each trial of a batched program has its own copy.
        snode: the level that it is placed in.
        along: what is placed with it: gradients that were asked for before it had a place.
    """

    dtype: DType
    element: tuple[int, ...]
    name: str
    role: str
    planar: bool
    per_trial: bool
    snode: SNode | None
    along: Sequence[TreeLeaf]
    _places: tuple[Place, ...]
    _view: np.ndarray | None

    @property
    def components(self) -> int:
        """Numbers per element."""
        return prod(self.element)

    def attach(self, node: SNode, offset: Any = None) -> None:
        """Remember the level that it is placed in, and the lowest index of each axis."""
        raise NotImplementedError

    def settle(self, places: tuple[Place, ...], view: np.ndarray) -> None:
        """Receive memory."""
        raise NotImplementedError

    def release(self) -> None:
        """Let go of the memory; the program is being closed."""
        raise NotImplementedError


@refusing
class SNode:
    """A level of the layout tree."""

    def __init__(self, root: Root | None, parent: SNode | None, over: Axes, extents: tuple[int, ...]) -> None:
        self._root, self._above, self.axes, self.extents = root, parent, over, extents
        self.children: list[SNode | TreeLeaf] = []

    @property
    def root(self) -> Root:
        """The root of the tree."""
        assert self._root is not None
        return self._root

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of a tensor placed here, in the order of the axes' letters."""
        extents: dict[int, int] = {}
        for node in self.upward():
            for axis, extent in zip(node.axes, node.extents):
                extents[axis] = extents.get(axis, 1) * extent
        return tuple(extents[a] for a in sorted(extents) if a != PLANES)

    def upward(self) -> Iterator[SNode]:
        """This level and those above it."""
        node: SNode | None = self
        while node is not None:
            yield node
            node = node._above

    def parent(self, n: int = 1) -> SNode | None:
        """The level above, or the n-th above; None above the root."""
        node: SNode | None = self
        for _ in range(n):
            node = None if node is None else node._above
        return node

    def dense(self, axes: Axes | Sequence[int], dimensions: int | Sequence[int]) -> SNode:
        """A dense level under this one.

        Args:
            axes: its axes, as ``qd.ij``.
            dimensions: the extent of each axis, or one for all.

        Raises:
            QdrunRuntimeError: extents that are not positive or do not fit the axes, or the level has memory already.
        """
        over = Axes(axes)
        extents = (dimensions,) * len(over) if isinstance(dimensions, (int, np.integer)) else tuple(dimensions)
        if len(extents) == 1:
            extents *= len(over)
        if len(extents) != len(over) or len(set(over)) != len(over):
            raise QdrunRuntimeError(f"dense({over!r}, ..) takes {len(over)} extents of different axes, not {extents}")
        if any(not isinstance(e, (int, np.integer)) or e <= 0 for e in extents):
            raise QdrunRuntimeError(f"the extents of a dense level are positive integers, not {extents}")
        node = SNode(self.root, self, over, tuple(int(e) for e in extents))
        self._adopt(node)
        return node

    def place(self, *fields: TreeLeaf | Sequence[TreeLeaf], offset: int | Sequence[int] | None = None) -> SNode:
        """Give fields (and gradients: ``x.grad``) a place in this level's cells, interleaved in this order.

        Args:
            fields: what is placed.
            offset: the lowest index of each axis, instead of 0. Gradients have that of their field.

        Raises:
            QdrunRuntimeError: a field has a place already, is no field, or the level has memory already.
            QdrunSyntaxError: the offset has not one entry for each axis.
        """
        for f in fields:
            if isinstance(f, (list, tuple)):
                self.place(*f, offset=offset)
                continue
            leaves = getattr(f, "leaves", None)
            if leaves is not None:  # a field of structs
                self.place(*leaves(), offset=offset)
                continue
            if not isinstance(f, TreeLeaf):
                raise QdrunRuntimeError(f"place() takes fields, not {type(f).__name__}; do: make it with qd.field(dtype)")
            f.attach(self, offset)
            self._adopt(f)
        return self

    def lazy_grad(self) -> None:
        """Place a gradient beside every real field of this level and of those below it that has none."""
        self._lazy("grad")

    def lazy_dual(self) -> None:
        """Place a dual beside every real field of this level and of those below it that has none."""
        self._lazy("dual")

    def lazy_hessian(self) -> None:
        """Place what ``qd.ad.hvp`` needs beside every real field of this level and of those below it: gradient, dual, and its gradient."""
        self._lazy("grad")
        self._lazy("dual")
        self._lazy("dual.grad")

    def _lazy(self, role: str) -> None:
        for child in list(self.children):
            if isinstance(child, SNode):
                child._lazy(role)
            elif child.role or not child.dtype.is_real or self.root.is_shared(child):
                continue
            elif not attrgetter(role)(child).placed:
                self.place(attrgetter(role)(child))

    def _adopt(self, child: SNode | TreeLeaf) -> None:
        top = self
        while top._above is not None and top._above._above is not None:
            top = top._above
        if top is not self.root and top in self.root.done:
            raise QdrunRuntimeError(
                "this level has its memory already; do: place everything before the first kernel, or use a new dense"
            )
        self.children.append(child)


class Root(SNode):
    """The root of a program's layout tree.

    Attributes:
        program: whose fields these are: it allocates, and a field of a closed program is refused.
        pending: the children that have no memory yet.
    """

    def __init__(self, program: Any = None) -> None:
        super().__init__(None, None, Axes(), ())
        self._root = self
        self.program = program
        self.done: set[SNode | TreeLeaf] = set()
        self._names = 0

    @property
    def pending(self) -> list[SNode | TreeLeaf]:
        """The children that hold something and have no memory yet."""
        return [c for c in self.children if c not in self.done and (not isinstance(c, SNode) or any(True for _ in _fields(c)))]

    @property
    def trials(self) -> TrialLayout | None:
        """The trials of a batched program."""
        return getattr(self.program, "trials", None)

    def is_shared(self, leaf: TreeLeaf) -> bool:
        """Whether all trials of a batched program have the field in common."""
        return self.trials is not None and not leaf.per_trial

    def next_name(self) -> str:
        """A name for a field that was given none: its number in the program, so that it is the same in every run."""
        self._names += 1
        return f"field_{self._names}"

    def fields(self) -> list[TreeLeaf]:
        """Every placed field and gradient, in order of placement."""
        return list(_fields(self))


def _fields(node: SNode) -> Iterator[TreeLeaf]:
    for child in node.children:
        if isinstance(child, SNode):
            yield from _fields(child)
        else:
            yield child


def level_of(top: SNode, extents: tuple[int, ...], nested: tuple[int, ...] | None) -> SNode:
    """The level of a field that is given a shape: one dense, or one per axis when their order is asked for."""
    if not extents:
        return top
    if nested is None:
        return top.dense(Axes(range(len(extents))), extents)
    for axis in nested:
        top = top.dense(Axes((axis,)), extents[axis])
    return top


def _tree(node: SNode | TreeLeaf, category: str, per_trial: bool | None) -> Dense | Leaf | None:
    """The layout tree of what belongs to a category, or None when nothing does."""
    if not isinstance(node, SNode):
        own = CATEGORIES[0] if node.role == "" else CATEGORIES[1]
        components = 1 if node.planar else node.components
        mine = own == category and per_trial in (None, node.per_trial)
        return Leaf(node, node.name, node.dtype, components) if mine else None
    children = [t for t in (_tree(c, category, per_trial) for c in node.children) if t is not None]
    return Dense(node.axes, node.extents, children) if children else None


def pending_layout(root: Root, category: str, per_trial: bool | None = None) -> Layout:
    """The layout of what waits for memory of one category (``fields`` or ``gradients``).

    Args:
        root: of the tree.
        category: of memory.
        per_trial: of a batched program, the layout of what each trial has its own of, or of what they share; None: it is not batched.

    Raises:
        QdrunRuntimeError: a blocked layout.
    """
    trees = [t for t in (_tree(c, category, per_trial) for c in root.pending) if t is not None]
    return layout(Dense(children=list(trees)), TRIAL_ALIGNMENT if per_trial else CHILD_ALIGNMENT)


def own_shapes(root: Root) -> list[tuple[int, ...]]:
    """The shapes of what waits for memory that each trial of a batch has its own part of."""
    if root.trials is None or not root.pending:
        return []
    leaves = [f for c in root.pending for f in (_fields(c) if isinstance(c, SNode) else (c,))]
    return [f.snode.shape for f in leaves if f.per_trial and f.snode is not None]


def materialize(root: Root, allocate: Allocate, free: Callable[[Allocation], None]) -> None:
    """Give memory to everything that was placed since the last time. Does nothing when nothing was.

    Raises:
        QdrunRuntimeError: a blocked layout.
        OutOfMemory: from ``allocate``; names the largest field. What was allocated before it is given back with ``free``.
    """
    pending = root.pending
    if not pending:
        return
    _place_along(pending)
    pending = root.pending  # a 0-D gradient is a child of the root itself
    found: list[tuple[Layout, int, Allocation]] = []
    for category, per_trial in _parts(root):
        placed = pending_layout(root, category, per_trial)
        each = trial_bytes(placed.nbytes) if per_trial else 0
        nbytes = root.trials.bytes(each) if root.trials is not None and per_trial else placed.nbytes
        try:
            found += [(placed, each, allocate(nbytes, category))] if nbytes else []
        except OutOfMemory as error:
            for _, _, allocation in found:
                free(allocation)
            raise OutOfMemory(f"{error}\n{_largest(placed, root.trials if per_trial else None)}", error.smallest) from error
    root.done.update(pending)
    for placed, each, allocation in found:
        buffer = Buffer("field", allocation)
        if allocation.mirror is not None:
            allocation.mirror.split(*_blocks(placed, each, root.trials))
        for leaf, placement in placed.placements.items():
            _settle(leaf, placement, buffer, allocation, each)


def _parts(root: Root) -> Iterator[tuple[str, bool | None]]:
    """The kinds of memory of a program: category, and what ``pending_layout`` takes."""
    for category in CATEGORIES:
        yield from [(category, None)] if root.trials is None else [(category, True), (category, False)]


def _blocks(placed: Layout, each: int, trials: TrialLayout | None) -> tuple[Sequence[int], Sequence[int]]:
    """The parts of a mirror: children of the root, or groups of trials."""
    if trials is None or not each:
        return placed.starts, placed.used()
    starts = range(0, trials.bytes(each), trials.width * each)
    return starts, [trials.width * sum(placed.used())] * len(starts)


def _largest(found: Layout, trials: TrialLayout | None) -> str:
    """The field that takes most of a layout, and what to do."""
    sizes = {leaf: prod(placement.shape) * leaf.size for leaf, placement in found.placements.items()}
    leaf = max(sizes, key=lambda leaf: sizes[leaf])
    shape = found.placements[leaf].shape
    of = "" if trials is None else f" for each of {trials.padded:,} trials"
    less = "give it a smaller shape or type" + ("" if trials is None else ", run fewer trials (batch=..)")
    return (
        f"  the largest is `{leaf.name}` of shape {shape} and type {leaf.dtype}: {sizes[leaf]:,} of {found.nbytes:,} bytes{of}\n"
        f"  do: {less}, or close programs that are not needed"
    )


def _place_along(pending: list[SNode | TreeLeaf]) -> None:
    """Give a place beside their field to the gradients that were asked for and that the user placed nowhere."""
    found = [f for c in pending for f in (_fields(c) if isinstance(c, SNode) else (c,))]
    for f in found:
        if f.snode is not None:
            f.snode.place(*(g for g in f.along if g.snode is None))


def _settle(leaf: Leaf, placement: Placement, buffer: Buffer, allocation: Allocation, each: int) -> None:
    """Hand a field its places and its numpy view. ``each``: bytes that each trial has in the memory; 0: it has no trials."""
    field: Any = leaf.owner
    step = leaf.dtype.size  # from one component to the next
    shape, strides = placement.shape, placement.strides
    if field.planar:
        step, shape, strides = strides[0], shape[1:], strides[1:]
    places = []
    for c in range(field.components):
        name = leaf.name if not field.element else f"{leaf.name}_{c}"
        place = Place(name, leaf.dtype, buffer, len(shape), shape, strides, placement.offset + c * step)
        place.is_grad, place.trial_bytes = field.role == "grad", each
        places.append(place)
    element_strides = tuple(step * int(np.prod(field.element[a + 1 :])) for a in range(len(field.element)))
    form, steps, dtype = shape + field.element, strides + element_strides, leaf.dtype.numpy
    if each:
        view = field._root.trials.view(allocation.view, dtype, each, placement.offset, form, steps)
    else:
        view = np.ndarray(form, dtype, allocation.view.data, placement.offset, steps)
    field.settle(tuple(places), view)
