"""What instructions on integers compute: functions of arrays of one type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
u32, u64, i64 = np.uint32, np.uint64, np.int64
_NONE = u32(0xFFFFFFFF)


def xnor(a: Array, b: Array) -> Array:
    """Bits that are equal."""
    return ~(a ^ b)


def shifted_left(by: Array, x: Array) -> Array:
    """``x << by``; of ``by``, the bits that make sense count."""
    return x << (by & x.dtype.type(8 * x.dtype.itemsize - 1)).astype(x.dtype)


def shifted_right(by: Array, x: Array) -> Array:
    """``x >> by``, with the sign of signed types."""
    return x >> (by & by.dtype.type(8 * x.dtype.itemsize - 1)).astype(x.dtype)


def high_u32(a: Array, b: Array) -> Array:
    """The upper half of a product."""
    return (a.astype(u64) * b.astype(u64) >> u64(32)).astype(u32)


def high_i32(a: Array, b: Array) -> Array:
    """The upper half of a product."""
    return (a.astype(i64) * b.astype(i64) >> i64(32)).astype(np.int32)


def _low24(x: Array) -> Array:
    return x & u32(0xFFFFFF)


def _signed24(x: Array) -> Array:
    return (x << u32(8)).view(np.int32) >> np.int32(8)


def product_u24(a: Array, b: Array) -> Array:
    """Of the lower 24 bits."""
    return _low24(a) * _low24(b)


def high_u24(a: Array, b: Array) -> Array:
    """Of the lower 24 bits, the bits from 32 on."""
    return high_u32(_low24(a), _low24(b))


def product_i24(a: Array, b: Array) -> Array:
    """Of the lower 24 bits as signed numbers."""
    return (_signed24(a) * _signed24(b)).view(u32)


def high_i24(a: Array, b: Array) -> Array:
    """Of the lower 24 bits as signed numbers, the bits from 32 on."""
    return high_i32(_signed24(a), _signed24(b)).view(u32)


def sum_product_u24(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c``"""
    return product_u24(a, b) + c


