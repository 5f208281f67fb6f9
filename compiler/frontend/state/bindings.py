"""Reads the value of a binding, and recomputes it in another task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...ir.nodes import Const, Local, Op, Operand
from ...ir.ops import TABLE
from ..syntax.targets import Target, with_index
from ..values.matrix import load_matrix
from ..values.tensor import TensorRef
from ..values.values import MatrixLocal, MatrixValue, StructValue
from .builder import FrontBuilder
from .scope import Rematerialized, StructVar, Temporary

REMATERIALIZED_OPS = 16
"""A kernel-level value of at most this many operations is computed again in each task that uses it."""


def read(b: FrontBuilder, value: Any) -> Any:
    """The present content of a binding: variables are loaded, rematerialized values computed again, everything else is itself."""
    if isinstance(value, Local):
        return b.load(value)
    if isinstance(value, MatrixLocal):
        return load_matrix(b, value)
    if isinstance(value, Temporary):
        return value.ref.load(b, ())
    if isinstance(value, Rematerialized):
        return clone(b, value.value, {})
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(read(b, v) for v in value)
    if isinstance(value, StructValue):
        return value.map(lambda item: read(b, item))
    if isinstance(value, StructVar):
        return StructValue(value.form, {name: read(b, m.value) for name, m in value.members.items()})
    if isinstance(value, TensorRef) and value.begin is not None:
        return replace(value, begin=read(b, value.begin), length=read(b, value.length))
    return with_index(value, lambda x: read(b, x)).read(b) if isinstance(value, Target) else value


def clone(b: FrontBuilder, value: Any, done: dict[Op, Op]) -> Any:
    """Emit a value's operations again in the current block."""
    if isinstance(value, MatrixValue):
        return MatrixValue(value.shape, tuple(clone(b, x, done) for x in value.items))
    if isinstance(value, tuple):
        return tuple(clone(b, x, done) for x in value)
    if not isinstance(value, Op):
        return value
    if value not in done:
        args = tuple(clone(b, x, done) for x in value.args)
        done[value] = b.op(value.op, *args, dtype=value.dtype, attr=value.attr)
    return done[value]


def can_repeat(value: Operand) -> bool:
    """Whether a value is cheap and the same in every task: few pure operations on arguments, shapes and literals."""
    seen: set[Op] = set()
    todo = [value]
    while todo:
        x = todo.pop()
        if isinstance(x, Const) or x in seen:
            continue
        if not TABLE[x.op].pure or x.op in ("index", "iter", "seed", "param") or len(seen) >= REMATERIALIZED_OPS:
            return False
        seen.add(x)
        todo += x.args
    return True
