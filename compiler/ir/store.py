"""IR as bytes and back: the data format of the kernel cache. Reading it creates data and runs no code.

A document is JSON: ``[FORMAT, values, nodes, root]``. Each object is one row, ``[class number, field, ..]``, and other rows name it by its
position, so a chain of ten thousand operations is no recursion. *Values* (classes that compare by their fields, such as a ``Loc``) come
first, each after the values that it is made of; *nodes* (classes that compare by identity) may refer to anything. Only classes of the
table can be named, and every field is checked against its annotation on both sides. Objects that the reader already has (buffers,
argument declarations) are named by their position in ``known``. Nodes with an id get a fresh one; the ids keep their order.
"""

from __future__ import annotations

import json
import math
import struct
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from . import nodes
from .process import while_compiling
from .types import ALL, DType

FORMAT = 2
NODES: tuple[type, ...] = (
    *(nodes.Op, nodes.Local, nodes.LocalStore, nodes.GlobalStore, nodes.If, nodes.Loop, nodes.Exit, nodes.Assert, nodes.Print),
    *(nodes.Stack, nodes.StackPut, nodes.Overflow, nodes.ClaimRow, nodes.Axis, nodes.Reduction, nodes.Task, nodes.Kernel),
    *(nodes.Buffer, nodes.Place, nodes.ArgDecl, nodes.Const, nodes.Loc, nodes.CellBlocks),
)
"""The classes of the IR, in the order of their numbers."""
_Pair = tuple[Union[nodes.ArgDecl, nodes.Place, nodes.Stack], Union[int, str]]
_HINTS: dict[tuple[type, str], Any] = {  # what stands in fields that are annotated as ``object``
    (nodes.Op, "attr"): Union[None, str, nodes.ArgDecl, nodes.Local, nodes.Place, _Pair],
    (nodes.Buffer, "owner"): Union[None, nodes.ArgDecl],
}
_WITH_ID = (nodes.Op, nodes.Local, nodes.Loop)
_NUMBERS = (int, float, bool)


class StoreError(ValueError):
    """The bytes are not what ``dump`` wrote, or a value is not of the form that it was declared to have."""


@dataclass(frozen=True, slots=True)
class _FieldCodec:
    """The encoder and decoder of one annotation.

    Attributes:
        write: converts a value to JSON data.
        read: converts JSON data to a value.
        python: the exact types of the values.
        data: the exact types of the JSON data.
    """

    write: Callable[[Any, _Writer], Any]
    read: Callable[[Any, _Decoder], Any]
    python: frozenset[type]
    data: frozenset[type]


@dataclass(frozen=True, slots=True)
class _ClassCodec:
    """A class of the table: its number, and name, setter and form of each field that is stored; ``fixed``: what the others are."""

    number: int
    cls: type
    fields: tuple[tuple[str, Callable[[Any, Any], None], _FieldCodec], ...]
    fixed: tuple[tuple[Callable[[Any, Any], None], Any], ...]
    node: bool