def sum_product_i24(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c``"""
    return product_i24(a, b) + c


def sum_product(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c``"""
    return a * b + c


def sum3(a: Array, b: Array, c: Array) -> Array:
    """``a + b + c``"""
    return a + b + c


def shift_add(a: Array, by: Array, c: Array) -> Array:
    """``(a << by) + c``"""
    return (a << (by & u32(31))) + c


def add_shift(a: Array, b: Array, by: Array) -> Array:
    """``(a + b) << by``"""
    return (a + b) << (by & u32(31))


def shift_or(a: Array, by: Array, c: Array) -> Array:
    """``(a << by) | c``"""
    return (a << (by & u32(31))) | c


def and_or(a: Array, b: Array, c: Array) -> Array:
    """``(a & b) | c``"""
    return (a & b) | c


def or3(a: Array, b: Array, c: Array) -> Array:
    """``a | b | c``"""
    return a | b | c


def xor3(a: Array, b: Array, c: Array) -> Array:
    """``a ^ b ^ c``"""
    return a ^ b ^ c


def xor_add(a: Array, b: Array, c: Array) -> Array:
    """``(a ^ b) + c``"""
    return (a ^ b) + c


def shift_add_wide(a: Array, by: Array, c: Array) -> Array:
    """``(a << by) + c`` of 64 bits."""
    return (a << (by & u32(7)).astype(u64)) + c


def field_u32(x: Array, first: Array, bits: Array) -> Array:
    """So many bits from the first one on."""
    x, first, bits = np.broadcast_arrays(x, first & u32(31), bits & u32(31))
    return (x >> first) & ((u32(1) << bits) - u32(1))


def field_i32(x: Array, first: Array, bits: Array) -> Array:
    """So many bits from the first one on, with the sign of the last."""
    found, bits = np.broadcast_arrays(field_u32(x, first, bits), bits & u32(31))
    spare = (u32(32) - bits) & u32(31)
    return np.where(bits == 0, u32(0), ((found << spare).view(np.int32) >> spare.astype(np.int32)).view(u32))


def field_insert(mask: Array, a: Array, b: Array) -> Array:
    """Bits of a where the mask has ones, else of b."""
    return (mask & a) | (~mask & b)


def field_mask(bits: Array, first: Array) -> Array:
    """So many ones from a bit on."""
    return ((u32(1) << (bits & u32(31))) - u32(1)) << (first & u32(31))


def aligned_bits(high: Array, low: Array, by: Array) -> Array:
    """32 bits of 64, from a bit on."""
    return (((high.astype(u64) << u64(32)) | low.astype(u64)) >> (by & u32(31)).astype(u64)).astype(u32)


def aligned_bytes(high: Array, low: Array, by: Array) -> Array:
    """32 bits of 64, from a byte on."""
    return aligned_bits(high, low, (by & u32(3)) * u32(8))


def permuted_bytes(high: Array, low: Array, choice: Array) -> Array:
    """``v_perm_b32``: each byte of the choice names a byte of the two, a sign, or a constant."""
    high, low, choice = np.broadcast_arrays(high, low, choice)
    both = (high.astype(u64) << u64(32)) | low.astype(u64)
    out = np.zeros(both.shape, u32)
    for k in range(4):
        which = (choice >> u32(8 * k)) & u32(255)
        byte = both >> (np.minimum(which, u32(7)).astype(u64) * u64(8)) & u64(255)
        sign = (both >> ((which.astype(u64) & u64(3)) * u64(16) + u64(15)) & u64(1)) * u64(255)
        found = np.where(which < 8, byte, np.where(which < 12, sign, np.where(which == 12, u64(0), u64(255))))
        out |= found.astype(u32) << u32(8 * k)
    return out


def reversed_bits(x: Array) -> Array:
    """Bit 0 becomes bit 31."""
    x = ((x >> u32(1)) & u32(0x55555555)) | ((x & u32(0x55555555)) << u32(1))
    x = ((x >> u32(2)) & u32(0x33333333)) | ((x & u32(0x33333333)) << u32(2))
    x = ((x >> u32(4)) & u32(0x0F0F0F0F)) | ((x & u32(0x0F0F0F0F)) << u32(4))
    return np.ascontiguousarray(x).byteswap()


def leading_zeros(x: Array) -> Array:
    """Zeros above the highest one; all ones if there is none."""
    return np.where(x == 0, _NONE, u32(32) - np.frexp(x.astype(np.float64))[1].astype(u32))


def leading_signs(x: Array) -> Array:
    """Copies of the sign at the upper end; all ones if every bit is one."""
    return leading_zeros(np.where(x < 0, ~x, x).view(u32))


def trailing_zeros(x: Array) -> Array:
    """Zeros below the lowest one; all ones if there is none."""
    lowest = x & (~x + u32(1))
    return np.where(x == 0, _NONE, np.frexp(lowest.astype(np.float64))[1].astype(u32) - u32(1))


def ones(x: Array) -> Array:
    """The number of ones."""
    x = x - ((x >> u32(1)) & u32(0x55555555))
    x = (x & u32(0x33333333)) + ((x >> u32(2)) & u32(0x33333333))
    return (((x + (x >> u32(4))) & u32(0x0F0F0F0F)) * u32(0x01010101)) >> u32(24)


def ones_added(x: Array, y: Array) -> Array:
    """The number of ones of x, plus y."""
    return ones(x) + y


def minimum3(a: Array, b: Array, c: Array) -> Array:
    """The smallest."""
    return np.minimum(np.minimum(a, b), c)


def maximum3(a: Array, b: Array, c: Array) -> Array:
    """The largest."""
    return np.maximum(np.maximum(a, b), c)


def median3(a: Array, b: Array, c: Array) -> Array:
    """The one in the middle."""
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def packed(low: Array, high: Array) -> Array:
    """Two values of 16 bits as one of 32."""
    return low.view(np.uint16).astype(u32) | (high.view(np.uint16).astype(u32) << u32(16))


def copied(x: Array) -> Array:
    """The value."""
    return x


def reversed_difference(a: Array, b: Array) -> Array:
    """``b - a``"""
    return b - a


def saturated(name: str) -> Callable[..., Any]:
    """A sum or difference of integers that stays in the range of its type."""

    def function(a: Array, b: Array) -> Array:
        if "subrev" in name:
            a, b = b, a
        r = a.astype(i64) - b.astype(i64) if "sub" in name else a.astype(i64) + b.astype(i64)
        limits = np.iinfo(a.dtype)
        return np.clip(r, limits.min, limits.max).astype(a.dtype)

    return function


def sum_with_carry(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    """The sum, and where it does not fit."""
    total = a.astype(u64) + b.astype(u64) + carry.astype(u64)
    return total.astype(u32), total > u64(0xFFFFFFFF)


def difference_with_borrow(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    """The difference, and where it is below zero."""
    total = a.astype(i64) - b.astype(i64) - borrow.astype(i64)
    return total.astype(u32), total < 0


def wide_u(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """``a * b + c`` of 64 bits, and where it does not fit."""
    product = a.astype(u64) * b.astype(u64)
    total = product + c
    return total, total < product


def wide_i(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """``a * b + c`` of 64 bits, signed, and where it does not fit."""
    product = a.astype(i64) * b.astype(i64)
    total = product + c
    return total, ((product ^ total) & (c ^ total)) < 0
