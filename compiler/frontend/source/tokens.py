"""Tokens: plain data that describes a Python value from outside of a kernel to lowering. Equal tokens lower to equal IR.

Numbers, strings, arrays and containers count by their content, types by name, functions of the kernel language by their source, fields by
layout. Fields of one program share memory with each other as the tokens say: a buffer is its number in the order of appearance. Any
other object is a *leaf*: its token is its type, and what the kernel reads of it must be read again through the path that led to it.
"""

from __future__ import annotations

import enum
import hashlib
import sys
from dataclasses import fields, is_dataclass
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from ...ir.nodes import Buffer, Const, Op
from ...ir.types import DType
from ..library import functions
from ..values.values import MatrixValue, StructForm
from .parse import FunctionSource, read_function

Path = tuple[Any, ...]
Token = tuple[Any, ...]

PACKAGE = __name__.rpartition(".compiler.")[0]
_BY_VALUE = frozenset((int, bool, str, bytes, type(None)))
_PLAIN = _BY_VALUE | {float, complex, range, slice, DType, Op, Const, MatrixValue, np.ndarray}
_HASHED = 1 << 26
"""Bytes of an array from outside a kernel that are still hashed; a larger one makes the kernel uncacheable."""


class NoToken(Exception):
    """A value has no token."""


class Tokens:
    """The tokens of one lowering, with what they number.

    Attributes:
        sources: the functions, the kernel's own first.
        buffers: the memory of fields.
        origin: where each leaf was found, by ``id``.
        given: fields that had no name of their own, and what the kernel calls them.
    """

    def __init__(self, kernel: FunctionSource) -> None:
        self.sources: list[FunctionSource] = []
        self.buffers: list[Buffer] = []
        self.origin: dict[int, Path] = {}
        self.given: list[tuple[Any, str]] = []
        self._source_numbers: dict[int, int] = {}
        self._buffer_numbers: dict[Buffer, int] = {}
        self._names: dict[int, tuple[Any, str]] = {}
        self._alive: list[Any] = []  # leaves and sources are known by id
        self.source(kernel)

    def source(self, source: FunctionSource) -> Token:
        """A function: its number, and the first time its text and where it stands."""
        number = self.number_of(source)
        if number is not None:
            return "again", number
        number = self._source_numbers[id(source.fn)] = len(self.sources)
        self.sources.append(source)
        return "func", number, source.name, source.file, source.first, source.lines

    def number_of(self, source: FunctionSource) -> int | None:
        """The number of a function that is known already."""
        return self._source_numbers.get(id(source.fn))

    def buffer(self, buffer: Buffer) -> int:
        """The number of a field's memory."""
        number = self._buffer_numbers.get(buffer)
        if number is None:
            number = self._buffer_numbers[buffer] = len(self.buffers)
            self.buffers.append(buffer)
        return number

    def of(self, value: Any, path: Path | None, name: str = "") -> Token:
        """The token of a value that was found at ``path``; ``name``: what the kernel calls it.

        Raises:
            NoToken: it has none.
        """
        cls = type(value)
        if cls in _BY_VALUE:
            return cls.__name__, value
        if cls is float or cls is complex:
            return cls.__name__, repr(value)
        if isinstance(value, DType):
            return "dtype", value.name
        if cls is tuple or cls is list:
            return cls.__name__, tuple([self.of(x, _step(path, "item", k)) for k, x in enumerate(value)])
        if cls is dict:
            return "dict", tuple((self.of(k, None), self.of(x, _step(path, "item", k))) for k, x in value.items())
        if isinstance(value, (np.generic, np.ndarray)):
            return self._array(value)
        if cls in (range, slice):
            return cls.__name__, repr(value)
        if isinstance(value, enum.Enum):
            return "enum", cls.__module__, cls.__qualname__, value.name, self.of(value.value, None)
        return self._object(value, path, name)

    def _array(self, value: Any) -> Token:
        if value.dtype.hasobject or type(value) not in (np.ndarray, value.dtype.type) or value.nbytes > _HASHED:
            raise NoToken(f"{type(value).__name__} of {value.dtype}, {value.nbytes} bytes")
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return "array", isinstance(value, np.generic), value.dtype.str, value.shape, digest

    def _object(self, value: Any, path: Path | None, name: str) -> Token:
        cls = type(value)
        if cls is Op:
            raise NoToken("a value of a kernel")
        if id(value) in self.origin:
            return self._leaf(value, path)
        if hasattr(cls, "__qd_held__"):
            return self._template(value, path)
        if is_ours(cls) and isinstance(getattr(value, "__qd_func__", None), FunctionSource):
            return self._function(value, path)
        known = known_callable(value)
        if known is not None:
            return known
        if not is_ours(cls):
            return self._leaf(value, path)
        if hasattr(cls, "__qd_value__"):
            return "value", self._name(value, name), self.of(value.__qd_value__(), path)
        if isinstance(value, Buffer):
            return "buffer", value.kind, self.buffer(value)
        if isinstance(value, StructForm):
            methods = tuple((n, self._method(m)) for n, m in value.methods.items())
            return "form", value.name, self.of(value.members, None), methods, self.of(value.owner, _step(path, "attr", "owner"))
        key = getattr(cls, "__qd_key__", None)
        if key is not None:
            return "key", cls.__qualname__, self.of(key(value), None)
        if is_dataclass(value):
            parts = [(n, self.of(getattr(value, n), _step(path, "attr", n))) for n in _members(cls) if n != "name"]
            return "data", cls.__qualname__, tuple(parts)
        raise NoToken(f"a {cls.__qualname__}")

    def _template(self, value: Any, path: Path | None) -> Token:
        """A template argument. What it holds that comes with each launch is known by where it is found, not by what it is now."""
        arrays, numbers = [], []
        for k, (where, objects, spec) in enumerate(value.arrays):
            inside = _step(_step(path, "attr", "arrays"), "item", k)
            inside = _step(inside, "item", 1)
            found = tuple(self._leaf(x, _step(inside, "item", n)) for n, x in enumerate(objects))
            arrays.append((where, found, self.of(spec, None)))
        for k, (where, owner, key, spec) in enumerate(value.numbers):
            inside = _step(_step(path, "attr", "numbers"), "item", k)
            numbers.append((where, self._leaf(owner, _step(inside, "item", 1)), key, self.of(spec, None)))
        return "template", self.of(value.value, _step(path, "attr", "value")), tuple(arrays), tuple(numbers)

    def _function(self, value: Any, path: Path | None) -> Token:
        """A function of the kernel language, bound or not."""
        token = self.source(value.__qd_func__)
        product = getattr(value, "own_gradient", None)
        if product is not None:
            token = "with a gradient", token, self.source(product.__qd_func__)
        if hasattr(value, "__self__"):
            return "bound", token, self.of(value.__self__, _step(path, "attr", "__self__"))
        return token

    def _name(self, value: Any, name: str) -> str:
        """The name of a field in messages: its own, or the first that a kernel has for it, which lowering assigns to it."""
        known = self._names.get(id(value))
        if known is not None:
            return known[1]
        own = getattr(value, "name", "")
        if name and not getattr(value, "named", True):
            self.given.append((value, name))
            own = name
        self._names[id(value)] = value, own
        return own

    def _method(self, method: Any) -> Token:
        """A method of a struct: a function of the kernel language, or one that will be read as such."""
        plain = method.__func__ if isinstance(method, staticmethod) else method
        if isinstance(plain, FunctionType):
            return type(method).__name__, self.source(read_function(plain))
        return type(method).__name__, self.of(plain, None)

    def _leaf(self, value: Any, path: Path | None) -> Token:
        before = self.origin.get(id(value))
        if path is not None and before is None:
            self.origin[id(value)] = path
            self._alive.append(value)
        if isinstance(value, ModuleType):
            return "module", value.__name__, before
        if isinstance(value, type):
            return "class", value.__module__, value.__qualname__, before
        cls = type(value)
        if not is_dataclass(value) or is_ours(cls):
            return "object", cls.__module__, cls.__qualname__, before
        parts = tuple([(n, self.of(getattr(value, n), _step(path, "attr", n))) for n in _members(cls)])
        return "object", cls.__module__, cls.__qualname__, before, parts  # the front end may read a dataclass as a struct


