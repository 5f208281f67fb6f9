"""What instructions on floats compute. Functions take and give arrays of one type, and are called without NumPy's warnings."""

from __future__ import annotations

from typing import Any

import numpy as np

from .fused import fma32, fma64

Array = np.ndarray
_FIELDS = {2: (np.uint16, 10, 31), 4: (np.uint32, 23, 255), 8: (np.uint64, 52, 2047)}


def exponent(x: Array) -> Array:
    """The biased exponent."""
    unsigned, mantissa, most = _FIELDS[x.dtype.itemsize]
    return ((np.ascontiguousarray(x).view(unsigned) >> unsigned(mantissa)) & unsigned(most)).astype(np.int64)


def fract(x: Array) -> Array:
    """``x - floor(x)``, below 1."""
    return np.minimum(x - np.floor(x), np.nextafter(x.dtype.type(1), x.dtype.type(0)))


def reciprocal(x: Array) -> Array:
    """Rounded correctly; the hardware's may differ in the last place."""
    return x.dtype.type(1) / x


def reciprocal_root(x: Array) -> Array:
    """Rounded twice; the hardware's may differ in the last place."""
    return x.dtype.type(1) / np.sqrt(x)


def _wide(function: Any) -> Any:
    def narrow(x: Array) -> Array:
        return function(x.astype(np.float64)).astype(x.dtype)

    narrow.__name__ = function.__name__
    return narrow


exp2, log2 = _wide(np.exp2), _wide(np.log2)


def sine(x: Array) -> Array:
    """Of turns."""
    turns = x.astype(np.float64)
    return np.sin((turns - np.floor(turns)) * (2 * np.pi)).astype(x.dtype)


def cosine(x: Array) -> Array:
    """Of turns."""
    turns = x.astype(np.float64)
    return np.cos((turns - np.floor(turns)) * (2 * np.pi)).astype(x.dtype)


def minimum(a: Array, b: Array) -> Array:
    """The smaller one; a number beside NaN; -0 is below +0."""
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), np.fmin(a, b))


def maximum(a: Array, b: Array) -> Array:
    """The larger one; a number beside NaN; +0 is above -0."""
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), np.fmax(a, b))


def minimum3(a: Array, b: Array, c: Array) -> Array:
    """The smallest."""
    return minimum(minimum(a, b), c)


def maximum3(a: Array, b: Array, c: Array) -> Array:
    """The largest."""
    return maximum(maximum(a, b), c)


def median3(a: Array, b: Array, c: Array) -> Array:
    """The one in the middle; with a NaN the smallest."""
    middle = maximum(minimum(a, b), minimum(maximum(a, b), c))
    return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), minimum3(a, b, c), middle)


def legacy_product(a: Array, b: Array) -> Array:
    """Zero times anything is zero."""
    return np.where((a == 0) | (b == 0), a.dtype.type(0), a * b)


def mantissa(x: Array) -> Array:
    """In [0.5, 1), as ``frexp`` gives it; infinities and NaN stay."""
    return np.where(np.isfinite(x), np.frexp(x)[0], x)


def binary_exponent(x: Array) -> Array:
    """As ``frexp`` gives it; 0 of infinities and NaN. Of 16-bit floats it has 16 bits, else 32."""
    found = np.where(np.isfinite(x), np.frexp(np.where(np.isfinite(x), x, x.dtype.type(1)))[1], 0)
    return found.astype(np.int16 if x.dtype.itemsize == 2 else np.int32)


def scaled(x: Array, by: Array) -> Array:
    """``ldexp``."""
    return np.ldexp(x, np.clip(by, -5000, 5000)).astype(np.asarray(x).dtype)


def clamped(x: Array) -> Array:
    """Into [0, 1]; NaN becomes 0."""
    one = x.dtype.type(1)
    return np.where(np.isnan(x), x.dtype.type(0), np.minimum(np.maximum(x, x.dtype.type(0)), one))


