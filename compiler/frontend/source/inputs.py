"""The inputs of a lowering outside of the kernel's own source: recorded while it runs, checked again before its result is reused.

A record is a list of paths: a name in a function, an argument, then attributes, items, calls of plain Python functions. Lowering is
deterministic, so if every path leads to a value of equal meaning (``tokens``), lowering again would give the same kernel. Looking again
runs the user's code only where it has no effect (``effects``); the record of a lowering that ran any other is not kept.

Objects that are known by their type alone (leaves) may only be passed on and asked for attributes. An expression that gives one and is
used in any other way is never crossed off in ``_pending``. The record is then incomplete, which ``refused`` says.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, BuiltinMethodType, ModuleType
from typing import Any

import numpy as np

from ..library import functions
from ..values.values import resolve
from .effects import attribute_is_plain, effect_free, is_literal
from .parse import FunctionSource, watched
from .tokens import NoToken, Path, Token, Tokens, is_leaf, is_ours


class Inputs:
    """The record of one lowering.

    Attributes:
        paths: where each value was found, in the order of the lookups.
        tokens: what each value means.
        refused: why the record is not complete; empty when it is.
    """

    def __init__(self, source: FunctionSource, args: Mapping[str, Any]) -> None:
        self.known = Tokens(source)
        self.paths: list[Path] = []
        self.tokens: list[Token] = []
        self.refused = ""
        self._values: dict[Path, Any] = {}
        self._pending: dict[int, ast.AST] = {}
        for name, spec in args.items():
            self._found(("arg", name), spec)

    # ---- what lowering reports
    def lookup(self, source: FunctionSource, kind: str, name: str, value: Any) -> None:
        """A function's free name, annotation or default was read."""
        number = self.known.number_of(source)
        if number is None:
            self.refuse(f"`{name}` of a function that is not known")
        else:
            self._found((kind, number, name), value, name if kind == "name" else "")

    def entered(self, source: FunctionSource) -> None:
        """The body of a function is lowered next."""
        if self.known.number_of(source) is None:
            self.refuse(f"the function `{source.name}`, which no path leads to")

    def attribute(self, base: Any, name: str, value: Any) -> Any:
        """``base.name`` is ``value``, which is handed on. Attributes of plain data and of our own classes follow from these."""
        if isinstance(base, type) and is_ours(base):
            return value
        if is_leaf(base) or isinstance(base, (ModuleType, type)) or _is_function(base):
            origin = self.known.origin.get(id(base))
            if origin is None:
                self.refuse(f"`.{name}` of a {type(base).__name__} that no path leads to")
            elif not attribute_is_plain(base, name):
                self.refuse(f"`.{name}` of a {type(base).__name__} runs Python code")
            else:
                self._found((*origin, ("attr", name)), value, name)
        return value

    def called(self, fn: Any, args: list[Any], keywords: Mapping[str, Any], value: Any) -> Any:
        """``fn(*args, **keywords)`` gave ``value`` at compile time; it is handed on."""
        if _is_pure(fn):
            return value
        origin = self.known.origin.get(id(fn))
        if origin is None or not all(map(is_literal, (*args, *keywords.values()))) or not effect_free(fn):
            self.refuse(f"a call of {getattr(fn, '__name__', fn)!r} while compiling")
        else:
            given = tuple(map(repr, args)), tuple((name, repr(x)) for name, x in keywords.items())
            self._found((*origin, ("call", given)), value)
        return value

    def produced(self, node: ast.AST, value: Any) -> None:
        """An expression gave a value."""
        if is_leaf(value):
            if id(node) in self._pending:
                self.refuse(f"line {getattr(node, 'lineno', '?')} uses a {type(value).__name__}")
            self._pending[id(node)] = node

    def consumed(self, node: ast.AST) -> None:
        """The value of the expression was passed on, or an attribute of it was recorded."""
        self._pending.pop(id(node), None)

    def refuse(self, why: str) -> None:
        """A value was read that cannot be recorded."""
        self.refused = self.refused or why

    @contextmanager
    def recording(self) -> Iterator[Inputs]:
        """Record the lookups of this thread."""
        with watched(self.lookup):
            yield self
        if self._pending:
            node = next(iter(self._pending.values()))
            self.refuse(f"line {getattr(node, 'lineno', '?')} uses an object that is known by its type alone")

    def found(self) -> list[tuple[Path, Any]]:
        """The values that were found, but for results of calls, each with its path."""
        return [(path, x) for path, x in self._values.items() if not any(isinstance(s, tuple) and s[0] == "call" for s in path)]

    # ---- looking again
    def replay(self, paths: list[Path], args: Mapping[str, Any]) -> bool:
        """Follow recorded paths instead of lowering; whether all of them lead somewhere."""
        try:
            for path in paths:
                if path not in self._values:
                    self._found(
                        path, self._follow(path, args), path[-1] if path[0] == "name" and len(path) == 3 else _last(path)
                    )
                if self.refused:
                    return False
        except Exception:  # whatever Python raises here, lowering will meet it and say so at the user's line
            return False
        return True

    def name_fields(self) -> None:
        """Name unnamed fields after the kernel's names of them, as lowering would do."""
        for value, name in self.known.given:
            resolve(value, name)

    def _follow(self, path: Path, args: Mapping[str, Any]) -> Any:
        if path in self._values:
            return self._values[path]
        kind, last = path[0], path[-1]
        if isinstance(last, tuple):
            base = self._follow(path[:-1], args)
            step, key = last
            if step == "attr" and (is_ours(type(base)) or attribute_is_plain(base, key)):
                return getattr(base, key)
            if step == "item" and type(base) in (tuple, list, dict):
                return base[key]
            if step != "call" or not effect_free(base):
                raise NoToken("a path through code that may have effects")
            return base(*map(ast.literal_eval, key[0]), **{name: ast.literal_eval(x) for name, x in key[1]})
        if kind == "arg":
            return args[path[1]]
        source = self.known.sources[path[1]]
        return READ[kind](source, path[2])

    def _found(self, path: Path, value: Any, name: str = "") -> None:
        if path in self._values:
            if self._values[path] is not value and path[0] != "annotation":
                self._again(path, value)
            return
        self._values[path] = value
        try:
            token = self.known.of(value, path, name)
        except Exception as e:  # a field without memory, a property that raises: lowering meets the same and says so
            self.refuse(f"{type(e).__name__}: {e}")
            return
        self.paths.append(path)
        self.tokens.append(token)

    def _again(self, path: Path, value: Any) -> None:
        """A second value at the same path (a property makes one each time) must mean the same."""
        try:
            same = self.tokens[self.paths.index(path)] == self.known.of(value, path)
        except (NoToken, ValueError):
            same = False
        if not same:
            self.refuse("a value that changed while the kernel was compiled")


def _last(path: Path) -> str:
    """The name that a value found at a path is called by."""
    last = path[-1]
    return str(last[1]) if isinstance(last, tuple) and last[0] == "attr" else ""


def _default(source: FunctionSource, name: str) -> Any:
    return next(p.default for p in source.parameters if p.name == name)


# how the roots of paths are read
READ = {"name": FunctionSource.lookup, "annotation": FunctionSource.annotation, "default": _default}


def _is_function(x: Any) -> bool:
    return inspect.isroutine(x) or (callable(x) and not is_ours(type(x)))


def _is_pure(fn: Any) -> bool:
    """Whether the result of a Python function follows from its arguments: one that kernels know, or a method of plain data."""
    try:
        if fn in functions.FOREIGN or fn in (len, range, tuple, list, str, zip, enumerate, reversed):
            return True
    except TypeError:
        return False
    if isinstance(fn, type) and issubclass(fn, np.generic):
        return True
    owner = getattr(fn, "__self__", None)
    builtin = isinstance(fn, (BuiltinFunctionType, BuiltinMethodType))
    return builtin and owner is not None and not isinstance(owner, (ModuleType, type)) and not is_leaf(owner)
