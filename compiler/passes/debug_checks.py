"""Checks for debugging: asserts name the iteration that failed, and a test follows each operation that may make a NaN.

The last pass before code is generated: on forward, reverse and forward-mode kernels after simplification and reductions, so that the
checks test what the machine computes, and the values keep their bits.

An operation *makes* a NaN when its result is one and no operand is, and an infinity when all its operands are finite. Its result counts
where something demands it: a store, an ``if``, an index, an operation whose own result is demanded. An arm of a ``select`` is demanded
when it is taken; the test is put in front of the select then. ``isnan``, ``isinf`` and ``x != x`` demand nothing. A NaN that comes with
an argument or from memory is reported where it is read; an infinity there may be intended.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isinf, isnan

from ..ir.builder import StatementBuilder
from ..ir.nodes import Assert, Block, Const, FaultKind, If, Kernel, LocalStore, Loop, Op, Operand, Place, Task
from ..ir.verify import verified
from ..ir.walk import atomic_of, inner_blocks, loop_names, walk
from .clone import clone_kernel
from .parallel.reduce import inside
from .simplify.demand import Demand, Demands, demands_of

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**"}
_CALLS = frozenset("sin cos tan asin acos sinh cosh exp expm1 log log1p sqrt rsqrt".split())
_USERS = ("field", "arg", "arg_grad", "arg_dual")
"""Memory that others write, too."""


@verified()
def checked(kernel: Kernel, nan: bool) -> Kernel:
    """The kernel with its asserts saying where they failed.

    Args:
        kernel: as it would be compiled; not changed.
        nan: put in the tests for NaN and infinities, too.
    """
    out = clone_kernel(kernel)
    for task in out.tasks:
        _Checker(task, nan).run()
    if nan:  # behind all others: launch parameters go by the numbers of the tasks
        out.tasks += [new for task in out.tasks if (new := _sums(task)) is not None]
    return out


def unchecked(kernel: Kernel) -> Kernel:
    """The kernel without its asserts. What they alone needed is still there."""
    out = clone_kernel(kernel)
    for task in out.tasks:
        _drop(task.body)
    return out


def _drop(block: Block) -> None:
    block[:] = [s for s in block if not isinstance(s, Assert) and not (isinstance(s, Op) and s.op == "mark")]
    for s in block:
        for inner in inner_blocks(s):
            _drop(inner)


class _Checker:
    """Rewrites the body of a task in place. Where there are marks, they say at which indices the user's loops are."""

    def __init__(self, task: Task, nan: bool) -> None:
        self.task = task
        self._marked = any(isinstance(s, Op) and s.op == "mark" for s in walk(task.body))
        self._around: list[tuple[str, Operand]] = []
        self._demands = demands_of(task.body) if nan else Demands({})

    def run(self) -> None:
        """Rewrite the task."""
        if self.task.serialize or self.task.axes:
            names = loop_names(self.task.loc, len(self.task.axes))
            self._around = [(name, axis.index) for name, axis in zip(names, self.task.axes)]
        self._block(self.task.body)

    def _block(self, block: Block) -> None:
        depth, later = len(self._around), dict[int, list[tuple[Op, Demand]]]()
        b = StatementBuilder([])
        for position, s in enumerate(block):
            for op, demand in later.pop(position, ()):
                self._test(b, op, demand)
            match s:
                case Op(op="mark"):
                    self._enter(str(s.attr), s.args[0])
                    continue
                case Assert():
                    s.args += tuple(index for _, index in self._around)
                    s.loops = tuple(name for name, _ in self._around)
                case If():
                    self._block(s.then)
                    self._block(s.orelse)
                case Loop():
                    self._loop(s)
            b.block.append(s)
            if isinstance(s, Op) and s in self._demands.of and _may_fail(s):
                demand = self._demands.of[s]
                if demand.always:
                    self._test(b, s, demand)
                else:
                    later.setdefault(demand.position, []).append((s, demand))
        del self._around[depth:]
        block[:] = b.block

    def _enter(self, name: str, index: Operand) -> None:
        self._around.append((name, index))

    def _loop(self, s: Loop) -> None:
        if not self._marked:
            self._enter(loop_names(s.loc)[0], s.index)
        self._block(s.body)
        if not self._marked:
            self._around.pop()

    def _test(self, b: StatementBuilder, s: Op, demand: Demand) -> None:
        """Stop if the operation has computed, or read, a value that is not finite."""
        b.loc = s.loc
        found = _fault(b, s)
        if found is None:
            return
        bad, kind, message, shown = found
        if not demand.always:
            bad = b.op("and", bad, _holds(b, demand))
        loops = tuple(name for name, _ in self._around)
        indices = tuple(index for _, index in self._around)
        b.put(Assert(b.op("not", bad), message, (*shown, *indices), s.loc, kind, loops))


