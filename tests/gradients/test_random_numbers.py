"""Random numbers in kernels that are differentiated: the backward pass draws the same ones again."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, compile_source, field, start

ARCHS = (qd.cpu, qd.python)
N = 6

KERNELS = {
    "a factor": ["for i in x:", "    y[i] = x[i] * qd.random(qd.f64)"],
    "a normal factor": ["for i in x:", "    y[i] = qd.sin(x[i]) * qd.randn(qd.f64)"],
    "a branch": ["for i in x:", "    if qd.random(qd.f64) < 0.5:", "        y[i] = x[i] * x[i]", "    else:", "        y[i] = -x[i]"],
    "an element": ["for i in x:", "    k = qd.cast(qd.random(qd.f64) * 6, qd.i32)", "    y[i] = x[k] * x[k]"],
    "a number of iterations": ["for i in x:", "    v = x[i]", "    while qd.random(qd.f64) < 0.6:", "        v = qd.sin(v)",
        "    y[i] = v"],
    "a walk": ["for i in x:", "    v = x[i]", "    for j in range(7):", "        v = qd.sin(v) * (0.5 + qd.random(qd.f64))",
        "    y[i] = v"],
    "several axes": ["for i, j in qd.ndrange(6, 3):", "    y[i] += x[i] * x[i] * qd.random(qd.f64)"],
    "a loop in order": [
        "qd.loop_config(serialize=True)", "for i, j in qd.ndrange((1, 6), (2, 4)):", "    y[i] += x[i] * x[i] * qd.random(qd.f64)",
    ],
    "the kernel's own variable": ["r = qd.random(qd.f64)", "t = x[0] * r", "for i in x:", "    y[i] = x[i] * t * qd.random(qd.f64)"],
    "dropout": ["for i in x:", "    y[i] = qd.select(qd.random(qd.f64) < 0.5, 0.0, qd.exp(x[i]))"],
}  # fmt: skip


def make(lines, arch=qd.cpu, **options):
    program = start(**{"arch": arch, **options})
    r = np.random.default_rng(4)
    x, y = field(N, rng=r, name="x"), field(N, rng=r, name="y")
    source = "@qd.kernel\ndef k():\n" + "\n".join("    " + line for line in lines)
    return program, compile_source(source, x=x, y=y)["k"], x, y


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_gradient_draws_what_its_launch_drew(name, arch):
    """Compared with differences of launches that all have one seed."""
    program, k, x, y = make(KERNELS[name], arch)

    def again():
        program.seeds.drawn = 10  # the number of a launch decides its seed
        k()

    class Drawing(Point):
        def value(self, run=None):
            return super().value(again)

    point = Drawing(k, (), (x,), (x, y))
    np.testing.assert_allclose(point.gradient(), point.differences(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("levels", (1, 2, 3))
def test_checkpoints_do_not_change_the_draws(levels):
    found = []
    for n in (1, levels):
        _, k, x, y = make(KERNELS["a walk"], ad_checkpoint_levels=n, cpu_max_num_threads=1)
        k()
        y.grad.fill(1.0)
        k.grad()
        found.append(x.grad.to_numpy())
    assert np.array_equal(*found)


def test_every_launch_draws_others_and_a_gradient_follows_the_last():
    _, k, x, y = make(KERNELS["a factor"])
    for _ in range(3):
        k()
        y.grad.fill(1.0)
        x.grad.fill(0.0)
        factors = y.to_numpy() / x.to_numpy()
        k.grad()
        np.testing.assert_allclose(x.grad.to_numpy(), factors)
        assert np.unique(factors).size == N


def test_a_gradient_can_be_repeated():
    _, k, x, y = make(KERNELS["a factor"])
    k()
    factors = y.to_numpy() / x.to_numpy()
    for _ in range(3):
        y.grad.fill(1.0)
        k.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), 3 * factors)


def test_gradients_use_up_no_random_numbers():
    draws = []
    for differentiate in (False, True):
        _, k, _, y = make(KERNELS["a factor"])
        k()
        if differentiate:
            k.grad()
        k()
        draws.append(y.to_numpy())
    assert np.array_equal(*draws)


def test_a_tape_remembers_the_draws_of_each_launch():
    start()
    r = np.random.default_rng(4)
    x, y, loss = field(5, N, rng=r, name="x"), field(6, N, rng=r, name="y"), field(name="loss")

    @qd.kernel
    def step(t: qd.i32):
        for i in range(N):
            y[t + 1, i] = x[t, i] * qd.random(qd.f64)

    @qd.kernel
    def total():
        for t, i in x:
            loss[None] += y[t + 1, i]

    with qd.ad.Tape(loss=loss):
        for t in range(5):
            step(t)
        total()
    factors = y.to_numpy()[1:] / x.to_numpy()
    np.testing.assert_allclose(x.grad.to_numpy(), factors)
    assert np.unique(factors).size == factors.size


def test_a_tape_can_check_a_gradient_with_draws():
    start()
    x, loss = field(N, rng=np.random.default_rng(4), name="x"), field(name="loss")

    @qd.kernel
    def noise():
        for i in x:
            loss[None] += qd.sin(x[i]) * qd.random(qd.f64)

    @qd.kernel
    def plain():
        for i in x:
            loss[None] += x[i] * x[i]

    with qd.ad.Tape(loss=loss, grad_check=[x]):
        plain()
        noise()


def test_a_gradient_without_a_launch_is_refused():
    _, k, _, _ = make(KERNELS["a factor"])
    with pytest.raises(
        qd.QdrunRuntimeError, match=r"repeats the random numbers of the launch .* none was made\n  do: launch the kernel first"
    ):
        k.grad()


def test_a_draw_that_no_gradient_needs_asks_for_no_launch():
    _, k, x, y = make(["for i in x:", "    y[i] = 2.0 * x[i] + qd.random(qd.f64)"])
    y.grad.fill(1.0)
    k.grad()
    assert x.grad.to_numpy().tolist() == [2.0] * N


def test_a_gradient_of_your_own_that_repeats_draws_is_refused():
    _, k, x, y = make(KERNELS["a factor"])
    loss = field(name="loss")

    @qd.kernel
    def total():
        for i in y:
            loss[None] += y[i]

    @qd.ad.grad_replaced
    def forward():
        k()

    @qd.ad.grad_for(forward)
    def backward():
        k.grad()

    with pytest.raises(qd.QdrunRuntimeError, match="inside a gradient of your own it is not known which that was"):
        with qd.ad.Tape(loss=loss):
            forward()
            total()
    assert not x.grad.to_numpy().any()
