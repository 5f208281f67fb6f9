"""The layout tree: ``qd.root.dense(qd.ij, (n, m)).place(x, x.grad)``.

What is placed waits in the root until it is materialised (``materialize``), by the first kernel or the first access from Python. What is
placed later gets further buffers at the next materialisation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from ...errors import QdrunRuntimeError
from ...frontend.values.budget import PoolRef, freed_in_a_tape
from ...frontend.values.levels import LevelRef
from ...ir.threads import Living
from ...ir.trials import ONE, TrialLayout
from ...ir.types import DType
from ...refused import refusing
from .leaf import TreeLeaf
from .offsets import AXIS_NAMES, PLANES


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


@dataclass(eq=False)
class BlockPool:
    """The memory of a level with a budget.

    Attributes:
        slots: the number of the block of each cell; 0: it has none.
        free: see ``PoolRef.free``.
        count: the blocks for active cells; known with the memory.
        block_bytes: of all that is placed in a cell; known with the memory.
    """

    slots: TreeLeaf
    free: TreeLeaf
    count: int = 0
    block_bytes: int = 0


@refusing
class SNode:
    """A level of the layout tree.

    Attributes:
        axes: the axes that it splits.
        extents: the number of its cells along each of them, in one cell of the level above.
        kind: "dense", or how its cells become active: "pointer", "bitmasked", "dynamic".
        flags: of a pointer or bitmasked level, 1 for each active cell; of a dynamic level, the length in each cell of the level above.
        visited: a copy of ``flags`` from the begin of a loop that changes them.
        budget: the bytes that the user gave for its active cells; None: all cells have memory.
        blocks: where the cells of a level with a budget are.
    """

    def __init__(
        self, root: Root | None, parent: SNode | None, over: Axes, extents: tuple[int, ...], kind: str = "dense"
    ) -> None:
        self._root, self._above, self.axes, self.extents, self.kind = root, parent, over, extents, kind
        self.children: list[SNode | TreeLeaf] = []
        self.flags: TreeLeaf | None = None
        self.visited: TreeLeaf | None = None
        self.budget: int | None = None
        self.blocks: BlockPool | None = None

    @property
    def root(self) -> Root:
        """The root of the tree."""
        assert self._root is not None
        return self._root

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of a tensor placed here, in the order of the axes' letters."""
        return tuple(self.cells.values())

    @property
    def cells(self) -> dict[int, int]:
        """The number of cells along each axis, of the whole tree, in the order of the axes' letters."""
        extents: dict[int, int] = {}
        for node in self.upward():
            for axis, extent in zip(node.axes, node.extents):
                extents[axis] = extents.get(axis, 1) * extent
        return {a: extents[a] for a in sorted(extents) if a != PLANES}

    @property
    def name(self) -> str:
        """The first field in it, for messages."""
        return next((leaf.name for leaf in leaves_of(self) if not leaf.hidden), "")

    def upward(self) -> Iterator[SNode]:
        """This level and those above it."""
        node: SNode | None = self
        while node is not None:
            yield node
            node = node._above

    def parent(self, n: int = 1) -> SNode | None:
        """The level above, or the n-th above, where 0 is this level itself; None above the root.

        Raises:
            QdrunRuntimeError: n is no whole number, or negative.
        """
        if not isinstance(n, (int, np.integer)) or isinstance(n, bool) or n < 0:
            raise QdrunRuntimeError(f"parent({n!r}) takes the number of levels to go up\n  do: parent() for the level above")
        node: SNode | None = self
        for _ in range(n):
            node = None if node is None else node._above
        return node

    def get_children(self) -> list[SNode]:
        """The levels below this one, and the places of the fields in it, in the order in which they were made."""
        return [
            c if isinstance(c, SNode) else PlaceNode(self, c) for c in self.children if isinstance(c, SNode) or not c.hidden
        ]

    _get_children = get_children  # Quadrants' name

    def __repr__(self) -> str:
        if self._above is None:
            return "qd.root"
        extents = self.extents[0] if len(self.extents) == 1 else self.extents
        own = f".{self.kind}({self.axes!r}, {extents})" if self.axes else "qd.FieldsBuilder()"
        return f"{self._above!r}{own}" if self.axes else own

    def dense(self, axes: Axes | Sequence[int], dimensions: int | Sequence[int]) -> SNode:
        """A dense level under this one.

        Args:
            axes: its axes, as ``qd.ij``.
            dimensions: the extent of each axis, or one for all.

        Raises:
            QdrunRuntimeError: extents that are not positive or do not fit the axes, or the level has memory already.
        """
        return self._level("dense", axes, dimensions)

    def pointer(self, axes: Axes | Sequence[int], dimensions: int | Sequence[int], budget: int | None = None) -> SNode:
        """A level whose cells become active one by one, each with all that is below it. ``axes``, ``dimensions``: as ``dense``.

        ``budget``: bytes for the fields, gradients and duals of active cells, two of which stand for all that are inactive. Without it, the
        memory of all cells is allocated with the program's fields. A launch that activates more cells than it holds stops with an error.

        Raises:
            QdrunRuntimeError: as ``dense``; a level above has a budget; the program has trials.
        """
        node = self._level("pointer", axes, dimensions)
        if budget is not None:
            above = next((level for level in self.upward() if level.budget is not None), None)
            if above is not None:
                raise QdrunRuntimeError(
                    "a level above has a budget already, which bounds all below it; do: leave out budget= here"
                )
            if self.root.trials.batched:
                raise QdrunRuntimeError("budget= is not available in a program with batch=; do: leave out budget=")
            node.budget = int(budget)
        return node

    def bitmasked(self, axes: Axes | Sequence[int], dimensions: int | Sequence[int]) -> SNode:
        """As ``pointer``: a dense level with a flag for each cell."""
        return self._level("bitmasked", axes, dimensions)

    def dynamic(self, axis: Axes | Sequence[int], dimension: int | Sequence[int], chunk_size: int | None = None) -> SNode:
        """A list in each cell of this level: fields placed in it hold up to ``dimension`` elements, of which a length says how many exist.

        Args:
            axis: one axis, as ``qd.j``.
            dimension: the capacity. Its memory is allocated at once, so ``chunk_size`` means nothing.
            chunk_size: for programs of Quadrants.

        Raises:
            QdrunRuntimeError: it is not one axis, or a level above has it; and as ``dense``.
        """
        del chunk_size
        over = Axes(axis)
        if len(over) != 1 or over[0] in self.cells:
            raise QdrunRuntimeError(
                f"dynamic({over!r}, ..) takes one axis that no level above has; do: qd.root.dense(qd.i, n).dynamic(qd.j, m)"
            )
        return self._level("dynamic", over, dimension)

    def _level(self, kind: str, axes: Axes | Sequence[int], dimensions: int | Sequence[int]) -> SNode:
        over = Axes(axes)
        extents = (dimensions,) * len(over) if isinstance(dimensions, (int, np.integer)) else tuple(dimensions)
        if len(extents) == 1:
            extents *= len(over)
        if len(extents) != len(over) or len(set(over)) != len(over):
            raise QdrunRuntimeError(f"{kind}({over!r}, ..) takes {len(over)} extents of different axes, not {extents}")
        if self.kind == "dynamic":
            raise QdrunRuntimeError(
                f"{kind}(..) under a dynamic level is not available; do: place the fields in the dynamic level"
            )
        if any(not isinstance(e, (int, np.integer)) or e <= 0 for e in extents):
            raise QdrunRuntimeError(f"the extents of a {kind} level are positive integers, not {extents}")
        node = SNode(self.root, self, over, tuple(int(e) for e in extents), kind)
        self.adopt(node)
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
            f.enter(self, offset)
        return self

    def begin_activity(self, leaf: TreeLeaf) -> None:
        """Place the activity of a sparse level, for the first leaf in it."""
        if self.kind == "dense" or self.flags is not None:
            return
        home = self._above if self.kind == "dynamic" else self
        assert home is not None
        self.flags, self.visited = leaf.activity("length" if self.kind == "dynamic" else "active"), leaf.activity("visited")
        for each in (self.flags, self.visited):
            each.level = home
            home.adopt(each)
        if self.budget is not None:
            self.blocks = BlockPool(leaf.activity("block"), leaf.activity("free"))
            self.blocks.slots.level = self
            self.blocks.free.level = SNode(self.root, self.root, Axes((0,)), (prod(self.shape) + 1,))
            self.adopt(self.blocks.slots)
            self.adopt(self.blocks.free)

    @property
    def pool(self) -> SNode | None:
        """This level or the one above that has a budget."""
        return next((level for level in self.upward() if level.budget is not None), None)

    @property
    def sparse(self) -> bool:
        """Whether this level or one above has inactive cells."""
        return any(node.kind != "dense" for node in self.upward())

    def deactivate_all(self) -> None:
        """Deactivate every cell of this level and of those below it: their fields, gradients and duals become 0.

        A dense level has no activity of its own; that of the levels below it ends.

        Raises:
            QdrunRuntimeError: one of them has a budget, and a tape has recorded launches.
        """
        pool = next((level for level in levels_of(self) if level.blocks is not None), None)
        tape = self.root.program.recorders.tape
        if pool is not None and tape is not None and not tape.empty:
            raise QdrunRuntimeError(freed_in_a_tape("deactivate_all()", pool.name))
        if self.sparse:
            for leaf in leaves_of(self):
                leaf.fill(0)
            if self.kind == "dynamic" and self.flags is not None:
                self.flags.fill(0)
            return
        for child in list(self.children):
            if isinstance(child, SNode):
                child.deactivate_all()

    def __qd_value__(self) -> LevelRef:
        """The level inside a kernel."""
        root = self.root
        if root.pending:
            root.program.materialize()
        return self._ref()

    def _ref(self) -> LevelRef:
        above = None if self._above is None else self._above._ref()
        flags, visited = (None if leaf is None else leaf._places[0] for leaf in (self.flags, self.visited))
        leaves = [leaf for leaf in leaves_of(self) if not leaf.role] if self.sparse else []
        blocks = [level.blocks for level in levels_of(self) if level.blocks is not None]
        own = {self.flags, self.visited, *(leaf for each in blocks for leaf in (each.slots, each.free))}
        below = tuple(leaf.reference() for leaf in leaves if leaf not in own)
        found = tuple(level._pool_ref() for level in levels_of(self) if level.blocks is not None)
        return LevelRef(self.name, self.kind, tuple(self.cells), self.shape, above, flags, visited, below, found)

    def _pool_ref(self) -> PoolRef:
        """The blocks of this level inside a kernel."""
        assert self.blocks is not None and self.flags is not None and self.budget is not None
        gradients = tuple(leaf.reference() for leaf in leaves_of(self) if leaf.role.endswith("grad"))
        flags, slots, free = (leaf._places[0] for leaf in (self.flags, self.blocks.slots, self.blocks.free))
        return PoolRef(self.name, flags, slots, free, self.blocks.count, self.blocks.block_bytes, self.budget, gradients)

    def lazy_grad(self) -> None:
        """Place a gradient beside every real field of this level and of those below it that has none.

        Under the root, once a kernel has run: beside those that have no memory yet, as kernels would not see gradients of the others.
        """
        self._lazy("grad")

    def lazy_dual(self) -> None:
        """Place a dual beside every real field of this level and of those below it that has none."""
        self._lazy("dual")

    def lazy_hessian(self) -> None:
        """Place what ``qd.ad.hvp`` needs beside every real field of this level and of those below it: gradient, dual, and its gradient."""
        self._lazy("grad")
        self._lazy("dual")
        self._lazy("dual.grad")

    def _extensible(self) -> list[SNode | TreeLeaf]:
        """The children that may get gradients."""
        return list(self.children)

    def _lazy(self, role: str) -> None:
        for child in self._extensible():
            if isinstance(child, SNode):
                child._lazy(role)
            elif child.role or not child.dtype.is_real or self.root.is_shared(child):
                continue
            elif not attrgetter(role)(child).placed:
                self.place(attrgetter(role)(child))

    def adopt(self, child: SNode | TreeLeaf) -> None:
        """Add a child.

        Raises:
            QdrunRuntimeError: the level has memory already.
        """
        top = self
        while top._above is not None and top._above._above is not None:
            top = top._above
        if top is not self.root and top in self.root.done:
            raise QdrunRuntimeError(
                "this level has its memory already; do: place everything before the first kernel, or use a new dense"
            )
        self.children.append(child)


