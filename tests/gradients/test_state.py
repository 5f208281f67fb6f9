"""What a loop remembers: nothing that the iteration's number tells, nothing that no gradient needs, one word for two arms."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, compile_source, field, ints, right_at_all_levels, start

N, TRIPS = 16, 23
HEAD = "@qd.kernel\ndef k(n: qd.i32):\n    for i in x:\n        v = x[i]\n        w = z[i]\n"
ADVANCE = "            v = qd.sin(v) + 0.1 * x[c % 16]\n"


def build(body: str, n: int = TRIPS):
    """For ``right_at_all_levels``: a kernel over x, z (16 inputs), y (16 outputs), steps (16 integers)."""

    def make(rng: np.random.Generator):
        x, z, y = field(N, rng=rng), field(N, rng=rng), field(N)
        steps = ints(rng.integers(1, 4, N))
        k = compile_source(HEAD + body, x=x, y=y, z=z, steps=steps)["k"]
        return k, (n,), (x, z), (y,)

    return make


def words(body: str, n: int = TRIPS) -> dict[str, int]:
    """Words of one row, by plane, at one level."""
    program = start(ad_checkpoint_levels=1)
    k, args, _, _ = build(body, n)(np.random.default_rng(3))
    plan = k.grad.plan(*args, arch="cpu")  # a device keeps small tapes on chip
    assert program.usage().get("adstack", 0) == 0, "a plan allocates nothing"
    out: dict[str, int] = {}
    for task in plan.tasks:
        out.update({plane: n for plane, n in task.words.items() if n})
    return out


COUNTERS = {
    "a step of two": "        c = 3\n        for j in range(n):\n" + ADVANCE + "            c += 2\n        y[i] = v * c",
    "downwards": "        c = 40\n        for j in range(n):\n" + ADVANCE + "            c -= 1\n        y[i] = v * c",
    "before its use": "        c = 1\n        for j in range(n):\n            c = 1 + c\n" + ADVANCE + "        y[i] = v * c",
    "twice": "        c = 0\n        for j in range(n):\n            c += i\n"
    + ADVANCE
    + "            c += 1\n        y[i] = v * c",
    "by a value of the outer iteration": (
        "        c = i\n        d = steps[i]\n        for j in range(n):\n"
        + ADVANCE
        + "            c += 2 * d + 1\n        y[i] = v * c"
    ),
    "a loop with a step": "        c = 5\n        for j in range(3, 3 * n, 3):\n"
    + ADVANCE
    + "            c += 4\n        y[i] = v * c",
    "a loop downwards": "        c = 5\n        for j in range(n, -1, -1):\n"
    + ADVANCE
    + "            c += 4\n        y[i] = v * c",
    "left by a break": (
        "        c = 0\n        for j in range(n):\n            if v * v + j > 11.3 + i:\n                break\n"
        + ADVANCE
        + "            c += 3\n        y[i] = v * c"
    ),
    "a break behind it": (
        "        c = 0\n        for j in range(n):\n            c += 3\n            if v * v + j > 11.3 + i:\n                break\n"
        + ADVANCE
        + "        y[i] = v * c"
    ),
    "a break in two arms": (
        "        c = 0\n        for j in range(n):\n            if j % 5 == 4:\n                if v * v + j > 11.3 + i:\n"
        "                    break\n" + ADVANCE + "            c += 3\n        y[i] = v * c"
    ),
    "an 8-bit counter that wraps": (
        "        c = qd.cast(100, qd.i8)\n        for j in range(n):\n            v = qd.sin(v) + 0.01 * c\n"
        "            c += qd.cast(9, qd.i8)\n        y[i] = v * c"
    ),
    "a 64-bit counter": (
        "        c = qd.cast(7, qd.i64)\n        for j in range(n):\n            v = qd.sin(v) + 0.01 * c\n"
        "            c += qd.cast(j - j + 2, qd.i64)\n        y[i] = v * c"
    ),
    "none of its iterations run": "        c = 3\n        for j in range(n - 40):\n"
    + ADVANCE
    + "            c += 2\n        y[i] = v * c",
}


@pytest.mark.parametrize("body", COUNTERS.values(), ids=COUNTERS.keys())
def test_a_counter_is_no_state(body):
    assert set(words(body)) == {"f8"}, "v is the only state"
    right_at_all_levels(build(body))


def test_a_counter_of_a_nest_is_no_state_of_either_loop():
    body = """        c = 0
        for j in range(n):
            for l in range(n - 4):
                c += 1
                v = qd.sin(v + 0.02 * c)
        y[i] = v * c"""
    assert words(body, 20) == {"f8": 20 + 16}
    right_at_all_levels(build(body, 6))


def test_a_counter_of_a_while_loop_is_no_state():
    body = "        c = 0\n        while v + c < 17.5 + i:\n" + ADVANCE + "            c += 1\n        y[i] = v * c"
    assert set(words(body)) == {"f8"}
    right_at_all_levels(build(body))


NO_COUNTERS = {
    "only in some iterations": (
        "        c = 0\n        for j in range(n):\n            if j % 3 == i % 3:\n                c += 1\n"
        + ADVANCE
        + "        y[i] = v"
    ),
    "behind a continue": (
        "        c = 0\n        for j in range(n):\n            if j % 3 == i % 3:\n                continue\n            c += 1\n"
        + ADVANCE
        + "        y[i] = v"
    ),
    "by another amount each time": "        c = 0\n        for j in range(n):\n            c += j % 4\n"
    + ADVANCE
    + "        y[i] = v",
    "as often as the outer index says": (
        "        c = 0\n        for j in range(n):\n            for l in range(j):\n                c += 1\n"
        + ADVANCE
        + "        y[i] = v"
    ),
    "multiplied": "        c = 1\n        for j in range(n):\n            c = (c * 5 + 1) % 64\n"
    + ADVANCE
    + "        y[i] = v",
}


@pytest.mark.parametrize("body", NO_COUNTERS.values(), ids=NO_COUNTERS.keys())
def test_what_the_number_of_the_iteration_does_not_tell_is_kept(body):
    assert words(body).get("i4") == TRIPS
    right_at_all_levels(build(body))


def test_a_sum_of_reals_is_kept_because_each_step_rounds():
    body = "        t = 0.0\n        for j in range(n):\n            v = qd.sin(v * t)\n            t += 0.1\n        y[i] = v"
    assert words(body) == {"f8": 2 * TRIPS}
    right_at_all_levels(build(body))


@pytest.mark.parametrize(
    "body",
    [
        "        a = 0.0\n        for j in range(n):\n            a += qd.sin(x[j % 16] * j)\n        y[i] = a",
        "        for j in range(n):\n            v = 2.0 * v - 0.3 * w + 0.1\n            w = v + w * j\n        y[i] = v",
        "        t = 0.0\n        for j in range(n):\n            t += 0.02 * qd.exp(-w * j * 0.1) * x[j % 16]\n        y[i] = t + v",
        "        e = v\n        while e > 0.01:\n            e = e * qd.sin(e) * 0.9\n            w = 0.9 * w\n        y[i] = w",
        "        best = -1.0\n        for j in range(n):\n            best = best * qd.sin(best + v)\n        y[i] = w",
        "        for j in range(16):\n            v = qd.sin(v) * w\n        y[i] = v",
        "        for j in range(4):\n            for l in range(3):\n                v = qd.sin(v) * x[(j + l) % 16]\n"
        "            w = w * v\n        y[i] = w",
    ],
    ids=[
        "a sum of sines",
        "a linear recurrence of two",
        "an additive ray march",
        "what only decides how long",
        "what nobody reads",
        "16 literal iterations",
        "a literal nest",
    ],
)
def test_nothing_is_kept(body):
    assert words(body) == {}
    right_at_all_levels(build(body))


def test_a_wave_over_time_steps_in_one_kernel_keeps_nothing():
    start()
    u = qd.field(qd.f64, shape=(9, 12), needs_grad=True)
    u.from_numpy(np.random.default_rng(2).uniform(-1, 1, (9, 12)))

    @qd.kernel
    def wave(c: qd.f64, steps: qd.i32):
        qd.loop_config(serialize=True)
        for t in range(2, steps):
            for i in range(1, 11):
                u[t, i] = 2.0 * u[t - 1, i] - u[t - 2, i] + c * (u[t - 1, i - 1] - 2.0 * u[t - 1, i] + u[t - 1, i + 1])

    assert wave.grad.plan(0.3, 8).bytes == 0
    Point(wave, (0.3, 8), (u,), (u,)).check()


def test_exclusive_branches_keep_one_state():
    body = """        for j in range(n):
            if j % 2 == i % 2:
                v = qd.sin(v) + 0.1 * w
            else:
                v = qd.tanh(v * w)
        y[i] = v"""
    assert words(body) == {"f8": TRIPS}
    right_at_all_levels(build(body))


def test_checkpoints_hold_what_the_tape_does_not():
    body = "        for j in range(n):\n            w = 0.9 * w + 0.1\n            v = qd.sin(v) + w\n        y[i] = v"
    assert words(body, 100) == {"f8": 100}, "T is v"
    program = start(ad_checkpoint_levels=2, cpu_max_num_threads=1)
    k, args, _, _ = build(body, 100)(np.random.default_rng(1))
    row = k.grad.plan(*args, arch="cpu").rows()[0]
    checkpoints = -(-100 // row["segment"])
    assert row["row_bytes"] == 8 * (2 * checkpoints + row["segment"]), "X is v and w"
    program.close()
    right_at_all_levels(build(body))


def test_17_iterations_and_large_bodies_are_not_written_out():
    step = "            v = qd.sin(v) * w\n"
    assert words("        for j in range(17):\n" + step + "        y[i] = v") == {"f8": 17}
    assert words("        for j in range(16):\n" + step * 60 + "        y[i] = v") == {"f8": 16}


def test_a_literal_loop_inside_a_long_one_leaves_the_outer_states():
    body = """        for j in range(n):
            for l in range(5):
                v = qd.sin(v) * x[(j + l) % 16] + 0.3
        y[i] = v"""
    assert words(body) == {"f8": TRIPS}
    right_at_all_levels(build(body))


def test_a_literal_loop_with_a_break_is_not_written_out():
    body = """        for j in range(8):
            if v + j > 4.4 + 0.1 * i:
                break
            v = qd.sin(v) + 0.2
        y[i] = v"""
    assert words(body) == {"f8": 8}
    right_at_all_levels(build(body))


@pytest.mark.parametrize(("update", "kept"), [("total[j] += v", {}), ("qd.atomic_max(total[j], v)", {"f8": 4})])
def test_atomics_in_a_literal_loop_keep_their_gradients(update, kept):
    """Whose value a maximum is, is decided for the whole loop: such a task is reversed as it stands."""

    def make(rng: np.random.Generator):
        x, w, total = field(N, rng=rng), field(N, rng=rng), field(4)
        source = f"""
@qd.kernel
def k():
    for i in x:
        v = x[i]
        for j in range(4):
            v = qd.sin(v) * w[(i + j) % 16] + 0.4
            {update}
"""
        return compile_source(source, x=x, w=w, total=total)["k"], (), (x, w), (total,)

    right_at_all_levels(make)
    start()
    k = make(np.random.default_rng(1))[0]
    assert {plane: n for task in k.grad.plan(arch="cpu").tasks for plane, n in task.words.items() if n} == kept
