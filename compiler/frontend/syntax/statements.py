"""Statements but loops and calls: assignments, branches, exits, asserts, prints."""

from __future__ import annotations

import ast
from dataclasses import is_dataclass
from functools import partial
from typing import Any, get_args

from ...errors import QdrunNameError, QdrunSyntaxError, QdrunTypeError
from ...ir.nodes import Const, Exit, If, Local, LocalStore, Op, Operand
from ...ir.types import DType, i32
from ..library.functions import lookup
from ..markers import outer
from ..source.tiles import assignment
from ..source.tiles import update as update_of_tile
from ..source.trees import nodes_of
from ..state.context import Context, describe, is_runtime, rounded
from ..state.scope import Binding, LoopState, Rematerialized, StructVar, Temporary
from ..values import ops
from ..values.matrix import build, new_local
from ..values.structs import StructTensor, convert
from ..values.tensor import TensorRef
from ..values.values import MatrixLocal, MatrixValue, StructForm, StructValue
from .conditions import emit_condition
from .expressions import BINARY, binary, check_writable, target_of
from .targets import StructTarget, Target, is_global, update

ATOMIC_AUGMENT = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}


def lower_assign(cx: Context, node: ast.Assign) -> None:
    """``a = b = value``, with tuples on the left unpacked."""
    tiles = assignment(node, partial(_is_tile, cx))
    if tiles is not None:
        cx.expr(tiles)
        return
    value = cx.expr(node.value)
    for target in node.targets:
        with cx.at(target):
            assign(cx, target, value)


def _is_tile(cx: Context, node: ast.expr) -> bool:
    """Whether a name is a tile of ``qd.simt``."""
    binding = cx.frame.find(node.id) if isinstance(node, ast.Name) else None
    value = None if binding is None else binding.value
    return isinstance(value, (StructValue, StructVar, StructTarget)) and value.form.is_tile


def lower_named(cx: Context, node: ast.NamedExpr) -> Any:
    """``(a := value)``: an assignment whose value is used.

    Raises:
        QdrunSyntaxError: it stands where its value may not be needed, or in ``static()``.
    """
    if cx.static:
        raise cx.refuse(node)
    assign_name(cx, node.target, cx.expr(node.value))
    return cx.expr(node.target)


def lower_annotated(cx: Context, node: ast.AnnAssign) -> None:
    """``a: f32 = value``: the value is cast first.

    Raises:
        QdrunSyntaxError: there is no value.
        QdrunNameError: the annotation names something that is not there.
    """
    if node.value is None:
        raise QdrunSyntaxError(
            "a declaration without a value cannot be used in a kernel", hint="give the variable its first value"
        )
    value = cx.expr(node.value)
    with cx.at(node.annotation):
        try:
            declared = cx.static_expr(node.annotation)
        except QdrunNameError as e:
            hint = "import or define it in the module: Python 3.14 keeps no name of an enclosing function for annotations of variables"
            raise QdrunNameError(e.what, e.loc, hint) from e
        value = convert_to(cx, value, declared)
    assign(cx, node.target, value)


def convert_to(cx: Context, value: Any, annotation: Any) -> Any:
    """A value as its annotation says: scalar types, vector and matrix types, tuples of them. Other annotations say nothing. A vector or
    matrix with the annotation of a number is cast component by component.

    Raises:
        QdrunTypeError: the value is not of that form.
    """
    parts = annotation if isinstance(annotation, (tuple, list)) else get_args(annotation)
    if parts:
        values = _unpack(cx, value, len(parts))
        return tuple(convert_to(cx, v, part) for v, part in zip(values, parts))
    if isinstance(annotation, DType) or annotation in (int, float, bool):
        if isinstance(value, StructValue) or not (is_runtime(value) or ops.is_number(value)):
            raise QdrunTypeError(f"{describe(value)} is not a number of type {getattr(annotation, '__name__', annotation)}")
        return ops.cast(cx.b, value, ops.as_dtype(cx.b, annotation))
    if isinstance(annotation, StructForm):
        if not isinstance(value, StructValue):
            raise QdrunTypeError(f"{describe(value)} is not {annotation.name}")
        return convert(cx.b, annotation, value)
    if isinstance(annotation, type) and is_dataclass(annotation):
        return _checked_record(value, annotation)
    lowering = lookup(annotation)
    if lowering is None or (isinstance(value, TensorRef) and hasattr(annotation, "__qd_view__")):
        return value
    if not isinstance(value, (MatrixValue, list, tuple)):
        raise QdrunTypeError(f"{describe(value)} is not {annotation!r}")
    return lowering(cx.b, value)


