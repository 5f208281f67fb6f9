"""Expressions: names, literals, operators, subscripts, attributes. Values are described in ``docs/internals/lowering.md``."""

from __future__ import annotations

import ast
from typing import Any, TypeGuard

import numpy as np

from ...errors import QdrunCompilationError, QdrunIndexError, QdrunSyntaxError, QdrunTypeError
from ...ir.nodes import Const, Local, Op
from ..advice import missing_attribute
from ..library.activity import List, list_of
from ..library.methods import attribute
from ..source.parse import read_function
from ..state.context import Context, describe, is_runtime, is_static
from ..state.scope import StructVar, Temporary
from ..values import ops
from ..values.matrix import build, get_item, swizzle_positions
from ..values.parts import components, has_slice
from ..values.structs import StructMethod, StructTensor, anonymous
from ..values.tensor import TensorRef
from ..values.values import MatrixLocal, MatrixValue, StructValue, no_member, resolve
from .targets import (
    ComponentTarget,
    ElementTarget,
    ItemTarget,
    LocalTarget,
    MatrixTarget,
    PartsTarget,
    StructTarget,
    Target,
    is_global,
    with_index,
)

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.MatMult: "@",
}
UNARY: dict[type[ast.unaryop], str] = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not"}


def lower_constant(cx: Context, node: ast.Constant) -> Any:
    """A literal: a Python value until it meets a run-time value or is stored."""
    if isinstance(node.value, (bytes, complex)) or node.value is ...:
        raise QdrunSyntaxError(f"a {type(node.value).__name__} literal cannot be used in a kernel", hint="use numbers")
    return node.value


def lower_name(cx: Context, node: ast.Name) -> Any:
    """The value of a name."""
    return cx.name(node.id)


def lower_tuple(cx: Context, node: ast.Tuple | ast.List) -> Any:
    """A tuple or a list: a compile-time sequence of values."""
    values: list[Any] = []
    for e in node.elts:
        values += star_values(cx, e) if isinstance(e, ast.Starred) else [cx.expr(e)]
    return tuple(values) if isinstance(node, ast.Tuple) else values


def star_values(cx: Context, node: ast.Starred) -> tuple[Any, ...]:
    """The values of ``*sequence``, whose length is known now.

    Raises:
        QdrunTypeError: what stands behind the star has no parts.
    """
    with cx.at(node.value):
        value = cx.expr(node.value)
        cx.consumed(node.value, value)
    if isinstance(value, MatrixValue):
        return value.items
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(value.tolist())
    if not isinstance(value, (list, tuple)):
        raise QdrunTypeError(f"`*` takes a list, a tuple or a vector, not {describe(value)}", hint="write the elements out")
    return tuple(value)


def lower_dict(cx: Context, node: ast.Dict) -> Any:
    """``{"a": .., "b": ..}``: a struct. With other keys, all known now: a dict of compile time, read with ``d[key]``.

    Raises:
        QdrunSyntaxError: ``**`` of something that is no such dict.
        QdrunTypeError: a key that is only known at run time.
    """
    members: dict[Any, Any] = {}
    for key, value in zip(node.keys, node.values):
        found = cx.expr(value)
        if key is not None:
            members[cx.static_expr(key)] = found
        elif isinstance(found, dict):
            members |= found
        else:
            raise QdrunSyntaxError(f"`**` takes a dict here, not {describe(found)}", hint="write the entries out")
    return anonymous(cx.b, members) if all(isinstance(k, str) for k in members) else members


def lower_binary(cx: Context, node: ast.BinOp) -> Any:
    """``x op y``: Python's arithmetic between Python values, ours otherwise."""
    return binary(cx, BINARY[type(node.op)], cx.expr(node.left), cx.expr(node.right))


def binary(cx: Context, op: str, x: Any, y: Any) -> Any:
    """``x op y`` of two values.

    Raises:
        QdrunTypeError: the values do not have this operator.
    """
    if is_python(x) and is_python(y):
        return compile_time(lambda: _PYTHON_BINARY[op](x, y))
    if isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)) and op == "+":
        return tuple(x) + tuple(y)
    x, y = as_vectors(cx, x, y)
    return ops.binary(cx.b, op, number(x), number(y))


def as_vectors(cx: Context, x: Any, y: Any) -> tuple[Any, Any]:
    """The operands of ``x op y``; a list or a tuple beside a vector or a matrix is one, too."""
    if isinstance(x, MatrixValue) and isinstance(y, (list, tuple)):
        return x, build(cx.b, y)
    if isinstance(y, MatrixValue) and isinstance(x, (list, tuple)):
        return build(cx.b, x), y
    return x, y


