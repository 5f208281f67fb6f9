"""Kernels that a tape launches in parts: what users see is one kernel."""

from __future__ import annotations

import functools
import gc
from typing import Any

import numpy as np
import pytest

import qdrun as qd


@pytest.fixture(autouse=True)
def no_program():
    yield
    qd.reset()


def fields(**options: Any) -> tuple[Any, Any, Any]:
    """Two arrays, and a loss."""
    qd.init(default_fp=qd.f64, **options)
    x, v = (qd.field(qd.f64, 5, needs_grad=True, name=name) for name in "xv")
    x.from_numpy(np.linspace(0.4, 1.2, 5))
    v.from_numpy(np.linspace(-0.3, 0.7, 5))
    return x, v, qd.field(qd.f64, (), needs_grad=True, name="loss")


def kick(x: Any, v: Any, loss: Any) -> Any:
    """A kernel in parts."""

    @qd.kernel
    def k(c: qd.f64):
        for i in v:
            v[i] -= c * qd.sin(x[i])
        for i in x:
            x[i] += c * v[i] * x[i]
        for i in v:
            v[i] *= 1.0 - c * x[i] * x[i]
        for i in v:
            loss[None] += v[i] * x[i]

    return k


def slope(run: Any, x: Any, h: float = 1e-6) -> float:
    """The slope of what a run gives in the direction of ones."""
    start = x.to_numpy()
    found = []
    for by in (h, -h):
        x.from_numpy(start + by)
        found.append(run())
    x.from_numpy(start)
    return (found[0] - found[1]) / (2 * h)


def test_random_numbers_are_those_of_one_launch():
    def run(tape: bool) -> tuple[np.ndarray, float]:
        x, v, loss = fields(random_seed=4)

        @qd.kernel
        def k():
            for i in v:
                v[i] += qd.random(qd.f64) * x[i] * x[i]
            for i in x:
                x[i] += qd.random(qd.f64) * v[i]
            for i in v:
                v[i] = v[i] * qd.sin(x[i]) + qd.random(qd.f64)
            for i in x:
                loss[None] += x[i] * v[i] * v[i]

        if tape:
            with qd.ad.Tape(loss):
                k()
                k()
            return x.to_numpy(), float(x.grad.to_numpy().sum())

        def both() -> float:
            loss[None] = 0.0
            v.from_numpy(np.linspace(-0.3, 0.7, 5))
            qd.current_program().seeds.drawn = 0
            k()
            k()
            return loss[None]

        expected = slope(both, x)
        both()
        return x.to_numpy(), expected

    (left, gradient), (plain, expected) = run(True), run(False)
    assert np.array_equal(left, plain)
    assert np.isclose(gradient, expected, rtol=1e-7)


@pytest.mark.parametrize("options", [{}, {"debug": True}, {"arch": "python"}], ids=str)
def test_what_a_kernel_returns_and_where_it_ends_is_that_of_one_launch(options):
    options = {**options, "arch": qd.python} if "arch" in options else options
    x, v, loss = fields(**options)

    @qd.kernel
    def k(limit: qd.f64) -> qd.f64:
        for i in v:
            v[i] -= 0.1 * qd.sin(x[i])
        most = 0.0
        for i in x:
            x[i] += v[i] * x[i]
            most += x[i] * x[i]
        if most < limit:
            v[0] = v[0] * most
        for i in v:
            v[i] = v[i] * v[i] * most
        for i in x:
            loss[None] += v[i] * x[i]
        return most

    begin = x.to_numpy(), v.to_numpy()

    def run(limit: float) -> float:
        loss[None] = 0.0
        v.from_numpy(begin[1])
        returned.append(k(limit))
        return loss[None]

    for limit in (100.0, 0.0):
        returned: list[float] = []
        expected = slope(functools.partial(run, limit), x)
        run(limit)
        x.from_numpy(begin[0])
        v.from_numpy(begin[1])
        with qd.ad.Tape(loss):
            assert k(limit) == returned[-1]
        assert np.isclose(x.grad.to_numpy().sum(), expected, rtol=1e-6)
        x.from_numpy(begin[0])


