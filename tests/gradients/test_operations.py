"""Every operation of the derivative table against central differences: in a line, and as a recurrence in a dynamic loop."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, compile_source, field, start

# name: (expression of a and b, range of a, range of b); the recurrence keeps a in its range by a sine of the expression
OPERATIONS = {
    "add": ("a + b", (-2, 2), (-2, 2)),
    "sub": ("a - b", (-2, 2), (-2, 2)),
    "neg": ("-a", (-2, 2), (-2, 2)),
    "mul": ("a * b", (-2, 2), (-2, 2)),
    "div": ("a / b", (-2, 2), (0.5, 2)),
    "div by itself": ("1.0 / a + b", (0.5, 2), (0.5, 2)),
    "float mod": ("a % b", (0.1, 0.9), (1.1, 1.9)),
    "float mod of a negative": ("(-a) % b", (0.1, 0.9), (1.1, 1.9)),
    "float mod wraps": ("(a * 3.0) % 0.7 + a % (b * 0.13)", (0.75, 0.8), (1.1, 1.15)),
    "raw mod": ("qd.raw_mod(-a * 3.0, 0.7) * b", (0.75, 0.8), (1.1, 1.9)),
    "floor division is flat": ("(a // 0.3) * b", (0.65, 0.85), (0.5, 2)),
    "min": ("qd.min(a, b)", (-2, 2), (-2, 2)),
    "max": ("qd.max(a, b, 0.1)", (-2, 2), (-2, 2)),
    "power": ("a ** b", (0.3, 2), (0.5, 2)),
    "power of a literal base": ("2.5 ** a + b", (0.3, 2), (0.5, 2)),
    "square": ("a ** 2 + b", (-2, 2), (-2, 2)),
    "integer powers": ("a ** 3 - a ** -2 + b ** 1 + a ** 0", (0.5, 2), (0.5, 2)),
    "odd power of a negative base": ("(-a) ** 3.0 + b", (0.5, 2), (0.5, 2)),
    "atan2": ("qd.atan2(a, b)", (-2, 2), (0.3, 2)),
    "atan2 behind": ("qd.atan2(a, -b)", (0.3, 2), (0.3, 2)),
    "abs": ("abs(a) * b", (-2, 2), (0.3, 2)),
    "sin": ("qd.sin(a) + b", (-3, 3), (-2, 2)),
    "cos": ("qd.cos(a) + b", (-3, 3), (-2, 2)),
    "tan": ("qd.tan(0.5 * a) + b", (-1, 1), (-2, 2)),
    "asin": ("qd.asin(0.4 * a) * b", (-2, 2), (0.5, 2)),
    "acos": ("qd.acos(0.4 * a) * b", (-2, 2), (0.5, 2)),
    "tanh": ("qd.tanh(a) * b", (-2, 2), (0.5, 2)),
    "sinh": ("qd.sinh(a) * b", (-2, 2), (0.5, 2)),
    "cosh": ("qd.cosh(a) * b", (-2, 2), (0.5, 2)),
    "expm1": ("qd.expm1(a) * b", (-2, 2), (0.5, 2)),
    "log1p": ("qd.log1p(a) * b", (-0.8, 2), (0.5, 2)),
    "erf": ("qd.erf(a) * b", (-2, 2), (0.5, 2)),
    "erfc": ("qd.erfc(a) * b", (-2, 2), (0.5, 2)),
    "raw_mod": ("qd.raw_mod(a, b)", (0.1, 0.4), (0.5, 2)),
    "exp": ("qd.exp(a * b)", (-1, 1), (-1, 1)),
    "log": ("qd.log(a) + b", (0.2, 3), (-2, 2)),
    "sqrt": ("qd.sqrt(a * b)", (0.2, 3), (0.2, 2)),
    "rsqrt": ("qd.rsqrt(a + b)", (0.2, 3), (0.2, 2)),
    "select": ("qd.select(a < b, a * b, a / b)", (0.2, 2), (0.2, 2)),
    "conditional expression": ("(qd.sin(a) if a < b else qd.cos(b))", (0.2, 2), (0.2, 2)),
    "floor ceil round": ("(qd.floor(a) + qd.ceil(a) + qd.round(a) + 1.5) * b", (0.1, 0.4), (0.2, 2)),
    "cast through i32 is flat": ("qd.cast(qd.cast(a * 10.0, qd.i32), qd.f64) * b", (1.01, 1.09), (0.2, 2)),
    "comparison as a number": ("qd.cast(a > 0.5, qd.f64) * a + b", (0.6, 2), (0.2, 2)),
    "mix clamp smoothstep": (
        "qd.math.mix(a, b, 0.3) + qd.math.clamp(a, 0.2, 1.1) + qd.math.smoothstep(0.0, 3.0, b)",
        (0.3, 1),
        (0.2, 2),
    ),
    "fract step": ("qd.math.fract(a * 3.0) + qd.math.step(0.5, b) * a", (0.4, 0.6), (0.6, 2)),
    "compound assignment": ("twice(a, b)", (0.3, 2), (0.3, 2)),
}
SOURCE = """
@qd.func
def twice(a, b):
    r = a
    r *= b
    r /= a + 1.0
    r -= b * b
    return r

