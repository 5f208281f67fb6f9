"""The rules of well-formed IR, by number. ``docs/ir.md`` is the same list in words; a test compares the two.

With the environment variable ``QDRUN_VERIFY=1`` every pass that is decorated with ``verified`` checks what it produces. The tests set it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from string import Formatter
from typing import Any, TypeVar

from .nodes import (
    ArgDecl,
    Assert,
    Block,
    ClaimRow,
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
    Place,
    Print,
    Reduction,
    Stack,
    StackPut,
    Stmt,
    Task,
)
from .ops import ATOMICS, TABLE
from .printer import print_block
from .types import i32, i64, u1, u64
from .walk import operands

RULES: dict[int, str] = {
    1: "An operand is a literal, a launch parameter of the task, or a value defined before it in the same or an enclosing block.",
    2: "A value stands in one place: no operation is listed twice.",
    3: "The operation code is in the table, with as many operands as the table says.",
    4: "The index of a loop or an axis and a launch parameter are never listed in a block.",
    5: "The operands of an arithmetic operation have one type (the condition of `select` apart), which is in its domain.",
    6: "The result has the type that the table says; `select` has that of its arms.",
    7: "The condition of `if`, `assert` and `select` is a truth value.",
    8: "A local is loaded after a store to it, in its type.",
    9: "A store to a local has the type of the local.",
    10: "A memory access has as many integer indices as the place has axes.",
    11: "What is stored to, loaded from or combined with memory has the type of the place.",
    12: "The code of an atomic is known; `cas` takes two values, the others one.",
    13: "The bounds of a loop or an axis have the type of its index, an integer; a step is not zero.",
    14: "The exit local of a loop is an integer that is stored before or in its body.",
    15: "After lowering there is no `break`, `continue` or `return`; before, a `break` stands in a loop.",
    16: "A stack access names a stack of the task, a slot of type i64, and its words or its field in their types.",
    17: "An axis bound and the index of a reduction are literals or values of the prologue; the body does not read the prologue.",
    18: "A prologue writes no memory.",
    19: "A reduction is of a parallel task, is add, min or max, and its local has the type of its place.",
    20: "`arg` names a scalar argument in its type, `shape` an axis of an array argument; `iter` is i64 and `seed` u64.",
    21: "An assert's message has as many `{..}` as it has values, a print as many formats as parts, or none.",
    22: "The arguments of a kernel are numbered in order, and a kernel's accesses to argument arrays name its own arguments.",
    23: "A stack access comes after a `claim row` in the same or an enclosing block; it is in no loop, in a task that lists `rows`.",
    24: "A barrier, an operation of a wave and an access to memory of a block stand in a parallel task that says how large its blocks are.",
    25: "`shuffle` has a value of its own type and the i32 number of a lane, `ballot` a truth value and gives u64, `fence` says for whom.",
}

_VALUES = {"": 0, "cas": 2}
_KINDS = {"any": "fiub", "number": "fiu", "real": "f", "int": "iub", "bool": "b"}


class VerifyError(AssertionError):
    """A pass produced malformed IR: always a bug of the compiler."""


class _Verifier:
    def __init__(self, task: Task, lowered: bool, args: set[ArgDecl] | None) -> None:
        self.task, self.lowered, self.args = task, lowered, args
        self.defined: set[Op] = set()
        self.listed: set[Op] = set()
        self.stored: set[Local] = set()
        self.loops = 0
        self.claimed = False  # in this block or one around it
        self.in_body = False

    def fail(self, rule: int, what: str, s: Stmt | None = None) -> None:
        """Raise an error with the task, the rule's number, the violation, and the statement."""
        where = "" if s is None else "\n" + print_block([s])
        raise VerifyError(f"{self.task.name}: rule {rule}: {what}{where}\n  {RULES[rule]}")

    def use(self, x: Operand, s: Stmt | None) -> None:
        """Rule 1."""
        if isinstance(x, Const):
            return
        if x.op == "param":
            if x.attr not in self.task.params:
                self.fail(1, f"reads the launch parameter {x.attr!r}, which the task does not list", s)
        elif x not in self.defined:
            self.fail(1, f"uses a value ({x.op}, id {x.id}) that is not defined here", s)

    def block(self, block: Block) -> None:
        """Check each statement; what a block defines is not visible outside it."""
        claimed, defined = self.claimed, self.defined
        for s in block:
            if type(s) is Op:
                for x in s.args:
                    if type(x) is Op and x not in defined:
                        self.use(x, s)
                self.op(s)
            else:
                for x in operands(s):
                    self.use(x, s)
                self.stmt(s)
        defined.difference_update([s for s in block if type(s) is Op])
        self.claimed = claimed

    def stmt(self, s: Stmt) -> None:
        """The rules of one statement, other than an operation."""
        match s:
            case LocalStore():
                if s.value.dtype is not s.local.dtype:
                    self.fail(9, f"stores {s.value.dtype} to a local of type {s.local.dtype}", s)
                self.stored.add(s.local)
            case GlobalStore():
                self.access(s, s.place, s.index, (s.value,))
            case If():
                self.truth(s.cond, "the condition", s)
                self.block(s.then)
                self.block(s.orelse)
            case Loop():
                self.loop(s)
            case Exit():
                if self.lowered:
                    self.fail(15, "break/continue/return left after lowering", s)
                if s.kind == "break" and not self.loops:
                    self.fail(15, "a break outside of any loop", s)
            case Assert():
                self.truth(s.cond, "the condition", s)
                given = len(s.args) - len(s.loops)
                places = sum(name is not None for _, name, _, _ in Formatter().parse(s.message)) if given else 0
                if places != given:
                    self.fail(21, f"{given} values for a message with {places} places", s)
            case Print():
                if s.formats and len(s.formats) != len(s.parts):
                    self.fail(21, f"{len(s.formats)} formats for {len(s.parts)} parts", s)
            case StackPut():
                self.stack_put(s)
            case ClaimRow():
                if self.loops or "rows" not in self.task.params:
                    self.fail(23, "a claim in a loop, or of a task without rows", s)
                self.claimed = True

    def truth(self, cond: Operand, what: str, s: Stmt) -> None:
        """Rule 7."""
        if cond.dtype is not u1:
            self.fail(7, f"{what} is not a truth value", s)

    def loop(self, s: Loop) -> None:
        """Rules 13 and 14; the body is a scope of its own."""
        self.bounds(s.index, [s.begin] if s.end is None else [s.begin, s.end], s)
        if s.step == 0:
            self.fail(13, "a loop with step 0", s)
        self.defined.add(s.index)
        self.loops += 1
        self.block(s.body)
        self.loops -= 1
        self.defined.discard(s.index)
        if s.exit is not None and (not s.exit.dtype.is_int or s.exit not in self.stored):
            self.fail(14, "the exit local is not an integer that was stored", s)

    def bounds(self, index: Op, ends: list[Operand], s: Stmt | None) -> None:
        """Rule 13."""
        if not index.dtype.is_int or any(x.dtype is not index.dtype for x in ends):
            self.fail(13, "the bounds and the index differ in type", s)

    def op(self, s: Op) -> None:
        """The rules of an operation, by its kind."""
        info = TABLE.get(s.op)
        if info is None:
            return self.fail(3, f"unknown operation {s.op!r}", s)
        if info.arity >= 0 and len(s.args) != info.arity:
            self.fail(3, f"takes {info.arity} operands", s)
        if s.op in ("index", "param"):
            self.fail(4, "is never listed in a block", s)
        if s in self.listed:
            self.fail(2, f"is listed twice (id {s.id})", s)
        self.listed.add(s)
        _RULES_OF.get(s.op, _Verifier.arithmetic)(self, s)
        self.defined.add(s)

    def load(self, s: Op) -> None:
        """Rule 8."""
        if s.attr not in self.stored:
            self.fail(8, "loads a local before any store", s)
        if not isinstance(s.attr, Local) or s.attr.dtype is not s.dtype:
            self.fail(8, "loads a local in another type", s)

    def memory(self, s: Op) -> None:
        """Rules 10 to 12 for loads and atomics."""
        place, code = s.attr if isinstance(s.attr, tuple) else (s.attr, "")
        if not isinstance(place, Place) or (code and code not in ATOMICS):
            return self.fail(12, f"unknown atomic {code!r}", s)
        count = _VALUES.get(code, 1)
        if code and len(s.args) < count:
            self.fail(12, f"an atomic {code} takes {count} values", s)
        self.access(s, place, s.args[: len(s.args) - count], s.args[len(s.args) - count :])
        if s.dtype is not place.dtype:
            self.fail(11, "type differs from the place", s)

    def access(self, s: Stmt, place: Place, index: tuple[Operand, ...], values: tuple[Operand, ...]) -> None:
        """Rules 10, 11 and 22 of one access."""
        if len(index) != place.ndim or any(not x.dtype.is_int for x in index):
            self.fail(10, "number or type of the indices differs from the place", s)
        if any(v.dtype is not place.dtype for v in values):
            self.fail(11, "type differs from the place", s)
        if self.args is not None and isinstance(place.buffer.owner, ArgDecl) and place.buffer.owner not in self.args:
            self.fail(22, f"`{place.name}` belongs to no argument of this kernel", s)
        if place.buffer.kind == "block":
            self.together(s)

    def among_threads(self, s: Op) -> None:
        """Rules 24 and 25."""
        types = (*(a.dtype for a in s.args), s.dtype)
        if (s.op == "shuffle" and types != (s.dtype, i32, s.dtype)) or (s.op == "ballot" and types != (u1, u64)):
            self.fail(25, "operands or result of another type", s)
        if s.op == "fence" and s.attr not in ("block", "grid"):
            self.fail(25, "for threads that are neither those of the block nor all", s)
        if s.op != "fence":
            self.together(s)

    def together(self, s: Stmt) -> None:
        """Rule 24."""
        if not self.in_body or not self.task.parallel or self.task.block < 1:
            self.fail(24, "there are no blocks here", s)

    def stack_put(self, s: StackPut) -> None:
        """Rule 16 for a write."""
        locals_ = s.stack.locals
        if len(s.values) != len(locals_) or s.slot.dtype is not i64:
            self.fail(16, "wrong number of words, or a slot that is not i64", s)
        if any(v.dtype is not x.dtype for v, x in zip(s.values, locals_)) or s.stack not in self.task.stacks:
            self.fail(16, "words of another type, or a stack of another task", s)
        if not self.claimed:
            self.fail(23, "writes to a stack before a row is claimed", s)

    def stack_get(self, s: Op) -> None:
        """Rule 16 for a read."""
        assert isinstance(s.attr, tuple)
        stack, index = s.attr
        if not isinstance(stack, Stack) or stack.locals[index].dtype is not s.dtype or s.args[0].dtype is not i64:
            self.fail(16, "wrong stack, field type or slot type", s)
        if stack not in self.task.stacks:
            self.fail(16, "a stack of another task", s)
        if not self.claimed:
            self.fail(23, "reads a stack before a row is claimed", s)

    def leaf(self, s: Op) -> None:
        """Rule 20."""
        attr, axis = s.attr if isinstance(s.attr, tuple) else (s.attr, 0)
        if s.op == "arg":
            right = isinstance(attr, ArgDecl) and attr.kind == "scalar" and attr.dtype is s.dtype
        elif s.op == "shape":
            right = isinstance(attr, ArgDecl) and attr.kind == "ndarray" and 0 <= axis < attr.ndim + len(attr.element)
            right = right and s.dtype.is_int
        else:
            right = s.dtype is (i64 if s.op == "iter" else u64)
        if not right:
            self.fail(20, f"{s.op} in another type, or of what has none", s)
        if self.args is not None and isinstance(attr, ArgDecl) and attr not in self.args:
            self.fail(22, f"`{attr.name}` is no argument of this kernel", s)

    def arithmetic(self, s: Op) -> None:
        """Rules 5 to 7 for operations with operands."""
        info, args = TABLE[s.op], s.args
        if s.op == "select":
            self.truth(args[0], "what selects", s)
            args = args[1:]
        dtype = args[0].dtype if args else None
        for a in args:
            if a.dtype is not dtype:
                self.fail(5, "operands differ in type", s)
        if dtype is not None and dtype.kind not in _KINDS[info.domain]:
            self.fail(5, f"does not take {dtype}", s)
        if info.result == "same" or s.op == "select":
            expect = dtype
        else:
            expect = u1 if info.result == "bool" else s.dtype
        if s.dtype is not expect:
            self.fail(6, f"has type {s.dtype}, should be {expect}", s)

    # ---- the task around its body
    def prologue(self) -> None:
        """Rules 13, 17 and 18: the prologue, the axes, the indices of reductions."""
        self.block_open(self.task.prologue)
        for a in self.task.axes:
            self.bounds(a.index, [a.begin, a.end], None)
            self.outside((a.begin, a.end), "an axis bound")
        for r in self.task.reductions:
            self.reduction(r)
            self.outside(r.index, "the index of a reduction")

    def block_open(self, block: Block) -> None:
        """A block whose values stay visible: the prologue."""
        for s in block:
            for x in operands(s):
                self.use(x, s)
            if isinstance(s, (GlobalStore, StackPut)) or (isinstance(s, Op) and s.op == "atomic"):
                self.fail(18, "a write in a prologue", s)
            self.op(s) if isinstance(s, Op) else self.stmt(s)

    def outside(self, values: tuple[Operand, ...], what: str) -> None:
        """Rule 17."""
        for x in values:
            if isinstance(x, Op) and x.op != "param" and x not in self.defined:
                self.fail(17, f"{what} is not a value of the prologue")

    def reduction(self, r: Reduction) -> None:
        """Rule 19."""
        if not self.task.parallel or r.code not in ("add", "min", "max") or r.local.dtype is not r.place.dtype:
            self.fail(19, f"a reduction {r.code} of {r.local.dtype} into {r.place.dtype}")


