"""A job as ``build`` has left it: what its program's memory held, and its attributes with all that hangs on them, to be put back.

Attributes are followed through lists, dicts, arrays, plain objects, closures and bound methods, and these are put back in place. What
cannot be (a set, a deque, a generator of random numbers) is compared by its value: a job is not put back where that has changed. What can
neither be put back nor compared (an open file, an iterator, a lock) makes it a job that is built for each run. What belongs to the process
(globals of modules, attributes of classes, environment variables, files) is not looked at.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import logging
import operator
import struct
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from enum import Enum
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    BuiltinMethodType,
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
from pydantic import BaseModel

from .watch import Watch

MOST_COPIED = 1 << 26
"""Bytes of arrays that are copied; larger ones, or further ones, are compared by a checksum."""

GIVEN = frozenset(
    (
        *("params", "wanted", "program", "watch", "_seed", "_seed_used", "_made", "_built", "_folder", "_folder_used"),
        *("live", "_real_params", "_declared", "_ran", "_launches", "_recorded"),
    )
)
"""Attributes of a job that those set who run it."""

NUMBERS = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))
ATOMS = (ModuleType, Enum, np.ufunc, np.dtype, np.number, np.bool_, PurePath, logging.Logger, Watch)
DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
LOCAL = "<locals>"  # in the qualified name of what a function has made, and does not belong to its module
_COMPILER = "qdrun.compiler."
_EMPTY = object()
_NEW = copyreg.__dict__["__newobj__"]  # what makes objects that are their attributes, when they are unpickled


class Built:
    """A job that was just built, to be put back to that.

    Attributes:
        why: why it cannot be; empty where it can, as far as that is known.
    """

    def __init__(self, job: object, program: Any) -> None:
        self._content = None if program is None else program.content()
        self._attributes = Attributes(job, program)

    @property
    def why(self) -> str:
        """See the class."""
        return self._attributes.why or (self._content.why if self._content is not None else "")

    def put_back(self) -> bool:
        """Put the job back. False: it cannot be, and must be built again."""
        content = self._content
        return self._attributes.put_back() and (content is None or content.put_back()) and self._attributes.same()


class Attributes:
    """The attributes of a job, and what can be reached from them.

    Attributes:
        why: what is among them that can neither be put back nor compared, or was not what it was; empty where there is nothing.
    """

    def __init__(self, job: object, program: Any) -> None:
        self.why = ""
        self._program, self._room = program, MOST_COPIED
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._objects: list[tuple[Any, type, dict[str, Any], Container[str]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._sets: list[tuple[str, set[Any], list[Any], int]] = []
        self._arrays: list[tuple[str, np.ndarray, np.ndarray | bytes, tuple[Any, ...]]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._classes: list[tuple[str, type, dict[str, Any]]] = []
        self._others: list[tuple[str, Any, Any]] = []
        self._name = ""  # the attribute of the job that is followed
        self._seen: dict[int, Any] = {id(x): x for x in _globals_of(type(job))} | {id(x): x for x in (job, *type(job).__mro__)}
        own = {name: value for name, value in vars(job).items() if name not in GIVEN}
        self._objects.append((job, type(job), own, GIVEN))
        if any(vars(kind).get("__slots__") for kind in type(job).__mro__):
            self.why = f"{type(job).__name__} has __slots__"
        waiting = list(own.items())
        while waiting and not self.why:
            name, value = waiting.pop()
            self._name = name
            if not _is_atom(value) and id(value) not in self._seen:
                self._seen[id(value)] = value
                try:
                    waiting += ((name, part) for part in self._remember(value))
                except _CANNOT as error:
                    what = f"{type(value).__module__}.{type(value).__qualname__}"
                    self.why = f"`{name}` leads to a {what}, whose state cannot be compared ({error})"

    def put_back(self) -> bool:
        """Make them what they were, but for what can only be compared (``same``). False: that is not possible."""
        if self.why:
            return False
        changed = [
            f"a {kind.__qualname__} that is of another class now" for x, kind, _, _ in self._objects if type(x) is not kind
        ]
        changed += [
            f"the array `{name}` leads to has another form now" for name, x, _, form in self._arrays if _form_of(x) != form
        ]
        if changed:
            self.why = changed[0]
            return False
        for x, kept in self._lists:
            if not _same_items(x, kept):
                x[:] = kept
        for d, was in self._dicts:
            if not (_same_items(d, was) and _same_items(d.values(), was.values())):
                d.clear()
                d.update(was)
        for cell, content in self._cells:
            _refill(cell, content)
        for _, x, content, _ in self._arrays:
            if isinstance(content, np.ndarray):
                np.copyto(x, content)
        for x, _, had, given in self._objects:
            _patch(vars(x), had, given)
        return True

    def same(self) -> bool:
        """Whether those that are not put back are what they were."""
        names = [name for name, x, had, size in self._sets if not _same_items(x, had) or sys.getsizeof(x) != size]
        names += [name for name, x, was, _ in self._arrays if isinstance(was, bytes) and _digest(x) != was]
        names += [
            name
            for name, x, had in self._classes
            if not _same_items(vars(x).values(), had.values()) or list(vars(x)) != list(had)
        ]
        try:
            names += [name for name, x, was in self._others if self._value(x) != was]
        except _CANNOT as error:
            self.why = f"what an attribute leads to cannot be compared any more ({error})"
        if names:
            self.why = f"what `{names[0]}` leads to was changed by a run, and can only be compared"
        return not self.why

    def _remember(self, x: Any) -> Iterator[Any]:
        """Remember a value, and give what it holds."""
        kind = type(x)
        if kind.__module__.startswith(_COMPILER):
            yield from self._reached(x)
        elif kind in _HANDLED:
            yield from _HANDLED[kind](self, x)
        elif isinstance(x, type):
            yield from self._class(x)
        elif isinstance(x, BaseModel):
            yield from self._object(x)
            yield x.__pydantic_private__
            yield x.__pydantic_extra__
        elif isinstance(x, tuple) and not hasattr(x, "__dict__"):
            yield from x
        else:
            yield from self._any(x)

    def _reached(self, x: Any) -> list[Any]:
        """What an object of the compiler's holds of Python."""
        parts = None if self._program is None else self._program.reached(x)
        if parts is None:
            raise _Unknown("it may hold what is not this program's")
        return parts

    def _value(self, x: Any) -> Any:
        return _Values(self._reached).of(x)

    def _any(self, x: Any) -> Iterator[Any]:
        kind = type(x)
        if hasattr(x, "__dict__") and not isinstance(x, BaseException):
            yield from self._object(x)
        if not _is_plain(x, kind):
            self._others.append((self._name, x, self._value(x)))

    def _object(self, x: Any) -> Iterator[Any]:
        had = dict(vars(x))
        self._objects.append((x, type(x), had, ()))
        yield type(x)
        yield from had.values()

    def _class(self, x: type) -> Iterator[Any]:
        had = dict(vars(x))
        self._classes.append((self._name, x, had))
        for part in had.values():
            if isinstance(part, property):
                yield from (part.fget, part.fset, part.fdel)
            elif not isinstance(part, DESCRIPTORS):
                yield part.__func__ if isinstance(part, (staticmethod, classmethod)) else part

    def _list(self, x: list[Any]) -> Iterator[Any]:
        self._lists.append((x, list(x)))
        yield from x

    def _dict(self, x: dict[Any, Any]) -> Iterator[Any]:
        self._dicts.append((x, dict(x)))
        yield from x
        yield from x.values()

    def _set(self, x: set[Any]) -> Iterator[Any]:
        self._sets.append((self._name, x, list(x), sys.getsizeof(x)))  # put back, it would be in another order
        yield from x

    def _array(self, x: np.ndarray) -> Iterator[Any]:
        if x.dtype.hasobject:
            if x.dtype != object:
                raise _Unknown("objects in a structure")
            yield from x.ravel().tolist()
        if x.flags.writeable and (x.nbytes <= self._room or x.dtype.hasobject):
            self._room -= x.nbytes
            self._arrays.append((self._name, x, x.copy(order="K"), _form_of(x)))
        else:
            self._arrays.append((self._name, x, _digest(x), _form_of(x)))

    def _function(self, x: FunctionType) -> Iterator[Any]:
        if LOCAL in x.__qualname__:  # else it is the module's
            yield from self._object(x)
            yield x.__defaults__
            yield x.__kwdefaults__
            for cell in x.__closure__ or ():
                if id(cell) not in self._seen:
                    self._seen[id(cell)] = cell
                    self._cells.append((cell, _content_of(cell)))
                    yield _content_of(cell)

    def _partial(self, x: functools.partial[Any]) -> Iterator[Any]:
        yield from self._object(x)
        yield from (x.func, x.args, x.keywords)

    def _method(self, x: Any) -> Iterator[Any]:
        yield x.__self__
        yield getattr(x, "__func__", None)

    def _parts(self, x: Any) -> Iterator[Any]:
        yield from x


