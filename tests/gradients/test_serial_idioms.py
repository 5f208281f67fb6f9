"""Idioms of loops in order: one iteration, exits of serial and of unrolled loops, assigned indices, two buffers. Values and gradients."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, compile_source, field, start

# name: (lines of the kernel over x (8), y (8), grid (3, 8), s (0-D) with n = 2, what is differentiated)
PROGRAMS = {
    "a loop of one iteration": """
        for _ in range(1):
            for i in range(7):
                y[i + 1] = y[i] * x[i]
                s[None] += y[i]
        """,
    "a range of one argument": """
        for _ in range(n, n + 1):
            for i in range(7):
                y[i + 1] = y[i] * x[i]
        """,
    "a nest of one iteration": """
        for _, k in qd.ndrange(1, (3, 4)):
            for i in range(7):
                y[i + 1] = y[i] * x[k]
        """,
    "a constant of one": """
        for _ in range(ONE):
            for i in range(7):
                y[i + 1] = y[i] * x[i]
        """,
    "a static value of one": """
        for _ in range(qd.static(ONE * 3 - 2)):
            for i in range(7):
                y[i + 1] = y[i] * x[i]
        """,
    "a field of one element": """
        for _ in alone:
            for i in range(7):
                y[i + 1] = y[i] * x[i]
        """,
    "an axis of one index": """
        for b, i in qd.ndrange(1, 8):
            y[i] = x[i] * x[i]
            s[None] += y[i]
        """,
    "a sum that is read behind it": """
        for _ in range(1):
            for i in range(8):
                s[None] += x[i]
            y[0] = s[None] * s[None]
        """,
    "a tridiagonal solve": """
        qd.loop_config(serialize=True)
        for _ in range(1):
            y[0] = 0.3 / x[0]
            for i in range(1, 8):
                y[i] = 0.3 / (x[i] + 2.0 - 0.2 * y[i - 1])
            grid[0, 7] = y[7]
            for j in range(7):
                grid[0, 6 - j] = y[6 - j] - y[6 - j] * grid[0, 7 - j]
        """,
    "a tridiagonal solve for each row": """
        for b in range(3):
            grid[b, 0] = 0.3 / (x[b] + 1.0)
            for i in range(1, 8):
                grid[b, i] = 0.3 / (x[i] + 2.0 - 0.2 * grid[b, i - 1])
        """,
    "an endless loop that returns": """
        for i in range(3):
            y[i] = first_over(i, 1.2)
        """,
    "a return of a loop in order": """
        qd.loop_config(serialize=True)
        for j in range(8):
            y[j] = x[j] * x[j]
            if x[j] > 0.7:
                return j
        for i in x:
            y[i] += x[i]
        return -1
        """,
    "a return that is not met": """
        for _ in range(1):
            for j in range(8):
                if x[j] > 9.0:
                    return j
        for i in x:
            y[i] += x[i] * x[i]
        return -1
        """,
    "a break of an unrolled loop": """
        for i in range(8):
            v = y[i] * 0.1
            for k in qd.static(range(5)):
                v += x[i] * x[k]
                if v > 0.9:
                    break
                v *= 1.5 * v
            grid[0, i] = v
        """,
    "a continue of an unrolled loop": """
        for i in range(8):
            for k in qd.static(range(4)):
                if x[k] > 0.7:
                    continue
                y[i] += x[i] * x[k]
            y[i] += x[i]
        """,
    "both in two unrolled loops": """
        for i in range(8):
            v = 0.1
            for k in qd.static(range(3)):
                for m in qd.static(range(3)):
                    if x[m] > 0.8:
                        continue
                    if x[m] * x[i] > 0.6:
                        break
                    v += v * x[i] * x[m] * (k + 1)
                if v > 2.0:
                    break
            y[i] = v
        """,
    "a break of an unrolled loop of the kernel": """
        for k in qd.static(range(5)):
            s[None] += x[k] * x[k]
            if x[k] > 0.8:
                break
        """,
    "an unrolled loop with a return": """
        for i in range(8):
            y[i] = unrolled_return(i)
        """,
    "an assigned index": """
        for i in range(8):
            i = 7 - i
            y[i] = x[i] * x[i]
        """,
    "an assigned index of a nest": """
        for i, j in qd.ndrange(3, 8):
            j = 7 - j
            grid[i, j] = x[j] * x[j]
            i += 1
        """,
    "an assigned index of a loop in order": """
        for i in range(1):
            for j in range(8):
                k = j
                j = j // 2
                y[k] = x[j] * x[j]
        """,
    "a changed index vector": """
        for I in qd.grouped(grid):
            I[1] = 7 - I[1]
            grid[I] = x[I[1]] * x[I[1]]
        """,
    "two buffers": """
        for i in range(8):
            grid[1 - (n - 2), i] = qd.sin(grid[n - 2, i])
        """,
    "two buffers by a remainder": """
        for i in range(8):
            grid[(n + 1) % 2, i] = qd.sin(grid[n % 2, i]) * x[i]
        """,
    "two buffers by a bit": """
        for i in range(8):
            grid[(n & 1) ^ 1, i] = qd.sin(grid[n & 1, i]) * x[i]
        """,
    "a stopped value of a Python function": """
        for i in x:
            y[i] = x[i] * x[i] + half(x[i]) - half(x[i])
        """,
}


def lines_of(text):
    return dedent(text).strip().splitlines()


def build(text, **options):
    lines = lines_of(text)
    start(cpu_max_num_threads=1, **options)
    r = np.random.default_rng(11)
    f = {name: field(8, rng=r, name=name) for name in ("x", "y")} | {"grid": field(3, 8, rng=r, name="grid")}
    f["s"] = field(values=0.4, name="s")
    names = {**f, "alone": field(1, name="alone"), "ONE": 1, "half": lambda v: qd.stop_grad(v) * 0.5}
    funcs = compile_source(
        "@qd.func\ndef first_over(i, limit):\n    a = 0.1\n    j = i\n    while True:\n        a += x[j]\n        if a > limit:\n"
        "            return a * x[j]\n        j = (j + 1) % 8\n\n"
        "@qd.func\ndef unrolled_return(i):\n    for k in qd.static(range(4)):\n        if x[k] > 0.9:\n            return x[k] * x[i]\n"
        "        if x[k] < 0.5:\n            continue\n        if x[k] * x[i] > 0.5:\n            break\n    return x[i] * x[i]\n",
        **names,
    )
    names |= {key: funcs[key] for key in ("first_over", "unrolled_return")}
    returns = " -> qd.i32" if any(line.strip().startswith("return") for line in lines) else ""
    source = f"@qd.kernel\ndef k(n: qd.i32){returns}:\n" + "\n".join("    " + line for line in lines)
    return compile_source(source, **names)["k"], f


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_gradient_equals_differences(name):
    k, f = build(PROGRAMS[name])
    Point(k, (2,), list(f.values()), list(f.values())).check()


def test_a_return_ends_the_kernel_and_gives_its_value():
    k, f = build(PROGRAMS["a return of a loop in order"])
    x, y = f["x"], f["y"]
    x.from_numpy([0.1, 0.2, 0.8, 0.1, 0.1, 0.1, 0.1, 0.1])
    y.fill(0.0)
    assert k(2) == 2
    np.testing.assert_allclose(y.to_numpy(), [0.01, 0.04, 0.64, 0, 0, 0, 0, 0])
    x.fill(0.1)
    y.fill(0.0)
    assert k(2) == -1
    np.testing.assert_allclose(y.to_numpy(), 0.11)
    x[3] = 0.9
    assert k(2) == 3  # whatever the launch before did


def test_returns_under_conditions_skip_what_follows():
    start()
    x = field(4, values=[1.0, 2.0, 3.0, 4.0])

    @qd.kernel
    def k(n: qd.i32) -> qd.f64:
        if n == 0:
            return 0.5
        for i in x:
            x[i] += 1.0
        if n == 1:
            if x[0] > 1.5:
                return x[0]
        for i in x:
            x[i] *= 2.0
        total = 0.0
        for i in x:
            total += x[i]
        return total

    assert k(0) == 0.5
    assert x.to_numpy().tolist() == [1, 2, 3, 4]
    assert k(1) == 2.0
    assert x.to_numpy().tolist() == [2, 3, 4, 5]
    assert k(2) == 36.0
    assert x.to_numpy().tolist() == [6, 8, 10, 12]


def test_each_trial_of_a_batch_returns_by_itself():
    with start(batch=3):
        x, y = field(4, name="x"), field(4, name="y")

        @qd.kernel
        def k() -> qd.i32:
            qd.loop_config(serialize=True)
            for j in range(4):
                if x[j] > 0.5:
                    return j
            for i in y:
                y[i] = 1.0
            return -1

        values = np.zeros((3, 4))
        values[1, 2] = 1.0
        x.from_numpy(values)
        assert np.asarray(k()).tolist() == [-1, 2, -1]
        assert y.to_numpy().sum(axis=-1).tolist() == [4.0, 0.0, 4.0]


STEPS = {
    "one loop": (
        """
        for t in range(4):
            for i in range(8):
                time[t + 1, i] = qd.sin(time[t, i])
        """,
        "t",
    ),
    "a nest": (
        """
        for t, i in qd.ndrange(4, 8):
            time[t + 1, i] = qd.sin(time[t, i])
        """,
        "t",
    ),
    "a neighbour": (
        """
        for step in range(1, 5):
            for i in range(8):
                time[step, i] = qd.sin(time[step - 1, (i + 1) % 8])
        """,
        "step",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_time_steps_in_the_outermost_loop_get_advice_that_works(name):
    text, index = STEPS[name]
    lines = lines_of(text)
    start(cpu_max_num_threads=1)
    time = field(5, 8, rng=np.random.default_rng(0), name="time")

    def make(body):
        return compile_source("@qd.kernel\ndef k():\n" + "\n".join("    " + line for line in body), time=time)["k"]

    with pytest.raises(qd.DataAccessError) as e:
        make(lines).grad()
    advice = f"put qd.loop_config(serialize=True) before it, or launch the kernel once for each `{index}`, which is its argument then"
    assert advice in str(e.value)
    Point(make(["qd.loop_config(serialize=True)", *lines]), (), [time], [time]).check()


@pytest.mark.parametrize("index", ["(n + 2) % 2", "n & 1", "(n * 3) % 2", "n % 2 * 1"])
def test_buffers_that_may_be_one_are_refused(index):
    k, _ = build(f"for i in range(8):\n    grid[{index}, i] = qd.sin(grid[n % 2, i])")
    with pytest.raises(qd.DataAccessError, match="the gradient needs the value of `grid` read here"):
        k.grad(2)
