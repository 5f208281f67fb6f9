"""Inlining of ``func`` functions, and ``return`` of functions and of the kernel.

A function is an object with an attribute ``__qd_func__``: its ``FunctionSource``; one that is bound to an object also has
``__self__``. Its body is lowered into a block of its own. A return whose execution is certain just ends the lowering of the body. A
return inside a run-time ``if`` or loop stores the result to locals and becomes an ``Exit``; those are removed at once, so that they
leave the function and not the caller's loop.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import QdrunSyntaxError, QdrunTypeError
from ...ir.builder import convert
from ...ir.nodes import Buffer, Const, Exit, Local, Operand, Place
from ...ir.types import promote
from ...passes.exits import lower_block
from ..markers import Ref
from ..own_gradient import call_with_gradient
from ..returned import check_returned
from ..source.parse import FunctionSource
from ..state.context import Context, describe, is_runtime, rounded
from ..state.scope import Binding, EarlyReturn, Frame, StructVar, is_template
from ..values import ops
from ..values.matrix import new_local
from ..values.structs import StructMethod, rebuild, scalars, shape_of
from ..values.values import MatrixValue, StructValue, resolve
from .expressions import is_target, number, resolve_target, star_values
from .statements import convert_to, new_struct
from .targets import is_global

MAX_DEPTH = 64
"""Maximum recursion depth of a function with a template parameter."""


@dataclass(frozen=True, eq=False)
class _Evaluated:
    """An argument whose value is known before it is bound."""

    value: Any


_Given = ast.expr | _Evaluated


def inline(cx: Context, fn: Any, node: ast.Call, top: bool = False) -> Any:
    """The value of a call of a ``func`` in a kernel; its body is lowered here. Errors: see ``_inline``."""
    keywords = {str(k.arg): k.value for k in node.keywords}
    if getattr(fn, "own_gradient", None) is not None:
        with cx.tasks.emitting(top):
            return _with_gradient(cx, fn, node.args, keywords)
    return _inline(cx, fn, node.args, keywords, top)


def inline_values(cx: Context, fn: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """``inline`` of a call by Python, whose arguments are values. Errors: see ``_inline``."""
    if getattr(fn, "own_gradient", None) is not None:
        return _with_gradient(cx, fn, [*map(_Evaluated, args)], {name: _Evaluated(x) for name, x in keywords.items()})
    return _inline(cx, fn, [*map(_Evaluated, args)], {name: _Evaluated(x) for name, x in keywords.items()}, False)


def _with_gradient(cx: Context, fn: Any, args: Sequence[_Given], keywords: Mapping[str, _Given]) -> Any:
    """The value of a call of a function whose gradient the user wrote. Its arguments are evaluated once, in the order of the parameters.

    Raises:
        QdrunTypeError: the arguments do not fit the parameters.
    """
    source: FunctionSource = fn.__qd_func__
    names = [p.name for p in source.parameters[1 if hasattr(fn, "__self__") else 0 :]]
    given = dict(zip(names, args))
    if len(args) > len(names) or any(isinstance(x, ast.Starred) for x in args) or set(keywords) - set(names[len(args) :]):
        raise QdrunTypeError(f"the arguments of `{source.name}`, which has a gradient of its own, do not fit its parameters")
    given |= keywords
    values = []
    for p in source.parameters:
        if p.name in given:
            x = given[p.name]
            values.append(x.value if isinstance(x, _Evaluated) else _value_of(cx, x))
        elif p.name in names:
            if p.default is p.empty:
                raise QdrunTypeError(f"`{source.name}` is missing the argument `{p.name}`")
            values.append(resolve(source.default(p)))

    def call(function: Any, arguments: Sequence[Any]) -> Any:
        return _inline(cx, function, [*map(_Evaluated, arguments)], {}, False)

    return call_with_gradient(cx, fn, values, call)


def _inline(cx: Context, fn: Any, args: Sequence[_Given], keywords: Mapping[str, _Given], top: bool) -> Any:
    """The value of a call.

    Raises:
        QdrunSyntaxError: the function calls itself, it is for the top level of a kernel only and this is not, or some path through it
            returns no value, although another path or its annotation does.
        QdrunTypeError: the arguments do not fit the parameters.
    """
    source: FunctionSource = fn.__qd_func__
    if not top and getattr(fn, "requires_top_level", False):
        raise QdrunSyntaxError(
            f"`{source.name}` has requires_top_level=True and is called inside a loop, a branch or an expression",
            hint="call it as a statement at the top level of the kernel, or of a function that is called there",
        )
    _refuse_recursion(cx, source)
    if cx.inputs is not None:
        cx.inputs.entered(source)
    frame = Frame(source, top)
    bound: list[Any] = []
    if isinstance(fn, StructMethod):
        bound = [_owner(cx, frame, fn.owner)]
    elif hasattr(fn, "__self__"):
        bound = [resolve(fn.__self__)]
    _bind_parameters(cx, frame, bound, args, keywords, top)
    cx.frames.append(frame)
    checks, cx.b.overflow = cx.b.overflow, "wrap" if source.wraps else cx.options.overflow
    try:
        if top:
            cx.top_block(source.tree.body)
            with cx.at(source.tree):
                refuse_missing_value(source, frame.returned)
            return None
        return _body(cx, frame)
    finally:
        cx.b.overflow = checks
        cx.frames.pop()


def _refuse_recursion(cx: Context, source: FunctionSource) -> None:
    """Functions are inlined, so one that is open already cannot be called.

    Raises:
        QdrunSyntaxError: naming the chain of calls.
    """
    open_already = [k for k, frame in enumerate(cx.frames) if frame.source.fn is source.fn]
    if not open_already or (
        len(open_already) < MAX_DEPTH and any(is_template(source.annotation(p.name)) for p in source.parameters)
    ):
        return  # what a template parameter decides with static() may end it
    chain = [f"`{frame.source.name}`" for frame in cx.frames[open_already[0] :]] + [f"`{source.name}`"]
    how = "calls itself" if len(chain) == 2 else f"calls itself: {' -> '.join(chain)}"
    raise QdrunSyntaxError(
        f"`{source.name}` {how}{':' if len(chain) == 2 else ';'} functions are inlined, so recursion has no end",
        hint="write it as a loop",
    )


def _owner(cx: Context, frame: Frame, owner: Any) -> Any:
    """The value of ``self`` in a method of a struct: the caller's variable or element; a copy of a value, if the method changes it."""
    parameters = frame.source.parameters
    if not isinstance(owner, StructValue) or not owner.is_data or not parameters:
        return owner
    name = parameters[0].name
    changed = frame.stores[name] or name in frame.has_methods_called
    return new_struct(cx, cx.read(owner), name) if changed else owner