_HANDLED: dict[type, Callable[[Attributes, Any], Iterator[Any]]] = {
    list: Attributes._list,
    dict: Attributes._dict,
    set: Attributes._set,
    tuple: Attributes._parts,
    frozenset: Attributes._parts,
    np.ndarray: Attributes._array,
    FunctionType: Attributes._function,
    MethodType: Attributes._method,
    BuiltinFunctionType: Attributes._method,
    BuiltinMethodType: Attributes._method,
    functools.partial: Attributes._partial,
}


class _Unknown(Exception):
    """The state of something cannot be told."""


_CANNOT = (TypeError, ValueError, AttributeError, RecursionError, _Unknown)
"""What is raised where something has no state that can be told."""


def _globals_of(job: type) -> Iterator[Any]:
    """What belongs to the modules and classes that a job is made of."""
    for kind in (kind for kind in job.__mro__ if kind.__module__ not in ("builtins", "typing")):
        yield from vars(kind).values()
        yield from vars(sys.modules.get(kind.__module__, kind)).values()


def _is_atom(x: Any) -> bool:
    """Whether a value never changes, or belongs to the process."""
    if isinstance(x, type):
        return LOCAL not in x.__qualname__ or issubclass(x, (BaseModel, Enum))
    return type(x) in NUMBERS or isinstance(x, ATOMS)