def in_class(x: Array, classes: Array) -> Array:
    """Whether a value is in one of the ten classes of a set of bits, from signalling NaN to infinity."""
    unsigned, bits, most = _FIELDS[x.dtype.itemsize]
    raw = x.view(unsigned)
    field, rest = (raw >> unsigned(bits)) & unsigned(most), raw & unsigned((1 << bits) - 1)
    sign = np.signbit(x)
    nan, infinite = (field == most) & (rest != 0), (field == most) & (rest == 0)
    quiet = nan & ((rest >> unsigned(bits - 1)) == 1)
    tiny, zero = (field == 0) & (rest != 0), (field == 0) & (rest == 0)
    normal = ~(nan | infinite | tiny | zero)
    kinds = (
        nan & ~quiet, quiet, infinite & sign, normal & sign, tiny & sign, zero & sign, zero & ~sign, tiny & ~sign, normal & ~sign,
        infinite & ~sign,
    )  # fmt: skip
    found = np.zeros(x.shape, np.uint32)
    for bit, members in enumerate(kinds):
        found = found | np.where(members, np.uint32(1 << bit), np.uint32(0))
    return (found & classes) != 0


_SCALES = {4: (96, 64, 23), 8: (768, 128, 53)}


def division_scale(x: Array, divisor: Array, dividend: Array) -> tuple[Array, Array]:
    """``v_div_scale``: x, the divisor or the dividend, scaled so that a division stays in range; and where the result is to be scaled.

    Where the quotient and the reciprocal are both subnormal, the manuals multiply the divisor, which is then infinite. It is divided here:
    cards pass the tests of OpenCL, which asks for the right quotient.
    """
    limit, by, low = _SCALES[x.dtype.itemsize]
    e1, e2 = exponent(divisor), exponent(dividend)
    tiny = np.finfo(x.dtype).tiny
    wide = np.longdouble
    quotient, inverse = np.abs(wide(dividend) / wide(divisor)), np.abs(1 / wide(divisor))
    low_quotient, low_inverse = (quotient < tiny) & (quotient != 0), inverse < tiny
    low_divisor = (e1 == 0) & (divisor != 0)
    up, down = np.ldexp(x, by), np.ldexp(x, -by)
    of_divisor, of_dividend = x == divisor, x == dividend
    none = (dividend == 0) | (divisor == 0)
    far = ~none & (e2 - e1 >= limit)
    left = ~none & ~far
    denormal = left & low_divisor
    left &= ~low_divisor
    both = left & low_inverse & low_quotient
    high = left & low_inverse & ~low_quotient
    left &= ~low_inverse
    small = left & low_quotient
    rest = left & ~low_quotient & (e2 <= low)
    out = np.where(none, x.dtype.type(np.nan), x)
    out = np.where(far & of_divisor | denormal | small & of_dividend | rest, up, out)
    return np.where(high | both & of_divisor, down, out).astype(x.dtype), far | both | small


def division_steps(a: Array, b: Array, c: Array, scaled_lanes: Array) -> Array:
    """``v_div_fmas``: multiply and add, and take the scale of ``v_div_scale`` back, with one rounding.

    A subnormal result is rounded again. That is wrong where the sum came to lie between two of them by its own rounding: there, it is moved
    back to the side where it was. ``c`` is near the sum, so that their difference is exact.
    """
    wide = c.dtype.itemsize == 8
    fma, by = (fma64, 128) if wide else (fma32, 64)
    r = fma(a, b, c).copy()
    down = np.ldexp(r, -by)
    between = np.abs(r - np.ldexp(down, by)) == np.ldexp(np.finfo(r.dtype).smallest_subnormal, by - 1)
    error = fma(a, b, c - r)
    down = np.where(between & (error != 0), np.ldexp(np.nextafter(r, np.copysign(r.dtype.type(np.inf), error)), -by), down)
    large = exponent(c) > (1023 if wide else 127)
    return np.where(scaled_lanes, np.where(large, np.ldexp(r, by), down), r).astype(c.dtype)


def division_result(quotient: Array, divisor: Array, dividend: Array) -> Array:
    """``v_div_fixup``: the special cases of a division."""
    one, nan = quotient.dtype.type(1), quotient.dtype.type(np.nan)
    sign = np.where(np.signbit(dividend) ^ np.signbit(divisor), -one, one)
    r = np.copysign(np.where(np.isnan(quotient), quotient.dtype.type(np.inf), np.abs(quotient)), sign)
    r = np.where(np.isinf(dividend) | (divisor == 0), sign * quotient.dtype.type(np.inf), r)
    r = np.where(np.isinf(divisor) | (dividend == 0), sign * quotient.dtype.type(0), r)
    none = ((dividend == 0) & (divisor == 0)) | (np.isinf(dividend) & np.isinf(divisor))
    return np.where(none | np.isnan(dividend) | np.isnan(divisor), nan, r).astype(quotient.dtype)
