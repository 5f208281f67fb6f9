import math

import numpy as np
import pytest
from emit_harness import emit

from qdrun.compiler.errors import QdrunTypeError
from qdrun.compiler.frontend.library import functions
from qdrun.compiler.frontend.library import math as kernel_math
from qdrun.compiler.frontend.library.functions import lookup
from qdrun.compiler.ir.nodes import Const
from qdrun.compiler.ir.types import f32, f64, i32, i64, u32
from qdrun.compiler.lang import math as qdmath
from qdrun.compiler.lang.data import matrix as host
from qdrun.compiler.lang.data.types import matrix, vector

RNG = np.random.default_rng(3)


def run(fn, *args, **kw):
    return emit(lambda b, *v: lookup(fn)(b, *v, **kw), *args, fp=f64)


@pytest.mark.parametrize("name", "sin cos tan asin acos tanh exp log sqrt rsqrt floor ceil round trunc abs sign".split())
def test_a_function_gives_the_same_in_kernels_and_in_python(name):
    fn = getattr(functions, name)
    for x in (0.3, 0.9):
        assert run(fn, np.float64(x)) == pytest.approx(fn(x))
        assert run(fn, x) == pytest.approx(fn(x))
    assert isinstance(fn(0.3), float)
    v = np.array([0.2, 0.7])
    assert run(fn, v) == pytest.approx(fn(v))


@pytest.mark.parametrize(
    "fn,args",
    [
        (functions.atan2, (0.5, -0.2)),
        (functions.pow, (1.3, 2.2)),
        (functions.min, (3.0, 1.0, 2.0)),
        (functions.max, (3.0, 1.0, 4.0, 2.0)),
        (functions.raw_div, (-7, 2)),
        (functions.raw_mod, (-7, 2)),
        (functions.raw_mod, (-7.5, 2.0)),
        (functions.popcnt, (0b1011,)),
        (functions.clz, (5,)),
        (functions.ffs, (12,)),
        (functions.ffs, (0,)),
        (functions.isnan, (math.nan,)),
        (functions.isinf, (-math.inf,)),
        (kernel_math.mix, (1.0, 3.0, 0.25)),
        (kernel_math.clamp, (5.0, 0.0, 3.0)),
        (kernel_math.step, (0.5, 0.5)),
        (kernel_math.fract, (-1.25,)),
        (kernel_math.smoothstep, (0.0, 2.0, 0.7)),
        (kernel_math.mod, (-7.5, 2.0)),
        (kernel_math.degrees, (1.0,)),
        (kernel_math.radians, (90.0,)),
        (kernel_math.log2, (8.0,)),
        (kernel_math.exp2, (3.0,)),
        (abs, (-3.5,)),
        (min, (3, 2)),
        (max, (3.0, 2.0)),
        (pow, (2.0, 3.0)),
        (math.sin, (0.5,)),
        (math.floor, (-0.5,)),
        (math.log, (8.0, 2.0)),
        (np.cos, (0.5,)),
        (np.maximum, (1.0, 2.0)),
    ],
)
def test_functions_of_several_values_agree_with_python(fn, args):
    typed = [np.float64(a) if isinstance(a, float) else np.int32(a) for a in args]
    assert run(fn, *typed) == pytest.approx(fn(*args))
    assert run(fn, *args) == pytest.approx(fn(*args))  # literals fold


@pytest.mark.parametrize("name", ["length", "normalize", "dot", "cross", "distance", "reflect"])
def test_vector_functions_agree_on_both_sides(name):
    fn = getattr(qdmath, name)
    v, w = RNG.normal(size=3), RNG.normal(size=3)
    args = (v,) if name in ("length", "normalize") else (v, w)
    assert run(fn, *args) == pytest.approx(np.asarray(fn(*map(host.Vector, args))))


def test_refraction_bends_and_vanishes_at_total_reflection():
    n = np.array([0.0, 1.0])
    v = np.array([math.sin(0.5), -math.cos(0.5)])
    out = run(qdmath.refract, v, n, np.float64(0.9))
    assert out == pytest.approx(np.asarray(qdmath.refract(host.Vector(v), host.Vector(n), 0.9)))
    assert out[0] == pytest.approx(0.9 * math.sin(0.5))
    assert run(qdmath.refract, v, n, np.float64(3.0)).tolist() == [0, 0]


