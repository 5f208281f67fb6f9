"""Splits a graph kernel into stages: straight work, which is a kernel of its own, loops that the device counts, and checkpoints.

A stage is the function with the statements of the stage alone. What is assigned in one stage has no value in another, but for values that
can be computed again: those of extents, arguments and literals.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import QdrunError, QdrunSyntaxError
from ...frontend.markers import static
from ...frontend.regions import checkpoint, graph_do_while
from ...frontend.source.parse import FunctionSource
from ...ir.nodes import Loc

ONCE_MORE = (ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Tuple, ast.IfExp)
"""Expressions that may be computed again in each stage that needs their value."""
BUILT_IN = (int, float, bool, min, max, abs, len, static)


@dataclass(frozen=True, eq=False)
class Work:
    """Statements that are one launch."""

    source: FunctionSource


@dataclass(frozen=True)
class Flag:
    """The number on the device that decides: a parameter, or a name outside of the kernel, and attributes of it.

    Attributes:
        use: the call that has it, for messages.
    """

    name: str
    attributes: tuple[str, ...]
    use: str
    loc: Loc


@dataclass(frozen=True, eq=False)
class Loop:
    """Stages that run once, and again while the flag is not zero. ``labels``: of the checkpoints inside."""

    flag: Flag
    body: tuple[Stage, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Pause:
    """Work after which the kernel pauses if the flag is not zero."""

    label: int
    flag: Flag
    body: tuple[Stage, ...]


Stage = Work | Loop | Pause


def split(source: FunctionSource, checkpoints: bool) -> tuple[Stage, ...] | None:
    """The stages of a graph kernel; None if it has no loop and no checkpoint.

    Args:
        source: of the kernel.
        checkpoints: the kernel may have some.

    Raises:
        QdrunSyntaxError: a stage is not written as it must be, the kernel returns, or a value passes from one stage to another.
    """
    splitter = _Splitter(source, checkpoints)
    drafts = splitter.drafts(source.tree.body, nested=False)
    if all(isinstance(d, _Draft) for d in drafts):
        return None
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Return):
            what = f"kernel `{source.name}` has stages, and returns here"
            raise QdrunSyntaxError(what, source.loc(node, source.name), "write the result to an ndarray or a field")
    _pass_values(source, list(_drafts_of(drafts)))
    return tuple(_finished(source, d) for d in drafts)


@dataclass(eq=False)
class _Draft:
    """The statements of one launch, until the values that it needs of others are known."""

    statements: list[ast.stmt]


class _Splitter:
    """Reads the statements of one kernel."""

    def __init__(self, source: FunctionSource, checkpoints: bool) -> None:
        self.source, self._checkpoints = source, checkpoints
        self._labels: list[int] = []

    def drafts(self, statements: Sequence[ast.stmt], nested: bool) -> list[Any]:
        """The stages of a list of statements. ``nested``: in a checkpoint, which has no others inside."""
        out: list[Any] = []
        for node in statements:
            loop = self._call(node.test, graph_do_while) if isinstance(node, ast.While) else None
            pause = self._call(node.items[0].context_expr, checkpoint) if isinstance(node, ast.With) else None
            if loop is not None and not nested:
                assert isinstance(node, ast.While)
                out.append(self._loop(node, loop))
            elif pause is not None and not nested:
                assert isinstance(node, ast.With)
                out.append(self._pause(node, pause))
            elif out and isinstance(out[-1], _Draft):
                out[-1].statements.append(node)
            else:
                out.append(_Draft([node]))
        return out

    def _loop(self, node: ast.While, call: ast.Call) -> Loop:
        if node.orelse:
            raise self._error("a loop with `else` cannot be used in a kernel", node, "write it after the loop")
        arguments = self._arguments(call, ("condition",))
        flag = self._flag(arguments["condition"], "qd.graph.do_while(..)")
        before = len(self._labels)
        body = self.drafts(node.body, nested=False)
        return Loop(flag, tuple(body), tuple(self._labels[before:]))

    def _pause(self, node: ast.With, call: ast.Call) -> Pause:
        if not self._checkpoints:
            hint = "write @qd.kernel(graph=True, checkpoints=True)"
            raise self._error(f"kernel `{self.source.name}` has a checkpoint, and no checkpoints=True", node, hint)
        arguments = self._arguments(call, ("cp_id", "yield_on"))
        label = self._value(arguments["cp_id"])
        if not isinstance(label, int) or isinstance(label, bool):
            raise self._error("the cp_id of a checkpoint is a number that is known here", call, "give a literal or an IntEnum")
        if label in self._labels:
            raise self._error(f"two checkpoints of kernel `{self.source.name}` have the cp_id {label!r}", call, "number them")
        self._labels.append(label)
        return Pause(
            label, self._flag(arguments["yield_on"], "qd.checkpoint(yield_on=..)"), tuple(self.drafts(node.body, True))
        )

    def _arguments(self, call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr]:
        """The arguments of a stage's call by name: each of ``names`` once."""
        given = dict(zip(names, call.args)) | {str(k.arg): k.value for k in call.keywords}
        if set(given) != set(names) or len(call.args) + len(call.keywords) != len(names):
            raise self._error(f"{ast.unparse(call.func)}() takes {', '.join(names)}", call, "give each of them once")
        return given

    def _flag(self, node: ast.expr, use: str) -> Flag:
        attributes: list[str] = []
        root = node
        while isinstance(root, ast.Attribute):
            attributes.insert(0, root.attr)
            root = root.value
        if not isinstance(root, ast.Name):
            what = f"{use} takes an ndarray or a field by its name, not `{ast.unparse(node)}`"
            raise self._error(what, node, "give a parameter, an attribute of one, or a field")
        return Flag(root.id, tuple(attributes), use, self.source.loc(node, self.source.name))

    def _call(self, node: ast.expr, marker: Any) -> ast.Call | None:
        """The call of a marker, if an expression is one."""
        return node if isinstance(node, ast.Call) and self._value(node.func) is marker else None

    def _value(self, node: ast.expr) -> Any:
        """The value of a literal, or of a name or an attribute outside of the kernel; None if there is none."""
        try:
            if isinstance(node, ast.Constant):
                return node.value
            if isinstance(node, ast.Attribute):
                return getattr(self._value(node.value), node.attr)
            return self.source.peek(node.id) if isinstance(node, ast.Name) else None
        except (QdrunError, AttributeError):
            return None

    def _error(self, what: str, node: ast.AST, hint: str) -> QdrunSyntaxError:
        return QdrunSyntaxError(what, self.source.loc(node, self.source.name), hint)


