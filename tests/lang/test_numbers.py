"""Rules of numbers that hold everywhere: NaN and zeros in minima and maxima, exact remainders, algorithms under every check."""

from __future__ import annotations

import math

import numpy as np
import pytest

import qdrun as qd

WHERE = [{}, {"cpu_lanes": 4}, {"arch": qd.python}, {"arch": qd.cuda, "device": "emulated"}, {"batch": 2}]
NAMES = ["cpu", "lanes", "interpreter", "emulated", "batch"]
A = qd.algorithms


def array(values, dtype):
    out = qd.ndarray(dtype, len(values))
    out.from_numpy(np.asarray(values, dtype.numpy))
    return out


def ieee(op, values):
    """The minimum or maximum: NaN if one is, and -0.0 is less than 0.0."""
    if np.isnan(values).any():
        return np.nan
    best = min(values) if op == "min" else max(values)
    zeros = [v for v in values if v == 0.0]
    if best == 0.0:
        return (min if op == "min" else max)(zeros, key=lambda v: math.copysign(1.0, v))
    return best


def same(a, b):
    return (np.isnan(a) and np.isnan(b)) or (a == b and np.signbit(a) == np.signbit(b))


@pytest.mark.parametrize("where", [w for w in WHERE if "batch" not in w], ids=NAMES[:4])
@pytest.mark.parametrize("dtype", [qd.f32, qd.f64])
def test_minima_and_maxima_keep_a_nan_and_order_zeros_in_reductions_scans_and_atomics(where, dtype):
    rng = np.random.default_rng()
    qd.init(default_fp=qd.f64, **where)
    s, t = qd.field(dtype, shape=()), qd.field(dtype, shape=2)

    @qd.kernel
    def atomics(x: qd.types.ndarray()):
        for i in x:
            qd.atomic_min(t[0], x[i])
            qd.atomic_max(t[1], x[i])

    @qd.kernel
    def variables(x: qd.types.ndarray()):
        low, highest = x[0], qd.Vector([x[0], x[0]])
        for _ in range(1):
            for i in range(x.shape[0]):
                qd.atomic_min(low, x[i])
                qd.atomic_max(highest[1], x[i])
            t[0], t[1] = low, highest[1]

    for n in (5, 600):
        for values in (
            rng.choice([0.0, -0.0], n),
            rng.normal(size=n),
            np.where(rng.random(n) < 2 / n, np.nan, rng.normal(size=n)),
        ):
            values = values.astype(dtype.numpy)
            x, out = array(values, dtype), qd.ndarray(dtype, n)
            t.from_numpy(np.array([np.inf, -np.inf], dtype.numpy))
            atomics(x)
            found = t.to_numpy()
            variables(x)
            for k, op in enumerate(("min", "max")):
                want = [ieee(op, values[: i + 1].tolist()) for i in range(n)]
                assert same(found[k], want[-1])
                A.reduce(x, s, op)
                assert same(s[None], want[-1]) and same(t[k], want[-1])
                A.inclusive_scan(x, out, op)
                assert all(map(same, out.to_numpy(), want))
                A.exclusive_scan(x, out, op)
                assert all(map(same, out.to_numpy()[1:], want[:-1]))


@pytest.mark.parametrize("where", [w for w in WHERE if "batch" not in w], ids=NAMES[:4])
def test_truth_values_are_reduced(where):
    qd.init(**where)
    flags, out = qd.field(qd.u1, shape=300), qd.field(qd.u1, shape=3)

    @qd.kernel
    def k():
        for i in flags:
            qd.atomic_max(out[0], flags[i])
            qd.atomic_min(out[1], flags[i])
            out[2] += flags[i]

    for values in (np.zeros(300, bool), np.arange(300) == 257, np.arange(300) != 257, np.ones(300, bool)):
        flags.from_numpy(values)
        out.from_numpy(np.array([False, True, False]))
        k()
        assert out.to_numpy().tolist() == [values.any(), values.all(), values.any()]


