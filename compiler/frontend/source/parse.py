"""From a Python function to its syntax tree, with its location in the user's file and the meaning of its free names."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from types import FunctionType
from typing import Any

from ...errors import QdrunNameError, QdrunSyntaxError
from ...ir.nodes import Loc
from ...ir.threads import new_lock, once
from .texts import lines_of
from .trees import nodes_of

Watcher = Callable[["FunctionSource", str, str, Any], None]
_watcher: ContextVar[Watcher | None] = ContextVar("qdrun_watcher", default=None)


def _report(source: FunctionSource, kind: str, name: str, value: Any) -> None:
    """Report to the watcher what a name, an annotation or a default of a function means."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(source, kind, name, value)


@dataclass(frozen=True, eq=False)
class FunctionSource:
    """A plain Python function that is to be read as kernel language.

    Attributes:
        fn: the undecorated function.
        tree: its definition.
        file: the user's file.
        first: the number in the file of the first line of ``lines``.
        lines: the source lines of the function, its decorators included.
        given: the values of names that the function is given besides its own.
    """

    fn: Any
    tree: ast.FunctionDef
    file: str
    first: int
    lines: tuple[str, ...]
    given: Mapping[str, Any] = field(default_factory=dict)

    @once
    def nodes(self) -> list[ast.AST]:
        """Every node of the definition; see ``nodes_of``."""
        return nodes_of(self.tree)

    @property
    def name(self) -> str:
        """The function's own name."""
        return self.fn.__name__

    @property
    def wraps(self) -> bool:
        """Whether its integers are meant to wrap, as those of hashes and of sort keys: its module says so by ``__qd_wraps__``."""
        return bool(getattr(self.fn, "__globals__", {}).get("__qd_wraps__"))

    @once
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """The parameters in order, with their defaults."""
        return tuple(inspect.signature(self.fn).parameters.values())

    @once
    def _closure(self) -> dict[str, Any]:
        # from Python 3.14 on, a name that stands in annotations alone is a variable of the function that evaluates these
        makers = [getattr(self.fn, "__annotate__", None), self.fn]
        cells = [zip(f.__code__.co_freevars, f.__closure__ or ()) for f in makers if isinstance(f, FunctionType)]
        return dict(chain(*cells))

    def annotation(self, name: str) -> Any:
        """Resolve the annotation of a parameter (or "return"); None if there is none.

        Raises:
            QdrunNameError: it is a string that names something unknown.
        """
        found = self._annotation(name)
        _report(self, "annotation", name, found)
        return found

    def _annotation(self, name: str) -> Any:
        found = self.fn.__annotations__.get(name)
        if not isinstance(found, str):
            return found
        cells = {n: c.cell_contents for n, c in self._closure.items() if _is_filled(c)}
        try:
            return eval(found, self.fn.__globals__, cells)
        except (NameError, AttributeError) as e:
            hint = "put what it names where the function can see it"
            raise QdrunNameError(
                f"the annotation `{found}` of `{name}` cannot be evaluated: {e}", self.loc(self.tree), hint
            ) from e

    def loc(self, node: ast.AST, kernel: str = "") -> Loc:
        """The location of ``node`` in the user's file. A node over several lines is marked to the end of its first."""
        row = getattr(node, "lineno", 2) - 2  # the tree was read under an added first line
        text = self.lines[row] if 0 <= row < len(self.lines) else ""
        begin, end = min(getattr(node, "col_offset", 0), len(text)), getattr(node, "end_col_offset", None) or 0
        if not text.isascii():
            begin, end = _column(text, begin), _column(text, end)
        if getattr(node, "end_lineno", None) != getattr(node, "lineno", None):
            end = len(text.rstrip())
        return Loc(self.file, self.first + row, begin, max(end, begin + 1), text.rstrip("\n"), kernel)

    def lookup(self, name: str) -> Any:
        """The Python value that a name has outside the function: closure, module, builtins.

        Raises:
            QdrunNameError: there is none (or a closure variable that has no value yet).
        """
        found = self.peek(name)
        _report(self, "name", name, found)
        return found

    def default(self, parameter: inspect.Parameter) -> Any:
        """The default of one of the parameters."""
        _report(self, "default", parameter.name, parameter.default)
        return parameter.default

    def peek(self, name: str) -> Any:
        """As ``lookup``, without a report to the watcher."""
        if name in self.given:
            return self.given[name]
        if name in self._closure:
            try:
                return self._closure[name].cell_contents
            except ValueError:
                raise QdrunNameError(f"`{name}` has no value yet", hint="assign it before the kernel is called") from None
        if name in self.fn.__globals__:
            return self.fn.__globals__[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise QdrunNameError(
            f"`{name}` is not defined",
            hint="assign it before this line in the same or an enclosing block; a variable that is first assigned inside an if "
            "or a loop ends with that block",
        )


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """While this is open, ``watcher`` is told of every name that a function of this thread looks up."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _column(text: str, offset: int) -> int:
    """A byte offset of the parser as a character column."""
    return len(text.encode()[:offset].decode(errors="replace"))


def read_function(function: Callable[..., Any]) -> FunctionSource:
    """The source of a plain Python function (a method, or a function defined inside another, is as good).

    Raises:
        QdrunSyntaxError: it is not a ``def``, or its source cannot be found or is not what was loaded.
    """
    fn: Any = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(fn, FunctionType):
        raise QdrunSyntaxError(f"{fn!r} is not a Python function", hint="decorate a function written with `def`")
    for tokenised in (False, True):
        try:
            lines, first, file = lines_of(fn, tokenised)
        except (OSError, TypeError):
            raise QdrunSyntaxError(
                f"the source of `{fn.__name__}` cannot be found",
                hint="define it in a file (not in exec or an interactive prompt)",
            ) from None
        tree = _definition(fn, "".join(lines))
        if tree is not None:
            return FunctionSource(fn, tree, file, first, tuple(lines))
    is_lambda = fn.__name__ == "<lambda>"
    hint = "write it with `def`" if is_lambda else "write a plain `def` (no async, no lambda) on lines of its own"
    raise QdrunSyntaxError(f"`{fn.__name__}` is not written as a `def`", hint=hint)


_parsing = new_lock(sys.modules[__name__], "_parsing")
"""Python 3.11 counts the depth of trees per interpreter: two threads that parse at once end with a ``SystemError`` now and then."""


def _definition(fn: FunctionType, text: str) -> ast.FunctionDef | None:
    """Parse the lines of a function as they stand; an ``if`` above them makes any indentation legal and keeps the columns. None: they are
    not one ``def``.
    """
    try:
        lead = "if 1:\n" if text[:1].isspace() else "\n"
        with _parsing:
            body = ast.parse(lead + text).body
    except SyntaxError:
        body = []
    found = body[0].body[0] if body and isinstance(body[0], ast.If) else body[0] if body else None
    return found if isinstance(found, ast.FunctionDef) and found.name == fn.__name__ else None
