"""Names inside a function that is being lowered: bindings, block scopes, frames of inlined functions."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...errors import QdrunNameError, QdrunTypeError
from ...ir.nodes import Local
from ...ir.threads import once
from ..advice import after_loop
from ..markers import ATOMIC_CODES, Ref, Template, atomic_cas
from ..source.parse import FunctionSource
from ..source.trees import nodes_in, nodes_of
from ..values.tensor import TensorRef
from ..values.values import StructForm


@dataclass(eq=False)
class Temporary:
    """The content of a kernel-level variable between two tasks: it lives in memory (``ref`` has no axes)."""

    ref: TensorRef


@dataclass(eq=False)
class Rematerialized:
    """A kernel-level value of an earlier task that each later task computes again: cheap, and it reads no memory."""

    value: Any


@dataclass(eq=False)
class Binding:
    """The binding of a name.

    Attributes:
        value: a ``Local``, ``MatrixLocal`` or ``StructVar`` (a variable), a target (a parameter passed by reference), ``Temporary``,
            ``Rematerialized``, or the value itself (assigned once, or known at compile time).
        readonly: why the name cannot be assigned; empty if it can.
        temporary: the origin of the variable at the start of the present serial task.
        depth: how many run-time blocks (if, loop) of the frame were open when it was created.
        stale: an index of a loop has this name, too. Python's variable would hold the last index.
    """

    name: str
    value: Any
    readonly: str = ""
    temporary: Temporary | None = None
    depth: int = 0
    stale: bool = False


@dataclass(eq=False)
class StructVar:
    """A variable of a struct type: a variable for each member, which tasks pass on like any other."""

    form: StructForm
    members: dict[str, Binding]


@dataclass(eq=False)
class LoopState:
    """One open loop.

    Attributes:
        kind: parallel, serial or static.
        depth: the number of run-time blocks around its body.
        joined: of an unrolled loop: its iterations stand in one block, which a run-time condition may leave.
        left: how it was left under one; the local says whether by ``break``.
    """

    kind: str
    depth: int
    joined: bool = False
    left: set[str] = field(default_factory=set)
    broken: Local | None = None


@dataclass(eq=False)
class Frame:
    """One function that is being lowered: the kernel, or a function inlined into it.

    Attributes:
        source: the function.
        top: whether its statements stand at the top level of the kernel, where loops become parallel tasks.
        later: for each open statement list, where each name is last mentioned, and how far lowering has come.
        depth: the number of open run-time blocks.
        returned: the value of a return whose execution is certain.
        early: the locals that hold the result, when some return sits in a run-time if or loop.
    """

    source: FunctionSource
    top: bool = False
    scopes: list[dict[str, Binding]] = field(default_factory=lambda: [{}])
    loops: list[LoopState] = field(default_factory=list)
    later: list[tuple[dict[str, int], int]] = field(default_factory=list)
    depth: int = 0
    returned: Any = None
    early: EarlyReturn | None = None

    @once
    def stores(self) -> Counter[str]:
        """The number of places of the function that may assign each name."""
        return count_stores(self)

    @once
    def assigned(self) -> frozenset[str]:
        """The names that the function assigns, those of loop indices among them."""
        loops = [n.target for n in self.source.nodes if isinstance(n, ast.For)]
        return frozenset(self.stores) | {n.id for n in nodes_in(loops) if isinstance(n, ast.Name)}

    @once
    def hidden(self) -> frozenset[str]:
        """Names whose assignment reads an element of what has the name outside: `F = g(F[i])`."""
        found = set()
        for node in (n for n in self.source.nodes if isinstance(n, ast.Assign)):
            read = {n.value.id for n in nodes_of(node.value) if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name)}
            found |= read & {n.id for target in node.targets for n in nodes_of(target) if isinstance(n, ast.Name)}
        return frozenset(found)

    @once
    def has_methods_called(self) -> frozenset[str]:
        """The names of which a method is called, or a method of a part: a method may change the struct that it is called on."""
        calls = [n.func for n in self.source.nodes if isinstance(n, ast.Call)]
        return frozenset(_root(f.value) for f in calls if isinstance(f, ast.Attribute))

    def find(self, name: str) -> Binding | None:
        """The innermost binding of a name, or None."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def hide(self, node: ast.For) -> None:
        """Mark the variables that a loop's indices hide, whose values afterwards are not those of Python's variables.

        Raises:
            QdrunNameError: a loop around this one reads such a variable first.
        """
        for name in [n.id for n in nodes_of(node.target) if isinstance(n, ast.Name)]:
            binding = self.find(name)
            if binding is None or binding.stale:
                continue
            binding.stale = True
            around = [n for n in self.source.nodes if isinstance(n, (ast.For, ast.While)) and n is not node]
            if any(_reads_first(n.body, name) and any([inner is node for inner in nodes_of(n)]) for n in around):
                raise QdrunNameError(
                    f"`{name}` is a variable, which the index of this loop would change", hint=after_loop(name)
                )

    def renew(self, name: str) -> None:
        """Take a variable's mark away where it is assigned in the block that made it."""
        binding = self.find(name)
        if binding is not None and self.depth <= binding.depth:
            binding.stale = False

    def names(self) -> list[str]:
        """Every name that is bound here, outermost first."""
        return list(dict.fromkeys(name for scope in self.scopes for name in scope))

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

    def wanted(self) -> set[str]:
        """The names that the statement that is being lowered, or a later one, mentions."""
        return {name for last, position in self.later for name, at in last.items() if at >= position}

    @contextmanager
    def mentions(self, last: dict[str, int], position: int) -> Iterator[None]:
        """While a statement is lowered: where in its list each name is last mentioned, and where the statement stands."""
        self.later.append((last, position))
        try:
            yield
        finally:
            self.later.pop()