class PlaceNode(SNode):
    """The place of a field: a level without axes, of which there is one for each field.

    Attributes:
        leaf: the field.
    """

    def __init__(self, parent: SNode, leaf: TreeLeaf) -> None:
        super().__init__(parent.root, parent, Axes(), ())
        self.leaf = leaf

    @property
    def name(self) -> str:
        """That of the field."""
        return self.leaf.name

    @property
    def dtype(self) -> DType:
        """The type of the field's components."""
        return self.leaf.dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlaceNode) and other.leaf is self.leaf

    def __hash__(self) -> int:
        return hash(("place", id(self.leaf)))

    def __repr__(self) -> str:
        return f"{self._above!r}.place({self.leaf.name})"

    def _level(self, kind: str, axes: Axes | Sequence[int], dimensions: int | Sequence[int]) -> SNode:
        raise QdrunRuntimeError(f"{kind}(..) under the place of `{self.name}`; do: {kind}(..) of x.parent(), beside the field")

    def adopt(self, child: SNode | TreeLeaf) -> None:
        """Refuse a child."""
        raise QdrunRuntimeError(f"place(..) in the place of `{self.name}`; do: x.parent().place(..), beside the field")


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
        self.done: Living[SNode | TreeLeaf] = Living()  # also of trees that were destroyed
        self._names = 0
        self._settled = 0  # the first children: they have memory

    @property
    def pending(self) -> list[SNode | TreeLeaf]:
        """The children that hold something and have no memory yet."""
        while self._settled < len(self.children) and self.children[self._settled] in self.done:
            self._settled += 1
        rest = [c for c in self.children[self._settled :] if c not in self.done]
        return [c for c in rest if not isinstance(c, SNode) or any(True for _ in leaves_of(c))]

    def _extensible(self) -> list[SNode | TreeLeaf]:
        late = self.program is not None and (self.program.variants or self.program.state.tangents)
        return self.pending if late else super()._extensible()

    @property
    def trials(self) -> TrialLayout:
        """The trials of the program."""
        return ONE if self.program is None else self.program.batch.layout

    def is_shared(self, leaf: TreeLeaf) -> bool:
        """Whether all trials of a batched program have the field in common."""
        return self.trials.batched and not leaf.per_trial

    def own(self, part: SNode) -> None:
        """Count a tree of its own, which has memory now, among the children."""
        self.children.append(part)
        self.done.add(part)

    def forget(self, part: SNode) -> None:
        """Take such a tree out again. Nothing can be placed in it."""
        self.children.remove(part)
        self._settled = 0

    def next_name(self) -> str:
        """A name for a field that was given none: its number in the program, so that it is the same in every run."""
        self._names += 1
        return f"field_{self._names}"

    def fields(self) -> list[TreeLeaf]:
        """Every placed field and gradient, in order of placement."""
        return list(leaves_of(self))


def levels_of(node: SNode) -> Iterator[SNode]:
    """A level and those below it."""
    yield node
    for child in node.children:
        if isinstance(child, SNode):
            yield from levels_of(child)


def leaves_of(node: SNode) -> Iterator[TreeLeaf]:
    """What is placed in a level and in those below it, in order of placement."""
    for child in node.children:
        if isinstance(child, SNode):
            yield from leaves_of(child)
        else:
            yield child


def planes_like(node: SNode, components: int) -> SNode:
    """A level with the axes of another one, for a field whose components have a plane each."""
    levels = [level for level in node.upward() if level.axes]
    new = next(level for level in node.upward() if not level.axes).dense(Axes((PLANES,)), components)
    for level in reversed(levels):
        new = new.dense(level.axes, level.extents)
    return new


def level_of(top: SNode, extents: tuple[int, ...], nested: tuple[int, ...] | None) -> SNode:
    """The level of a field that is given a shape: one dense, or one per axis when their order is asked for."""
    if not extents:
        return top
    if nested is None:
        return top.dense(Axes(range(len(extents))), extents)
    for axis in nested:
        top = top.dense(Axes((axis,)), extents[axis])
    return top
