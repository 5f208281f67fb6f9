"""Minima, maxima, products and returned old values as atomics: right, or refused with the line."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, compile_source, field, ints, start

KINDS = ("min", "max")


def make(lines, threads=1, seed=3, **options):
    """The kernel ``k(n)`` of some lines, over x, w, y (4), s, big (0-D), grid (4 x 4) and integers c (4)."""
    start(cpu_max_num_threads=threads, **options)
    r = np.random.default_rng(seed)
    f = {name: field(4, rng=r, name=name) for name in ("x", "w", "y")}
    f |= {"s": field(values=0.4, name="s"), "big": field(values=9.0, name="big"), "grid": field(4, 4, rng=r, name="grid")}
    source = "@qd.kernel\ndef k(n: qd.i32):\n" + "\n".join("    " + line for line in lines)
    return compile_source(source, **f, c=ints([2, 0, 1, 3], "c"))["k"], f


RIGHT = {
    "the smallest of a field": ["for i in x:", "    qd.atomic_min(big[None], x[i])"],
    "the smallest, when what was there is smaller": ["for i in x:", "    qd.atomic_min(s[None], x[i] + 1.0)"],
    "the largest of a product with a function": ["for i in x:", "    qd.atomic_max(s[None], qd.sin(x[i]) * qd.exp(w[i]))"],
    "the largest of all elements of a grid": ["for i, j in grid:", "    qd.atomic_max(s[None], grid[i, j] * x[i])"],
    "the largest of each column": ["for i, j in grid:", "    qd.atomic_max(y[j], grid[i, j] * x[i])"],
    "the largest of each row, in an inner loop": ["for i in x:", "    for j in range(4):", "        qd.atomic_max(y[i], grid[i, j])"],
    "the largest under a condition": ["for i in x:", "    if x[i] > 0.6:", "        qd.atomic_max(s[None], w[i] * w[i])"],
    "scattered maxima": ["for i in x:", "    qd.atomic_max(y[c[i] // 2], x[i] * w[i])"],
    "clamped to constants in place": ["for i in x:", "    qd.atomic_max(y[i], 0.5)", "    qd.atomic_min(y[i], 0.8)"],
    "stored, then clamped": ["for i in x:", "    y[i] = x[i] * w[i]", "    qd.atomic_max(y[i], 0.5)"],
    "added, then clamped by another field": ["for i in x:", "    y[i] += x[i]", "    qd.atomic_min(y[i], 2.0 * w[i])"],
    "clamped, then perhaps overwritten": [
        "for i in x:", "    qd.atomic_max(y[i], w[i])", "    if i == 2:", "        y[i] = x[i] * x[i]",
    ],
    "read linearly, then updated": ["for i in x:", "    big[None] += 3.0 * y[i]", "    qd.atomic_max(y[i], x[i])"],
    "two maxima of one element": ["for i in x:", "    qd.atomic_max(s[None], x[i])", "    qd.atomic_max(s[None], w[i])"],
    "two maxima in two tasks, then read": [
        "for i in x:", "    qd.atomic_max(s[None], x[i])", "for i in x:", "    qd.atomic_max(s[None], w[i])",
        "for i in x:", "    y[i] = s[None] * x[i]",
    ],
    "the largest of the kernel's own variable": ["t = 0.0", "for i in x:", "    qd.atomic_max(t, x[i] * w[i])", "s[None] += t * t"],
    "in order, mixed": [
        "qd.loop_config(serialize=True)", "for i in x:", "    qd.atomic_max(s[None], x[i])", "    qd.atomic_min(s[None], w[i])",
    ],
    "where the value is infinite": ["for i in x:", "    qd.atomic_min(big[None], 1.0 / qd.max(0.0, x[i] - 0.6))"],
    "a product in place": ["for i in x:", "    y[i] *= x[i]"],
    "stored, then multiplied": ["for i in x:", "    y[i] = w[i]", "    y[i] *= x[i]"],
    "added, then multiplied": ["for i in x:", "    y[i] += w[i]", "    y[i] *= qd.sin(x[i])"],
    "multiplied, then perhaps overwritten": ["for i in x:", "    y[i] *= x[i]", "    if i == 1:", "        y[i] = w[i]"],
    "multiplied, then clamped": ["for i in x:", "    y[i] *= x[i]", "    qd.atomic_max(y[i], 0.3)"],
    "multiplied only here and there": ["for i in x:", "    if i % 2 == 0:", "        y[i] *= x[i]"],
    "the product of a field": ["for i in x:", "    s[None] *= x[i]"],
    "the product of a field and of constants": ["for i in x:", "    s[None] *= x[i] * w[i]", "    s[None] *= 2.0"],
    "products of rows": ["for i, j in grid:", "    y[i] *= qd.sin(grid[i, j]) * x[j]"],
    "products of rows in an inner loop": ["for i in x:", "    for j in range(n):", "        y[i] *= qd.sin(grid[i, j])"],
    "two factors of one element": ["for i in x:", "    y[i] *= x[i]", "    y[i] *= w[i]"],
    "scattered factors": ["for i in x:", "    y[c[i] // 2] *= x[i]"],
    "factors of a grid in a loop": ["for i in x:", "    for j in range(4):", "        grid[i, j] *= x[i]"],
    "a product of the kernel's own variable": ["t = 1.0", "for i in x:", "    t *= x[i]", "s[None] += t * t"],
    "products in order": ["qd.loop_config(serialize=True)", "for i in x:", "    s[None] *= x[i]"],
    "an old value of an own element": ["for i in x:", "    t = qd.atomic_add(y[i], x[i])", "    w[i] = 2.0 * t"],
    "an old value before a product": ["for i in x:", "    t = qd.atomic_mul(y[i], 3.0)", "    w[i] = 2.0 * t + x[i]"],
    "an old value of a total, in order": [
        "qd.loop_config(serialize=True)", "for i in x:", "    t = qd.atomic_add(s[None], x[i] * x[i])", "    y[i] = t",
    ],
}  # fmt: skip


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("name", RIGHT)
def test_atomics_are_right(name, threads):
    k, f = make(RIGHT[name], threads)
    Point(k, (3,), list(f.values()), list(f.values())).check()


@pytest.mark.parametrize("name", [n for n in RIGHT if "inf" not in n])
def test_atomics_are_right_on_the_interpreter(name):
    k, f = make(RIGHT[name], arch=qd.python)
    Point(k, (3,), list(f.values()), list(f.values())).check()


ALONE = "write to another field there, or do it in a kernel of its own"
READ = "in a kernel of its own"
REFUSED = {
    "a maximum, then overwritten by a later task": (
        ["for i in x:", "    qd.atomic_max(s[None], x[i])", "s[None] = 0.0"],
        2,
        "needs what it leaves in `s`, but line 5 (`s[None] = 0.0`) may change that",
        ALONE,
    ),
    "maxima and minima of many iterations": (
        ["for i in x:", "    qd.atomic_max(s[None], x[i])", "    qd.atomic_min(s[None], w[i])"],
        2,
        "needs what it leaves in `s`, but line 5",
        ALONE,
    ),
    "a maximum that is read between two tasks": (
        ["for i in x:", "    qd.atomic_max(s[None], x[i])", "for i in x:", "    y[i] = s[None]", "for i in x:",
            "    qd.atomic_max(s[None], w[i])"],
        2,
        "is not known where line 6 (`y[i] = s[None]`) reads `s`",
        READ,
    ),
    "the old value of a shared element": (
        ["for i in x:", "    t = qd.atomic_max(s[None], x[i])", "    y[i] = t"],
        2,
        "the value returned by an atomic on `s` is used, and `s` has a gradient",
        READ,
    ),
    "the old value in a product": (
        ["for i in x:", "    t = qd.atomic_add(y[i], x[i])", "    w[i] = t * t"],
        2,
        "the gradient needs the value of `y` read here",
        "write to another field",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_final_content_does_not_tell_is_refused(name):
    lines, number, words, remedy = REFUSED[name]
    k, _ = make(lines)
    k(3)
    with pytest.raises(qd.DifferentiationError) as e:
        k.grad(3)
    message = str(e.value)
    assert words in message
    assert f":{number + 2} in kernel `k`" in message
    assert remedy in message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [qd.f16, qd.f32, qd.f64])
def test_the_winner_takes_all(kind, dtype):
    """In every precision: the value that wins is recognised by its bits."""
    qd.init(arch=qd.cpu, default_fp=qd.f64 if dtype is qd.f64 else qd.f32, cpu_max_num_threads=2)
    n = 300
    x, best = qd.field(dtype, shape=n, needs_grad=True), qd.field(dtype, shape=(), needs_grad=True)
    values = np.random.default_rng(5).uniform(-1.4, 1.4, n)
    x.from_numpy(values.astype(x.to_numpy().dtype))
    best[None] = 100.0 if kind == "min" else -100.0
    line = f"qd.atomic_{kind}(best[None], qd.sin(x[i]) * x[i] + qd.exp(x[i]))"
    k = compile_source(f"@qd.kernel\ndef k():\n    for i in x:\n        {line}\n", x=x, best=best)["k"]
    k()
    best.grad[None] = 1.0
    k.grad()
    g = x.grad.to_numpy().astype(float)
    v = x.to_numpy().astype(float)
    f = np.sin(v) * v + np.exp(v)
    (winner,) = np.flatnonzero(g)
    near = 1e-2 if dtype is qd.f16 else 1e-5
    slope = np.cos(v[winner]) * v[winner] + np.sin(v[winner]) + np.exp(v[winner])
    assert f[winner] == pytest.approx(f.min() if kind == "min" else f.max(), rel=near)
    assert g[winner] == pytest.approx(slope, rel=near)
    assert best.grad[None] == 0.0


@pytest.mark.parametrize("lanes", (1, 4, 8))
def test_a_winner_is_found_whatever_the_lanes_of_the_program(lanes):
    qd.init(arch=qd.cpu, default_fp=qd.f64, cpu_lanes=lanes)
    x, best = field(1000, rng=np.random.default_rng(2)), field(values=-9.0)

    @qd.kernel
    def largest():
        for i in x:
            v = x[i]
            for _ in range(5):
                v = qd.sin(3.0 * v) + 0.01 * v
            qd.atomic_max(best[None], v)

    largest()
    best.grad[None] = 1.0
    largest.grad()
    assert np.count_nonzero(x.grad.to_numpy()) == 1
    assert best.grad[None] == 0.0


def test_one_of_the_tied_takes_all():
    k, f = make(["for i in x:", "    qd.atomic_max(s[None], x[i])"], threads=2)
    f["x"].fill(2.0)
    k(0)
    f["s"].grad.fill(1.0)
    k.grad(0)
    assert sorted(f["x"].grad.to_numpy().tolist()) == [0.0, 0.0, 0.0, 1.0]


def test_a_value_that_ties_with_what_was_there_takes_all():
    k, f = make(["for i in x:", "    qd.atomic_max(y[i], x[i])"])
    f["y"].from_numpy(f["x"].to_numpy())
    k(0)
    f["y"].grad.fill(1.0)
    k.grad(0)
    assert f["x"].grad.to_numpy().tolist() == [1.0] * 4
    assert not f["y"].grad.to_numpy().any()


def test_what_was_there_and_wins_keeps_the_gradient():
    k, f = make(["for i in x:", "    qd.atomic_max(s[None], x[i])"])
    f["s"].fill(7.0)
    k(0)
    f["s"].grad.fill(2.0)
    k.grad(0)
    assert f["s"].grad[None] == 2.0
    assert not f["x"].grad.to_numpy().any()


def test_a_constant_that_wins_cuts_the_gradient():
    k, f = make(["for i in x:", "    qd.atomic_max(y[i], 0.0)"])
    f["y"].from_numpy([-1.0, 2.0, -3.0, 0.0])
    k(0)
    f["y"].grad.fill(1.0)
    k.grad(0)
    assert f["y"].grad.to_numpy().tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_nan_that_wins_takes_the_gradient():
    k, f = make(["for i in x:", "    qd.atomic_max(y[i], x[i])"])
    f["x"].from_numpy([np.nan, 3.0, 0.0, np.nan])
    f["y"].fill(1.0)
    k(0)
    assert np.isnan(f["y"].to_numpy()).tolist() == [True, False, False, True]
    f["y"].grad.fill(1.0)
    k.grad(0)
    assert f["x"].grad.to_numpy().tolist() == [1.0, 1.0, 0.0, 1.0]
    assert f["y"].grad.to_numpy().tolist() == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("line", "do"),
    [("y[i] *= x[i]", "launch its loop as a kernel of its own in a qd.ad.Tape"), ("s[None] *= x[i]", "multiply in a")],
)
def test_a_factor_of_zero_is_refused_at_run_time(line, do):
    """Without a tape; for ``s`` in a tape, too."""
    k, f = make(["for i in x:", f"    {line}"])
    f["x"].from_numpy([0.5, 0.0, 0.3, 2.0])
    k(0)
    f["y"].grad.fill(1.0)
    f["s"].grad.fill(1.0)
    with pytest.raises(qd.QdrunAssertionError, match=f"value` is zero, and its gradient divides by it; do: {do}") as e:
        k.grad(0)
        qd.sync()
    assert ":4 in the gradient of kernel `k`" in str(e.value)


def test_a_factor_of_zero_without_an_adjoint_is_harmless():
    k, f = make(["for i in x:", "    y[i] *= x[i]"])
    f["x"].from_numpy([0.5, 0.0, 0.3, 2.0])
    before = f["y"].to_numpy()
    k(0)
    f["y"].grad.from_numpy([1.0, 0.0, 1.0, 1.0])
    k.grad(0)
    np.testing.assert_allclose(f["x"].grad.to_numpy(), before * [1, 0, 1, 1])
    np.testing.assert_allclose(f["y"].grad.to_numpy(), [0.5, 0.0, 0.3, 2.0])


def test_a_later_launch_that_changes_the_content_changes_no_gradient_on_a_tape():
    start()
    x, s, loss = field(4, rng=np.random.default_rng(1), name="x"), field(values=0.0, name="s"), field(name="loss")

    @qd.kernel
    def largest():
        for i in x:
            qd.atomic_max(s[None], x[i])

    @qd.kernel
    def use():
        loss[None] += s[None]

    @qd.kernel
    def reset():
        s[None] = 0.0

    for changes in (True, False):
        s[None] = 0.0
        with qd.ad.Tape(loss=loss):
            largest()
            use()
            if changes:
                reset()
        assert x.grad.to_numpy().tolist() == (x.to_numpy() == x.to_numpy().max()).astype(float).tolist()


def test_a_product_over_launches_on_a_tape():
    start()
    x, y, loss = field(2, 4, rng=np.random.default_rng(1), name="x"), field(3, 4, name="y"), field(name="loss")

    @qd.kernel
    def step(t: qd.i32):
        for i in range(4):
            y[t + 1, i] = y[t, i]
            y[t + 1, i] *= x[t, i]

    @qd.kernel
    def total():
        for i in range(4):
            loss[None] += y[2, i]

    y.fill(1.5)
    with qd.ad.Tape(loss=loss):
        step(0)
        step(1)
        total()
    np.testing.assert_allclose(x.grad.to_numpy(), 1.5 * x.to_numpy()[::-1])


def test_a_factor_of_zero_after_another_loop_needs_a_kernel_of_its_own():
    start()
    x, y, loss = field(4, rng=np.random.default_rng(1), name="x"), field(4, name="y"), field(name="loss")
    x[2] = 0.0

    @qd.kernel
    def first():
        for i in x:
            y[i] = 1.0 + x[i]

    @qd.kernel
    def second():
        for i in x:
            y[i] *= x[i]

    @qd.kernel
    def both():
        for i in x:
            y[i] = 1.0 + x[i]
        for i in x:
            y[i] *= x[i]

    @qd.kernel
    def total():
        for i in x:
            loss[None] += y[i]

    with (
        pytest.raises(qd.QdrunAssertionError, match=r"do: launch its loop as a kernel of its own in a qd.ad.Tape"),
        qd.ad.Tape(loss),
    ):
        both()
        total()
    with qd.ad.Tape(loss):
        first()
        second()
        total()
    np.testing.assert_allclose(x.grad.to_numpy(), 1.0 + 2.0 * x.to_numpy())
