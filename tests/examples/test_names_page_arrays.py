"""docs/names.md: the derivatives that it promises of atomics and of ``qd.algorithms`` are those of central differences."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

PAGE = (Path(__file__).parents[2] / "docs" / "names.md").read_text(encoding="utf-8")
PROMISED = set(re.findall(r"^\| `qd\.(algorithms\.\w+|atomic_\w+|volatile_load)[^`]*` \| .* \| yes[^|]*\|$", PAGE, re.M))
N = 300 if os.environ.get("QDRUN_TEST_ARCH", "cpu") == "cpu" else 600
"""More than a segment; on a GPU with blocks more than they leave to one thread."""
OPS = ("add", "min", "max")


@qd.kernel
def copied(x: qd.Tensor, y: qd.Tensor):
    for i in y:
        y[i] = x[i]


@qd.kernel
def weighed(y: qd.Tensor, w: qd.Tensor, loss: qd.Tensor, first: int):
    for i in range(first, y.shape[0]):
        loss[None] += w[i] * y[i] ** 2


class Arrays:
    """Fresh arrays of N numbers: ``x``, of which the gradient is taken, ``y`` and ``z`` for results, and integers."""

    def __init__(self):
        rng = np.random.default_rng()
        self.x, self.y, self.z = (qd.ndarray(qd.f64, N, needs_grad=True) for _ in range(3))
        self.one, self.loss = qd.ndarray(qd.f64, 1, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
        self.w = qd.ndarray(qd.f64, N)
        self.w.from_numpy(rng.uniform(0.5, 1.5, N))
        whole = {"index": rng.integers(0, N, N), "flags": rng.integers(0, 2, N), "keys": np.sort(rng.integers(0, 40, N))}
        for name, values in whole.items():
            setattr(self, name, qd.ndarray(qd.i32, N))
            getattr(self, name).from_numpy(values.astype(np.int32))
        self.ints, self.count = qd.ndarray(qd.i32, N), qd.field(qd.i32, shape=())
        self.place = qd.ndarray(qd.f64, N)
        self.place.from_numpy(rng.random(N))


def sort_values(a):
    copied(a.x, a.y)
    copied(a.w, a.z)
    qd.algorithms.parallel_sort(a.z, a.y)


def sort_keys(a):
    copied(a.x, a.y)
    qd.algorithms.parallel_sort(a.y)


def sums_in_place(a):
    copied(a.x, a.y)
    qd.algorithms.PrefixSumExecutor(N).run(a.y)


def order_and_gather(a):
    qd.algorithms.argsort(a.x, a.ints)
    qd.algorithms.gather(a.x, a.ints, a.y)


CASES = {
    **{f"reduce {op}": lambda a, op=op: qd.algorithms.reduce(a.x, a.one, op) for op in OPS},
    **{f"inclusive_scan {op}": lambda a, op=op: qd.algorithms.inclusive_scan(a.x, a.y, op) for op in OPS},
    **{f"exclusive_scan {op}": lambda a, op=op: qd.algorithms.exclusive_scan(a.x, a.y, op) for op in OPS},
    "gather": lambda a: qd.algorithms.gather(a.x, a.index, a.y),
    "gather after argsort": order_and_gather,
    "parallel_sort": sort_keys,
    "parallel_sort of values": sort_values,
    "PrefixSumExecutor": sums_in_place,
    "compact": lambda a: qd.algorithms.compact(a.x, a.flags, a.y, a.count),
    "reduce_by_key": lambda a: qd.algorithms.reduce_by_key(a.keys, a.x, a.ints, a.y, a.count),
    "histogram": lambda a: qd.algorithms.histogram(a.place, a.y, 0.0, 1.0, a.x),
}


def check(x: np.ndarray, gradient: np.ndarray, value) -> None:
    """The gradient along random directions is the central difference of ``value``."""
    for _ in range(3):
        direction = np.random.default_rng().normal(size=len(x))
        step = 1e-6 * direction
        difference = (value(x + step) - value(x - step)) / 2e-6
        np.testing.assert_allclose(gradient @ direction, difference, rtol=1e-6, atol=1e-6 * np.linalg.norm(gradient))
    assert gradient.any()


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_of_an_algorithm_is_that_of_differences(name):
    with qd.init(default_fp=qd.f64):
        a = Arrays()
        out = a.one if name.startswith("reduce ") else a.y
        first = 1 if name.startswith("exclusive_scan") else 0  # before it is the greatest number, or the least

        def value(x) -> float:
            a.x.from_numpy(x)
            a.y.fill(0.0)
            a.loss[None] = 0.0
            CASES[name](a)
            weighed(out, a.w, a.loss, first)
            return a.loss[None]

        x = np.random.default_rng().permutation(np.linspace(-1.0, 1.5, N)) + 0.001 * np.random.default_rng().random(N)
        a.x.from_numpy(x)
        a.y.fill(0.0)
        with qd.ad.Tape(a.loss):
            CASES[name](a)
            weighed(out, a.w, a.loss, first)
        check(x, a.x.grad.to_numpy(), value)


@qd.kernel
def updates(x: qd.Tensor, w: qd.Tensor, y: qd.Tensor, loss: qd.Tensor, update: qd.Template):
    for i in x:
        update(y[0], w[i] * x[i])
    for _ in range(1):
        loss[None] += y[0] ** 2


@qd.kernel
def own_elements(x: qd.Tensor, w: qd.Tensor, y: qd.Tensor, loss: qd.Tensor):
    for i in x:
        qd.atomic_exchange(y[i], w[i] * x[i])
    for i in y:
        loss[None] += w[i] * y[i] ** 2


@qd.kernel
def read_anew(x: qd.Tensor, w: qd.Tensor, y: qd.Tensor, loss: qd.Tensor):
    for i in x:
        loss[None] += w[i] * qd.volatile_load(x[i])


ATOMICS = {
    **{
        f"atomic_{op}": lambda x, w, y, loss, op=op: updates(x, w, y, loss, getattr(qd, f"atomic_{op}"))
        for op in (*OPS, "sub", "mul")
    },
    "atomic_exchange": own_elements,
    "volatile_load": read_anew,
}


@pytest.mark.parametrize("name", ATOMICS)
def test_a_gradient_of_an_atomic_is_that_of_differences(name):
    n, rng = 24, np.random.default_rng()
    with qd.init(default_fp=qd.f64):
        x, y = (qd.ndarray(qd.f64, n, needs_grad=True) for _ in range(2))
        w, loss = qd.ndarray(qd.f64, n), qd.field(qd.f64, shape=(), needs_grad=True)
        w.from_numpy(rng.uniform(0.9, 1.1, n))
        begin = {"atomic_min": 99.0, "atomic_max": -99.0}.get(name, 1.3)

        def value(at) -> float:
            x.from_numpy(at)
            y.fill(begin)
            loss[None] = 0.0
            ATOMICS[name](x, w, y, loss)
            return loss[None]

        at = rng.permutation(np.linspace(0.7, 1.4, n))
        x.from_numpy(at)
        y.fill(begin)
        with qd.ad.Tape(loss):
            ATOMICS[name](x, w, y, loss)
        check(at, x.grad.to_numpy(), value)


def test_every_promise_of_a_derivative_has_a_case():
    assert {f"algorithms.{name.split()[0]}" for name in CASES} | set(ATOMICS) == PROMISED
