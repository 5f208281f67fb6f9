"""Arguments that are made of others: structs by value, Python dataclasses, and objects whose ndarrays come with each launch."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

import numpy as np

from ...errors import QdrunSyntaxError, QdrunTypeError
from ...frontend.signature import ArgSpec, ArrayArg, RecordArg, ScalarArg, TemplateArg
from ...frontend.values.values import StructForm, count
from ...ir.types import DType
from ..buffer_view import BufferView
from ..data.element_types import Optional
from ..data.matrix import Matrix, wrap
from ..data.member_annotations import evaluated
from ..data.ndarray import Ndarray
from ..data.struct import Struct, StructType
from ..data.tensor import unwrap
from ..data.types import Template
from .annotations import is_dataclass_type, member_meaning

Bound = tuple[Any, ArgSpec, int]
"""Key, spec, and the number of the next ArgDecl."""
Bind = Callable[[Any, Any, int], Bound]
"""Binds a value to an annotation, from a number on."""


def bind_struct(form: StructType, value: Any, bind: Bind, number: int) -> Bound:
    """A struct by value: an argument for each member.

    Raises:
        QdrunTypeError: it is no struct of these members.
    """
    if not isinstance(value, (Struct, dict)):
        raise QdrunTypeError(f"expected {form.name}, got {value!r} of type {type(value).__name__}")
    made = form.cast(value)
    return _bind_members(form, form.members, made.entries.__getitem__, bind, number)


def bind_dataclass(cls: type, value: Any, bind: Bind, number: int) -> Bound:
    """A Python dataclass: an argument for each member, by the member's annotation.

    Raises:
        QdrunTypeError: it is of another class, or a member does not fit.
    """
    if not isinstance(value, cls):
        raise QdrunTypeError(f"expected a {cls.__name__}, got a {type(value).__name__}")
    form = form_of(cls)
    return _bind_members(form, form.members, lambda name: getattr(value, name), bind, number)


def _bind_members(form: StructForm, members: Mapping[str, Any], get: Callable[[str], Any], bind: Bind, number: int) -> Bound:
    keys: list[Any] = [form.owner or form]
    specs: dict[str, ArgSpec] = {}
    for name, annotation in members.items():
        try:
            key, specs[name], number = bind(annotation, get(name), number)
        except QdrunTypeError as e:
            raise type(e)(f"member `{name}`: {e.what}", e.loc, e.hint) from None
        keys.append(key)
    return tuple(keys), RecordArg(form, specs), number


@functools.lru_cache(1024)
def form_of(cls: type) -> StructForm:
    """The facts about a Python dataclass for kernels: its resolved annotations, and its ``qd.func`` methods."""
    members = {f.name: member_meaning(evaluated(cls, f.name, f.type)) for f in dataclasses.fields(cls)}
    methods = {name: f for base in reversed(cls.__mro__) for name, f in vars(base).items() if hasattr(f, "__qd_func__")}
    return StructForm(members, methods, cls.__name__, cls)


def result(annotation: Any, values: list[Any]) -> Any:
    """Build the result of a kernel from its scalars: numbers, vectors, matrices, structs and tuples of them, by its annotation."""
    parts = list(values)
    if not is_number(annotation):
        return _take(annotation, parts)
    return parts[0] if len(parts) == 1 else tuple(parts)


def is_number(annotation: Any) -> bool:
    """Whether a kernel with this annotation returns a number, or numbers that it does not describe."""
    return not (isinstance(annotation, StructType) or getattr(annotation, "shape", None) or _parts_of(annotation))


def _take(annotation: Any, parts: list[Any]) -> Any:
    """Build one value; consumes its scalars from the front of ``parts``."""
    if isinstance(annotation, StructType):
        return Struct._made({name: _take(t, parts) for name, t in annotation.members.items()}, annotation)
    if _parts_of(annotation):
        return tuple(_take(t, parts) for t in _parts_of(annotation))
    shape = getattr(annotation, "shape", None)
    return wrap(np.array([parts.pop(0) for _ in range(count(shape))]).reshape(shape)) if shape else parts.pop(0)


def _parts_of(annotation: Any) -> tuple[Any, ...]:
    """The annotations of the parts of a tuple."""
    return tuple(annotation) if isinstance(annotation, (tuple, list)) else get_args(annotation)


# ---- what an object that is known at compile time holds


@dataclasses.dataclass(frozen=True)
class Frozen:
    """An object as it was when a tape recorded a launch: its ndarrays and numbers of then."""

    value: Any
    arrays: tuple[tuple[str, Any], ...]
    numbers: tuple[tuple[str, Any, str, Any], ...]


def frozen_record(annotation: Any, value: Any, freeze: Callable[[Any, Any], Any]) -> Any:
    """The present content of a struct, a dataclass, or an object with per-launch members, for a tape.

    Args:
        annotation: that of the parameter.
        value: the argument.
        freeze: does the same with a member.
    """
    if isinstance(annotation, Optional):
        return None if value is None else freeze(annotation.inner, value)
    if isinstance(annotation, StructType):
        return annotation.cast(value)
    if is_dataclass_type(annotation):
        out = copy.copy(value)
        for name, member in form_of(annotation).members.items():
            object.__setattr__(out, name, freeze(member, getattr(value, name)))
        return out
    if isinstance(value, Struct):
        return value.__copy__()
    if annotation is not Template:
        return value
    found = held_by(value)
    value = snapshot(value)
    return Frozen(value, tuple(found.arrays), tuple(found.numbers)) if found.arrays or found.numbers else value


def bind_template(value: Any, bind: Bind, annotation: Any, number: int) -> Bound:
    """An object that is known at compile time. The ndarrays that it holds come with each launch, so they may be replaced.

    Args:
        value: the object, or what a tape has kept of it.
        bind: binds its ndarrays and numbers.
        annotation: that of an ndarray of any type.
        number: that of the next ArgDecl.
    """
    if isinstance(value, Frozen):
        value, held, counted = value.value, list(value.arrays), list(value.numbers)
    else:
        found = held_by(value)
        held, counted = found.arrays, found.numbers
    keys: list[Any] = [template_key(value)]
    arrays: dict[int, tuple[str, list[Any], ArrayArg]] = {}  # an array that is found twice is one argument
    for path, found in held:
        array = unwrap(found)
        if id(array) in arrays:
            keys.append((path, arrays[id(array)][0]))
        else:
            key, spec, number = bind(annotation, array, number)
            assert isinstance(spec, ArrayArg)
            arrays[id(array)] = path, [array], spec
            keys.append((path, key))
        arrays[id(array)][1].append(found)
    numbers: list[tuple[str, Any, str, ScalarArg]] = []
    for path, owner, name, content in counted:
        try:
            _, spec, number = bind(type(content), content, number)
        except QdrunTypeError as e:
            raise type(e)(f"`{path[1:]}`: {e.what}", e.loc, e.hint) from None
        assert isinstance(spec, ScalarArg)
        keys.append((path, spec.dtype))
        numbers.append((path, owner, name, spec))
    return tuple(keys) if len(keys) > 1 else keys[0], TemplateArg(value, tuple(arrays.values()), tuple(numbers)), number


def template_key(value: Any, held: bool = False) -> tuple[Any, ...]:
    """Data by value, everything else by identity (the specialisation keeps it alive).

    Data are numbers, strings, types, vectors and matrices, numpy arrays, and lists, tuples, dicts and Python dataclasses, item by item:
    they may have changed since the last launch.

    Args:
        value: the object.
        held: it is a part of a container whose ndarrays come with each launch.
    """
    if held and _is_array(value):
        return ()
    if isinstance(value, float) and not isinstance(value, np.generic):
        return type(value), repr(value)  # -0.0 == 0.0, and a NaN is not equal to itself
    if isinstance(value, (int, str, bool, DType, type(None))):
        return type(value), value
    if isinstance(value, Matrix):
        return type(value), value._dtype, template_key(value._data)
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return type(value), value.dtype.str, value.shape, hashlib.blake2b(value.tobytes()).digest()
    inside = held and is_walked(value)
    if isinstance(value, (list, tuple)):
        return type(value), *(template_key(x, inside) for x in value)
    if type(value) is dict:
        return dict, *((key, template_key(x, inside)) for key, x in value.items())
    if _is_record(value):
        return type(value), *(template_key(getattr(value, f.name), True) for f in dataclasses.fields(type(value)))  # type: ignore[arg-type]
    return "id", id(value)


def snapshot(value: Any) -> Any:
    """A copy of what ``template_key`` takes by value."""
    if isinstance(value, (Matrix, np.ndarray)):
        return copy.copy(value)
    if isinstance(value, (list, tuple)):
        return getattr(type(value), "_make", type(value))(map(snapshot, value))  # that of a named tuple
    if type(value) is dict:
        return {key: snapshot(x) for key, x in value.items()}
    if _is_record(value):
        out = copy.copy(value)
        for f in dataclasses.fields(value):
            object.__setattr__(out, f.name, snapshot(getattr(value, f.name)))
        return out
    return value


def kept(spec: ArgSpec) -> list[Any]:
    """The objects that a specialisation must keep alive, because it identifies them by identity.

    Ndarrays are none: they may be replaced.
    """
    if isinstance(spec, RecordArg):
        return [x for member in spec.members.values() for x in kept(member)]
    return _kept_objects(spec.value) if isinstance(spec, TemplateArg) else []


def _kept_objects(value: Any, held: bool = False) -> list[Any]:
    """The objects that are identified by identity; the arguments are those of ``template_key``."""
    if held and _is_array(value):
        return []
    inside = held and is_walked(value)
    if isinstance(value, (list, tuple)):
        return [x for item in value for x in _kept_objects(item, inside)]
    if type(value) is dict:
        return [x for item in value.values() for x in _kept_objects(item, inside)]
    if _is_record(value):
        return [x for f in dataclasses.fields(value) for x in _kept_objects(getattr(value, f.name), True)]
    return [value] if template_key(value)[0] == "id" else []


def _is_array(value: Any) -> bool:
    """Whether a member comes with each launch: an ndarray, a part of one, a tensor on one."""
    return isinstance(unwrap(value), (Ndarray, BufferView))


def _is_record(value: Any) -> bool:
    """Whether it is an object of a Python dataclass that is not data_oriented."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and not _is_data_oriented(value)


