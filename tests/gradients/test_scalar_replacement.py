"""Elements that a kernel reads between two of its writes: a tape has the gradient, as a local of the gradient kernel keeps the value."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import compile_source, field, start

KERNELS = {
    "a maximum, then a sum": """
        for i in x:
            qd.atomic_max(y[i], x[i])
            y[i] += w[i]
        """,
    "a maximum, then a sum in a later task": """
        for i in x:
            qd.atomic_max(y[i], x[i])
        for i in x:
            y[i] += w[i]
        """,
    "sums and maxima in a loop": """
        for i in x:
            for j in range(n):
                y[i] += grid[i, j]
                qd.atomic_max(y[i], x[i])
        """,
    "a maximum that is read on its way": """
        for i in x:
            for j in range(n):
                qd.atomic_max(y[i], grid[i, j])
                w[i] += y[i]
        """,
    "a product, then a sum": """
        for i in x:
            y[i] *= x[i]
            y[i] += w[i]
        """,
    "a product that is read": """
        for i in x:
            y[i] *= x[i]
            w[i] += y[i]
        """,
    "factors of many iterations, and a sum": """
        qd.loop_config(serialize=True)
        for i in x:
            s[None] *= x[i]
            s[None] += w[i]
        """,
    "a ball that bounces": """
        for i in x:
            w[i] -= 0.4
            y[i] += 1.5 * w[i] * y[i]
            if y[i] < 0.5:
                y[i] *= -0.5 * y[i]
                w[i] *= -0.7 * y[i]
        """,
    "steps within a launch": """
        for i in x:
            for _ in range(n):
                y[i] += 0.1 * qd.sin(y[i]) * w[i]
                w[i] -= 0.1 * y[i] * y[i]
        """,
    "steps until a condition holds": """
        for i in x:
            while y[i] < 2.0:
                y[i] += 0.4 * y[i] * y[i] + 0.2
        """,
    "a product between sums, here and there": """
        for i in x:
            if i > 0:
                y[i] += w[i]
                y[i] *= x[i] * y[i]
                y[i] += x[i]
        """,
    "an element that is out of reach": """
        for i in range(7):
            if i < n:
                y[i] *= x[i]
                w[i] += y[i] * y[i]
        """,
    "an element of a loop within": """
        for i in x:
            for j in range(n):
                grid[i, j] = qd.sin(grid[i, j])
                if grid[i, j] > 0.5:
                    grid[i, j] *= -0.7 * grid[i, j]
        """,
    "neighbours in order": """
        qd.loop_config(serialize=True)
        for i in range(1, 4):
            for j in range(n):
                y[i] = y[i] * y[i] + x[i - 1]
        """,
    "two elements of one array": """
        for i in range(1):
            y[i] *= y[i + 1] * x[i]
            y[i + 1] += y[i] * y[i]
            y[i] = y[i] * y[i + 1]
        """,
    "the old value in a product": """
        for i in x:
            t = qd.atomic_add(y[i], x[i])
            w[i] = t * t
        """,
    "a sweep": """
        qd.loop_config(serialize=True)
        for i in range(1, 4):
            y[i] = y[i] * y[i] + y[i - 1] * y[i - 1] * x[i]
        """,
    "a sweep over both neighbours, down": """
        for _ in range(1):
            for i in range(n - 1, 0, -1):
                y[i] = 0.5 * (y[i - 1] * y[i] + y[i + 1] ** 2) + w[i] * y[i]
                if y[i] > 0.2:
                    y[i] *= 0.5 * y[i] + y[i + 1]
        """,
    "sweeps in rows": """
        for i in x:
            for j in range(1, n):
                grid[i, j] = qd.sin(grid[i, j]) * grid[i, j - 1] + grid[i, j + 1] ** 2
        """,
    "a sweep that skips and stops": """
        for _ in range(1):
            for k in range(-1, 7):
                i = k + 1
                if i == 0:
                    continue
                if i > n:
                    break
                for _ in range(2):
                    y[i] = y[i] * y[i - 1] + 0.3 * x[i] * y[i - 1]
                if y[i] < 0.4:
                    continue
                w[i] = y[i - 1] * y[i]
        """,
    "a sweep of sums without an iteration": """
        for _ in range(1):
            for i in range(n + 4, 6):
                w[i] = w[i] * w[i - 1]
            for i in range(1, n + 1):
                qd.atomic_max(y[i], 0.3 * qd.sin(y[i - 1]))
                y[i] += 0.2 * qd.sin(y[i]) * y[i]
        """,
    "two arrays that need each other": """
        for i in x:
            for _ in range(n):
                y[i] *= w[i]
                w[i] = qd.cos(y[i]) * x[i]
                x[i] -= 0.2 * y[i] * x[i]
        """,
}
TOTAL = """@qd.kernel
def total():
    for i in x:
        loss[None] += (i + 1.3) * x[i] + (i * i - 2.1) * w[i] + (3.2 - i) * y[i] * y[i]
        for j in range(4):
            loss[None] += (i - 1.7 * j) * grid[i, j]
    loss[None] += 0.3 * s[None] * s[None]