@qd.kernel
def line():
    for i in x:
        a = x[i]
        b = w[i]
        y[i] = {0}

@qd.kernel
def loop(n: qd.i32):
    for i in x:
        a = x[i]
        b = w[i]
        for j in range(n):
            a = {1} + {2} * qd.sin(0.3 * ({0}))
        y[i] = a * a
"""


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_the_gradient_of_its_differences(name):
    expression, (alow, ahigh), (blow, bhigh) = OPERATIONS[name]
    start()
    r = np.random.default_rng()
    x = field(4, rng=r, low=alow, high=ahigh)
    w = field(4, rng=r, low=blow, high=bhigh)
    y = field(4)
    middle, half = (alow + ahigh) / 2, (ahigh - alow) * 0.45
    found = compile_source(SOURCE.format(expression, middle, half), x=x, w=w, y=y)
    at = f"x={x.to_numpy()}, w={w.to_numpy()}"
    for k, args in ((found["line"], ()), (found["loop"], (4,))):
        try:
            Point(k, args, (x, w), (y,)).check(2e-6)
        except AssertionError as e:
            raise AssertionError(f"{name}: {expression} at {at}, {k}{args}\n{e}") from e


def gradient_at(expression: str, a: float, b: float = 1.0) -> tuple[float, float]:
    """The gradient of one expression by a and b, seeded with one."""
    start()
    x, w, y = field(1, values=[a]), field(1, values=[b]), field(1)
    k = compile_source(SOURCE.format(expression, 0.0, 1.0), x=x, w=w, y=y)["line"]
    k()
    y.grad.fill(1.0)
    k.grad()
    return x.grad[0], w.grad[0]


@pytest.mark.parametrize("op", ["qd.min(a, b)", "qd.max(a, b)"])
def test_a_tie_gives_all_to_the_right_operand(op):
    assert gradient_at(op, 0.5, 0.5) == (0.0, 1.0)


@pytest.mark.parametrize(
    "op", ["abs(a)", "qd.floor(a)", "qd.ceil(a)", "qd.round(a)", "qd.math.sign(a)", "a ** 0.0", "a ** (b - 1.0) * 0.0"]
)
def test_the_derivative_is_zero_at_zero(op):
    assert gradient_at(op, 0.0)[0] == 0.0


AWKWARD = ["qd.sqrt(a)", "qd.log(a)", "qd.rsqrt(a)", "1.0 / a", "a ** -0.5", "qd.atan2(a, a)", "a * qd.log(a)", "qd.sin(1.0 / a)",
           "qd.tanh(qd.log(a))", "qd.exp(1.0 / a)", "qd.asin(1.0 + a)", "qd.acos(1.0 + a)", "qd.cos(qd.log(a)) * 2.0", "abs(qd.log(a))",
           "qd.sqrt(a - 1.0) * qd.tanh(qd.sqrt(a - 1.0))", "(1.0 / a) % 0.3", "qd.tan(qd.log(a))"]  # fmt: skip


@pytest.mark.parametrize("op", AWKWARD)
@pytest.mark.parametrize("form", ["qd.select(a > 0.0, {}, 3.0 * a)", "({} if a > 0.0 else 3.0 * a)"])
def test_an_arm_that_was_not_taken_gives_no_nan(op, form):
    assert gradient_at(form.format(op), 0.0)[0] == 3.0


def test_a_masked_arm_gives_no_nan_through_variables_and_loops():
    start()
    x, y = field(2, values=[0.0, 0.5]), field(2)
    source = """
@qd.kernel
def k(n: qd.i32):
    for i in x:
        v = x[i]
        t = v * qd.log(v)
        for j in range(n):
            t = t * (qd.log(v) + j)
        y[i] = qd.select(v > 0.0, t, 2.0 * v)
