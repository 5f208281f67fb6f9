"""Structs inside kernels: records of scalars, matrices and structs; fields of structs; and what a Python dataclass brings along.

A struct is known at compile time but for its scalars: a variable of a struct type is one variable for each member, a field of structs
is one field for each member. The IR has no structs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import QdrunNameError, QdrunTypeError
from ...ir.nodes import Const, Op, Operand, Place
from ...ir.types import DType
from . import matrix, ops
from .tensor import TensorRef
from .values import NO_FORM, MatrixValue, StructForm, StructValue, count, no_member

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder


@dataclass(frozen=True, slots=True, eq=False)
class StructTensor:
    """A field of structs: a tensor, or a field of structs, for each member."""

    name: str
    form: StructForm
    items: dict[str, TensorRef | StructTensor]

    @property
    def first(self) -> TensorRef:
        """The tensor of the first member that has one: all have the same index space.

        Raises:
            QdrunTypeError: the struct has no members.
        """
        found = next(iter(self.items.values()), None)
        if found is None:
            raise QdrunTypeError(f"`{self.name}` holds structs without members")
        return found.first if isinstance(found, StructTensor) else found

    @property
    def places(self) -> tuple[Place, ...]:
        """The places of all members."""
        return tuple(p for x in self.items.values() for p in x.places)

    def relative(self, role: str) -> StructTensor | None:
        """The adjoints (``grad``) or tangents (``dual``) of the members that have them, as a field of structs; None: none has."""
        found: dict[str, TensorRef | StructTensor] = {}
        for name, item in self.items.items():
            other = item.relative(role) if isinstance(item, StructTensor) else getattr(item, role)
            if other is not None:
                found[name] = other
        return StructTensor(f"{self.name}.{role}", self.form, found) if found else None

    def attribute(self, b: FrontBuilder, name: str) -> Any:
        """``f.name``: a member's tensor, ``grad``, ``dual``, ``shape``, ``keys``; of sparse fields ``parent`` and ``snode``.

        Raises:
            QdrunNameError: there is no such member, or no gradient is stored.
        """
        if name in self.items:
            return self.items[name]
        if name in ("grad", "dual"):
            found = self.relative(name)
            if found is None:
                raise QdrunNameError(f"`{self.name}` has no stored {name}", hint=f"declare it with needs_{name}=True")
            return found
        if name == "shape":
            return self.first.shape(b)
        if name == "offset":
            return self.first.begins
        if name == "keys":
            return tuple(self.items)
        if name in ("parent", "snode") and self.first.level is not None:
            return self.first.attribute(b, name)
        raise no_member(self.form, self.items, name)


@dataclass(frozen=True, slots=True, eq=False)
class StructMethod:
    """A method bound to a struct: ``owner`` is the struct, or the place that holds it, which the method may change."""

    __qd_func__: Any
    owner: Any


def describe_struct(value: StructValue | StructTensor) -> str:
    """A struct as a message names it."""
    if isinstance(value, StructTensor):
        return f"the field of structs `{value.name}`"
    kind = "the dataclass" if value.form.owner is not None else "a struct"
    name = "" if value.form.name == "struct" else f" {value.form.name}"
    return f"{kind}{name} with the members {', '.join(value.items)}"


def lower_anonymous(b: FrontBuilder, /, *args: Any, **members: Any) -> StructValue:
    """``qd.Struct(a=.., b=..)`` or ``qd.Struct({"a": ..})``.

    Raises:
        QdrunTypeError: anything else.
    """
    if len(args) == 1 and not members and isinstance(args[0], (StructValue, dict)):
        value = args[0]
        return anonymous(b, value.items if isinstance(value, StructValue) else value)
    if args:
        raise QdrunTypeError("Struct() takes keywords or one dict", hint="write Struct(a=1.0, b=2.0)")
    return anonymous(b, members)


def anonymous(b: FrontBuilder, members: Mapping[str, Any]) -> StructValue:
    """A struct whose members have the types of their values; a list is a vector, a dict a struct."""
    return StructValue(NO_FORM, {name: _own_type(b, value) for name, value in members.items()})


def _own_type(b: FrontBuilder, value: Any) -> Any:
    if isinstance(value, dict):
        return anonymous(b, value)
    if isinstance(value, StructValue):
        return value
    if isinstance(value, (list, tuple)):
        return matrix.build(b, value)
    return ops.as_value(b, value)


def build(b: FrontBuilder, form: StructForm, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> StructValue:
    """``S(..)``: members by position, then by name; omitted members are zero.

    Raises:
        QdrunTypeError: too many values, an unknown member, or a value that does not fit its member.
    """
    names = list(form.members)
    if len(args) == 1 and not keywords and _is_like(form, args[0]):
        return convert(b, form, args[0])
    check_arguments(form, len(args), keywords)
    given = {**dict(zip(names, args)), **keywords}
    return StructValue(form, {n: _member(b, form, n, given.get(n, 0)) for n in names})


def check_arguments(form: StructForm, positional: int, keywords: Mapping[str, Any]) -> None:
    """Whether a call of a struct type names each member at most once.

    Raises:
        QdrunTypeError: it does not.
    """
    names = list(form.members)
    if positional > len(names):
        raise QdrunTypeError(f"{form.name} has {len(names)} members, and {positional} values are given")
    for name in keywords:
        if name not in names:
            raise QdrunTypeError(f"{form.name} has no member `{name}`", hint=f"its members are {', '.join(names)}")
        if name in names[:positional]:
            raise QdrunTypeError(f"the member `{name}` of {form.name} is given twice")


def _is_like(form: StructForm, value: Any) -> bool:
    """Whether a value is a whole struct of this form, not one for its first member."""
    items = value.items if isinstance(value, StructValue) else value if isinstance(value, dict) else None
    return items is not None and list(items) == list(form.members)


def _member(b: FrontBuilder, form: StructForm, name: str, value: Any) -> Any:
    try:
        return convert(b, form.members[name], value)
    except QdrunTypeError as e:
        raise type(e)(f"the member `{name}` of {form.name}: {e.what}", e.loc, e.hint) from e


def convert(b: FrontBuilder, form: Any, value: Any) -> Any:
    """A value as a member type says: cast, a number broadcast over a vector, or given to the first member of a struct.

    Raises:
        QdrunTypeError: it does not fit.
    """
    if isinstance(form, StructForm):
        if not isinstance(value, (StructValue, dict)):
            if isinstance(value, (list, tuple, MatrixValue)) or not (ops.is_number(value) or isinstance(value, (Op, Const))):
                raise QdrunTypeError(f"{ops.describe_value(value)} is not {form.name}")
            return build(b, form, (value,), {})
        items = value.items if isinstance(value, StructValue) else value
        same_members(form.name, form.members, items)
        return StructValue(form, {n: _member(b, form, n, items[n]) for n in form.members})
    if isinstance(value, (StructValue, dict)):
        raise QdrunTypeError("a struct is not a number")
    if isinstance(form, DType) or form in (float, int, bool):
        return ops.cast(b, ops.to_operand(b, value), ops.as_dtype(b, form))
    return form.__qd_lower__(b, value)


def same_members(name: str, want: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """Whether two structs have the same members, in any order.

    Raises:
        QdrunTypeError: they do not.
    """
    if set(want) != set(got):
        raise QdrunTypeError(f"{name} has the members {', '.join(want)}; the value has {', '.join(got)}")


# ---- structs among the scalars of a result


@dataclass(frozen=True)
class StructShape:
    """The structure of a struct's scalars: the shape of each member."""

    form: StructForm
    members: tuple[tuple[str, Any], ...]


