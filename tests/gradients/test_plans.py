"""What plans promise, one by one: slots used are slots planned, how often a body runs again, overflows that leave the program usable."""

from __future__ import annotations

import math
import sys
from math import ceil
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import compile_source, field, ints, start
from harness import watched
from heap_guard import guarded, launch_under, plan_with

from qdrun.compiler.tape.levels import FOREVER, LoopPlan, fixed_capacity, full_tape, thinning, with_levels

HEAD = "@qd.kernel\ndef k(n: qd.i32, m: qd.i32):\n    for i in x:\n        v = x[i]\n        u = 0.3\n"
TAIL = "\n        y[i] = v"
CHAIN = "        for j in range(n):\n            v = qd.sin(v) + 0.1"
WHILE = "        c = 0\n        while c < n:\n            c += 1\n            v = qd.sin(v) * (1.0 + 1e-3 * c)"


def at_levels(levels, segment=None):
    """Every loop with that many levels."""
    return lambda s, k, source: with_levels(k, levels, segment, s.words("ck1"), s.words("tape"), source)


def fixed(plan):
    """Every loop with this plan."""
    return lambda s, k, source: plan


class Run:
    """A kernel ``k(n, m)`` over x and y, on the interpreter or compiled, whose gradient runs under given plans."""

    def __init__(self, body, size=1, arch=qd.python, **names) -> None:
        self.program = start(arch=arch, cpu_max_num_threads=1)
        self.x, self.y = field(size, rng=np.random.default_rng(5)), field(size)
        data = {name: ints(values, name) for name, values in names.items()}
        self.k = compile_source(HEAD + body + TAIL, x=self.x, y=self.y, **data)["k"]

    def gradient(self, n, choose=None, m=0):
        """The gradient, the plan that it ran under, and what the interpreter saw."""
        self.x.grad.fill(0.0)
        self.y.grad.fill(1.0)
        with watched() as watch:
            if choose is None:
                plan = self.k.grad.plan(n, m)
                self.k.grad(n, m)
            else:
                plan = plan_with(self.k, (n, m), choose)
                launch_under(self.k, (n, m), plan)
        watch.check(plan)
        return self.x.grad.to_numpy().copy(), plan, watch


def slots_of(plan):
    return {(t.position, k.name): p.plan.slots(k.kind) for t in plan.tasks for p in t.loops for k in p.stacks}


# ---- slots and runs of bodies
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_a_loop_uses_exactly_the_slots_of_its_plan(levels):
    run = Run(CHAIN)
    for k in (1, 2, 7, 30, 64, 100, 343):
        want = run.gradient(k, at_levels(1))[0]
        got, plan, watch = run.gradient(k, at_levels(levels))
        assert watch.slots == {s: n for s, n in slots_of(plan).items() if n}
        assert np.array_equal(got, want)
        words = sum(plan.tasks[-1].words.values())
        assert words <= {1: k, 2: 2 * k**0.5 + 1, 3: 3 * k ** (1 / 3) + 1.5}[levels]


@pytest.mark.parametrize(("levels", "most"), [(1, 0), (2, 1), (3, 2)])
def test_each_level_runs_the_body_at_most_once_more(levels, most):
    _, _, watch = Run(CHAIN).gradient(600, at_levels(levels))
    again = watch.runs["sin"] - 600  # the last replay needs only the operand of the sine: sines are run by sweeps alone
    assert 0.75 * most * 600 <= again <= most * 600


def test_two_levels_run_all_but_the_last_segment_again_and_of_each_segment_all_but_its_last_iteration():
    run, k = Run(CHAIN), 97
    for segment in (1, 2, 5, 31, 64, 96, 97):
        _, _, watch = run.gradient(k, at_levels(2, segment))
        assert watch.runs["sin"] == k + (k - segment) - (ceil(k / segment) - 1)


def test_the_last_segment_is_not_run_again():
    _, _, watch = Run(CHAIN).gradient(32, at_levels(2, 32))
    assert watch.runs["sin"] == 32


