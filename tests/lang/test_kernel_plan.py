"""What a compiled kernel keeps in its program, what a gradient could do with less, and messages that carry the arithmetic."""

from __future__ import annotations

import re

import numpy as np
import pytest

import qdrun as qd


def growing(levels: int = 1, **options):
    """A program with a kernel whose gradient keeps n states a row, on two threads."""
    program = qd.init(default_fp=qd.f64, cpu_max_num_threads=2, cpu_lanes=1, ad_checkpoint_levels=levels, **options)
    x = qd.field(qd.f64, shape=64, needs_grad=True)
    y = qd.field(qd.f64, shape=64, needs_grad=True)
    x.from_numpy(np.linspace(0.1, 0.9, 64))

    @qd.kernel
    def grow(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = qd.sin(v) + 0.4
            y[i] = v

    return program, grow, x, y


def gradient(grow, x, y, n, **options) -> np.ndarray:
    grow(n)
    x.grad.fill(0.0)
    y.grad.fill(1.0)
    grow.grad(n, **options)
    return x.grad.to_numpy()


def test_a_kernels_plan_is_what_the_program_then_holds():
    program, grow, x, y = growing()

    @qd.kernel
    def mean() -> qd.f64:
        s = 0.0
        for i in x:
            s += x[i]
        for i in y:
            y[i] = s
        return s / 64

    plans = [grow.plan(5), mean.plan()]
    assert [plan.kernel for plan in plans] == ["grow", "mean"]
    assert [plan.temporaries > 0 for plan in plans] == [False, True]
    assert all(plan.code > 0 and plan.bytes == plan.context + plan.temporaries for plan in plans)
    usage = program.usage()
    assert usage["context"] == sum(plan.context for plan in plans) and usage["temporaries"] == plans[1].temporaries
    grow(5)
    mean()
    assert program.usage() == usage and program.kernels() == plans
    assert program.peaks() == usage | {"code": sum(plan.code for plan in plans)}
    assert [row["kind"] for row in plans[1].rows()] == ["context", "temporaries", "code"]
    assert [row["bytes"] for row in plans[1].rows()] == [plans[1].context, plans[1].temporaries, plans[1].code]
    assert plans[0].to_json()["bytes"] == plans[0].bytes


def test_gradients_and_methods_have_plans_too():
    program = qd.init(default_fp=qd.f64)

    @qd.data_oriented
    class Box:
        def __init__(self):
            self.x = qd.field(qd.f64, shape=4, needs_grad=True)
            self.y = qd.field(qd.f64, shape=4, needs_grad=True)

        @qd.kernel
        def square(self, n: qd.i32):
            for i in self.x:
                v = self.x[i]
                for _ in range(n):
                    v = v * v
                self.y[i] = v

    box = Box()
    assert box.square.plan(3).kernel == "square"
    assert box.square.grad.plan(40).bytes == box.square.grad.remedies(40)["now"].bytes > 0
    assert [plan.kernel for plan in program.kernels()] == ["square"], "a gradient that was planned only is not compiled"
    box.square.grad.prepare(40)
    assert [plan.kernel for plan in program.kernels()] == ["square", "square_grad"]
    assert sum(plan.context for plan in program.kernels()) == program.usage()["context"]


def test_peaks_remember_what_was_given_back():
    program = qd.init()
    kept = program.allocate(1000, "snapshots")
    program.device.free(kept)
    program.device.free(program.allocate(400, "snapshots"))
    assert "snapshots" not in program.usage() and program.peaks() == {"snapshots": 1000}


@pytest.mark.parametrize("n", [7, 300])
def test_every_remedy_gives_the_bytes_that_it_promises_and_the_same_gradient(n):
    _, grow, x, y = growing()
    now = grow.grad.remedies(n)
    assert list(now) == [
        "now",
        "ad_checkpoint_levels=2",
        "ad_checkpoint_levels=3",
        "cpu_max_num_threads=1",
        "the smallest budget",
    ]
    want = gradient(grow, x, y, n)
    assert now["now"].bytes == 2 * n * 8 and now["cpu_max_num_threads=1"].bytes == n * 8
    for levels in (2, 3):
        program, again, x, y = growing(levels)
        assert np.array_equal(gradient(again, x, y, n), want)
        assert program.usage()["adstack"] == now[f"ad_checkpoint_levels={levels}"].bytes
    least = now["the smallest budget"].bytes
    program, again, x, y = growing()
    assert np.array_equal(gradient(again, x, y, n, budget=least), want)
    assert program.usage()["adstack"] == least == min(plan.bytes for plan in now.values())
    with pytest.raises(qd.OutOfMemory):
        again.grad.plan(n, budget=least - 1)


def test_remedies_are_told_where_the_budget_of_the_program_is_too_small():
    program, grow, _, _ = growing(memory_budget=1)
    found = grow.grad.remedies(300)
    assert "now" not in found and found["the smallest budget"].bytes > 0
    assert program.usage().get("adstack", 0) == 0


# ---- messages
def test_a_heap_that_does_not_fit_is_refused_with_the_arithmetic_and_a_budget_that_works():
    program, grow, x, y = growing(memory_limit=20_000)
    with pytest.raises(qd.OutOfMemory) as error:
        gradient(grow, x, y, 10_000)
    message = str(error.value)
    assert message.startswith("the gradient `grow_grad` needs an adstack heap of 160,000 bytes: adstack needs 160,000 bytes;")
    assert re.search(r"at .*test_kernel_plan\.py:\d+: 160,000 = 2 rows \(.*\) x 10000 x 1 \(tape of test_kernel_plan", message)
    assert "10000 iterations (argument)" in message
    budget = int(re.search(r"`budget=` of (\d+) bytes or more", message)[1])
    assert budget == error.value.smallest
    got = gradient(grow, x, y, 10_000, budget=budget)
    assert program.usage()["adstack"] <= budget
    assert np.array_equal(got, gradient(*growing()[1:], 10_000))


def test_a_limit_that_no_budget_fits_names_one_that_works():
    program, grow, x, y = growing()
    gradient(grow, x, y, 1)
    held = program.device.used_bytes - program.usage().get("adstack", 0)
    _, grow, x, y = growing(memory_limit=held + 100)
    with pytest.raises(qd.OutOfMemory) as error:
        gradient(grow, x, y, 10_000)
    limit, budget = map(int, re.search(r"a memory_limit of (\d+) bytes or more and `budget=(\d+)`", str(error.value)).groups())
    assert "the same gradient in more time" not in str(error.value), "no budget helps"
    program, grow, x, y = growing(memory_limit=limit)
    got = gradient(grow, x, y, 10_000, budget=budget)
    assert program.peak_bytes == limit and np.array_equal(got, gradient(*growing()[1:], 10_000))
    with pytest.raises(qd.OutOfMemory):
        gradient(*growing(memory_limit=limit - 1)[1:], 10_000, budget=budget)


def test_a_refusal_of_a_loop_without_a_bound_says_so():
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
    x = qd.field(qd.f64, shape=2, needs_grad=True)
    y = qd.field(qd.f64, shape=2, needs_grad=True)

    @qd.kernel
    def fall(p: qd.f64):
        for i in x:
            v = x[i]
            while v > p:
                v = qd.sin(v) * 0.99
            y[i] = v

    with pytest.raises(qd.OutOfMemory, match=r"x 2392 bytes, an unknown number of iterations \(thinning: while\)"):
        fall.grad.plan(0.5, budget=100)


@pytest.mark.parametrize("slots", [8, 0])
def test_an_overflow_says_how_many_iterations_were_planned_and_how_that_is_counted(slots):
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1, ad_stack_size=slots)
    x = qd.field(qd.f64, shape=2, needs_grad=True)
    y = qd.field(qd.f64, shape=2, needs_grad=True)
    x.fill(1.0)
    y.grad.fill(1.0)

    @qd.kernel
    def fall(n: qd.i32, p: qd.f64):
        for i in x:
            v = x[i]
            j = 0
            while j * p < n:
                v = v * (0.99 + 0.001 * v)
                j += 1
            y[i] = v

    with pytest.raises(qd.AdStackOverflow) as error:
        fall.grad(1_000_000, 1.0)
    planned = "8 (ad_stack_size: while)" if slots else "1,000,000 = 100 checkpoints x 2500 iterations x 4 (thinning: while)"
    assert f"ran more iterations than its adstack holds, which is {planned}\n" in str(error.value)
    x.grad.fill(0.0)
    fall.grad(2, 1.0)  # the program goes on
    v = 0.99 + 0.001
    assert x.grad.to_numpy() == pytest.approx((0.99 + 0.002) * (0.99 + 0.002 * v))