def test_a_method_has_parts_for_each_of_its_objects():
    x, v, loss = fields()
    y = qd.field(qd.f64, 5, needs_grad=True, name="y")
    y.from_numpy(np.linspace(1.0, 0.2, 5))

    @qd.data_oriented
    class Body:
        def __init__(self, at, c):
            self.at, self.c = at, c

        @qd.kernel
        def step(self):
            for i in v:
                v[i] -= self.c * qd.sin(self.at[i])
            for i in self.at:
                self.at[i] += self.c * v[i] * self.at[i]
            for i in v:
                v[i] = qd.sin(v[i]) * self.at[i]

    @qd.kernel
    def total():
        for i in v:
            loss[None] += v[i] * x[i] * y[i]

    one, two = Body(x, 0.2), Body(y, 0.3)

    def launch() -> None:
        for body in (one, two, one):
            body.step()
        total()

    def run() -> float:
        loss[None] = 0.0
        v.from_numpy(np.linspace(-0.3, 0.7, 5))
        y.from_numpy(np.linspace(1.0, 0.2, 5))
        launch()
        return loss[None]

    start = x.to_numpy()
    expected = slope(run, x)
    v.from_numpy(np.linspace(-0.3, 0.7, 5))
    y.from_numpy(np.linspace(1.0, 0.2, 5))
    x.from_numpy(start)
    with qd.ad.Tape(loss):
        launch()
    assert np.isclose(x.grad.to_numpy().sum(), expected, rtol=1e-6)


def test_a_later_variant_has_parts_although_the_first_has_none():
    x, v, loss = fields()

    @qd.kernel
    def step(after: qd.template(), c: qd.f64):
        for i in v:
            v[i] -= c * qd.sin(x[i])
        for i in x:
            loss[None] += c * v[i] * x[i]
            if qd.static(after):
                x[i] += c * v[i]
        for i in v:
            if qd.static(after):
                v[i] *= 1.0 - c * x[i] * x[i]

    begin = x.to_numpy(), v.to_numpy()

    def run() -> float:
        loss[None] = 0.0
        v.from_numpy(begin[1])
        for after in (False, True, False, True):
            step(after, 0.3)
        return loss[None]

    with qd.ad.Tape(loss):
        run()
    found = x.grad.to_numpy().sum()
    x.from_numpy(begin[0])
    assert np.isclose(found, slope(run, x), rtol=1e-6)


def test_grad_check_and_a_tape_after_one_that_failed():
    x, v, loss = fields()
    k, begin = kick(x, v, loss), (x.to_numpy(), v.to_numpy())

    def start() -> None:
        for tensor, value in zip((x, v), begin):
            tensor.from_numpy(value)

    with qd.ad.Tape(loss, grad_check=[x, v]):
        k(0.2)
        k(0.1)
    want = x.grad.to_numpy()
    start()

    @qd.ad.grad_replaced
    def fails() -> None:
        pass

    @qd.ad.grad_for(fails)
    def fails_grad() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), qd.ad.Tape(loss):
        k(0.2)
        fails()
        k(0.1)
    start()
    with qd.ad.Tape(loss):
        k(0.2)
        k(0.1)
    assert np.array_equal(x.grad.to_numpy(), want)


def test_without_a_tape_and_where_one_loop_alone_lacks_a_value_it_is_refused():
    x, v, loss = fields()
    k = kick(x, v, loss)
    with pytest.raises(qd.DataAccessError, match=r"the gradient needs the value of `\w` read here"):
        k.grad(0.1)

    @qd.kernel
    def sweep():
        for _ in range(1):
            for i in range(2, 5):
                x[i] = x[i] ** 2 + x[i - 2] ** 2
        for i in v:
            v[i] += x[i] * x[i]
        for i in x:
            x[i] *= x[i]

    with pytest.raises(qd.DataAccessError, match=r"`x` read here, but .*x\[i\] = x\[i\] \*\* 2"), qd.ad.Tape(loss):
        sweep()