def test_more_memory_buys_fewer_runs():
    run, before = Run(CHAIN), None
    for segment in (16, 20, 30, 45, 70, 100, 150, 200):
        _, plan, watch = run.gradient(200, at_levels(2, segment))
        here = sum(plan.tasks[-1].words.values()), -watch.runs["sin"]
        assert before is None or here > before
        before = here


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_depths_add_and_do_not_multiply(depth, levels):
    lines = [f"{'    ' * (2 + d)}for j{d} in range(n):" for d in range(depth)]
    run = Run("\n".join([*lines, "    " * (2 + depth) + "v = qd.sin(v) + 0.1"]))
    want = run.gradient(9, at_levels(1))[0]
    got, plan, watch = run.gradient(9, at_levels(levels, 3 if levels > 1 else None))
    assert np.array_equal(got, want)
    assert watch.runs["sin"] <= depth * levels * 9**depth
    assert sum(plan.tasks[-1].words.values()) <= depth * 9


def test_ragged_and_triangular_nests_use_exactly_the_plan():
    body = "        for j in range(first[i], first[i + 1]):\n            for l in range(n - i):\n                v = qd.sin(v) + 0.1"
    run = Run(body, size=8, first=[0, 5, 6, 6, 9, 20, 21, 22, 30])
    want = run.gradient(8)[0]
    for levels in (1, 2, 3):
        got, plan, watch = run.gradient(8, at_levels(levels))
        assert np.array_equal(got, want)
        assert watch.slots == {s: n for s, n in slots_of(plan).items() if n}
        assert levels > 1 or sum(plan.tasks[-1].words.values()) == 11 + 8


def test_loops_side_by_side_share_what_their_inner_loops_use():
    body = "\n".join(["        for a in range(n):\n            for b in range(m):\n                v = qd.sin(v) + 0.1"] * 2)
    run = Run(body.replace("for a", "for c", 1).replace("for b", "for d", 1))
    _, plan, watch = run.gradient(5, m=40)
    assert sum(plan.tasks[-1].words.values()) == 5 + 5 + 40
    assert sum(watch.slots.values()) == 5 + 5 + 40 + 40


def test_checkpoints_are_wider_than_the_tape_where_a_replay_needs_more():
    run = Run("        for j in range(n):\n            u = u * 0.9 + 0.1\n            v = qd.sin(v) + u")
    plan = run.gradient(64, at_levels(2, 8))[1]
    widths = {k.kind: sum(n for _, n in k.widths) for k in plan.tasks[-1].loops[0].stacks}
    assert widths == {"ck1": 2, "ck2": 2, "tape": 1}
    assert np.array_equal(run.gradient(64, at_levels(2, 8))[0], run.gradient(64, at_levels(1))[0])


def test_an_outer_variable_that_the_inner_loop_changes():
    body = "        for a in range(n):\n            for b in range(n):\n                u = qd.sin(u) + v\n            v = qd.tanh(v * u)"
    run = Run(body)
    want = run.gradient(7, at_levels(1))[0]
    assert all(np.array_equal(run.gradient(7, at_levels(levels))[0], want) for levels in (2, 3))


# ---- thinning
@pytest.mark.parametrize(
    "caps", [(4, 3, 4), *(pytest.param(c, marks=pytest.mark.slow) for c in ((5, 31, 8), (7, 15, 16), (3, 255, 1)))]
)
def test_thinning_is_the_tape_up_to_its_capacity_and_overflows_one_past_it(caps):
    run, c1, c2, s = Run(WHILE), *caps
    capacity = thinning(*caps).capacity
    assert capacity == c1 * (c2 + 1) * s
    for n in {0, 1, 5, 100, capacity - 1, capacity, capacity + 1}:
        if n + 1 > capacity:  # the iteration that leaves is one of them
            with pytest.raises(qd.AdStackOverflow):
                run.gradient(n, fixed(thinning(*caps)))
        else:
            want = run.gradient(n, fixed(full_tape(n + 1)))[0]
            assert np.array_equal(run.gradient(n, fixed(thinning(*caps)))[0], want)


