"""Faults that a review found, each once."""

from __future__ import annotations

import numpy as np
import pytest

import qdrun as qd


def start(**options):
    return qd.init(**{"default_fp": qd.f64, "cpu_max_num_threads": 1, **options})


def test_a_field_of_another_program_is_refused():
    first = start()
    x = qd.field(qd.f64, shape=4)

    @qd.kernel
    def touch():
        for i in x:
            x[i] += 1.0

    start()
    with pytest.raises(qd.QdrunRuntimeError, match="uses a field of another program"):
        touch()
    with first:
        touch()


def test_a_bound_that_wraps_in_a_narrow_type_is_not_sized_by_its_unwrapped_value():
    start()
    x, y = (qd.field(qd.f64, shape=2, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(qd.cast(n, qd.u8)):
                v = qd.sin(v)
            y[i] = v

    x.fill(0.5)
    k(-1)  # 255 iterations
    y.grad.fill(1.0)
    k.grad(-1)
    v, g = 0.5, 1.0
    for _ in range(255):
        g, v = g * np.cos(v), np.sin(v)
    np.testing.assert_allclose(x.grad.to_numpy(), [g, g], rtol=1e-10)


def test_a_tape_tells_template_numbers_apart():
    start()
    x = qd.field(qd.f64, shape=2, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def square(source: qd.template(), target: qd.template()):
        x[target] = x[source] * x[source]

    @qd.kernel
    def total():
        loss[None] += x[0]

    x.fill(3.0)
    with pytest.raises(qd.DataAccessError, match="`square`"):
        with qd.ad.Tape(loss=loss):
            square(0, 1)
            square(1, 0)
            total()


def test_a_tape_takes_numpy_integers_and_keeps_vectors_as_they_were():
    start()
    x = qd.field(qd.f64, shape=5, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def step(t: qd.i32, by: qd.types.vector(2, qd.f64)):
        x[t + 1] = x[t] * x[t] + by[0] * x[t]

    @qd.kernel
    def total():
        loss[None] += x[2]

    by = np.array([2.0, 0.0])
    x.fill(1.0)
    with qd.ad.Tape(loss=loss):
        for t in np.arange(2):
            step(t, by)
        by[0] = 100.0
        total()
    assert x.grad[0] == (2 * 3.0 + 2.0) * (2 * 1.0 + 2.0)


def test_only_written_arrays_are_copied_back():
    start()

    @qd.kernel
    def fill(a: qd.types.ndarray(dtype=qd.f64, ndim=2), b: qd.types.ndarray(dtype=qd.f64, ndim=2)):
        for i, j in a:
            a[i, j] = 7.0

    whole = np.arange(18.0).reshape(3, 6)
    fill(whole[:, :3], whole[:, :3])
    assert (whole[:, :3] == 7.0).all()
    assert (whole[:, 3:] != 7.0).all()


def test_bounds_checks_of_what_is_not_repeated_refuse_nothing():
    start(debug=True)
    x = qd.field(qd.f64, shape=4, needs_grad=True)
    y = qd.field(qd.f64, shape=4, needs_grad=True)
    p, c = qd.field(qd.i32, shape=4), qd.field(qd.i32, shape=4)

    @qd.kernel
    def k():
        for i in x:
            c[p[i]] += 1
            y[i] = x[i] * x[i]
        for i in p:
            p[i] = 0

    x.fill(2.0)
    k()
    y.grad.fill(1.0)
    k.grad()
    assert x.grad.to_numpy().tolist() == [4.0] * 4


def test_a_tape_that_ends_in_another_program_is_refused():
    start()
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    with pytest.raises(qd.QdrunRuntimeError, match="another program became current"):
        with qd.ad.Tape(loss=loss):
            start()


def test_a_gradient_that_is_placed_after_a_kernel_ran_is_refused():
    start()
    x, y = qd.field(qd.f64), qd.field(qd.f64)
    qd.root.dense(qd.i, 4).place(x, y, y.grad)

    @qd.kernel
    def k():
        for i in x:
            y[i] = 4.0 * x[i]

    k()
    with pytest.raises(qd.QdrunRuntimeError, match="is placed after a kernel ran"):
        qd.root.dense(qd.i, 4).place(x.grad)
