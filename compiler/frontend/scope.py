"""Names inside a function that is being lowered: bindings, block scopes, frames of inlined functions."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import QdrunNameError
from ..ir.nodes import Block, Local
from .source import FunctionSource
from .syntax import ATOMIC_CODES
from .tensor import TensorRef


@dataclass(eq=False)
class Shared:
    """The content of a kernel-level variable between two tasks: it lives in memory (``ref`` has no axes)."""

    ref: TensorRef


@dataclass(eq=False)
class Recipe:
    """A kernel-level value of an earlier task that each later task computes again: cheap, and it reads no memory."""

    value: Any


@dataclass(eq=False)
class Binding:
    """What a name stands for.

    Attributes:
        value: a ``Local`` or ``MatrixLocal`` (a variable), a target (a parameter passed by reference), ``Shared``, ``Recipe``,
            or the value itself (assigned once, or known at compile time).
        readonly: why the name cannot be assigned; empty when it can.
        shared: where the variable came from at the start of the serial task that is being lowered.
        depth: how many run-time blocks (if, loop) of the frame were open when it was created.
    """

    name: str
    value: Any
    readonly: str = ""
    shared: Shared | None = None
    depth: int = 0


@dataclass(eq=False)
class LoopState:
    """One open loop. ``kind`` is parallel, serial or static; ``depth`` the number of run-time blocks around its body."""

    kind: str
    depth: int


@dataclass(eq=False)
class Frame:
    """One function that is being lowered: the kernel, or a function inlined into it.

    Attributes:
        source: the function.
        top: whether its statements stand at the top level of the kernel, where loops become parallel tasks.
        later: names that the statements from here on mention, one set for each open statement list.
        depth: the number of open run-time blocks.
        returned: the value of a return whose execution is certain.
        early: the locals that hold the result, when some return sits in a run-time if or loop.
    """

    source: FunctionSource
    top: bool = False
    scopes: list[dict[str, Binding]] = field(default_factory=lambda: [{}])
    loops: list[LoopState] = field(default_factory=list)
    later: list[set[str]] = field(default_factory=list)
    depth: int = 0
    returned: Any = None
    early: "EarlyReturn | None" = None
    body: Block = field(default_factory=list)
    stores: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.stores = count_stores(self.source)

    def find(self, name: str) -> Binding | None:
        """The innermost binding of a name, or None."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def bind(self, name: str, value: Any, readonly: str = "") -> Binding:
        """Create a binding in the innermost scope (it hides an outer one)."""
        binding = self.scopes[-1][name] = Binding(name, value, readonly, depth=self.depth)
        return binding

    @contextmanager
    def scope(self, runtime: bool = True) -> Iterator[None]:
        """A block whose new names end with it; ``runtime`` says that it may run never or many times."""
        self.scopes.append({})
        self.depth += runtime
        try:
            yield
        finally:
            self.scopes.pop()
            self.depth -= runtime

    @contextmanager
    def loop(self, kind: str) -> Iterator[LoopState]:
        """An open loop."""
        state = LoopState(kind, self.depth)
        self.loops.append(state)
        try:
            yield state
        finally:
            self.loops.pop()

    @contextmanager
    def mentions(self, statements: list[ast.stmt]) -> Iterator[None]:
        """While the first of ``statements`` is lowered: names that it and the others mention."""
        self.later.append({n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name)})
        try:
            yield
        finally:
            self.later.pop()


@dataclass(eq=False)
class EarlyReturn:
    """Where a return inside a run-time block puts its values: one local each, and how they make up the result."""

    locals: list[Local]
    like: Any


def count_stores(source: FunctionSource) -> Counter[str]:
    """How many places of a function may assign each name. A name with one place needs no mutable variable.

    A parameter that is assigned counts once more for the value that it comes with. A name handed to a call counts when the
    callee may write to it: an atomic, or a function that could take it by reference.
    """
    stores: Counter[str] = Counter()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AugAssign):
            _count(stores, node.target, 2)  # it reads the variable too: there is another assignment
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                _count(stores, target)
        elif isinstance(node, ast.AnnAssign):
            _count(stores, node.target)
        elif isinstance(node, ast.Call) and _may_write(source, node.func):
            for arg in [*node.args, *(k.value for k in node.keywords)]:
                _count(stores, arg, 2)
    return stores


def _count(stores: Counter[str], target: ast.expr, times: int = 1) -> None:
    """Count what an assignment to ``target`` changes: the name at its root (a change of a part needs a variable, too)."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            _count(stores, part, times)
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        target, times = target.value, 2
    if isinstance(target, ast.Name):
        stores[target.id] += times


def _may_write(source: FunctionSource, callee: ast.expr) -> bool:
    """Whether a call can change a variable that is handed to it: what cannot be looked up yet, may."""
    parts: list[str] = []
    while isinstance(callee, ast.Attribute):
        parts.append(callee.attr)
        callee = callee.value
    if not isinstance(callee, ast.Name):
        return True
    try:
        found = source.lookup(callee.id)
    except QdrunNameError:
        return True
    for part in reversed(parts):
        if not hasattr(found, part):
            return True
        found = getattr(found, part)
    if getattr(found, "__hash__", None) is None:
        return False
    return found in ATOMIC_CODES or hasattr(found, "__qd_func__")