"""
WAYS = {"threads": {}, "interpreter": {"arch": qd.python}, "debug": {"debug": True}}
DEVICES = {"emulated": {"arch": qd.cuda, "device": "emulated"}, "Vulkan": {"arch": qd.vulkan, "device": "llvmpipe"}}


class Case:
    """One kernel over x, w, y (4), s (0-D) and grid (4 x 4), and a loss of all of them."""

    def __init__(self, text: str, **options: object) -> None:
        start(**options)
        r = np.random.default_rng()
        f = {name: field(4, rng=r, name=name) for name in ("x", "w", "y")}
        f |= {"s": field(values=0.4, name="s"), "grid": field(4, 4, rng=r, name="grid")}
        self.fields, self.loss = list(f.values()), field(values=0.0, name="loss")
        source = "@qd.kernel\ndef k(n: qd.i32):" + textwrap.indent(textwrap.dedent(text), "    ")
        self.kernel = compile_source(source, **f)["k"]
        self._total = compile_source(TOTAL, **f, loss=self.loss)["total"]
        self.values = np.concatenate([t.to_numpy().ravel() for t in self.fields])

    def at(self, values: np.ndarray) -> float:
        """The loss, and in the fields what the launches leave."""
        for t in self.fields:
            size = t.to_numpy().size
            t.from_numpy(values[:size].reshape(t.shape))
            values = values[size:]
        self.loss[None] = 0.0
        self.kernel(3)
        self._total()
        return self.loss[None]

    def contents(self, gradients: bool = False) -> np.ndarray:
        """What all fields hold."""
        return np.concatenate([(t.grad if gradients else t).to_numpy().ravel() for t in self.fields])

    def gradient(self) -> np.ndarray:
        """By a tape, which leaves in the fields what the launches left there."""
        self.at(self.values)
        left = self.contents()
        with qd.ad.Tape(loss=self.loss):
            self.at(self.values)
        np.testing.assert_array_equal(self.contents(), left)
        return self.contents(gradients=True)

    def differences(self) -> tuple[np.ndarray, float]:
        """Central ones, and how far rounding moves them: losses reach 1e6 here."""
        h = 1e-6
        ends = np.array([[self.at(self.values + d), self.at(self.values - d)] for d in np.eye(len(self.values)) * h])
        return (ends[:, 0] - ends[:, 1]) / (2 * h), 16 * np.finfo(float).eps * np.abs(ends).max() / h


@pytest.fixture(autouse=True)
def no_program():
    yield
    qd.reset()


@pytest.mark.parametrize("way", [*WAYS, *(pytest.param(w, marks=pytest.mark.slow) for w in DEVICES)])
@pytest.mark.parametrize("name", KERNELS)
def test_a_tape_has_the_gradient_where_memory_lacks_a_value(name, way):
    case = Case(KERNELS[name], **(WAYS | DEVICES)[way])
    differences, rounding = case.differences()
    np.testing.assert_allclose(case.gradient(), differences, rtol=1e-6, atol=1e-6 + rounding)


@pytest.mark.parametrize("name", KERNELS)
def test_a_launch_without_a_tape_is_refused(name):
    case = Case(KERNELS[name])
    case.kernel(3)
    with pytest.raises(qd.DataAccessError, match=r"overwrites it\n(.*\n)+.*; a qd\.ad\.Tape keeps such values itself"):
        case.kernel.grad(3)


REFUSED = {
    "an element of the iteration before the last": """
        qd.loop_config(serialize=True)
        for i in range(2, n + 1):
            y[i] = y[i] * y[i] + y[i - 2] * y[i - 2]
        """,
    "an index from memory": """
        for i in range(1):
            for j in range(n):
                y[c[j]] = y[j] * y[j]
        """,
    "steps around an inner loop": """
        qd.loop_config(serialize=True)
        for t in range(3):
            for i in range(4):
                y[i] *= y[i]
        """,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_local_can_keep_is_refused_in_a_tape(name):
    start()
    y, loss = field(4, values=[0.2, 0.4, 0.6, 0.8], name="y"), field(values=0.0, name="loss")
    c = qd.field(qd.i32, 4)
    source = "@qd.kernel\ndef k(n: qd.i32):" + textwrap.indent(textwrap.dedent(REFUSED[name]), "    ")
    k = compile_source(source, y=y, c=c)["k"]
    with pytest.raises(qd.DataAccessError, match="the gradient needs the value of `y` read here"), qd.ad.Tape(loss=loss):
        k(3)


def test_a_guarded_element_of_an_argument_is_left_alone():
    """Its length is not known: a read ahead of the condition could leave the array."""
    start()
    loss, a = field(values=0.0, name="loss"), qd.ndarray(qd.f64, 3, needs_grad=True)
    source = """@qd.kernel
