"""Quotients of reverse kernels that are factors of adjoints alone use the reciprocal of the adjoints."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.ir.nodes import Const, Op
from qdrun.compiler.ir.walk import walk

N = 64


def quotients(kernel):
    """The divisions of a reverse kernel whose numerator is not 1."""
    found = kernel.variant((), {})[0].gradient.lazy.kernel
    operations = [s for task in found.tasks for s in walk(task.body) if isinstance(s, Op) and s.op == "div"]
    return [s for s in operations if not (isinstance(s.args[0], Const) and s.args[0].value == 1.0)]


class Case:
    """Fields of N numbers, and a loss."""

    def __init__(self, dtype):
        self.a, self.b, self.c = (qd.field(dtype, shape=N, needs_grad=True) for _ in range(3))
        self.loss = qd.field(dtype, shape=(), needs_grad=True)
        rng = np.random.default_rng()
        for field in (self.a, self.b, self.c):
            field.from_numpy(rng.uniform(0.5, 2.0, N))

    def gradients(self, kernel):
        with qd.ad.Tape(self.loss):
            kernel()
        return [field.grad.to_numpy() for field in (self.a, self.b, self.c)]


@pytest.mark.parametrize("dtype", [qd.f64, qd.f32])
def test_a_factor_of_adjoints_is_not_divided_again(dtype):
    qd.init(arch=qd.cpu, default_fp=dtype)
    case = Case(dtype)
    a, b, c, loss = case.a, case.b, case.c, case.loss

    @qd.kernel
    def spring():
        for i in a:
            q = c[i] * (a[i] - b[i]) / a[i]
            loss[None] += q * q * b[i]

    found = case.gradients(spring)
    x, y, k = (field.to_numpy() for field in (a, b, c))
    q = k * (x - y) / x
    wanted = [2 * q * y * k * y / x**2, q * q - 2 * q * y * k / x, 2 * q * y * (x - y) / x]
    for mine, exact in zip(found, wanted, strict=True):
        assert np.allclose(mine, exact, rtol=1e-13 if dtype == qd.f64 else 1e-5, atol=1e-14 if dtype == qd.f64 else 1e-5)
    assert bool(quotients(spring)) == (dtype == qd.f32)


def test_what_decides_a_branch_keeps_its_division():
    qd.init(arch=qd.cpu, default_fp=qd.f64)
    case = Case(qd.f64)
    a, b, c, loss = case.a, case.b, case.c, case.loss

    @qd.kernel
    def gated():
        for i in a:
            q = a[i] / b[i]
            if q * q > 1.0:
                loss[None] += q * c[i]

    found = case.gradients(gated)
    x, y, k = (field.to_numpy() for field in (a, b, c))
    taken = (x / y) ** 2 > 1.0
    for mine, exact in zip(found, (k / y, -k * x / y**2, x / y), strict=True):
        assert np.allclose(mine, np.where(taken, exact, 0.0), rtol=1e-13)
    assert len(quotients(gated)) == 1


def test_what_later_iterations_are_made_of_keeps_its_division():
    """A state that a loop passes on decides what the forward pass did: its bits are those of the forward pass."""
    qd.init(arch=qd.cpu, default_fp=qd.f64)
    case = Case(qd.f64)
    a, b, loss = case.a, case.b, case.loss

    @qd.kernel
    def chain():
        for i in a:
            q = a[i]
            for _ in range(6):
                q = (q + 1.0) / (b[i] + q)
            loss[None] += q

    found = case.gradients(chain)
    assert quotients(chain)

    def value(x, y):
        q = x
        for _ in range(6):
            q = (q + 1.0) / (y + q)
        return q

    x, y = a.to_numpy(), b.to_numpy()
    for mine, low, high in ((found[0], (x - 1e-6, y), (x + 1e-6, y)), (found[1], (x, y - 1e-6), (x, y + 1e-6))):
        assert np.allclose(mine, (value(*high) - value(*low)) / 2e-6, rtol=1e-6, atol=1e-8)
