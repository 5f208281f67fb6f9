"""Formulas as IR: what ``evaluate.py`` computes with numpy, for kernels that reduce it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...ir.builder import StatementBuilder, convert
from ...ir.nodes import ArgDecl, Buffer, Const, Op, Operand, Place
from ...ir.ops import TABLE
from ...ir.types import DType, i64, u1
from .sizeexpr import Bin, Cast, ElementRead, Extent, Index, Lit, Pick, ScalarArgument, SizeExpr

FALSE = Const(False, u1)
BOOLEAN = frozenset("and or xor not eq ne select".split())
"""Operations that mean the same on truth values in numpy and in the IR."""

Value = tuple[Operand, Operand]
"""A value, and whether it means nothing because an array was read outside of its bounds."""


class NotReducible(Exception):
    """A formula that a kernel could compute otherwise than numpy."""


@dataclass
class FormulaArguments:
    """The arguments of a kernel that computes formulas, in the order of their first use.

    Attributes:
        numbers: i64 scalars of its own, by name.
        given: arguments of the launch that the formulas are about, by ``ArgDecl.index``.
        places: arrays of that launch, each with the kernel's own.
    """

    args: list[ArgDecl] = field(default_factory=list)
    numbers: dict[str, ArgDecl] = field(default_factory=dict)
    given: dict[int, ArgDecl] = field(default_factory=dict)
    places: dict[Place, Place] = field(default_factory=dict)

    def number(self, name: str) -> ArgDecl:
        """An i64 that the launch passes."""
        if name not in self.numbers:
            self.numbers[name] = self._new(ArgDecl(name, "scalar", i64))
        return self.numbers[name]

    def arg(self, arg: ArgDecl) -> ArgDecl:
        """An argument of the launch."""
        if arg.index not in self.given:
            self.given[arg.index] = self._new(replace(arg, needs_grad=False, needs_dual=False))
        return self.given[arg.index]

    def place(self, place: Place) -> Place:
        """An array of the launch."""
        if place not in self.places:
            owner = place.buffer.owner
            buffer = place.buffer
            if place.buffer.kind == "arg":
                assert isinstance(owner, ArgDecl)
                mine = self.arg(owner)
                buffer = next((p.buffer for p in self.places.values() if p.buffer.owner is mine), None) or Buffer("arg", mine)
            self.places[place] = replace(place, buffer=buffer, grad=None, dual=None)
        return self.places[place]

    def _new(self, arg: ArgDecl) -> ArgDecl:
        arg.index = len(self.args)
        self.args.append(arg)
        return arg


@dataclass
class Formulas:
    """Emits formulas into a builder, each at most once; later ones may stand further inside.

    Attributes:
        indices: the value of each index, by the ``index`` operation that stands for it.
    """

    b: StatementBuilder
    inputs: FormulaArguments
    indices: dict[Op, Operand] = field(default_factory=dict)
    _known: dict[int, Value] = field(default_factory=dict)
    _kept: list[SizeExpr] = field(default_factory=list)

    def number(self, name: str) -> Op:
        """An i64 that the launch passes."""
        return self.b.op("arg", dtype=i64, attr=self.inputs.number(name))

    def value(self, e: SizeExpr) -> Value:
        """The value of a formula.

        Raises:
            NotReducible: numpy could compute something else.
        """
        if isinstance(e, Lit):
            return Const(convert(e.value, e.dtype), e.dtype), FALSE
        found = self._known.get(id(e))
        if found is None:
            found = self._known[id(e)] = self._value(e)
            self._kept.append(e)
        return found

    def either(self, a: Operand, b: Operand) -> Operand:
        """``a or b`` of truth values."""
        if a == FALSE:
            return b
        return a if b == FALSE or a is b else self.b.op("or", a, b)

    def _value(self, e: SizeExpr) -> Value:
        match e:
            case ScalarArgument():
                return self.b.op("arg", dtype=e.dtype, attr=self.inputs.arg(e.arg)), FALSE
            case Extent():
                return self._extent(e.arg, e.axis, e.dtype), FALSE
            case Index(op=op):
                return self.indices[op], FALSE
            case Pick():
                return self.indices[e.range.index], FALSE
            case Cast():
                return self._apply("cast", [self.value(e.arg)], e.dtype)
            case ElementRead():
                return self._read(e.place, [self.value(x) for x in e.index])
            case Bin():
                return self._bin(e)
        raise NotReducible(str(e))

    def _bin(self, e: Bin) -> Value:
        args = [self.value(a) for a in e.args]
        if e.op == "select":
            args = [(self.b.cast(args[0][0], u1), args[0][1]), *((self.b.cast(v, e.dtype), bad) for v, bad in args[1:])]
        elif e.op == "not":
            args = [(self.b.cast(args[0][0], u1), args[0][1])]
        elif TABLE[e.op].result == "same":
            args = [(self.b.cast(v, e.dtype), bad) for v, bad in args]
        return self._apply(e.op, args, e.dtype)

    def _apply(self, op: str, args: list[Value], dtype: DType) -> Value:
        values = [v for v, _ in args]
        kinds = [v.dtype for v in (values[1:] if op == "select" else values)]
        if any(d is not kinds[0] for d in kinds) or (kinds[0] is u1 and op not in BOOLEAN and op != "cast"):
            raise NotReducible(f"{op} of {kinds}")
        if op == "select":
            chosen = FALSE
            if args[1][1] != FALSE or args[2][1] != FALSE:
                chosen = self.b.op("select", values[0], args[1][1], args[2][1])
            return self.b.op("select", *values), self.either(args[0][1], chosen)
        bad: Operand = FALSE
        for _, more in args:
            bad = self.either(bad, more)
        if op == "cast":
            if isinstance(values[0], Const) and values[0].dtype.is_real and dtype.is_int:
                raise NotReducible("a literal that is converted")
            return self.b.cast(values[0], dtype), bad
        found: Operand = self.b.op(op, *values, dtype=dtype if op in ("popcnt", "clz") else None)
        return self.b.cast(found, dtype), bad

    def _extent(self, arg: ArgDecl, axis: int, dtype: DType) -> Operand:
        return self.b.op("shape", dtype=dtype, attr=(self.inputs.arg(arg), axis))

    def _read(self, place: Place, index: list[Value]) -> Value:
        """An element; that at 0 where the index lies outside. No extent may be 0."""
        mine = self.inputs.place(place)
        bad: Operand = FALSE
        at: list[Operand] = []
        for k, (value, outside) in enumerate(index):
            wide = self.b.cast(value, i64)
            n: Operand
            if mine.shape is not None:
                n = Const(mine.shape[k], i64)
            else:
                assert isinstance(mine.buffer.owner, ArgDecl)
                n = self.b.op("shape", dtype=i64, attr=(mine.buffer.owner, k))
            over = self.b.op("or", self.b.op("lt", wide, Const(0, i64)), self.b.op("ge", wide, n))
            bad = self.either(self.either(bad, outside), over)
            at.append(self.b.op("select", over, Const(0, i64), wide))
        return self.b.gload(mine, tuple(at)), bad
