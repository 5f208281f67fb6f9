"""Fields: named arrays of numbers, vectors or matrices that belong to a program and are placed in its layout tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import QdrunRuntimeError, QdrunTypeError
from ..frontend.tensor import TensorRef
from ..frontend.values import count
from ..ir.nodes import Place
from ..ir.types import DType
from .access import assign_array, element_index, fill_array, get_element, set_element
from .dtypes import resolve
from .snode import AXIS_NAMES, Axes, Root, SNode
from .types import MatrixType

if TYPE_CHECKING:
    from .program import Program

ROLES = {"": "", "grad": "needs_grad=True", "dual": "needs_dual=True"}


class Field:
    """A field, or the gradient (``role`` "grad") or dual of one. Made by ``qd.field``, ``Vector.field``, ``Matrix.field``.

    Attributes:
        dtype: the component type.
        element: ``()`` for scalars, ``(n,)`` or ``(n, m)``.
        name: what messages call it.
        named: False while ``name`` is a number that stands for a name not known yet.
        role: "" for a field, "grad" or "dual" for what belongs to ``primal``.
    """

    def __init__(
        self, root: Root, dtype: DType, element: tuple[int, ...], name: str, role: str = "", primal: Field | None = None
    ) -> None:
        self._root, self.dtype, self.element, self.name, self.role, self.primal = root, dtype, element, name, role, primal
        self.named = True
        self.snode: SNode | None = None
        self.along: list[Field] = []  # what is placed with it: gradients that were asked for before it had a place
        self._places: tuple[Place, ...] = ()
        self._view: np.ndarray | None = None
        self._ref: TensorRef | None = None
        self._relatives: dict[str, Field] = {}

    @property
    def components(self) -> int:
        """Numbers per element."""
        return count(self.element)

    @property
    def n(self) -> int:
        """Rows of an element."""
        return self.element[0] if self.element else 1

    @property
    def m(self) -> int:
        """Columns of an element, 1 for vectors."""
        return self.element[1] if len(self.element) == 2 else 1

    @property
    def placed(self) -> bool:
        """Whether it has a place in the layout tree, or gets one beside its field."""
        return self.snode is not None or (self.primal is not None and self in self.primal.along and self.primal.placed)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the index space.

        Raises:
            QdrunRuntimeError: the field is not placed.
        """
        if not self.placed:
            raise self._unplaced()
        node = self.snode or (self.primal.snode if self.primal is not None else None)
        assert node is not None
        return node.shape

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
            if not self.dtype.is_real or self.role:
                what = f"{self.dtype} is not real" if not self.role else f"it is itself a {self.role}"
                raise QdrunTypeError(f"`{self.name}` has no {role}: {what}")
            self._relatives[role] = Field(self._root, self.dtype, self.element, f"{self.name}.{role}", role, self)
        return self._relatives[role]

    def attach(self, node: SNode) -> None:
        """Remember the level that it is placed in; ``SNode.place`` calls this.

        Raises:
            QdrunRuntimeError: it is placed already, or elsewhere than its primal's index space, or in another program.
        """
        if self.snode is not None:
            raise QdrunRuntimeError(f"field `{self.name}` is placed already; a field has one place")
        if node.root is not self._root:
            raise QdrunRuntimeError(f"field `{self.name}` belongs to another program; do: make it after qd.init()")
        if self.primal is not None and self.primal.placed and self.primal.shape != node.shape:
            raise QdrunRuntimeError(f"`{self.name}` needs the shape {self.primal.shape} of its field, not {node.shape}")
        if self.primal is not None and self.primal._view is not None and getattr(self._root.program, "variants", None):
            raise QdrunRuntimeError(
                f"`{self.name}` is placed after a kernel ran: kernels that use `{self.primal.name}` would not see it\n"
                f"  do: place `{self.name}` together with its field, or before the first kernel"
            )
        self.snode = node

    def settle(self, places: tuple[Place, ...], view: np.ndarray) -> None:
        """Receive memory; ``snode.materialize`` calls this."""
        self._places, self._view, self._ref = places, view, None
        primal = self if self.primal is None else self.primal
        grad = primal._relatives.get("grad")
        if grad is not None:
            for p, g in zip(primal._places, grad._places):
                p.grad = g
        primal._ref = None

    def release(self) -> None:
        """Let go of the memory; the program is being closed."""
        self._view = None

    @property
    def view(self) -> np.ndarray:
        """The memory as a numpy array of shape ``shape + element``, written through.

        Raises:
            QdrunRuntimeError: the field is not placed, or its program is closed.
        """
        program: Program = self._root.program
        if getattr(program, "closed", False):
            raise QdrunRuntimeError(f"field `{self.name}` belongs to a program that is closed; do: make it after qd.init()")
        if self._view is None:
            if not self.placed:
                raise self._unplaced()
            program.materialize()
            assert self._view is not None
        return self._view

    def _unplaced(self) -> QdrunRuntimeError:
        if self.role:
            how = f"declare the field with {ROLES[self.role]}, or place it: qd.root.dense(..).place(x.{self.role})"
        else:
            how = "give qd.field a shape, or place it: qd.root.dense(qd.i, n).place(x)"
        return QdrunRuntimeError(f"field `{self.name}` has no memory: it is not placed; do: {how}")

    def __qd_name__(self, name: str) -> None:
        """What the first kernel that uses the field calls it, for messages, unless ``qd.field`` was given a name."""
        if self.named or self.role:
            return
        self.named, number = True, self.name
        for field in (self, *self._relatives.values()):
            field.name = name + field.name[len(number) :]
        for field in (self, *self._relatives.values()):
            for k, place in enumerate(field._places):
                place.name = field.name if not field.element else f"{field.name}_{k}"
            field._ref = None

    def __qd_value__(self) -> TensorRef:
        """What a kernel sees."""
        view = self.view
        if self._ref is None:
            dual = self._relatives.get("dual")
            tangent = dual.__qd_value__() if dual is not None and dual.placed else None
            shape = view.shape[: view.ndim - len(self.element)]
            self._ref = TensorRef(self.name, self._places, self.element, len(shape), shape, dual=tangent)
        return self._ref

    def __getitem__(self, index: Any) -> Any:
        view = self.view
        return get_element(view, element_index(index, self.shape, self.name))

    def _written(self) -> np.ndarray:
        """The memory, about to be written by Python: an open tape takes note."""
        tape = getattr(self._root.program, "tape", None)
        if tape is not None:
            tape.wrote(self)
        return self.view

    def __setitem__(self, index: Any, value: Any) -> None:
        view = self._written()
        set_element(view, element_index(index, self.shape, self.name), value, self.name)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        raise QdrunTypeError(f"field `{self.name}` cannot be iterated in Python", hint="use x.to_numpy(), or a kernel")

    def fill(self, value: Any) -> None:
        """Write ``value`` (a number, or a vector for vector fields) to every element."""
        fill_array(self._written(), value, self.element, self.name)

    def to_numpy(self, dtype: Any = None) -> np.ndarray:
        """A copy of shape ``shape + element``."""
        return np.array(self.view, None if dtype is None else resolve(dtype).numpy, order="C")

    def from_numpy(self, array: Any) -> None:
        """Copy an array of shape ``shape + element``; values are cast.

        Raises:
            QdrunTypeError: the shapes differ.
        """
        assign_array(self._written(), array, self.name)

    def copy_from(self, other: Field) -> None:
        """Copy another field of the same shape."""
        assign_array(self._written(), other.view, self.name)

    def __repr__(self) -> str:
        shape = self.shape if self.placed else "not placed"
        return f"<field {self.name}: {self.dtype}{list(self.element) or ''}, {shape}>"