def _is_data_oriented(value: Any) -> bool:
    return any("_data_oriented" in vars(base) for base in type(value).__mro__)


def check_marked(value: Any) -> None:
    """Refuse a kernel that is a method of an unmarked class: the ndarrays in its objects would not be passed at launches.

    Raises:
        QdrunSyntaxError: naming the class.
    """
    value = value.value if isinstance(value, Frozen) else value
    if not isinstance(value, type) and not _is_data_oriented(value):
        what = f"class {type(value).__name__} is not marked: its kernels cannot know `self`"
        raise QdrunSyntaxError(what, None, "decorate it with @qd.data_oriented")


@dataclasses.dataclass
class HeldBy:
    """The per-launch members of a compile-time object.

    Attributes:
        arrays: its ndarrays: path, array.
        numbers: its numbers that are not constants: path, owner, name, number.
        visited: the visited objects, lists, tuples and dicts, outer ones first; for containers, whether their items were visited.
    """

    arrays: list[tuple[str, Any]] = dataclasses.field(default_factory=list)
    numbers: list[tuple[str, Any, str, Any]] = dataclasses.field(default_factory=list)
    visited: list[tuple[Any, bool]] = dataclasses.field(default_factory=list)


def held_by(root: Any) -> HeldBy:
    """Find the per-launch members of a compile-time object."""
    found = HeldBy()
    if is_container(root):
        _walk(root, "", found, {id(root)}, counts=False)
    return found


