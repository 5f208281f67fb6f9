"""Complex numbers (real part, imaginary part) and quaternions (w, x, y, z) as vectors: functions of ``qd.math`` for kernels and Python.

Quaternions are of length 1 and rotate column vectors by ``q v q*``, as MuJoCo's. Functions of an angle are written as power series of its
square where that is small: so they have all derivatives at the angle zero.
"""

from __future__ import annotations

import math
from typing import Any

from .functions import atan2, cos, exp, log, max, select, sin, sqrt
from .math import both, stack


@both
def cmul(z1: Any, z2: Any) -> Any:
    """The product of two complex numbers."""
    (a, b), (c, d) = z1, z2
    return stack(a * c - b * d, a * d + b * c)


@both
def cconj(z: Any) -> Any:
    """The complex conjugate."""
    a, b = z
    return stack(a, -b)


@both
def cdiv(z1: Any, z2: Any) -> Any:
    """The quotient of two complex numbers."""
    (a, b), (c, d) = z1, z2
    size = c * c + d * d
    return stack((a * c + b * d) / size, (b * c - a * d) / size)


@both
def cinv(z: Any) -> Any:
    """``1 / z``."""
    a, b = z
    size = a * a + b * b
    return stack(a / size, -b / size)


@both
def csqrt(z: Any) -> Any:
    """The square root with a positive real part; of a negative real, the one with a positive imaginary part."""
    return cpow(z, 0.5)


@both
def cpow(z: Any, n: Any) -> Any:
    """``z ** n`` for a real exponent, by the angle of ``z`` in (-pi, pi]; 0 for ``z = 0``, where the gradient is 0, too."""
    a, b = z
    size = a * a + b * b
    usual = size > 0.0
    angle = atan2(b, select(usual, a, 1.0)) * n
    radius = select(usual, exp(log(select(usual, size, 1.0)) * (n * 0.5)), 0.0)
    return stack(radius * cos(angle), radius * sin(angle))


@both
def cexp(z: Any) -> Any:
    """``e ** z``."""
    a, b = z
    radius = exp(a)
    return stack(radius * cos(b), radius * sin(b))


@both
def clog(z: Any) -> Any:
    """The logarithm; its imaginary part is in (-pi, pi]."""
    a, b = z
    return stack(log(sqrt(a * a + b * b)), atan2(b, a))


# ---- quaternions
_SINC = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(9)]
_COSINE = [(-1.0) ** k / math.factorial(2 * k) for k in range(10)]
_ARCTAN = [(-1.0) ** k / (2 * k + 1) for k in range(10)]


def _series(coefficients: list[float], x: Any) -> Any:
    """A polynomial by Horner's rule."""
    out = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        out = out * x + c
    return out


def _cosine_and_sinc(square: Any) -> tuple[Any, Any]:
    """``cos(x)`` and ``sin(x) / x`` of the square of x. Both are analytic functions of the square; the root of 0 has no derivative."""
    near = square < 0.25
    x = sqrt(select(near, 1.0, square))
    few = select(near, square, 0.0)
    return select(near, _series(_COSINE, few), cos(x)), select(near, _series(_SINC, few), sin(x) / x)


def _arctan_ratio(square: Any) -> Any:
    """``atan(x) / x`` of the square of x, from 0 to 1. Halving the angle three times leaves less than 0.01 for the series."""
    scale = 1.0
    for _ in range(3):
        half = 1.0 + sqrt(1.0 + square)
        square, scale = square / (half * half), scale * 2.0 / half
    return scale * _series(_ARCTAN, square)


@both
def quat_mul(p: Any, q: Any) -> Any:
    """The product of two quaternions (w, x, y, z): the rotation ``q``, and then ``p``."""
    (a, b, c, d), (w, x, y, z) = p, q
    return stack(
        a * w - b * x - c * y - d * z,
        a * x + b * w + c * z - d * y,
        a * y - b * z + c * w + d * x,
        a * z + b * y - c * x + d * w,
    )


