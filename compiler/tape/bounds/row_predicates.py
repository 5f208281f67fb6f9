"""Gates: the conditions around everything of a task that needs an adstack row, as far as they are known before a launch.

An iteration that does not pass the gate claims no row. A condition is known if it is made of elements of arrays that the kernel does not
write, of arguments, extents, axis indices and literals, by operations that numpy computes to the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from ...ir.nodes import Block, If, Kernel, Loc, Loop, Op, Operand, Place, Stmt, Task
from ...ir.threads import once
from ...ir.types import DType, f16, f32
from ...ir.walk import walk
from .flow import NEVER, Carried, Reaching
from .reader import MOST_PARTS, TOO_LARGE, ExactReader, first_unknown
from .sizeexpr import Bin, ElementRead, Extent, Index, Lit, Range, ScalarArgument, SizeExpr, UnknownExpr, inner

EXACT_REAL = frozenset("add sub mul div neg abs min max sqrt select lt le gt ge eq ne cast isnan isinf detach".split())
"""Operations on reals that have one right result: IEEE 754 rounds them."""
INTEGER = frozenset(
    "add sub mul floordiv mod cdiv crem min max neg abs and or xor shl shr sar select lt le gt ge eq ne not cast".split()
)


@dataclass(frozen=True)
class RowScope:
    """The block in which an iteration of a task needs its row: the innermost one that contains all loops with stacks.

    ``arms``: the ``if``s around the block, outermost first, each with whether the block is in its first arm.
    """

    arms: tuple[tuple[If, bool], ...]
    block: Block
    loc: Loc | None


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition of a gate: a truth value without picks."""

    cond: SizeExpr
    holds: bool


@dataclass(frozen=True, eq=False)
class RowPredicate:
    """An iteration passes when every test's condition is what the test says.

    Attributes:
        tests: what can be evaluated before a launch.
        dropped: why other conditions cannot; the count without them is an upper bound.
        axes: the ranges of the task's axes, exactly.
    """

    tests: tuple[Condition, ...]
    dropped: tuple[str, ...]
    axes: tuple[Range, ...]

    @once
    def approximable(self) -> bool:
        """Whether a test divides f32 or f16 numbers or takes a root of one."""
        conds = (x for t in self.tests for x in distinct(t.cond))
        return any(isinstance(x, Bin) and x.op in ("div", "sqrt") and x.dtype in (f16, f32) for x in conds)

    def leaves(self) -> tuple[SizeExpr, ...]:
        """Everything that a count reads of a launch: elements, arguments and extents."""
        exprs = (*(t.cond for t in self.tests), *(end for r in self.axes for end in r.ends))
        return tuple(x for e in exprs for x in distinct(e) if isinstance(x, (ElementRead, ScalarArgument, Extent)))


def around_stacks(task: Task, stacked: Set[Loop]) -> RowScope:
    """The block around all loops of ``stacked``. It lies in no loop: in one, an iteration would meet it more than once."""
    block, loc, arms = task.body, task.loc, []
    while True:
        holders = [s for s in block if _holds([s], stacked)]
        only = holders[0] if len(holders) == 1 else None
        if not isinstance(only, If) or (_holds(only.then, stacked) and _holds(only.orelse, stacked)):
            return RowScope(tuple(arms), block, loc)
        first = _holds(only.then, stacked)
        arms.append((only, first))
        block, loc = only.then if first else only.orelse, only.loc or loc


def _holds(block: list[Stmt], stacked: Set[Loop]) -> bool:
    return any(isinstance(s, Loop) and s in stacked for s in walk(block))


def gate_of(kernel: Kernel, task: Task, stacked: Set[Loop]) -> RowPredicate | None:
    """The gate of a primal task, some of whose loops keep something; None when no condition is around them all."""
    arms = around_stacks(task, stacked).arms if stacked else ()
    if not arms:
        return None
    reader = _Reader(kernel, task)
    tests: list[Condition] = []
    dropped: list[str] = []
    for s, first in arms:
        cond = reader.expr(s.cond)
        if isinstance(cond, UnknownExpr):
            dropped.append(cond.why)
        else:
            tests.append(Condition(cond, first))
    axes = reader.axes()
    for end in (end for r in axes for end in r.ends):
        if isinstance(end, UnknownExpr):
            return RowPredicate((), (*dropped, f"how many iterations there are: {end.why}"), ())
    return RowPredicate(tuple(tests), tuple(dict.fromkeys(dropped)), axes)


class _Reader(ExactReader):
    """Expressions of exactly what a kernel computes, reals included; anything else is unknown."""

    @once
    def _indices(self) -> set[Op]:
        return {a.index for a in self.task.axes}

    def expr(self, x: Operand) -> SizeExpr:
        """The expression of a value. Parts that stand in several places count once."""
        found = self._raw(x)
        return UnknownExpr(TOO_LARGE) if sum(not isinstance(e, Lit) for e in distinct(found)) > MOST_PARTS else found

    def _accepted(self, x: Operand, found: SizeExpr) -> SizeExpr:
        return UnknownExpr("the index of a loop") if isinstance(found, Index) and found.op not in self._indices else found

    def _operation(self, x: Op) -> SizeExpr:
        if x.op not in (EXACT_REAL if any(a.dtype.is_real for a in x.args) else INTEGER):
            return UnknownExpr(f"a value of `{x.op}`")
        args = tuple(map(self._raw, x.args))
        return first_unknown(args) or (args[0] if x.op == "detach" else Bin(x.op, args, x.dtype))

    def _read(self, x: Op) -> SizeExpr:
        place = x.attr
        assert isinstance(place, Place)
        if place in self._written:
            return UnknownExpr(f"`{place.name}`, which the same kernel writes")
        if place.buffer.kind not in ("field", "arg") or place.is_grad:
            return UnknownExpr(f"`{place.name}`, which the gradient may write")
        return self._element(x, place)

    def _reaching(self, found: Reaching, dtype: DType) -> SizeExpr:
        if found is NEVER:
            return Lit(0, dtype)
        if isinstance(found, Carried):
            return UnknownExpr(f"`{found.variable.name}` is set in a loop")
        return super()._reaching(found, dtype)

    def _select(self, cond: Operand, then: SizeExpr, orelse: SizeExpr, dtype: DType) -> SizeExpr:
        args = self._raw(cond), then, orelse
        return first_unknown(args) or (then if then is orelse else Bin("select", args, dtype))


def distinct(e: SizeExpr) -> Iterator[SizeExpr]:
    """Each expression in an expression, once."""
    seen: set[int] = set()
    todo = [e]
    while todo:
        x = todo.pop()
        if id(x) not in seen:
            seen.add(id(x))
            todo += inner(x)
            yield x
