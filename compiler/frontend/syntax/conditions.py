"""Expressions that choose: comparisons, ``and`` / ``or``, the conditional expression, comprehensions.

A side that may not be asked for is lowered into a block of its own. When it is short, pure and cannot fault, it is computed anyway
and the choice is one operation; otherwise it becomes an ``if`` that stores to a local.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from ...errors import QdrunSyntaxError, QdrunTypeError
from ...ir.nodes import Block, If, Local, LocalStore, Operand
from ...ir.types import promote, u1
from ..markers import NDRange
from ..state.context import Context, describe, is_cheap, is_runtime, is_static
from ..values import ops
from ..values.matrix import MatrixLocal, load_matrix
from ..values.structs import aligned, rebuild, scalars, shape_of
from ..values.values import MatrixValue, StructValue
from .expressions import as_vectors, compile_time, number

COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}
STATIC_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Is: ("is", lambda x, y: x is y),
    ast.IsNot: ("is not", lambda x, y: x is not y),
    ast.In: ("in", lambda x, y: x in y),
    ast.NotIn: ("not in", lambda x, y: x not in y),
}


def lower_compare(cx: Context, node: ast.Compare) -> Any:
    """``a < b <= c``: each operand is evaluated once."""
    left = cx.expr(node.left)
    result: Any = None
    for op, right_node in zip(node.ops, node.comparators):
        right = cx.expr(right_node)
        one = _compare(cx, op, left, right)
        if result is None:
            result = one
        elif isinstance(result, bool) and isinstance(one, bool):
            result = result and one
        else:
            result = ops.logical(cx.b, "and", result, one)
        left = right
    return result


def _compare(cx: Context, op: ast.cmpop, x: Any, y: Any) -> Any:
    if type(op) in STATIC_COMPARE:
        name, compare = STATIC_COMPARE[type(op)]
        if not cx.static:
            raise QdrunSyntaxError(f"`{name}` cannot be used in a kernel", hint=f"compare with ==, or write static(x {name} y)")
        if is_runtime(x) or is_runtime(y):
            hint = "compare with == and `or`, outside of static()"
            raise QdrunTypeError(f"`{name}` needs values that are known at compile time", hint=hint)
        return compile_time(lambda: compare(x, y))
    name, compare = COMPARE[type(op)]
    if is_static(x) and is_static(y) and not is_runtime(x) and not is_runtime(y):
        return compile_time(lambda: compare(x, y))
    x, y = as_vectors(cx, x, y)
    return ops.compare(cx.b, name, number(x), number(y))


def lower_bool(cx: Context, node: ast.BoolOp) -> Any:
    """``a and b`` / ``a or b``: short-circuit evaluation; the right side is evaluated anyway where this cannot be observed."""
    name = "and" if isinstance(node.op, ast.And) else "or"
    return _bool(cx, name, cx.expr(node.values[0]), node.values[1:])


def _bool(cx: Context, name: str, left: Any, rest: list[ast.expr]) -> Any:
    if not rest:
        return left
    if not is_runtime(left):
        done = not left if name == "and" else bool(left)
        return left if done else _bool(cx, name, cx.expr(rest[0]), rest[1:])
    if isinstance(left, MatrixValue):
        return _bool(cx, name, ops.logical(cx.b, name, left, number(cx.expr(rest[0]))), rest[1:])
    with cx.scratch() as block:
        right = ops.to_operand(cx.b, number(cx.expr(rest[0])))
    return _bool(cx, name, _one_of(cx, name, left, block, right), rest[1:])


def _one_of(cx: Context, name: str, left: Operand, block: Block, right: Operand) -> Any:
    """``left and right``: as in Python the side that decides, in the type in which the two meet. ``block`` computes ``right``."""
    cond = ops.truth(cx.b, left)
    if left.dtype is u1 and right.dtype is u1:
        if is_cheap(block):
            cx.splice(block)
            return ops.logical(cx.b, name, left, right)
        result = cx.b.local(left, name)
        arm: Block = [*block, LocalStore(result, right, cx.b.loc)]
        cx.b.put(If(cond, arm, []) if name == "and" else If(cond, [], arm))
        return cx.b.load(result)
    if is_cheap(block):
        cx.splice(block)
        return ops.select(cx.b, cond, right, left) if name == "and" else ops.select(cx.b, cond, left, right)
    if name == "and":
        return _choose(cx, If(cond, block, []), right, left)
    return _choose(cx, If(cond, [], block), left, right)


def lower_if_exp(cx: Context, node: ast.IfExp) -> Any:
    """``a if c else b``."""
    cond = cx.expr(node.test)
    if not is_runtime(cond):
        return cx.expr(node.body if cond else node.orelse)
    if isinstance(cond, MatrixValue):
        return ops.select(cx.b, cond, number(cx.expr(node.body)), number(cx.expr(node.orelse)))
    cond = ops.truth(cx.b, cond)
    with cx.scratch() as then:
        x = _arm(cx, node.body)
    with cx.scratch() as orelse:
        y = _arm(cx, node.orelse)
    if isinstance(x, StructValue) or isinstance(y, StructValue):
        return _choose_struct(cx, If(cond, then, orelse), x, y)
    if is_cheap(then) and is_cheap(orelse):
        cx.splice(then)
        cx.splice(orelse)
        return ops.select(cx.b, cond, x, y)
    return _choose(cx, If(cond, then, orelse), x, y)


def _arm(cx: Context, node: ast.expr) -> Any:
    value = cx.expr(node)
    return value if isinstance(value, StructValue) else number(value)


def _choose_struct(cx: Context, s: If, x: Any, y: Any) -> StructValue:
    """An ``if`` whose arms leave two structs with the same members; each scalar as in ``_choose``.

    Raises:
        QdrunTypeError: one side is no struct, the members differ, or they are not numbers.
    """
    if not isinstance(x, StructValue) or not isinstance(y, StructValue) or not x.is_data or not y.is_data:
        raise QdrunTypeError(f"`if` chooses between {describe(x)} and {describe(y)}", hint="both sides need the same members")
    pairs = list(zip(scalars(x), scalars(aligned(x, y))))
    locals_ = [Local(promote(p.dtype, q.dtype), "choice") for p, q in pairs]
    for block, side in ((s.then, 0), (s.orelse, 1)):
        with cx.b.into(block):
            for local, pair in zip(locals_, pairs):
                cx.b.store(local, ops.cast_scalar(cx.b, pair[side], local.dtype))
    cx.b.put(s)
    return rebuild(shape_of(x), [cx.b.load(local) for local in locals_])


def _choose(cx: Context, s: If, x: Any, y: Any) -> Any:
    """An ``if`` whose arms leave ``x`` and ``y``: both are stored to the same locals, in the type in which they meet."""
    x, y = ops.as_value(cx.b, x), ops.as_value(cx.b, y)
    shape = ops.common_shape(x, y)
    dtype = promote(x.dtype, y.dtype)
    size = 1 if shape is None else next(len(v.items) for v in (x, y) if isinstance(v, MatrixValue))
    locals_ = tuple(Local(dtype, "choice") for _ in range(size))
    for block, value in ((s.then, x), (s.orelse, y)):
        with cx.b.into(block):
            items = value.items if isinstance(value, MatrixValue) else (value,) * size
            for local, item in zip(locals_, items):
                cx.b.store(local, ops.cast_scalar(cx.b, item, dtype))
    cx.b.put(s)
    return cx.b.load(locals_[0]) if shape is None else load_matrix(cx.b, MatrixLocal(shape, locals_))


def lower_comprehension(cx: Context, node: ast.ListComp | ast.GeneratorExp) -> list[Any]:
    """``[f(i) for i in static(range(n))]``: unrolled while compiling."""
    return _generate(cx, lambda: cx.expr(node.elt), node.generators)


def lower_dict_comprehension(cx: Context, node: ast.DictComp) -> dict[Any, Any]:
    """``{i: f(i) for i in range(n)}``: unrolled while compiling; the keys are known now."""
    return dict(_generate(cx, lambda: (cx.static_expr(node.key), cx.expr(node.value)), node.generators))


def _generate(cx: Context, element: Callable[[], Any], generators: list[ast.comprehension]) -> list[Any]:
    if not generators:
        return [element()]
    first, rest = generators[0], generators[1:]
    out: list[Any] = []
    for value in _iterate(cx, first.iter):
        with cx.frame.scope(runtime=False):
            bind_names(cx, first.target, value, "the variable of a comprehension")
            if all(cx.static_truth(test) for test in first.ifs):
                out += _generate(cx, element, rest)
    return out


def _iterate(cx: Context, node: ast.expr) -> list[Any]:
    values: Any = cx.expr(node)
    cx.consumed(node, values)
    if isinstance(values, MatrixValue) and len(values.shape) == 1:
        return list(values.items)
    if isinstance(values, MatrixValue):
        return [MatrixValue((values.m,), values.items[k * values.m : (k + 1) * values.m]) for k in range(values.n)]
    if isinstance(values, NDRange) and not values.known:
        raise QdrunTypeError("a comprehension needs bounds that are known at compile time")
    if not hasattr(values, "__iter__"):
        raise QdrunTypeError(
            f"a comprehension cannot run over {describe(values)}", hint="run it over static(range(n)) or a tuple"
        )
    return list(iter(values))


def bind_names(cx: Context, target: ast.expr, value: Any, readonly: str) -> None:
    """Bind a name, or a tuple of names to the parts of ``value``.

    Raises:
        QdrunSyntaxError: another kind of target.
        QdrunTypeError: the number of names differs from the number of parts.
    """
    if isinstance(target, ast.Name):
        cx.frame.bind(target.id, value, readonly)
        return
    if not isinstance(target, (ast.Tuple, ast.List)):
        raise QdrunSyntaxError("a loop needs plain names as its variables", hint="write `for i in ..` or `for i, j in ..`")
    parts = (
        list(value.items) if isinstance(value, MatrixValue) else list(value) if isinstance(value, (tuple, list)) else [value]
    )
    if len(parts) != len(target.elts):
        raise QdrunTypeError(f"{len(target.elts)} names for {len(parts)} values", hint=f"write {len(parts)} names before `in`")
    for name, part in zip(target.elts, parts):
        bind_names(cx, name, part, readonly)


def emit_condition(cx: Context, node: ast.expr) -> Any:
    """The condition of an ``if`` or ``while``: a Python bool when it is known now, else an operand of type u1."""
    value = cx.expr(node)
    if is_runtime(value):
        truth = ops.truth(cx.b, value)
        assert truth.dtype is u1
        return truth
    return compile_time(lambda: bool(value))
