"""The functions of ``qd.math``, each written once with operators for kernels and Python (see ``traced``)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..values import constructors
from .functions import Intrinsic, cos, exp, floor, log, max, min, select, sin, sqrt
from .traced import Traced, builder_of, lower_by_tracing, unwrap

e, pi, inf, nan = math.e, math.pi, math.inf, math.nan


def both(f: Callable[..., Any]) -> Intrinsic:
    """An intrinsic from one definition with operators."""
    return Intrinsic(f.__name__, f, lower_by_tracing(f), f.__doc__ or "", " ".join(inspect.signature(f).parameters))


def stack(*args: Any) -> Any:
    """Entries or rows as a vector or a matrix: emitted in a kernel, a numpy array in Python (``lang.math`` wraps it)."""
    b = builder_of(args)
    return np.array(args) if b is None else Traced(b, constructors.lower_matrix(b, [unwrap(a) for a in args]))


@both
def mix(x: Any, y: Any, a: Any) -> Any:
    """Linear interpolation: ``x * (1 - a) + y * a``."""
    return x * (1.0 - a) + y * a


@both
def clamp(x: Any, xmin: Any, xmax: Any) -> Any:
    """``x`` held in [xmin, xmax], element by element."""
    return min(xmax, max(xmin, x))


@both
def step(edge: Any, x: Any) -> Any:
    """0.0 where ``x < edge``, else 1.0."""
    return select(x < edge, 0.0, 1.0)


@both
def fract(x: Any) -> Any:
    """``x - floor(x)``."""
    return x - floor(x)


@both
def smoothstep(edge0: Any, edge1: Any, x: Any) -> Any:
    """A cubic from 0 at ``edge0`` to 1 at ``edge1``, flat at both ends."""
    t = clamp((x - edge0) / (edge1 - edge0), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


@both
def mod(x: Any, y: Any) -> Any:
    """``x - y * floor(x / y)``, as in GLSL."""
    return x - y * floor(x / y)


@both
def degrees(x: Any) -> Any:
    """Radians to degrees."""
    return x * (180.0 / pi)


@both
def radians(x: Any) -> Any:
    """Degrees to radians."""
    return x * (pi / 180.0)


@both
def log2(x: Any) -> Any:
    """Logarithm to base 2."""
    return log(x) * (1.0 / math.log(2.0))


@both
def exp2(x: Any) -> Any:
    """2 to the power x."""
    return exp(x * math.log(2.0))


@both
def length(x: Any) -> Any:
    """The Euclidean norm of a vector."""
    return x.norm()


@both
def normalize(v: Any) -> Any:
    """``v / length(v)``."""
    return v / v.norm()


@both
def dot(x: Any, y: Any) -> Any:
    """The inner product of two vectors."""
    return x.dot(y)


@both
def cross(x: Any, y: Any) -> Any:
    """The cross product: a vector in three dimensions, a scalar in two."""
    return x.cross(y)


@both
def distance(x: Any, y: Any) -> Any:
    """The Euclidean distance of two points."""
    return (x - y).norm()


@both
def reflect(x: Any, n: Any) -> Any:
    """``x`` mirrored at the plane with the unit normal ``n``."""
    return x - n * (2.0 * x.dot(n))


@both
def refract(x: Any, n: Any, eta: Any) -> Any:
    """The refracted direction for the ratio ``eta`` of refraction indices; zero at total reflection."""
    cosine = x.dot(n)
    k = 1.0 - eta * eta * (1.0 - cosine * cosine)
    bent = x * eta - n * (eta * cosine + sqrt(max(k, 0.0)))
    return bent * select(k < 0.0, 0.0, 1.0)


@both
def vdir(ang: Any) -> Any:
    """The unit vector of the angle ``ang``."""
    return stack(cos(ang), sin(ang))


@both
def rotation2d(ang: Any) -> Any:
    """The 2 x 2 matrix that rotates counter-clockwise by ``ang``."""
    c, s = cos(ang), sin(ang)
    return stack([c, -s], [s, c])


@both
def translate(dx: Any, dy: Any, dz: Any) -> Any:
    """The 4 x 4 matrix that moves by (dx, dy, dz)."""
    return stack([1.0, 0.0, 0.0, dx], [0.0, 1.0, 0.0, dy], [0.0, 0.0, 1.0, dz], [0.0, 0.0, 0.0, 1.0])


@both
def scale(sx: Any, sy: Any, sz: Any) -> Any:
    """The 4 x 4 matrix that scales the axes."""
    return stack([sx, 0.0, 0.0, 0.0], [0.0, sy, 0.0, 0.0], [0.0, 0.0, sz, 0.0], [0.0, 0.0, 0.0, 1.0])


@both
def rot_by_axis(axis: Any, ang: Any) -> Any:
    """The 4 x 4 matrix that rotates by ``ang`` around ``axis`` (row vectors are rotated, as in Quadrants)."""
    c, s = cos(ang), sin(ang)
    x, y, z = normalize(axis)
    t = 1.0 - c
    return stack(
        [c + t * x * x, t * x * y + s * z, t * x * z - s * y, 0.0],
        [t * y * x - s * z, c + t * y * y, t * y * z + s * x, 0.0],
        [t * z * x + s * y, t * z * y - s * x, c + t * z * z, 0.0],
        [0.0, 0.0, 0.0, 1.0],
    )


@both
def rot_yaw_pitch_roll(yaw: Any, pitch: Any, roll: Any) -> Any:
    """The 4 x 4 matrix of Euler angles: around y, then x, then z."""
    ch, sh, cp, sp, cb, sb = cos(yaw), sin(yaw), cos(pitch), sin(pitch), cos(roll), sin(roll)
    return stack(
        [ch * cb + sh * sp * sb, sb * cp, -sh * cb + ch * sp * sb, 0.0],
        [-ch * sb + sh * sp * cb, cb * cp, sb * sh + ch * sp * cb, 0.0],
        [sh * cp, -sp, ch * cp, 0.0],
        [0.0, 0.0, 0.0, 1.0],
    )


@both
def rotation3d(ang_x: Any, ang_y: Any, ang_z: Any) -> Any:
    """``rot_yaw_pitch_roll(ang_z, ang_x, ang_y)``."""
    return rot_yaw_pitch_roll(ang_z, ang_x, ang_y)


@both
def inverse(mat: Any) -> Any:
    """The inverse of a matrix of at most 4 x 4."""
    return mat.inverse()


@both
def determinant(m: Any) -> Any:
    """The determinant of a matrix of at most 4 x 4."""
    return m.determinant()


eye = Intrinsic("eye", np.eye, constructors.lower_eye, "The n x n identity.", "n")
