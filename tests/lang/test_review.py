"""Faults that a review found, each once."""

from __future__ import annotations

import collections
import dataclasses

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
    with qd.ad.Tape(loss=loss):
        square(0, 1)
        assert "tape" not in qd.current_program().usage()
        square(1, 0)
        total()
    assert x.grad.to_numpy().tolist() == [4 * 3.0**3, 0]


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


@dataclasses.dataclass
class Settings:
    c: float


CONTENTS = {
    "list": ([1.0], lambda a, v: a.__setitem__(0, v)),
    "nested": ([[1.0]], lambda a, v: a[0].__setitem__(0, v)),
    "numpy": (np.array([1.0]), lambda a, v: a.__setitem__(0, v)),
    "vector": (qd.Vector([1.0]), lambda a, v: a.__setitem__(0, v)),
    "dict": ({0: 1.0}, lambda a, v: a.__setitem__(0, v)),
    "dataclass": (Settings(1.0), lambda a, v: setattr(a, "c", v)),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_data_given_for_a_template_count_by_their_content_at_the_launch(kind):
    start()
    x = qd.field(qd.f64, shape=2, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    given, change = CONTENTS[kind]

    @qd.kernel
    def scale(a: qd.template()):
        for i in x:
            if qd.static(kind == "dataclass"):
                loss[None] += a.c * x[i]
            elif qd.static(kind == "nested"):
                loss[None] += a[0][0] * x[i]
            else:
                loss[None] += a[0] * x[i]

    x.fill(1.0)
    change(given, 1.0)
    with qd.ad.Tape(loss):
        scale(given)
        change(given, 10.0)
        scale(given)
        change(given, 100.0)
    assert loss[None] == 22.0 and x.grad[0] == 11.0
    assert len(scale.variants()) == 2


def test_tuples_made_for_each_launch_are_one_specialisation():
    start()
    x, y = qd.field(qd.f64, shape=2), qd.field(qd.f64, shape=2)
    Pair = collections.namedtuple("Pair", "first second")

    @qd.kernel
    def add(a: qd.template(), b: qd.template()):
        for i in a[0]:
            a[0][i] += a[1][i] + b.first

    y.fill(1.0)
    for _ in range(5):
        add((x, y), Pair(1.0, float("nan")))
    assert x[0] == 10.0 and len(add.variants()) == 1
    add((y, x), Pair(1.0, float("nan")))
    assert y[0] == 12.0


def test_a_template_number_of_numpy_keeps_its_type():
    start()
    x = qd.field(qd.f64, shape=1, needs_grad=True)
    y = qd.field(qd.f64, shape=1, needs_grad=True)

    @qd.kernel
    def scale(n: qd.template()):
        for i in x:
            y[i] = n / 3 * x[i]

    x.fill(1.0)
    scale(2.0)
    scale(np.float32(2.0))
    single = y[0]
    y.grad.fill(1.0)
    with qd.ad.Tape():
        scale(np.float32(2.0))
        y.grad.fill(1.0)
    assert single != 2 / 3 and x.grad[0] == single


def test_specialisations_in_turn_are_launched_natively():
    start()

    @qd.kernel
    def add(a: qd.types.ndarray()):
        for i in a:
            a[i] += 1

    arrays = [qd.ndarray(t, 2) for t in (qd.f64, qd.f32, qd.i32)] + [np.zeros((2,)), qd.tensor(qd.f64, (2,), needs_grad=True)]
    for a in arrays:
        add(a)
    slow, calls = add.binder.bind, []
    add.binder.bind = lambda *args: calls.append(args) or slow(*args)
    for _ in range(3):
        for a in arrays:
            add(a)
    assert not calls and all(a[1] == 4 for a in arrays)
    with pytest.raises(qd.QdrunTypeError):
        add("no array")
    assert len(calls) == 1