@pytest.mark.parametrize("where", WHERE, ids=NAMES)
@pytest.mark.parametrize("dtype", [qd.f32, qd.f64])
def test_remainders_of_reals_are_exact_and_the_sign_of_a_nan_is_a_nan(where, dtype):
    rng, real = np.random.default_rng(), dtype.numpy
    a = np.concatenate([rng.normal(size=40) * 10.0 ** rng.integers(-30, 30, 40), [1e9, -1e9, 5.0, -5.0, 3.0, -3.0, 0.0, -0.0]])
    b = np.concatenate(
        [rng.normal(size=40) * 10.0 ** rng.integers(-30, 30, 40), [0.7, 0.7, np.inf, np.inf, 1.5, 1.5, 2.0, 2.0]]
    )
    a, b = a.astype(real), b.astype(real)
    qd.init(default_fp=dtype, **where)
    x, y, out = (qd.field(dtype, shape=len(a)) for _ in range(3))
    signs = qd.field(dtype, shape=len(a))
    copies = where.get("batch")
    for f, v in ((x, a), (y, b)):
        f.from_numpy(np.tile(v, (copies, 1)) if copies else v)

    @qd.kernel
    def python():
        for i in x:
            out[i] = x[i] % y[i]
            signs[i] = qd.math.sign(x[i] * qd.math.nan)

    @qd.kernel
    def c():
        for i in x:
            out[i] = qd.raw_mod(x[i], y[i])

    with np.errstate(all="ignore"):
        for k, want in ((python, np.remainder(a, b)), (c, np.fmod(a, b))):
            k()
            got = out.to_numpy()[0] if copies else out.to_numpy()
            assert got.tobytes() == want.tobytes()
    assert np.isnan(signs.to_numpy()).all()


@pytest.mark.parametrize("check", ["overflow_check", "debug", "nan_check"])
def test_no_routine_of_the_library_fails_a_check_or_reports_itself(check, capfd):
    kinds = {qd.f64: [3.0, -1.0, 2.0, -5.5], qd.f32: [-0.5, 1.0, -9.0, 2.0], qd.i32: [3, -(2**31), 2, 2**31 - 1]}
    kinds |= {qd.i64: [-(2**63), 4, -5, 2**63 - 1], qd.u32: [3, 1, 2**32 - 1, 0]}
    for dtype, values in kinds.items():
        qd.init(default_fp=qd.f64, **{check: True})
        v = np.asarray(values, dtype.numpy)
        order, out, count = qd.ndarray(qd.i32, 4), qd.ndarray(dtype, 4), qd.field(qd.i32, shape=())
        A.argsort(array(v, dtype), order)
        assert np.array_equal(order.to_numpy(), np.argsort(v, kind="stable"))
        keys = array(v, dtype)
        A.parallel_sort(keys, array(v, dtype))
        assert np.array_equal(keys.to_numpy(), np.sort(v))
        A.unique(array(np.sort(v), dtype), out, count)
        for op, ufunc in (("min", np.minimum), ("max", np.maximum)):
            A.inclusive_scan(array(v, dtype), out, op)
            assert np.array_equal(out.to_numpy(), ufunc.accumulate(v))
            A.exclusive_scan(array(v, dtype), out, op)
            A.reduce(array(v, dtype), qd.field(dtype, shape=()), op)
    qd.init(default_fp=qd.f64, **{check: True})
    x, y = qd.field(qd.f64, shape=64), qd.field(qd.i32, shape=64)

    @qd.kernel
    def draw():
        for i in x:
            x[i] = qd.random(qd.f64) + qd.randn(qd.f64)
            y[i] = qd.ffs(qd.random(qd.i32)) + qd.ffs(i) + qd.popcnt(i) + qd.clz(i)

    draw()
    points = qd.Vector.field(2, qd.f64, shape=50)
    points.from_numpy(np.random.default_rng().normal(size=(50, 2)))
    A.HashGrid(50, 0.5, (8, 8)).build(points)
    qd.sync()
    assert "overflow" not in capfd.readouterr().out