def _holds(b: StatementBuilder, demand: Demand) -> Operand:
    """Whether a value is demanded."""
    cases = [
        _all(b, [cond if truth else b.op("not", cond) for cond, truth in sorted(way, key=lambda c: (_number(c[0]), c[1]))])
        for way in sorted(demand.ways, key=lambda w: sorted((_number(c), t) for c, t in w))
    ]
    return _fold(b, "or", cases)


def _number(x: Operand) -> int:
    return x.id if isinstance(x, Op) else 0


def _all(b: StatementBuilder, conditions: list[Operand]) -> Operand:
    return _fold(b, "and", conditions)


def _fold(b: StatementBuilder, code: str, values: Iterable[Operand]) -> Operand:
    first, *rest = values
    for x in rest:
        first = b.op(code, first, x)
    return first


def _may_fail(s: Op) -> bool:
    if s.op == "atomic":
        place, code = atomic_of(s)
        return place.dtype.is_real and code in ("add", "sub", "mul")
    if not s.dtype.is_real:
        return False
    if s.op == "gload":
        assert isinstance(s.attr, Place)
        return s.attr.buffer.kind in _USERS
    if s.op == "cast":
        return s.args[0].dtype.bits > s.dtype.bits if s.args[0].dtype.is_real else s.dtype.bits == 16
    return s.op == "arg" or s.op in _INFIX or s.op in _CALLS


def _fault(b: StatementBuilder, s: Op) -> tuple[Operand, FaultKind, str, tuple[Operand, ...]] | None:
    """Whether an operation fails (u1), how, the text of that, and the values in the text."""
    if s.op == "gload":
        assert isinstance(s.attr, Place)
        element = f"{s.attr.name}[{', '.join('{}' for _ in s.args)}]" if s.args else s.attr.name
        return b.op("isnan", s), "input", f"`{element}` holds a NaN when it is read", s.args
    if s.op == "arg":
        return b.op("isnan", s), "input", f"the argument `{s.attr.name}` is a NaN", ()  # type: ignore[union-attr]
    if s.op == "atomic":
        place, code = atomic_of(s)
        value = s.args[-1]
        new = b.op(code, s, value)
        text = f"{{1}} {_INFIX[code]} {{2}} = {{0}} in `{place.name}`"
        bad = _any(b, [_made(b, "isnan", new, (value,)), _made(b, "isinf", new, (s, value))])
        return None if bad is None else (bad, "nan", _MADE + text, (new, s, value))
    if s.op in _INFIX:
        text = f"{{1}} {_INFIX[s.op]} {{2}} = {{0}}"
    else:
        text = f"{s.dtype if s.op == 'cast' else s.op}({{1}}) = {{0}}"
    bad = _any(b, [_made(b, test, s, s.args) for test in ("isnan", "isinf")])
    return None if bad is None else (bad, "nan", _MADE + text, (s, *s.args))


_MADE = "a result is not finite: "


def _made(b: StatementBuilder, test: str, result: Operand, args: tuple[Operand, ...]) -> Operand | None:
    """Whether the test holds of a result and of no operand; None: it cannot."""
    real = [a for a in args if a.dtype.is_real]
    known = [_literal(test, a.value) for a in real if isinstance(a, Const)]
    if any(known):
        return None
    before = [b.op(test, a) for a in real if not isinstance(a, Const)]
    now = b.op(test, result)
    return b.op("and", now, b.op("not", _fold(b, "or", before))) if before else now


def _literal(test: str, value: float) -> bool:
    """``isnan`` or ``isinf`` of a literal."""
    return isnan(value) if test == "isnan" else isinf(value)


def _any(b: StatementBuilder, conditions: list[Operand | None]) -> Operand | None:
    known = [c for c in conditions if c is not None]
    return _fold(b, "or", known) if known else None


# ---- sums
def _sums(task: Task) -> Task | None:
    """A task that looks at what a loop has added up, where that is one element that there always is."""
    sums = [r for r in task.reductions if r.code == "add" and r.place.dtype.is_real and inside(r.place, r.index)]
    if not sums:
        return None
    b = StatementBuilder([])
    for r in sums:
        b.loc = next((s.loc for s in walk(task.body) if isinstance(s, LocalStore) and s.local is r.local), task.loc)
        total = b.gload(r.place, r.index)
        bad = b.op("or", b.op("isnan", total), b.op("isinf", total))
        message = f"the sum into `{r.place.name}` over the iterations of a loop is {{}}"
        b.put(Assert(b.op("not", bad), message, (total,), b.loc, "nan"))
    return Task(f"{task.name}_sums", b.block, loc=task.loc)
