"""Purity of Python functions: whether a function of the user's has no effect but its result, as far as its text shows.

The record of a lowering (``inputs.py``) is checked by looking again at what the lowering looked up. A function that writes a file or
counts its calls must not run for that, and a list of paths that lies on a disk must not be able to name one. So only a function of a small
part of Python is called: its own variables, arithmetic, conditions, loops over them, literals, functions that kernels know, and other such
functions.
"""

from __future__ import annotations

import ast
import inspect
import math
from functools import cached_property
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ...errors import QdrunError
from ..library import functions
from .parse import FunctionSource, read_function
from .trees import children_of, nodes_of

_LITERALS = (int, float, bool, str, type(None))
_PURE = frozenset((len, range, tuple, list, str, zip, enumerate, reversed, sorted, abs, divmod))
_NODES = (
    *(ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.For, ast.Pass, ast.Break, ast.Continue, ast.Assert),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Constant, ast.Tuple, ast.List, ast.Slice, ast.Starred),
    *(ast.ListComp, ast.GeneratorExp, ast.comprehension, ast.keyword, ast.arguments, ast.arg, ast.expr_context),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_IN_C = type(object.__getattribute__)
_DESCRIPTORS = frozenset(("builtins", "_collections", "enum", "types"))
"""Modules of descriptors that run none of the user's code: functions, slots, fields of named tuples."""
_OURS = __name__.rpartition(".frontend.")[0] + "."
_DEEPEST = 8
"""Calls of one function by another that are followed."""


def is_literal(x: Any) -> bool:
    """Whether ``repr`` spells a value, so that it can be part of a path."""
    if type(x) is tuple:
        return all(map(is_literal, x))
    return type(x) in _LITERALS and (type(x) is not float or math.isfinite(x))


def effect_free(fn: Any, depth: int = 0) -> bool:
    """Whether calling a Python function, or a method of a plain object, with literals does nothing but give a result."""
    plain, owner = (fn.__func__, fn.__self__) if isinstance(fn, MethodType) else (fn, None)
    if type(plain) is not FunctionType or hasattr(plain, "__wrapped__") or depth > _DEEPEST:
        return False
    if not all(map(is_literal, (*(plain.__defaults__ or ()), *(plain.__kwdefaults__ or {}).values()))):
        return False
    try:
        source = read_function(plain)
    except QdrunError:
        return False  # without source there is no proof
    first = source.tree.args.args[:1] if owner is not None else []
    return _Reader(source, owner, first[0].arg if first else "", depth).all_of(source.tree.body)


def attribute_is_plain(base: Any, name: str, depth: int = 0) -> bool:
    """Whether ``base.name`` is found without running code of the user's, or by a property that is ``effect_free``."""
    if isinstance(base, ModuleType):
        return name in vars(base) or base.__name__.partition(".")[0] in ("qdrun", "numpy")
    if not isinstance(type(base).__getattribute__, _IN_C):
        return False
    missing = object()
    found = inspect.getattr_static(base, name, missing)
    getter = found.fget if isinstance(found, property) else found.func if isinstance(found, cached_property) else None
    if getter is not None:
        return effect_free(MethodType(getter, base), depth + 1)
    kind = type(found)
    given = not hasattr(kind, "__get__") or kind.__module__ in _DESCRIPTORS or kind.__module__.startswith(_OURS)
    return found is not missing and given


class _Reader:
    """Looks at the text of one function."""

    def __init__(self, source: FunctionSource, owner: Any, first: str, depth: int) -> None:
        self._source, self._owner, self._first, self._depth = source, owner, first, depth
        stored = [n.id for n in source.nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
        self._own = {*stored, *[a.arg for a in nodes_of(source.tree.args) if isinstance(a, ast.arg)]}

    def all_of(self, nodes: list[Any]) -> bool:
        """Whether all of these statements or expressions are free of effects."""
        return all(map(self._one, nodes))

    def _one(self, node: ast.AST) -> bool:
        match node:
            case ast.Name():
                return node.id in self._own or self._free(node.id)
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Load()):
                return self._attribute(name, node.attr)
            case ast.Subscript(ctx=ast.Load()):
                return self.all_of([node.value, node.slice])
            case ast.Call(func=ast.Name() | ast.Attribute()):
                return self._callee(node.func) and self.all_of([*node.args, *node.keywords])
            case ast.Expr(value=ast.Constant()):
                return True
        return isinstance(node, _NODES) and self.all_of(children_of(node))

    def _value(self, name: str) -> Any:
        try:
            return self._source.peek(name)
        except QdrunError:
            return ...  # calling it would say so

    def _free(self, name: str) -> bool:
        return name not in self._own and is_literal(self._value(name))

    def _attribute(self, of: str, name: str) -> bool:
        if of == self._first:
            plain = attribute_is_plain(self._owner, name, self._depth)
            return plain and is_literal(getattr(self._owner, name, ...))
        return of not in self._own and self._value(of) is math

    def _callee(self, func: ast.expr) -> bool:
        if isinstance(func, ast.Attribute):
            return isinstance(func.value, ast.Name) and func.value.id != self._first and self._one(func)
        assert isinstance(func, ast.Name)
        if func.id in self._own:
            return False
        fn = self._value(func.id)
        try:
            if fn in _PURE or fn in functions.FOREIGN:
                return True
        except TypeError:  # not hashable
            return False
        return effect_free(fn, self._depth + 1)
