"""Conditions on rows, as in ``mass > 0.2 and loss < 1``: read as Python's syntax, and computed for all rows of a table at once.

Names are columns, or what stands after ``param.``, ``grad.`` or ``out.``; ``col("param.layers.0")`` where one is no name of Python. A
comparison with a missing value, or with one that cannot be computed, does not hold. Columns of numbers are arrays of numpy; other columns
are arrays of Python's objects, which compare as Python compares them.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from ...compiler.errors import QdrunError
from .run_table import Array, Large, RunTable

MOST_NODES = 500


class WhereError(QdrunError, ValueError):
    """A condition cannot be understood, or does not fit the values of a column."""


class _Unfit(Exception):
    """A value does not fit: why, and in which row."""

    def __init__(self, why: str, row: int) -> None:
        super().__init__(why)
        self.row = row


class Values(NamedTuple):
    """A value for each row, and in which rows there is one."""

    data: Array
    there: Array


Value = Callable[[RunTable], Values]
_COMPARE: dict[type[ast.cmpop], Callable[..., Any]] = {
    **{ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne},
}
_COMPUTE: dict[type[ast.operator], tuple[Callable[..., Any], Callable[..., Any]]] = {
    **{ast.Add: (operator.add, np.add), ast.Sub: (operator.sub, np.subtract), ast.Mult: (operator.mul, np.multiply)},
    **{ast.Div: (operator.truediv, np.true_divide), ast.Mod: (operator.mod, np.mod)},
    ast.FloorDiv: (operator.floordiv, np.floor_divide),
    # of floats: the power of whole numbers may take for ever
    ast.Pow: (math.pow, lambda a, b: np.power(a, b, dtype=np.float64)),
}
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    **{"abs": (abs, np.abs), "sqrt": (math.sqrt, np.sqrt), "log": (math.log, np.log), "log10": (math.log10, np.log10)},
    **{"exp": (math.exp, np.exp), "isnan": (math.isnan, np.isnan), "isfinite": (math.isfinite, np.isfinite)},
}
_PARTIAL = {np.true_divide, np.mod, np.floor_divide, _COMPUTE[ast.Pow][1], np.sqrt, np.log, np.log10, np.exp}
"""What gives a number that is not finite only where it cannot be computed, or is given one."""
EXACT = 2**31
"""Whole numbers below have products that 64 bits hold; larger ones are computed as Python's."""