def slopes_of(f, dtype, at):
    x, y = (qd.field(dtype, shape=len(at), needs_grad=True) for _ in range(2))

    @qd.kernel
    def run():
        for i in x:
            y[i] = f(x[i])

    x.from_numpy(at)
    y.grad.fill(1.0)
    run.grad()
    return x.grad.to_numpy()


@pytest.mark.parametrize("dtype", [qd.f32, qd.f64])
def test_derivatives_keep_their_digits_over_the_whole_range(dtype):
    """Beside formulas of long double, where a plain one would cancel, overflow or round the argument of an exponential."""
    L, rng = np.longdouble, np.random.default_rng()
    top = 40.0 if dtype is qd.f32 else 340.0
    cases = {
        "tanh": (rng.uniform(-top, top, 200), lambda x: 1 / np.cosh(x) ** 2),
        "asin": (1 - 10.0 ** rng.uniform(-6 if dtype is qd.f32 else -15, -1, 200), lambda x: 1 / np.sqrt((1 - x) * (1 + x))),
        "acos": (10.0 ** rng.uniform(-6 if dtype is qd.f32 else -15, -1, 200) - 1, lambda x: -1 / np.sqrt((1 - x) * (1 + x))),
        "erf": (rng.uniform(-9, 9, 200), lambda x: 2 / np.sqrt(L(np.pi) + L("1.2246467991473532e-16")) * np.exp(-x * x)),
        "erfc": (rng.uniform(-9, 9, 200), lambda x: -2 / np.sqrt(L(np.pi) + L("1.2246467991473532e-16")) * np.exp(-x * x)),
        "expm1": (rng.uniform(-top, top, 200), np.exp),
        "log1p": (10.0 ** rng.uniform(-6, 6, 200) - 1, lambda x: 1 / (1 + x)),
        "sinh": (rng.uniform(-top, top, 200), np.cosh),
        "cosh": (rng.uniform(-top, top, 200), np.sinh),
    }
    qd.init(default_fp=dtype)
    for name, (points, slope) in cases.items():
        at = points.astype(dtype.numpy)
        got, want = slopes_of(getattr(qd, name), dtype, at), slope(at.astype(L))
        usual = np.abs(want) > 100 * np.finfo(dtype.numpy).tiny
        error = np.abs(got[usual] - want[usual]) / np.spacing(np.abs(want[usual]).astype(dtype.numpy))
        assert error.max() < 8, (name, error.max())


def test_the_gradient_of_an_angle_holds_for_points_of_any_size():
    qd.init(default_fp=qd.f64)
    x, y, out = (qd.field(qd.f64, shape=3, needs_grad=True) for _ in range(3))

    @qd.kernel
    def run():
        for i in x:
            out[i] = qd.atan2(y[i], x[i])

    size = np.array([1e-200, 1.0, 1e200])
    x.from_numpy(3 * size)
    y.from_numpy(4 * size)
    out.grad.fill(1.0)
    run.grad()
    assert np.allclose(x.grad.to_numpy() * size, -4 / 25, rtol=1e-14)
    assert np.allclose(y.grad.to_numpy() * size, 3 / 25, rtol=1e-14)


@pytest.mark.parametrize("dtype, value", [(qd.f64, 0.3), (qd.f32, 0.3), (qd.i64, 2**40 + 1), (qd.i16, 7)])
def test_a_captured_fill_of_any_type_is_recorded_on_a_gpu(dtype, value):
    qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f64)
    x, v = qd.field(dtype, shape=66), qd.Vector.field(3, dtype, shape=40)

    @qd.kernel
    def add():
        for i in x:
            x[i] += 1

    def run():
        x.fill(value)
        v.fill(value)
        add()

    run()
    graph = qd.capture(run)
    x.fill(0)
    v.fill(0)
    graph()
    assert (x.to_numpy() == dtype.numpy.type(value) + 1).all() and (v.to_numpy() == dtype.numpy.type(value)).all()
