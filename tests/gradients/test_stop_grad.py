"""``stop_grad`` of fields in blocks, and of values."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import compile_source, field, start

X = np.array([0.3, 0.5, 0.9])

# lines over x and y (3), v (vectors of 2), s (0-D): what is added to x.grad when y.grad is one
BLOCKS = {
    "in the loop": (["for i in x:", "    qd.stop_grad(x)", "    y[i] = x[i] * x[i]"], 0 * X),
    "behind the read": (["for i in x:", "    y[i] = x[i] * x[i]", "    qd.stop_grad(x)"], 0 * X),
    "in a branch": (["for i in x:", "    y[i] = x[i]", "    if x[i] > 0.4:", "        qd.stop_grad(x)",
        "        y[i] += x[i] ** 2"], 0 * X + 1),
    "in an inner loop": (["for i in x:", "    for j in range(3):", "        qd.stop_grad(x)", "        y[i] += x[j]",
        "    y[i] += 5 * x[i]"], 0 * X + 5),
    "around inner blocks": (["for i in x:", "    qd.stop_grad(x)", "    for j in range(3):", "        if j != i:",
        "            y[i] += x[j]"], 0 * X),
    "in one of two loops": (["for i in x:", "    qd.stop_grad(x)", "    y[i] += x[i]", "for i in x:", "    y[i] += 2 * x[i]"], 0 * X + 2),
    "in the kernel": (["qd.stop_grad(x)", "for i in x:", "    y[i] += x[i]", "for i in x:", "    y[i] += 2 * x[i]"], 0 * X),
    "of another field": (["for i in x:", "    qd.stop_grad(w)", "    y[i] += x[i] * w[i]"], 0 * X + 2.0),
    "in a function": (["for i in x:", "    y[i] += 3 * x[i] + stopped(i)"], 0 * X + 3),
    "of one that is written, too": (["for i in x:", "    qd.stop_grad(y)", "    y[i] += x[i] * y[i]"], None),
}  # fmt: skip
VALUES = {
    "a value": (["for i in x:", "    y[i] = x[i] * qd.stop_grad(x[i])"], X),
    "a variable": (["for i in x:", "    t = qd.sin(x[i])", "    t = qd.stop_grad(t)", "    y[i] = x[i] * t"], np.sin(X)),
    "a variable in a loop": (["for i in x:", "    t = x[i]", "    for j in range(3):", "        t = qd.stop_grad(t * x[i]) + x[i]",
        "    y[i] = t"], 0 * X + 1),
    "a vector": (["for i in x:", "    p = qd.Vector([x[i], 2.0])", "    y[i] = qd.stop_grad(p)[0] * p[0] + p.dot(qd.stop_grad(p))"], 2 * X),
    "a number": (["for i in x:", "    y[i] = x[i] * qd.stop_grad(2.0)"], 0 * X + 2),
    "an integer": (["for i in x:", "    y[i] = x[i] * qd.stop_grad(i)"], np.arange(3.0)),
    "what an atomic adds": (["for i in x:", "    y[i] += qd.stop_grad(x[i] * x[i])"], 0 * X),
    "what a gradient path would lose": (["for i in x:", "    plain[i] = qd.stop_grad(x[i])", "for i in x:",
        "    y[i] = plain[i] * x[i]"], X),
    "a condition": (["for i in x:", "    if qd.stop_grad(x[i]) > 0.4:", "        y[i] = 2.0 * x[i]"], np.array([0, 2.0, 2.0])),
}  # fmt: skip


def make(lines, **options):
    start(**options)
    f = {"x": field(3, values=X, name="x"), "w": field(3, values=[2.0] * 3, name="w"), "y": field(3, name="y")}
    plain = qd.field(qd.f64, shape=3, name="plain")
    head = "@qd.func\ndef stopped(i):\n    qd.stop_grad(x)\n    return x[i] * x[i]\n\n"
    source = head + "@qd.kernel\ndef k():\n" + "\n".join("    " + line for line in lines)
    return compile_source(source, **f, plain=plain)["k"], f


def gradient(k, f):
    k()
    f["y"].grad.fill(1.0)
    k.grad()
    return f["x"].grad.to_numpy()


@pytest.mark.parametrize("arch", (qd.cpu, qd.python))
@pytest.mark.parametrize("name", {**BLOCKS, **VALUES})
def test_what_is_stopped_contributes_nothing(name, arch):
    lines, want = {**BLOCKS, **VALUES}[name]
    k, f = make(lines, arch=arch)
    if want is None:
        f["y"].from_numpy([2.0, 3.0, 4.0])
        k()
        f["y"].grad.fill(1.0)
        with pytest.raises(qd.DataAccessError, match="the gradient needs the value of `y` read here"):
            k.grad()
        return
    np.testing.assert_allclose(gradient(k, f), want)


@pytest.mark.parametrize("name", {**BLOCKS, **VALUES})
def test_stopping_changes_no_value(name):
    lines, _ = {**BLOCKS, **VALUES}[name]
    found = []
    for replaced in (lines, [line.replace("qd.stop_grad(", "same(") for line in lines]):
        k, f = make(replaced)
        f["y"].from_numpy([1.0, 2.0, 3.0])
        k.fn.__globals__["same"] = qd.func(_same)
        k()
        found.append(f["y"].to_numpy())
    assert np.array_equal(*found)


def _same(v: qd.template()):
    return v


def test_stop_grad_of_a_vector_field_and_of_an_array():
    start()
    v, y = qd.Vector.field(2, qd.f64, shape=3, needs_grad=True), field(3)
    a = qd.ndarray(qd.f64, 3, needs_grad=True)
    v.from_numpy(np.ones((3, 2)))
    a.fill(2.0)

    @qd.kernel
    def k(b: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in y:
            y[i] += v[i].norm_sqr() * b[i]
            if i == 1:
                qd.stop_grad(v)
                qd.stop_grad(b)
                y[i] += v[i][0] * b[i] * 100.0

    k(a)
    y.grad.fill(1.0)
    k.grad(a)
    np.testing.assert_allclose(v.grad.to_numpy(), 4.0 * np.ones((3, 2)))
    np.testing.assert_allclose(a.grad.to_numpy(), [2.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("lines", "error", "words"),
    [
        (["for i in x:", "    t = x[i]", "    qd.stop_grad(t)",
            "    y[i] = t"], qd.QdrunSyntaxError, "stop_grad\\(\\) of a value does not change"),
        (["for i in x:", "    y[i] = qd.stop_grad(x, w)"], qd.QdrunTypeError, r"stop_grad\(\): too many positional arguments"),
        (["for i in x:", '    qd.stop_grad("x")'], qd.QdrunTypeError, "has no gradient to stop"),
    ],
)  # fmt: skip
def test_what_cannot_be_stopped_is_refused(lines, error, words):
    k, _ = make(lines)
    with pytest.raises(error, match=words):
        k()


def kernels_of_python_functions():
    """Sources of kernels k(a) that call a plain Python function, and the gradients of x, of the array a and of the members of s."""
    one, zero = np.ones(3), np.zeros(3)
    return {
        "a closure": ("closure(i) + of_x(i)", 4 * one, zero, zero, zero),
        "an argument": ("argument(x, i) + x[i]", one, zero, zero, zero),
        "an array": ("argument(a, i) + a[i] * x[i]", 3 * one, 2 * one, zero, zero),
        "a struct": ("members(i) + s[i].q", zero, zero, zero, one),
        "a loop in a func": ("loop(i) + sum_of(i)", 4.0 * 3 * one, zero, zero, zero),
        "known arguments": ("known() + of_x(1)", np.array([0.0, 12, 0]), zero, zero, zero),
        "a branch": ("(closure(i) if i > 0 else of_x(i))", np.array([4.0, 0, 0]), zero, zero, zero),
        "a method": ("tool.read(i) + of_x(i)", 4 * one, zero, zero, zero),
    }


@pytest.mark.parametrize("name", kernels_of_python_functions())
def test_a_plain_python_function_stops_what_its_funcs_read(name):
    start()
    term, *wanted = kernels_of_python_functions()[name]
    x, y = (qd.field(qd.f64, shape=3, needs_grad=True, needs_dual=True) for _ in range(2))
    s = qd.types.struct(p=qd.f64, q=qd.f64).field(shape=3, needs_grad=True)
    a = qd.ndarray(qd.f64, 3, needs_grad=True, needs_dual=True)
    for tensor, value in ((x, 2.0), (a, 3.0), (s.p, 5.0), (s.q, 7.0)):
        tensor.fill(value)
    space = compile_source(PYTHON_FUNCTIONS.replace("TERM", term), x=x, y=y, s=s)
    k = space["k"]
    k(a)
    y.grad.fill(1.0)
    k.grad(a)
    for tensor, gradient in zip((x, a, s.p, s.q), wanted, strict=True):
        np.testing.assert_allclose(tensor.grad.to_numpy(), gradient, err_msg=name)
    with qd.ad.FwdMode(y, x, np.ones(3)):
        k(a)
    np.testing.assert_allclose(y.dual.to_numpy().sum(), wanted[0].sum(), err_msg=name)


PYTHON_FUNCTIONS = """
@qd.func
def of_x(i):
    return x[i] ** 2