@both
def quat_conj(q: Any) -> Any:
    """The conjugate of a quaternion (w, x, y, z): of one of length 1 the inverse rotation."""
    w, x, y, z = q
    return stack(w, -x, -y, -z)


@both
def quat_rotate(q: Any, v: Any) -> Any:
    """The vector ``v`` rotated by a quaternion (w, x, y, z) of length 1."""
    (w, x, y, z), (a, b, c) = q, v
    d, e, f = 2.0 * (y * c - z * b), 2.0 * (z * a - x * c), 2.0 * (x * b - y * a)
    return stack(a + w * d + y * f - z * e, b + w * e + z * d - x * f, c + w * f + x * e - y * d)


@both
def quat_from_axis_angle(axis: Any, angle: Any) -> Any:
    """The quaternion (w, x, y, z) that rotates by ``angle`` around ``axis``, a vector of length 1."""
    x, y, z = axis
    c, s = cos(angle * 0.5), sin(angle * 0.5)
    return stack(c, s * x, s * y, s * z)


@both
def quat_from_rotvec(v: Any) -> Any:
    """The quaternion (w, x, y, z) that rotates by the length of ``v`` around ``v``: the exponential map. Smooth at zero."""
    x, y, z = v
    c, ratio = _cosine_and_sinc((x * x + y * y + z * z) * 0.25)
    s = ratio * 0.5
    return stack(c, s * x, s * y, s * z)


@both
def quat_to_rotvec(q: Any) -> Any:
    """The shortest rotation vector of a quaternion (w, x, y, z): the logarithm, with an angle of at most pi. Smooth at the identity."""
    w, x, y, z = q
    sign = select(w < 0.0, -1.0, 1.0)  # q and -q are the same rotation
    square = x * x + y * y + z * z
    whole = sqrt(w * w + square) + w * sign
    s = _arctan_ratio(square / (whole * whole)) * 4.0 * sign / whole
    return stack(s * x, s * y, s * z)


@both
def quat_to_matrix(q: Any) -> Any:
    """The 3 x 3 matrix of the rotation by a quaternion (w, x, y, z) of length 1; ``quat_to_matrix(q) @ v`` rotates ``v``."""
    w, x, y, z = q
    return stack(
        [1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)],
        [2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x)],
        [2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)],
    )


@both
def quat_from_matrix(m: Any) -> Any:
    """The quaternion (w, x, y, z) of a 3 x 3 rotation matrix; its largest component is positive."""
    (a, b, c), (d, e, f), (g, h, i) = m
    squares = [1.0 + a + e + i, 1.0 + a - e - i, 1.0 - a + e - i, 1.0 - a - e + i]  # 4 w ** 2, 4 x ** 2, ..
    rows = [
        [squares[0], h - f, c - g, d - b],
        [h - f, squares[1], b + d, c + g],
        [c - g, b + d, squares[2], f + h],
        [d - b, c + g, f + h, squares[3]],
    ]
    best, out = squares[0], rows[0]
    for square, row in zip(squares[1:], rows[1:]):
        larger = square > best
        out = [select(larger, new, old) for new, old in zip(row, out)]
        best = max(best, square)
    scale = 0.5 / sqrt(best)
    return stack(*(scale * one for one in out))


@both
def quat_slerp(p: Any, q: Any, t: Any) -> Any:
    """From ``p`` (t = 0) to ``q`` (t = 1) on the shortest way at constant speed; quaternions (w, x, y, z). Smooth where they are equal."""
    return quat_mul(p, quat_from_rotvec(quat_to_rotvec(quat_mul(quat_conj(p), q)) * t))


@both
def quat_integrate(q: Any, omega: Any, dt: Any) -> Any:
    """The quaternion (w, x, y, z) after the time ``dt`` at the constant angular velocity ``omega``, in the axes of the body."""
    return quat_mul(q, quat_from_rotvec(omega * dt))
