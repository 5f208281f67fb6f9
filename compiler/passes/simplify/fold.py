"""Constant folding and algebraic identities that are exact: integers wrap, floats keep every bit (signed zeros, NaN).

What is not exact is not here: ``x + 0.0`` turns -0.0 into 0.0, ``x * 0.0`` may be NaN or -0.0, ``not (a < b)`` is true for NaN.
Transcendental functions of literals are left to the machine that runs the rest, so that both agree.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, isinf, isnan

import numpy as np

from ...ir.meaning import evaluate, scalar
from ...ir.nodes import Assert, Block, Const, Exit, If, Loop, Op, Operand, Stmt, Task
from ...ir.ops import COMMUTATIVE, COMPARE, TABLE, is_function
from ...ir.types import DType, u1
from ...ir.verify import verified
from ..clone import replace_head, substitute

_FOLDABLE = frozenset(code for code, info in TABLE.items() if info.pure and info.arity > 0)
_INVERSE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


@verified(lowered=False)
def fold_in_place(task: Task) -> bool:
    """Fold one task; whether anything changed."""
    folder = _Folder(task)
    folder.block(task.prologue)
    replace_head(task, folder.value)
    folder.block(task.body)
    return folder.changed


class _Folder:
    def __init__(self, task: Task) -> None:
        self.known: dict[Op, Operand] = {}
        self.kept_loops = {stack.loop for stack in task.stacks}
        self.changed = False

    def value(self, x: Operand) -> Operand:
        """The replacement of an operand."""
        return self.known.get(x, x) if isinstance(x, Op) else x

    def block(self, block: Block) -> None:
        """Fold the statements; nothing is reached after an exit."""
        out: Block = []
        for s in block:
            out += self.stmt(s)
            if out and isinstance(out[-1], Exit):
                break
        self.changed |= len(out) != len(block)
        block[:] = out

    def stmt(self, s: Stmt) -> Block:
        """The statements that take the place of one."""
        if self.known:
            substitute(s, self.known)
        match s:
            case Op() if s.op in _FOLDABLE:
                before = (s.op, s.args)
                new = fold_op(s)
                self.changed |= new is not None or (s.op, s.args) != before
                if new is not None:
                    self.known[s] = new
                    return []
            case If():
                return self.branch(s)
            case Loop():
                if _never_runs(s) and s not in self.kept_loops:
                    return []
                self.block(s.body)
            case Assert(cond=Const(value=True)):
                return []
        return [s]

    def branch(self, s: If) -> Block:
        """An arm chosen by a literal takes the statement's place; inside an arm the condition is known."""
        if isinstance(s.cond, Const) and not (s.site and s.cond.value):
            arm = s.then if s.cond.value else s.orelse
            self.block(arm)
            self.changed = True
            return arm
        for arm, truth in ((s.then, True), (s.orelse, False)):
            facts = _facts(s.cond, truth)
            before = {fact: self.known[fact] for fact in facts if fact in self.known}
            self.known.update(facts)
            self.block(arm)
            for fact in facts:
                del self.known[fact]
            self.known.update(before)
        return [s]


def _facts(cond: Operand, truth: bool) -> dict[Op, Operand]:
    """The truth values that are known in an arm."""
    out: dict[Op, Operand] = {}
    while isinstance(cond, Op):
        out[cond] = Const(truth, u1)
        if cond.op != "not":
            break
        cond, truth = cond.args[0], not truth
    return out


def _never_runs(s: Loop) -> bool:
    if not (isinstance(s.begin, Const) and isinstance(s.end, Const)):
        return False
    return not range(int(s.begin.value), int(s.end.value), s.step)


def fold_op(s: Op) -> Operand | None:
    """The operand that ``s`` is equal to, if there is one; else ``s`` may be rewritten in place to a simpler form."""
    for a in s.args:
        if a.__class__ is Op:
            break
    else:
        return _compute(s)
    if s.op in COMMUTATIVE and isinstance(s.args[0], Const):
        s.args = (s.args[1], s.args[0])
    rule = _RULES.get(s.op)
    if rule is not None:
        return rule(s)
    if s.op in COMPARE and s.args[0] is s.args[1] and s.args[0].dtype.is_int:
        return Const(s.op in ("le", "ge", "eq"), u1)
    return None


def _compute(s: Op) -> Const | None:
    if (is_function(s.op) or s.op == "rsqrt") and s.args[0].dtype.is_real:
        return None
    args = [scalar(a.value, a.dtype) for a in s.args if isinstance(a, Const)]
    value = evaluate(s.op, args, s.dtype).item()
    if isinstance(value, float) and (isnan(value) or (isinf(value) and all(map(np.isfinite, args)))):
        return None  # left to the machine, where ``nan_check`` finds it
    return Const(value, s.dtype)


def _is(x: Operand, value: int) -> bool:
    """Whether ``x`` is a literal equal to ``value`` (a truth value counts as 0 or 1)."""
    return isinstance(x, Const) and x.value == value


def _zero(dtype: DType) -> Const:
    return Const(False, dtype) if dtype.kind == "b" else Const(0, dtype)


def _ones(x: Operand) -> bool:
    """Whether ``x`` is a literal with every bit set."""
    return isinstance(x, Const) and scalar(x.value, x.dtype) == scalar(True if x.dtype.kind == "b" else -1, x.dtype)


def _signed_zero(x: Operand, sign: float) -> bool:
    return _is(x, 0) and isinstance(x, Const) and copysign(1.0, x.value) == sign