def is_container(value: Any) -> bool:
    """Whether an object is searched: it is data_oriented, or a Python dataclass."""
    return not isinstance(value, type) and (_is_data_oriented(value) or dataclasses.is_dataclass(value))


def _walk(owner: Any, path: str, found: HeldBy, seen: set[int], counts: bool) -> None:
    """``counts``: the numbers of what lies inside come with each launch, as ``template_primitives=False`` of an outer object says."""
    found.visited.append((owner, True))
    counts = counts or (_is_data_oriented(owner) and not getattr(type(owner), "_qd_template_primitives", True))
    for name, value in _members(owner):
        scalar = isinstance(value, (np.integer, np.floating, np.bool_))
        if counts and (scalar or type(value) in (int, float, bool)):
            found.numbers.append((f"{path}.{name}", owner, name, value.item() if scalar else value))
        else:
            _look(value, f"{path}.{name}", found, seen, counts)


def _look(value: Any, path: str, found: HeldBy, seen: set[int], counts: bool) -> None:
    if _is_array(value):
        found.arrays.append((path, value))
    elif isinstance(value, _CONTAINERS) and id(value) not in seen:
        seen.add(id(value))
        whole = is_walked(value)
        found.visited.append((value, whole))
        for key, item in _items(value) if whole else ():
            _look(item, f"{path}[{key!r}]", found, seen, counts)
    elif is_container(value) and id(value) not in seen:
        seen.add(id(value))
        _walk(value, path, found, seen, counts)


_CONTAINERS = (list, tuple, dict)
_NUMBERS = frozenset((int, float, bool, str, bytes, type(None), np.float32, np.float64, np.int32, np.int64))


def is_walked(container: Any) -> bool:
    """Whether the ndarrays in a list, tuple or dict come with each launch: it holds one, or an object that is searched, at any depth."""
    return isinstance(container, _CONTAINERS) and _holds_arrays(container, set())


def _holds_arrays(container: Any, seen: set[int]) -> bool:
    seen.add(id(container))
    for _, x in _items(container):
        if type(x) in _NUMBERS:
            continue
        if _is_array(x) or is_container(x):
            return True
        if isinstance(x, _CONTAINERS) and id(x) not in seen and _holds_arrays(x, seen):
            return True
    return False


def _items(container: Any) -> Iterable[tuple[Any, Any]]:
    return container.items() if isinstance(container, dict) else enumerate(container)


def field_names(owner: Any) -> frozenset[str] | None:
    """The attributes of a Python dataclass to search; None: the object is no dataclass, search all."""
    return frozenset(f.name for f in dataclasses.fields(owner)) if dataclasses.is_dataclass(owner) else None


def _members(owner: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, without running its properties."""
    if dataclasses.is_dataclass(owner):
        yield from ((f.name, getattr(owner, f.name)) for f in dataclasses.fields(owner))
        return
    if hasattr(owner, "_asdict"):
        yield from owner._asdict().items()
        return
    yield from getattr(owner, "__dict__", {}).items()
    for base in type(owner).__mro__:
        for name in vars(base).get("__slots__", ()):
            if hasattr(owner, name):
                yield name, getattr(owner, name)
