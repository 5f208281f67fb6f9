"""Calls: what the front end itself knows, intrinsics, inlined functions, plain Python at compile time."""

from __future__ import annotations

import ast
import builtins
import math
import operator
import types
from collections.abc import Callable
from typing import Any, NoReturn

from ...errors import QdrunSyntaxError, QdrunTypeError
from ...ir.nodes import Const
from ...ir.types import DType, u1
from ..advice import foreign_function
from ..library.functions import lookup
from ..markers import (
    ATOMIC_CODES,
    atomic_cas,
    grouped,
    loop_config,
    ndrange,
    outer,
    static,
    static_assert,
    static_print,
    stop_grad,
    volatile_load,
)
from ..python_calls import call_python, trace_python
from ..regions import checkpoint, graph_do_while, refuse_stage
from ..source.keywords import positional
from ..source.tokens import is_leaf
from ..source.trees import nodes_in
from ..state.context import Context, describe, is_runtime, is_static
from ..values.structs import StructMethod, StructTensor
from ..values.tensor import TensorRef
from ..values.values import MatrixValue
from .block import SPECIAL as _BLOCK
from .expressions import compile_time, is_python, is_target, resolve_target, star_values, target_of
from .inline import inline
from .lanes import SPECIAL as _LANES
from .loops import bound_of, make_range
from .messages import Slot, lower_breakpoint, lower_print, value_parts
from .statements import store
from .stopped import lower_stop_grad
from .targets import StructTarget, compare_and_swap, is_global, update

Special = Callable[[Context, ast.Call], Any]


def lower_call(cx: Context, node: ast.Call) -> Any:
    """``f(..)``.

    Raises:
        QdrunSyntaxError: star arguments, or a function that kernels do not have.
    """
    starred = next((a for a in node.args if isinstance(a, ast.Starred)), None)
    if any(k.arg is None for k in node.keywords):
        raise QdrunSyntaxError("`**` arguments cannot be used in a kernel", hint="write the arguments out")
    if isinstance(node.func, ast.Attribute) and node.func.attr == "fill" and _fill(cx, node, node.func):
        return None
    fn = cx.expr(node.func)
    if getattr(fn, "__qd_kernel__", False):
        raise QdrunSyntaxError(f"the kernel `{_name(fn)}` cannot be called inside a kernel", hint="make it a @func")
    special = _special(fn)
    if starred is not None and special is not None and special is not _ndrange:
        raise cx.refuse(starred)
    if special is not None:
        return special(cx, node)
    if hasattr(fn, "__qd_func__"):
        return inline(cx, fn, node)
    args = _spread(cx, node.args)
    keywords = {str(k.arg): cx.expr(k.value) for k in node.keywords}
    value = _apply(cx, fn, args, keywords)
    cx.consumed(node.func)  # a function that kernels do not know has been called by Python, which ``call_python`` recorded
    return value


def _spread(cx: Context, nodes: list[ast.expr]) -> list[Any]:
    """The values of arguments; those of ``*sequence`` one by one."""
    out: list[Any] = []
    for node in nodes:
        out += star_values(cx, node) if isinstance(node, ast.Starred) else [cx.expr(node)]
    return out


def _special(fn: Any) -> Special | None:
    """The handler of a function that needs the tree of its arguments."""
    try:
        if fn in ATOMIC_CODES:
            return lambda cx, node: _atomic(cx, node, fn)
        found = _SPECIAL.get(getattr(fn, "__qd_marker__", fn))
        return lower_print if found is None and fn is builtins.print else found  # Ray puts a function of its own there
    except TypeError:  # not hashable
        return None