def test_rotations_agree_on_both_sides():
    axis = np.array([1.0, 2.0, 3.0])
    c, s = math.cos(0.4), math.sin(0.4)
    assert run(qdmath.rotation2d, np.float64(0.4)) == pytest.approx(np.array([[c, -s], [s, c]]))
    out = run(qdmath.rot_by_axis, axis, np.float64(0.3))
    assert out == pytest.approx(np.asarray(qdmath.rot_by_axis(host.Vector(axis), 0.3)))
    assert out @ out.T == pytest.approx(np.eye(4))
    assert run(qdmath.rotation3d, *map(np.float64, (0.1, 0.2, 0.3))).shape == (4, 4)
    assert run(qdmath.eye, 3) == pytest.approx(np.eye(3))
    assert run(qdmath.translate, 1.0, 2.0, 3.0)[:, 3].tolist() == [1, 2, 3, 1]


def test_types_are_casts():
    assert run(i32, np.float64(-2.7)) == -2
    assert run(float, np.int32(3)).dtype == np.float64
    assert run(int, np.float64(3.9)) == 3 and run(bool, np.float64(0.5)) == True  # noqa: E712
    assert run(functions.cast, np.array([1.5, 2.5]), i64).tolist() == [1, 2]
    assert run(functions.bit_cast, np.float32(1.0), i32) == 0x3F800000 == functions.bit_cast(np.float32(1.0), i32)
    with pytest.raises(QdrunTypeError, match="number of bits"):
        run(functions.bit_cast, np.float64(1.0), i32)


def test_rounding_takes_a_type_and_leaves_integers_alone():
    assert run(functions.floor, np.float64(-1.5), i32) == -2 == functions.floor(-1.5, i32)
    assert run(functions.ceil, np.int32(3)).dtype == np.int32
    with pytest.raises(QdrunTypeError, match="digits"):
        run(round, np.float64(1.2345), 2)


def test_constructors_work_in_kernels():
    assert run(host.Vector, [1, np.float32(2.5)]).tolist() == [1, 2.5]
    assert emit(lambda b, v: host.Matrix.__qd_lower__(b, [v, [3.0, 4.0]]), np.array([1.0, 2.0])).tolist() == [[1, 2], [3, 4]]
    assert run(host.Vector.zero, float, 3).tolist() == [0, 0, 0]
    assert run(host.Matrix.identity, f32, 2).tolist() == [[1, 0], [0, 1]]
    assert run(host.Matrix.diag, 2, 3.0).tolist() == [[3, 0], [0, 3]]
    assert run(host.Matrix.cols, [[1, 2], [3, 4]]).tolist() == [[1, 3], [2, 4]]
    assert run(host.Vector.unit, 3, 1).tolist() == [0, 1, 0]
    assert run(vector(3, f32), np.array([1.0, 2.0]), 3).dtype == np.float32
    assert run(vector(4, i32), 7).tolist() == [7] * 4
    assert run(matrix(2, 2, f64), [[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(QdrunTypeError, match="needs 3 components"):
        run(vector(3, f32), 1, 2)


def test_random_numbers_are_uniform_and_differ_by_iteration_call_and_seed():
    def body(b):
        return host.Vector.__qd_lower__(b, [lookup(functions.random)(b), lookup(functions.random)(b, float)])

    out = emit(body, n=2000, seed=5)
    assert ((out >= 0) & (out < 1)).all() and abs(out.mean() - 0.5) < 0.03 and abs(out.std() - 12**-0.5) < 0.02
    assert len(np.unique(out)) > 3990 and abs(np.corrcoef(out.T)[0, 1]) < 0.07
    first = emit(body, n=50, seed=5)
    assert np.array_equal(out[:50], first) and not np.array_equal(first, emit(body, n=50, seed=6))


def test_random_numbers_differ_in_each_turn_of_a_loop():
    def body(b):
        total = [b.local(Const(0.0, f32)) for _ in range(2)]
        with b.loop(Const(0, i32), Const(2, i32)) as outer, b.loop(Const(0, i32), Const(2, i32)) as inner:
            draw = lookup(functions.random)(b)
            with b.if_(b.op("eq", outer.index, inner.index)):
                b.store(total[1], b.load(total[0]))
                b.store(total[0], draw)
        return host.Vector.__qd_lower__(b, [b.load(x) for x in total])

    out = emit(body, n=50)
    assert (out[:, 0] != out[:, 1]).all()


@pytest.mark.slow
def test_normal_and_integer_draws():
    out = emit(lookup(functions.randn), n=3000, seed=1)
    assert abs(out.mean()) < 0.06 and abs(out.std() - 1) < 0.05
    bits = emit(lambda b: lookup(functions.random)(b, u32), n=500)
    assert bits.dtype == np.uint32 and bits.max() > 2**31 > bits.min()


def test_lookup_knows_nothing_of_other_callables():
    for fn in (print, lambda x: x, [1], 3, host.Vector([1, 2]), None):
        assert lookup(fn) is None
