"""Divides in reverse kernels by multiplying with a reciprocal that is there for adjoints: a division less in each.

The rules of f64 divide adjoints by multiplying with ``1 / y`` (``reverse.derivatives``). A quotient ``x / y`` of the primal that is only a
factor of adjoints becomes ``x * (1 / y)``, which is as exact as the adjoints are. What decides anything keeps its division: a branch, an
index, a local that is stored, and so each value that the forward pass had, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.nodes import Block, Const, GlobalStore, Kernel, Op, Operand, Stmt
from ..ir.types import f64
from ..ir.verify import verified
from ..ir.walk import index_of, inner_blocks, operands, place_of, walk

_PASSES_ON = frozenset(("add", "sub", "mul", "neg", "select"))
"""Operations of adjoints; the condition of a select is a value of its own."""


@verified()
def share_reciprocals(kernel: Kernel) -> Kernel:
    """Rewrite the divisions of a simplified reverse kernel, in place."""
    for task in kernel.tasks:
        statements = walk(task.body)
        if any([isinstance(s, Op) and s.op == "div" and _is_reciprocal(s) for s in statements]):
            _rewrite(task.body, _exact(statements, _adjoints(statements)))
    return kernel


def _adjoints(statements: Iterable[Stmt]) -> set[Operand]:
    """Values that are made of loaded adjoints."""
    found: set[Operand] = set()
    for s in statements:
        if isinstance(s, Op):
            place = place_of(s) if s.op == "gload" else None
            if (place is not None and place.is_grad) or (s.op in _PASSES_ON and not found.isdisjoint(s.args)):
                found.add(s)
    return found


def _exact(statements: list[Stmt], adjoints: set[Operand]) -> set[Operand]:
    """Values of which each bit counts: all but those that only adjoints are made of."""
    exact: set[Operand] = set()
    for s in reversed(statements):
        place = place_of(s)
        if isinstance(s, Op) and s not in exact:
            zero_test = s.op == "eq" and all(isinstance(a, Const) or a in adjoints for a in s.args)
            if s.op in _PASSES_ON or zero_test:
                continue
        if place is not None and place.is_grad and not (isinstance(s, Op) and s.op == "gload"):
            exact.update(index_of(s))
            if isinstance(s, GlobalStore) or s not in exact:
                continue
        exact.update(operands(s))
    return exact


def _is_reciprocal(s: Stmt) -> bool:
    return isinstance(s, Op) and s.op == "div" and s.dtype is f64 and isinstance(s.args[0], Const) and s.args[0].value == 1.0


def _rewrite(block: Block, exact: set[Operand]) -> None:
    for s in block:
        for inner in inner_blocks(s):
            _rewrite(inner, exact)
    reciprocals: dict[Operand, Op] = {}
    for s in block:
        if isinstance(s, Op) and _is_reciprocal(s):
            reciprocals.setdefault(s.args[1], s)
    first, moved = set(reciprocals.values()), set[Op]()
    out: Block = []
    for s in block:
        if isinstance(s, Op) and s.op == "div" and s not in exact and not _is_reciprocal(s) and s.args[1] in reciprocals:
            reciprocal = reciprocals[s.args[1]]
            if reciprocal not in moved:
                moved.add(reciprocal)
                out.append(reciprocal)
            s.op, s.args = "mul", (s.args[0], reciprocal)
        elif isinstance(s, Op) and s in first:
            if s in moved:
                continue
            moved.add(s)
        out.append(s)
    block[:] = out
