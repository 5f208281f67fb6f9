"""Loops of every shape: right against differences, the same bits at 1, 2 and 3 checkpoint levels, exactly the planned bytes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import compile_source, field, ints, right_at_all_levels, start

N = 4
NAMES = ("x", "w", "y", "s", "grid", "count", "start", "v2")

# Bodies of one iteration of `for i in x:`; x, w, y (4), s (0-D), grid (4 x 4), count (4 integers), start (5), v2 (4 x 2-vectors), n = 5.
BODIES = {
    "a variable set before a dynamic loop and used after it": """
        a = x[i] * 2.0
        v = w[i]
        for j in range(n):
            v = qd.sin(v * a)
        y[i] = v * a + a * a""",
    "two nested dynamic loops": """
        v = x[i]
        for j in range(n):
            for k in range(j + 1):
                v = qd.sin(v) + 0.1 * w[i]
        y[i] = v""",
    "three nested dynamic loops": """
        v = x[i]
        for j in range(n - 2):
            for k in range(n - 1):
                for l in range(3):
                    v = qd.sin(v * 1.1) + 0.02 * w[i] * l
                v = v * w[i]
        y[i] = v""",
    "a square and a reciprocal in a loop": """
        v = x[i] + 0.5
        for j in range(n):
            v = 1.0 / v + 0.1 * v * v
        y[i] = v""",
    "continue in an argmax loop": """
        best = -1.0
        where = 0
        for j in range(N):
            if x[j] * (1.0 + 0.1 * i) < best:
                continue
            best = x[j] * (1.0 + 0.1 * i)
            where = j
        y[i] = best * w[where]""",
    "alpha blending": """
        e = w[i]
        for j in range(N):
            e = (1.0 - e) * x[j] + e
        y[i] = e""",
    "accumulation through a field": """
        for j in range(n):
            y[i] += qd.sin(x[i] * (j + 1.0)) * w[j % 4]""",
    "rotation in place": """
        a = x[i]
        b = w[i]
        for j in range(n):
            t = a
            a = qd.cos(0.3 * b) * a - qd.sin(0.3) * b
            b = qd.sin(0.3) * t + qd.cos(0.3 * t) * b
        y[i] = a * b""",
    "a vector rebuilt from itself": """
        p = v2[i]
        for j in range(n):
            p = qd.Vector([qd.sin(p.y * x[i]), p.x * w[i] + 0.3])
        y[i] = p.dot(p)""",
    "a matrix carried through a loop": """
        m = qd.Matrix([[x[i], 0.2], [-0.1, w[i]]])
        for j in range(n):
            m = m @ m * 0.5 + 0.1
        y[i] = m.determinant() + m.trace()""",
    "a vector arm and a dynamic arm": """
        if i % 2 == 0:
            p = v2[i] * x[i]
            y[i] = p.dot(p)
        else:
            v = x[i]
            for j in range(n):
                v = qd.sin(v) * w[i]
            y[i] = v""",
    "a triangular loop": """
        v = x[i]
        for j in range(i):
            v = v * v * 0.7 + x[j]
        y[i] = v""",
    "ragged rows": """
        v = w[i]
        for j in range(start[i], start[i + 1]):
            v = qd.sin(v) * x[j % 4] + 0.2
        y[i] = v""",
    "a bound that falls": """
        v = x[i]
        for j in range(n - i):
            v = qd.tanh(v * 1.5) + 0.1 * w[i]
        y[i] = v""",
    "a bound of a minimum": """
        v = x[i]
        for j in range(min(n, 3)):
            v = qd.sin(v) * w[i]
        y[i] = v""",
    "bounds of a quotient and a remainder": """
        v = x[i]
        for j in range(n // 2):
            v = qd.exp(-v) * w[i]
        for j in range(n % 3 + 1):
            v = qd.sin(v) + w[i] * v * v
        y[i] = v""",
    "a bound counted in the kernel": """
        k = 0
        for j in range(n):
            if x[j % 4] > 0.5:
                k += 1
        v = x[i]
        for j in range(k + 1):
            v = qd.sin(v) * w[i] + 0.3
        y[i] = v""",
    "a bound from a field": """
        v = x[i]
        for j in range(count[i]):
            v = qd.sin(v) * w[i] + 0.1
        y[i] = v""",
    "negative and larger steps": """
        v = x[i]
        for j in range(2 * n, -1, -3):
            v = qd.sin(v) + 0.05 * j * w[i]
        for j in range(i, 12, 4):
            v = v * v * 0.6 + 0.02 * j
        y[i] = v""",
    "a while loop": """
        v = x[i] + 1.0
        while v > 0.4:
            v = v * (0.5 + 0.3 * w[i] / 2.0)
        y[i] = v * v""",
    "a while loop with state": """
        v = x[i]
        j = 0
        while j < n + i:
            v = qd.sin(v) + 0.1 * w[i]
            j += 1 + j // 3
        y[i] = v""",
    "break": """
        v = x[i]
        for j in range(20):
            v = v * 1.3 + 0.1 * v * w[i]
            if v > 3.0:
                break
            v = v + 0.01 * j
        y[i] = v * w[i]""",
    "break and continue": """
        v = x[i]
        for j in range(12):
            if j % 3 == 1:
                continue
            v = qd.sin(v) + 0.2 * w[i]
            if v > 0.9 and j > i + 4:
                v = v * v
                break
        y[i] = v""",
    "nested while": """
        v = x[i]
        j = 0
        while j < n:
            u = v
            k = 0
            while True:
                u = u * 0.7 + 0.1 * w[i]
                k += 1
                if k > j or u < 0.15:
                    break
            v = qd.sin(v + u)
            j += 1
        y[i] = v""",
    "loops that run no iteration": """
        v = x[i]
        for j in range(n - 5):
            v = qd.sin(v)
        for j in range(5, i):
            v = v * v
        while v > 100.0:
            v = v * 0.5
        y[i] = v * w[i]""",
    "checkpoints wider than the tape": """
        u = w[i]
        v = x[i]
        for j in range(4 * n):
            u = 0.9 * u + 0.1
            v = qd.sin(v) + u
        y[i] = v""",
    "a variable changed in an inner loop and read after it": """
        u = x[i]
        v = w[i]
        for j in range(n):
            for k in range(3):
                u = qd.sin(u) + 0.2 * v
            v = qd.tanh(v * u) + 0.5
        y[i] = u * v""",
    "several siblings": """
        v = x[i]
        for j in range(n):
            v = qd.sin(v) * w[i] + 0.2
        u = v * v
        for j in range(n + 2):
            u = qd.cos(u) + v
        for j in range(3):
            for k in range(2):
                v = v * u * 0.5
            for k in range(j):
                u = qd.sin(u * v)
        y[i] = u + v""",
    "a loop in each arm": """
        v = x[i]
        if w[i] > 0.7:
            for j in range(n):
                v = qd.sin(v) * w[i]
        else:
            for j in range(n + 3):
                v = 0.5 * v * v + 0.1
            for j in range(2):
                v = qd.exp(-v)
        y[i] = v""",
    "a condition of the state": """
        v = x[i]
        for j in range(n + 3):
            if v > 0.6:
                v = qd.sin(v * v)
            elif v < 0.3:
                v = v + 0.5 * w[i]
            else:
                v = 0.9 * v + 0.1
        y[i] = v""",
    "an index of the state": """
        v = w[i]
        k = i
        for j in range(n):
            v = qd.sin(v) + x[k]
            k = (3 * k + 1) % 4
        y[i] = v * x[k]""",
    "a field read at every step": """
        v = x[i]
        for j in range(n):
            v = v * grid[i, j % 4] + qd.sin(grid[j % 4, i] * v)
        y[i] = v""",
    "an atomic sum at every step": """
        v = x[i]
        for j in range(n):
            v = qd.sin(v) + 0.1
            s[None] += v * w[j % 4]
        y[i] = v""",
}
FRAME = "@qd.kernel\ndef k(n: qd.i32):\n    for i in x:"


def make(source, rng, n=5):
    """A kernel over the common fields, at a point."""
    fields = {
        "x": field(N, rng=rng),
        "w": field(N, rng=rng),
        "y": field(N),
        "s": field(),
        "grid": field(N, N, rng=rng),
        "count": ints([3, 0, 6, 1]),
        "start": ints([0, 3, 3, 8, 9]),
        "v2": qd.Vector.field(2, qd.f64, shape=N, needs_grad=True),
        "z": field(N),
    }
    fields["v2"].from_numpy(rng.uniform(0.2, 1.2, (N, 2)))
    k = compile_source(source, N=N, **fields)["k"]
    return k, (n,), [fields[f] for f in ("x", "w", "grid", "v2")], [fields[f] for f in ("y", "s", "z")]


@pytest.mark.parametrize("name", BODIES)
def test_a_loop_has_the_right_gradient_at_every_level(name):
    right_at_all_levels(lambda rng: make(FRAME + BODIES[name], rng))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 9, 33])
@pytest.mark.parametrize("name", BODIES)
def test_a_loop_has_the_right_gradient_at_other_lengths(name, n):
    right_at_all_levels(lambda rng: make(FRAME + BODIES[name], rng, n), tolerance=2e-5)


KERNELS = {
    "a sum crosses two tasks": """
    t = 0.0
    for i in x:
        t += x[i] * w[i]
    s[None] = t * t""",
    "a temporary computed from a temporary": """
    t = 0.0
    for i in x:
        t += x[i]
    m = t / 4.0
    for i in x:
        y[i] = (x[i] - m) * (x[i] - m) * w[i]""",
    "a temporary in a loop bound": """
    m = n * 2
    for i in x:
        v = x[i]
        for j in range(m - i):
            v = qd.sin(v) + 0.1 * w[i]
        y[i] = v""",
    "a serial task": """
    v = x[0]
    while v < 3.0:
        v = v * 1.3 + w[1] * 0.1
    s[None] = v * v
    if n > 3:
        for j in range(n):
            v = qd.sin(v) * x[2] + w[3]
        y[1] = v""",
    "several tasks": """
    for i in x:
        y[i] = qd.sin(x[i]) * 2.0
    for i in x:
        z[i] = 3.0 * y[i] + w[i] * w[i]
    for i in x:
        s[None] += 0.5 * z[i]""",
    "several axes": """
    for i, j in qd.ndrange(4, n - 1):
        v = grid[i, j] * x[i]
        for k in range(i + j):
            v = qd.sin(v) + w[j] * 0.1
        s[None] += v
        y[i] += v * v""",
    "axes with offsets": """
    for i, j in qd.ndrange((1, 4), (0, i32_two(n))):
        y[i] += grid[i - 1, j] * grid[i, j] * x[j]""",
    "a loop made serial": """
    qd.loop_config(serialize=True)
    for i in range(1, 4):
        v = x[i]
        for j in range(n):
            v = qd.sin(v) + 0.1
        y[i] += 0.5 * y[i - 1] + v * w[i]""",
    "a loop made serial over two axes": """
    qd.loop_config(serialize=True)
    for i, j in qd.ndrange(3, 3):
        grid[i + 1, j + 1] += 0.5 * grid[i, j] + 0.2 * grid[i, j + 1]
    for i in x:
        y[i] = grid[i, 3] * w[i]""",
    "a scatter": """
    for i in x:
        v = x[i]
        for j in range(count[i]):
            v = v * v + 0.2
            y[(i + j) % 4] += v * w[j % 4]""",
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_of_several_tasks_has_the_right_gradient_at_every_level(name):
    source = f"@qd.func\ndef i32_two(n):\n    return n - 2\n\n@qd.kernel\ndef k(n: qd.i32):{KERNELS[name]}"
    right_at_all_levels(lambda rng: make(source, rng))


def test_accumulating_through_a_field_and_through_a_local_gives_the_same_gradient():
    local = """
        t = 0.0
        for j in range(n):
            t += qd.sin(x[i] * (j + 1.0)) * w[j % 4]
        y[i] += t"""
    one = right_at_all_levels(lambda rng: make(FRAME + BODIES["accumulation through a field"], rng))
    two = right_at_all_levels(lambda rng: make(FRAME + local, rng))
    np.testing.assert_allclose(one, two, rtol=1e-14)


def test_a_vector_carried_through_a_loop_is_the_same_as_its_scalars():
    scalars = """
        a = v2[i][0]
        b = v2[i][1]
        for j in range(n):
            t = a
            a = qd.sin(b * x[i])
            b = t * w[i] + 0.3
        y[i] = a * a + b * b"""
    one = right_at_all_levels(lambda rng: make(FRAME + BODIES["a vector rebuilt from itself"], rng))
    two = right_at_all_levels(lambda rng: make(FRAME + scalars, rng))
    np.testing.assert_allclose(one, two, rtol=1e-13)


@pytest.mark.parametrize("value", [-0.7, 0.3, 1.16, 2.0])
def test_a_reciprocal_of_a_square_is_right_at_several_initial_values(value):
    def build(rng):
        made = make(
            FRAME + "\n        v = x[i]\n        for j in range(n):\n            v = 1.0 / (v * v + 0.5)\n        y[i] = v", rng
        )
        made[2][0].fill(value)
        return made

    right_at_all_levels(build)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_checkpoints_hold_more_than_the_tape_where_a_replay_needs_more(levels):
    start(ad_checkpoint_levels=levels)
    k, args, _, _ = make(FRAME + BODIES["checkpoints wider than the tape"], np.random.default_rng(0))
    (loop,) = k.grad.plan(*args).tasks[-1].loops
    p = loop.plan
    assert loop.row_bytes == 8 * ((p.C1 + p.C2) * 2 + p.tape_slots * 1)


@pytest.mark.parametrize(
    ("begin", "end", "step"),
    [
        (2**62, -(2**62) - 10, 1),
        (-(2**62) - 10, 2**62, -1),
        (-(2**62) - 10, 2**62, -2),
        (2**63 - 4, 2**63 - 1, 1),
        (-(2**63) + 5, -(2**63), -2),
    ],
)
def test_a_range_of_64_bits_whose_span_wraps(begin, end, step):
    """The difference of the ends does not fit 64 bits, or the ends lie at the end of the type."""
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1, cpu_lanes=1)
    x = qd.field(qd.f64, shape=4, needs_grad=True)
    y = qd.field(qd.f64, shape=4, needs_grad=True)
    start = np.linspace(0.1, 0.9, 4)
    x.from_numpy(start)

    @qd.kernel
    def k(a: qd.i64, b: qd.i64):
        for i in x:
            v = x[i]
            n = 0
            for _ in range(2):
                for _ in range(a, b, step):
                    n += 3
                    v = qd.sin(v)
                v = v * (1.0 + 0.1 * n)
            y[i] = v

    k(begin, end)
    v, slope, n = start.copy(), np.ones(4), 0
    for _ in range(2):
        for _ in range(begin, end, step):
            n, slope, v = n + 3, slope * np.cos(v), np.sin(v)
        slope, v = slope * (1.0 + 0.1 * n), v * (1.0 + 0.1 * n)
    np.testing.assert_allclose(y.to_numpy(), v, rtol=1e-14)
    y.grad.fill(1.0)
    k.grad(begin, end)
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-13)
    assert {row["bound"] for row in k.grad.plan(begin, end).rows()} == {len(range(begin, end, step))}
