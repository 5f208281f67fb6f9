"""Every operation code: how many operands, what comes out, what it means. Printer, verifier and interpreters read this table.

Operands of one operation have one type; the front end inserts the casts. Integer arithmetic wraps. ``floordiv`` and ``mod`` round
towards minus infinity (Python), ``cdiv`` and ``crem`` towards zero (C); remainders of reals are exact. ``min``/``max`` of reals are IEEE
754's minimum and maximum: a NaN stays one, and -0.0 is less than 0.0, so that they may be taken in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Result = Literal["same", "bool", "given"]
Domain = Literal["any", "number", "real", "int", "bool"]


@dataclass(frozen=True, slots=True)
class OpInfo:
    """``result``: same type as the operands, a truth value, or given by the builder's caller. ``pure``: no memory access."""

    arity: int
    result: Result
    domain: Domain
    pure: bool = True


def _table(arity: int, result: Result, domain: Domain, names: str) -> dict[str, OpInfo]:
    return {name: OpInfo(arity, result, domain) for name in names.split()}


UNARY_REAL = "sin cos tan asin acos sinh cosh tanh exp expm1 log log1p erf erfc sqrt rsqrt floor ceil round trunc"
TABLE: dict[str, OpInfo] = {
    **_table(1, "same", "real", UNARY_REAL),
    **_table(1, "same", "number", "neg abs sgn"),
    **_table(1, "same", "real", "detach"),  # the operand itself; its gradient stops here
    **_table(1, "same", "int", "bitnot"),
    **_table(1, "given", "int", "popcnt clz"),
    **_table(1, "bool", "real", "isnan isinf"),
    **_table(1, "bool", "bool", "not"),
    **_table(1, "given", "any", "cast bitcast"),
    **_table(2, "same", "number", "add sub mul floordiv mod crem min max pow"),
    **_table(2, "same", "real", "div atan2"),
    **_table(2, "same", "real", "attach"),  # the first operand; its gradient is that of the second
    **_table(2, "same", "int", "cdiv and or xor shl shr sar"),
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
    "gload": OpInfo(-1, "given", "any", pure=False),  # attr: Place; operands: indices
    "atomic": OpInfo(-1, "given", "any", pure=False),  # attr: (Place, code); operands: indices, values; gives the old content
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
FUNCTIONS = frozenset("sin cos tan asin acos atan2 sinh cosh tanh exp expm1 log log1p erf erfc pow".split())
"""Functions of reals that take tens of instructions, and are exact to a few units of the last place only."""
COMMUTATIVE = frozenset("add mul and or xor eq ne".split())
COMPARE = frozenset("lt le gt ge eq ne".split())
