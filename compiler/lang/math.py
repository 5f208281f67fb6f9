"""``qd.math``: GLSL-style types and functions, for kernels and Python."""

from __future__ import annotations

from ..frontend.library import complex as _complex
from ..frontend.library import math as _math
from ..frontend.library.extra import fns
from ..frontend.library.functions import (
    Intrinsic,
    acos,
    asin,
    atan2,
    ceil,
    clz,
    cos,
    cosh,
    erf,
    erfc,
    exp,
    expm1,
    ffs,
    floor,
    isinf,
    isnan,
    log,
    log1p,
    max,
    min,
    popcnt,
    pow,
    round,
    sign,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
)
from ..frontend.library.math import (
    clamp,
    cross,
    degrees,
    determinant,
    distance,
    dot,
    e,
    exp2,
    fract,
    inf,
    inverse,
    length,
    log2,
    mix,
    mod,
    nan,
    normalize,
    pi,
    radians,
    reflect,
    refract,
    smoothstep,
    step,
)
from ..ir.types import Unsigned
from .data.matrix import Matrix
from .data.types import matrix, vector

vec2, vec3, vec4 = (vector(n, float) for n in (2, 3, 4))
ivec2, ivec3, ivec4 = (vector(n, int) for n in (2, 3, 4))
uvec2, uvec3, uvec4 = (vector(n, Unsigned) for n in (2, 3, 4))
mat2, mat3, mat4 = (matrix(n, n, float) for n in (2, 3, 4))


def _host_matrix(f: Intrinsic) -> Intrinsic:
    """The same function, with a ``Vector`` or ``Matrix`` as its result in Python."""

    def host(*args: object) -> object:
        out = f.host(*args)
        return Matrix(out.tolist()) if out.ndim == 2 else vector(len(out))(out)

    return Intrinsic(f.__name__, host, f.__qd_lower__, f.__doc__ or "", " ".join(f.__signature__.parameters))


eye = _host_matrix(_math.eye)
vdir = _host_matrix(_math.vdir)
rotation2d = _host_matrix(_math.rotation2d)
rotation3d = _host_matrix(_math.rotation3d)
translate = _host_matrix(_math.translate)
scale = _host_matrix(_math.scale)
rot_by_axis = _host_matrix(_math.rot_by_axis)
rot_yaw_pitch_roll = _host_matrix(_math.rot_yaw_pitch_roll)

cconj = _host_matrix(_complex.cconj)
cdiv = _host_matrix(_complex.cdiv)
cexp = _host_matrix(_complex.cexp)
cinv = _host_matrix(_complex.cinv)
clog = _host_matrix(_complex.clog)
cmul = _host_matrix(_complex.cmul)
cpow = _host_matrix(_complex.cpow)
csqrt = _host_matrix(_complex.csqrt)

quat_conj = _host_matrix(_complex.quat_conj)
quat_from_axis_angle = _host_matrix(_complex.quat_from_axis_angle)
quat_from_matrix = _host_matrix(_complex.quat_from_matrix)
quat_from_rotvec = _host_matrix(_complex.quat_from_rotvec)
quat_integrate = _host_matrix(_complex.quat_integrate)
quat_mul = _host_matrix(_complex.quat_mul)
quat_rotate = _host_matrix(_complex.quat_rotate)
quat_slerp = _host_matrix(_complex.quat_slerp)
quat_to_matrix = _host_matrix(_complex.quat_to_matrix)
quat_to_rotvec = _host_matrix(_complex.quat_to_rotvec)

__all__ = [
    "acos",
    "asin",
    "atan2",
    "cconj",
    "cdiv",
    "ceil",
    "cexp",
    "cinv",
    "clamp",
    "clog",
    "clz",
    "cmul",
    "cos",
    "cosh",
    "cpow",
    "cross",
    "csqrt",
    "degrees",
    "determinant",
    "distance",
    "dot",
    "e",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "eye",
    "ffs",
    "floor",
    "fns",
    "fract",
    "inf",
    "inverse",
    "isinf",
    "isnan",
    "ivec2",
    "ivec3",
    "ivec4",
    "length",
    "log",
    "log1p",
    "log2",
    "mat2",
    "mat3",
    "mat4",
    "max",
    "min",
    "mix",
    "mod",
    "nan",
    "normalize",
    "pi",
    "popcnt",
    "pow",
    "quat_conj",
    "quat_from_axis_angle",
    "quat_from_matrix",
    "quat_from_rotvec",
    "quat_integrate",
    "quat_mul",
    "quat_rotate",
    "quat_slerp",
    "quat_to_matrix",
    "quat_to_rotvec",
    "radians",
    "reflect",
    "refract",
    "rot_by_axis",
    "rot_yaw_pitch_roll",
    "rotation2d",
    "rotation3d",
    "round",
    "scale",
    "sign",
    "sin",
    "sinh",
    "smoothstep",
    "sqrt",
    "step",
    "tan",
    "tanh",
    "translate",
    "uvec2",
    "uvec3",
    "uvec4",
    "vdir",
    "vec2",
    "vec3",
    "vec4",
]
