"""Lowers ``print``, ``assert`` and ``breakpoint``, with f-strings and ``"..".format(..)`` in them."""

from __future__ import annotations

import ast
import re
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import QdrunSyntaxError, QdrunTypeError
from ...ir.nodes import Assert, Const, Op, Operand, Print
from ...print_formats import formatted, spec_of
from ..state.context import describe
from ..values import ops
from ..values.structs import StructTensor
from ..values.tensor import TensorRef
from ..values.values import MatrixValue, StructValue

if TYPE_CHECKING:
    from ..state.context import Context


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A value in a text, with its format (``print_formats``)."""

    value: Operand
    format: str = ""


Part = str | Slot


def lower_assert(cx: Context, node: ast.Assert) -> None:
    """``assert cond, message``: tested in debug mode. The two are evaluated always, as a function that they call may have effects."""
    cond = ops.truth(cx.b, cx.expr(node.test))
    parts: list[Part] = message_parts(cx, node.msg) if node.msg else ["assertion failed"]
    if not cx.b.debug:
        return
    slots = tuple(p.value for p in parts if isinstance(p, Slot))
    message = "".join(p if isinstance(p, str) else f"{{:{p.format}}}" for p in _escaped(parts) if p) if slots else plain(parts)
    cx.b.put(Assert(cond, message, slots))


def _escaped(parts: list[Part]) -> list[Part]:
    return [p.replace("{", "{{").replace("}", "}}") if isinstance(p, str) else p for p in parts]


def plain(parts: list[Part]) -> str:
    """The text of parts without values."""
    return "".join(p for p in parts if isinstance(p, str))


def message_parts(cx: Context, node: ast.expr) -> list[Part]:
    """A message (a string, an f-string, ``"..".format(..)``, a value) as text and values.

    Raises:
        QdrunSyntaxError: a format that the value does not have.
    """
    out: list[Part] = []
    if isinstance(node, ast.JoinedStr):
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                with cx.at(part):
                    out += _formatted(cx.expr(part.value), _spec(cx, part), part.conversion)
            else:
                assert isinstance(part, ast.Constant)
                out.append(str(part.value))
        return out
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        template = cx.expr(node.func.value)
        if isinstance(template, str):
            return _template_parts(cx, template, node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        template = cx.expr(node.left)
        if isinstance(template, str):
            return _percent_parts(cx, template, cx.expr(node.right))
    return value_parts(cx.expr(node))


_PERCENT = re.compile(r"%(?P<spec>[-+ #0]*\d*(?:\.\d+)?)(?:hh|h|ll|l|j|z|t|L)?(?P<kind>[a-zA-Z%])")


def _percent_parts(cx: Context, template: str, values: Any) -> list[Part]:
    """``template % values``, as in Python; no names and no ``*``."""
    rest = list(values) if isinstance(values, tuple) else [values]
    out: list[Part] = []
    end = 0
    for found in _PERCENT.finditer(template):
        out.append(template[end : found.start()])
        end = found.end()
        spec, kind = found["spec"], found["kind"]
        if kind == "%":
            out.append("%")
            continue
        if not rest:
            raise QdrunSyntaxError(f"`%{spec}{kind}` has no value", hint="give one value for each `%`")
        own = spec.replace("-", "<") if kind in "sr" else f"%{spec}{kind}" if spec or kind not in "diu" else ""
        out += _formatted(rest.pop(0), own, -1)
    if rest:
        raise QdrunSyntaxError("more values than `%` in the text", hint="give one value for each `%`")
    return [*out, template[end:]]


def _spec(cx: Context, part: ast.FormattedValue) -> str:
    return "" if part.format_spec is None else str(cx.expr(part.format_spec))


def _template_parts(cx: Context, template: str, call: ast.Call) -> list[Part]:
    """``template.format(..)``: positions, numbers and names, as in Python; no attributes or indices."""
    values: dict[str, Any] = {str(k): cx.expr(a) for k, a in enumerate(call.args)}
    values |= {str(k.arg): cx.expr(k.value) for k in call.keywords}
    out: list[Part] = []
    position = 0
    for text, name, spec, conversion in string.Formatter().parse(template):
        out.append(text)
        if name is None:
            continue
        if not name:
            name, position = str(position), position + 1
        elif name.isdigit() and position:
            raise QdrunSyntaxError("format() mixes {} and {0}", hint="number all braces, or none")
        if name not in values:
            hint = "give format() one argument for each pair of braces"
            raise QdrunSyntaxError(f"format() has no argument for {{{name}}}", hint=hint)
        out += _formatted(values[name], spec or "", ord(conversion) if conversion else -1)
    return out


def _formatted(value: Any, spec: str, conversion: int) -> list[Part]:
    """The parts of one value, each component with the format."""
    if conversion not in (-1, ord("s"), ord("r")):
        raise QdrunSyntaxError(f"the conversion !{chr(conversion)} cannot be used in a kernel", hint="leave it out")
    parts = value_parts(value)
    spec = spec_of(spec)
    if not spec:
        return parts
    slots = [p.value for p in parts if isinstance(p, Slot)]
    try:
        for x in slots:
            formatted(1.0 if x.dtype.is_real else 1, spec)
        text = formatted(value, spec) if not slots else ""
    except (ValueError, TypeError) as e:
        raise QdrunSyntaxError(
            f"the format {spec!r} does not fit: {e}", hint="use a format of Python's or of C's for this type"
        ) from None
    return [Slot(p.value, spec) if isinstance(p, Slot) else p for p in parts] if slots else [text]


def value_parts(value: Any) -> list[Part]:
    """A value as it is printed: a vector in brackets, a Python value as its text."""
    if isinstance(value, (Op, Const)):
        return [Slot(value)]
    if isinstance(value, MatrixValue) and len(value.shape) == 2:
        value = [MatrixValue((value.m,), value.items[k * value.m : (k + 1) * value.m]) for k in range(value.n)]
    elif isinstance(value, MatrixValue):
        value = list(value.items)
    if isinstance(value, (list, tuple)):
        ends = "()" if isinstance(value, tuple) else "[]"
        out: list[Part] = [ends[0]]
        for k, item in enumerate(value):
            out += [", "] * (k > 0) + value_parts(item)
        return [*out, ends[1]]
    if isinstance(value, StructValue):
        named = [[", " * (k > 0), f"{name}=", *value_parts(item)] for k, (name, item) in enumerate(value.items.items())]
        return [value.form.name, "(", *(part for parts in named for part in parts), ")"]
    if isinstance(value, (TensorRef, StructTensor)):
        raise QdrunTypeError(
            f"{describe(value)} cannot be printed as a whole", hint="print its elements, or print it in Python"
        )
    return [str(value)]


def lower_format(cx: Context, node: ast.JoinedStr) -> str:
    """An f-string of compile-time values, as text.

    Raises:
        QdrunSyntaxError: it holds a run-time value outside of print() and assert.
    """
    parts = message_parts(cx, node)
    if not all(isinstance(p, str) for p in parts):
        raise QdrunSyntaxError("an f-string of run-time values can only be printed", hint="write it inside print(..)")
    return plain(parts)


def lower_print(cx: Context, node: ast.Call) -> None:
    """``print(a, f"..", sep=.., end=..)``."""
    options: dict[str, Any] = {"sep": " ", "end": "\n"}
    for keyword in node.keywords:
        if keyword.arg not in options:
            raise QdrunSyntaxError(f"print() in a kernel has no `{keyword.arg}`", hint="it has sep and end")
        options[keyword.arg] = str(cx.static_expr(keyword.value))
    parts: list[Part] = []
    for k, arg in enumerate(node.args):
        with cx.at(arg):
            parts += [options["sep"]] * (k > 0) + message_parts(cx, arg)
    parts.append(options["end"])
    formats = tuple("" if isinstance(p, str) else p.format for p in parts)
    values = tuple(p if isinstance(p, str) else p.value for p in parts)
    cx.b.put(Print(values, formats=formats if any(formats) else ()))


def lower_breakpoint(cx: Context, node: ast.Call) -> None:
    """``breakpoint()``: the interpreter stops here, with the numbers and vectors in scope as the debugger's variables.

    Raises:
        QdrunSyntaxError: the kernel is being compiled.
    """
    if not cx.options.breakpoints:
        hint = "debug with qd.init(arch=qd.python), where kernels are interpreted; or print() the values"
        raise QdrunSyntaxError("breakpoint() cannot be compiled", cx.frame.source.loc(node, cx.options.name), hint)
    names: list[tuple[str, tuple[int, ...]]] = []
    parts: list[str | Operand] = []
    for name in cx.frame.names():
        value = cx.name(name)
        if isinstance(value, (Op, Const)):
            names.append((name, ()))
            parts.append(value)
        elif isinstance(value, MatrixValue) and value.items:
            names.append((name, value.shape))
            parts += value.items
    cx.b.put(Print(tuple(parts), stop=tuple(names)))
