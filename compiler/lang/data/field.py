"""Fields: named arrays of numbers, vectors or matrices that belong to a program and are placed in its layout tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import QdrunRuntimeError, QdrunTypeError
from ...frontend.values.tensor import TensorRef
from ...frontend.values.values import count
from ...ir.nodes import CellBlocks, Place
from ...ir.types import DType, i32
from ...program.layout.leaf import TreeLeaf
from ...program.layout.offsets import PLANES, lowest
from ...program.layout.sparse import activate, at_active, in_blocks, joined, parted
from ...program.layout.tree import PlaceNode, Root, SNode, planes_like
from ...program.program import Program
from ...runtime.base import Allocation
from ...runtime.mirror import Mirror, copied
from ..interop import numpy_of, torch_of
from .access import assign_array, component_number, element_index, get_element, part_indices
from .placed import Placed, refuse_at_compile_time, shared_gradient

ROLES = {"": "", "grad": "needs_grad=True", "dual": "needs_dual=True"}


class Field(Placed, TreeLeaf):
    """A field, or the gradient (``role`` "grad") or dual of one. Made by ``qd.field``, ``Vector.field``, ``Matrix.field``.

    Attributes:
        dtype: the component type.
        element: ``()`` for scalars, ``(n,)`` or ``(n, m)``.
        name: what messages call it.
        named: False while ``name`` is a number that stands for a name not known yet.
        role: "" for a field, "grad" or "dual" for what belongs to ``primal``; the gradient of a dual belongs to the dual.
        per_trial: each trial of a batched program has its own.
        hidden: it holds the activity of a sparse level.
    """

    _kind = "a field"

    def __init__(
        self, root: Root, dtype: DType, element: tuple[int, ...], name: str, role: str = "", primal: Field | None = None
    ) -> None:
        self._root, self.dtype, self.element, self.name, self.role, self.primal = root, dtype, element, name, role, primal
        self.per_trial = True if primal is None else primal.per_trial
        self.named, self.hidden = True, False
        self._activities: list[Field] = []  # of the levels that were empty before it was placed there
        self.level: SNode | None = None
        self.along = []  # companions that are placed with it: gradients that were requested before the field was placed
        self._places: tuple[Place, ...] = ()
        self._view: np.ndarray | None = None
        self._storage: Allocation | None = None  # of the memory that ``_view`` shows
        self._ref: TensorRef | None = None
        self._relatives: dict[str, Field] = {}
        self._layout: tuple[int, ...] | None = None
        self._lowest: tuple[int, ...] | None = None  # the index of the first element; gradients ask their field
        self._at_zero: Field | None = None  # see ``tensor.from_zero``
        self._parts: dict[int, Component] = {}  # components that were asked for before the field was placed
        self.planar = False  # each component has a plane of its own; known once the field is placed

    @property
    def components(self) -> int:
        return count(self.element)

    @property
    def placed(self) -> bool:
        """Whether it has a place in the layout tree, or gets one beside its field."""
        first = self._first
        return self.level is not None or (first is not self and self in first.along and first.placed)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the index space.

        Raises:
            QdrunRuntimeError: the field is not placed.
        """
        if not self.placed:
            raise self._unplaced()
        node = self.level or self._first.level
        assert node is not None
        return node.shape

    @property
    def offset(self) -> tuple[int, ...]:
        """The lowest index of each axis: the indices of axis k are ``offset[k]`` to ``offset[k] + shape[k] - 1``.

        Raises:
            QdrunRuntimeError: the field is not placed.
        """
        return self._begins or (0,) * len(self.shape)

    @property
    def _begins(self) -> tuple[int, ...] | None:
        """``offset``, None for zeros."""
        return self._first._lowest

    @property
    def _first(self) -> Field:
        """The field that this is, or belongs to."""
        return self if self.primal is None else self.primal._first

    @property
    def grad(self) -> Field:
        """The gradient. It exists for every real field; it has memory only when it is placed.

        Raises:
            QdrunTypeError: the field is not real.
        """
        return self._relative("grad")

    @property
    def dual(self) -> Field:
        """The tangent of forward mode; as ``grad``."""
        return self._relative("dual")

    def _relative(self, role: str) -> Field:
        if role not in self._relatives:
            if not self.dtype.is_real or (self.role, role) not in (("", "grad"), ("", "dual"), ("dual", "grad")):
                what = f"{self.dtype} is not real" if not self.role else f"it is itself a {self.role}"
                raise QdrunTypeError(f"`{self.name}` has no {role}: {what}")
            made = self._relatives[role] = Field(self._root, self.dtype, self.element, f"{self.name}.{role}", role, self)
            made._layout = self._layout
        return self._relatives[role]

    @property
    def element_shape(self) -> tuple[int, ...]:
        """() for numbers, (n,) for vectors, (n, m) for matrices."""
        return self.element

    @property
    def layout(self) -> tuple[int, ...] | None:
        """The axis at each level of nesting, outermost first, as ``layout`` or ``order`` asked for; None for the order of the axes."""
        return self._layout

    def has_grad(self) -> bool:
        """Whether a gradient is stored: the field is real and its gradient is placed."""
        return self.dtype.is_real and not self.role and self.grad.placed

    def has_dual(self) -> bool:
        """Whether a dual is stored."""
        return self.dtype.is_real and not self.role and self.dual.placed

    def parent(self, n: int = 1) -> SNode | None:
        """The level of the layout tree that holds the field, or the n-th above; None above the root. 0: its ``snode``.

        Raises:
            QdrunRuntimeError: the field is not placed, or n is no number of levels.
        """
        return self.snode.parent(n)

    @property
    def snode(self) -> SNode:
        """Its place as a level without axes: ``x.snode.parent()`` is ``x.parent()``.

        Raises:
            QdrunRuntimeError: the field is not placed.
        """
        node = self.level or self._first.level
        if not self.placed or node is None:
            raise self._unplaced()
        return PlaceNode(node, self)

    def get_scalar_field(self, *indices: int) -> Field:
        """One component as a field of numbers, on the same memory. That of a field without a place can be placed: a field is placed once
        all of its components are.

        Raises:
            QdrunIndexError: there is no such component.
        """
        k = component_number(self.element, self.name, indices)
        if self.placed:
            return component(self, indices, k)
        if k not in self._parts:
            self._parts[k] = Component(self, indices, k)
        return self._parts[k]

    def attach(self, node: SNode, offset: Any = None) -> None:
        """Remember the level that it is placed in, and the lowest index of each axis; ``SNode.place`` calls this.

        Raises:
            QdrunRuntimeError: it is placed already, or elsewhere than its primal's index space, or in another program.
            QdrunSyntaxError: the offset does not fit the shape.
        """
        if self.level is not None:
            raise QdrunRuntimeError(
                f"field `{self.name}` is placed already; a field has one place\n  do: make another field for it"
            )
        if node.root is not self._root:
            raise QdrunRuntimeError(f"field `{self.name}` belongs to another program; do: make it after qd.init()")
        if self.primal is not None and self._root.is_shared(self):
            raise shared_gradient(f"field `{self.primal.name}`")
        if self.primal is not None and self.primal.placed and self.primal.shape != node.shape:
            raise QdrunRuntimeError(f"`{self.name}` needs the shape {self.primal.shape} of its field, not {node.shape}")
        if self.primal is not None and self.primal.level is not node and (node.sparse or self.primal._level is not None):
            raise QdrunRuntimeError(
                f"`{self.name}` has the active cells of `{self.primal.name}`; do: place it in the same level, behind `{self.primal.name}`"
            )
        if self.primal is not None and self.primal._view is not None and getattr(self._root.program, "variants", None):
            raise QdrunRuntimeError(
                f"`{self.name}` is placed after a kernel ran: kernels that use `{self.primal.name}` would not see it\n"
                f"  do: place `{self.name}` together with its field, or before the first kernel"
            )
        begins = lowest(offset, node.shape)
        if self.primal is not None and offset is not None and (not self.primal.placed or self.primal._lowest != begins):
            raise QdrunRuntimeError(
                f"`{self.name}` has the indices of its field; do: place the field first, and `{self.name}` without an offset"
            )
        if begins is not None and any(relative._view is not None for relative in self._relatives.values()):
            raise QdrunRuntimeError(
                f"field `{self.name}` gets an offset, and its gradient is in use already; do: place the field first"
            )
        if self.primal is None:
            self._lowest = begins
        self.level = node
        self.planar = any(PLANES in level.axes for level in node.upward())
        for part in self._parts.values():
            part.level, part._lowest, part.planar = node, self._begins, self.planar

    def activity(self, what: str) -> Field:
        """See ``TreeLeaf``. It is named after this field."""
        out = Field(self._root, i32, (), f"{self.name}.{what}")
        out.hidden, out.per_trial = True, self.per_trial
        self._activities.append(out)
        return out

    def settle(self, places: tuple[Place, ...], view: np.ndarray) -> None:
        """Receive memory; ``materialize.materialize`` calls this."""
        self._places, self._view, self._ref = places, view, None
        owner = places[0].buffer.owner
        self._storage = owner if isinstance(owner, Allocation) else None
        for owner in [self] if self.primal is None else [self, self.primal]:
            for role, relative in owner._relatives.items():
                for p, own in zip(owner._places, relative._places):
                    setattr(p, role, own)
        self._first._ref = None
        for part in self._parts.values():
            share(self, part, part._k)

    def release(self) -> None:
        self._view = self._at_zero = None
        for part in self._parts.values():
            part._view = None

    @property
    def _mirror(self) -> Mirror | None:  # type: ignore[override]
        return None if self._storage is None else self._storage.mirror

    def _mirror_if_placed(self) -> Mirror | None:
        program: Program = self._root.program
        if self._view is None and self.placed and not program.closed and not program.device.on_host:
            program.materialize()
        return self._mirror

    @property
    def _owner(self) -> Program:
        return self._root.program

    @property
    def _all(self) -> np.ndarray:
        """See ``Placed``.

        Raises:
            QdrunRuntimeError: it has no memory, or its program is closed.
        """
        program = self._owner
        if getattr(program, "closed", False):
            raise QdrunRuntimeError(f"field `{self.name}` belongs to a program that is closed; do: make it after qd.init()")
        if self._storage is not None and self._storage.freed:
            raise QdrunRuntimeError(f"field `{self.name}` was destroyed with its FieldsBuilder; do: make it anew")
        if self._view is None:
            if not self.placed:
                raise self._unplaced()
            program.materialize()
            if self._view is None:
                raise QdrunRuntimeError(
                    f"field `{self.name}` has no memory: it is placed in a FieldsBuilder; do: builder.finalize() before its first use"
                )
        return self._view

    def _unplaced(self) -> QdrunRuntimeError:
        if self._parts:
            rest = [k for k in range(self.components) if k not in self._parts or self._parts[k].wanted is None]
            how = "place its other components, too: " + ", ".join(f"{list(part_indices(self.element, k))}" for k in rest)
        elif self.role:
            how = f"declare the field with {ROLES[self.role]}, or place it: qd.root.dense(..).place(x.{self.role})"
        else:
            how = "give qd.field a shape, or place it: qd.root.dense(qd.i, n).place(x)"
        return QdrunRuntimeError(f"field `{self.name}` has no memory: it is not placed; do: {how}")

    def __qd_name__(self, name: str) -> None:
        """The name in messages: that of ``qd.field``, else the name in the first kernel that uses the field."""
        if self.named or self.role:
            return
        self.named, number = True, self.name
        every = [self, *self._relatives.values()]
        every += [second for relative in self._relatives.values() for second in relative._relatives.values()]
        for field in [*every, *self._activities]:
            field.name = name + field.name[len(number) :]
            for k, place in enumerate(field._places):
                place.name = field.name if not field.element else f"{field.name}_{k}"
            field._ref = None

    def __qd_value__(self) -> TensorRef:
        """The value of the field inside a kernel."""
        _ = self._all
        if self._ref is None:
            shape = self.shape
            level = self._level
            ref = None if level is None else level.__qd_value__()
            self._ref = TensorRef(self.name, self._places, self.element, len(shape), shape, offset=self._begins, level=ref)
        return self._ref

    @property
    def _level(self) -> SNode | None:
        """The level that a sparse field is placed in; None: all elements are active."""
        node = None if self.hidden else self.level or self._first.level
        return node if node is not None and node.sparse else None

    @property
    def _blocks(self) -> SNode | None:
        """The level of a field that lies in blocks, under one with a budget; None: all elements have memory."""
        level = self._level
        return level if level is not None and level.pool is not None else None

    @property
    def _in_blocks(self) -> bool:
        return self._blocks is not None

    def _how(self) -> tuple[np.ndarray, CellBlocks, tuple[int, ...]]:
        """How it lies in blocks: the number of the block of each cell, the blocks, the shape of all elements."""
        level, pool = self._blocks, self._places[0].pool
        assert level is not None and level.pool is not None and level.pool.blocks is not None and pool is not None
        slots: Any = level.pool.blocks.slots
        return slots.to_numpy(), pool, self.shape

    def _at(self, index: tuple[int, ...]) -> tuple[Any, ...]:
        return super()._at(index) if self._blocks is None else in_blocks(self._blocks, index)

    def __getitem__(self, index: Any) -> Any:
        if self._blocks is None:
            return super().__getitem__(index)
        refuse_at_compile_time("reads an element of a field or an array")
        self._looked_at()
        at = in_blocks(self._blocks, element_index(index, self.shape, self.name, self._begins))
        found = copied(self._mirror, self._form[tuple(slice(k, k + 1) for k in at)])
        return self._saw(get_element(found, (0,) * len(at), self._refuse_part), index)

    def _refuse_part(self, *_: Any, **__: Any) -> None:
        raise QdrunTypeError(
            f"a component of an element of `{self.name}` is written in Python, and its level has a budget",
            hint="write the element, x[i] = [..]",
        )

    def _written(self, index: tuple[int, ...] | None = None, source: Any = None, parts: tuple[Any, ...] = ()) -> np.ndarray:
        """The memory, for a write of Python (``index``: one element, ``parts``: components of it). The recorders are told.

        An element of a sparse field becomes active.
        """
        view = self._form
        if index is not None and self._level is not None:
            activate(self._level, index)
        self._root.program.recorders.wrote(self, index, source, parts)
        return view

    def _called(self) -> str:
        return f"`{self.name}`"

    def _shown(self, keep_dims: bool) -> np.ndarray:
        """The memory as conversions show it: a matrix of one column is a vector, unless ``keep_dims`` makes every vector a matrix."""
        if not self.element or self.m != 1:
            return self._form
        vectors = self._form if len(self.element) == 1 else self._form[..., 0]
        return vectors[..., None] if keep_dims else vectors

    def to_numpy(self, dtype: Any = None, keep_dims: bool = False, *, copy: bool | None = True) -> np.ndarray:
        """The content as a numpy array; see ``Exchange.to_numpy``.

        Args:
            dtype: cast to this type.
            keep_dims: show vectors as matrices of one column; without it, matrices of one column are shown as vectors.
            copy: True, False or None.
        """
        if isinstance(dtype, bool):  # a field of matrices takes keep_dims first
            dtype, keep_dims = None if isinstance(keep_dims, bool) else keep_dims, dtype
        if self._blocks is not None:
            found = joined(self._as_numpy(lambda: self._shown(keep_dims), None, True), *self._how())
            return self._saw(found if dtype is None else numpy_of(found, dtype, True, self._called()))
        return self._as_numpy(lambda: self._shown(keep_dims), dtype, copy)

    def to_torch(self, device: Any = None, keep_dims: bool = False, *, copy: bool | None = True) -> Any:
        if self._blocks is not None:
            return torch_of(self.to_numpy(keep_dims=keep_dims), device, True, self._called())
        return self._as_torch(lambda: self._shown(keep_dims), device, copy)

    def _assign(self, array: np.ndarray) -> None:
        """Copy an array of the shape that ``to_numpy`` shows, with or without ``keep_dims``."""
        form, trials = self._shown(False), self._whole
        if self._level is not None:
            array = at_active(self._level, self.shape, array)
        if self.element and self.m == 1:
            leading = [self.shape, trials.shape(self.shape)]
            if array.ndim >= 2 and array.shape[:-2] in leading and array.shape[-2:] in ((self.n, 1), (1, self.n)):
                array = array.reshape(*array.shape[:-2], self.n)  # columns, or rows
        if self._blocks is not None and array.shape[: len(self.shape)] == self.shape:
            array = parted(array, *self._how())
        assign_array(form, array, self.name, self._mirror, trials=trials)

    def __repr__(self) -> str:
        shape = self.shape if self.placed else "not placed"
        return f"<field {self.name}: {self.dtype}{list(self.element) or ''}, {shape}>"


