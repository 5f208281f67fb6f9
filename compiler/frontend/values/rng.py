"""Random numbers: a counter-based hash, so that a draw is a pure function of where it happens.

A draw is ``mix(mix(seed + site) + iteration + ..)`` of the launch's seed, the number of the call in the kernel, the iteration of the
task and the indices of the loops around the call. There is no state: the same launch gives the same numbers on every machine and in
every order of execution, and the backward pass can compute a draw again instead of storing it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...errors import QdrunTypeError
from ...ir.nodes import Const, Loop, Op, Operand
from ...ir.types import f64, i64, u1, u64
from . import ops

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder

GOLDEN = 0x9E3779B97F4A7C15
MIX1, MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # the finalizer of splitmix64


def _u64(value: int) -> Const:
    return Const(value & (2**64 - 1), u64)


def _mix(b: FrontBuilder, z: Operand) -> Operand:
    """The finalizer of splitmix64: a bijection of u64 whose output bits each depend on all input bits."""
    for shift, factor in ((30, MIX1), (27, MIX2)):
        z = b.op("mul", b.op("xor", z, b.op("shr", z, _u64(shift))), _u64(factor))
    return b.op("xor", z, b.op("shr", z, _u64(31)))


def _open_loops(b: FrontBuilder) -> list[Op]:
    """The indices of the serial loops that are being emitted, outermost first."""
    blocks = b._blocks
    parents = [(outer[-1], inner) for outer, inner in pairwise(blocks) if outer]
    return [s.index for s, body in parents if isinstance(s, Loop) and s.body is body]


def _site(b: FrontBuilder) -> int:
    """The number of this call among the random calls of the kernel: each inlining and each unrolled copy counts."""
    number = vars(b).get("random_sites", 0) + 1
    vars(b)["random_sites"] = number
    return number


def draw(b: FrontBuilder) -> Operand:
    """64 random bits."""
    seed = b.op("seed", dtype=u64)
    state = _mix(b, b.op("add", seed, _u64(_site(b) * GOLDEN)))
    for position in (b.op("iter", dtype=i64), *_open_loops(b)):
        scaled = b.op("mul", b.cast(position, u64), _u64(GOLDEN))
        state = _mix(b, b.op("add", state, scaled))
    return state


def lower_random(b: FrontBuilder, dtype: Any = float) -> Operand:
    """A uniform draw: [0, 1) for reals, all values of the type for integers."""
    target = ops.as_dtype(b, dtype)
    bits = draw(b)
    if target is u1:
        return ops.truth(b, b.op("and", bits, _u64(1)))
    if target.is_int:
        return b.cast(b.op("shr", bits, _u64(64 - target.bits)), target)
    digits = {16: 11, 32: 24, 64: 53}[target.bits]
    whole = b.cast(b.op("shr", bits, _u64(64 - digits)), i64)
    return b.op("mul", b.cast(whole, target), Const(2.0**-digits, target))


def lower_randn(b: FrontBuilder, dtype: Any = float) -> Operand:
    """A draw of the standard normal distribution (Box-Muller).

    Raises:
        QdrunTypeError: the type is not real.
    """
    target = ops.as_dtype(b, dtype)
    if not target.is_real:
        raise QdrunTypeError(f"randn gives reals, not {target}")
    wide = target if target is f64 else ops.promote(target, b.default_fp)
    one = Const(1.0, wide)
    u = b.op("sub", one, lower_random(b, wide))  # (0, 1]: its logarithm is finite
    radius = b.op("sqrt", b.op("mul", Const(-2.0, wide), b.op("log", u)))
    angle = b.op("cos", b.op("mul", Const(2.0 * math.pi, wide), lower_random(b, wide)))
    return b.cast(b.op("mul", radius, angle), target)
