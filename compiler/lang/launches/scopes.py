"""The values that names have in a graph kernel and in the functions that it calls, before anything is lowered."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import QdrunError
from ...frontend.markers import static
from ...frontend.source.parse import FunctionSource

Find = Callable[[Sequence[Any]], Any]
"""Finds a value, from the arguments of the kernel."""
SIMPLE = (int, float, str, bool, type(None))


class UndecidedStages(Exception):
    """The stages of a kernel depend on its arguments, and there are none yet."""


class UnboundName(LookupError):
    """A name outside of a function has no value, or none yet."""


@dataclass(frozen=True)
class Fact:
    """A value that stages depend on.

    Attributes:
        depends: on arguments of the kernel.
        value: what it was.
    """

    find: Find
    depends: bool
    value: Any = None

    def holds(self, arguments: Sequence[Any]) -> bool:
        """Whether it has this value with other arguments."""
        try:
            now = self.find(arguments)
        except (AttributeError, LookupError):
            return False
        if isinstance(now, SIMPLE):
            return type(now) is type(self.value) and now == self.value
        if getattr(now, "__qd_func__", None) is not None:  # a method is another object each time
            owners = (getattr(x, "__self__", None) for x in (now, self.value))
            return now.__qd_func__ is getattr(self.value, "__qd_func__", None) and next(owners) is next(owners)
        return now is self.value


class _Names(dict[str, Any]):
    """The names of a scope for an expression that Python evaluates."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, name: str) -> Any:
        return self._find(name)


@dataclass(frozen=True, eq=False)
class FunctionScope:
    """A kernel, or a function that it calls.

    Attributes:
        parameters: how the value of each is found.
    """

    source: FunctionSource
    parameters: Mapping[str, Find]

    @staticmethod
    def of_kernel(source: FunctionSource) -> FunctionScope:
        """The scope of a kernel: its parameters are its arguments."""

        def found(position: int) -> Find:
            return lambda arguments: arguments[position]

        return FunctionScope(source, {p.name: found(k) for k, p in enumerate(source.parameters)})

    def of_call(self, callee: Any, call: ast.Call) -> FunctionScope | None:
        """The scope of a function that is called here; None: the arguments do not fit."""
        source: FunctionSource = callee.__qd_func__
        bound = [callee.__self__] if getattr(callee, "__self__", None) is not None else []
        places = [p for p in source.parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        if len(places) != len(source.parameters) or len(bound) + len(call.args) > len(places):
            return None
        if any(isinstance(a, ast.Starred) for a in call.args):
            return None
        found: dict[str, Find] = {p.name: lambda _, value=p.default: value for p in places if p.default is not p.empty}
        found |= {p.name: lambda _, value=value: value for p, value in zip(places, bound)}
        given = [*zip((p.name for p in places[len(bound) :]), call.args), *((str(k.arg), k.value) for k in call.keywords)]
        found |= {name: lambda arguments, node=node: self.value(node, arguments) for name, node in given}
        return FunctionScope(source, found) if found.keys() == {p.name for p in places} else None

    def value(self, node: ast.expr, arguments: Sequence[Any]) -> Any:
        """The value of a literal, a name, an attribute.

        Raises:
            LookupError: it has none before the kernel runs.
            AttributeError: there is no such attribute.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._named(node.id, arguments)
        if isinstance(node, ast.Attribute):
            return getattr(self.value(node.value, arguments), node.attr)
        raise LookupError(ast.unparse(node))

    def _named(self, name: str, arguments: Sequence[Any]) -> Any:
        if name in self.parameters:
            return self.parameters[name](arguments)
        if name in self.source.fn.__code__.co_varnames:
            raise LookupError(name)
        try:
            return self.source.peek(name)
        except QdrunError as e:
            raise UnboundName(name) from e

    def constant(self, node: ast.expr) -> Any:
        """The value of what does not depend on arguments; None if it does, or there is none."""
        try:
            return None if self._depends(node) else self.value(node, ())
        except (AttributeError, LookupError):
            return None

    def fact(self, node: ast.expr) -> Fact:
        """The value of a literal, a name, an attribute."""
        return Fact(lambda arguments: self.value(node, arguments), self._depends(node))

    def is_static(self, test: ast.expr) -> bool:
        """Whether a condition is ``qd.static(..)``."""
        return isinstance(test, ast.Call) and len(test.args) == 1 and self.constant(test.func) is static

    def truth(self, test: ast.expr) -> Fact:
        """Whether a condition that ``is_static`` holds."""
        assert isinstance(test, ast.Call)
        expression = ast.Expression(test.args[0])
        code = compile(ast.fix_missing_locations(expression), self.source.file, "eval")

        def find(arguments: Sequence[Any]) -> bool:
            names = _Names(lambda name: self._named(name, arguments))
            return bool(eval(code, {"__builtins__": builtins}, names))

        return Fact(find, self._depends(test.args[0]))

    def _depends(self, node: ast.expr) -> bool:
        """Whether the value of an expression depends on parameters."""
        return any(isinstance(n, ast.Name) and n.id in self.parameters for n in ast.walk(node))
