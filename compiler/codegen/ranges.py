"""Ranges of indices: of loops with literal bounds, and of what is computed from them without overflow."""

from __future__ import annotations

from ..ir.nodes import Const, Loop, Op, Operand, Task
from ..ir.types import i32
from ..ir.walk import walk

Range = tuple[int, int]
"""The least and the largest value."""


def ranges_of(task: Task) -> dict[Op, Range]:
    """The values of type i32 of a task whose range is known, and whose computation cannot overflow."""
    found: dict[Op, Range] = {}
    for axis in task.axes:
        _add_index(found, axis.index, axis.begin, axis.end, 1)
    for s in walk(task.body):
        if isinstance(s, Loop):
            if s.end is not None:
                _add_index(found, s.index, s.begin, s.end, s.step)
        elif isinstance(s, Op) and s.dtype is i32:
            known = _result(s, [_range(found, x) for x in s.args])
            if known is not None and -(2**31) <= known[0] and known[1] < 2**31:
                found[s] = known
    return found


def _range(found: dict[Op, Range], x: Operand) -> Range | None:
    if isinstance(x, Op):
        return found.get(x)
    return (int(x.value), int(x.value)) if x.dtype is i32 else None


def _add_index(found: dict[Op, Range], index: Op, begin: Operand, end: Operand, step: int) -> None:
    first, last = _range(found, begin), _range(found, end)
    if first is not None and last is not None and index.dtype is i32:
        least, largest = (first[0], last[1] - 1) if step > 0 else (last[0] + 1, first[1])
        found[index] = least, max(least, largest)


def _result(s: Op, args: list[Range | None]) -> Range | None:
    if len(args) != 2 or args[0] is None or args[1] is None:
        return None
    (a, b), (c, d) = args[0], args[1]
    match s.op:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "mul":
            corners = [x * y for x in (a, b) for y in (c, d)]
            return min(corners), max(corners)
        case "mod" if isinstance(s.args[1], Const) and c > 0:  # the sign of the divisor
            return 0, c - 1
        case _:
            return None