_RULES_OF: dict[str, Callable[[_Verifier, Op], None]] = {
    "load": _Verifier.load,
    **dict.fromkeys(("gload", "atomic"), _Verifier.memory),
    "stack_get": _Verifier.stack_get,
    **dict.fromkeys(("barrier", "shuffle", "ballot", "fence"), _Verifier.among_threads),
    **dict.fromkeys(("arg", "shape", "iter", "seed"), _Verifier.leaf),
}
"""The rules of the operations that are not arithmetic."""


def verify_task(task: Task, lowered: bool = True, args: set[ArgDecl] | None = None) -> None:
    """Check one task; ``args``: the arguments of its kernel, when they are known.

    Raises:
        VerifyError: naming the task, the rule by its number, and the statement.
    """
    v = _Verifier(task, lowered, args)
    v.prologue()
    v.defined = {a.index for a in task.axes}
    v.stored = {r.local for r in task.reductions}
    v.in_body = True
    v.block(task.body)


def verify_kernel(kernel: Kernel, lowered: bool = True) -> None:
    """Check every task of a kernel, and its arguments.

    Raises:
        VerifyError: see ``verify_task``.
    """
    for task in kernel.tasks:
        verify_task(task, lowered, set(kernel.args))
    if len({a.index for a in kernel.args}) not in (1, len(kernel.args)):  # all zero: a kernel that was built by hand
        raise VerifyError(f"{kernel.name}: rule 22: two arguments have one number\n  {RULES[22]}")


F = TypeVar("F", bound=Callable[..., Any])


def verified(lowered: bool = True) -> Callable[[F], F]:
    """Decorator of a pass: check what it returns (a kernel, or an object with one), or the task that it edits in place.

    A pass in place that returns False or 0 has changed nothing, so it is not checked; the pass over the kernel that runs it is.
    Nothing is done unless ``QDRUN_VERIFY`` is set. ``lowered``: whether break, continue and return are gone by then.
    """

    def decorate(pass_: F) -> F:
        @functools.wraps(pass_)
        def checked(*args: Any, **kwargs: Any) -> Any:
            out = pass_(*args, **kwargs)
            if (out is None or out) and os.environ.get("QDRUN_VERIFY", "") not in ("", "0"):
                _verify_result(out, args, lowered)
            return out

        checked.__verified__ = lowered  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate


def _verify_result(out: Any, args: tuple[Any, ...], lowered: bool) -> None:
    found = out if isinstance(out, (Kernel, Task)) else getattr(out, "kernel", args[0])
    if isinstance(found, Kernel):
        verify_kernel(found, lowered)
    else:
        verify_task(found, lowered)