def _checked_record(value: Any, annotation: type) -> Any:
    """A dataclass argument, or a dataclass object that is known at compile time, where a function asks for one.

    Raises:
        QdrunTypeError: it is not of that class.
    """
    owner = value.form.owner if isinstance(value, StructValue) else type(value)
    if owner is None or not issubclass(owner, annotation):
        raise QdrunTypeError(f"{describe(value)} is not a {annotation.__name__}")
    return value


def assign(cx: Context, target: ast.expr, value: Any) -> None:
    """``target = value`` for an evaluated value.

    Raises:
        QdrunTypeError: the target is read-only, or the value does not fit it.
    """
    if isinstance(target, (ast.Tuple, ast.List)):
        if any(isinstance(part, ast.Starred) for part in target.elts):
            raise QdrunSyntaxError("`*` cannot stand for the rest of the names", hint="write a name for each value")
        for part, item in zip(target.elts, _unpack(cx, value, len(target.elts))):
            assign(cx, part, item)
    elif isinstance(target, ast.Name):
        assign_name(cx, target, value)
    elif isinstance(target, (ast.Subscript, ast.Attribute)):
        store(cx, target_of(cx, target, "an assignment"), value)
    else:
        raise cx.refuse(target)


def store(cx: Context, target: Target, value: Any) -> None:
    """Write an evaluated value to a target; a list is a vector here."""
    if isinstance(value, (list, tuple)):
        value = build(cx.b, value)
    if not is_runtime(value) and not ops.is_number(value) and not isinstance(value, StructValue):
        raise QdrunTypeError(f"{describe(value)} cannot be stored", hint="only numbers, vectors, matrices and structs can")
    target.write(cx.b, value)


def _unpack(cx: Context, value: Any, names: int) -> list[Any]:
    """The parts of a value on the right of ``a, b = ..``. They were all read before any is assigned."""
    if isinstance(value, MatrixValue):
        columns = value.m if len(value.shape) == 2 else 0
        rows = [value.items[k * columns : (k + 1) * columns] for k in range(value.n)]
        parts: list[Any] = [MatrixValue((columns,), r) for r in rows] if columns else list(value.items)
    elif isinstance(value, (tuple, list)):
        parts = list(value)
    else:
        raise QdrunTypeError(
            f"{describe(value)} cannot be unpacked into {names} names", hint="tuples, lists, vectors and matrices can"
        )
    if len(parts) != names:
        raise QdrunTypeError(
            f"cannot unpack {len(parts)} values into {names} names", hint=f"write {len(parts)} names; `_` is one, too"
        )
    return parts


def assign_name(cx: Context, target: ast.Name, value: Any) -> None:
    """``name = value``: write the variable, or make it if this is the first time."""
    check_writable(cx, target)
    name, frame = target.id, cx.frame
    frame.renew(name)
    binding = cx.lookup(name)
    if binding is None:
        frame.bind(name, first_value(cx, name, value))
        return
    current = binding.value
    if isinstance(current, (Local, MatrixLocal, StructVar, Temporary)) or isinstance(current, Target):
        store(cx, target_of(cx, target, "an assignment"), value)
        return
    _rebind(cx, binding, value)