@cache
def _members(cls: type) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    return tuple([f.name for f in fields(cls)])  # type: ignore[arg-type]


def _step(path: Path | None, kind: str, key: Any) -> Path | None:
    """A path one step further; there is none through a key that is no literal."""
    return None if path is None or type(key) not in (str, int) else (*path, (kind, key))


def is_ours(cls: type) -> bool:
    """Whether a class is part of this package (and so of every key)."""
    return cls.__module__ == PACKAGE or cls.__module__.startswith(PACKAGE + ".compiler.")


def is_leaf(value: Any) -> bool:
    """Whether a value, or some part of a container, is an object that is known by its type alone."""
    cls = type(value)
    if cls in _PLAIN:
        return cls is np.ndarray and value.dtype.hasobject
    if cls is tuple or cls is list:
        return any(map(is_leaf, value))
    if cls is dict:
        return any(map(is_leaf, value.values()))
    if isinstance(value, (np.generic, enum.Enum)) or known_callable(value) is not None:
        return False
    return not is_ours(cls)


def known_callable(value: Any) -> Token | None:
    """The token of a function or class that is always the same: one of this package, or of Python, ``math`` and numpy that kernels know."""
    if not callable(value):
        return None
    try:
        if value in functions.FOREIGN or value in _TYPES:
            return "foreign", getattr(value, "__module__", None) or type(value).__module__, value.__name__
    except TypeError:  # not hashable
        return None
    if id(value) not in _named and _may_be_ours(value):
        _find_names()
    module, name = _named.get(id(value), ("", ""))
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return ("ours", module, name) if module and found is value else None


def _may_be_ours(value: Any) -> bool:
    """Whether a module of this package can define a callable: other ones need no search of the modules."""
    module = getattr(value, "__module__", None)
    return is_ours(value if isinstance(value, type) else type(value)) or str(module).startswith(PACKAGE + ".")


_TYPES = frozenset((tuple, list, str, range, len, zip, enumerate, reversed, print))
_named: dict[int, tuple[str, str]] = {}
_seen_modules: set[str] = set()


def _find_names() -> None:
    """Note each function, class and intrinsic that a module of this package defines, and static methods for kernels."""
    prefix = PACKAGE + ".compiler."
    ours: dict[type, bool] = {}  # ten thousand names have a few hundred types
    for name in sorted([n for n in list(sys.modules) if n.startswith(prefix) and n not in _seen_modules]):
        module = sys.modules[name]
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            continue
        _seen_modules.add(name)
        for attribute, value in list(vars(module).items()):
            if id(value) in _named or not callable(value):  # most names of a module are imports
                continue
            cls = value if isinstance(value, type) else type(value)
            if cls not in ours:
                ours[cls] = cls.__module__.startswith(prefix)
            if ours[cls]:
                _named[id(value)] = name, attribute
                for key, method in vars(value).items() if isinstance(value, type) else ():
                    if isinstance(method, staticmethod) and hasattr(method.__func__, "__qd_lower__"):
                        _named.setdefault(id(method.__func__), (name, f"{attribute}.{key}"))
            elif getattr(value, "__module__", "") == name:
                _named[id(value)] = name, attribute