# ---- values that pass from stage to stage
def _drafts_of(stages: Iterable[Any]) -> Iterator[_Draft]:
    """All work, in the order of the source."""
    for stage in stages:
        if isinstance(stage, _Draft):
            yield stage
        else:
            yield from _drafts_of(stage.body)


def _pass_values(source: FunctionSource, drafts: list[_Draft]) -> None:
    """Have each stage compute again what it needs of earlier ones.

    Raises:
        QdrunSyntaxError: something cannot be computed again.
    """
    parameters = {p.name for p in source.parameters}
    everywhere = [name for d in drafts for name in _stored(d.statements)]
    again: dict[str, ast.stmt] = {}
    for draft in drafts:
        mine = set(_stored(draft.statements))
        foreign = set(everywhere) - mine - parameters
        needed = [n for s in draft.statements for n in ast.walk(s) if isinstance(n, ast.Name) and n.id in foreign]
        before: dict[str, ast.stmt] = {}
        for node in needed:
            _provide(source, node, again, before, foreign)
        for statement in draft.statements:
            name = _assigned(statement)
            if name and everywhere.count(name) == 1 and _is_repeatable(source, statement.value, parameters | again.keys()):  # type: ignore[attr-defined]
                again[name] = statement
        draft.statements[:0] = before.values()


def _provide(
    source: FunctionSource, node: ast.Name, again: dict[str, ast.stmt], before: dict[str, ast.stmt], foreign: set[str]
) -> None:
    """Add the statements that give a name its value, those that they need first."""
    if node.id in before:
        return
    statement = again.get(node.id)
    if statement is None:
        raise QdrunSyntaxError(
            f"`{node.id}` is assigned in another stage of kernel `{source.name}`, and has no value here: stages are launches of"
            " their own",
            source.loc(node, source.name),
            f"write `{node.id}` to an ndarray or a field, or assign it in this stage",
        )
    for inner in ast.walk(statement.value):  # type: ignore[attr-defined]
        if isinstance(inner, ast.Name) and inner.id in foreign:
            _provide(source, inner, again, before, foreign)
    before[node.id] = statement


def _stored(statements: list[ast.stmt]) -> list[str]:
    return [
        n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del))
    ]


def _assigned(statement: ast.stmt) -> str:
    """The name that a plain assignment gives a value; empty for any other statement."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ""
    target = statement.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def _is_repeatable(source: FunctionSource, value: ast.expr, known: Iterable[str]) -> bool:
    """Whether an expression has the same value in every stage: it reads no elements of arrays and calls nothing that may have effects."""
    local = set(source.fn.__code__.co_varnames) - set(known)
    for node in ast.walk(value):
        if isinstance(node, ast.Subscript):
            if not (isinstance(node.value, ast.Attribute) and node.value.attr == "shape"):
                return False
        elif isinstance(node, ast.Call):
            if node.keywords or _Splitter(source, False)._value(node.func) not in BUILT_IN:
                return False
        elif isinstance(node, ast.Name):
            if node.id in local:
                return False
        elif isinstance(node, ast.expr) and not isinstance(node, ONCE_MORE):
            return False
    return True


# ---- stages as functions
def _finished(source: FunctionSource, stage: Any) -> Stage:
    if isinstance(stage, _Draft):
        return Work(_part(source, stage.statements))
    return replace(stage, body=tuple(_finished(source, s) for s in stage.body))


def _part(source: FunctionSource, statements: list[ast.stmt]) -> FunctionSource:
    """The function with these statements alone. Other lines are empty: by its lines a kernel is known in caches."""
    tree = copy.copy(source.tree)
    tree.body = list(statements)
    head = source.tree.body[0].lineno - 2  # the tree was read under an added first line
    kept = {row for s in statements for row in range(s.lineno - 2, (s.end_lineno or s.lineno) - 1)}
    lines = tuple(text if row < head or row in kept else "\n" for row, text in enumerate(source.lines))
    return replace(source, tree=tree, lines=lines)