def _body(cx: Context, frame: Frame) -> Any:
    """Lower the body of an inlined function here; its result."""
    with cx.scratch() as body:
        left = cx.block(frame.source.tree.body)
    if frame.early is None:
        cx.splice(body)
        with cx.at(frame.source.tree):
            refuse_missing_value(frame.source, frame.returned)
        return _annotated(cx, frame, frame.returned)
    if frame.early.locals and left != "return":
        hint = "end the function with a return statement"
        raise QdrunSyntaxError(f"`{frame.source.name}` may end without returning a value", hint=hint)
    for (
        x
    ) in frame.early.locals:  # set on every path, also for passes that cannot tell which: else an outer loop seems to carry it
        cx.b.store(x, Const(convert(0, x.dtype), x.dtype))
    cx.splice(lower_block(body))
    return rebuild(frame.early.like, [cx.b.load(x) for x in frame.early.locals])


def _annotated(cx: Context, frame: Frame, value: Any) -> Any:
    annotation = frame.source.annotation("return")
    if annotation is None and value is not None and "return" in frame.source.fn.__annotations__:
        what = f"`{frame.source.name}` returns a value, and its annotation says None"
        raise QdrunTypeError(what, hint="annotate the type that it returns, or leave the value out")
    refuse_missing_value(frame.source, value)
    if annotation is None:
        return value
    if len(cx.frames) == 1:
        check_returned(frame.source.name, value, annotation)
    return convert_to(cx, value, annotation)


