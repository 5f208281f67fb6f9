"""Complex numbers as vectors of two components (real part, imaginary part): functions of ``qd.math`` for kernels and Python."""

from __future__ import annotations

from typing import Any

from .functions import atan2, cos, exp, log, select, sin, sqrt
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