def first_value(cx: Context, name: str, value: Any) -> Any:
    """The binding of a new name: the value itself if the name is assigned once, else a variable. A list whose items change is a vector."""
    if isinstance(value, list) and value and cx.frame.stores[f"{name}[]"] and all(map(_is_scalar, value)):
        value = build(cx.b, value)
    if ops.is_number(value):
        value = ops.literal(cx.b, value)
    if isinstance(value, StructValue) and value.is_data:
        methods = value.form.methods and name in cx.frame.has_methods_called
        changed = cx.frame.stores[name] > 1 or methods or value.form.is_tile
        return new_struct(cx, value, name) if changed else rounded(cx.b, value)
    if not is_runtime(value):
        return value
    value = rounded(cx.b, value)
    if cx.frame.stores[name] <= 1:
        return value
    return new_local(cx.b, value, name) if isinstance(value, MatrixValue) else cx.b.local(value, name)


def _is_scalar(value: Any) -> bool:
    return ops.is_number(value) or isinstance(value, (Op, Const))


def new_struct(cx: Context, value: StructValue, name: str) -> StructVar:
    """A new variable that starts as ``value``: one for each member."""
    members: dict[str, Binding] = {}
    for key, item in value.items.items():
        full = f"{name}.{key}"
        if isinstance(item, StructValue):
            variable: Any = new_struct(cx, item, full)
        else:
            item = rounded(cx.b, item)
            variable = new_local(cx.b, item, full) if isinstance(item, MatrixValue) else cx.b.local(item, full)
        members[key] = Binding(full, variable)
    return StructVar(value.form, members)


def _rebind(cx: Context, binding: Binding, value: Any) -> None:
    """Give a name that stands for a compile-time value another value, which no run-time condition may decide."""
    if isinstance(binding.value, (Op, Const, MatrixValue, StructValue, Rematerialized)) or binding.depth != cx.frame.depth:
        raise QdrunTypeError(
            f"`{binding.name}` is known at compile time ({describe(binding.value)}) and cannot change here",
            hint="use another name, or static() for the condition around it",
        )
    binding.value = first_value(cx, binding.name, value)


def lower_augmented(cx: Context, node: ast.AugAssign) -> None:
    """``x += value``: atomic where other threads see ``x``, plain on variables.

    Raises:
        QdrunTypeError: the target is read-only or not a place.
    """
    op = BINARY[type(node.op)]
    tiles = update_of_tile(node, partial(_is_tile, cx), lambda f: cx.expr(f) is outer)
    if tiles is not None:
        cx.expr(tiles)
        return
    if isinstance(node.target, ast.Name) and _is_compile_time(cx, node.target.id):
        value = binary(
            cx, op, cx.expr(ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)), cx.expr(node.value)
        )
        assign_name(cx, node.target, value)
        return
    with cx.at(node.target):
        target = _entry(cx, node.target, op) or target_of(cx, node.target, "an assignment")
    value = cx.expr(node.value)
    if isinstance(value, (list, tuple)):
        value = build(cx.b, value)
    if isinstance(value, TensorRef):
        raise QdrunTypeError(
            f"{describe(value)} is not a number", hint="use one of its elements: x[i], or x[None] when it has no axes"
        )
    if is_global(target) and op in ATOMIC_AUGMENT:
        update(cx.b, target, ATOMIC_AUGMENT[op], value)
        return
    if isinstance(target, StructTarget):
        raise QdrunTypeError("structs have no arithmetic", hint="update the members: s.x += ..")
    target.write(cx.b, ops.binary(cx.b, op, target.read(cx.b), value))