def lower_unary(cx: Context, node: ast.UnaryOp) -> Any:
    """``op x``."""
    x, op = cx.expr(node.operand), UNARY[type(node.op)]
    if is_python(x):
        return compile_time(lambda: _PYTHON_UNARY[op](x))
    return ops.unary(cx.b, op, number(x))


def number(x: Any) -> Any:
    """A value that arithmetic takes: a scalar, a matrix or a Python number.

    Raises:
        QdrunTypeError: it is something else; a field says that its element is meant.
    """
    if is_runtime(x) or isinstance(x, (bool, int, float)) or ops.is_number(x):
        return x
    if isinstance(x, (StructValue, StructTensor)):
        raise QdrunTypeError(f"{describe(x)} is not a number", hint="use one of its members: s.x")
    hint = "use one of its elements: x[i], or x[None] when it has no axes" if isinstance(x, TensorRef) else ""
    raise QdrunTypeError(f"{describe(x)} is not a number", hint=hint or "kernels compute with numbers, vectors and matrices")


def is_python(x: Any) -> bool:
    """Whether Python itself is to compute with a value."""
    return is_static(x) and not is_runtime(x) and not isinstance(x, (TensorRef, StructTensor))


_BY_PYTHON = (
    "Python evaluates this while the kernel is compiled: only numbers, vectors, fields and arrays have values when it runs"
)


def compile_time(compute: Any, name: str = "", hint: str = _BY_PYTHON) -> Any:
    """Run the user's own Python while compiling; what it raises becomes an error at the user's line. ``name``: see ``resolve``.

    Raises:
        QdrunTypeError: whatever Python raised.
    """
    try:
        return resolve(compute(), name)
    except QdrunCompilationError:
        raise
    except Exception as e:
        raise QdrunTypeError(f"{type(e).__name__} at compile time: {e}", hint=hint) from e


def lower_subscript(cx: Context, node: ast.Subscript) -> Any:
    """``x[i]`` read."""
    return value_of(cx, resolve_target(cx, node))


def lower_attribute(cx: Context, node: ast.Attribute) -> Any:
    """``x.name`` read."""
    return value_of(cx, resolve_target(cx, node))


def is_target(value: Any) -> TypeGuard[Target]:
    """Whether a value is a place, which must be read before it is used."""
    return isinstance(value, Target)


def value_of(cx: Context, x: Any) -> Any:
    """A target's content, or the value itself."""
    if isinstance(x, StructValue):
        return cx.read(x)
    return x.read(cx.b) if is_target(x) else x


def resolve_target(cx: Context, node: ast.expr) -> Any:
    """Resolve a name, subscript or attribute: to a target if it can be written, else to its value."""
    with cx.at(node):
        if not isinstance(node, (ast.Name, ast.Subscript, ast.Attribute)):
            return cx.expr(node)
        if isinstance(node, ast.Name):
            found = _named(cx, node.id)
        elif isinstance(node, ast.Subscript):
            base = resolve_target(cx, node.value)
            found = _subscripted(cx, base, node)
            cx.consumed(node.value, base)
        else:
            found = _attribute(cx, resolve_target(cx, node.value), node.attr)
            cx.consumed(node.value)
        cx.produced(node, found)
        return found


def _named(cx: Context, name: str) -> Any:
    binding = cx.lookup(name)
    if binding is None:
        return cx.name(name)
    return bound_target(cx, binding.value)


def bound_target(cx: Context, value: Any) -> Any:
    """The binding of a name, as a target if it can be written."""
    if isinstance(value, Local):
        return LocalTarget(value)
    if isinstance(value, MatrixLocal):
        return MatrixTarget(value)
    if isinstance(value, Temporary):
        return ElementTarget(value.ref, ())
    if isinstance(value, StructVar):
        return StructTarget(value.form, {name: bound_target(cx, m.value) for name, m in value.members.items()})
    if isinstance(value, StructValue):
        return value  # its members are read one by one
    return with_index(value, cx.read) if is_target(value) else cx.read(value)


def _subscripted(cx: Context, base: Any, node: ast.Subscript) -> Any:
    if isinstance(base, TensorRef) and isinstance(node.slice, ast.Slice):
        return _view(cx, base, node.slice)
    index = _spread(lower_index(cx, node.slice))
    if has_slice(index) or (len(index) == 1 and isinstance(base, (ElementTarget, MatrixTarget)) and len(_shape_of(base)) == 2):
        sliced = _sliced(cx, base, index)
        if sliced is not None:
            return sliced
    found = list_of(base, index)
    if found is not None:
        return found
    if isinstance(base, TensorRef):
        with cx.scratch():  # a wrong index is an error of the subscript, not of the operation on the element
            base.index(cx.b, tuple(map(number, index)))
        return ElementTarget(base, tuple(map(number, index)))
    if isinstance(base, StructTensor):
        return _element(cx, base, tuple(map(number, index)))
    if isinstance(base, (StructValue, StructTarget)) and len(index) == 1 and isinstance(index[0], str):
        return _member(cx, base, index[0])
    if isinstance(base, ElementTarget) and len(index) == len(base.ref.element) > 0:
        return ComponentTarget(base.ref, base.index, tuple(map(number, index)))
    if isinstance(base, MatrixTarget) and len(index) == len(base.local.shape):
        return ItemTarget(base.local, tuple(map(number, index)))
    base = value_of(cx, base)
    if isinstance(base, MatrixValue):
        return get_item(cx.b, base, tuple(map(number, index)))
    if isinstance(base, (Op, Const)):
        raise QdrunTypeError("a number has no elements", hint="the value before the bracket has fewer axes")
    return _python_item(cx, base, index)


