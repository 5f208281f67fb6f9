"""Turns IR values of a task into SizeExprs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...ir.nodes import ArgDecl, Const, Kernel, Loop, Op, Operand, Place, Task
from ...ir.threads import once
from ...ir.types import DType, limits, u1, u64
from ...ir.walk import written_places
from .flow import Before, Carried, Phi, Reaching, ReachingDefinitions, is_variable
from .sizeexpr import (
    OPS,
    Bin,
    Cast,
    ElementRead,
    Extent,
    Index,
    Lit,
    Pick,
    Range,
    ScalarArgument,
    SizeExpr,
    UnknownExpr,
    any_of,
    as_type,
    inner,
    item,
    length,
    minus,
    parts,
    pick,
    plus,
    position,
    rebuilt,
    substituted,
    times,
    truth,
    wide,
)

MOST_PARTS = 400
"""A plan evaluates its formulas for every launch: larger ones are treated as known only while running."""

DEEPEST = 100
TOO_LARGE = f"a formula of more than {MOST_PARTS} operations"
TOO_DEEP = f"a formula of more than {DEEPEST} operations one inside the other"
MOST_OPEN = 16  # variables whose formulas are made of each other
COMPARISONS = frozenset("lt le gt ge eq ne".split())
NO_TRUTHS = frozenset("add sub mul floordiv mod cdiv crem neg abs sgn pow shl shr sar popcnt clz".split())
"""Operations that a one-bit value does not have."""


class _Unclear(Exception):
    """The value of a variable in a loop has no formula."""


@dataclass
class ExprReader:
    """Expressions of one task of a kernel."""

    kernel: Kernel
    task: Task
    _known: dict[Operand, SizeExpr] = field(default_factory=dict)
    _depth: int = 0
    _sizes: dict[int, int] = field(default_factory=dict)  # of the expressions in ``_known``
    _carried: dict[Op, Carried] = field(default_factory=dict)  # by symbol
    _meanings: dict[Op, SizeExpr] = field(default_factory=dict)  # of symbols
    _open: list[Op] = field(default_factory=list)  # symbols whose meaning is being found
    _chosen: dict[int, SizeExpr] = field(default_factory=dict)  # by identity of a ``Phi``

    @once
    def _written(self) -> set[Place]:
        return set().union(*(written_places(t.body) for t in self.kernel.tasks))

    @once
    def flow(self) -> ReachingDefinitions:
        """Which stores reach which loads."""
        return ReachingDefinitions(self.task)

    # ---- what others ask for
    def expr(self, x: Operand) -> SizeExpr:
        """The SizeExpr of a value. One that would be larger than ``MOST_PARTS`` is unknown: a value that is used twice counts twice."""
        return self._closed(self._raw(x))

    def loop(self, s: Loop) -> Range:
        """The range of a loop."""
        return Range(s.index, self.expr(s.begin), None if s.end is None else self.expr(s.end), s.step, s.loc)

    def axes(self) -> tuple[Range, ...]:
        """The ranges of the task's axes."""
        return tuple(Range(a.index, self.expr(a.begin), self.expr(a.end), 1, self.task.loc) for a in self.task.axes)

    def final(self, place: Place) -> SizeExpr:
        """The value of a temporary at the end of the task."""
        return self._closed(self._reaching(self.flow.end.get(place) or Before(place), place.dtype))

    # ---- operations
    def _raw(self, x: Operand) -> SizeExpr:
        """The expression, in which symbols stand for what loops carry on."""
        known = self._known.get(x)
        if known is None:
            if self._depth >= DEEPEST:
                return UnknownExpr(TOO_DEEP)
            self._depth += 1
            found = self._expr(x)
            self._depth -= 1
            known = self._known[x] = self._accepted(x, found)
        return known

    def _accepted(self, x: Operand, found: SizeExpr) -> SizeExpr:
        """The expression of a value, or what stands for one that is too large."""
        if x.dtype is u64:
            found = UnknownExpr("a value of type u64")
        if isinstance(found, UnknownExpr) and x.dtype.bits <= 8 and x.dtype.is_int:
            found = any_of(x.dtype)
        self._sizes[id(found)] = size = 1 + sum(self._sizes.get(id(e), 1) for e in inner(found))
        return found if size <= MOST_PARTS else UnknownExpr(TOO_LARGE)

    def _expr(self, x: Operand) -> SizeExpr:
        if isinstance(x, Const):
            return Lit(x.value, x.dtype)
        if x.op == "arg":
            assert isinstance(x.attr, ArgDecl)
            return ScalarArgument(x.attr)
        if x.op == "shape":
            assert isinstance(x.attr, tuple)
            return Extent(x.attr[0], x.attr[1], x.dtype)
        if x.op == "index":
            return Index(x)
        if x.op == "cast":
            return self._cast(x)
        if x.op == "load":
            return self._reaching(self.flow.at[x], x.dtype) if x in self.flow.at else UnknownExpr("a real variable")
        if x.op == "gload":
            return self._read(x)
        return self._operation(x)

    def _operation(self, x: Op) -> SizeExpr:
        unknown = UnknownExpr(f"`{x.op}` of a value known only while running")
        if x.op not in OPS or (x.dtype is u1 and x.op in NO_TRUTHS) or not x.dtype.is_int:
            return unknown
        if not all(a.dtype.is_int or (x.op in COMPARISONS and _plain(a)) for a in x.args):
            return unknown
        args = tuple(map(self._raw, x.args))
        if isinstance(args[0], UnknownExpr) and len(args) == 2 and isinstance(args[1], Lit):
            most = int(args[1].value)
            if x.op == "mod" and most > 0:
                return pick(Lit(0), Lit(most), x.dtype)
            if x.op == "and" and most >= 0:
                return pick(Lit(0), Lit(most + 1), x.dtype)
        if any(isinstance(a, UnknownExpr) for a in args) and x.op not in ("min", "max", "select"):
            return first_unknown(args) or args[0]
        return Bin(x.op, args, x.dtype)

    def _cast(self, x: Op) -> SizeExpr:
        arg = x.args[0]
        if arg.dtype.is_real and not _plain(arg):
            return UnknownExpr("a cast of a real value")
        found = self._raw(arg)
        if x.dtype.is_real:
            return UnknownExpr("a real value")
        if isinstance(found, Lit) and found.dtype.is_int and x.dtype.holds(found.dtype):
            return Lit(int(found.value), x.dtype)
        return found if isinstance(found, UnknownExpr) else Cast(found, x.dtype)

    def _read(self, x: Op) -> SizeExpr:
        place = x.attr
        assert isinstance(place, Place)
        if is_variable(place) and x in self.flow.at:
            return self._reaching(self.flow.at[x], place.dtype)
        if place in self._written or place.buffer.kind not in ("field", "arg"):
            return UnknownExpr(f"`{place.name}` is written by the same kernel")
        if place.dtype.is_real and (place.differentiable or place.dual is not None or place.is_grad):
            return UnknownExpr(
                "a value with a gradient"
            )  # it changes with every step of an optimisation, and the plan should not
        return self._element(x, place)

    def _element(self, x: Op, place: Place) -> SizeExpr:
        """An element of an array that the kernel does not write."""
        index = tuple(map(self._raw, x.args))
        return first_unknown(index) or ElementRead(place, index)

    # ---- variables
    def _reaching(self, found: Reaching, dtype: DType) -> SizeExpr:
        match found:
            case UnknownExpr():
                return found
            case Op() | Const():
                return self._raw(found)
            case Before():
                return self._before(found.place)
            case Carried():
                self._carried[found.symbol] = found
                return Index(found.symbol)
        known = self._chosen.get(id(found))
        if known is None:
            known = self._chosen[id(found)] = self._choice(found, dtype)
        return known

    def _choice(self, found: Phi, dtype: DType) -> SizeExpr:
        if self._depth >= DEEPEST:
            return UnknownExpr(TOO_DEEP)
        self._depth += 1
        then, orelse = self._reaching(found.then, dtype), self._reaching(found.orelse, dtype)
        self._depth -= 1
        return self._select(found.cond, then, orelse, dtype)

    def _select(self, cond: Operand, then: SizeExpr, orelse: SizeExpr, dtype: DType) -> SizeExpr:
        return then if then == orelse else Bin("select", (self._raw(cond), then, orelse), dtype)

    def _before(self, place: Place) -> SizeExpr:
        """A temporary at the beginning of the task: the last task before it that sets it must be serial."""
        tasks = self.kernel.tasks[: next(k for k, t in enumerate(self.kernel.tasks) if t is self.task)]
        for task in reversed(tasks):
            if place in written_places(task.body):
                serial = not task.axes
                return ExprReader(self.kernel, task).final(place) if serial else UnknownExpr(f"`{place.name}` is set by a loop")
        return UnknownExpr(f"`{place.name}` is written by the same kernel")

    # ---- what loops carry from one iteration to the next
    def _closed(self, e: SizeExpr) -> SizeExpr:
        """The expression with the meaning of each symbol, but for those that are open."""
        if not self._carried:
            return e
        known: dict[int, SizeExpr] = {}
        left = MOST_PARTS

        def at(x: SizeExpr) -> SizeExpr:
            nonlocal left
            left -= 1
            if left < 0:
                return UnknownExpr(TOO_LARGE)
            if isinstance(x, Index) and x.op in self._carried and x.op not in self._open:
                return at(self._meaning(x.op))
            if id(x) not in known:
                known[id(x)] = rebuilt(x, at)
            return known[id(x)]

        return _simple(at(e))

    def _meaning(self, symbol: Op) -> SizeExpr:
        known = self._meanings.get(symbol)
        if known is None:
            carried = self._carried[symbol]
            self._open.append(symbol)
            try:
                known = self._formula(carried)
            except _Unclear:
                known = UnknownExpr(f"`{carried.variable.name}` is counted in a loop")
            finally:
                self._open.pop()
            self._meanings[symbol] = known
        return known

    def _formula(self, c: Carried) -> SizeExpr:
        dtype = c.variable.dtype
        if len(self._open) > MOST_OPEN:
            raise _Unclear
        self._open.append(c.top)
        try:
            before = self._closed(self._reaching(c.before, dtype))
            step = self._closed(self._reaching(c.after, dtype))
            over = self.loop(c.loop)
        finally:
            self._open.pop()
        found = [x for e in (before, step, *over.ends) for x in parts(e)]
        mine = [x.op for x in parts(step) if isinstance(x, Index) and x.op in self._carried]
        if any(isinstance(x, UnknownExpr) for x in found) or any(
            self._carried[op].loop is c.loop and op is not c.top for op in mine
        ):
            raise _Unclear  # not known, or variables that go round
        return self._counter(c, before, step, over) if c.top in mine else self._last_set(c, before, step, over)

    def _last_set(self, c: Carried, before: SizeExpr, step: SizeExpr, over: Range) -> SizeExpr:
        """A variable that each iteration sets to something of its own."""
        dtype = c.variable.dtype
        if not c.left:
            first = Bin("eq", (position(over), Lit(0)), u1)
            previous = as_type(minus(wide(Index(over.index)), Lit(over.step)), over.index.dtype)
            return Bin("select", (first, before, substituted(step, {over.index: previous})), dtype)
        if over.end is None:
            raise _Unclear
        if c.loop.exit is not None:
            any_index = Pick(Range(Op("index", (), over.index.dtype), over.begin, over.end, over.step))
            return Bin("select", (truth(), substituted(step, {over.index: any_index}), before), dtype)
        n = length(over)
        ran = Bin("gt", (n, Lit(0)), u1)
        return Bin("select", (ran, substituted(step, {over.index: item(over, minus(n, Lit(1)))}), before), dtype)

    def _counter(self, c: Carried, before: SizeExpr, step: SizeExpr, over: Range) -> SizeExpr:
        """A variable that each iteration adds something constant to, or makes smaller."""
        dtype = c.variable.dtype
        if _halves(step, c.top):
            low, high = _least(wide(before), Lit(-1)), _most(wide(before), Lit(0))
            return as_type(pick(low, plus(high, Lit(1))), dtype)
        low, high = _growth(step, c.top, over)
        if c.left and over.end is None:
            raise _Unclear
        n = length(over) if c.left else position(over)
        early = c.left and c.loop.exit is not None
        if low == high and not (early and not isinstance(low, Lit)):
            return _added(before, times(low, pick(Lit(0), plus(n, Lit(1))) if early else n), dtype)
        if early:
            low, high = _least(low, Lit(0)), _most(high, Lit(0))
        return _added(before, pick(times(n, low), plus(times(n, high), Lit(1))), dtype)