@pytest.mark.parametrize(
    ("plan", "n"), [(thinning(86, 127, 86), 900_000), (LoopPlan(100, 99, 100, 2500, 3, None), 999_999)], ids=["900k", "1M"]
)
def test_a_million_iterations_in_under_300_slots(plan, n):
    run = Run("        c = 0\n        while c < n:\n            c += 1\n            v = v + 1e-6 * qd.sin(v)", arch=qd.cpu)
    with guarded() as guard:
        got, planned, _ = run.gradient(n, fixed(plan))
        touched = guard.check(run.program, planned)
    assert plan.C1 + plan.C2 + plan.S < 300
    assert touched["f8"] <= 299 * 8
    v, d = float(run.x[0]), 1.0
    for _ in range(n):
        d *= 1.0 + 1e-6 * math.cos(v)
        v += 1e-6 * math.sin(v)
    np.testing.assert_allclose(got[0], d, rtol=1e-9)
    with pytest.raises(qd.AdStackOverflow):
        run.gradient(plan.capacity, fixed(plan))


def test_a_break_inside_a_segment():
    body = (
        "        for j in range(n):\n            v = qd.sin(v) * 0.95\n            if v < 0.2:\n                v = v * v\n"
        "                break"
    )
    run = Run(body, size=4)
    want = run.gradient(100, at_levels(1))[0]
    assert want.all()
    for choose in (at_levels(2), at_levels(3), fixed(thinning(3, 7, 2))):
        assert np.array_equal(run.gradient(100, choose)[0], want)


def test_a_bound_that_was_too_small_thins_where_inner_checkpoints_have_slack():
    run = Run(CHAIN, size=2)
    want = run.gradient(40, at_levels(1))[0]
    small = with_levels(20, 3, 2)
    with pytest.raises(qd.AdStackOverflow):
        run.gradient(40, fixed(small))
    slack = LoopPlan(small.C1, 4 * small.C2 + 3, small.S, small.D1, 3, None)
    assert np.array_equal(run.gradient(40, fixed(slack))[0], want)


# ---- overflow: found, named, nothing beyond the plan, and the program goes on
TOO_SMALL = {
    "a tape": fixed_capacity(30),
    "two levels": with_levels(30, 2),
    "three levels": with_levels(30, 3),
    "segments of one": with_levels(30, 2, 1),
    "thinning": thinning(3, 1, 5),
}


@pytest.mark.parametrize("name", TOO_SMALL)
@pytest.mark.parametrize("arch", [qd.cpu, qd.python])
def test_a_plan_that_is_too_small_overflows_and_the_program_goes_on(name, arch):
    run, plan = Run(CHAIN, size=3, arch=arch), TOO_SMALL[name]
    want = run.gradient(41)[0]
    with guarded() as guard:
        run = Run(CHAIN, size=3, arch=arch)
        with pytest.raises(qd.AdStackOverflow, match=r"in kernel `k`[\s\S]*for j in range\(n\):") as e:
            run.gradient(41, fixed(plan))
        if arch is qd.cpu and run.program.device.on_host:  # on a device another plan is set by then, and nothing is guarded
            assert f"which is {plan.capacity}" in str(e.value)
            guard.check(run.program, plan_with(run.k, (41, 0), fixed(plan)))
        assert np.array_equal(run.gradient(41)[0], want)
        assert np.array_equal(run.gradient(29, fixed(plan))[0], run.gradient(29)[0])


def changed_by_host(f, values):
    f.from_numpy(np.asarray(values, np.int32))


def changed_by_element(f, values):
    for i, v in enumerate(values):
        f[i] = int(v)


def changed_by_kernel(f, values):
    new = ints(values)
    compile_source("@qd.kernel\ndef put():\n    for i in f:\n        f[i] = new[i]\n", f=f, new=new)["put"]()


