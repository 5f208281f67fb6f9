"""Statements about ``qd.simt.Tile16x16`` and its like: slices of arrays that a tile is read from and written to, outer products.

====================================  ===========================================
``t[:] = x[i:j, k:l]``                ``t._load(x, i, j, k, l)``
``t[:] = x[n, i:j, k:l]``             ``t._load_of(x, n, i, j, k, l)``
``x[i:j, k:l] = t``                   ``t._store(x, i, j, k, l)``, or ``_store_of``
``t -= outer(a, b)``                  ``t._subtract(a, b)``
``x[i:j, k]``, as an argument of it   ``t._column(x, i, j, k)``, or ``_column_of``
====================================  ===========================================
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...errors import QdrunTypeError
from .trees import nodes_of

Is = Callable[[ast.expr], bool]


def assignment(node: ast.Assign, is_tile: Is) -> ast.Call | None:
    """The call that an assignment to or from a tile is; None: it is another one.

    Raises:
        QdrunTypeError: the other side is no slice of an array.
    """
    target = node.targets[0]
    if len(node.targets) != 1 or not isinstance(target, ast.Subscript):
        return None
    if is_tile(target.value) and isinstance(target.slice, ast.Slice):
        _check_whole(target.slice)
        part = _part(node.value, 2)
        if part is None:
            raise QdrunTypeError(
                "a tile is read from a part of an array, by two slices", hint="write t[:] = x[i : i + 16, j : j + 16]"
            )
        return _call(node, target.value, "_load", part)
    if is_tile(node.value):
        part = _part(target, 2)
        if part is None:
            raise QdrunTypeError(
                "a tile is written to a part of an array, by two slices", hint="write x[i : i + 16, j : j + 16] = t"
            )
        return _call(node, node.value, "_store", part)
    return None


def update(node: ast.AugAssign, is_tile: Is, is_outer: Is) -> ast.Call | None:
    """The call that ``t -= outer(a, b)`` is; None: the target is no tile.

    Raises:
        QdrunTypeError: another update of a tile.
    """
    if not is_tile(node.target):
        return None
    product = node.value
    if not isinstance(node.op, ast.Sub) or not isinstance(product, ast.Call) or not is_outer(product.func):
        raise QdrunTypeError(
            "tiles have no other arithmetic than t -= qd.outer(a, b)", hint="compute with t.r, this lane's row"
        )
    if len(product.args) != 2 or product.keywords:
        raise QdrunTypeError("outer() takes two vectors, of which each lane gives an element")
    given: list[ast.expr] = []
    for x in product.args:
        column = _part(x, 1)
        given.append(x if column is None else _call(node, node.target, "_column", column))
    return _call(node, node.target, "_subtract", given)


def _check_whole(part: ast.Slice) -> None:
    if part.lower is not None or part.upper is not None or part.step is not None:
        raise QdrunTypeError("a tile is written as a whole", hint="write t[:] = x[i : i + 16, j : j + 16]")


def _part(node: ast.expr, slices: int) -> list[ast.expr] | None:
    """The array, what comes before the first slice, and the ends of the slices and the last index; None: it is no such part.

    Raises:
        QdrunTypeError: a slice has a step, or lacks an end.
    """
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return None
    index = node.slice.elts
    kinds = [isinstance(x, ast.Slice) for x in index]
    wanted = [True, True] if slices == 2 else [True, False]
    if kinds not in (wanted, [False, *wanted]):
        return None
    out: list[ast.expr] = [node.value]
    for x in index:
        if not isinstance(x, ast.Slice):
            out.append(x)
            continue
        if x.lower is None or x.upper is None or x.step is not None:
            raise QdrunTypeError("a part of an array for a tile has both ends and no step", hint="write x[i : i + 16, ..]")
        out += [x.lower, x.upper]
    return out


def _call(at: ast.stmt, tile: ast.expr, name: str, args: list[ast.expr]) -> ast.Call:
    """A call of a method of a tile. One with an index before the slices ends in ``_of``."""
    if name in ("_load", "_store", "_column"):
        name += "_of" if len(args) == (5 if name == "_column" else 6) else ""
    base = ast.copy_location(ast.Name(tile.id, ast.Load()), tile) if isinstance(tile, ast.Name) else tile
    made = ast.Call(ast.Attribute(base, name, ast.Load()), args, [])
    for x in nodes_of(made):
        if not hasattr(x, "lineno"):
            ast.copy_location(x, at)
    return made
