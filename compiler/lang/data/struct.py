"""Structs outside of kernels: their types and their values. Fields of them are in ``struct_field``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, ItemsView, Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import QdrunFitError, QdrunSyntaxError, QdrunTypeError
from ...frontend.values import structs, values
from ...ir.builder import convert
from ...ir.nodes import Const
from ...ir.types import DType, from_numpy
from ...program.program import current_program
from .dtypes import defaults, resolve
from .element_types import MatrixType
from .matrix import Matrix, Vector
from .member_annotations import evaluated

METHODS = "__struct_methods"


class StructType(values.StructForm):
    """The type of structs: an annotation, a constructor on both sides, and the element type of ``field``.

    Args:
        members: name = type: a scalar type, a vector or matrix type, or another struct type; ``__struct_methods`` a dict of functions.

    Raises:
        QdrunTypeError: a member of another type.
    """

    def __init__(self, **members: Any) -> None:
        methods = members.pop(METHODS, {})
        super().__init__({name: _member_type(name, t) for name, t in members.items()}, methods)

    def __call__(self, *args: Any, **members: Any) -> Struct:
        """A struct: members by position, then by name. What is left out is zero; a number fills a vector.

        Raises:
            QdrunTypeError: too many values, an unknown member, or a value that does not fit its member.
        """
        names = list(self.members)
        if len(args) == 1 and not members and isinstance(args[0], (Struct, dict)) and list(items_of(args[0])) == names:
            return self.cast(args[0])
        structs.check_arguments(self, len(args), members)
        given = {**dict(zip(names, args)), **members}
        return self.cast({name: given.get(name, 0) for name in names})

    def cast(self, struct: Any) -> Struct:
        """A struct or a dict with these members as a struct of this type.

        Raises:
            QdrunTypeError: other members, or a value that does not fit.
        """
        items = items_of(struct)
        structs.same_members(self.name, self.members, items)
        return Struct._made({name: self._one(name, items[name]) for name in self.members}, self)

    def _one(self, name: str, value: Any) -> Any:
        try:
            return _cast(self.members[name], value)
        except QdrunTypeError as e:
            raise type(e)(f"the member `{name}` of {self.name}: {e.what}", e.loc, e.hint) from None

    def __qd_lower__(self, b: Any, /, *args: Any, **members: Any) -> values.StructValue:
        """The constructor inside a kernel."""
        return structs.build(b, self, args, members)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Struct) and list(instance.entries) == list(self.members) and instance._type in (None, self)

    def field(
        self,
        shape: Any = None,
        name: str = "",
        offset: Any = None,
        needs_grad: bool = False,
        needs_dual: bool = False,
        layout: Any = None,
        per_trial: bool = True,
    ) -> Any:
        """A field of such structs; see ``Struct.field``."""
        how = {"needs_grad": needs_grad, "needs_dual": needs_dual, "layout": layout, "per_trial": per_trial}
        return current_program().factory.struct_field(self, shape, name=name, offset=offset, **how)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructType) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[Any, ...]:
        return self.name, tuple(self.members.items()), tuple((n, id(f)) for n, f in self.methods.items())

    def __repr__(self) -> str:
        members = (f"{n}: {getattr(t, '__name__', t)}" for n, t in self.members.items())
        return f"{self.name}({', '.join(members)})"


def _member_type(name: str, t: Any) -> Any:
    if isinstance(t, (StructType, MatrixType)) or t in (float, int, bool):
        return t
    try:
        return resolve(t)
    except QdrunTypeError:
        hint = "members are scalar types, qd.types.vector, qd.types.matrix or other struct types"
        raise QdrunTypeError(f"the member `{name}` of a struct cannot be of the type {t!r}", hint=hint) from None


def items_of(value: Any) -> Mapping[str, Any]:
    """The members of a struct or a dict.

    Raises:
        QdrunTypeError: it is neither.
    """
    if isinstance(value, Struct):
        return {name: value[name] for name in value.keys}
    if not isinstance(value, dict):
        raise QdrunTypeError(f"{value!r} is not a struct")
    return value


def _cast(t: Any, value: Any) -> Any:
    """A value as a member of this type holds it outside of kernels."""
    if isinstance(t, StructType):
        return t.cast(value) if isinstance(value, (Struct, dict)) else t(value)
    if isinstance(value, (Struct, dict)):
        raise QdrunTypeError("a struct is not a number")
    if isinstance(t, MatrixType):
        return t(value)
    if isinstance(value, (list, tuple, Matrix)) or np.ndim(value) != 0:
        raise QdrunTypeError(f"{value!r} is not a number")
    real = t is float or (isinstance(t, DType) and t.is_real)
    return float(value) if real else int(value)


class Struct:
    """A struct outside of kernels: ``Struct(a=1, b=2.0)`` or ``Struct({"a": 1})``. Lists become vectors, dicts structs.

    Attributes:
        entries: the members.
    """

    __slots__ = ("_type", "entries")
    __qd_lower__ = staticmethod(structs.lower_anonymous)

    def __init__(self, *args: Any, **members: Any) -> None:
        if len(args) > 1 or (args and (members or not isinstance(args[0], (dict, Struct)))):
            raise QdrunSyntaxError("Struct() takes keywords or one dict", None, "write Struct(a=1.0, b=2.0)")
        given = dict(items_of(args[0])) if args else members
        methods = given.pop(METHODS, {})
        form = values.StructForm({}, methods) if methods else None
        self._set({name: _as_member(v) for name, v in given.items()}, form)

    @classmethod
    def _made(cls, entries: dict[str, Any], form: values.StructForm | None) -> Struct:
        out = object.__new__(cls)
        out._set(entries, form)
        return out

    def _set(self, entries: dict[str, Any], form: values.StructForm | None) -> None:
        object.__setattr__(self, "entries", entries)
        object.__setattr__(self, "_type", form)

    @property
    def keys(self) -> list[str]:
        """The names of the members."""
        return list(self.entries)

    @property
    def items(self) -> ItemsView[str, Any]:
        """The names and values of the members."""
        return {name: self[name] for name in self.entries}.items()

    @property
    def methods(self) -> dict[str, Any]:
        """The methods of its type."""
        return {} if self._type is None else self._type.methods

    def to_dict(self, include_methods: bool = False, include_ndim: bool = False) -> dict[str, Any]:
        """The members as numbers, lists and dicts.

        Args:
            include_methods: also the methods, as ``__struct_methods``.
            include_ndim: also the number of axes of each vector and matrix, as ``__matrix_ndim``.
        """
        how = include_methods, include_ndim
        out = {
            name: v.to_dict(*how) if isinstance(v, Struct) else v.to_list() if isinstance(v, Matrix) else v
            for name, v in self.items
        }
        if include_methods:
            out[METHODS] = self.methods
        if include_ndim:
            out["__matrix_ndim"] = {name: v.ndim for name, v in self.items if isinstance(v, Matrix)}
        return out

    def __getitem__(self, name: str) -> Any:
        return self.entries[name]

    def __setitem__(self, name: str, value: Any) -> None:
        old = self[name]
        if isinstance(old, Struct):
            items = items_of(value)
            structs.same_members("the struct", old.entries, items)
            for key in old.entries:
                old[key] = items[key]
        elif isinstance(old, Matrix):
            if np.shape(value) not in ((), old.shape):
                raise QdrunFitError(f"`{name}` has shape {old.shape}, the value has shape {np.shape(value)}")
            old.fill(value) if np.ndim(value) == 0 else old.__setitem__(slice(None), np.asarray(value))
        else:
            if isinstance(value, (list, tuple, dict, Matrix, Struct)) or np.ndim(value) != 0:
                raise QdrunTypeError(f"`{name}` holds a number, not {value!r}")
            self._write(name, value)

    def _write(self, name: str, value: Any) -> None:
        self.entries[name] = value

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            if name in self.entries:
                return self[name]
            if name in self.methods:
                return _bound(self.methods[name], self)
        raise AttributeError(f"{self._name()} has no member `{name}`; its members are {', '.join(self.entries)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.entries:
            raise AttributeError(f"{self._name()} has no member `{name}`; its members are {', '.join(self.entries)}")
        self[name] = value

    def _name(self) -> str:
        return "a struct" if self._type is None else self._type.name

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Any]:
        return (self[name] for name in self.entries)

    def __repr__(self) -> str:
        return str(self.to_dict())

    def __copy__(self) -> Struct:
        return Struct._made({name: _copied(v) for name, v in self.items}, self._type)

    def __deepcopy__(self, memo: Any) -> Struct:
        return self.__copy__()

    def __reduce__(self) -> Any:
        return _unpickle, (dict(self.items), self._type)

    def __qd_value__(self) -> values.StructValue:
        """The constant that a kernel sees."""
        form = self._type or values.NO_FORM
        return values.StructValue(form, {name: _constant(v, form.members.get(name)) for name, v in self.items})

    @staticmethod
    def field(
        members: Mapping[str, Any],
        methods: Mapping[str, Any] | None = None,
        shape: Any = None,
        name: str = "",
        offset: Any = None,
        needs_grad: bool = False,
        needs_dual: bool = False,
        layout: Any = None,
        per_trial: bool = True,
    ) -> Any:
        """A field of structs.

        Args:
            members: the type of each member.
            methods: functions that take the struct as their first argument.
            shape: the extents; None leaves the placement to ``qd.root``.
            name: the name in messages.
            offset: the lowest index of each axis, instead of 0.
            needs_grad: also place a gradient of every real member.
            needs_dual: also place a dual of every real member.
            layout: ``qd.Layout.AOS`` (default): the members of an element side by side; ``qd.Layout.SOA``: each member by itself.
            per_trial: False: all trials of a batched program share it, and kernels only read it.

        Raises:
            QdrunTypeError: a member of an unknown type.
            QdrunSyntaxError: an offset without a shape, or of another length.
        """
        return StructType(**members, **{METHODS: dict(methods or {})}).field(
            shape, name, offset, needs_grad, needs_dual, layout, per_trial
        )


def _unpickle(entries: dict[str, Any], form: values.StructForm | None) -> Struct:
    return Struct._made(entries, form)


def _as_member(value: Any) -> Any:
    if isinstance(value, dict):
        return Struct(value)
    if isinstance(value, (list, tuple)):
        return Vector(list(value)) if np.ndim(value) == 1 else Matrix(list(value))
    return _copied(value)


def _copied(value: Any) -> Any:
    return value.__copy__() if isinstance(value, (Struct, Matrix)) else value


def _bound(method: Any, owner: Any) -> Any:
    """A method of a struct that Python calls."""
    if isinstance(method, staticmethod):
        return method.__func__
    return lambda *args, **kw: method(owner, *args, **kw)


def _constant(value: Any, t: Any) -> Any:
    """A member as a constant of a kernel, of its declared type."""
    if isinstance(value, (Struct, Matrix)):
        return value.__qd_value__()
    if t is None:
        t = float if isinstance(value, (float, np.floating)) else int
        if isinstance(value, np.generic):
            t = from_numpy(value.dtype)
            value = value.item()
    fp, ip = defaults()
    dtype = fp if t is float else ip if t is int else resolve(t)
    return Const(convert(value, dtype), dtype)


def dataclass(cls: type) -> StructType:
    """Make a class a struct type: its annotations are the members, its functions the methods.

    Raises:
        QdrunSyntaxError: a member with a default value.
        QdrunTypeError: a member of a type that structs do not have.
    """
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        members |= inspect.get_annotations(base, eval_str=False)
    members = {n: evaluated(cls, n, t) for n, t in members.items()}
    for name in members:
        if hasattr(cls, name):
            raise QdrunSyntaxError(f"Default value in @dataclass is not supported: `{name}` of {cls.__name__}")
    found: dict[str, Callable[..., Any]] = {}
    for name in dir(cls):
        raw = inspect.getattr_static(cls, name)
        if not name.startswith("__") and (callable(raw) or isinstance(raw, staticmethod)):
            found[name] = raw
    out = StructType(**members, **{METHODS: found})
    out.name = cls.__name__
    out.__doc__ = cls.__doc__
    return out
