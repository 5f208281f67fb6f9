"""Products in place with factors of zero: in a tape the gradient is that of differences where iterations have their own elements."""

import numpy as np
import pytest

import qdrun as qd

N = 5
BODIES = {
    "one": "x[i] *= f[i]",
    "call": "qd.atomic_mul(x[i], f[i])",
    "two": "x[i] *= f[i]; x[i] *= f[(i + 1) % 5] + 1.0",
    "loop": "for j in range(3): x[i] *= f[(i + j) % 5]",
    "while": """j = 0
        while j < 3:
            x[i] *= f[(i + j) % 5] + 0.5 * j
            if x[i] > 50.0:
                break
            j += 1""",
    "branch": "if f[i] < 1.0: x[i] *= f[i]\n        else: x[i] *= 1.0 - f[i]",
    "beside": "x[i] *= f[i]; x[i] += f[i] * x[i]; x[i] *= x[i]",
    "function": "multiply(x, i, f[i])",
    "divide": "x[i] /= f[i] + 1.0; x[i] *= f[i]; x[i] **= 2",
    "serial": None,
    "three loops": None,
}
SOURCE = """
import qdrun as qd

@qd.func
def multiply(x: qd.template(), i, v):
    x[i] *= v

@qd.kernel
def k(x: {kind}, f: {kind}):
{body}
"""
WHOLE = {
    "serial": """    qd.loop_config(serialize=True)
    for i in range(5):
        x[i % 2] *= f[i]
        x[3] *= f[i] + 1.0""",
    "three loops": """    for i in x:
        x[i] *= f[i]
    for i in x:
        x[i] += x[i] ** 2 * f[i] + f[i]
    for i in x:
        x[i] *= f[i] - 1.0""",
}


def kernel_of(tmp_path, name, kind):
    body = WHOLE.get(name) or "    for i in range(5):\n        " + BODIES[name]
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE.format(kind=kind, body=body))
    space = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    return space["k"]


@pytest.mark.parametrize(
    ("name", "ndarrays"), [*((name, False) for name in BODIES), *((name, True) for name in ("one", "loop", "while", "serial"))]
)
def test_factors_of_zero_have_their_gradient_in_a_tape(tmp_path, name, ndarrays):
    rng = np.random.default_rng()
    with qd.init(default_fp=qd.f64, cpu_max_num_threads=2, offline_cache=False):
        k = kernel_of(tmp_path, name, "qd.types.ndarray()" if ndarrays else "qd.template()")
        x, f = ((qd.ndarray if ndarrays else qd.field)(qd.f64, (N,), needs_grad=True) for _ in range(2))
        loss = qd.field(qd.f64, shape=(), needs_grad=True)
        weights, given = rng.normal(size=N), rng.normal(size=(2, N))
        given[1][rng.permutation(N)[:2]] = 0.0

        @qd.kernel
        def total(x: qd.types.ndarray() if ndarrays else qd.template()):
            for i in range(N):
                loss[None] += weights_of[i] * x[i]

        weights_of = qd.field(qd.f64, shape=N)
        weights_of.from_numpy(weights)

        def value(at):
            x.from_numpy(at[0])
            f.from_numpy(at[1])
            k(x, f)
            return weights @ x.to_numpy()

        x.from_numpy(given[0])
        f.from_numpy(given[1])
        tape = qd.ad.Tape(loss)
        if name == "serial" or (ndarrays and name == "while"):  # which elements meet is not known, or whether there is one
            refused = (qd.QdrunAssertionError, qd.DataAccessError)
            with pytest.raises(refused, match=r"kernels.py:1\d (.|\n)*do: |do: multiply in"):
                with tape:
                    k(x, f)
                    total(x)
                f.grad.to_numpy()  # a device tells of it when something is read
            return
        with tape:
            k(x, f)
            total(x)
        found = np.array([x.grad.to_numpy(), f.grad.to_numpy()])
        expect, h = np.zeros_like(given), 1e-6
        for at in np.ndindex(given.shape):
            step = np.zeros_like(given)
            step[at] = h
            expect[at] = (value(given + step) - value(given - step)) / (2 * h)
        np.testing.assert_allclose(found, expect, rtol=2e-5, atol=2e-5)


def test_a_product_that_a_store_begins_needs_no_tape():
    with qd.init(default_fp=qd.f64, offline_cache=False):
        x, f, y = (qd.field(qd.f64, shape=N, needs_grad=True) for _ in range(3))
        given = np.random.default_rng().normal(size=(2, N)) * [[1] * N, [0, 1, 0, 1, 1]]
        x.from_numpy(given[0])
        f.from_numpy(given[1])

        @qd.kernel
        def k():
            for i in x:
                y[i] = x[i]
                y[i] *= f[i]

        k()
        y.grad.fill(1.0)
        k.grad()
        np.testing.assert_allclose(x.grad.to_numpy(), given[1])
        np.testing.assert_allclose(f.grad.to_numpy(), given[0])
