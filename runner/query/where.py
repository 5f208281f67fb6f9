"""Conditions on rows, as in ``mass > 0.2 and loss < 1``: read as Python's syntax, and evaluated by this file alone.

Names are columns, or what stands after ``param.``, ``grad.`` or ``out.``; ``col("param.layers.0")`` where one is no name of Python. A
comparison with a missing value does not hold.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...compiler.errors import QdrunError

Row = Mapping[str, Any]
Value = Callable[[Row], Any]
MOST_NODES = 500


class WhereError(QdrunError, ValueError):
    """A condition cannot be understood, or does not fit the values of a column."""


_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    **{ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne},
    **{ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b},
}
_COMPUTE: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.Mod: operator.mod, ast.FloorDiv: operator.floordiv},
    ast.Pow: lambda a, b: float(a) ** float(b),  # of floats: the power of whole numbers may take for ever
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{"abs": abs, "sqrt": math.sqrt, "log": math.log, "log10": math.log10, "exp": math.exp},
    **{"isnan": math.isnan, "isfinite": math.isfinite},
}


def condition(text: str, find: Callable[[str], str]) -> Callable[[Row], bool]:
    """A condition as a function of a row.

    Args:
        text: of the condition.
        find: gives the column that a name means, or raises an error that says so.

    Raises:
        WhereError: it is no condition. Evaluated for a row: it does not fit the row's values.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        at = getattr(error, "offset", None)
        raise _refused(
            text, "it is not complete" if at is None else f"{getattr(error, 'msg', error)}, at character {at}"
        ) from None
    if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
        raise _refused(text, f"it has more than {MOST_NODES} parts")
    value = _Reader(text, find).value(tree.body)

    def holds(row: Row) -> bool:
        try:
            found = value(row)
        except TypeError as error:
            raise _refused(text, f"it does not fit trial {row.get('trial')}: {error}") from None
        except (ArithmeticError, ValueError):  # 1 / 0, sqrt(-1), log(0): no number, which fulfils nothing
            return False
        if found is None or isinstance(found, bool):
            return bool(found)
        raise _refused(text, f"it gives {found!r:.40}, which is neither true nor false")

    return holds


def _refused(text: str, what: str) -> WhereError:
    return WhereError(
        f"--where {text!r}: {what}\n"
        "  do: write comparisons of columns with numbers or texts, joined by and, or, not: 'mass > 0.2 and status == \"done\"'"
    )


class _Reader:
    """Turns the nodes of a condition into functions of a row; those that it does not know are refused."""

    def __init__(self, text: str, find: Callable[[str], str]) -> None:
        self.text, self.find = text, find

    def value(self, node: ast.expr) -> Value:
        """What a node gives for a row; None: it is missing."""
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as constant):
                return lambda row: constant
            case ast.Name() | ast.Attribute():
                return self._column(self._dotted(node))
            case ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str() as name)], keywords=[]):
                return self._column(name)
            case ast.Call(func=ast.Name(id="len"), args=[argument], keywords=[]):
                column = self.find(self._dotted(argument))
                return lambda row: None if (found := row.get(column)) is None else _length(found)
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
                function, inner = FUNCTIONS[name], self.value(argument)
                return lambda row: None if (found := inner(row)) is None else function(found)
            case ast.BoolOp(op=ast.And(), values=parts):
                parts = [self.value(part) for part in parts]
                return lambda row: all(self._truth(part(row)) for part in parts)
            case ast.BoolOp(op=ast.Or(), values=parts):
                parts = [self.value(part) for part in parts]
                return lambda row: any(self._truth(part(row)) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                part = self.value(inner)
                return lambda row: not self._truth(part(row))
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                part = self.value(inner)
                return lambda row: None if (found := part(row)) is None else -found
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _COMPUTE:
                return self._binary(_COMPUTE[type(sign)], self.value(left), self.value(right), None)
            case ast.Compare(left=left, ops=signs, comparators=others):
                return self._chain(self.value(left), signs, [self.value(other) for other in others])
            case ast.List(elts=items) | ast.Tuple(elts=items):
                parts = [self.value(item) for item in items]
                return lambda row: [part(row) for part in parts]
            case _:
                raise _refused(self.text, f"`{ast.unparse(node)}` is not allowed")

    def _truth(self, found: Any) -> bool:
        if found is None or isinstance(found, bool):
            return bool(found)
        raise TypeError(f"{found!r:.40} is neither true nor false")

    def _chain(self, first: Value, signs: Sequence[ast.cmpop], others: Sequence[Value]) -> Value:
        pairs = []
        for sign, left, right in zip(signs, [first, *others], others):
            if isinstance(sign, ast.Is | ast.IsNot):
                pairs.append(self._missing(left, right, isinstance(sign, ast.IsNot)))
            else:
                pairs.append(self._binary(_COMPARE[type(sign)], left, right, False))
        return pairs[0] if len(pairs) == 1 else lambda row: all(pair(row) for pair in pairs)

    @staticmethod
    def _missing(left: Value, right: Value, there: bool) -> Value:
        return lambda row: (left(row) is right(row)) is not there

    @staticmethod
    def _binary(function: Callable[[Any, Any], Any], left: Value, right: Value, missing: Any) -> Value:
        def found(row: Row) -> Any:
            a, b = left(row), right(row)
            return missing if a is None or b is None else function(a, b)

        return found

    def _dotted(self, node: ast.expr) -> str:
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            raise _refused(self.text, f"`{ast.unparse(node)}` is not allowed")
        return ".".join([node.id, *reversed(parts)])

    def _column(self, name: str) -> Value:
        column = self.find(name)

        def found(row: Row) -> Any:
            value = row.get(column)
            if isinstance(value, list | tuple | dict):
                raise TypeError(f"`{column}` is an array, of which only len({name}) is a number")
            return value

        return found


def _length(value: Any) -> int:
    """Items of an array, or of one that is known by its shape (a tuple); characters of a text."""
    return value[0] if isinstance(value, tuple) else len(value)


__all__ = ["FUNCTIONS", "WhereError", "condition"]