def _regroup(s: Op) -> None:
    """(x op a) op b becomes x op (a op b): exact for integers that wrap."""
    inner, outer = s.args
    if isinstance(outer, Const) and isinstance(inner, Op) and inner.op == s.op and isinstance(inner.args[1], Const):
        both = evaluate(s.op, [scalar(c.value, c.dtype) for c in (inner.args[1], outer)], s.dtype)
        s.args = (inner.args[0], Const(both.item(), s.dtype))


def _add(s: Op) -> Operand | None:
    x, y = s.args
    if s.dtype.is_real:
        return x if _signed_zero(y, -1.0) else None
    if _is(y, 0):
        return x
    _regroup(s)
    return s.args[0] if _is(s.args[1], 0) else None


def _sub(s: Op) -> Operand | None:
    x, y = s.args
    if s.dtype.is_real:
        return x if _signed_zero(y, 1.0) else None
    if _is(y, 0) or x is y:
        return x if x is not y else _zero(s.dtype)
    if _is(x, 0):
        s.op, s.args = "neg", (y,)
    elif isinstance(y, Const):
        s.op, s.args = "add", (x, Const(scalar(-int(y.value), s.dtype).item(), s.dtype))
        return _add(s)
    return None


def _mul(s: Op) -> Operand | None:
    x, y = s.args
    if _is(y, 1):
        return x
    if s.dtype.is_int:
        if _is(y, 0):
            return _zero(s.dtype)
        _regroup(s)
    return None


def _divide(s: Op) -> Operand | None:
    x, y = s.args
    exact = s.op == "div" or s.dtype.is_int
    return x if exact and _is(y, 1) else None


def _remainder(s: Op) -> Operand | None:
    return _zero(s.dtype) if s.dtype.is_int and _is(s.args[1], 1) else None


def _power(s: Op) -> Operand | None:
    x, y = s.args
    if s.dtype.is_int and _is(y, 0):
        return Const(1, s.dtype)
    if s.dtype.is_int and _is(y, 2):
        s.op, s.args = "mul", (x, x)
        return None
    return x if s.dtype.is_int and _is(y, 1) else None


def _bits(s: Op) -> Operand | None:
    x, y = s.args
    if x is y:
        return _zero(s.dtype) if s.op == "xor" else x
    if _is(y, 0):
        return y if s.op == "and" else x
    if _ones(y):
        if s.op == "xor":
            s.op, s.args = ("not" if s.dtype.kind == "b" else "bitnot"), (x,)
            return None
        return x if s.op == "and" else y
    return None


def _shift(s: Op) -> Operand | None:
    return s.args[0] if _is(s.args[1], 0) else None


def _same(s: Op) -> Operand | None:
    return s.args[0] if s.args[0] is s.args[1] else None


def _equal(s: Op) -> Operand | None:
    x, y = s.args
    if x is y and x.dtype.is_int:
        return Const(s.op == "eq", u1)
    if x.dtype.kind == "b" and isinstance(y, Const):
        if bool(y.value) == (s.op == "eq"):
            return x
        s.op, s.args = "not", (x,)
        return _not(s)
    return None


def _not(s: Op) -> Operand | None:
    x = s.args[0]
    if isinstance(x, Op) and x.op == "not":
        return x.args[0]
    if isinstance(x, Op) and x.op in COMPARE and (x.args[0].dtype.is_int or x.op in ("eq", "ne")):
        s.op, s.args = _INVERSE[x.op], x.args
    return None


def _twice(s: Op) -> Operand | None:
    x = s.args[0]
    return x.args[0] if isinstance(x, Op) and x.op == s.op else None


def _select(s: Op) -> Operand | None:
    cond, x, y = s.args
    if isinstance(cond, Const):
        return x if cond.value else y
    if x is y or (isinstance(x, Const) and isinstance(y, Const) and repr(x) == repr(y)):
        return x
    if s.dtype.kind == "b" and _is(x, 1) and _is(y, 0):
        return cond
    if isinstance(cond, Op) and cond.op == "not":
        s.args = (cond.args[0], y, x)
    return None


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of ``narrow`` is a value of ``wide``."""
    if wide.is_real:
        digits = {16: 11, 32: 24, 64: 53}[wide.bits]
        return narrow.bits <= (wide.bits if narrow.is_real else digits)
    if narrow.is_real:
        return False
    return wide is narrow or (wide.bits > narrow.bits and (wide.kind == "i" or narrow.kind != "i"))


def _cast(s: Op) -> Operand | None:
    x = s.args[0]
    if x.dtype is s.dtype:
        return x
    if not (isinstance(x, Op) and x.op == "cast"):
        return None
    source = x.args[0].dtype
    saturates = x.dtype.is_real and s.dtype.is_int and s.dtype.kind != "b"
    if _holds(x.dtype, source) and (not saturates or _holds(s.dtype, source)):
        s.args = (x.args[0],)
        return x.args[0] if source is s.dtype else None
    return None


_RULES: dict[str, Callable[[Op], Operand | None]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    **dict.fromkeys(("div", "floordiv", "cdiv"), _divide),
    **dict.fromkeys(("mod", "crem"), _remainder),
    "pow": _power,
    **dict.fromkeys(("and", "or", "xor"), _bits),
    **dict.fromkeys(("shl", "shr", "sar"), _shift),
    **dict.fromkeys(("min", "max"), _same),
    **dict.fromkeys(("eq", "ne"), _equal),
    "not": _not,
    **dict.fromkeys(("neg", "bitnot"), _twice),
    "select": _select,
    "cast": _cast,
}
