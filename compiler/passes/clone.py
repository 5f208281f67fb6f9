"""A copy of a kernel that shares no statement with the original, and the replacement of operands in place.

Passes are functions from kernel to kernel: each clones once and edits its own copy. Locals, places and arguments are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..ir.nodes import (
    Assert,
    Axis,
    Block,
    ClaimRow,
    Exit,
    GlobalStore,
    If,
    Kernel,
    LocalStore,
    Loop,
    Op,
    Operand,
    Overflow,
    Print,
    Reduction,
    Stack,
    StackPut,
    Stmt,
    Task,
)
from ..ir.walk import operands, task_blocks

Replace = Callable[[Operand], Operand]


def clone_kernel(kernel: Kernel) -> Kernel:
    """Copy a kernel with new statements."""
    return replace(kernel, tasks=[clone_task(t) for t in kernel.tasks])


def clone_task(task: Task) -> Task:
    """Copy a task with new statements, loops and stacks."""
    return _Cloner(task).task(task)


def clone_block(block: Block, values: Mapping[Op, Operand]) -> Block:
    """Copy statements and loops. ``values``: replacements of some values; other values from outside stay."""
    cloner = _Cloner(Task("", block))
    cloner.ops.update(values)
    return cloner.block(block)


class _Cloner:
    def __init__(self, task: Task) -> None:
        self.ops: dict[Op, Operand] = {}
        self.loops: dict[Loop, Loop] = {}
        for s in task_blocks(task):  # first, because a stack or an overflow may name a loop before or after it
            if isinstance(s, Loop):
                index = self.ops[s.index] = Op("index", (), s.index.dtype, None, s.index.loc)
                self.loops[s] = Loop(index, s.begin, s.end, [], s.exit, s.step, s.loc)
        self.stacks = {s: Stack(self.loops.get(s.loop, s.loop), s.kind, s.locals, s.name) for s in task.stacks}

    def value(self, x: Operand) -> Operand:
        """The copy of an operand (a literal or a launch parameter is itself)."""
        return self.ops.get(x, x) if isinstance(x, Op) else x

    def values(self, xs: tuple[Operand, ...]) -> tuple[Operand, ...]:
        """The copies of operands."""
        return tuple([self.ops.get(x, x) if x.__class__ is Op else x for x in xs])  # type: ignore[arg-type]

    def task(self, t: Task) -> Task:
        """Everything of a task, in the order in which it is defined."""
        prologue = self.block(t.prologue)
        axes = []
        for a in t.axes:
            index = self.ops[a.index] = Op("index", (), a.index.dtype, None, a.index.loc)
            axes.append(Axis(index, self.value(a.begin), self.value(a.end)))
        reductions = [Reduction(r.local, r.place, self.values(r.index), r.code, r.sure) for r in t.reductions]
        body = self.block(t.body)
        return Task(
            *(
                t.name,
                body,
                axes,
                prologue,
                list(self.stacks.values()),
                list(t.params),
                t.serialize,
                reductions,
                t.loc,
                t.block,
            ),
            t.cost,
        )

    def block(self, block: Block) -> Block:
        """The copies of statements."""
        return [self.stmt(s) for s in block]

    def stmt(self, s: Stmt) -> Stmt:
        """The copy of a statement."""
        match s:
            case Op():
                return self.op(s)
            case LocalStore():
                return LocalStore(s.local, self.value(s.value), s.loc)
            case GlobalStore():
                return GlobalStore(s.place, self.values(s.index), self.value(s.value), s.loc)
            case If():
                return If(self.value(s.cond), self.block(s.then), self.block(s.orelse), s.site, s.site_local, s.loc)
            case Loop():
                new = self.loops[s]
                new.begin, new.end = self.value(s.begin), None if s.end is None else self.value(s.end)
                new.body = self.block(s.body)
                return new
            case Exit():
                return Exit(s.kind, s.loc)
            case Assert():
                return Assert(self.value(s.cond), s.message, self.values(s.args), s.loc, s.kind, s.loops)
            case Print():
                return replace(s, parts=tuple(p if isinstance(p, str) else self.value(p) for p in s.parts))
            case StackPut():
                return StackPut(self.stack(s.stack), self.value(s.slot), self.values(s.values))
            case Overflow():
                return Overflow(self.loops.get(s.loop, s.loop), s.code)
            case ClaimRow():
                return ClaimRow(s.loc)

    def op(self, s: Op) -> Op:
        """The copy of an operation."""
        attr = s.attr
        if s.op == "stack_get":
            assert isinstance(attr, tuple)
            attr = (self.stack(attr[0]), attr[1])
        new = self.ops[s] = Op(s.op, self.values(s.args), s.dtype, attr, s.loc)
        return new

    def stack(self, s: Stack) -> Stack:
        """The copy of a stack, also of one that the task does not list."""
        return self.stacks.get(s, s)


def substitute(s: Stmt, known: Mapping[Op, Operand]) -> None:
    """Replace the values that a statement reads itself by what ``known`` has for them. Most statements read none of these."""
    for x in s.args if isinstance(s, Op) else operands(s):
        if isinstance(x, Op) and x in known:
            replace_operands(s, lambda x: known.get(x, x) if isinstance(x, Op) else x)
            return


def replace_operands(s: Stmt, f: Replace) -> None:
    """Replace what a statement reads itself by ``f`` of it."""
    match s:
        case Op():
            if s.args:
                s.args = tuple(map(f, s.args))
        case LocalStore():
            s.value = f(s.value)
        case GlobalStore():
            s.index, s.value = tuple(map(f, s.index)), f(s.value)
        case If():
            s.cond = f(s.cond)
        case Loop():
            s.begin, s.end = f(s.begin), None if s.end is None else f(s.end)
        case Assert():
            s.cond, s.args = f(s.cond), tuple(map(f, s.args))
        case Print():
            s.parts = tuple(p if isinstance(p, str) else f(p) for p in s.parts)
        case StackPut():
            s.slot, s.values = f(s.slot), tuple(map(f, s.values))


def replace_head(task: Task, f: Replace) -> None:
    """Replace what the axes' bounds and the reductions' indices read by ``f`` of it."""
    for a in task.axes:
        a.begin, a.end = f(a.begin), f(a.end)
    for r in task.reductions:
        r.index = tuple(map(f, r.index))
