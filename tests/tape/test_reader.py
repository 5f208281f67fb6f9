"""Bounds of real kernels: what a run finds is never more than what was planned, and the plan is tight where it says so."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))
from gradient_checks import Point, compile_source, field, ints, start
from int_programs import compare

STEP = "v = qd.sin(v) + 0.1"
PATHS = ", the largest over the paths that may be taken"
EXACT = ", exact over the enclosing indices"


@pytest.mark.parametrize("seed", range(60))
def test_no_random_program_runs_further_than_planned(seed):
    for seen, planned, where in compare(seed, breaks=seed % 2 == 0):
        assert planned is None or planned >= seen, where


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_random_program_runs_further_than_planned_slow(part):
    for seed in range(1000 + 50 * part, 1050 + 50 * part):
        for seen, planned, where in compare(seed, breaks=seed % 2 == 0):
            assert planned is None or planned >= seen, where


def loops(body: str, n: int = 10, head: str = "", check: bool = True) -> list[tuple[object, object]]:
    """Bound and source of each loop that keeps something, of a kernel over x, y (16) with ``start`` (17) and ``m`` (0-D)."""
    program = start(cpu_max_num_threads=1)
    x, y = field(16, rng=np.random.default_rng(1)), field(16)
    ragged = ints(np.cumsum([0, 3, 1, 0, 11, 2, 5, 4, 0, 0, 6, 1, 2, 3, 7, 2, 4]))
    m = qd.field(qd.i32, shape=())
    m[None] = 6
    lines = "\n".join("        " + line for line in body.format(step=STEP).splitlines())
    source = f"@qd.kernel\ndef k(n: qd.i32):\n{head}    for i in x:\n        v = x[i]\n{lines}\n        y[i] = v"
    k = compile_source(source, x=x, y=y, start=ragged, m=m)["k"]
    plan = k.grad.plan(n)
    if check:
        Point(k, (n,), (x,), (y,)).check()
        assert program.usage().get("adstack", 0) == plan.bytes
    return [(r["bound"], str(r["bound_from"])) for r in plan.rows()]


CASES = {
    "a counter": ("c = 0\nfor j in range(n):\n    for l in range(c):\n        {step}\n    c += 2", [10, 18]),
    "a counter that counts down": ("c = n\nfor j in range(n):\n    for l in range(c):\n        {step}\n    c -= 3", [10, 10]),
    "a counter with a step of its own": (
        "c = 0\nfor j in range(1, 60, 3):\n    for l in range(c):\n        {step}\n    c += n",
        [20, 190],
    ),
    "two loops deep": (
        "c = 0\nfor j in range(3):\n    for p in range(n):\n        for l in range(c):\n            {step}\n        c += 1",
        [3, 10, 29],
    ),
    "counted where x says so": (
        "c = 0\nfor j in range(n):\n    if x[j] > 0.3:\n        c += 1\nfor l in range(c):\n    {step}",
        [10],
    ),
    "counted until a break": (
        "c = 0\nfor j in range(n):\n    if x[j] > 0.3:\n        break\n    c += 1\nfor l in range(c):\n    {step}",
        [10],
    ),
    "halved": ("c = n\nfor j in range(20):\n    for l in range(c):\n        {step}\n    c = c // 2", [20, 10]),
    "the value before": ("p = 1\nfor j in range(20):\n    for l in range(p):\n        {step}\n    p = j", [20, 18]),
    "the last value": ("p = 1\nfor j in range(20):\n    p = j + n\nfor l in range(p):\n    {step}", [29]),
    "an arm by the index": ("c = 0\nif i < 5:\n    c = i\nelse:\n    c = 2 * i - 7\nfor l in range(c):\n    {step}", [23]),
    "an arm by a value": ("c = 3\nif v > 0.5:\n    c = n\nfor l in range(c):\n    {step}", [10]),
    "guarded reads": ("for l in range(start[i + 1] - start[i] if i < 15 else 13):\n    {step}", [13]),
    "a bound from a bound": ("for l in range(start[start[i] % 16]):\n    {step}", [47]),
    "clamped reals": ("for l in range(min(n, int(v * 50.0))):\n    {step}", [10]),
    "a remainder of a real": ("for l in range(int(v * 50.0) % 7):\n    {step}", [6]),
    "shifts": ("for l in range(1 << (i % 5)):\n    {step}", [16]),
    "narrow types wrap": ("for l in range(qd.cast(n * 30, qd.i8)):\n    {step}", [44]),
    "a wide type": ("for l in range(qd.cast(n, qd.i64) * i):\n    {step}", [150]),
    "triangles": ("for j in range(i, n):\n    for l in range(j, n):\n        {step}", [10, 10]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_bound_is_found_and_the_gradient_is_right(name):
    body, bounds = CASES[name]
    assert [bound for bound, _ in loops(body)] == bounds


HEADS = {
    "a sum": ("    t = m[None] + n\n", [16]),
    "set twice": ("    t = m[None] + n\n    if n > 3:\n        t = 2 * n\n", [20]),
    "counted": ("    t = 0\n    if n > 30:\n        t = 2\n    t += n\n", [10]),
    "in an arm": ("    t = n\n    if m[None] > 7:\n        t = 99\n", [10]),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_variable_of_the_kernel_is_read_like_any_other(name):
    head, bounds = HEADS[name]
    assert [bound for bound, _ in loops("for l in range(t):\n    {step}", head=head)] == bounds


def test_the_source_says_what_is_exact_and_what_is_a_bound():
    assert loops("for l in range(n - i):\n    {step}", check=False) == [(10, "argument" + EXACT)]
    assert loops("for l in range(start[i]):\n    {step}", check=False) == [(47, "array" + EXACT)]
    assert loops("c = 3\nif v > 0.5:\n    c = n\nfor l in range(c):\n    {step}", check=False) == [(10, "argument" + PATHS)]
    assert loops("for l in range(int(v)):\n    {step}", check=False) == [(None, "thinning: a value with a gradient")]
    swapped = "p = 1\nq = n\nfor j in range(4 * n):\n    for l in range(p):\n        {step}\n    r = p\n    p = q\n    q = r"
    assert loops(swapped, check=False)[1] == (None, "thinning: `p` is counted in a loop")


def test_a_bound_that_overflows_is_the_number_that_the_kernel_computes():
    assert loops("for l in range(n * n):\n    {step}", n=65_536) == [(0, "argument")]
    assert loops("for l in range(n * n - 2147483640):\n    {step}", n=46_341)[0][0] == (46_341**2 - 2147483640) % 2**32