class Codec:
    """Writes and reads values made of the dataclasses of a closed table.

    Args:
        classes: the table. The order is part of the format.
        fixed: fields that are not stored, by class and name, and what the reader sets them to.
    """

    def __init__(self, classes: Sequence[type] = NODES, fixed: Mapping[tuple[type, str], Any] | None = None) -> None:
        self._classes, self._fixed = tuple(classes), dict(fixed or {})
        self._numbers = {cls: number for number, cls in enumerate(self._classes)}
        self._forms: dict[Any, _FieldCodec] = {}
        self._rows: dict[int, _ClassCodec] = {}  # made when they are needed: a process that starts meets few classes

    def row(self, cls: type) -> _ClassCodec:
        """The encoding of objects of a class of the table."""
        number = self._numbers[cls]
        return self._rows.get(number) or self._rows.setdefault(number, self._row(number, cls))

    def check(self) -> None:
        """Make the forms of all classes.

        Raises:
            TypeError: an annotation cannot be stored without ambiguity, or names a class that is not in the table.
        """
        for cls in self._classes:
            self.row(cls)

    def _row(self, number: int, cls: type) -> _ClassCodec:
        hints = get_type_hints(cls)
        stored, fixed = [], []
        for f in fields(cls):
            put = _setter(cls, f.name)
            if (cls, f.name) in self._fixed:
                fixed.append((put, self._fixed[cls, f.name]))
            else:
                stored.append((f.name, put, self.form(_HINTS.get((cls, f.name), hints[f.name]))))
        eq: bool = cls.__dataclass_params__.eq  # type: ignore[attr-defined]
        return _ClassCodec(number, cls, tuple(stored), tuple(fixed), not eq)

    def form(self, hint: Any) -> _FieldCodec:
        """The form of an annotation."""
        if hint not in self._forms:
            self._forms[hint] = self._make(hint)
        return self._forms[hint]

    def _make(self, hint: Any) -> _FieldCodec:
        origin, args = get_origin(hint), get_args(hint)
        if hint is DType:
            return _FieldCodec(lambda x, w: x.name, _read_dtype, frozenset((DType,)), frozenset((str,)))
        if hint in _NUMBERS:
            return _number_form(frozenset((hint,)))
        if hint in (str, type(None)):
            return _plain_form(hint)
        if origin is Literal:
            return _literal_form(frozenset(args))
        if origin in (list, frozenset):
            return _many_form(self.form(args[0]), origin)
        if origin is tuple:
            if len(args) == 2 and args[1] is ...:
                return _many_form(self.form(args[0]), tuple)
            return _tuple_form(tuple(map(self.form, args)))
        if origin is dict:
            return _dict_form(_tuple_form((self.form(args[0]), self.form(args[1]))))
        if origin in (Union, types.UnionType):
            return self._union(args)
        if is_dataclass(hint):
            return self._reference((hint,), tagged=False)
        raise TypeError(f"{hint!r} cannot be stored")

    def _reference(self, classes: Sequence[Any], tagged: bool) -> _FieldCodec:
        strange = [c.__name__ for c in classes if c not in self._numbers]
        if strange:
            raise TypeError(f"{', '.join(strange)} not in the table of stored classes")
        allowed = frozenset(classes)
        if tagged:  # beside numbers, which are JSON numbers, too
            return _FieldCodec(lambda x, w: [w.ref(x)], lambda x, r: r.get(_only(x), allowed), allowed, frozenset((list,)))
        return _FieldCodec(lambda x, w: w.ref(x), lambda x, r: r.get(x, allowed), allowed, frozenset((int,)))

    def _union(self, args: tuple[Any, ...]) -> _FieldCodec:
        numbers = frozenset(a for a in args if a in _NUMBERS)
        classes = [a for a in args if is_dataclass(a) and a is not DType]
        forms = [self.form(a) for a in args if a not in numbers and a not in classes]
        if numbers:
            forms.append(_number_form(numbers))
        if classes:
            forms.append(self._reference(classes, tagged=bool(numbers)))
        write = {t: f.write for f in forms for t in f.python}
        read = {t: f.read for f in forms for t in f.data}
        if len(write) != sum(len(f.python) for f in forms) or len(read) != sum(len(f.data) for f in forms):
            raise TypeError(f"{args!r} are told apart neither by type nor by form")
        return _FieldCodec(
            lambda x, w: write.get(type(x), _strange)(x, w),
            lambda x, r: read.get(type(x), _damaged)(x, r),
            frozenset(write),
            frozenset(read),
        )

    def dump(self, value: Any, hint: Any, known: Sequence[object] = ()) -> bytes:
        """The bytes of a value.

        Args:
            value: made of the classes of the table, of tuples, lists, dicts, frozensets and scalars.
            hint: its annotation.
            known: objects that the reader has, too.

        Raises:
            StoreError: the value is not of this annotation, or values nest deeper than Python can follow.
        """
        writer = _Writer(self, known)
        try:
            root = _write(self.form(hint), value, writer)
            rows = [writer.row(x) for x in writer.nodes]  # grows while it is gone through: writing a node may name others
        except RecursionError:
            raise StoreError("values are nested too deeply") from None
        return json.dumps([FORMAT, writer.values, rows, root], separators=(",", ":")).encode()

    def load(self, data: bytes, hint: Any, known: Sequence[object] = ()) -> Any:
        """The value again.

        Args:
            data: what ``dump`` gave.
            hint: the annotation that it was given.
            known: objects in the places of those that ``dump`` was given.

        Raises:
            StoreError: the bytes are damaged, or of another version.
        """
        with while_compiling():
            return self._load(data, hint, known)

    def _load(self, data: bytes, hint: Any, known: Sequence[object]) -> Any:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as e:
            raise StoreError(f"damaged: {e}") from None
        if type(document) is not list or len(document) != 4 or document[0] != FORMAT:
            raise StoreError(f"not a document of format {FORMAT}")
        _, values, rows, root = document
        reader = _Decoder(known, [object.__new__(self._class_of(row, node=True).cls) for row in _list(rows)])
        try:
            for row in _list(values):
                value = object.__new__(self._class_of(row, node=False).cls)
                self._fill(value, row, reader)
                reader.values.append(value)
            for node, row in zip(reader.nodes, rows, strict=True):
                self._fill(node, row, reader)
            value = self.form(hint).read(root, reader)
        except RecursionError:
            raise StoreError("damaged: nested too deeply") from None
        for node in sorted((x for x in reader.nodes if isinstance(x, _WITH_ID)), key=lambda x: x.id):
            node.id = nodes.new_id()
        return value

    def _class_of(self, row: Any, node: bool) -> _ClassCodec:
        if type(row) is list and row and type(row[0]) is int and 0 <= row[0] < len(self._classes):
            found = self._rows.get(row[0]) or self.row(self._classes[row[0]])
            if found.node == node and len(row) == len(found.fields) + 1:
                return found
        raise StoreError("damaged: a row of no class")

    def _fill(self, x: Any, row: list[Any], reader: _Decoder) -> None:
        form = self._rows[row[0]]
        for (_, put, f), item in zip(form.fields, row[1:]):
            put(x, f.read(item, reader))
        for put, value in form.fixed:
            put(x, value)