def _view(cx: Context, base: TensorRef, node: ast.Slice) -> TensorRef:
    """``x[a:b]`` of an array with one axis: a view, whose ends may be known at run time only.

    Raises:
        QdrunTypeError: it has a step, or the array has several axes.
    """
    if node.step is not None:
        raise QdrunTypeError(f"a view of `{base.name}` has no step", hint="index its elements: x[2 * i]")
    begin = 0 if node.lower is None else cx.expr(node.lower)
    end = base.shape(cx.b)[0] if node.upper is None and base.ndim == 1 else cx.expr(node.upper) if node.upper else 0
    return base.part(cx.b, begin, ops.binary(cx.b, "-", end, begin))


def _shape_of(base: ElementTarget | MatrixTarget) -> tuple[int, ...]:
    return base.local.shape if isinstance(base, MatrixTarget) else base.ref.element


def _sliced(cx: Context, base: Any, index: tuple[Any, ...]) -> Any:
    """``m[1, :]`` of a vector or a matrix, as a target if it can be written; None: ``base`` is a Python sequence.

    Raises:
        QdrunTypeError: fields and arrays have no slices.
    """
    if isinstance(base, (TensorRef, StructTensor)):
        raise QdrunTypeError(f"{describe(base)} has no slices in a kernel", hint="write a loop over its elements")
    index = tuple(part if isinstance(part, slice) else number(part) for part in index)
    if isinstance(base, (ElementTarget, MatrixTarget)) and _shape_of(base):
        shape, where = components(_shape_of(base), index)
        if isinstance(base, MatrixTarget):
            return PartsTarget(tuple(ItemTarget(base.local, i) for i in where), shape)
        return PartsTarget(tuple(ComponentTarget(base.ref, base.index, i) for i in where), shape)
    value = value_of(cx, base)
    if not isinstance(value, MatrixValue):
        return None
    shape, where = components(value.shape, index)
    return MatrixValue(shape, tuple(ops.to_operand(cx.b, get_item(cx.b, value, i)) for i in where))


def _element(cx: Context, base: StructTensor, index: tuple[Any, ...]) -> StructTarget:
    """An element of a field of structs: a target for each member, at the same index."""
    with cx.scratch():  # a wrong index is an error of the subscript
        base.first.index(cx.b, index)
    items: dict[str, Any] = {}
    for name, item in base.items.items():
        items[name] = _element(cx, item, index) if isinstance(item, StructTensor) else ElementTarget(item, index)
    return StructTarget(base.form, items)


def _member(cx: Context, base: StructValue | StructTarget, name: str) -> Any:
    """A member of a struct, as a target if it can be written; a method, bound to the struct.

    Raises:
        QdrunNameError: there is neither.
    """
    if name in base.items:
        return bound_target(cx, base.items[name])
    if name in base.form.methods:
        method = base.form.methods[name]
        if isinstance(method, staticmethod):
            return method.__func__
        return StructMethod(getattr(method, "__qd_func__", None) or read_function(method), base)
    if name == "keys":
        return tuple(base.items)
    if base.form.owner is not None and hasattr(base.form.owner, name):  # a constant of the dataclass
        return compile_time(lambda: _recorded(cx, base.form.owner, name), name)
    raise no_member(base.form, base.items, name)


def _python_item(cx: Context, base: Any, index: tuple[Any, ...]) -> Any:
    """``x[i]`` of a Python object."""
    key: Any = index[0] if len(index) == 1 else index
    if not is_static(key):
        raise QdrunTypeError(
            f"{describe(base)} cannot be indexed by a value that is only known at run time",
            hint="unroll the loop with static(range(..)), make it a vector: Vector([..]), or copy it to a field: field.from_numpy(..)",
        )
    if not hasattr(base, "__getitem__"):
        raise QdrunTypeError(f"{describe(base)} has no elements")
    try:
        return cx.python(base[int(key.value) if isinstance(key, Const) else key])
    except (IndexError, KeyError) as e:
        hint = f"its keys are {', '.join(map(repr, base))}"[:200] if isinstance(base, dict) else ""
        raise QdrunIndexError(f"index {key!r} is out of range of {describe(base)}", hint=hint) from e