class ExactReader(ExprReader):
    """Expressions of exactly what a kernel computes, reals included."""

    @once
    def flow(self) -> ReachingDefinitions:
        return ReachingDefinitions(self.task, reals=True)

    def _cast(self, x: Op) -> SizeExpr:
        arg = self._raw(x.args[0])
        return arg if isinstance(arg, UnknownExpr) else Cast(arg, x.dtype)

    def flat_number(self) -> SizeExpr:
        """The number of an iteration, of which a lane is the remainder: axes row by row."""
        number: SizeExpr = Lit(0)
        for r in self.axes():
            assert r.end is not None
            unknown = first_unknown(r.ends)
            if unknown is not None:
                return unknown
            begin, end = map(wide, r.ends)
            number = plus(times(number, minus(end, begin)), minus(wide(Index(r.index)), begin))
        return number


def first_unknown(exprs: Iterable[SizeExpr]) -> UnknownExpr | None:
    """The first of them that is unknown."""
    return next((e for e in exprs if isinstance(e, UnknownExpr)), None)


def _added(before: SizeExpr, more: SizeExpr, dtype: DType) -> SizeExpr:
    if isinstance(before, Lit) and before.value == 0:
        return as_type(more, dtype)
    return before if more == Lit(0) else Bin("add", (before, as_type(more, dtype)), dtype)