def _apply(cx: Context, fn: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Call with evaluated arguments."""
    values = [*args, *keywords.values()]
    if cx.inputs is not None and any(map(is_leaf, values)):
        cx.inputs.refuse(f"an object is handed to {_name(fn)}()")
    known = all(is_python(v) for v in values)
    if known and _is_python_function(fn):
        return call_python(cx, fn, args, keywords)
    lowering = lookup(fn)
    if lowering is not None:
        if cx.inputs is not None and is_leaf(fn):
            cx.inputs.refuse(f"`{_name(fn)}` brings a lowering of its own")
        if keywords:
            args, keywords = positional(fn, args, keywords)
        try:
            return lowering(cx.b, *args, **keywords)
        except TypeError as e:
            if isinstance(e, QdrunTypeError):
                raise
            raise _wrong_arguments(fn, args, keywords) from e
    if not callable(fn):
        raise QdrunTypeError(f"{describe(fn)} cannot be called")
    if all(is_static(v) and not is_runtime(v) for v in values):
        return call_python(cx, fn, args, keywords)
    if isinstance(fn, (types.FunctionType, types.MethodType)) or getattr(operator, _name(fn), None) is fn:
        if cx.inputs is not None:
            cx.inputs.refuse(f"`{_name(fn)}` is a Python function")
        return trace_python(cx, fn, args, keywords)
    raise QdrunTypeError(
        f"{_name(fn)}() is a Python function and cannot run in a kernel with values that are only known at run time",
        hint=foreign_function(fn),
    )


def _wrong_arguments(fn: Any, args: list[Any], keywords: dict[str, Any]) -> QdrunTypeError:
    """The error of a call that the lowering of a function does not take, in terms of what the user sees of it."""
    if isinstance(fn, DType):
        return QdrunTypeError(f"qd.{fn}() converts one value, {len(args)} were given", hint=f"write qd.{fn}(x)")
    try:
        positional(fn, args, keywords)
    except QdrunTypeError as e:
        return e
    return QdrunTypeError(
        f"{_name(fn)}() does not take these {len(args)} arguments", hint="see docs/language.md for its parameters"
    )


def _super(cx: Context, node: ast.Call) -> Any:
    """``super()`` of a method: the object with the methods of the classes above."""
    fn, parameters = cx.frame.source.fn, cx.frame.source.parameters
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
    if node.args or node.keywords or "__class__" not in cells or not parameters:
        hint = "name the class: Base.f(self, i)"
        raise QdrunSyntaxError("super() in a kernel is written without arguments, in a method of a class", hint=hint)
    if cx.inputs is not None:
        cx.inputs.refuse("super()")
    owner: Any = cells["__class__"].cell_contents
    return super(owner, cx.name(parameters[0].name))


def _is_python_function(fn: Any) -> bool:
    """Functions of Python itself: with Python values they are Python's."""
    return getattr(builtins, getattr(fn, "__name__", ""), None) is fn or getattr(fn, "__module__", None) == math.__name__


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def lower_expression_statement(cx: Context, node: ast.Expr) -> None:
    """A call for its effect; a docstring.

    Raises:
        QdrunSyntaxError: an expression without effect.
    """
    if isinstance(node.value, ast.Constant):
        return
    if not isinstance(node.value, ast.Call):
        if isinstance(node.value, (ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr)):
            raise cx.refuse(node.value)
        raise QdrunSyntaxError("this expression has no effect", hint="assign it, or remove the line")
    if cx.expr(node.value) is not None and _peek(cx, node.value.func) is stop_grad:
        hint = "use what it returns: `v = stop_grad(v)`; only a field or an array is stopped by a call alone"
        raise QdrunSyntaxError("stop_grad() of a value does not change the variable", hint=hint)


def top_expression(cx: Context, node: ast.Expr) -> None:
    """A call that is a statement at the top level of the kernel: loops of an inlined function are parallel there."""
    call = node.value
    fn: Any = _peek(cx, call.func) if isinstance(call, ast.Call) else None
    if isinstance(call, ast.Constant):
        return
    if isinstance(call, ast.Call) and fn is loop_config:
        _loop_config(cx, call)
    elif isinstance(call, ast.Call) and _is_function(fn) and not _returns_inside(fn.__qd_func__.tree.body):
        with cx.at(call):
            inline(cx, fn, call, top=True)
    else:
        with cx.tasks.serial():
            cx.stmt(node)


def _is_function(fn: Any) -> bool:
    """Whether a callee is a function whose loops may be parallel; a method of a struct runs where the struct is found."""
    return hasattr(fn, "__qd_func__") and not isinstance(fn, StructMethod)


def _peek(cx: Context, node: ast.expr) -> Any:
    """A callee's value; what finding it emits is thrown away."""
    before, cx.where = cx.where, "prologue"
    try:
        with cx.scratch():
            return cx.expr(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
    finally:
        cx.where = before


def _returns_inside(statements: list[ast.stmt]) -> bool:
    """Whether a function may return before the end of its body."""
    nested = [s for s in statements if not isinstance(s, ast.Return)]
    return any([isinstance(n, ast.Return) for n in nodes_in(nested)])


def _fill(cx: Context, node: ast.Call, func: ast.Attribute) -> bool:
    """``v.fill(x)`` of something that can be written. False: it is another kind of fill."""
    with cx.scratch() as block:
        target = resolve_target(cx, func.value)
    if not is_target(target) or isinstance(target, StructTarget) or len(node.args) != 1 or node.keywords:
        return False
    cx.splice(block)
    store(cx, target_of(cx, func.value, "fill()"), cx.expr(node.args[0]))
    return True


def _positional(node: ast.Call, name: str, least: int, most: int) -> list[ast.expr]:
    """The arguments of a function of Python that takes no keywords.

    Raises:
        QdrunTypeError: another number of them.
    """
    if node.keywords or not least <= len(node.args) <= most:
        count = str(least) if least == most else f"{least} to {most}"
        raise QdrunTypeError(f"{name}() takes {count} positional arguments")
    return node.args


def _arguments(node: ast.Call, fn: Any) -> list[ast.expr]:
    """The expressions of a call in the order of the function's parameters; None for one that was left out.

    Raises:
        QdrunTypeError: they do not fit its signature.
    """
    return positional(fn, node.args, {str(k.arg): k.value for k in node.keywords})[0]


def _atomic(cx: Context, node: ast.Call, fn: Any) -> Any:
    place, value = _arguments(node, fn)
    target = target_of(cx, place, f"{fn.__name__}()")
    operand = cx.expr(value)
    return update(cx.b, target, ATOMIC_CODES[fn], operand)


def _cas(cx: Context, node: ast.Call) -> Any:
    place, *rest = _arguments(node, atomic_cas)
    target = target_of(cx, place, "atomic_cas()")
    expected, desired = (cx.expr(e) for e in rest)
    return compare_and_swap(cx.b, target, expected, desired)


def _volatile_load(cx: Context, node: ast.Call) -> Any:
    """Read by an atomic update that keeps every bit: ``x | 0`` of integers, ``x + -0.0`` of reals.

    Raises:
        QdrunSyntaxError: a variable, which no other thread writes, or a struct.
    """
    target = target_of(cx, _arguments(node, volatile_load)[0], "volatile_load()")
    if isinstance(target, StructTarget) or not is_global(target):
        hint = "give it an element of a field or an array: volatile_load(x[i])"
        raise QdrunSyntaxError(
            "volatile_load() reads a number or a vector that other threads write, not a variable or a struct", hint=hint
        )
    with cx.scratch():
        found = target.read(cx.b)
        is_real = (found.items[0] if isinstance(found, MatrixValue) else found).dtype.is_real
    return update(cx.b, target, "add", -0.0) if is_real else update(cx.b, target, "or", 0)


def _static(cx: Context, node: ast.Call) -> Any:
    args = _arguments(node, static)
    found = (cx.static_value(a, parts=True) for a in args)
    values = tuple(bool(v.value) if isinstance(v, Const) and v.dtype is u1 else v for v in found)
    for a, value in zip(args, values):
        cx.consumed(a, value)
    return values[0] if len(values) == 1 else values


def _static_print(cx: Context, node: ast.Call) -> None:
    args = [cx.expr(a) for a in _arguments(node, static_print)]
    if cx.inputs is not None:
        cx.inputs.refuse("static_print() prints while the kernel is compiled")
    texts = [
        "".join(repr(p.value) if isinstance(p, Slot) else p for p in value_parts(a))
        if is_runtime(a)
        else describe(a)
        if isinstance(a, (TensorRef, StructTensor))
        else str(a)
        for a in args
    ]
    print(*texts)


def _static_assert(cx: Context, node: ast.Call) -> None:
    cond, *rest = _arguments(node, static_assert)
    if not cx.static_truth(cond):
        message = str(cx.static_expr(rest[0])) if rest else ast.unparse(cond)
        raise QdrunTypeError(f"static_assert failed: {message}")


def _loop_config(cx: Context, node: ast.Call) -> None:
    _arguments(node, loop_config)
    for keyword in node.keywords:
        cx.next_loop[str(keyword.arg)] = cx.static_expr(keyword.value)
    if cx.next_loop.get("parallelize") == 1:
        cx.next_loop["serialize"] = True


def _range(cx: Context, node: ast.Call) -> Any:
    return make_range(cx, *(cx.expr(a) for a in _positional(node, "range", 1, 3)))


def _ndrange(cx: Context, node: ast.Call) -> Any:
    axes = next((k.value for k in node.keywords if k.arg == "axes"), None)
    bounds = [_axis(cx, value) for value in _spread(cx, _arguments(node, ndrange))]
    return ndrange(*bounds, axes=None if axes is None else cx.static_expr(axes))


def _axis(cx: Context, value: Any) -> Any:
    """An axis of ``ndrange``: its bounds as Python numbers where they are known."""
    if isinstance(value, (tuple, list, MatrixValue)):
        return tuple(_axis(cx, item) for item in (value.items if isinstance(value, MatrixValue) else value))
    return bound_of(cx, value)


def _grouped(cx: Context, node: ast.Call) -> Any:
    return grouped(cx.expr(_arguments(node, grouped)[0]))


def _len(cx: Context, node: ast.Call) -> Any:
    value = cx.expr(_positional(node, "len", 1, 1)[0])
    if isinstance(value, MatrixValue):
        return value.n
    if isinstance(value, (TensorRef, StructTensor)):
        return (value if isinstance(value, TensorRef) else value.first).shape(cx.b)[0]
    if not hasattr(value, "__len__"):
        raise QdrunTypeError(f"{describe(value)} has no length")
    return compile_time(lambda: len(value))


def _sequence(make: Callable[..., Any]) -> Special:
    """``zip`` and ``enumerate`` of compile-time sequences, of which vectors are one."""

    def call(cx: Context, node: ast.Call) -> Any:
        args = _positional(node, make.__name__, 1, 255)
        values = [cx.expr(a) for a in args]
        for a, value in zip(args, values):
            cx.consumed(a, value)
            if isinstance(value, (TensorRef, StructTensor)):
                hint = "loop over its indices, `for i in x:`, and read x[i]"
                raise QdrunTypeError(f"{make.__name__}() cannot run over {describe(value)} in a kernel", hint=hint)
        return compile_time(lambda: list(make(*(v.items if isinstance(v, MatrixValue) else v for v in values))))

    return call


def _tuple(cx: Context, node: ast.Call) -> Any:
    value = cx.expr(_positional(node, "tuple", 1, 1)[0])
    return compile_time(lambda: tuple(value.items if isinstance(value, MatrixValue) else value))


def _outer(cx: Context, node: ast.Call) -> NoReturn:
    """``outer(..)`` but in ``t -= outer(a, b)``.

    Raises:
        QdrunTypeError: always.
    """
    raise QdrunTypeError(
        "qd.outer(a, b) has no value of its own: it is what is subtracted from a tile of qd.simt",
        hint="write t -= qd.outer(a, b); for vectors of one thread a.outer_product(b)",
    )


_SPECIAL: dict[Any, Special] = {
    static: _static,
    atomic_cas: _cas,
    volatile_load: _volatile_load,
    static_print: _static_print,
    static_assert: _static_assert,
    loop_config: _loop_config,
    stop_grad: lower_stop_grad,
    ndrange: _ndrange,
    grouped: _grouped,
    builtins.range: _range,
    builtins.print: lower_print,
    builtins.breakpoint: lower_breakpoint,
    builtins.len: _len,
    builtins.super: _super,
    builtins.zip: _sequence(zip),
    builtins.enumerate: _sequence(enumerate),
    builtins.tuple: _tuple,
    builtins.list: _tuple,
    checkpoint: lambda cx, _: refuse_stage(cx, checkpoint),
    graph_do_while: lambda cx, _: refuse_stage(cx, graph_do_while),
    outer: _outer,
    **_BLOCK,
    **_LANES,
}