class _Writer:
    """Numbers objects: nodes evenly, values oddly, what the reader knows below zero."""

    def __init__(self, codec: Codec, known: Sequence[object]) -> None:
        self._row_of = codec.row
        self._numbers = {id(x): -1 - k for k, x in enumerate(known)}
        self._alive: list[object] = []  # an id names an object for as long as that exists
        self.nodes: list[Any] = []
        self.values: list[list[Any]] = []

    def ref(self, x: Any) -> int:
        """The number of an object."""
        number = self._numbers.get(id(x))
        if number is not None:
            return number
        if self._row_of(type(x)).node:
            number = 2 * len(self.nodes)
            self.nodes.append(x)
        else:
            row = self.row(x)
            number = 2 * len(self.values) + 1
            self.values.append(row)
            self._alive.append(x)
        self._numbers[id(x)] = number
        return number

    def row(self, x: Any) -> list[Any]:
        """An object as its class number and its fields."""
        row = self._row_of(type(x))
        out: list[Any] = [row.number]
        for name, _, form in row.fields:
            try:
                out.append(_write(form, getattr(x, name), self))
            except StoreError as e:
                raise StoreError(f"{type(x).__name__}.{name}: {e}") from None
        return out


class _Decoder:
    def __init__(self, known: Sequence[object], made: list[Any]) -> None:
        self._known, self.nodes, self.values = known, made, []

    def get(self, number: Any, allowed: frozenset[type]) -> Any:
        """The object of a number, which must be of one of these classes."""
        if type(number) is not int:
            raise StoreError("damaged: no reference")
        if number < 0:
            where, at = self._known, -1 - number
        else:
            where, at = (self.values if number & 1 else self.nodes), number >> 1
        if at >= len(where) or type(where[at]) not in allowed:
            raise StoreError("damaged: a reference to nothing")
        return where[at]


