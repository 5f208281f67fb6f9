"""Smaller functions of ``qd``: bits and parts of numbers, zeros and ones like a value, and hints that change nothing here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import QdrunTypeError
from ...ir.builder import convert
from ...ir.nodes import Const, Operand
from ...ir.types import DType, f64, i32, i64, u32
from ..values import ops
from ..values.values import Arg, MatrixValue, Value
from .functions import Intrinsic

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder


def _lower_bit_shr(b: FrontBuilder, x: Arg, n: Arg) -> Value:
    def one(p: Operand, q: Operand) -> Operand:
        for v in (p, q):
            if not v.dtype.is_int:
                raise QdrunTypeError(f"bit_shr takes integers, not {v.dtype}", hint="cast the operand with qd.i32(x)")
        dtype = ops.number_type(b, p)
        return ops.emit(b, "shr", ops.cast_scalar(b, p, dtype), ops.cast_scalar(b, q, dtype))

    return ops.elementwise(one, ops.as_value(b, x), ops.as_value(b, n))


def _host_bit_shr(x: Any, n: Any) -> Any:
    if isinstance(x, int):
        return (x & (0xFFFFFFFF if -(2**31) <= x < 2**32 else (1 << 64) - 1)) >> n
    a = np.asarray(x)
    return (a.view(f"u{a.dtype.itemsize}") >> np.asarray(n, f"u{a.dtype.itemsize}")).astype(a.dtype)


bit_shr = Intrinsic(
    "bit_shr", _host_bit_shr, _lower_bit_shr, "``x1`` shifted right by x2 bits; zeros come in from the left.", "x1 x2"
)


def _fill(value: int) -> Any:
    def lower(b: FrontBuilder, x: Arg) -> Value:
        def one(p: Operand) -> Operand:
            dtype = ops.number_type(b, p)
            return Const(convert(value, dtype), dtype)

        return ops.elementwise(one, ops.as_value(b, x))

    return lower


def _host_like(value: int) -> Any:
    return lambda x: np.full_like(np.asarray(x), value)[()]


zero = Intrinsic("zero", _host_like(0), _fill(0), "Zeros of the shape and the type of ``x``.")
one = Intrinsic("one", _host_like(1), _fill(1), "Ones of the shape and the type of ``x``.")


def _power_of_two(b: FrontBuilder, exponent: Operand, dtype: DType) -> Operand:
    """``2 ** exponent`` for an exponent of a normal number."""
    whole, bits, bias = (i64, 52, 1023) if dtype is f64 else (i32, 23, 127)
    raised = ops.emit(b, "add", ops.cast_scalar(b, exponent, whole), Const(bias, whole))
    return b.op("bitcast", ops.emit(b, "shl", raised, Const(bits, whole)), dtype=dtype)


def _frexp_one(b: FrontBuilder, x: Operand) -> tuple[Operand, Operand]:
    """Fraction and exponent of a scalar. The powers of two have no gradient, so the fraction has the slope ``2 ** -exponent``."""
    dtype = ops.real_type(b, x)
    if dtype.bits == 16:
        raise QdrunTypeError("frexp takes f32 and f64", hint="cast the value: qd.f32(x)")
    x = ops.cast_scalar(b, x, dtype)
    whole, bits, bias, lift = (i64, 52, 1023, 54) if dtype is f64 else (i32, 23, 127, 25)
    fixed = b.op("detach", x)
    size = ops.emit(b, "abs", fixed)
    small = ops.emit(b, "lt", size, Const(2.0 ** (1 - bias), dtype))
    up = b.op("select", small, Const(2.0**lift, dtype), Const(1.0, dtype))
    raw = b.op("bitcast", ops.emit(b, "mul", size, up), dtype=whole)
    field = ops.emit(b, "shr", raw, Const(bits, whole))
    exponent = ops.emit(b, "sub", field, Const(bias - 1, whole))
    finite = ops.emit(b, "lt", size, Const(float("inf"), dtype))
    # Not `size > 0`: a driver may multiply subnormal numbers as they are, and compare them as zero.
    usual = ops.emit(b, "and", finite, ops.emit(b, "gt", raw, Const(0, whole)))
    shift = b.op("select", usual, ops.emit(b, "sub", Const(2, whole), exponent), Const(0, whole))  # 2 ** -128 is not normal
    fourth = b.op("select", usual, Const(0.25, dtype), Const(1.0, dtype))
    scale = _power_of_two(b, shift, dtype)
    fraction = ops.emit(b, "mul", ops.emit(b, "mul", ops.emit(b, "mul", x, up), scale), fourth)
    down = b.op("select", small, Const(lift, whole), Const(0, whole))
    power = b.op("select", usual, ops.emit(b, "sub", exponent, down), Const(0, whole))
    return fraction, ops.cast_scalar(b, power, i32)


def _lower_frexp(b: FrontBuilder, x: Arg) -> tuple[Value, Value]:
    value = ops.as_value(b, x)
    if not isinstance(value, MatrixValue):
        return _frexp_one(b, value)
    pairs = [_frexp_one(b, p) for p in value.items]
    return MatrixValue(value.shape, tuple(m for m, _ in pairs)), MatrixValue(value.shape, tuple(e for _, e in pairs))


frexp = Intrinsic("frexp", np.frexp, _lower_frexp, "``m, e`` with ``x = m * 2 ** e`` and 0.5 <= abs(m) < 1.")

assume_in_range = Intrinsic(
    "assume_in_range",
    lambda val, base, low, high: val,
    lambda b, val, base, low, high: ops.as_value(b, val),
    "``val``: a hint of Quadrants that it lies in [base + low, base + high). It changes nothing here.",
    "val base low high",
)


def _hint(name: str, doc: str) -> Intrinsic:
    return Intrinsic(name, lambda *args: None, lambda b, *args: None, doc, "*args")


block_local = _hint("block_local", "A hint of Quadrants for GPUs. It does nothing here.")
cache_read_only = _hint("cache_read_only", "A hint of Quadrants for GPUs. It does nothing here.")
no_activate = _hint("no_activate", "A hint of Quadrants for sparse fields. It does nothing here.")


def _host_fns(mask: int, base: int, offset: int) -> int:
    where = range(base, 32) if offset > 0 else range(base, -1, -1) if offset else range(base, base + 1)
    found = [k for k in where if (int(mask) >> k) & 1]
    wanted = max(1, abs(offset))
    return found[wanted - 1] if len(found) >= wanted else 0xFFFFFFFF


def _lower_fns(b: FrontBuilder, mask: Arg, base: Arg, offset: Arg) -> Operand:
    """Counts through the 32 positions in a loop, upwards or downwards."""
    bits, start, count = (ops.cast_scalar(b, ops.to_operand(b, v), t) for v, t in ((mask, u32), (base, i32), (offset, i32)))
    up = ops.emit(b, "ge", count, Const(0, i32))
    step = b.op("select", up, Const(1, i32), Const(-1, i32))
    wanted = ops.emit(b, "max", ops.emit(b, "abs", count), Const(1, i32))
    most = b.op("select", ops.emit(b, "eq", count, Const(0, i32)), Const(1, i32), Const(32, i32))
    seen, found = b.local(Const(0, i32), "seen"), b.local(Const(0xFFFFFFFF, u32), "found")
    with b.loop(Const(0, i32), most) as loop:
        where = ops.emit(b, "add", start, ops.emit(b, "mul", step, loop.index))
        inside = ops.emit(b, "lt", b.cast(where, u32), Const(32, u32))
        bit = ops.emit(b, "and", ops.emit(b, "shr", bits, b.cast(where, u32)), Const(1, u32))
        here = ops.emit(b, "and", inside, ops.emit(b, "eq", bit, Const(1, u32)))
        b.store(seen, ops.emit(b, "add", b.load(seen), b.cast(here, i32)))
        hit = ops.emit(b, "and", here, ops.emit(b, "eq", b.load(seen), wanted))
        b.store(found, b.op("select", hit, b.cast(where, u32), b.load(found)))
    return b.load(found)


fns = Intrinsic(
    "fns",
    _host_fns,
    _lower_fns,
    "The position of the n-th set bit of a u32 from ``base`` on; 0xFFFFFFFF if there is none.",
    "mask base offset",
)