def field(
    dtype: Any,
    shape: int | tuple[int, ...] | None = None,
    needs_grad: bool = False,
    needs_dual: bool = False,
    name: str = "",
    order: str | None = None,
) -> Field:
    """Make a field.

    Args:
        dtype: a scalar type (``qd.f32``, ``float``) or a vector or matrix type.
        shape: the extents, () for one number; None leaves the placement to ``qd.root``.
        needs_grad: also place ``x.grad``.
        needs_dual: also place ``x.dual``.
        name: what messages call it.
        order: the nesting of the axes in memory, as "ji"; without it the last axis is contiguous.

    Raises:
        QdrunTypeError: a gradient of an integer field.
    """
    if isinstance(dtype, MatrixType):
        return dtype.field(shape, needs_grad=needs_grad, needs_dual=needs_dual, name=name, order=order)
    return make_field(resolve(dtype), shape, (), needs_grad, needs_dual, name, order)


def make_field(
    dtype: DType,
    shape: Any,
    element: tuple[int, ...],
    needs_grad: bool = False,
    needs_dual: bool = False,
    name: str = "",
    order: str | None = None,
    root: Root | None = None,
) -> Field:
    """A field of any element shape; ``root`` is that of the current program unless it is given."""
    if (needs_grad or needs_dual) and not dtype.is_real:
        raise QdrunTypeError(
            f"{dtype} is not supported for a field with needs_grad=True or needs_dual=True", hint="use qd.f32 or qd.f64"
        )
    if root is None:
        from .program import current_program

        root = current_program().root
    out = Field(root, dtype, element, name or root.next_name())
    out.named = bool(name)
    wanted = [out, *([out.grad] if needs_grad else []), *([out.dual] if needs_dual else [])]
    if shape is None:
        out.along = wanted[1:]
        return out
    extents = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
    _level(root, extents, order).place(*wanted)
    return out


def _level(root: Root, extents: tuple[int, ...], order: str | None) -> SNode:
    """The level of a field that is given a shape: one dense, or one per axis when their order is asked for."""
    if not extents:
        return root
    if order is None:
        return root.dense(Axes(range(len(extents))), extents)
    if sorted(order) != list(AXIS_NAMES[: len(extents)]):
        raise QdrunRuntimeError(
            f"order={order!r} does not name the axes of shape {extents}; do: order={AXIS_NAMES[: len(extents)]!r}"
        )
    level: SNode = root
    for letter in order:
        axis = AXIS_NAMES.index(letter)
        level = level.dense(Axes((axis,)), extents[axis])
    return level
