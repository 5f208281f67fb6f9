"""Functions of sparse levels for kernels: activity of cells, lists of dynamic levels, indices of one level in another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import QdrunIndexError, QdrunTypeError
from ...ir.nodes import Assert, Const, Operand
from ...ir.types import i32
from ..markers import kernel_only
from ..source.keywords import signature
from ..state.context import describe
from ..values import levels, ops
from ..values.levels import Index, LevelRef
from ..values.matrix import build, check_index
from ..values.structs import StructTensor
from ..values.tensor import TensorRef
from ..values.values import MatrixValue, StructValue

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder


class LevelFunction:
    """A function of kernels whose first argument is a level of the layout tree, or a sparse field for the level that it is placed in."""

    def __init__(self, name: str, lower: Callable[..., Any], doc: str, parameters: str) -> None:
        self.__name__ = self.__qualname__ = name
        self.__doc__ = doc
        self.__signature__ = signature(parameters)
        self.__qd_lower__ = lower

    def __call__(self, *args: Any, **kw: Any) -> Any:
        """Refuse a call from Python."""
        kernel_only(self.__name__)

    def __repr__(self) -> str:
        return f"<qdrun function {self.__name__}>"


class List:
    """``x[i]`` of a field in a dynamic level, without the index in the list. ``index``: that of the list."""

    def __init__(self, level: LevelRef, index: tuple[Any, ...]) -> None:
        self._level, self._index = level, index

    @property
    def append(self) -> ListMethod:
        """``x[i].append(value)``."""
        return ListMethod(append, self._level, self._index)

    @property
    def length(self) -> ListMethod:
        """``x[i].length()``."""
        return ListMethod(length, self._level, self._index)

    @property
    def deactivate(self) -> ListMethod:
        """``x[i].deactivate()``."""
        return ListMethod(deactivate, self._level, self._index)


class ListMethod:
    """A function of lists, bound to one."""

    def __init__(self, function: LevelFunction, level: LevelRef, index: tuple[Any, ...]) -> None:
        self.__name__ = function.__name__
        self._function, self._level, self._index = function, level, index

    def __call__(self, *args: Any) -> Any:
        """Refuse a call from Python."""
        kernel_only(self.__name__)

    def __qd_lower__(self, b: FrontBuilder, *args: Any) -> Any:
        """A call inside a kernel."""
        return self._function.__qd_lower__(b, self._level, list(self._index), *args)


def list_of(base: Any, index: tuple[Any, ...]) -> List | None:
    """The list that an index of a field names, of structs perhaps; None: it is an element, or there are no lists."""
    ref = base.first if isinstance(base, StructTensor) and base.items else base
    if not isinstance(ref, TensorRef) or ref.level is None or ref.level.kind != "dynamic" or len(index) != ref.ndim - 1:
        return None
    return List(ref.level, index)


def _level(what: str, node: Any, *kinds: str) -> LevelRef:
    """The level that an argument names; ``kinds``: what it may be.

    Raises:
        QdrunTypeError: it names none, or one of another kind.
    """
    if isinstance(node, StructTensor):
        node = node.first
    level = node.level if isinstance(node, TensorRef) else node
    if isinstance(node, TensorRef) and level is None:
        raise QdrunTypeError(
            f"{what}() takes a level with sparse cells; `{node.name}` is dense", hint="place it with qd.root.pointer(..)"
        )
    if not isinstance(level, LevelRef):
        raise QdrunTypeError(
            f"{what}() takes a level, not {describe(node)}", hint="give what qd.root.pointer(..) returned, or x.parent()"
        )
    if kinds and level.kind not in kinds:
        hint = f"give a level made by {' or '.join(f'{kind}(..)' for kind in kinds)}"
        raise QdrunTypeError(f"{what}() takes a {' or '.join(kinds)} level, not a {level.kind} one", hint=hint)
    return level


def _index(b: FrontBuilder, what: str, indices: Any, axes: int) -> Index:
    """An index as operands: a number, a vector, or a sequence of numbers.

    Raises:
        QdrunIndexError: it has another length.
    """
    parts = [] if indices is None else list(indices) if isinstance(indices, (list, tuple)) else [indices]
    values = [ops.as_value(b, part) for part in parts if part is not None]
    flat = [x for v in values for x in (v.items if isinstance(v, MatrixValue) else (v,))]
    if len(flat) != axes:
        raise QdrunIndexError(f"{what}() takes {axes} {'index' if axes == 1 else 'indices'} here, not {len(flat)}")
    return tuple(ops.index_operand(b, x) for x in flat)


def _checked(b: FrontBuilder, what: str, level: LevelRef, indices: Any) -> Index:
    """The index of a cell of a level; with ``check_bounds``, the test of it."""
    index = _index(b, what, indices, len(level.axes))
    for axis, (x, extent) in enumerate(zip(index, level.extents)):
        if isinstance(x, Const):
            if not 0 <= x.value < extent:
                raise QdrunIndexError(
                    f"index {x.value} is out of range for axis {axis} of the level of `{level.name}`, of {extent} cells"
                )
        elif b.check_bounds:
            check_index(b, f"axis {axis} of the level of `{level.name}`", x, 0, Const(extent, i32))
    return index


def _lower_activate(b: FrontBuilder, node: Any, indices: Any) -> None:
    level = _level("activate", node)
    levels.activate(b, level, _checked(b, "activate", level, indices))


def _lower_deactivate(b: FrontBuilder, node: Any, indices: Any) -> None:
    level = _level("deactivate", node, "pointer", "bitmasked", "dynamic")
    owner = level.above if level.kind == "dynamic" else level
    assert owner is not None
    levels.deactivate(b, level, _checked(b, "deactivate", owner, indices))


def _lower_is_active(b: FrontBuilder, node: Any, indices: Any) -> Operand:
    level = _level("is_active", node)
    found = levels.is_active(b, level, _checked(b, "is_active", level, indices))
    return Const(1, i32) if found is None else b.cast(found, i32)


def _lower_length(b: FrontBuilder, node: Any, indices: Any) -> Operand:
    level = _level("length", node, "dynamic")
    assert level.flags is not None and level.above is not None
    found = b.gload(level.flags, _checked(b, "length", level.above, indices))
    return b.op("min", found, Const(_capacity(level), i32))  # more than it where an append failed


def _capacity(level: LevelRef) -> int:
    """The most elements of a list of a dynamic level."""
    return next(n for n, axis in zip(level.extents, level.axes) if level.above is None or axis not in level.above.axes)


def _lower_append(b: FrontBuilder, node: Any, indices: Any, val: Any) -> Operand:
    """Takes the next position by an atomic add on the length. A list that is full stops the launch."""
    level = _level("append", node, "dynamic")
    assert level.flags is not None and level.above is not None
    index = _checked(b, "append", level.above, indices)
    given = _values(b, level, val)
    if len(given) != len(level.below):
        hint = "append a struct or a tuple with a value for each field" if len(level.below) > 1 else "append one value"
        raise QdrunTypeError(f"append() got {len(given)} values for the {len(level.below)} fields of the list", hint=hint)
    levels.activate(b, level.above, index)
    position, capacity = b.atomic("add", level.flags, index, Const(1, i32)), _capacity(level)
    room = b.op("lt", position, Const(capacity, i32))
    values = tuple(x for x in index if not isinstance(x, Const))
    at = ", ".join(str(x.value) if isinstance(x, Const) else "{}" for x in index)
    which = f"the list [{at}] of `{level.name}`" if index else f"the list `{level.name}`"
    b.put(Assert(room, f"append: {which} is full, its capacity is {capacity}; do: give dynamic(..) a larger dimension", values))
    own = next(k for k, axis in enumerate(level.axes) if axis not in level.above.axes)
    for leaf, value in zip(level.below, given):
        ref = TensorRef(leaf.name, leaf.places, leaf.element, len(leaf.axes), leaf.extents)
        ref.store(b, (*index[:own], position, *index[own:]), value)
    return position


def _values(b: FrontBuilder, level: LevelRef, val: Any) -> list[Any]:
    """What ``append`` writes to each field of the list: the members of a struct, the parts of a tuple."""
    if isinstance(val, StructValue):
        return list(val.items.values())
    elements = [leaf.element for leaf in level.below]
    if not isinstance(val, (list, tuple)):
        return [val]
    return list(val) if len(elements) > 1 or not elements[0] else [build(b, val)]


def _lower_rescale(b: FrontBuilder, source: Any, target: Any, indices: Any) -> MatrixValue:
    """Divides or multiplies each index by the ratio of the extents."""
    own, other = _extents("rescale_index", source), _extents("rescale_index", target)
    index = _index(b, "rescale_index", indices, len(own))
    if len(own) != len(other):
        raise QdrunTypeError(f"rescale_index() takes levels of the same axes, not of {len(own)} and {len(other)}")
    out = [
        ops.to_operand(b, ops.binary(b, "//", x, n // m) if n > m else ops.binary(b, "*", x, m // n))
        for x, n, m in zip(index, own, other)
    ]
    return MatrixValue((len(out),), tuple(b.cast(x, i32) for x in out))


def _extents(what: str, node: Any) -> tuple[int, ...]:
    """The number of cells of a level or the shape of a field.

    Raises:
        QdrunTypeError: it is neither.
    """
    found = node.first if isinstance(node, StructTensor) else node
    extents = found.extents if isinstance(found, (TensorRef, LevelRef)) else None
    if extents is None:
        raise QdrunTypeError(f"{what}() takes levels and fields, not {describe(node)}", hint="give x, or x.parent()")
    return extents


activate = LevelFunction(
    "activate",
    _lower_activate,
    "Make a cell of a sparse level active, and the cells above it. ``indices``: those of the cell.",
    "node indices",
)
deactivate = LevelFunction(
    "deactivate",
    _lower_deactivate,
    "End the activity of a cell of a pointer or bitmasked level, or of a whole list of a dynamic level; all fields in it become 0.",
    "node indices",
)
is_active = LevelFunction(
    "is_active", _lower_is_active, "1 if a cell of a level is active, else 0. ``indices``: those of the cell.", "node indices"
)
length = LevelFunction(
    "length",
    _lower_length,
    "The length of a list of a dynamic level. ``indices``: those of the level above it.",
    "node indices",
)
append = LevelFunction(
    "append",
    _lower_append,
    "Append to a list of a dynamic level; the result is the position. ``indices``: those of the level above it. ``val``: a value, or"
    " one for each field of the list. Which iteration of a parallel loop gets which position is not determined.",
    "node indices val",
)
rescale_index = LevelFunction(
    "rescale_index", _lower_rescale, "The cell of ``b`` that the cell ``I`` of ``a`` lies in, or is the first of.", "a b I"
)
