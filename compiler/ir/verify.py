"""The rules of well-formed IR, one check each. Tests run this after every pass."""

from __future__ import annotations

from .nodes import (
    Block,
    Const,
    Exit,
    GlobalStore,
    If,
    Kernel,
    Local,
    LocalStore,
    Loop,
    Op,
    Operand,
    Stack,
    StackPut,
    Stmt,
    Task,
)
from .ops import ATOMICS, TABLE
from .printer import print_block
from .types import i64, u1
from .walk import atomic_of, operands


class VerifyError(AssertionError):
    """A pass produced malformed IR: a fault of ours, never of the user."""


class _Verifier:
    def __init__(self, task: Task, lowered: bool) -> None:
        self.task, self.lowered = task, lowered
        self.defined: set[Op] = {a.index for a in task.axes}
        self.stored: set[Local] = set()

    def fail(self, rule: str, s: Stmt) -> None:
        """Stop with the rule, the task and the statement."""
        raise VerifyError(f"{self.task.name}: {rule}\n{print_block([s])}")

    def use(self, x: Operand, s: Stmt) -> None:
        """An operand is a literal, a launch parameter, or a value defined before in an enclosing block."""
        if isinstance(x, Const) or x.op == "param":
            return
        if x not in self.defined:
            self.fail(f"uses a value ({x.op}, id {x.id}) that is not defined here", s)

    def block(self, block: Block) -> None:
        """Check each statement; what a block defines is not visible outside it."""
        before = set(self.defined)
        for s in block:
            for x in operands(s):
                self.use(x, s)
            self.stmt(s)
        self.defined = before

    def stmt(self, s: Stmt) -> None:
        """One rule per kind of statement."""
        match s:
            case Op():
                self.op(s)
                self.defined.add(s)
            case LocalStore():
                if s.value.dtype is not s.local.dtype:
                    self.fail(f"stores {s.value.dtype} to a local of type {s.local.dtype}", s)
                self.stored.add(s.local)
            case GlobalStore():
                if s.value.dtype is not s.place.dtype or len(s.index) != s.place.ndim:
                    self.fail("type or number of indices differs from the place", s)
            case If():
                if s.cond.dtype is not u1:
                    self.fail("the condition is not a truth value", s)
                self.block(s.then)
                self.block(s.orelse)
            case Loop():
                self.loop(s)
            case Exit() if self.lowered:
                self.fail("break/continue/return left after lowering", s)
            case StackPut():
                if len(s.values) != len(s.stack.locals) or s.slot.dtype is not i64:
                    self.fail("wrong number of words, or a slot that is not i64", s)

    def loop(self, s: Loop) -> None:
        """A loop: bounds of the index's type, body in its own scope."""
        ends = [s.begin] if s.end is None else [s.begin, s.end]
        if any(x.dtype is not s.index.dtype for x in ends):
            self.fail("the bounds and the index differ in type", s)
        self.defined.add(s.index)
        self.block(s.body)
        self.defined.discard(s.index)

    def op(self, s: Op) -> None:
        """An operation: known code, operand count, operand types, result type."""
        info = TABLE.get(s.op)
        if info is None:
            return self.fail(f"unknown operation {s.op!r}", s)
        if info.arity >= 0 and len(s.args) != info.arity:
            self.fail(f"takes {info.arity} operands", s)
        if s.op in ("index", "param"):
            self.fail("is never listed in a block", s)
        if s.op == "load":
            if s.attr not in self.stored:
                self.fail("loads a local before any store", s)
        elif s.op in ("gload", "atomic"):
            self.memory(s)
        elif s.op == "stack_get":
            self.stack_get(s)
        else:
            self.arithmetic(s)

    def stack_get(self, s: Op) -> None:
        """A stack read: a slot of type i64, a field of the stack, the field's type."""
        assert isinstance(s.attr, tuple)
        stack, index = s.attr
        if not isinstance(stack, Stack) or stack.locals[index].dtype is not s.dtype or s.args[0].dtype is not i64:
            self.fail("wrong stack, field type or slot type", s)

    def memory(self, s: Op) -> None:
        """A load or an atomic: as many integer indices as the place has axes, its type."""
        place, code = (s.attr, "") if s.op == "gload" else atomic_of(s)
        index = s.args if s.op == "gload" else s.args[:-1]
        if len(index) != place.ndim or any(not x.dtype.is_int for x in index):  # type: ignore[union-attr]
            self.fail("number or type of the indices differs from the place", s)
        if s.dtype is not place.dtype or (s.op == "atomic" and s.args[-1].dtype is not place.dtype):  # type: ignore[union-attr]
            self.fail("type differs from the place", s)
        if code and code not in ATOMICS:
            self.fail(f"unknown atomic {code!r}", s)

    def arithmetic(self, s: Op) -> None:
        """Pure operations: one operand type in the operation's domain, and the result type that the table says."""
        info = TABLE[s.op]
        args = s.args[1:] if s.op == "select" else s.args
        if s.op == "select" and s.args[0].dtype is not u1:
            self.fail("selects by something that is not a truth value", s)
        if args and any(a.dtype is not args[0].dtype for a in args):
            self.fail("operands differ in type", s)
        kinds = {"any": "fiub", "number": "fiu", "real": "f", "int": "iub", "bool": "b"}[info.domain]
        if args and args[0].dtype.kind not in kinds:
            self.fail(f"does not take {args[0].dtype}", s)
        expect = {"same": args[0].dtype if args else None, "bool": u1, "given": s.dtype}[info.result]
        if s.op == "select":
            expect = args[0].dtype
        if s.dtype is not expect:
            self.fail(f"has type {s.dtype}, should be {expect}", s)


def verify_task(task: Task, lowered: bool = True) -> None:
    """Check one task.

    Raises:
        VerifyError: naming the rule, the task and the statement.
    """
    v = _Verifier(task, lowered)
    axes = set(v.defined)
    v.defined = set()
    for s in task.prologue:
        for x in operands(s):
            v.use(x, s)
        v.stmt(s)
    for a in task.axes:
        for x in (a.begin, a.end):
            if isinstance(x, Op) and x not in v.defined:
                raise VerifyError(f"{task.name}: an axis bound is not a value of the prologue")
    v.defined = axes
    v.stored = {r.local for r in task.reductions}
    v.block(task.body)


def verify_kernel(kernel: Kernel, lowered: bool = True) -> None:
    """Check every task of a kernel."""
    for task in kernel.tasks:
        verify_task(task, lowered)