def refuse_missing_value(source: FunctionSource, value: Any) -> None:
    """Refuse that a function with an annotation for what it returns ends without a value.

    Raises:
        QdrunSyntaxError: at the line of a bare ``return``, or at that of the function.
    """
    annotation = source.annotation("return")
    if value is None and annotation is not None:
        shown = getattr(annotation, "__name__", annotation)
        what = f"`{source.name}` ends without returning a value, and its annotation says {shown}"
        raise QdrunSyntaxError(what, hint="end every path with `return ..`, or leave the annotation out")


def _bind_parameters(
    cx: Context, frame: Frame, bound: list[Any], args: Sequence[_Given], keywords: Mapping[str, _Given], top: bool
) -> None:
    """Bind each parameter: by reference for ``template()``, by value otherwise. The arguments are the caller's expressions; ``*args``
    is the tuple of the values that are left.
    """
    parameters = frame.source.parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise QdrunSyntaxError(f"`{frame.source.name}` has a `**` parameter", hint="write the parameters out")
    more = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    known: dict[str, Any] = {p.name: value for p, value in zip(parameters, bound)}
    rest = [p for p in parameters[len(bound) :] if p.kind is not p.VAR_POSITIONAL]
    places = [p.name for p in rest if p.kind is not p.KEYWORD_ONLY]
    with cx.tasks.emitting(top):
        given = _positional(cx, frame, places, args)
    if more is None and len(given) > len(places):
        raise QdrunTypeError(f"`{frame.source.name}` takes {len(places)} arguments, not {len(given)}")
    named = dict(zip(places, given))
    for name, value in keywords.items():
        if name in named or name not in [p.name for p in rest]:
            problem = "is given twice" if name in named else "is no parameter"
            raise QdrunTypeError(f"`{name}` {problem} of `{frame.source.name}`")
        named[name] = value
    for name, value in known.items():
        frame.bind(name, value)
    for p in rest:
        if p.name in named:
            _bind(cx, frame, p.name, named[p.name], top)
        elif p.default is not p.empty:
            with cx.tasks.emitting(top):
                _bind_value(cx, frame, p.name, resolve(frame.source.default(p)))
        else:
            raise QdrunTypeError(f"`{frame.source.name}` is missing the argument `{p.name}`")
    if more is not None:
        with cx.tasks.emitting(top):
            _bind_rest(cx, frame, more, given[len(places) :])


def _positional(cx: Context, frame: Frame, places: list[str], nodes: Sequence[_Given]) -> list[_Given]:
    """The arguments by position. Where one of them is ``*sequence`` they are evaluated here, in order."""
    if not any(isinstance(node, ast.Starred) for node in nodes):
        return list(nodes)
    out: list[_Given] = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            out += map(_Evaluated, star_values(cx, node))
        elif len(out) < len(places) and is_template(frame.source.annotation(places[len(out)])):
            out.append(node)
        else:
            out.append(node if isinstance(node, _Evaluated) else _Evaluated(_value_of(cx, node)))
    return out


def _value_of(cx: Context, node: ast.expr) -> Any:
    with cx.at(node):
        value = cx.expr(node)
        cx.consumed(node, value)
        return value


def _bind_rest(cx: Context, frame: Frame, name: str, given: list[_Given]) -> None:
    """Bind ``*args``: a tuple of values, each converted to the annotation. It cannot be assigned."""
    annotation = frame.source.annotation(name)
    values = (x.value if isinstance(x, _Evaluated) else _value_of(cx, x) for x in given)
    if annotation is not None and not is_template(annotation):
        values = (convert_to(cx, x, annotation) for x in values)
    frame.bind(name, tuple(rounded(cx.b, x) if is_runtime(x) else x for x in values), "the rest of the arguments")