@pytest.mark.parametrize("change", [changed_by_host, changed_by_element, changed_by_kernel])
@pytest.mark.parametrize("levels", [1, 3])
def test_data_that_changes_between_launches_changes_the_plan(change, levels):
    """Whoever writes to an array that bounds a loop: the next launch is planned for what is there then."""
    program = start(cpu_max_num_threads=1, ad_checkpoint_levels=levels)
    x, y, count = field(4, rng=np.random.default_rng(3)), field(4), ints([2, 0, 1, 3])
    k = compile_source("@qd.kernel\ndef k():\n    for i in x:\n        v = x[i]\n        for j in range(count[i]):\n"
                       "            v = qd.sin(v) + 0.1\n        y[i] = v\n", x=x, y=y, count=count)["k"]  # fmt: skip
    for values in ([2, 0, 1, 3], [2, 70, 1, 3], [500, 1, 1, 1], [0, 0, 0, 0], [1, 2, 3, 900]):
        change(count, values)
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        plan = k.grad.plan()
        k.grad()
        assert [r["bound"] for r in plan.rows()] == [max(values)]
        assert program.usage().get("adstack", 0) >= plan.bytes
        np.testing.assert_allclose(x.grad.to_numpy(), slopes(x.to_numpy(), values), rtol=1e-12)


def test_data_that_is_written_through_memory_of_numpy_changes_the_plan():
    start(cpu_max_num_threads=1)
    x, y = field(4, rng=np.random.default_rng(3)), field(4)
    k = compile_source("@qd.kernel\ndef k(count: qd.types.ndarray(dtype=qd.i32, ndim=1)):\n    for i in x:\n        v = x[i]\n"
                       "        for j in range(count[i]):\n            v = qd.sin(v) + 0.1\n        y[i] = v\n", x=x, y=y)["k"]  # fmt: skip
    array = np.array([1, 2, 3, 4], np.int32)
    shared = qd.ndarray(qd.i32, 4)
    for values in ([1, 2, 3, 4], [90, 2, 3, 4], [0, 0, 0, 0], [1, 1, 700, 1]):
        array[:] = values
        shared.from_numpy(array)
        for argument in (array, shared):
            x.grad.fill(0.0)
            y.grad.fill(1.0)
            k.grad(argument)
            np.testing.assert_allclose(x.grad.to_numpy(), slopes(x.to_numpy(), values), rtol=1e-12)


GATED = """@qd.kernel
def k():
    for i in x:
        if gate[i] > 0.5:
            v = x[i]
            for j in range(200):
                v = qd.sin(v) + 0.1
            y[i] = v
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", [1, 4])
def test_a_gate_that_opens_under_a_plan_is_an_overflow_and_the_next_launch_is_right(threads, lanes):
    n = 4096
    with guarded() as guard:
        program = start(cpu_max_num_threads=threads, cpu_lanes=lanes)
        x, y, gate = field(n, rng=np.random.default_rng(3)), field(n), qd.field(qd.f32, shape=n)
        k = compile_source(GATED, x=x, y=y, gate=gate)["k"]

        def gradient(plan=None):
            x.grad.fill(0.0)
            y.grad.fill(1.0)
            guard.arm()
            launch_under(k, (), plan) if plan else k.grad()
            return x.grad.to_numpy()

        closed = k.grad.plan()
        assert (closed.bytes, closed.tasks[-1].rows) == (0, 0)
        assert not gradient().any()
        gate[77] = 1.0
        one = k.grad.plan()
        assert one.tasks[-1].rows == lanes
        with pytest.raises(qd.AdStackOverflow, match=r"in kernel `k`"):
            gradient(closed)
        guard.check(program, closed)
        want = np.zeros(n)
        want[77] = slopes(x.to_numpy()[77:78], [200])[0]
        np.testing.assert_allclose(gradient(), want, rtol=1e-10)
        guard.check(program, one)
        gate.fill(1.0)
        try:
            gradient(one)  # one worker may get it all, and need no second row
        except qd.AdStackOverflow:
            assert threads == 2
        guard.check(program, one)
        np.testing.assert_allclose(gradient(), slopes(x.to_numpy(), [200] * n), rtol=1e-8)
        guard.check(program, k.grad.plan())
        gate.fill(0.0)
        assert not gradient().any()


def slopes(x, counts):
    """d/dx of sin(.) + 0.1 applied ``counts`` times."""
    out = np.ones_like(x)
    for i, count in enumerate(counts):
        v = x[i]
        for _ in range(count):
            out[i] *= math.cos(v)
            v = math.sin(v) + 0.1
    return out


def test_the_planned_capacity_of_an_endless_tape():
    assert full_tape(10).D1 == FOREVER
    assert full_tape(10).capacity == 10
