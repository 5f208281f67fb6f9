"""A job of a notebook as a module: the definitions that its class uses, as the cells define them, in one file.

Workers, ``resume`` and ``rerun`` import files; the cells of a notebook are in none. IPython keeps the text of every cell that was run. A
definition is taken from there by its name, then those of the global names that it uses, and so on: functions, classes and kernels as
they were written, imports, and plain data by its present value. Everything else is refused by name.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import linecache
import math
import symtable
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..study.target import TargetError

SESSION = "__main__"
HEAD = '"""The job {name} of a notebook, with what it uses. Written by `qdrun.runner.submit`."""'
FOREIGN = frozenset(
    "! HTML SVG bash cmd file html javascript js latex markdown perl pypy python python2 python3 ruby script sh svg sx system"
    " writefile".split()
)
"""Cell magics whose body is not run in the session."""
PLAIN = "numbers, texts, and lists, tuples and dicts of these travel by their values"


@dataclass(frozen=True)
class Definition:
    """A statement of a cell that binds a name: the statement and its text."""

    node: ast.stmt
    text: str


@dataclass
class InteractiveSession:
    """What an interactive session has defined.

    Attributes:
        names: its global names.
        cells: the texts that were run, the latest last.
    """

    names: Mapping[str, Any]
    cells: Sequence[str]
    _parts: dict[str, str] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)

    def module(self, name: str) -> str:
        """The text of a module that defines a name of the session as the session does.

        Raises:
            TargetError: it uses something that is neither defined in a cell, nor imported, nor plain data; or its text is not known.
        """
        self._parts, self._begun = {}, set()
        self._add(name, name)
        lazy = ["from __future__ import annotations"] if self.names.get("annotations") is __future__.annotations else []
        return "\n\n".join([HEAD.format(name=name), *lazy, *self._parts.values()]) + "\n"

    def _add(self, name: str, user: str) -> None:
        """Add the definition of a name, after those that it needs itself. ``user``: the definition that uses it."""
        if name in self._begun or name not in self.names:  # of Python itself, or an error of the job when it runs
            return
        self._begun.add(name)
        if name not in vars(builtins) or self.names[name] is not vars(builtins)[name]:
            self._parts.setdefault(name, self._part(name, user))

    def _part(self, name: str, user: str) -> str:
        value = self.names[name]
        if isinstance(value, ModuleType):
            return f"import {value.__name__} as {name}" if name != value.__name__ else f"import {name}"
        found = self._definition(name, value)
        if found is not None and isinstance(found.node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            return self._with_needed(name, found)
        if (imported := _import_of(name, value, found)) is not None:
            return imported
        if (text := _literal(value)) is not None:
            return f"{name} = {text}"
        if (
            found is not None
            and isinstance(found.node, ast.Assign | ast.AnnAssign)
            and (_is_alias(found.node) or callable(value))
        ):
            return self._with_needed(name, found)
        if callable(value) and found is None:
            raise TargetError(
                f"the text of `{name}`, which {user} uses, is not known: it was not defined in a cell of a notebook\n"
                f"  do: write it into a file, and import it or name it: job.target=path/to/file.py:{user}"
            )
        raise TargetError(
            f"{user} uses `{name}`, a {type(value).__name__} of this session, which workers do not have\n"
            f"  do: make it a parameter of the job, compute it in `build`, or read it there from a file (self.data); {PLAIN}"
        )

    def _with_needed(self, name: str, found: Definition) -> str:
        if any(
            one.get_name() == name and one.is_referenced()
            for one in symtable.symtable(found.text, "<cell>", "exec").get_symbols()
        ):
            raise TargetError(
                f"`{name}` is made from an earlier `{name}` of the notebook, which is gone\n"
                "  do: give the two definitions different names"
            )
        for other in sorted(needed(found.text)):
            self._add(other, name)
        return found.text

    def _definition(self, name: str, value: Any) -> Definition | None:
        """The statement that has bound a name: of the cell in which the code of its value was compiled, else the latest one."""
        file = next((code.co_filename for code in _codes(value)), None)
        own = ["".join(linecache.getlines(file))] if file is not None else []
        for cell in (*own, *reversed(self.cells)):
            found = [part for part in _statements(cell) if name in _bound(part.node)]
            if found:
                return found[-1]
        return None


def session_now() -> InteractiveSession:
    """The session of this process. Outside of IPython it has no cells."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    cells = [] if shell is None else [str(text) for text in shell.history_manager.input_hist_parsed]
    return InteractiveSession(vars(sys.modules[SESSION]), cells)