def _bind(cx: Context, frame: Frame, name: str, given: _Given, top: bool) -> None:
    by_reference = is_template(frame.source.annotation(name))
    with cx.tasks.emitting(top):
        if isinstance(given, _Evaluated):
            if by_reference:
                frame.bind(name, given.value, "a value, not a variable,")
            else:
                _bind_value(cx, frame, name, given.value)
        elif by_reference:
            _bind_reference(cx, frame, name, given, top)
        else:
            with cx.at(given):
                _bind_value(cx, frame, name, cx.expr(given))
                cx.consumed(given)
        _check_reference(cx, frame, name)


def _check_reference(cx: Context, frame: Frame, name: str) -> None:
    """Refuse what is not of the type that ``qd.ref(..)`` asks for.

    Raises:
        QdrunTypeError: naming the parameter.
    """
    annotation, binding = frame.source.annotation(name), frame.find(name)
    if not isinstance(annotation, Ref) or binding is None:
        return
    with cx.scratch():
        value = cx.read(binding.value)
    wanted = ops.as_dtype(cx.b, annotation.dtype)
    if not is_runtime(value) or isinstance(value, MatrixValue) or value.dtype is not wanted:
        what = f"`{name}` of `{frame.source.name}` is a reference to {wanted}, and {describe(value)} is given"
        raise QdrunTypeError(what, hint="pass a variable of that type, or annotate the parameter with qd.template()")


def _binding_of(cx: Context, tree: ast.expr) -> Binding | None:
    """The variable that ``s``, or ``s.a.b`` of a struct variable, is; None when it is something else."""
    if isinstance(tree, ast.Name):
        return cx.lookup(tree.id)
    owner = _binding_of(cx, tree.value) if isinstance(tree, ast.Attribute) else None
    if owner is None or not isinstance(owner.value, StructVar) or not isinstance(tree, ast.Attribute):
        return None
    return owner.value.members.get(tree.attr)


def _bind_value(cx: Context, frame: Frame, name: str, value: Any) -> None:
    """A parameter by value: a variable of the function when the function assigns it, else the value."""
    annotation = frame.source.annotation(name)
    if annotation is not None and not is_template(annotation):
        value = convert_to(cx, value, annotation)
    if frame.stores[name] and ops.is_number(value):
        value = ops.literal(cx.b, value)
    if isinstance(value, StructValue) and value.is_data:
        changed = frame.stores[name] or (value.form.methods and name in frame.has_methods_called) or value.form.is_tile
        value = new_struct(cx, value, name) if changed else rounded(cx.b, value)
    elif is_runtime(value):
        value = rounded(cx.b, value)
        if frame.stores[name]:
            value = new_local(cx.b, value, name) if isinstance(value, MatrixValue) else cx.b.local(value, name)
    frame.bind(name, value)


def _bind_reference(cx: Context, frame: Frame, name: str, tree: ast.expr, top: bool) -> None:
    """A parameter by reference: another name of the caller's variable or element, or the caller's value.

    Raises:
        QdrunTypeError: a component of a variable, for a function with parallel loops: they would not see that it changes.
    """
    binding = _binding_of(cx, tree)
    if binding is not None:
        frame.scopes[0][name] = binding
        return
    value = resolve_target(cx, tree)
    cx.consumed(tree)
    if top and is_target(value) and not is_global(value):
        hint = f"pass the whole variable, or copy the component to a variable first: {name} = .."
        raise QdrunTypeError(
            "a component of a variable cannot be passed by reference to a function with parallel loops", hint=hint
        )
    readonly = "" if is_target(value) else "a value, not a variable,"
    frame.bind(name, value, readonly)


