"""Emits the value that one iteration adds, for an iteration given by its indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...ir.builder import StatementBuilder
from ...ir.nodes import Block, If, Local, LocalStore, Loop, Op, Operand, Task
from ..reverse.copies import Env, at
from .contributions import Contribution

Put = Callable[[Operand, Env], None]
"""Adds a value to its element. The second argument has the copies of the values of the iteration."""


def emit_slice(b: StatementBuilder, task: Task, c: Contribution, known: Mapping[Op, Operand], put: Put) -> None:
    """Emit what a contribution needs, then its value.

    Args:
        b: emits.
        task: the scatter.
        c: the contribution.
        known: the indices of the axes in its iteration, and other values that are known there.
        put: what becomes of the value.
    """
    _Slice(b, c, known, put).copy(task.body)


class _Slice:
    def __init__(self, b: StatementBuilder, c: Contribution, known: Mapping[Op, Operand], put: Put) -> None:
        self.b, self._c, self._put = b, c, put
        self._env: Env = dict(known)
        self._locals: dict[Local, Local] = {}

    def copy(self, block: Block) -> None:
        """Copy the statements that the contribution needs."""
        for s in block:
            if id(s) not in self._c.keep:
                continue
            self.b.loc = getattr(s, "loc", None)
            match s:
                case Op() if s is self._c.root:
                    self._put(at(self._env, s.args[-1]), self._env)
                case Op():
                    self._op(s)
                case LocalStore():
                    self.b.store(self._local(s.local), at(self._env, s.value))
                case If():
                    self._if(s)
                case Loop():
                    self._loop(s)
                case _:
                    raise AssertionError(s)

    def _local(self, local: Local) -> Local:
        return self._locals.setdefault(local, Local(local.dtype, local.name))

    def _op(self, s: Op) -> None:
        if s not in self._env:
            attr = self._local(s.attr) if s.op == "load" and isinstance(s.attr, Local) else s.attr
            self._env[s] = self.b.op(s.op, *(at(self._env, a) for a in s.args), dtype=s.dtype, attr=attr)

    def _if(self, s: If) -> None:
        holds, tests = self._c.facts.get(s.cond, (True, (s.cond,))) if isinstance(s.cond, Op) else (True, (s.cond,))
        if not tests:
            self.copy(s.then if holds else s.orelse)
            return
        cond, *more = (at(self._env, x) for x in tests)
        for x in more:
            cond = self.b.op("and", cond, x)
        new = If(cond)
        self.b.put(new)
        for source, target in ((s.then, new.then), (s.orelse, new.orelse)):
            with self.b.into(target):
                self.copy(source)

    def _loop(self, s: Loop) -> None:
        index = self._env[s.index] = Op("index", (), s.index.dtype, None, s.loc)
        end = None if s.end is None else at(self._env, s.end)
        new = Loop(index, at(self._env, s.begin), end, step=s.step, loc=s.loc)
        self.b.put(new)
        with self.b.into(new.body):
            self.copy(s.body)
