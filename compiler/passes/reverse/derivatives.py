"""The derivative of every operation, in one table.

``RULES[op]`` has a ``Partial`` for each operand. ``ZERO`` says of the other operations why their derivative is zero. An operation that
neither lists is refused where its derivative is wanted. At a tie, ``min`` and ``max`` give all to the second operand.

Where a factor may be infinite or NaN, a zero ``g`` gives zero: a branch of a ``select`` that was not taken contributes nothing. The
cheap operations leave that test out (``Partial.tests``); it is put around them where a select stands behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan, pi, sqrt
from typing import NamedTuple

from ...errors import DifferentiationError
from ...ir.builder import StatementBuilder
from ...ir.nodes import Const, Op, Operand
from ...ir.types import f64
from ..shuffles import Adjoint

Need = int | str
Rule = Callable[[StatementBuilder, Operand, tuple[Operand, ...], Operand | None], Operand]


class Partial(NamedTuple):
    """The derivative of an operation by one of its operands.

    Attributes:
        needs: the values that ``adjoint`` reads: operand numbers, or "r" for the result.
        adjoint: builds the adjoint of the operand from that of the result, ``g``; None: it has none.
        factor: in forward mode, what makes an infinite tangent of the operand vanish where it is 0: an operand, "r", or "slope", the rule
            of 1; None: nothing.
        tests: the rule gives 0 where ``g`` is 0, or its factor cannot be infinite; else it is g times the factor.
    """

    needs: tuple[Need, ...]
    adjoint: Rule | None
    factor: Need | None = None
    tests: bool = True


def _c(like: Operand, value: float) -> Const:
    return Const(value, like.dtype)


def zero_stays_zero(b: StatementBuilder, g: Operand, x: Operand) -> Operand:
    """``x``, but 0 where ``g`` is 0 (instead of 0 * inf). The derivative of ``x`` is lost there, so not where that is wanted."""
    return x if b.smooth is not None else _flat(b, g, x)


def _flat(b: StatementBuilder, g: Operand, x: Operand) -> Operand:
    return b.op("select", b.op("eq", g, _c(g, 0.0)), _c(x, 0.0), x)


def _left_wins(code: str) -> tuple[Rule, Rule]:
    def left(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
        return b.op("select", b.op(code, a[0], a[1]), g, _c(g, 0.0))

    def right(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
        return b.op("select", b.op(code, a[0], a[1]), _c(g, 0.0), g)

    return left, right


def _over(b: StatementBuilder, g: Operand, x: Operand) -> Operand:
    """G / x. In f64 by the reciprocal of x, which does not wait for ``g`` and is the same for all adjoints that are divided by x: it is
    computed once. The reciprocal of a number from 5.6e-309 to 4.4e307 is normal. In f32 and f16 the range is too small for that.
    """
    return b.op("mul", g, b.op("div", _c(x, 1.0), x)) if g.dtype == f64 else b.op("div", g, x)


def _div_by(b: StatementBuilder, g: Operand, x: Operand) -> Operand:
    return zero_stays_zero(b, g, _over(b, g, x))


def _div_right(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    assert r is not None
    return b.op("neg", zero_stays_zero(b, g, b.op("mul", _over(b, g, a[1]), r)))


def _mod_right(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    """-g times the whole quotient. It follows from the exact remainder; a rounded a / b may have reached the next whole number."""
    assert r is not None
    whole = b.op("round", b.op("div", b.op("sub", a[0], r), a[1]))
    return b.op("neg", b.op("mul", g, whole))


def _pow_left(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    less = b.op("pow", a[0], b.op("sub", a[1], _c(a[1], 1.0)))
    slope = b.op("mul", a[1], less)
    if b.smooth is None or a[1] not in b.smooth:
        slope = _flat(b, a[1], slope)  # x ** 0 is flat at 0, too
    return zero_stays_zero(b, g, b.op("mul", g, slope))


def _pow_right(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    """G * ln(a) * a^b; 0 where a^b is 0 (ln 0 * 0), NaN for a negative base."""
    assert r is not None
    log = b.op("select", b.op("eq", r, _c(r, 0.0)), _c(r, 0.0), b.op("log", a[0]))
    return zero_stays_zero(b, g, b.op("mul", g, b.op("mul", log, r)))


def _atan2(other: int, sign: str) -> Rule:
    """G * other / (x^2 + y^2), of operands that are scaled so that no square overflows or vanishes."""

    def rule(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
        size = b.op("detach", b.op("max", b.op("abs", a[0]), b.op("abs", a[1])))
        parts = tuple(b.op("div", x, size) for x in a)
        n = b.op("add", b.op("mul", parts[0], parts[0]), b.op("mul", parts[1], parts[1]))
        slope = b.op("div", b.op("div", parts[other], n), size)
        x = zero_stays_zero(b, g, b.op("mul", g, slope))
        return b.op("neg", x) if sign == "-" else x

    return rule


def _asin(sign: str) -> Rule:
    """G / sqrt((1 - x) * (1 + x)): 1 - x^2 would lose digits near 1."""

    def rule(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
        one = _c(g, 1.0)
        cosine = b.op("sqrt", b.op("mul", b.op("sub", one, a[0]), b.op("add", one, a[0])))
        x = _div_by(b, g, cosine)
        return b.op("neg", x) if sign == "-" else x

    return rule


def _tan(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    assert r is not None
    return zero_stays_zero(b, g, b.op("mul", g, b.op("add", _c(g, 1.0), b.op("mul", r, r))))


_FLAT_FROM = {16: 11.0, 32: 80.0, 64: 700.0}
"""Where cosh still fits a type of so many bits, and the square of its reciprocal does not."""


def _tanh(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    """G / cosh(x)^2: 1 - r^2 would lose all digits where r is close to 1."""
    most = _FLAT_FROM[g.dtype.bits]
    x = b.op("min", _c(g, most), b.op("max", _c(g, -most), a[0]))
    slope = b.op("div", _c(g, 1.0), b.op("cosh", x))
    return b.op("mul", g, b.op("mul", slope, slope))


def _times(code: str) -> Rule:
    """G times a function of the operand that may be infinite."""
    return lambda b, g, a, r: zero_stays_zero(b, g, b.op("mul", g, b.op(code, a[0])))


def _log1p(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    """G / (1 + x); NaN below -1, as the logarithm itself."""
    outside = b.op("lt", a[0], _c(g, -1.0))
    return zero_stays_zero(b, g, b.op("select", outside, _c(g, nan), _over(b, g, b.op("add", _c(g, 1.0), a[0]))))


def _erf(sign: float) -> Rule:
    """G * 2 / sqrt(pi) * exp(-x^2). The square is taken in two parts, since the exponential multiplies its error by its size: that of
    ``near``, a multiple of 1/16, is exact, and x^2 - near^2 is small.
    """

    def rule(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
        most = 32.0  # the slope is 0 from there on, and an infinity has no difference to itself
        x = b.op("min", _c(g, most), b.op("max", _c(g, -most), a[0]))
        near = b.op("detach", b.op("mul", b.op("round", b.op("mul", x, _c(g, 16.0))), _c(g, 1.0 / 16.0)))
        rest = b.op("mul", b.op("sub", near, x), b.op("add", near, x))
        main = b.op("exp", b.op("neg", b.op("mul", near, near)))
        slope = b.op("mul", _c(g, sign * 2.0 / sqrt(pi)), b.op("mul", main, b.op("exp", rest)))
        return b.op("mul", g, slope)

    return rule


def _abs(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    return b.op("mul", g, b.op("sgn", a[0]))


def _log(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    """G / x; NaN below zero, as the logarithm itself."""
    outside = b.op("lt", a[0], _c(a[0], 0.0))
    return zero_stays_zero(b, g, b.op("select", outside, _c(g, nan), _over(b, g, a[0])))


def _cos(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    return b.op("neg", b.op("mul", g, b.op("sin", a[0])))


def _sqrt(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    assert r is not None
    return _div_by(b, b.op("mul", g, _c(g, 0.5)), r)


def _rsqrt(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    assert r is not None
    slope = _over(b, b.op("mul", r, _c(g, -0.5)), a[0])
    return zero_stays_zero(b, g, b.op("mul", g, slope))


def _exp(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    assert r is not None
    return zero_stays_zero(b, g, b.op("mul", g, r))


def _same(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    return g


def _negated(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
    return b.op("neg", g)


RULES: dict[str, tuple[Partial, ...]] = {
    "add": (Partial((), _same), Partial((), _same)),
    "sub": (Partial((), _same), Partial((), _negated)),
    "neg": (Partial((), _negated),),
    "mul": (
        Partial((1,), lambda b, g, a, r: b.op("mul", g, a[1]), 1, tests=False),
        Partial((0,), lambda b, g, a, r: b.op("mul", g, a[0]), 0, tests=False),
    ),
    "div": (Partial((1,), lambda b, g, a, r: _div_by(b, g, a[1])), Partial((1, "r"), _div_right, "r")),
    "mod": (Partial((), _same), Partial((0, 1, "r"), _mod_right, "slope", tests=False)),
    "crem": (Partial((), _same), Partial((0, 1, "r"), _mod_right, tests=False)),
    "min": tuple(Partial((0, 1), rule) for rule in _left_wins("lt")),
    "max": tuple(Partial((0, 1), rule) for rule in _left_wins("gt")),
    "pow": (Partial((0, 1), _pow_left, "slope"), Partial((0, "r"), _pow_right, "slope")),
    "atan2": (Partial((0, 1), _atan2(1, "+"), 1), Partial((0, 1), _atan2(0, "-"), 0)),
    "attach": (Partial((), None), Partial((), _same)),
    "abs": (Partial((0,), _abs, "slope", tests=False),),
    "sin": (Partial((0,), lambda b, g, a, r: b.op("mul", g, b.op("cos", a[0])), "slope", tests=False),),
    "cos": (Partial((0,), _cos, "slope", tests=False),),
    "tan": (Partial(("r",), _tan),),
    "asin": (Partial((0,), _asin("+")),),
    "acos": (Partial((0,), _asin("-")),),
    "sinh": (Partial((0,), _times("cosh")),),
    "cosh": (Partial((0,), _times("sinh")),),
    "tanh": (Partial((0,), _tanh, "slope", tests=False),),
    "exp": (Partial(("r",), _exp, "r"),),
    "expm1": (Partial((0,), _times("exp")),),
    "log": (Partial((0,), _log),),
    "log1p": (Partial((0,), _log1p),),
    "erf": (Partial((0,), _erf(1.0), tests=False),),
    "erfc": (Partial((0,), _erf(-1.0), tests=False),),
    "sqrt": (Partial(("r",), _sqrt),),
    "rsqrt": (Partial((0, "r"), _rsqrt),),
    "cast": (Partial((), lambda b, g, a, r: b.cast(g, a[0].dtype)),),
    "select": (
        Partial((), None),
        Partial((0,), lambda b, g, a, r: b.op("select", a[0], g, _c(g, 0.0))),
        Partial((0,), lambda b, g, a, r: b.op("select", a[0], _c(g, 0.0), g)),
    ),
}

# Real operations whose derivative is zero almost everywhere: the gradient stops here, rightly.
FLAT = frozenset("detach floor ceil round trunc sgn floordiv isnan isinf".split())


ZERO: dict[str, str] = {
    **dict.fromkeys("floor ceil round trunc floordiv".split(), "constant between two steps"),
    "sgn": "constant on both sides of zero",
    "detach": "the gradient is to stop here",
    **dict.fromkeys("isnan isinf lt le gt ge eq ne not ballot".split(), "a truth value"),
    **dict.fromkeys("bitnot popcnt clz cdiv and or xor shl shr sar".split(), "a function of integers"),
    **dict.fromkeys("index shape param iter seed mark".split(), "an integer that no element changes"),
    "arg": "a scalar argument is a constant",
    **dict.fromkeys("barrier fence".split(), "without a value"),
    "bitcast": "`activity.refuse_bits` refuses bits that become a number again",
}
"""Why an operation without a rule has derivative zero."""

MEMORY = frozenset("load gload atomic stack_get".split())
"""Their derivative is that of the memory: each pass has its own statements for them."""


def is_known(code: str) -> bool:
    """Whether a table says what the derivative of an operation is."""
    return code in RULES or code in ZERO or code in MEMORY or code == "shuffle"


def refusal(s: Op) -> DifferentiationError:
    """The error of an operation that no table lists."""
    what = f"the operation `{s.op}` has no derivative rule, so neither a gradient nor a tangent passes through it"
    return DifferentiationError(
        what, s.loc, "write it with other functions, or keep its operands out of what the loss depends on"
    )


def carries(s: Op) -> bool:
    """Whether a gradient can flow from the result of ``s`` to an operand: real in, real out, a rule or none known."""
    if not s.dtype.is_real:
        return False
    return s.op == "shuffle" or not is_known(s.op) or (s.op in RULES and s.args[-1].dtype.is_real)


def rules_of(s: Op) -> tuple[Rule | None, ...]:
    """The rule of each operand. That of an operation that no table lists raises ``DifferentiationError``."""
    if s.op == "shuffle":  # its adjoint is one of other lanes
        return (lambda b, g, a, r: Adjoint(b, s, a[1]).of(g), None)
    return tuple(partial.adjoint for partial in RULES[s.op]) if s.op in RULES else (_refuse(s),) * len(s.args)


def _refuse(s: Op) -> Rule:
    def rule(b: StatementBuilder, g: Operand, a: tuple[Operand, ...], r: Operand | None) -> Operand:
        raise refusal(s)

    return rule


def needs_of(s: Op) -> tuple[tuple[Need, ...], ...]:
    """What the rule of each operand reads."""
    if s.op == "shuffle":
        return ((1,), ())
    return tuple(partial.needs for partial in RULES[s.op]) if s.op in RULES else ((),) * len(s.args)


def multiplies(s: Op) -> bool:
    """Whether an adjoint of the operation is that of the result times a factor, with no test for a zero."""
    return any(not partial.tests for partial in RULES.get(s.op, ()))
