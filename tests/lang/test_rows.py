"""Parallel loops over several axes on the CPU: chunks begin and end inside of rows, rows are short or long, known or not."""

import numpy as np
import pytest

import qdrun as qd


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(700, 33), (5, 4099), (3000, 15), (3000, 16), (2, 3, 5000), (40, 30, 17), (1, 1), (1, 900)])
def test_every_index_comes_once_with_its_own_values(threads, shape):
    with qd.init(arch=qd.cpu, cpu_max_num_threads=threads, default_fp=qd.f64, offline_cache=False):
        x, seen = qd.ndarray(qd.f64, shape), qd.ndarray(qd.i32, shape)
        y, total = qd.field(qd.f64, shape), qd.field(qd.i64, ())

        @qd.kernel
        def known():  # the extents are literals
            for I in qd.grouped(y):
                code = qd.cast(0, qd.i64)
                for k in qd.static(range(len(shape))):
                    code = code * 10007 + I[k]
                y[I] = code
                total[None] += code

        @qd.kernel
        def asked(x: qd.types.ndarray(), seen: qd.types.ndarray()):  # those of an argument are not
            for I in qd.grouped(x):
                seen[I] += 1
                if I[0] % 3 == 1:
                    x[I] = y[I] - I[len(shape) - 1]
                else:
                    x[I] = 2 * y[I]

        known()
        asked(x, seen)
        where = np.indices(shape)
        code = np.zeros(shape, np.int64)
        for axis in where:
            code = code * 10007 + axis
        assert (y.to_numpy() == code).all() and total[None] == code.sum() and (seen.to_numpy() == 1).all()
        assert (x.to_numpy() == np.where(where[0] % 3 == 1, code - where[-1], 2 * code)).all()


def test_a_stencil_has_the_bits_of_numpy_and_its_gradient():
    with qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False):
        n, m = 83, 131
        x, y = (qd.field(qd.f64, (n, m), needs_grad=True) for _ in range(2))

        @qd.kernel
        def smooth():
            for i, j in qd.ndrange((1, n - 1), (1, m - 1)):
                y[i, j] = 0.25 * (x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]) - x[i, j]

        rng = np.random.default_rng()
        a, g = rng.normal(size=(2, n, m))
        x.from_numpy(a)
        smooth()
        want = np.zeros((n, m))
        want[1:-1, 1:-1] = 0.25 * (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:]) - a[1:-1, 1:-1]
        assert (y.to_numpy() == want).all()
        y.grad.from_numpy(g)
        smooth.grad()
        inner = np.zeros((n, m))
        inner[1:-1, 1:-1] = g[1:-1, 1:-1]
        moved = sum(np.roll(inner, s, axis) for axis in (0, 1) for s in (1, -1))
        assert np.allclose(x.grad.to_numpy(), 0.25 * moved - inner, rtol=1e-13, atol=1e-14)
