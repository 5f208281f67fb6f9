"""Uniformity analysis: finds the values that are the same in every lane, by a least fixed point over one task.

A value varies when it comes from the index of an axis, from memory at a varying index or of which each trial of a batch has its own,
from an atomic, an adstack or another thread, or from a local that varies. A local varies when a varying value, or any value under control
that varies, is stored to it. A loop varies when its bounds or its exit do; the index of a loop that all its lanes enter together is the
same in all lanes that still run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...ir.nodes import Block, Const, If, Local, LocalStore, Loop, Op, Operand, Place, Task


@dataclass(frozen=True, slots=True)
class Shapes:
    """The varying values, locals and loops. Empty when there is one lane."""

    varying: set[Op | Local | Loop] = field(default_factory=set)


def analyse(task: Task, same: frozenset[Op] = frozenset(), apart: frozenset[Op] = frozenset()) -> Shapes:
    """The shapes of a parallel task. ``same``: operations whose result does not vary, whatever their operands do; ``apart``: others
    whose result does.
    """
    shapes = Shapes({*(a.index for a in task.axes), *(r.local for r in task.reductions), *apart})
    size = -1
    while size != len(shapes.varying):
        size = len(shapes.varying)
        _block(task.body, False, shapes.varying, same)
    return shapes


_VARYING = frozenset(("iter", "atomic", "stack_get", "shuffle", "ballot"))


def _per_trial(s: Op) -> bool:
    return isinstance(s.attr, Place) and s.attr.per_trial


def _block(block: Block, control: bool, varying: set[Op | Local | Loop], same: frozenset[Op]) -> None:
    def varies(x: Operand) -> bool:
        return not isinstance(x, Const) and x in varying

    for s in block:
        match s:
            case Op():
                if s in varying:  # as an earlier round has found
                    continue
                if s.op == "load":
                    own = s.attr in varying
                else:
                    own = s.op in _VARYING or (s.op == "gload" and _per_trial(s))
                if not own:
                    for x in s.args:
                        own = own or (isinstance(x, Op) and x in varying)
                if own and s not in same:
                    varying.add(s)
            case LocalStore():
                if control or varies(s.value):
                    varying.add(s.local)
            case If():
                inner = control or varies(s.cond)
                _block(s.then, inner, varying, same)
                _block(s.orelse, inner, varying, same)
            case Loop():
                if varies(s.begin):
                    varying.add(s.index)
                if varies(s.begin) or (s.end is not None and varies(s.end)) or s.exit in varying:
                    varying.add(s)
                _block(s.body, control or s in varying, varying, same)
