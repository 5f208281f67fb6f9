"""A tape looks at launches quickly: what it copies, and its gradients, are those of a close look at each launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.memory import overwritten
from qdrun.compiler.program.memory.overwritten import Overwritten

ROWS = 40


def program() -> tuple[Callable[[np.random.Generator], None], list[Any]]:
    """Launches in a random order, of kernels that name elements in different ways; and the arrays with gradients."""
    x, y = (qd.field(qd.f64, shape=(2 * ROWS, 3), needs_grad=True) for _ in range(2))
    v = qd.Vector.field(2, qd.f64, shape=ROWS, needs_grad=True)
    arrays = [qd.ndarray(qd.f64, (3,), needs_grad=True) for _ in range(6)]

    @qd.kernel
    def next_row(t: qd.i32, c: qd.f64):
        for i in range(3):
            x[t + 1, i] = c * qd.sin(x[t, i])

    @qd.kernel
    def apart(t: qd.i32, s: qd.i32):
        for i in range(3):
            y[2 * t, i] += qd.sin(x[s, i]) * y[2 * s - 2 * t + 1, 0]

    @qd.kernel
    def element(t: qd.i32):
        for _ in range(1):
            x[t, 2] = qd.cos(y[t, 1]) * x[t, 0]

    @qd.kernel
    def vectors(t: qd.i32):
        for _ in range(1):
            v[t + 1] = v[t] * v[t].norm_sqr() + v[0]

    @qd.kernel
    def of_arrays(a: qd.types.ndarray(dtype=qd.f64, ndim=1), b: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in range(3):
            b[i] = qd.sin(a[i]) * a[2 - i]

    @qd.data_oriented
    class Object:
        def __init__(self) -> None:
            self.a, self.x = arrays[0], x

        @qd.kernel
        def run(self, t: qd.i32):
            for i in range(3):
                self.a[i] += qd.sin(self.x[t, i])

        @qd.kernel
        def read(self, t: qd.i32):
            for i in range(3):
                self.x[t, i] += qd.sin(self.a[i])

    one = Object()

    def phase(rng: np.random.Generator) -> None:
        kind, t = rng.integers(7), int(rng.integers(ROWS - 8))
        for k in range(t, t + 7):
            if kind == 0:
                next_row(k, 0.9)
            elif kind == 1:
                apart(k, int(rng.integers(k, ROWS)))
            elif kind == 2:
                element(k)
            elif kind == 3:
                vectors(k)
            elif kind == 4:
                a, b = rng.choice(6, 2, replace=False)
                of_arrays(arrays[a], arrays[b])
            else:
                one.a = arrays[rng.integers(6)] if rng.integers(3) == 0 else one.a
                (one.run if kind == 5 else one.read)(k)

    def run(rng: np.random.Generator) -> None:
        for _ in range(14):
            phase(rng)

    return run, [x, y, v, *arrays]


def tape(seed: int) -> tuple[list[np.ndarray], list[int]]:
    """Gradients of one tape, and before which launches it copied elements."""
    with qd.init(arch=qd.cpu, random_seed=1):
        run, arrays = program()
        rng = np.random.default_rng(seed)
        for array in arrays:
            shape = array.to_numpy().shape
            array.from_numpy(rng.uniform(0.1, 0.9, shape))
        weights = [rng.normal(size=array.to_numpy().shape) for array in arrays]
        with qd.ad.Tape() as recorded:
            run(rng)
            for array, weight in zip(arrays, weights):
                array.grad.from_numpy(weight)
            assert recorded._overwritten is not None
            copied = [when for when, _ in recorded._overwritten.kept._copies]
        return [array.grad.to_numpy() for array in arrays], copied


@pytest.mark.parametrize("seed", range(6))
def test_quick_looks_copy_what_close_looks_copy(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    close = Overwritten.launching

    def launching(*args: Any) -> None:
        nonlocal looked
        looked += 1
        close(*args)

    monkeypatch.setattr(Overwritten, "launching", launching)
    gradients, copied = tape(seed)
    quickly, looked = looked, 0
    monkeypatch.setattr(overwritten, "_SEVERAL", 1 << 30)
    monkeypatch.setattr(Overwritten, "_other_arrays", lambda *args: None)
    expected, when = tape(seed)
    assert looked == 14 * 7 and quickly < looked
    assert copied == when and copied
    for one, other in zip(gradients, expected):
        np.testing.assert_array_equal(one, other)