def lower_return(cx: Context, node: ast.Return) -> str:
    """``return`` of an inlined function, or of the kernel.

    Raises:
        QdrunSyntaxError: the kernel returns inside a run-time block.
        QdrunTypeError: the result cannot be returned.
    """
    frame = cx.frame
    value = None if node.value is None else cx.expr(node.value)
    if len(cx.frames) == 1:
        _return_from_kernel(cx, _annotated(cx, frame, value))
    elif frame.depth == 0 and frame.early is None:
        frame.returned = value
    else:
        _return_early(cx, frame, value)
    return "return"


def _return_early(cx: Context, frame: Frame, value: Any) -> None:
    if frame.top:
        raise QdrunSyntaxError(
            "`return` inside a loop or an if of a function with parallel loops", hint="use if / else instead"
        )
    value = _annotated(cx, frame, value)
    parts = flatten(cx, value)
    if frame.early is None:
        frame.early = EarlyReturn([Local(p.dtype, "result") for p in parts], shape_of(value))
    early = frame.early
    if shape_of(value) != early.like:
        raise QdrunTypeError(f"`{frame.source.name}` returns values of different shapes")
    for local, part in zip(early.locals, parts):
        if promote(local.dtype, part.dtype) is not local.dtype:
            hint = "annotate the function with its return type: `-> f32`"
            raise QdrunTypeError(f"`{frame.source.name}` returns {local.dtype} here and {part.dtype} there", hint=hint)
        cx.b.store(local, ops.cast_scalar(cx.b, part, local.dtype))
    if frame.depth:
        cx.b.put(Exit("return"))


def flatten(cx: Context, value: Any) -> list[Operand]:
    """The scalars of a result: of a number, a vector, a matrix, or a tuple of those.

    Raises:
        QdrunTypeError: it is something else.
    """
    if value is None:
        return []
    if isinstance(value, (tuple, list)):
        return [x for v in value for x in flatten(cx, v)]
    if isinstance(value, StructValue) and value.is_data:
        return scalars(rounded(cx.b, value))
    if not is_runtime(value) and not ops.is_number(value):
        raise QdrunTypeError(
            f"{describe(value)} cannot be returned", hint="return numbers, vectors, matrices, structs or tuples of them"
        )
    value = rounded(cx.b, ops.as_value(cx.b, number(value)))
    return list(value.items) if isinstance(value, MatrixValue) else [value]


def _return_from_kernel(cx: Context, value: Any) -> None:
    """Store the kernel's result to its ``ret`` places."""
    if cx.where != "serial":
        hint = "run the loop in order: qd.loop_config(serialize=True); or store the result in a field, and return it at the end"
        raise QdrunSyntaxError("`return` of a kernel cannot stand inside a parallel loop", hint=hint)
    kernel, types = cx.tasks.kernel, cx.options.returns
    parts = flatten(cx, value)
    if types is not None and len(types) != len(parts):
        raise QdrunTypeError(f"the kernel returns {len(parts)} numbers, and its annotation says {len(types)}")
    places = cx.tasks.returned
    if places is None:
        places = cx.tasks.returned = []
        buffer = Buffer("ret")
        for k, part in enumerate(parts):
            dtype = part.dtype if types is None else ops.as_dtype(cx.b, types[k])
            name = "ret" if len(parts) == 1 else f"ret_{k}"
            places.append(Place(name, dtype, buffer, 0, (), (), 8 * k, dtype.size))
            kernel.returns.append(dtype)
    if len(places) != len(parts):
        raise QdrunTypeError(f"the kernel returns {len(parts)} numbers here and {len(places)} there")
    for place, part in zip(places, parts):
        if types is None and promote(place.dtype, part.dtype) is not place.dtype:
            hint = "annotate the kernel with its return type: `-> qd.f32`"
            raise QdrunTypeError(f"the kernel returns {place.dtype} here and {part.dtype} there", hint=hint)
        cx.b.gstore(place, (), ops.to_operand(cx.b, ops.cast(cx.b, part, place.dtype)))
    if cx.frame.depth:
        cx.tasks.leave()
        cx.b.put(Exit("return"))
