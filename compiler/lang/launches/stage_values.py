"""Values that pass from one stage of a graph kernel to another: they are computed again, or refused."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable

from ...errors import QdrunError, QdrunSyntaxError
from ...frontend.markers import static
from ...frontend.source.parse import FunctionSource

ONCE_MORE = (ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Tuple, ast.IfExp)
"""Expressions that may be computed again in each stage that needs their value."""
BUILT_IN = (int, float, bool, min, max, abs, len, static)


def pass_values(source: FunctionSource, kernel: str, stages: list[list[ast.stmt]]) -> None:
    """Have each stage of a function compute again what it needs of earlier ones.

    Args:
        source: of the function.
        kernel: the name of the kernel, for messages.
        stages: the statements of each, which are added to.

    Raises:
        QdrunSyntaxError: something cannot be computed again.
    """
    parameters = {p.name for p in source.parameters}
    everywhere = [name for statements in stages for name in _stored(statements)]
    again: dict[str, ast.Assign] = {}
    for statements in stages:
        foreign = set(everywhere) - set(_stored(statements)) - parameters
        before: dict[str, ast.stmt] = {}
        for statement in statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and node.id in foreign:
                    _provide(source, kernel, node, again, before, foreign)
        for statement in statements:
            name = _assigned(statement)
            if name and everywhere.count(name) == 1 and isinstance(statement, ast.Assign):
                known = parameters | again.keys()
                if is_repeatable(source, statement.value, known):
                    again[name] = statement
        statements[:0] = before.values()


def _provide(
    source: FunctionSource,
    kernel: str,
    node: ast.Name,
    again: dict[str, ast.Assign],
    before: dict[str, ast.stmt],
    foreign: set[str],
) -> None:
    """Add the statements that give a name its value, those that they need first."""
    if node.id in before:
        return
    statement = again.get(node.id)
    if statement is None:
        raise QdrunSyntaxError(
            f"`{node.id}` is assigned in another stage of kernel `{kernel}`, and has no value here: stages are launches of their own",
            source.loc(node, kernel),
            f"write `{node.id}` to an ndarray or a field, or assign it in this stage",
        )
    for inner in ast.walk(statement.value):
        if isinstance(inner, ast.Name) and inner.id in foreign:
            _provide(source, kernel, inner, again, before, foreign)
    before[node.id] = statement


def _stored(statements: Iterable[ast.stmt]) -> list[str]:
    names = (n for s in statements for n in ast.walk(s) if isinstance(n, ast.Name))
    return [n.id for n in names if isinstance(n.ctx, (ast.Store, ast.Del))]


def _assigned(statement: ast.stmt) -> str:
    """The name that a plain assignment gives a value; empty for any other statement."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ""
    target = statement.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def is_repeatable(source: FunctionSource, value: ast.expr, known: Container[str]) -> bool:
    """Whether an expression has the same value in every stage: it reads no elements of arrays and calls nothing that may have effects.

    ``known``: variables of the function that have the same value in every stage.
    """
    local = {name for name in source.fn.__code__.co_varnames if name not in known}
    for node in ast.walk(value):
        if isinstance(node, ast.Subscript):
            if not (isinstance(node.value, ast.Attribute) and node.value.attr == "shape"):
                return False
        elif isinstance(node, ast.Call):
            if node.keywords or not _is_built_in(source, node.func):
                return False
        elif isinstance(node, ast.Name):
            if node.id in local:
                return False
        elif isinstance(node, ast.expr) and not isinstance(node, ONCE_MORE):
            return False
    return True


def _is_built_in(source: FunctionSource, node: ast.expr) -> bool:
    """Whether a callee is one of ``BUILT_IN``."""
    try:
        if isinstance(node, ast.Name):
            return source.peek(node.id) in BUILT_IN
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return getattr(source.peek(node.value.id), node.attr) in BUILT_IN
    except (QdrunError, AttributeError, TypeError):
        pass
    return False
