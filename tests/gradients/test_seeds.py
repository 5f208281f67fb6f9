"""``k.grad()`` whose outputs have gradients of 0 adds nothing: it is told, once."""

import warnings

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.errors import GradientWarning


@pytest.fixture
def program():
    with qd.init(default_fp=qd.f64, offline_cache=False) as program:
        yield program


def made():
    x, y = (qd.field(qd.f64, shape=3, needs_grad=True, name=n) for n in "xy")
    loss = qd.field(qd.f64, shape=(), needs_grad=True, name="loss")
    x.from_numpy(np.random.default_rng().random(3))

    @qd.kernel
    def square():
        for i in x:
            y[i] = x[i] ** 2

    @qd.kernel
    def total():
        for i in y:
            loss[None] += y[i]

    square()
    total()
    return x, y, loss, square, total


def told(run):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in found if w.category is GradientWarning]


def test_a_gradient_without_a_seed_is_told_once(program):
    x, _, _, _, total = made()
    (text,) = told(lambda: [total.grad() for _ in range(3)])
    assert "gradient of kernel `total` adds nothing: the gradient of all that the kernel writes is 0 (`loss.grad`)" in text
    assert "test_seeds.py:" in text
    assert "do: set it before, `loss.grad[None] = 1`; or launch the kernel in `with qd.ad.Tape(loss):`" in text
    assert not x.grad.to_numpy().any()


def test_an_array_without_a_seed_is_told_by_its_name(program):
    _, _, _, square, _ = made()
    (text,) = told(square.grad)
    assert "(`y.grad`)" in text
    assert "`y.grad.fill(1)`" in text


def test_an_argument_without_a_seed_is_told(program):
    out, x = (qd.ndarray(qd.f64, (3,), needs_grad=True) for _ in range(2))
    x.fill(2.0)

    @qd.kernel
    def cube(out: qd.types.ndarray(), x: qd.types.ndarray()):
        for i in out:
            out[i] = x[i] ** 3

    cube(out, x)
    assert len(told(lambda: cube.grad(out, x))) == 1
    out.grad.fill(1.0)
    cube.grad(out, x)
    assert x.grad.to_numpy().tolist() == [12.0, 12.0, 12.0]


def test_a_seed_anywhere_is_enough(program):
    x, y, loss, square, total = made()

    def run():
        loss.grad[None] = 1.0
        total.grad()
        square.grad()
        y.grad.fill(0.0)
        square.grad()  # the seed was there before

    assert told(run) == []
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * x.to_numpy())


def test_zeros_in_a_tape_are_no_mistake(program):
    x, _, loss, square, _ = made()

    @qd.kernel
    def nothing():
        loss[None] += 0.0 * x[0]

    def run():
        with qd.ad.Tape(loss):
            square()  # nobody reads y
            nothing()

    assert told(run) == []