def _setter(cls: type, name: str) -> Callable[[Any, Any], None]:
    """Sets a field of an object, frozen or not."""
    if "__slots__" in vars(cls):
        return getattr(cls, name).__set__
    return lambda x, value: object.__setattr__(x, name, value)


def _write(form: _FieldCodec, x: Any, w: _Writer) -> Any:
    if type(x) not in form.python:
        _strange(x, w)
    return form.write(x, w)


def _strange(x: Any, _: _Writer) -> Any:
    raise StoreError(f"a {type(x).__name__} does not belong here")


def _damaged(x: Any, _: _Decoder) -> Any:
    raise StoreError(f"damaged: a {type(x).__name__} does not belong here")


def _list(x: Any) -> list[Any]:
    if type(x) is not list:
        raise StoreError("damaged: no list")
    return x


def _only(x: list[Any]) -> Any:
    if len(x) != 1:
        raise StoreError("damaged: no reference")
    return x[0]


def _read_dtype(x: Any, _: _Decoder) -> DType:
    if type(x) is not str or x not in ALL:
        raise StoreError("damaged: no scalar type")
    return ALL[x]


def _plain_form(cls: type) -> _FieldCodec:
    def read(x: Any, r: _Decoder) -> Any:
        return x if type(x) is cls else _damaged(x, r)

    return _FieldCodec(lambda x, w: x, read, frozenset((cls,)), frozenset((cls,)))


def _number_form(allowed: frozenset[type]) -> _FieldCodec:
    """Numbers of some types; where a float may stand, an int may, too. A NaN is its bits, as JSON has only one."""
    real = float in allowed
    if real:
        allowed |= {int}

    def write(x: Any, w: _Writer) -> Any:
        return struct.pack(">d", x).hex() if math.isnan(x) else x

    def read(x: Any, r: _Decoder) -> Any:
        if type(x) in allowed:
            return x
        if real and type(x) is str and len(x) == 16:
            try:
                return struct.unpack(">d", bytes.fromhex(x))[0]
            except ValueError:
                pass
        return _damaged(x, r)

    return _FieldCodec(write if real else lambda x, w: x, read, allowed, allowed | {str} if real else allowed)


def _literal_form(allowed: frozenset[Any]) -> _FieldCodec:
    def check(x: Any) -> Any:
        if type(x) is not str or x not in allowed:
            raise StoreError(f"{x!r} is none of {', '.join(sorted(allowed))}")
        return x

    return _FieldCodec(lambda x, w: check(x), lambda x, r: check(x), frozenset((str,)), frozenset((str,)))


def _many_form(item: _FieldCodec, cls: type) -> _FieldCodec:
    def write(x: Any, w: _Writer) -> Any:
        return [_write(item, y, w) for y in x]

    def read(x: Any, r: _Decoder) -> Any:
        return cls([item.read(y, r) for y in _list(x)])

    return _FieldCodec(write, read, frozenset((cls,)), frozenset((list,)))


def _tuple_form(items: tuple[_FieldCodec, ...]) -> _FieldCodec:
    def write(x: Any, w: _Writer) -> Any:
        if len(x) != len(items):
            raise StoreError(f"a tuple of {len(x)} instead of {len(items)}")
        return [_write(form, y, w) for form, y in zip(items, x)]

    def read(x: Any, r: _Decoder) -> Any:
        if len(_list(x)) != len(items):
            raise StoreError("damaged: a tuple of another length")
        return tuple([form.read(y, r) for form, y in zip(items, x)])

    return _FieldCodec(write, read, frozenset((tuple,)), frozenset((list,)))


def _dict_form(pair: _FieldCodec) -> _FieldCodec:
    def write(x: Any, w: _Writer) -> Any:
        return [pair.write(item, w) for item in x.items()]

    def read(x: Any, r: _Decoder) -> Any:
        return dict([pair.read(item, r) for item in _list(x)])

    return _FieldCodec(write, read, frozenset((dict,)), frozenset((list,)))