def _plain(x: Operand) -> bool:
    """Whether a real value is taken as it is: a literal, an argument, an element."""
    return isinstance(x, Const) or x.op in ("arg", "gload")


def _halves(step: SizeExpr, top: Op) -> bool:
    """Whether a step brings a value nearer to 0, or to -1."""
    match step:
        case Bin(op="floordiv" | "cdiv", args=(Index(op=op), Lit(value=n))):
            return op is top and n >= 1
        case Bin(op="sar", args=(Index(op=op), Lit(value=n))):
            return op is top and n >= 0
    return False


Growth = tuple[SizeExpr, SizeExpr]
"""The least and the most that an iteration adds, as i64; the same in every iteration, and one expression if it is one number."""


def _growth(step: SizeExpr, top: Op, over: Range) -> Growth:
    """The increment of the variable of ``top`` in an iteration.

    Raises:
        _Unclear: the iteration does anything else to it.
    """
    match step:
        case Index(op=op) if op is top:
            return Lit(0), Lit(0)
        case Bin(op="add", args=(a, b)):
            if not _has(a, top):
                a, b = b, a
            (low, high), (less, more) = _growth(a, top, over), _amount(b, top, over)
            return plus(low, less), plus(high, more)
        case Bin(op="sub", args=(a, b)):
            (low, high), (less, more) = _growth(a, top, over), _amount(b, top, over)
            return minus(low, more), minus(high, less)
        case Bin(op="select", args=(_, a, b)):
            (low, high), (less, more) = _growth(a, top, over), _growth(b, top, over)
            return _least(low, less), _most(high, more)
    raise _Unclear