def needed(text: str) -> set[str]:
    """The global names that a definition uses, wherever in it."""
    top = symtable.symtable(text, "<cell>", "exec")
    found = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    waiting = top.get_children()
    while waiting:
        scope = waiting.pop()
        found |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
        waiting += scope.get_children()
    return found


def _statements(cell: str) -> Iterator[Definition]:
    """Yield the statements of a cell, as IPython has translated it. The body of ``%%time`` and its like is Python, too."""
    try:
        tree = ast.parse(cell)
    except (SyntaxError, ValueError):
        return
    lines = cell.splitlines()
    for node in tree.body:
        if (body := _body_of_magic(node)) is not None:
            yield from _statements(body)
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
        yield Definition(node, textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno])))


def _body_of_magic(node: ast.stmt) -> str | None:
    """Return the cell below a magic such as ``%%time``, translated to Python; None for other statements and for other languages."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(attr="run_cell_magic"), [ast.Constant(str(magic)), _, ast.Constant(str(body))])):
            if magic in FOREIGN:
                return None
            from IPython.core.inputtransformer2 import TransformerManager  # nothing else translates cells

            return TransformerManager().transform_cell(body)
    return None


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement binds at the top of its cell."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def _codes(value: Any) -> Iterator[Any]:
    """The code of a function, of what it wraps, and of the methods of a class."""
    members = [value, *vars(value).values()] if isinstance(value, type) else [value]
    for member in members:
        if isinstance(member, type) and member is not value:
            continue
        function = getattr(member, "__func__", getattr(member, "fget", member))
        code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
        if code is not None and getattr(function, "__module__", SESSION) == SESSION:
            yield code


def _import_of(name: str, value: Any, found: Definition | None) -> str | None:
    """The import that binds a name: the cell's, or for what another one has imported (``import *``) one of its own."""
    if found is not None and isinstance(found.node, ast.ImportFrom) and found.node.module:
        origin = next((alias.name for alias in found.node.names if name == (alias.asname or alias.name)), None)
        return origin and f"from {found.node.module} import {origin} as {name}"
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and module != SESSION and isinstance(own, str) and own.isidentifier():
        if getattr(sys.modules.get(module), own, None) is value:
            return f"from {module} import {own} as {name}"
    return None


def _literal(value: Any) -> str | None:
    """Plain data as an expression with the same value; None for other values."""
    if type(value) is float and not math.isfinite(value):
        return f"float('{value}')"
    if type(value) is dict:
        pairs = [(_literal(name), _literal(inner)) for name, inner in value.items()]
        return None if any(None in pair for pair in pairs) else "{" + ", ".join(f"{a}: {b}" for a, b in pairs) + "}"
    if isinstance(value, list | tuple | set) and type(value) in (list, tuple, set):
        inner = [_literal(item) for item in value]
        if any(item is None for item in inner):
            return None
        text = "[" + ", ".join(map(str, inner)) + "]"
        return text if type(value) is list else f"{type(value).__name__}({text})"
    return repr(value) if value is None or type(value) in (bool, int, float, str, bytes) else None


def _is_alias(node: ast.Assign | ast.AnnAssign) -> bool:
    """Whether a statement gives a second name to something, as in ``real = qd.f64``."""
    value = node.value
    while isinstance(value, ast.Attribute):
        value = value.value
    return isinstance(value, ast.Name)


__all__ = ["SESSION", "InteractiveSession", "needed", "session_now"]