"""
    k = compile_source(source, x=x, y=y)["k"]
    k(3)
    y.grad.fill(1.0)
    k.grad(3)
    h, f = 1e-6, lambda v: v * np.log(v) * np.log(v) * (np.log(v) + 1) * (np.log(v) + 2)
    assert x.grad[0] == 2.0
    assert x.grad[1] == pytest.approx((f(0.5 + h) - f(0.5 - h)) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("op", ["qd.log(a)", "qd.sqrt(a)", "qd.asin(a - 2.0)", "a ** 0.5"])
def test_outside_the_domain_the_gradient_is_nan_like_the_value(op):
    assert np.isnan(gradient_at(op, -0.3)[0])


@pytest.mark.parametrize("op", ["qd.sqrt(a)", "qd.log(a)", "qd.asin(a + 1.0)", "1.0 / a", "qd.rsqrt(a)", "a ** 0.3"])
def test_an_element_that_the_loss_does_not_use_gets_zero_where_the_slope_is_infinite(op):
    start()
    x, w, y = field(2, values=[0.0, 0.0]), field(2, values=[1.0, 1.0]), field(2)
    k = compile_source(SOURCE.format(op, 0.0, 1.0), x=x, w=w, y=y)["line"]
    k()
    y.grad.fill(0.0)
    k.grad()
    assert x.grad.to_numpy().tolist() == [0.0, 0.0]


def test_casts_between_f32_and_f64_pass_the_gradient():
    start()
    x = field(3, rng=np.random.default_rng(3))
    y32 = qd.field(qd.f32, shape=3, needs_grad=True)
    y = field(3)

    @qd.kernel
    def k():
        for i in x:
            t = qd.cast(x[i], qd.f32) * qd.cast(2.0, qd.f32)
            y32[i] = t * t
            y[i] = qd.cast(t, qd.f64) * x[i]

    k()
    y32.grad.fill(1.0)
    y.grad.fill(0.5)
    k.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), 8 * x.to_numpy() + 2 * x.to_numpy(), rtol=1e-6)


# ---- vectors and matrices: m and p are n x n, u and v vectors of n, s and t scalars; the result is a scalar
TENSORS = {
    "dot": (3, "u.dot(v)"),
    "cross": (3, "u.cross(v).dot(qd.Vector([1.0, 0.4, -0.7]))"),
    "cross in the plane": (2, "u.cross(v)"),
    "norm": (3, "u.norm() * v.norm_sqr() + (u - v).norm(1e-3)"),
    "normalized": (3, "u.normalized().dot(v)"),
    "outer product": (3, "(u.outer_product(v) @ u).dot(v) + u.outer_product(v)[0, 2]"),
    "trace and transpose": (3, "(m @ p.transpose()).trace()"),
    "matrix times vector": (3, "(m @ u).dot(p @ v)"),
    "vector sum and extremes": (3, "u.sum() * v.max() + (u * v).min()"),
    "determinant of 2": (2, "m.determinant()"),
    "determinant of 3": (3, "m.determinant() * s"),
    "determinant of 4": (4, "m.determinant()"),
    "inverse of 2": (2, "(m.inverse() @ u).dot(v)"),
    "inverse of 3": (3, "(m.inverse() @ u).dot(v)"),
    "inverse of 4": (4, "(m.inverse() @ u).dot(v)"),
    "elementwise": (2, "((m * p - m / (p + 3.0)) @ u).dot(v) + (2.0 * m).sum()"),
    "swizzles": (3, "u.xy.dot(v.zx) + u.zyx.dot(v) + u.x * v.y"),
    "dynamic component": (3, "u[j % 3] * v[(j + 1) % 3] + m[j % 3, (j * 2) % 3]"),
    "math functions": (3, "qd.math.dot(qd.math.normalize(u), v) + qd.math.length(u + v) + qd.math.distance(u, v)"),
    "reflect": (3, "qd.math.reflect(u, v).dot(v) + qd.math.mix(u, v, 0.3).sum()"),
    "sines of a vector": (3, "qd.sin(u).dot(qd.exp(v)) + qd.max(u, v).sum()"),
    "swap in place": (3, "swapped(u, v).sum()"),
}
TENSOR_SOURCE = """
@qd.func
def swapped(p, q):
    r = p
    r[0] = q[1]
    r.yz = r.zx * 2.0
    r[1] += p[0] * q[2]
    return r

@qd.kernel
def k(n: qd.i32):
    for i in x:
        s = x[i]
        m = fm[i]
        p = fp[i]
        u = fu[i]
        v = fv[i]
        for j in range(n):
            t = {}
            s = 0.4 * s + qd.sin(t)
            u = 0.9 * u + 0.1 * s
            m[0, 1] += 0.1 * s
        y[i] += s + u.dot(v)
"""


@pytest.mark.parametrize("name", TENSORS)
def test_a_vector_operation_in_a_loop_has_the_gradient_of_its_differences(name):
    n, expression = TENSORS[name]
    start()
    r = np.random.default_rng()
    x, y = field(2, rng=r), field(2)
    fu, fv = (qd.Vector.field(n, qd.f64, shape=2, needs_grad=True) for _ in range(2))
    fm, fp = (qd.Matrix.field(n, n, qd.f64, shape=2, needs_grad=True) for _ in range(2))
    for t in (fu, fv):
        t.from_numpy(r.uniform(0.3, 1.3, (2, n)))
    for t in (fm, fp):
        t.from_numpy(r.uniform(-0.4, 0.4, (2, n, n)) + 1.5 * np.eye(n))
    k = compile_source(TENSOR_SOURCE.format(expression), x=x, y=y, fu=fu, fv=fv, fm=fm, fp=fp)["k"]
    for trips in (1, 3):
        Point(k, (trips,), (x, fu, fv, fm, fp), (y,)).check(5e-6)