def _reads_first(statements: list[ast.stmt], name: str) -> bool:
    """Whether the first mention of a name is a read. An assignment reads its right-hand side first."""
    for s in statements:
        parts: list[ast.AST | None] = [s]
        if isinstance(s, (ast.Assign, ast.AnnAssign)):
            parts = [s.value, s]
        found = [n for n in nodes_in(filter(None, parts)) if isinstance(n, ast.Name) and n.id == name]
        first = min(found, key=lambda n: (n.lineno, n.col_offset), default=None)
        if first is not None:
            return isinstance(first.ctx, ast.Load) or isinstance(s, ast.AugAssign)
    return False


def last_mentions(statements: list[ast.stmt]) -> dict[str, int]:
    """The position of the last statement that mentions each name."""
    return {n.id: k for k, s in enumerate(statements) for n in nodes_of(s) if isinstance(n, ast.Name)}


@dataclass(eq=False)
class EarlyReturn:
    """The destination of a return inside a run-time block: a local for each value, and the structure of the result."""

    locals: list[Local]
    like: Any


def count_stores(frame: Frame) -> Counter[str]:
    """Count the places of a function that may assign each name. A name with one place needs no mutable variable.

    A change of a part, an augmented assignment, and a call that could take the name by reference count twice: there is another
    place that gave the name its first value. A change of an item counts under ``name[]`` as well.
    """
    stores: Counter[str] = Counter()
    for node in frame.source.nodes:
        if isinstance(node, _ASSIGNING):
            _count_assigned(stores, node)
        elif isinstance(node, ast.Call):
            for arg in _written_arguments(frame, node):
                _count(stores, arg, 2)
    return stores


def assigned_names(statements: list[ast.stmt]) -> set[str]:
    """The names that some statements, or those inside of them, assign, or of which they change a part."""
    stores: Counter[str] = Counter()
    for node in nodes_in(statements):
        if isinstance(node, _ASSIGNING):
            _count_assigned(stores, node)
    return set(stores)


_ASSIGNING = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)


def _count_assigned(stores: Counter[str], node: ast.AST) -> None:
    if isinstance(node, ast.AugAssign):
        _count(stores, node.target, 2)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            _count(stores, target)
    elif isinstance(node, ast.AnnAssign):
        _count(stores, node.target)
    elif isinstance(node, ast.NamedExpr):
        _count(stores, node.target, 2)


def _count(stores: Counter[str], target: ast.expr, times: int = 1) -> None:
    """Count what an assignment to ``target`` changes: the name at its root."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            _count(stores, part, times)
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        items, target, times = isinstance(target, ast.Subscript), target.value, 2
        if items and isinstance(target, ast.Name):
            stores[f"{target.id}[]"] += 1
    if isinstance(target, ast.Name):
        stores[target.id] += times


def _root(node: ast.expr) -> str:
    """The name that an attribute or an element belongs to; "" for anything else."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _written_arguments(frame: Frame, call: ast.Call) -> list[ast.expr]:
    """The arguments that a call may change. A callee that cannot be looked up yet may change all of them."""
    everything = [*call.args, *(k.value for k in call.keywords)]
    known, callee = _callee(frame, call.func)
    if not known:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "fill":
            everything.append(call.func.value)
        return everything
    source = getattr(callee, "__qd_func__", None)
    if isinstance(source, FunctionSource):
        names = [p.name for p in source.parameters][hasattr(callee, "__self__") :]
        pairs = [*zip(names, call.args), *((k.arg, k.value) for k in call.keywords)]
        return [arg for name, arg in pairs if name and is_template(source.annotation(name))]
    if source is not None:
        return everything
    try:
        return call.args[:1] if callee in ATOMIC_CODES or callee is atomic_cas else []
    except TypeError:  # not hashable, so no atomic
        return []


def is_template(annotation: object) -> bool:
    """Whether a parameter with this annotation is passed by reference."""
    return annotation is Template or isinstance(annotation, (Template, Ref))


def _callee(frame: Frame, node: ast.expr) -> tuple[bool, Any]:
    """Whether a callee can be looked up before the body is lowered, and what it is."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return False, None
    binding = frame.find(node.id)
    try:
        found = frame.source.lookup(node.id) if binding is None else binding.value
    except QdrunNameError:
        return False, None
    for part in reversed(parts):
        try:
            found = getattr(found, part)
        except (AttributeError, QdrunTypeError):  # a name that is refused says so where it is used
            return False, None
    return True, found