class Condition:
    """A condition on the rows of a table.

    Args:
        text: of the condition.
        find: gives the column that a name means, or raises an error that says so.

    Attributes:
        names: the columns that it reads.

    Raises:
        WhereError: it is no condition.
    """

    def __init__(self, text: str, find: Callable[[str], str]) -> None:
        self.text, self.find, self.names = text, find, dict[str, None]()
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            at = getattr(error, "offset", None)
            why = "it is not complete" if at is None else f"{getattr(error, 'msg', error)}, at character {at}"
            raise self._refused(why) from None
        if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
            raise self._refused(f"it has more than {MOST_NODES} parts")
        self._value = self._of(tree.body)

    def _refused(self, what: str) -> WhereError:
        return WhereError(
            f"--where {self.text!r}: {what}\n"
            "  do: write comparisons of columns with numbers or texts, joined by and, or, not: 'mass > 0.2 and status == \"done\"'"
        )

    def places(self, table: RunTable) -> Array:
        """The rows for which it holds.

        Raises:
            WhereError: it does not fit their values.
        """
        try:
            found = self._value(table)
            wrong = _untrue(found)
            if wrong is not None:
                raise self._refused(f"it gives {wrong[0]}, which is neither true nor false")
            return np.flatnonzero(_truth(found))
        except _Unfit as error:
            raise self._refused(f"it does not fit trial {table.column('trial')[error.row]}: {error}") from None

    def _of(self, node: ast.expr) -> Value:
        """What a node gives. Nodes that are not known are refused."""
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as constant):
                return lambda table: _as_values([constant] * len(table))
            case ast.Name() | ast.Attribute():
                return self._column(self._dotted(node))
            case ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str() as name)], keywords=[]):
                return self._column(name)
            case ast.Call(func=ast.Name(id="len"), args=[argument], keywords=[]):
                column = self._named(self._dotted(argument))
                return lambda table: _applied(_length, None, _as_values(table.column(column)))
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
                return self._computed(FUNCTIONS[name], argument)
            case ast.BoolOp(op=sign, values=parts):
                join, parts = np.logical_and if isinstance(sign, ast.And) else np.logical_or, [self._of(part) for part in parts]
                return lambda table: _sure(reduce(join, [_truth(part(table)) for part in parts]))
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                part = self._of(inner)
                return lambda table: _sure(~_truth(part(table)))
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return self._computed((operator.neg, np.negative), inner)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _COMPUTE:
                return self._computed(_COMPUTE[type(sign)], left, right)
            case ast.Compare(left=left, ops=signs, comparators=others):
                pairs = [self._pair(*pair) for pair in zip(signs, [left, *others], others)]
                return lambda table: _sure(reduce(np.logical_and, [pair(table) for pair in pairs]))
            case _:
                raise self._refused(f"`{ast.unparse(node)}` is not allowed")

    def _computed(self, how: tuple[Callable[..., Any], Callable[..., Any] | None], *nodes: ast.expr) -> Value:
        parts = [self._of(node) for node in nodes]
        return lambda table: _applied(*how, *(part(table) for part in parts))

    def _pair(self, sign: ast.cmpop, left: ast.expr, right: ast.expr) -> Callable[[RunTable], Array]:
        """Where a comparison holds."""
        if isinstance(sign, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._refused("`is` is not allowed, but for `is None` and `is not None`")
            first = self._of(left)
            return lambda table: first(table).there == isinstance(sign, ast.IsNot)
        within = isinstance(sign, ast.In)
        if isinstance(sign, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple):
            first = self._of(left)
            equal = [self._computed((operator.eq, operator.eq), left, item) for item in right.elts]
            none = lambda table: _sure(np.zeros(len(table), bool))  # noqa: E731
            return lambda table: first(table).there & (_any(part(table) for part in (*equal, none)) == within)
        one = (lambda a, b: (a in b) is within) if isinstance(sign, ast.In | ast.NotIn) else _COMPARE[type(sign)]
        pair = self._computed((one, None if isinstance(sign, ast.In | ast.NotIn) else one), left, right)
        return lambda table: _truth(pair(table))

    def _dotted(self, node: ast.expr) -> str:
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            raise self._refused(f"`{ast.unparse(node)}` is not allowed")
        return ".".join([node.id, *reversed(parts)])

    def _named(self, name: str) -> str:
        return self.names.setdefault(column := self.find(name)) or column

    def _column(self, name: str) -> Value:
        column = self._named(name)

        def found(table: RunTable) -> Values:
            numbers = table.numbers(column)
            if numbers is not None:
                return Values(*numbers)
            values = table.column(column)
            for row, value in enumerate(values):
                if isinstance(value, list | dict | Large):
                    raise _Unfit(f"`{column}` is an array, of which only len({name}) is a number", row)
            return _as_values(values)

        return found


def _as_values(values: Sequence[Any]) -> Values:
    """Python's values: as an array of numbers where all are of one type."""
    kinds = set(map(type, values))
    there = np.fromiter((value is not None for value in values), bool, len(values))
    if kinds in ({float}, {bool}) or (kinds == {int} and -(2**63) <= min(values) and max(values) < 2**63):
        return Values(np.array(values, {float: np.float64, bool: bool, int: np.int64}[kinds.pop()]), there)
    data = np.empty(len(values), object)
    data[:] = values
    return Values(data, there)


def _sure(holds: Array) -> Values:
    return Values(holds, np.ones(len(holds), bool))


def _any(parts: Iterable[Values]) -> Array:
    return reduce(np.logical_or, map(_truth, parts))


def _untrue(values: Values) -> tuple[str, int] | None:
    """The first value that is neither true nor false, and its row."""
    if values.data.dtype != bool:
        for row in np.flatnonzero(values.there).tolist():
            value = values.data[row : row + 1].tolist()[0]
            if not isinstance(value, bool):
                return f"{value!r:.40}", row
    return None


def _truth(values: Values) -> Array:
    """Where values are true; a missing one is not."""
    wrong = _untrue(values)
    if wrong is not None:
        raise _Unfit(f"{wrong[0]} is neither true nor false", wrong[1])
    return values.there & np.where(values.there, values.data, False).astype(bool)


def _applied(scalar: Callable[..., Any], vector: Callable[..., Any] | None, *values: Values) -> Values:
    """An operation on values, where all of them are there. What cannot be computed, as 1 / 0, is missing.

    Args:
        scalar: it on Python's values.
        vector: it on arrays of numbers; None: it has none.
        values: its operands.
    """
    there = reduce(np.logical_and, [value.there for value in values])
    rows = np.flatnonzero(there)
    parts = [value.data[rows] for value in values]
    if vector is None or any(part.dtype == object for part in parts) or (vector is not scalar and any(map(_is_long, parts))):
        found, valid = _one_by_one(scalar, parts, rows)
    else:
        with np.errstate(all="ignore"):
            parts = [part.astype(np.int64) if part.dtype == bool and vector is not scalar else part for part in parts]
            found = vector(*parts)
            valid = np.ones(len(rows), bool)
            if vector in _PARTIAL:
                valid = np.isfinite(found) | ~reduce(np.logical_and, map(np.isfinite, parts))
                valid &= True if vector not in (np.mod, np.floor_divide) else parts[1] != 0
    data, known = np.zeros(len(there), found.dtype), np.zeros(len(there), bool)
    data[rows], known[rows] = found, valid
    return Values(data, known)


def _is_long(part: Array) -> bool:
    """Whether some are whole numbers that may have a product of more than 64 bits."""
    return part.dtype.kind == "i" and bool(len(part)) and not -EXACT < part.min() <= part.max() < EXACT


def _one_by_one(scalar: Callable[..., Any], parts: Sequence[Array], rows: Array) -> tuple[Array, Array]:
    """The operation on Python's values, one row after the other, and where it could be computed."""
    found, valid = np.empty(len(rows), object), np.ones(len(rows), bool)
    for k, one in enumerate(zip(*(part.tolist() for part in parts), strict=True)):
        try:
            found[k] = scalar(*one)
        except TypeError as error:
            raise _Unfit(str(error), int(rows[k])) from None
        except (ArithmeticError, ValueError):  # 1 / 0, sqrt(-1), log(0): no number, which fulfils nothing
            valid[k] = False
    kinds = set(map(type, found[valid]))
    return (np.where(valid, found, False).astype(bool) if kinds == {bool} else found), valid


def _length(value: Any) -> int:
    """Items of an array, or of one that is known by its shape; characters of a text."""
    return value[0] if isinstance(value, Large) else len(value)


__all__ = ["FUNCTIONS", "Condition", "WhereError"]