def test_its_memory_ends_with_the_kernel():
    x, v, loss = fields()

    def make() -> None:
        @qd.kernel
        def k():
            most = 0.0
            for i in x:
                most += x[i] * x[i]
            for i in x:
                x[i] = x[i] / most
            for i in v:
                v[i] = v[i] * v[i] * most
            for i in v:
                v[i] = v[i] * v[i] * x[i]

        with qd.ad.Tape(loss):
            k()
        assert qd.current_program().usage()["parts"] == 24

    for _ in range(2):
        make()
        gc.collect()
        qd.current_program().lifetimes.reap()
        gc.collect()
        assert qd.current_program().usage().get("parts", 0) == 0


def test_what_is_known_of_a_kernel_in_parts_goes_with_it():
    with qd.init(default_fp=qd.f64) as program:
        x, v, loss = (qd.field(qd.f64, shape, needs_grad=True) for shape in (4, 4, ()))

        def step(c):
            @qd.kernel
            def both():
                for i in x:
                    v[i] -= qd.sin(x[i]) * c
                for i in x:
                    x[i] += v[i] * x[i] * c

            @qd.kernel
            def total():
                for i in x:
                    loss[None] += x[i]

            with qd.ad.Tape(loss):
                both()
                total()

        for k in range(5):
            x.fill(0.3)
            step(0.1 * k)
        gc.collect()
        assert len(program.parts) <= 2


def test_only_kernels_that_may_multiply_are_looked_at_in_parts():
    """A call of a function of the language or of Python multiplies nothing in place; one of a func may, whatever it is called."""
    (x, _, _), ndrange, static, atomic_mul = fields(), qd.ndrange, qd.static, qd.atomic_mul

    @qd.func
    def round(i):
        x[i] *= 2.0

    @qd.kernel
    def plain():
        for i, j in ndrange(2, 2):
            for k in static(range(2)):
                x[i] = float(max(i, j)) + abs(int(x[i])) + k

    @qd.kernel
    def calls():
        for i in range(4):
            round(i)

    @qd.kernel
    def multiplies():
        for i in range(4):
            atomic_mul(x[i], 2.0)

    assert [k.several for k in (plain, calls, multiplies)] == [False, True, True]


@pytest.mark.parametrize("options", [{}, {"arch": qd.cuda, "device": "emulated"}, {"batch": 2}], ids=str)
def test_sweeps_within_a_loop_of_one_iteration_are_parts(options):
    """A tridiagonal system, solved in place: down, and up again."""
    x, v, loss = fields(**options)
    start = v.to_numpy()

    @qd.kernel
    def solve():
        for _ in range(1):
            v[0] = v[0] / 2.0
            for i in range(1, 5):
                v[i] = (v[i] + x[i] * v[i - 1]) / (2.0 + x[i])
            for k in range(1, 5):
                v[4 - k] += qd.sin(x[k]) * v[5 - k] * v[4 - k]
            for i in range(5):
                loss[None] += v[i] * v[i] * i

    def run() -> float:
        v.from_numpy(start)
        loss.fill(0.0)
        solve()
        return loss.to_numpy().ravel()[0]

    expected = slope(run, x)
    v.from_numpy(start)
    with qd.ad.Tape(loss):
        solve()
    assert loss.to_numpy().ravel()[0] == pytest.approx(run(), rel=1e-12)
    assert x.grad.to_numpy().reshape(-1, 5)[0].sum() == pytest.approx(expected, rel=1e-6)


def test_loops_that_hand_a_variable_on_are_no_parts():
    x, v, loss = fields()

    @qd.kernel
    def normal():
        for _ in range(1):
            square = 0.0
            for i in range(5):
                square += v[i] * v[i]
            for i in range(5):
                v[i] = v[i] * v[i] / square
            for i in range(5):
                v[i] = qd.sin(v[i]) * square
            for i in range(5):
                loss[None] += v[i] * x[i]

    with pytest.raises(qd.DataAccessError, match="or make a kernel of each inner loop"), qd.ad.Tape(loss):
        normal()