def _amount(e: SizeExpr, top: Op, over: Range) -> Growth:
    """The increment, if it is invariant, or its invariant bounds."""
    match e:
        case Pick(range=Range(end=end) as r) if (
            r.step == 1 and end is not None and not any(_varies(x, top, over) for x in r.ends)
        ):
            return wide(r.begin), minus(wide(end), Lit(1))
        case Cast(arg=arg, dtype=dtype) if dtype.holds(arg.dtype) or _fits(arg, dtype):
            return _amount(arg, top, over)
        case Bin(op="select", args=(_, a, b)):
            (low, high), (less, more) = _amount(a, top, over), _amount(b, top, over)
            return _least(low, less), _most(high, more)
    if _varies(e, top, over):
        raise _Unclear
    return wide(e), wide(e)


def _fits(e: SizeExpr, dtype: DType) -> bool:
    """Whether a value certainly is one of a type: a pick between literals."""
    match e:
        case Pick(range=Range(begin=Lit(value=low), end=Lit(value=high))):
            least, most = limits(dtype)
            return least <= low and high - 1 <= most
    return False


def _varies(e: SizeExpr, top: Op, over: Range) -> bool:
    """Whether a value may differ from one iteration to the next."""
    return _has(e, top) or _has(e, over.index) or any(isinstance(x, Pick) for x in parts(e))


def _least(a: SizeExpr, b: SizeExpr) -> SizeExpr:
    if isinstance(a, Lit) and isinstance(b, Lit):
        return Lit(min(a.value, b.value))
    return a if a == b else Bin("min", (a, b))


def _most(a: SizeExpr, b: SizeExpr) -> SizeExpr:
    if isinstance(a, Lit) and isinstance(b, Lit):
        return Lit(max(a.value, b.value))
    return a if a == b else Bin("max", (a, b))


def _has(e: SizeExpr, op: Op) -> bool:
    return any(isinstance(x, Index) and x.op is op for x in parts(e))


def _simple(e: SizeExpr) -> SizeExpr:
    """An operation of something unknown is unknown, but where the other operands may bound it."""
    made = rebuilt(e, _simple)
    unknown = next((x for x in inner(made) if isinstance(x, UnknownExpr)), None)
    if unknown is None or (isinstance(made, Bin) and made.op in ("min", "max")):
        return made
    if isinstance(made, Bin) and made.op == "select":
        cond, then, orelse = made.args
        return Bin("select", (truth() if isinstance(cond, UnknownExpr) else cond, then, orelse), made.dtype)
    return unknown
