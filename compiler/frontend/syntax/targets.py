"""Places that a statement can write: variables, their components, elements of fields and arrays, components of elements.

A target is resolved once (its indices are evaluated once) and can then be read, written and updated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import QdrunTypeError
from ...ir.builder import convert
from ...ir.nodes import Const, Local, Operand
from ..state.builder import FrontBuilder
from ..values import ops
from ..values.matrix import item_at, load_matrix, position, set_item, store_matrix
from ..values.structs import describe_struct, same_members
from ..values.tensor import TensorRef
from ..values.values import MatrixLocal, MatrixValue, StructForm, StructValue

PYTHON_OP = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}


@dataclass(frozen=True, eq=False)
class LocalTarget:
    """A scalar variable."""

    local: Local

    def read(self, b: FrontBuilder) -> Operand:
        """The content."""
        return b.load(self.local)

    def write(self, b: FrontBuilder, value: Any) -> None:
        """Assign; the value is cast to the variable's type.

        Raises:
            QdrunTypeError: the value is not a scalar.
        """
        if isinstance(value, (MatrixValue, tuple, list, StructValue)):
            hint = "use another name: a variable keeps its type"
            raise QdrunTypeError(f"`{self.local.name}` holds a number, and is assigned {ops.describe_value(value)}", hint=hint)
        b.store(self.local, ops.to_operand(b, ops.cast(b, value, self.local.dtype)))


@dataclass(frozen=True, eq=False)
class MatrixTarget:
    """A variable that holds a matrix."""

    local: MatrixLocal

    def read(self, b: FrontBuilder) -> MatrixValue:
        """The content."""
        return load_matrix(b, self.local)

    def write(self, b: FrontBuilder, value: Any) -> None:
        """Assign; a scalar is written to every component."""
        value = ops.cast(b, value, self.local.dtype)
        store_matrix(b, self.local, value)


@dataclass(frozen=True, eq=False)
class ItemTarget:
    """A component of a matrix variable, at an index known now or at run time."""

    local: MatrixLocal
    index: tuple[Any, ...]

    def read(self, b: FrontBuilder) -> Any:
        """The component; with an index known now, only its own variable is loaded."""
        where = position(b, self.local.shape, self.index, self.local.name)
        return b.load(self.local.locals[where]) if isinstance(where, int) else item_at(b, load_matrix(b, self.local), where)

    def write(self, b: FrontBuilder, value: Any) -> None:
        """Assign the component."""
        set_item(b, self.local, self.index, ops.to_operand(b, ops.cast(b, value, self.local.dtype)))


@dataclass(frozen=True, eq=False)
class ElementTarget:
    """An element of a field or an array: a scalar or a whole matrix."""

    ref: TensorRef
    index: tuple[Any, ...]

    def read(self, b: FrontBuilder) -> Any:
        """The element."""
        return self.ref.load(b, self.index)

    def write(self, b: FrontBuilder, value: Any) -> None:
        """Store the element (not atomic)."""
        self.ref.store(b, self.index, value)

    def atomic(self, b: FrontBuilder, code: str, value: Any) -> Any:
        """Update; the result is the old content."""
        return self.ref.atomic(b, code, self.index, value)


@dataclass(frozen=True, eq=False)
class ComponentTarget:
    """A component of a matrix element. ``item`` is its index, known now or at run time."""

    ref: TensorRef
    index: tuple[Any, ...]
    item: tuple[Any, ...]

    def read(self, b: FrontBuilder) -> Any:
        """The component; with an index known now, only its own place is loaded."""
        where = position(b, self.ref.element, self.item, f"{self.ref.name}[..]")
        if isinstance(where, int):
            return self.ref.component(where).load(b, self.index)
        value = self.ref.load(b, self.index)
        assert isinstance(value, MatrixValue)
        return item_at(b, value, where)

    def write(self, b: FrontBuilder, value: Any) -> None:
        """Store the component (not atomic)."""
        self._each(b, lambda part: part.store(b, self.index, value))

    def atomic(self, b: FrontBuilder, code: str, value: Any) -> Operand:
        """Update; the result is the old content (0 when a run-time component is out of range)."""
        where = position(b, self.ref.element, self.item, f"{self.ref.name}[..]")
        if isinstance(where, int):
            return ops.to_operand(b, self.ref.component(where).atomic(b, code, self.index, value))
        old = b.local(Const(convert(0, self.ref.dtype), self.ref.dtype), "old")
        self._each(b, lambda part: b.store(old, ops.to_operand(b, part.atomic(b, code, self.index, value))), where)
        return b.load(old)

    def _each(self, b: FrontBuilder, write: Callable[[TensorRef], None], where: int | Operand | None = None) -> None:
        """``write`` the component: at once when its index is known, else each under the condition that it is the one."""
        where = position(b, self.ref.element, self.item, f"{self.ref.name}[..]") if where is None else where
        if isinstance(where, int):
            write(self.ref.component(where))
            return
        for k in range(len(self.ref.places)):
            with b.if_(ops.truth(b, ops.compare(b, "==", where, k))):
                write(self.ref.component(k))


@dataclass(frozen=True, eq=False)
class PartsTarget:
    """Several components at once: ``v.xy``, ``m[1, :]``. ``shape``: that of the value; () stands for a vector."""

    parts: tuple[ItemTarget | ComponentTarget, ...]
    shape: tuple[int, ...] = ()

    def read(self, b: FrontBuilder) -> MatrixValue:
        """The components as a vector or a matrix."""
        return MatrixValue(self.shape or (len(self.parts),), tuple(p.read(b) for p in self.parts))

    def write(self, b: FrontBuilder, value: Any) -> None:
        """Assign each component; a scalar goes to all."""
        for part, item in zip(self.parts, self._items(b, value)):
            part.write(b, item)

    def atomic(self, b: FrontBuilder, code: str, value: Any) -> MatrixValue:
        """Update each component; the result is the old content."""
        pairs = zip(self.parts, self._items(b, value))
        return MatrixValue(self.shape or (len(self.parts),), tuple(update(b, part, code, item) for part, item in pairs))

    def _items(self, b: FrontBuilder, value: Any) -> tuple[Operand, ...]:
        new = ops.as_value(b, value)
        shape = self.shape or (len(self.parts),)
        if isinstance(new, MatrixValue) and new.shape != shape:
            what = f"{shape[0]} components are" if len(shape) == 1 else f"a part of shape {shape} is"
            raise QdrunTypeError(f"{what} assigned {ops.describe_value(new)}")
        return new.items if isinstance(new, MatrixValue) else (new,) * len(self.parts)


@dataclass(frozen=True, eq=False)
class StructTarget:
    """A variable that holds a struct, or an element of a field of structs: a target for each member."""

    form: StructForm
    items: dict[str, Any]

    def read(self, b: FrontBuilder) -> StructValue:
        """The content: a copy."""
        return StructValue(self.form, {name: item.read(b) for name, item in self.items.items()})

    def write(self, b: FrontBuilder, value: Any) -> None:
        """Assign every member; the values were read before.

        Raises:
            QdrunTypeError: the value is no struct, or has other members.
        """
        if not isinstance(value, StructValue):
            like = describe_struct(StructValue(self.form, self.items))
            hint = f"assign a struct: {self.form.name}(..), or one of its members"
            raise QdrunTypeError(f"{like} cannot become {ops.describe_value(value)}", hint=hint)
        same_members(self.form.name, self.items, value.items)
        for name, item in self.items.items():
            item.write(b, value.items[name])


Target = LocalTarget | MatrixTarget | ItemTarget | ElementTarget | ComponentTarget | PartsTarget | StructTarget


def with_index(target: Target, f: Callable[[Any], Any]) -> Target:
    """The target with ``f`` of each part of its index: how the index of an element gets from one task to the next."""
    if isinstance(target, ElementTarget):
        return ElementTarget(target.ref, tuple(map(f, target.index)))
    if isinstance(target, ComponentTarget):
        return ComponentTarget(target.ref, tuple(map(f, target.index)), tuple(map(f, target.item)))
    if isinstance(target, PartsTarget):
        return PartsTarget(tuple(with_index(part, f) for part in target.parts))  # type: ignore[misc]
    if isinstance(target, StructTarget):
        return StructTarget(target.form, {name: with_index(item, f) for name, item in target.items.items()})
    return target


def is_global(target: Target) -> bool:
    """Whether other threads see the target, so that an update of it must be atomic."""
    if isinstance(target, PartsTarget):
        return is_global(target.parts[0])
    if isinstance(target, StructTarget):
        return any(is_global(item) for item in target.items.values())
    return isinstance(target, (ElementTarget, ComponentTarget))


def update(b: FrontBuilder, target: Target, code: str, value: Any) -> Any:
    """``atomic_<code>(target, value)``; the result is the old content. A variable is private, so it is updated plainly.

    Raises:
        QdrunTypeError: types do not fit.
    """
    if isinstance(target, StructTarget):
        raise QdrunTypeError("structs have no arithmetic", hint="update the members: s.x += ..")
    if isinstance(target, (ElementTarget, ComponentTarget, PartsTarget)):
        return target.atomic(b, code, value)
    old = target.read(b)
    target.write(b, _combined(b, code, old, value))
    return old


def _combined(b: FrontBuilder, code: str, old: Any, value: Any) -> Any:
    """The new content of a variable."""
    if code == "xchg":
        return value
    if code in PYTHON_OP:
        return ops.binary(b, PYTHON_OP[code], old, value)
    return ops.of_one_type(b, code, old, value)


def compare_and_swap(b: FrontBuilder, target: Target, expected: Any, desired: Any) -> Operand:
    """``atomic_cas(target, expected, desired)``: the old content.

    Raises:
        QdrunTypeError: the target is no integer scalar.
    """
    if isinstance(target, ComponentTarget):
        where = position(b, target.ref.element, target.item, f"{target.ref.name}[..]")
        if isinstance(where, int):
            target = ElementTarget(target.ref.component(where), target.index)
    if isinstance(target, ElementTarget) and not target.ref.element:
        return target.ref.compare_and_swap(b, target.index, expected, desired)
    if not isinstance(target, LocalTarget) or target.local.dtype.is_real:
        raise QdrunTypeError("atomic_cas takes one integer", hint="give an integer element of a field or an array: x[i]")
    old = target.read(b)
    target.write(b, ops.select(b, ops.compare(b, "==", old, expected), desired, old))
    return old