def _is_plain(x: Any, kind: type) -> bool:
    """Whether an object is its attributes, and nothing else."""
    own = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    if not own or getattr(kind, "__getstate__", None) is not object.__getstate__:
        return False
    made = x.__reduce_ex__(2)  # refuses what has a state in C
    state = made[2] if len(made) > 2 else None
    return made[0] is _NEW and len(made[1]) == 1 and not any(made[3:]) and (state is None or type(state) is dict)


def _same_items(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(map(operator.is_, a, b))


def _patch(now: dict[str, Any], had: dict[str, Any], given: Container[str]) -> None:
    """Set attributes, but for the ``given`` ones: one by one, as other threads read those. They are in their order then, too."""
    for name in [name for name in now if name not in had and name not in given]:
        del now[name]
    for name, value in had.items():
        if now.get(name, _EMPTY) is not value:
            now[name] = value
    if [name for name in now if name in had] != list(had):
        for name in had:
            now[name] = now.pop(name)


def _content_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _refill(cell: CellType, content: Any) -> None:
    if _content_of(cell) is content:
        return
    if content is _EMPTY:
        del cell.cell_contents
    else:
        cell.cell_contents = content


def _form_of(x: np.ndarray) -> tuple[Any, ...]:
    return x.shape, x.strides, x.dtype, x.flags.writeable


def _digest(x: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data, digest_size=16).digest()


class _Same:
    """An object that is equal to itself alone."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._x is other._x

    def __hash__(self) -> int:
        return id(self._x)


class _Values:
    """Values that are equal where objects have the same state, as it would be pickled, to the bit.

    Args:
        reached: gives what an object of the compiler's holds of Python.
    """

    def __init__(self, reached: Callable[[Any], list[Any]]) -> None:
        self._reached = reached
        self._seen: dict[int, tuple[int, Any]] = {}

    def of(self, x: Any) -> Any:
        """The value of an object.

        Raises:
            _Unknown, TypeError: it cannot be told.
        """
        kind = type(x)
        if kind is float:
            return kind, struct.pack("d", x)
        if kind is complex:
            return kind, struct.pack("2d", x.real, x.imag)
        if kind in NUMBERS:
            return kind, hashlib.blake2b(x, digest_size=16).digest() if kind is bytes else x  # a tensor's content, say
        if isinstance(x, (type, FunctionType)):
            if LOCAL in x.__qualname__:
                raise _Unknown(f"{x.__qualname__} in it")
            return _Same(x)
        if isinstance(x, (ModuleType, np.ufunc)):
            return _Same(x)
        if id(x) in self._seen:
            return "again", self._seen[id(x)][0]
        self._seen[id(x)] = len(self._seen), x
        if kind.__module__.startswith(_COMPILER):
            return _Same(x), self._all(self._reached(x))
        if isinstance(x, BuiltinFunctionType):
            return x.__name__, _Same(x.__self__) if isinstance(x.__self__, ModuleType) else self.of(x.__self__)
        return kind, *self._state(x, kind)

    def _state(self, x: Any, kind: type) -> Iterator[Any]:
        if kind in (list, tuple, set, frozenset):
            yield self._all(x)
        elif kind is dict:
            yield from (self._all(x), self._all(x.values()))
        elif kind is np.ndarray and not x.dtype.hasobject:
            yield from (str(x.dtype), x.shape, x.strides, _digest(x))
        else:
            made = x.__reduce_ex__(2)
            if isinstance(made, str) and LOCAL in made:
                raise _Unknown(f"{made} in it")
            parts = (_Same(x),) if isinstance(made, str) else made
            yield from (
                part if isinstance(part, _Same) else self._all(part) if isinstance(part, Iterator) else self.of(part)
                for part in parts
            )

    def _all(self, items: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(map(self.of, items))


__all__ = ["MOST_COPIED", "Attributes", "Built"]
