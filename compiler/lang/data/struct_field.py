"""Fields of structs: a field for each member, behind one name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import QdrunSyntaxError, QdrunTypeError
from ...frontend.values import structs
from ...program.layout.tree import Axes, Root, SNode
from ...program.program import current_program
from ...refused import REFUSED, Refused
from .access import element_index
from .dtypes import resolve
from .element_types import MatrixType
from .field import Field
from .make_field import make_field
from .struct import METHODS, Struct, StructType, items_of


class _Element(Struct):
    """An element of a field of structs: members are read and written in the field."""

    __slots__ = ("_field", "_index")

    def __init__(self, field: StructField, index: Any) -> None:
        object.__setattr__(self, "_field", field)
        object.__setattr__(self, "_index", index)
        self._set(dict.fromkeys(field.keys), field.struct_type)

    def __getitem__(self, name: str) -> Any:
        return self._field.get_member_field(name)[self._index]

    def _write(self, name: str, value: Any) -> None:
        self._field.get_member_field(name)[self._index] = value


class StructField:
    """A field of structs: a field, or a field of structs, for each member. ``f[i].pos`` and ``f.pos[i]`` are the same.

    Attributes:
        struct_type: the type of its elements.
        name: what messages call it.
        named: whether the user or a kernel has given it that name.
    """

    def __init__(self, members: Mapping[str, Any], struct_methods: Any = None, name: str = "") -> None:
        self._members = dict(members)
        if isinstance(struct_methods, StructType):
            self.struct_type = struct_methods
        else:
            types = {n: f.struct_type if isinstance(f, StructField) else _type_of(f) for n, f in self._members.items()}
            self.struct_type = StructType(**types, **{METHODS: struct_methods or {}})
        self.name, self.named = name or "struct field", bool(name)

    @property
    def keys(self) -> list[str]:
        """The names of the members."""
        return list(self._members)

    @property
    def field_dict(self) -> dict[str, Any]:
        """The members."""
        return dict(self._members)

    def get_member_field(self, key: str) -> Any:
        """The field of a member."""
        return self._members[key]

    def leaves(self) -> list[Field]:
        """The fields of numbers, vectors and matrices that it is made of, in order."""
        return [f for m in self._members.values() for f in (m.leaves() if isinstance(m, StructField) else [m])]

    def _first(self) -> Field:
        found = self.leaves()
        if not found:
            raise QdrunTypeError(f"the struct field `{self.name}` has no members")
        return found[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the index space.

        Raises:
            QdrunRuntimeError: it is not placed.
        """
        return self._first().shape

    @property
    def snode(self) -> SNode:
        """The place of the first member as a level without axes."""
        return self._first().snode

    def __reduce__(self) -> Any:
        """Refuse to pickle and to copy, see ``Placed``."""
        return self._first().__reduce__()

    def parent(self, n: int = 1) -> Any:
        """The level that holds the first member, or one above."""
        return self._first().parent(n)

    @property
    def grad(self) -> StructField:
        """The gradients of the real members, as a field of structs."""
        return self._relative("grad")

    @property
    def dual(self) -> StructField:
        """The duals of the real members, as a field of structs."""
        return self._relative("dual")

    def _relative(self, role: str) -> StructField:
        found = {n: getattr(f, role) for n, f in self._members.items() if any(leaf.dtype.is_real for leaf in _leaves(f))}
        types = {n: self.struct_type.members[n] for n in found}
        form = self.struct_type if len(found) == len(self._members) else StructType(**types)
        return StructField(found, form, f"{self.name}.{role}" if self.named else "")

    def __getattr__(self, name: str) -> Any:
        members = self.__dict__.get("_members", {})
        if name in members:
            return members[name]
        if name == "offset":  # no property: a member may be called so
            return self._first().offset
        if f"StructField.{name}" in REFUSED:  # a member may be called so, too
            return Refused(f"StructField.{name}")
        raise AttributeError(f"the struct field has no member `{name}`; its members are {', '.join(members)}")

    def __getitem__(self, index: Any) -> Struct:
        first = self._first()
        element_index(index, first.shape, first.name, first.offset)  # a wrong index is an error now
        return _Element(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        items = items_of(value)
        structs.same_members(f"an element of `{self.name}`", self._members, items)
        for name, member in self._members.items():
            member[index] = items[name]

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        raise QdrunTypeError(f"the struct field `{self.name}` cannot be iterated in Python", hint="use to_numpy(), or a kernel")

    def fill(self, val: Any) -> None:
        """Write a number to every component of every member."""
        for member in self._members.values():
            member.fill(val)

    def has_grad(self) -> bool:
        """Whether the gradients of its real members are stored."""
        return any(f.has_grad() for f in self.leaves())

    def has_dual(self) -> bool:
        """Whether the duals of its real members are stored."""
        return any(f.has_dual() for f in self.leaves())

    def copy_from(self, other: StructField) -> None:
        """Copy another field of structs with the same members and shape.

        Raises:
            QdrunTypeError: they differ.
        """
        if not isinstance(other, StructField):
            raise QdrunTypeError(f"a struct field copies from a struct field, not from a {type(other).__name__}")
        structs.same_members(f"`{self.name}`", self._members, other._members)
        for name, member in self._members.items():
            member.copy_from(other.get_member_field(name))

    def to_numpy(self, *, copy: bool | None = True, **how: Any) -> dict[str, Any]:
        """A dict of arrays, one for each member; a member that is a struct gives a dict."""
        return {name: member.to_numpy(copy=copy, **how) for name, member in self._members.items()}

    def from_numpy(self, array_dict: Mapping[str, Any]) -> None:
        """Copy a dict as ``to_numpy`` gives it.

        Raises:
            QdrunTypeError: a member is missing or unknown, or has another shape.
        """
        for member, array in self._given(array_dict):
            member.from_numpy(array)

    def to_torch(self, device: Any = None, *, copy: bool | None = True, **how: Any) -> dict[str, Any]:
        """As ``to_numpy``, of torch tensors."""
        return {name: member.to_torch(device, copy=copy, **how) for name, member in self._members.items()}

    def from_torch(self, array_dict: Mapping[str, Any]) -> None:
        """As ``from_numpy``, of torch tensors."""
        for member, array in self._given(array_dict):
            member.from_torch(array)

    def _given(self, array_dict: Mapping[str, Any]) -> list[tuple[Any, Any]]:
        """Each member with what is given for it."""
        structs.same_members(f"`{self.name}`", self._members, array_dict)
        return [(member, array_dict[name]) for name, member in self._members.items()]

    def __qd_name__(self, name: str) -> None:
        """The name in the first kernel that uses it; see ``Field.__qd_name__``."""
        if not self.named:
            self.name, self.named = name, True
        for key, member in self._members.items():
            member.__qd_name__(f"{name}.{key}")

    def __qd_value__(self) -> structs.StructTensor:
        """The value of the field inside a kernel."""
        return structs.StructTensor(self.name, self.struct_type, {n: m.__qd_value__() for n, m in self._members.items()})

    def __repr__(self) -> str:
        return f"<{self.name}: {self.struct_type!r}>"


def _leaves(f: Field | StructField) -> list[Field]:
    return f.leaves() if isinstance(f, StructField) else [f]


def _type_of(f: Any) -> Any:
    """The member type of a field.

    Raises:
        QdrunTypeError: it is no field.
    """
    if not isinstance(f, Field):
        raise QdrunTypeError(f"the members of a struct field are fields, not {type(f).__name__}")
    return MatrixType(f.element, f.dtype) if f.element else f.dtype


def make_struct_field(
    form: StructType,
    shape: Any = None,
    name: str = "",
    offset: Any = None,
    needs_grad: bool = False,
    needs_dual: bool = False,
    layout: Any = None,
    per_trial: bool = True,
    root: Root | None = None,
) -> StructField:
    """A field of structs of a type; see ``Struct.field``."""
    if offset is not None and shape is None:
        raise QdrunSyntaxError(
            "a field of structs has an offset, but no shape\n  do: give a shape, or place it: qd.root.dense(..).place(s, offset=..)"
        )
    if root is None:
        root = current_program().root
    members: dict[str, Any] = {}
    for key, t in form.members.items():
        full = f"{name}.{key}" if name else ""
        if isinstance(t, StructType):
            members[key] = make_struct_field(t, None, full, None, needs_grad, needs_dual, per_trial=per_trial, root=root)
            continue
        dtype = resolve(t.dtype or float) if isinstance(t, MatrixType) else resolve(t)
        roles = (needs_grad and dtype.is_real, needs_dual and dtype.is_real)
        element = t.shape if isinstance(t, MatrixType) else ()
        members[key] = make_field(dtype, None, element, *roles, full, root=root, per_trial=per_trial)
    out = StructField(members, form, name)
    if shape is not None:
        _place(root, out, shape, getattr(layout, "name", layout), offset)
    return out


def _place(root: Root, f: StructField, shape: Any, layout: str | None, offset: Any) -> None:
    """Place all members in one level, or each in its own; requested gradients follow their fields."""
    extents = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if layout not in (None, "AOS", "SOA"):
        raise QdrunTypeError(f"the layout of a struct field is qd.Layout.AOS or qd.Layout.SOA, not {layout!r}")
    groups = [_leaves(m) for m in f.field_dict.values()] if layout == "SOA" else [f.leaves()]
    for group in groups:
        level: SNode = root if not extents else root.dense(Axes(range(len(extents))), extents)
        level.place(*group, offset=offset)