def lower_index(cx: Context, node: ast.expr) -> tuple[Any, ...]:
    """The expressions between the brackets; None and () give no index. A literal becomes a Python number."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    out: list[Any] = []
    for part in parts:
        if isinstance(part, ast.Slice):
            ends = [None if e is None else cx.static_expr(e) for e in (part.lower, part.upper, part.step)]
            out.append(slice(*ends))
            continue
        value = star_values(cx, part) if isinstance(part, ast.Starred) else cx.expr(part)
        if value is None:
            continue
        if isinstance(value, (tuple, list)):
            out += [int(v.value) if isinstance(v, Const) and v.dtype.is_int else v for v in value]
        else:
            out.append(int(value.value) if isinstance(value, Const) and value.dtype.is_int else value)
    return tuple(out)


def _spread(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """An index with its vectors written out."""
    return tuple(i for part in index for i in (part.items if isinstance(part, MatrixValue) else [part]))


def _attribute(cx: Context, base: Any, name: str) -> Any:
    if isinstance(base, (StructValue, StructTarget)):
        return _member(cx, base, name)
    if isinstance(base, StructTensor):
        whole = list_of(base, ()) if hasattr(List, name) and name not in base.items else None
        return base.attribute(cx.b, name) if whole is None else getattr(whole, name)
    part = _swizzled(base, name)
    if part is not None:
        return part
    base = value_of(cx, base)
    if isinstance(base, MatrixValue):
        return attribute(cx.b, base, name)
    if isinstance(base, TensorRef):
        whole = list_of(base, ()) if hasattr(List, name) else None  # x.append() is x[()].append()
        return base.attribute(cx.b, name) if whole is None else getattr(whole, name)
    if isinstance(base, (Op, Const)):
        hint = "vectors, matrices, fields and Python objects have attributes"
        raise QdrunTypeError(f"a number has no attribute `{name}`", hint=hint)
    number = cx.numbers.get((id(base), name))
    if number is not None:
        return cx.read(number)
    return compile_time(lambda: cx.python(_recorded(cx, base, name), name))


def _recorded(cx: Context, base: Any, name: str) -> Any:
    try:
        value = getattr(base, name)  # once: a property may do more than give a value
    except AttributeError as e:
        if e.obj is not None and (e.obj is not base or e.name != name):
            raise  # inside of a property
        raise QdrunTypeError(f"{describe(base)} has no attribute `{name}`", hint=missing_attribute(base, name)) from e
    return value if cx.inputs is None else cx.inputs.attribute(base, name, value)


def _swizzled(base: Any, name: str) -> Target | None:
    """``v.x`` or ``v.xy`` of something that can be written, else None."""
    if isinstance(base, ElementTarget) and not name.startswith("_"):
        found = swizzle_positions(base.ref.element, name)
        parts: tuple[Any, ...] = tuple(ComponentTarget(base.ref, base.index, (k,)) for k in found or ())
    elif isinstance(base, MatrixTarget):
        found = swizzle_positions(base.local.shape, name)
        parts = tuple(ItemTarget(base.local, (k,)) for k in found or ())
    else:
        return None
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else PartsTarget(parts)


def target_of(cx: Context, node: ast.expr, why: str) -> Target:
    """The target that ``node`` denotes.

    Raises:
        QdrunTypeError: it is a value, not a place, or its name is read-only.
    """
    target = resolve_target(cx, node)
    root = node
    while isinstance(root, (ast.Subscript, ast.Attribute)):
        root = root.value
    if isinstance(root, ast.Name) and not (is_target(target) and is_global(target)):
        check_writable(cx, root)
    if not is_target(target):
        raise QdrunTypeError(f"{why} needs a variable or an element of a field, not {describe(target)}")
    return target


def check_writable(cx: Context, node: ast.Name) -> None:
    """Refuse to write a name that is read-only.

    Raises:
        QdrunTypeError: saying what the name is.
    """
    binding = cx.frame.find(node.id)
    if binding is not None and binding.readonly:
        raise QdrunTypeError(
            f"`{node.id}` is {binding.readonly} and cannot be assigned",
            hint=f"copy it to a variable of another name first: v = {node.id}",
        )


_PYTHON_BINARY: dict[str, Any] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "**": lambda x, y: x**y,
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
    "<<": lambda x, y: x << y,
    ">>": lambda x, y: x >> y,
    "@": lambda x, y: x @ y,
}
_PYTHON_UNARY: dict[str, Any] = {"-": lambda x: -x, "+": lambda x: +x, "~": lambda x: ~x, "not": lambda x: not x}