def shape_of(value: Any) -> Any:
    """The structure of a result's scalars: None, () for a number, a shape, a list of these for a tuple, or a ``StructShape``."""
    if value is None:
        return None
    if isinstance(value, StructValue):
        return StructShape(value.form, tuple((name, shape_of(x)) for name, x in value.items.items()))
    if isinstance(value, (tuple, list)):
        return [shape_of(v) for v in value]
    return value.shape if isinstance(value, MatrixValue) else ()


def rebuild(like: Any, parts: list[Any]) -> Any:
    """The result from its scalars; takes them from the front of ``parts``."""
    if like is None:
        return None
    if isinstance(like, StructShape):
        return StructValue(like.form, {name: rebuild(shape, parts) for name, shape in like.members})
    if isinstance(like, list):
        return tuple(rebuild(x, parts) for x in like)
    if like == ():
        return parts.pop(0)
    return MatrixValue(like, tuple(parts.pop(0) for _ in range(count(like))))


def scalars(value: Any) -> list[Operand]:
    """The scalars of a struct of numbers, in order."""
    if isinstance(value, StructValue):
        return [x for item in value.items.values() for x in scalars(item)]
    return list(value.items) if isinstance(value, MatrixValue) else [value]


def aligned(like: StructValue, value: Any) -> StructValue:
    """A struct with its members in the order of another one.

    Raises:
        QdrunTypeError: it is no struct, or its members have other names or shapes.
    """
    if not isinstance(value, StructValue):
        raise QdrunTypeError(f"{ops.describe_value(value)} is not {describe_struct(like)}")
    same_members("one side", like.items, value.items)
    items: dict[str, Any] = {}
    for name, item in like.items.items():
        other = value.items[name]
        if isinstance(item, StructValue):
            other = aligned(item, other)
        elif shape_of(other) != shape_of(item):
            raise QdrunTypeError(f"the member `{name}` has different shapes on the two sides")
        items[name] = other
    return StructValue(like.form, items)


def select(b: FrontBuilder, cond: Operand, x: StructValue, y: StructValue) -> StructValue:
    """``x`` where ``cond`` holds, else ``y``: scalar by scalar."""
    pairs = zip(scalars(x), scalars(aligned(x, y)))
    return rebuild(shape_of(x), [ops.to_operand(b, ops.select(b, cond, p, q)) for p, q in pairs])