def k(a: qd.types.ndarray(dtype=qd.f64, ndim=1), n: qd.i32):
    for i in range(7):
        if i < n:
            a[i] *= 0.5 * a[i]
            a[i] = a[i] * a[i]
        if i + 1 < n:
            a[i] *= a[i]
"""
    k = compile_source(source)["k"]
    with pytest.raises(qd.DataAccessError, match="the gradient needs the value of `a`"), qd.ad.Tape(loss=loss):
        k(a, 3)


def test_two_arguments_are_two_arrays_or_refused():
    start()
    loss, inputs = field(values=0.0, name="loss"), [qd.ndarray(qd.f64, 3, needs_grad=True) for _ in range(2)]
    source = """A = qd.types.ndarray(dtype=qd.f64, ndim=1)
@qd.kernel
def k(a: A, b: A):
    for i in range(3):
        a[i] *= b[i] * a[i]
        b[i] = qd.sin(a[i]) * a[i]
        a[i] += b[i] * b[i]
@qd.kernel
def total(a: A, b: A):
    for i in range(3):
        loss[None] += (i + 1) * a[i] ** 2 * b[i]
"""
    names = compile_source(source, loss=loss)
    values = np.random.default_rng().uniform(0.3, 0.9, 6)

    def at(values):
        inputs[0].from_numpy(values[:3])
        inputs[1].from_numpy(values[3:])
        loss[None] = 0.0
        names["k"](*inputs)
        names["total"](*inputs)
        return loss[None]

    with qd.ad.Tape(loss=loss):
        at(values)
    found = np.concatenate([a.grad.to_numpy() for a in inputs])
    np.testing.assert_allclose(
        found, [(at(values + d) - at(values - d)) / 2e-6 for d in np.eye(6) * 1e-6], rtol=1e-6, atol=1e-6
    )
    with pytest.raises(qd.DataAccessError, match="got one array as `a` and `b`"), qd.ad.Tape(loss=loss):
        names["k"](inputs[0], inputs[0])