class Component(Field):
    """A component of a field that had no place when it was asked for. With the last component that is placed, the field is.

    Attributes:
        wanted: where it was placed, and with which offset; None: not yet.
    """

    def __init__(self, whole: Field, indices: tuple[int, ...], k: int) -> None:
        super().__init__(whole._root, whole.dtype, (), part_name(whole, indices), whole.role)
        self.per_trial, self._whole_field, self._indices, self._k = whole.per_trial, whole, indices, k
        self.wanted: tuple[SNode, Any] | None = None

    def _relative(self, role: str) -> Field:
        return self._whole_field._relative(role).get_scalar_field(*self._indices)

    @property
    def placed(self) -> bool:
        return self._whole_field.placed

    def _unplaced(self) -> QdrunRuntimeError:
        return self._whole_field._unplaced()

    def enter(self, node: SNode, offset: Any) -> None:
        """Take a place in a level. Components in one level are interleaved there; otherwise each has a plane of its own.

        Raises:
            QdrunRuntimeError: it has a place already, or another shape or offset than the components before; see ``Field.attach``.
        """
        whole = self._whole_field
        if self.wanted is not None or whole.level is not None:
            raise QdrunRuntimeError(
                f"field `{self.name}` is placed already; a field has one place\n  do: make another field for it"
            )
        before = [part.wanted for part in whole._parts.values() if part.wanted is not None]
        if any((level.shape, begins) != (node.shape, offset) for level, begins in before):
            other, begins = before[0]
            raise QdrunRuntimeError(
                f"`{self.name}` is placed with the shape {node.shape} and the offset {offset}, another component of `{whole.name}` with"
                f" {other.shape} and {begins}\n  do: place all components of a field with one shape"
            )
        if any(level is not node and (level.sparse or node.sparse) for level, _ in before):
            raise QdrunRuntimeError(
                f"the components of `{whole.name}` have their active cells in common\n  do: place all of them in one sparse level"
            )
        self.wanted = node, offset
        if len(before) + 1 == whole.components:
            apart = any(level is not node for level, _ in before)
            (planes_like(node, whole.components) if apart else node).place(whole, offset=offset)


def part_name(whole: Field, indices: tuple[int, ...]) -> str:
    """What messages call a component."""
    return f"{whole.name}[{', '.join(map(str, indices))}]"


def component(whole: Field, indices: tuple[int, ...], k: int) -> Field:
    """One component of a placed field of vectors or matrices as a field of numbers on the same memory."""
    out = Field(whole._root, whole.dtype, (), part_name(whole, indices), whole.role)
    out.level, out._layout, out._lowest, out.per_trial = whole.parent(), whole._layout, whole._begins, whole.per_trial
    for role in ("grad", "dual"):
        if not whole.role and role in whole._relatives and whole._relatives[role].placed:
            out._relatives[role] = component(whole._relatives[role], indices, k)
            out._relatives[role].primal = out
    share(whole, out, k)
    return out


def share(whole: Field, part: Field, k: int) -> None:
    """Give a component its part of the memory of its field."""
    view = whole._all
    part._places, part._view, part._storage = (whole._places[k],), view[(..., *part_indices(whole.element, k))], whole._storage