def _entry(cx: Context, node: ast.expr, op: str) -> Target | None:
    """The target of ``A[i, j] += v`` where ``A`` is a sparse matrix or its builder: ``A.values[A.entry(i, j)]``.

    Raises:
        QdrunTypeError: the operation is neither ``+=`` nor ``-=``, or there are not two indices.
    """
    base = cx.lookup(node.value.id) if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) else None
    if base is None or not isinstance(base.value, StructValue) or not base.value.form.has_entries:
        return None
    assert isinstance(node, ast.Subscript)
    pair = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if op not in "+-" or len(pair) != 2:
        raise QdrunTypeError("entries of a sparse matrix are added to in a kernel", hint="write A[i, j] += v, or -= v")
    method = ast.Attribute(node.value, "entry", ast.Load())
    place = ast.Subscript(ast.Attribute(node.value, "values", ast.Load()), ast.Call(method, pair, []), ast.Load())
    for made in nodes_of(place):
        ast.copy_location(made, node) if not hasattr(made, "lineno") else None
    return target_of(cx, place, "an assignment")


def _is_compile_time(cx: Context, name: str) -> bool:
    """Whether a name is bound to a Python value."""
    binding = cx.lookup(name)
    if binding is None:
        return False
    kinds = (
        Local,
        MatrixLocal,
        StructVar,
        Temporary,
        Op,
        Const,
        MatrixValue,
        StructValue,
        Rematerialized,
        TensorRef,
        StructTensor,
    )
    variable = isinstance(binding.value, kinds)
    return not variable and not isinstance(binding.value, Target) and not binding.readonly


def lower_if(cx: Context, node: ast.If) -> str | None:
    """``if``: decided now when the condition is known now."""
    cond = emit_condition(cx, node.test)
    if isinstance(cond, bool):
        return cx.block(node.body if cond else node.orelse)
    return emit_if(cx, node, cond)


def emit_if(cx: Context, node: ast.If, cond: Operand) -> str | None:
    """A run-time ``if``; the result is how both arms certainly leave, when they leave alike."""
    s = If(cond)
    cx.b.put(s)
    with cx.b.into(s.then), cx.frame.scope():
        first = cx.block(node.body)
    with cx.b.into(s.orelse), cx.frame.scope():
        second = cx.block(node.orelse)
    return first if first == second else None


def lower_break(cx: Context, node: ast.Break) -> str:
    """``break`` of the innermost loop.

    Raises:
        QdrunSyntaxError: that loop is parallel, or unrolled and left under a run-time condition.
    """
    return _leave_loop(cx, "break")


def lower_continue(cx: Context, node: ast.Continue) -> str:
    """``continue`` of the innermost loop."""
    return _leave_loop(cx, "continue")


def _leave_iteration(cx: Context, loop: LoopState, kind: str) -> None:
    """Leave an iteration of an unrolled loop under a run-time condition; see ``loops.unrolled``.

    Raises:
        QdrunSyntaxError: loops of the unrolled loop run in parallel.
    """
    if not loop.joined:
        hint = "put the condition in static(..), or the loops inside into a kernel of their own"
        raise QdrunSyntaxError(
            f"`{kind}` under a run-time condition cannot leave an unrolled loop with parallel loops in it", hint=hint
        )
    loop.left.add(kind)
    if kind == "break":
        loop.broken = loop.broken or Local(i32, "broken")
        cx.b.put(LocalStore(loop.broken, Const(1, i32)))
    cx.b.put(Exit("break"))


def _leave_loop(cx: Context, kind: str) -> str:
    if not cx.frame.loops:
        raise QdrunSyntaxError(f"`{kind}` outside of a loop")
    loop = cx.frame.loops[-1]
    if loop.kind == "parallel" and kind == "break":
        hint = "guard the work with an if, or run the loop in order: loop_config(serialize=True)"
        raise QdrunSyntaxError("`break` cannot leave a parallel loop: its iterations have no order", hint=hint)
    if loop.kind == "static":
        if cx.frame.depth != loop.depth:
            _leave_iteration(cx, loop, kind)
        return kind
    cx.b.put(Exit(kind))  # type: ignore[arg-type]
    return kind
