"""Gradients in SIMD lanes that the plan chooses: right, within the plan to the word, and with the same bits in any number of lanes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, compile_source, field, ints, start
from heap_guard import guarded, launch_under

from qdrun.compiler.runtime.jit import host

pytestmark = pytest.mark.skipif(
    not {"+avx2", "+fma"} <= set(host().features.split(",")) and not host().triple.startswith(("aarch64", "arm64")),
    reason="this processor has no vectors for lanes",
)
SIZE = 77  # no multiple of any number of lanes
FRAME = "@qd.kernel\ndef k(n: qd.i32):\n    for i in x:\n        v = x[i] + 0.1 * p[None]\n        w = 0.3\n"
BODIES = {
    "one loop": "for j in range(n):\n    v = qd.sin(v) + 0.1",
    "ragged": "for j in range(lens[i]):\n    v = qd.tanh(v) + 0.2 * p[None]",
    "a nest": (
        "for j in range(n // 4):\n    w = v\n    for l in range(j % 7):\n        w = qd.sin(w) + 0.01 * l\n    v = 0.5 * v + 0.4 * w * w"
    ),
    "a ragged nest": (
        "for j in range(lens[i] % 5):\n    for l in range(lens[(i + j) % 77] % 6):\n        v = qd.cos(v) * w\n"
        "        w = 0.9 * w + 0.1 * v"
    ),
    "arms": (
        "for j in range(n):\n    if (i + j) % 3 == 0:\n        v = qd.sin(v) + 0.1\n    else:\n        v = qd.cos(v) * w\n"
        "        w = 0.9 * w + 0.1 * v"
    ),
    "a loop and a gate": (
        "for j in range(n):\n    v = qd.sin(v) + 0.1\nif x[i] > 1.0:\n    for j in range(n):\n        v = qd.exp(-v) + 0.1 * w"
    ),
    "two planes": "s = i\nfor j in range(n):\n    s = (s * 1103515245 + 12345) % 65536\n    v = qd.sin(v) * (1.5 - v) + 0.000001 * s * v",
    "an early exit": "for j in range(n):\n    v = qd.sin(v) * (1.4 - v)\n    if v < 0.35:\n        break",
    "a while": "while v > 0.05:\n    v = v - 0.02 * qd.sin(v) * v\n    w = w * (1.0 + 0.001 * v)",
}


def build(name: str, **options):
    """The kernel of a body in a fresh program, and a random point to check it at; sums of all iterations go to ``p``."""
    program = start(**{"cpu_max_num_threads": 1, **options})
    rng = np.random.default_rng(5)
    x, y, p = field(SIZE, rng=rng), field(SIZE), field(values=0.7)
    lens = ints(rng.integers(0, 40, SIZE))
    lines = "\n".join(f"        {line}" for line in BODIES[name].splitlines())
    k = compile_source(f"{FRAME}{lines}\n        y[i] = v * w\n", x=x, y=y, p=p, lens=lens)["k"]
    return program, k, Point(k, (40,), (x, p), (y,))


def lanes_in(plan) -> int:
    (lanes,) = {t.lanes for t in plan.tasks if t.rows}
    return lanes


@pytest.mark.parametrize("name", BODIES)
def test_any_number_of_lanes_has_the_same_bits_and_keeps_to_its_rows(name):
    seen = set()
    with guarded() as guard:
        program, k, point = build(name)
        expected = point.check()
        whole = k.grad.plan(40)
        assert lanes_in(whole) >= 4, "lanes are what is tested"
        with pytest.raises(qd.OutOfMemory) as e:
            k.grad.plan(40, budget=0)
        for budget in np.geomspace(e.value.smallest, whole.bytes, 12).round().astype(int):
            plan = k.grad.plan(40, budget=int(budget))
            seen.add(lanes_in(plan))
            guard.arm()
            got = point.gradient(lambda plan=plan: launch_under(k, (40,), plan))
            assert got.tobytes() == expected.tobytes(), f"{lanes_in(plan)} lanes"
            touched = guard.check(program, plan)
            assert sum(touched.values()) > 0
    assert len(seen) >= 3 and 1 in seen


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_heap_is_the_plan_and_one_lane_gives_the_same_gradient(name, threads):
    program, k, point = build(name, cpu_max_num_threads=threads)
    got, plan = point.gradient(), k.grad.plan(40)
    assert program.usage()["adstack"] == plan.bytes
    assert all(row["lanes"] == lanes_in(plan) for row in plan.rows())
    one, k, point = build(name, cpu_max_num_threads=threads, cpu_lanes=1)
    np.testing.assert_allclose(got, point.gradient(), rtol=1e-12, atol=1e-14)
    assert {row["lanes"] for row in k.grad.plan(40).rows()} == {1} and one.usage()["adstack"] < plan.bytes


def test_more_levels_rather_than_rows_that_no_cache_holds():
    """The states of 20,000 iterations take 160,000 bytes in one lane, and fewer in all lanes with a second level."""
    _, k, _ = build("one loop")
    short, long_ = k.grad.plan(1000), k.grad.plan(20_000)
    assert {row["levels"] for row in short.rows()} == {1} and lanes_in(short) == lanes_in(k.grad.plan(40))
    assert {row["levels"] for row in long_.rows()} == {2} and lanes_in(long_) == lanes_in(short)
    _, k, _ = build("one loop", cpu_lanes=1)
    assert long_.bytes < k.grad.plan(20_000).bytes == 160_000


def test_a_memory_limit_leaves_its_room_to_the_program():
    limit = 1 << 14
    program, k, point = build("one loop", memory_limit=limit)
    expected = point.gradient()
    assert program.usage()["adstack"] == k.grad.plan(40).bytes <= limit // 8
    _, k, point = build("one loop")
    assert k.grad.plan(40).bytes > limit // 8
    assert point.gradient().tobytes() == expected.tobytes()


@pytest.mark.parametrize("budget", [None, 400])
def test_an_overflow_of_one_lane_is_raised(budget):
    """A loop whose count only running can tell, and one of whose iterations needs more than its tape has."""
    start(cpu_max_num_threads=1, ad_stack_size=50)
    x, y = field(SIZE, values=np.linspace(1.0, 1.4, SIZE)), field(SIZE)
    source = "@qd.kernel\ndef k():\n    for i in x:\n        v = x[i]\n        while v > 0.5:\n"
    source += "            v -= 0.02 * qd.sin(v)\n        y[i] = v\n"
    k = compile_source(source, x=x, y=y)["k"]
    k()
    y.grad.fill(1.0)
    with pytest.raises(qd.AdStackOverflow, match="ran more iterations than its adstack holds, which is 50"):
        k.grad(budget=budget) if budget else k.grad()
    x.from_numpy(np.linspace(0.6, 0.8, SIZE))
    k.grad(budget=budget) if budget else k.grad()
    assert np.isfinite(x.grad.to_numpy()).all()


def test_lanes_without_an_iteration_that_keeps_states_have_no_rows():
    """One iteration of a counted gate, and few iterations of an array."""
    start(cpu_max_num_threads=4)
    x, y = field(900, values=np.linspace(1.0, 1.4, 900)), field(900)
    m = ints([0] * 500 + [1] + [0] * 399)
    source = "@qd.kernel\ndef k(n: qd.i32):\n    for i in x:\n        if m[i] > 0:\n            v = x[i]\n            for _ in range(n):\n"
    source += "                v = qd.sin(v) + 0.1\n            y[i] = v\n"
    k = compile_source(source, x=x, y=y, m=m)["k"]
    plan = k.grad.plan(200)
    assert (lanes_in(plan), plan.bytes) == (1, 200 * 8)
    point = Point(k, (200,), (x,), (y,))
    got, want = point.gradient(), point.differences()
    assert np.flatnonzero(got).tolist() == [500] and abs(got - want).max() < 1e-6

    few = (
        "@qd.kernel\ndef f(a: qd.types.ndarray(qd.f64, 1), b: qd.types.ndarray(qd.f64, 1)):\n    for i in range(a.shape[0]):\n"
    )
    few += "        v = a[i]\n        for _ in range(50):\n            v = qd.sin(v) + 0.1\n        b[i] = v\n"
    f = compile_source(few)["f"]
    for count in (1, 3, 5, 700):
        a, b = (qd.ndarray(qd.f64, count, needs_grad=True) for _ in range(2))
        a.from_numpy(np.linspace(0.2, 1.1, count))
        plan = f.grad.plan(a, b)
        assert count > 100 or lanes_in(plan) == {1: 1, 3: 4, 5: 8}[count]
        check = Point(f, (a, b), (a,), (b,))
        check.check()
