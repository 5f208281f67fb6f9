"""Gates: the conditions around everything of a task that needs an adstack row, as far as they are known before a launch.

An iteration that does not pass the gate claims no row. A condition is known if it is made of elements of arrays that the kernel does not
write, of arguments, extents, axis indices and literals, by operations that numpy computes to the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from ..ir.nodes import Axis, Block, Const, If, Kernel, Loc, Local, LocalStore, Loop, Op, Operand, Place, Stmt, Task
from ..ir.threads import once
from ..ir.types import f16, f32
from ..ir.walk import stored_locals, walk, written_places

EXACT_REAL = frozenset("add sub mul div neg abs min max sqrt select lt le gt ge eq ne cast isnan isinf detach".split())
"""Operations on reals that have one right result: IEEE 754 rounds them."""
INTEGER = frozenset(
    "add sub mul floordiv mod cdiv crem min max neg abs and or xor shl shr sar select lt le gt ge eq ne not cast".split()
)
MOST_PARTS = 400
"""A count evaluates its conditions for each iteration: larger ones are not counted."""
DEEPEST = 100


@dataclass(frozen=True)
class Around:
    """Where an iteration of a task needs its row: the innermost block with all loops that keep something.

    ``arms``: the ``if``s around the block, outermost first, each with whether the block lies in its first arm.
    """

    arms: tuple[tuple[If, bool], ...]
    block: Block
    loc: Loc | None


@dataclass(frozen=True)
class Condition:
    """A condition of a gate: a truth value whose leaves are literals, axis indices, arguments, extents and elements."""

    cond: Operand
    holds: bool


@dataclass(frozen=True)
class Gate:
    """An iteration passes when every test's condition is what the test says.

    Attributes:
        tests: what can be evaluated before a launch.
        dropped: why other conditions cannot; the count without them is an upper bound.
        axes: the task's axes, with bounds as formulas.
    """

    tests: tuple[Condition, ...]
    dropped: tuple[str, ...]
    axes: tuple[Axis, ...]

    @once
    def approximable(self) -> bool:
        """Whether a test divides f32 or f16 numbers or takes a root of one."""
        return any(op.op in ("div", "sqrt") and op.dtype in (f16, f32) for t in self.tests for op in _ops(t.cond))

    def leaves(self) -> tuple[Op, ...]:
        """Everything that a count reads of a launch: ops ``gload``, ``arg`` and ``shape``."""
        seen: dict[Op, None] = {}
        for x in (*(t.cond for t in self.tests), *(end for a in self.axes for end in (a.begin, a.end))):
            seen |= dict.fromkeys(_ops(x))
        return tuple(op for op in seen if op.op in ("gload", "arg", "shape"))


def around_stacks(task: Task, stacked: Set[Loop]) -> Around:
    """The block around all loops of ``stacked``. It lies in no loop: in one, an iteration would meet it more than once."""
    block, loc, arms = task.body, task.loc, []
    while True:
        holders = [s for s in block if _holds([s], stacked)]
        only = holders[0] if len(holders) == 1 else None
        if not isinstance(only, If) or (_holds(only.then, stacked) and _holds(only.orelse, stacked)):
            return Around(tuple(arms), block, loc)
        first = _holds(only.then, stacked)
        arms.append((only, first))
        block, loc = only.then if first else only.orelse, only.loc or loc


def _holds(block: list[Stmt], stacked: Set[Loop]) -> bool:
    return any(isinstance(s, Loop) and s in stacked for s in walk(block))


def gate_of(kernel: Kernel, task: Task, stacked: Set[Loop]) -> Gate | None:
    """The gate of a primal task, some of whose loops keep something; None when no condition is around them all."""
    arms = around_stacks(task, stacked).arms if stacked else ()
    if not arms:
        return None
    reader = _Reader(kernel, task)
    tests: list[Condition] = []
    dropped: list[str] = []
    block = task.body
    for s, first in arms:
        reader.block(block[: block.index(s)])
        try:
            tests.append(Condition(_small(reader.value(s.cond)), first))
        except _NotKnown as e:
            dropped.append(e.why)
        block = s.then if first else s.orelse
    try:
        axes = tuple(Axis(a.index, _small(reader.value(a.begin)), _small(reader.value(a.end))) for a in task.axes)
    except _NotKnown as e:
        return Gate((), (*dropped, f"how many iterations there are: {e.why}"), ())
    return Gate(tuple(tests), tuple(dict.fromkeys(dropped)), axes)


class _NotKnown(Exception):
    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


Found = Operand | _NotKnown


@dataclass
class _Reader:
    """Follows a task to its gate and says what each value is made of."""

    kernel: Kernel
    task: Task
    _locals: dict[Local, Found] = field(default_factory=dict)
    _values: dict[Op, Found] = field(default_factory=dict)
    _depth: int = 0

    def __post_init__(self) -> None:
        self._written = set().union(*(written_places(t.body) for t in self.kernel.tasks))
        self._axes = {a.index for a in self.task.axes}
        self.block(self.task.prologue)

    # ---- statements
    def block(self, block: list[Stmt]) -> None:
        """Follow the statements of a block."""
        for s in block:
            if isinstance(s, LocalStore):
                self._locals[s.local] = self.find(s.value)
            elif isinstance(s, Op) and s.op == "load":
                assert isinstance(s.attr, Local)
                self._values[s] = self._locals.get(s.attr, Const(0, s.attr.dtype))
            elif isinstance(s, If):
                self._if(s)
            elif isinstance(s, Loop):
                for local in (*stored_locals(s.body), *([s.exit] if s.exit else [])):
                    self._locals[local] = _NotKnown(f"`{local.name}` is set in a loop")

    def _if(self, s: If) -> None:
        before = dict(self._locals)
        self.block(s.then)
        then, self._locals = self._locals, dict(before)
        self.block(s.orelse)
        for local in stored_locals([s]):
            self._locals[local] = self._choice(s.cond, *(m.get(local, Const(0, local.dtype)) for m in (then, self._locals)))

    def _choice(self, cond: Operand, a: Found, b: Found) -> Found:
        found = self.find(cond)
        for x in (found, a, b):
            if isinstance(x, _NotKnown):
                return x
        assert not isinstance(a, _NotKnown) and not isinstance(b, _NotKnown) and not isinstance(found, _NotKnown)
        return a if a is b else Op("select", (found, a, b), a.dtype)

    # ---- values
    def find(self, x: Operand) -> Found:
        """What a value is made of, or why nobody can tell."""
        try:
            return self.value(x)
        except _NotKnown as e:
            return e

    def value(self, x: Operand) -> Operand:
        """What a value is made of.

        Raises:
            _NotKnown: only running can tell.
        """
        if isinstance(x, Const):
            return x
        if x not in self._values:
            self._depth += 1
            try:
                self._values[x] = self._op(x)
            except _NotKnown as e:
                self._values[x] = e
            finally:
                self._depth -= 1
        found = self._values[x]
        if isinstance(found, _NotKnown):
            raise found
        return found

    def _op(self, x: Op) -> Operand:
        if self._depth > DEEPEST:
            raise _NotKnown(f"a formula of more than {DEEPEST} operations one inside the other")
        if x.op in ("arg", "shape") or x in self._axes:
            return x
        if x.op == "gload":
            assert isinstance(x.attr, Place)
            self._check(x.attr)
        elif not self._exact(x):
            raise _NotKnown("the index of a loop" if x.op == "index" else f"a value of `{x.op}`")
        return Op(x.op, tuple(self.value(a) for a in x.args), x.dtype, x.attr, x.loc)

    def _check(self, place: Place) -> None:
        if place in self._written:
            raise _NotKnown(f"`{place.name}`, which the same kernel writes")
        if place.buffer.kind not in ("field", "arg") or place.is_grad:
            raise _NotKnown(f"`{place.name}`, which the gradient may write")

    @staticmethod
    def _exact(x: Op) -> bool:
        reals = [a.dtype.is_real for a in x.args]
        return x.op in EXACT_REAL if any(reals) else x.op in INTEGER or (x.op == "cast" and x.dtype.is_real)


def _ops(x: Operand) -> Iterator[Op]:
    """Every operation in a formula, once."""
    seen: set[Op] = set()
    todo = [x]
    while todo:
        op = todo.pop()
        if isinstance(op, Op) and op not in seen:
            seen.add(op)
            todo += op.args
            yield op


def _small(x: Operand) -> Operand:
    if sum(1 for _ in _ops(x)) > MOST_PARTS:
        raise _NotKnown(f"a formula of more than {MOST_PARTS} operations")
    return x
