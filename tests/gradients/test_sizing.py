"""What a gradient must remember: exact where the bound can be known, nothing where nothing is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, compile_source, field, ints, start

FRAME = "@qd.kernel\ndef k(n: qd.i32):\n    for i in x:\n        v = x[i]\n"
STEP = "            v = qd.sin(v) + 0.1\n        y[i] = v"


def planned(body: str, n: int, **options):
    """The plan's rows of a kernel over x, y (16), and the kernel."""
    program = start(**options)
    x, y = field(16, rng=np.random.default_rng(1)), field(16)
    ragged = ints(np.cumsum([0, 3, 1, 0, 11, 2, 5, 4, 0, 0, 6, 1, 2, 3, 7, 2, 4]))
    k = compile_source(FRAME + body, x=x, y=y, start=ragged)["k"]
    plan = k.grad.plan(n)
    assert program.usage().get("adstack", 0) == 0, "a plan allocates nothing"
    Point(k, (n,), (x,), (y,)).check()
    assert program.usage().get("adstack", 0) == plan.bytes
    return plan.rows(), plan


@pytest.mark.parametrize(
    "bound,n,trips",
    [
        ("n - i", 40, 40),
        ("i", 40, 15),
        ("min(n, 3)", 1000, 3),
        ("max(n, 3)", 1, 3),
        ("n // 2", 21, 10),
        ("n % 3 + 1", 20, 3),
        ("start[i], start[i + 1]", 0, 11),
        ("i, n", 20, 20),
        ("0, n, 4", 21, 6),
        ("n, 0, -4", 21, 6),
        ("17", 0, 17),
        ("n - 50", 20, 0),
    ],
)
def test_a_bound_is_sized_exactly(bound, n, trips):
    rows, _ = planned(f"        for j in range({bound}):\n{STEP}", n)
    assert [(r["bound"], r["row_bytes"]) for r in rows] == [(trips, 8 * max(1, trips))]


def test_an_inner_triangle_is_sized_by_its_longest_row():
    rows, _ = planned(f"        for k in range(n):\n            for j in range(k):\n    {STEP}", 9)
    assert [r["bound"] for r in rows] == [9, 8]


def test_a_while_loop_has_no_bound_and_says_so():
    rows, _ = planned("        while v > 0.1:\n            v = qd.sin(v) * 0.7\n        y[i] = v", 0)
    assert rows[0]["bound"] is None
    assert "while" in rows[0]["bound_from"]


@pytest.mark.parametrize(
    "body",
    [
        "        for j in range(n):\n            y[i] += qd.sin(x[j % 16] * j)",
        "        a = 0.0\n        for j in range(n):\n            a += qd.sin(x[j % 16] * j)\n        y[i] = a",
        "        a = 0.0\n        for j in range(n):\n            a = 0.9 * a + v * j\n        y[i] = a",
        "        c = 0.0\n        for j in range(n):\n            c += qd.exp(-0.25 * j) * v * 0.01\n        y[i] = c",
        "        while v > 0.01:\n            v *= 0.5\n        y[i] = v",
    ],
    ids=["sum into a field", "sum into a variable", "linear recurrence", "additive ray march", "halving"],
)
def test_a_linear_loop_needs_no_adstack(body):
    _, plan = planned(body, 30)
    assert plan.bytes == 0


def test_a_linear_wave_stencil_needs_no_adstack():
    program = start()
    u = qd.field(qd.f64, shape=(6, 12), needs_grad=True)
    u.from_numpy(np.random.default_rng(2).uniform(-1, 1, (6, 12)))

    @qd.kernel
    def step(t: qd.i32, c: qd.f64):
        for i in range(1, 11):
            u[t, i] = 2.0 * u[t - 1, i] - u[t - 2, i] + c * (u[t - 1, i - 1] - 2.0 * u[t - 1, i] + u[t - 1, i + 1])

    assert step.grad.plan(2, 0.3).bytes == 0
    Point(step, (3, 0.3), (u,), (u,)).check()
    assert program.usage().get("adstack", 0) == 0


def test_exclusive_arms_take_the_maximum_and_siblings_the_sum():
    step = STEP.splitlines()[0]
    arms = f"        if i % 2 == 0:\n            for j in range(17):\n    {step}\n        else:\n"
    arms += f"            for j in range(n):\n    {step}\n        y[i] = v"
    _, plan = planned(arms, 30)
    assert sum(plan.tasks[-1].words.values()) == 30
    _, plan = planned(f"        for j in range(17):\n{step}\n        for j in range(n):\n{STEP}", 30)
    assert sum(plan.tasks[-1].words.values()) == 47


def test_a_plan_runs_nothing():
    start()
    x, y = field(16, rng=np.random.default_rng(1)), field(16)
    k = compile_source(FRAME + f"        for j in range(n):\n{STEP}", x=x, y=y)["k"]
    y.grad.fill(1.0)
    k.grad.plan(12)
    assert not y.to_numpy().any()
    assert not x.grad.to_numpy().any()


def test_fewer_bytes_at_more_levels():
    sizes = [planned(f"        for j in range(n):\n{STEP}", 1000, ad_checkpoint_levels=levels)[1].bytes for levels in (1, 2, 3)]
    assert sizes == [2 * 8 * 1000, 2 * 8 * 64, 2 * 8 * 29]


def test_rows_are_the_workers_not_the_iterations():
    one = planned(f"        for j in range(n):\n{STEP}", 50, cpu_max_num_threads=1)[1].bytes
    two = planned(f"        for j in range(n):\n{STEP}", 50, cpu_max_num_threads=2)[1].bytes
    assert (one, two) == (8 * 50, 2 * 8 * 50)


def test_a_stack_size_of_the_user_leaves_known_bounds_alone():
    rows, _ = planned(f"        for j in range(n):\n{STEP}", 50, ad_stack_size=8)
    assert rows[0]["bound"] == 50