@qd.func
def of_any(v, i):
    return v[i] ** 2

@qd.func
def of_s(i):
    return s[i].p * s[i].q

@qd.func
def sum_of(i):
    total = 0.0
    for j in range(3):
        total += x[j] ** 2
    return total

def closure(i):
    before = of_x(i)
    qd.stop_grad(x)
    return before + of_x(i)

def argument(v, i):
    qd.stop_grad(v)
    return of_any(v, i)

def members(i):
    qd.stop_grad(s)
    return of_s(i)

def loop(i):
    qd.stop_grad(x)
    return sum_of(i)

def known():
    qd.stop_grad(x)
    return of_x(1)

def calls_another(i):
    return closure(i)

def no_field(i):
    qd.stop_grad([1.0])
    return i

@qd.func
def loops():
    for i in x:
        y[i] += x[i]

def parallel():
    qd.stop_grad(x)
    loops()

class Tool:
    def read(self, i):
        qd.stop_grad(x)
        return of_x(i)

tool = Tool()

@qd.kernel
def k(a: qd.types.ndarray(dtype=qd.f64, ndim=1)):
    for i in y:
        y[i] = TERM

@qd.kernel
def top(a: qd.types.ndarray(dtype=qd.f64, ndim=1)):
    parallel()
"""


@pytest.mark.parametrize(
    ("kernel", "term", "words"),
    [
        ("k", "calls_another(i)", r"stop_grad\(\) of a field in closure\(\), which calls_another\(\) calls(.|\n)*@qd.func"),
        ("k", "no_field(i)", "list has no gradient to stop"),
        ("top", "0.0", "top level of a function with parallel loops"),
    ],
)
def test_a_python_function_whose_reads_are_not_known_is_refused(kernel, term, words):
    start()
    x, y = (qd.field(qd.f64, shape=3, needs_grad=True) for _ in range(2))
    s = qd.types.struct(p=qd.f64, q=qd.f64).field(shape=3, needs_grad=True)
    space = compile_source(PYTHON_FUNCTIONS.replace("TERM", term), x=x, y=y, s=s)
    with pytest.raises(qd.QdrunCompilationError, match=words):
        space[kernel](qd.ndarray(qd.f64, 3))


def test_stop_grad_outside_of_a_kernel_is_refused():
    start()
    with pytest.raises(qd.QdrunRuntimeError, match="outside of a kernel"):
        qd.stop_grad(field(3))
