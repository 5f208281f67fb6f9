"""An operation of reals is a row of each of three tables: what it means (``ir.ops``), its derivative, and its code."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.codegen.math import hyperbolic, library
from qdrun.compiler.frontend.library.functions import real_function
from qdrun.compiler.ir.nodes import Const
from qdrun.compiler.ir.ops import TABLE, OpInfo
from qdrun.compiler.passes.reverse.derivatives import RULES, Partial

gauss = real_function("gauss", lambda x: np.exp(-x * x), "exp(-x**2).")


def slope(b, g, a, r):
    return b.op("mul", g, b.op("mul", Const(-2.0, g.dtype), b.op("mul", a[0], r)))


@pytest.fixture
def operation(monkeypatch):
    info = OpInfo(1, "same", "real", real=lambda x: np.exp(-x * x), function=True, cost=40, in_c=False)
    monkeypatch.setitem(TABLE, "gauss", info)
    monkeypatch.setitem(RULES, "gauss", (Partial((0, "r"), slope, tests=False),))
    monkeypatch.setitem(library.BODIES, "gauss", lambda e, x: hyperbolic.exp_of(e, e.mul(e.neg(x), x)))


@pytest.mark.parametrize("dtype", [qd.f32, qd.f64])
@pytest.mark.parametrize(
    "where",
    [
        {},
        {"cpu_lanes": 4},
        {"arch": qd.python},
        {"arch": qd.cuda, "device": "emulated"},
        {"arch": qd.metal, "device": "emulated"},
    ],
    ids=["cpu", "lanes", "python", "emulated CUDA", "Metal's source"],
)
def test_an_operation_of_three_rows_has_values_gradients_tangents_and_second_derivatives(operation, where, dtype):
    if "metal" in str(where.get("arch")) and dtype == qd.f64:
        pytest.skip("Metal has no f64")
    n, rng = 13, np.random.default_rng()
    x = rng.normal(size=n).astype(dtype.numpy)
    with qd.init(default_fp=dtype, offline_cache=False, **where):
        a, loss = qd.field(dtype, n, needs_grad=True), qd.field(dtype, (), needs_grad=True)
        qd.root.lazy_hessian()

        @qd.kernel
        def total():
            for i in a:
                v = a[i]
                for _ in range(2):
                    v = gauss(v) + a[i]
                loss[None] += v

        a.from_numpy(x)
        with qd.ad.Tape(loss):
            total()
        v = np.exp(-x * x) + x
        first = 1 - 2 * x * np.exp(-x * x)
        want = 1 - 2 * v * np.exp(-v * v) * first
        close = 1e-12 if dtype == qd.f64 else 2e-5
        np.testing.assert_allclose(loss[None], (np.exp(-v * v) + x).sum(), rtol=close, atol=n * close)  # the sum may be near 0
        np.testing.assert_allclose(a.grad.to_numpy(), want, rtol=close, atol=close)
        if where.get("arch") == qd.metal:
            return
        with qd.ad.FwdMode(loss, a, [1.0] * n):
            total()
        np.testing.assert_allclose(loss.dual[None], want.sum(), rtol=close, atol=close)
        e = np.exp(-v * v)
        curve = -2 * e * first**2 + 4 * v**2 * e * first**2 - 2 * v * e * (-2 * np.exp(-x * x) * (1 - 2 * x**2))
        found = qd.ad.hvp(total, loss, a, np.ones(n, dtype.numpy)).product
        np.testing.assert_allclose(found, curve, rtol=20 * close, atol=20 * close)
