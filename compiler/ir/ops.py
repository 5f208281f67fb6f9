"""Every operation code: how many operands, what comes out, what it means. Printer, verifier and interpreters read this table.

Operands of one operation have one type; the front end inserts the casts. Integer arithmetic wraps. ``floordiv`` and ``mod`` round
towards minus infinity (Python), ``cdiv`` and ``crem`` towards zero (C); remainders of reals are exact. ``min``/``max`` of reals are IEEE
754's minimum and maximum: a NaN stays one, and -0.0 is less than 0.0, so that they may be taken in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Result = Literal["same", "bool", "given"]
Domain = Literal["any", "number", "real", "int", "bool"]


def round_away(x: Any) -> Any:
    """The nearest whole number; of two, the one away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole).astype(np.asarray(x).dtype)[()]


def power(a: Any, b: Any) -> Any:
    """C's ``pow``. Numpy takes the square root for an exponent of one half, which differs for -0 and minus infinity."""
    return np.where((b == 0.5) & ((a == 0) | np.isinf(a)), np.abs(a), np.power(a, b))


def by_number(f: Callable[[float], float]) -> Callable[..., Any]:
    """A function of Python's numbers for arrays; f16 and f32 are rounded from f64."""
    return lambda x: np.vectorize(f, otypes=[np.float64])(np.asarray(x, np.float64)).astype(x.dtype)


@dataclass(frozen=True, slots=True)
class OpInfo:
    """One operation.

    Attributes:
        arity: operands; -1: it depends.
        result: same type as the operands, a truth value, or given by the builder's caller.
        domain: what the operands are.
        pure: no memory access.
        real: what it means for reals, of numpy scalars and arrays of one type.
        function: a function of reals that takes tens of instructions, and is exact to a few units of the last place only. Its code is in
            ``codegen/math/library.py``.
        in_c: C has the function under this name.
        cost: about the quarter nanoseconds that it takes on a CPU.
        approximate: instructions of the accurate f32 operation on a GPU that has an approximate one (docs/gpu-math.md); 0: there is none.
    """

    arity: int
    result: Result
    domain: Domain
    pure: bool = True
    real: Callable[..., Any] | None = None
    function: bool = False
    in_c: bool = True
    cost: int = 1
    approximate: int = 0


def _table(arity: int, result: Result, domain: Domain, names: str, cost: int = 1) -> dict[str, OpInfo]:
    return {name: OpInfo(arity, result, domain, cost=cost) for name in names.split()}


def _real(meaning: Callable[..., Any], arity: int = 1, domain: Domain = "real", **columns: Any) -> OpInfo:
    """An operation of reals whose result has the type of the operands."""
    return OpInfo(arity, "same", domain, True, meaning, **columns)


def _function(meaning: Callable[..., Any], arity: int = 1, domain: Domain = "real", approximate: int = 0) -> OpInfo:
    return _real(meaning, arity, domain, function=True, cost=40, approximate=approximate)


POSITIVE = "positive"
"""The ``attr`` of a division that needs no guard against zero."""

TABLE: dict[str, OpInfo] = {
    "sin": _function(np.sin, approximate=17),
    "cos": _function(np.cos, approximate=19),
    "tan": _function(np.tan, approximate=40),
    "asin": _function(np.arcsin),
    "acos": _function(np.arccos),
    "sinh": _function(np.sinh),
    "cosh": _function(np.cosh),
    "tanh": _function(np.tanh),
    "exp": _function(np.exp, approximate=13),
    "expm1": _function(np.expm1),
    "log": _function(np.log),
    "log1p": _function(np.log1p),
    "erf": _function(by_number(math.erf)),
    "erfc": _function(by_number(math.erfc)),
    "sqrt": _real(np.sqrt, cost=8, approximate=8),
    "rsqrt": _real(lambda x: x.dtype.type(1) / np.sqrt(x), cost=12, approximate=16),
    "floor": _real(np.floor),
    "ceil": _real(np.ceil),
    "round": _real(round_away),
    "trunc": _real(np.trunc),
    **_table(1, "same", "number", "neg abs sgn"),
    **_table(1, "same", "real", "detach"),  # the operand itself; its gradient stops here
    **_table(1, "same", "int", "bitnot"),
    **_table(1, "given", "int", "popcnt clz"),
    **_table(1, "bool", "real", "isnan isinf"),
    **_table(1, "bool", "bool", "not"),
    **_table(1, "given", "any", "cast bitcast"),
    **_table(2, "same", "number", "add sub mul min max"),
    **_table(2, "same", "number", "floordiv mod", cost=20),
    **_table(2, "same", "number", "crem", cost=12),
    "pow": _function(power, 2, "number"),
    "div": _real(np.divide, 2, cost=8, approximate=9),
    "atan2": _function(np.arctan2, 2),
    **_table(2, "same", "real", "attach"),  # the first operand; its gradient is that of the second
    **_table(2, "same", "int", "and or xor shl shr sar"),
    **_table(2, "same", "int", "cdiv", cost=12),  # attr POSITIVE: of i64, by what is known to be at least 1 where this runs
    **_table(2, "bool", "any", "lt le gt ge eq ne"),
    "select": OpInfo(3, "given", "any"),
    # leaves
    "index": OpInfo(0, "given", "int"),  # the index of a loop or an axis: never listed in a block
    "arg": OpInfo(0, "given", "any"),  # attr: ArgDecl of a scalar
    "shape": OpInfo(0, "given", "int"),  # attr: (ArgDecl of an ndarray, axis)
    "param": OpInfo(0, "given", "int"),  # attr: name of a launch parameter, i64; never listed in a block
    "iter": OpInfo(0, "given", "int"),  # the flat iteration number in the task, i64 (0 in a serial task)
    "seed": OpInfo(0, "given", "int"),  # the random seed of this launch, u64
    # memory
    "load": OpInfo(0, "given", "any", pure=False),  # attr: Local
    "gload": OpInfo(-1, "given", "any", pure=False, cost=4),  # attr: Place; operands: indices
    "atomic": OpInfo(
        -1, "given", "any", pure=False, cost=20
    ),  # attr: (Place, code); operands: indices, values; gives the old content
    # all threads of the block arrive before any continues; attr "wave": those of a wave; "grid": of the task; without a value
    "barrier": OpInfo(0, "given", "any", pure=False),
    "fence": OpInfo(0, "given", "any", pure=False),  # attr: "block" or "grid", who sees this thread's writes in their order
    "shuffle": OpInfo(
        2, "given", "any", pure=False
    ),  # the value of another thread of the wave; the second operand is its lane, i32
    "ballot": OpInfo(1, "given", "bool", pure=False),  # u64: a bit for each lane of the wave whose flag is set
    "mark": OpInfo(1, "given", "int", pure=False),  # attr: name of a loop; the operand is its index from here on, for messages
    "stack_get": OpInfo(1, "given", "any", pure=False),  # attr: (Stack, field); operand: slot
}

ATOMICS = ("add", "sub", "mul", "min", "max", "and", "or", "xor", "xchg", "cas")
"""Each has one value; ``cas`` has two and stores the second where it finds the first."""
COMMUTATIVE = frozenset("add mul and or xor eq ne".split())
COMPARE = frozenset("lt le gt ge eq ne".split())
DIVISIONS = frozenset("floordiv mod cdiv crem".split())
"""Of integers, they have no value for a divisor of 0."""
SHIFTS = frozenset("shl shr sar".split())


def is_function(code: str) -> bool:
    """Whether an operation is a function of reals; see ``OpInfo.function``."""
    return TABLE[code].function
