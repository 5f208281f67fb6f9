"""A tape keeps what a later launch, or Python, overwrites, where a gradient needs it, and only then."""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.lang.autograd.overwrites import Use, Uses, add_use, all_uses, first_conflict
from qdrun.compiler.program.memory import known_tapes
from qdrun.compiler.program.memory.memory_regions import MemoryRegion, may_meet
from qdrun.compiler.program.memory.overwritten import Overwritten
from qdrun.tests.call_count import calls

sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))
from gradient_checks import compile_source

N = 4
Array = qd.types.ndarray(qd.f64, ndim=1)
When = qd.types.struct(now=qd.i32, speed=qd.f64)


@pytest.fixture
def fields():
    qd.init(default_fp=qd.f64)
    x = qd.field(qd.f64, shape=(9, N), needs_grad=True, name="x")
    y = qd.field(qd.f64, shape=N, needs_grad=True, name="y")
    loss = qd.field(qd.f64, shape=(), needs_grad=True, name="loss")
    x.from_numpy(np.random.default_rng().uniform(0.5, 1.5, (9, N)))

    @qd.kernel
    def step(t: qd.i32):
        for i in range(N):
            x[t + 1, i] = qd.sin(x[t, i])

    @qd.kernel
    def total(t: qd.i32):
        for i in range(N):
            loss[None] += x[t, i] * x[t, i]

    yield x, y, loss, step, total
    qd.reset()


def test_time_steps_over_a_time_axis_are_no_overwrite(fields):
    x, _, loss, step, total = fields
    with qd.ad.Tape(loss=loss):
        for t in range(8):
            step(t)
        total(8)
    v, g = x.to_numpy()[0], np.ones(N)
    for _ in range(8):
        g = g * np.cos(v)
        v = np.sin(v)
    np.testing.assert_allclose(x.grad.to_numpy()[0], g * 2 * v, rtol=1e-12)


def kept_bytes() -> int:
    return qd.current_program().usage().get("tape", 0)


def sines(v: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The sine of the sine of .., and its derivative."""
    g = np.ones(N)
    for _ in range(n):
        g, v = g * np.cos(v), np.sin(v)
    return v, g


def test_a_step_that_runs_twice_over_the_same_time_keeps_what_it_overwrites(fields):
    x, _, loss, step, total = fields
    start = x.to_numpy()[0]
    with qd.ad.Tape(loss=loss):
        step(0)
        step(1)
        assert kept_bytes() == 0
        step(0)  # overwrites x[1], which the step before reads again
        assert kept_bytes() == 8 * N
        total(1)
        total(2)
    one, two = sines(start, 1), sines(start, 2)
    np.testing.assert_allclose(x.grad.to_numpy()[0], 2 * one[0] * one[1] + 2 * two[0] * two[1], rtol=1e-12)
    assert kept_bytes() == 0


def test_two_buffers_that_are_used_in_turn_have_the_gradient_of_all_their_contents(fields):
    _, _, loss, _, total = fields
    x = fields[0]
    start = x.to_numpy()

    @qd.kernel
    def swap(source: qd.i32, target: qd.i32):
        for i in range(N):
            x[target, i] = x[source, i] * x[source, i]

    with qd.ad.Tape(loss=loss):
        for t in range(4):
            swap(t % 2, (t + 1) % 2)
        total(0)
        assert kept_bytes() == 3 * 8 * N
    np.testing.assert_allclose(x.grad.to_numpy()[0], 32 * start[0] ** 31, rtol=1e-12)
    assert not x.grad.to_numpy()[1:].any()
    np.testing.assert_allclose(x.to_numpy()[:2], [start[0] ** 16, start[0] ** 8])  # as the launches have left them


def test_an_assignment_from_python_between_launches_keeps_the_old_value(fields):
    x, _, loss, step, total = fields
    start, rest = x.to_numpy(), np.random.default_rng().uniform(0.5, 1.5, (9, N))
    for write, new in (
        (lambda: x.fill(0.7), np.full((9, N), 0.7)),
        (lambda: x.__setitem__((0, 3), 0.7), None),
        (lambda: x.from_numpy(rest), rest),
    ):
        x.from_numpy(start)
        with qd.ad.Tape(loss=loss):
            step(0)
            total(1)
            write()
            total(0)
        value, slope = sines(start[0], 1)
        want = 2 * value * slope
        if new is None:  # the gradient at what was assigned is cut; of the others it is that of both uses
            want[:3] += 2 * start[0, :3]
        np.testing.assert_allclose(x.grad.to_numpy()[0], want, rtol=1e-12)
        assert np.array_equal(x.to_numpy()[0], np.where(np.arange(N) == 3, 0.7, start[0]) if new is None else new[0])


def test_an_assignment_of_an_element_that_nobody_reads_again_is_allowed(fields):
    x, _, loss, step, total = fields
    before = x.to_numpy()[0]
    with qd.ad.Tape(loss=loss):
        step(0)
        x[5, 0] = 3.0
        total(1)
    np.testing.assert_allclose(x.grad.to_numpy()[0], 2 * np.sin(before) * np.cos(before))


def test_an_assignment_before_the_first_use_is_allowed(fields):
    x, _, loss, step, total = fields
    with qd.ad.Tape(loss=loss):
        x.fill(0.5)
        step(0)
        total(1)
    np.testing.assert_allclose(x.grad.to_numpy()[0], 2 * np.sin(0.5) * np.cos(0.5))


def test_what_no_gradient_reads_again_may_be_overwritten(fields):
    x, y, loss, _, _ = fields

    @qd.kernel
    def double(t: qd.i32):
        for i in range(N):
            y[i] += 2.0 * x[t, i]

    @qd.kernel
    def collect():
        for i in range(N):
            loss[None] += 3.0 * y[i]

    y.fill(0.0)
    with qd.ad.Tape(loss=loss):
        for t in range(9):
            double(t)
        collect()
    np.testing.assert_array_equal(x.grad.to_numpy(), np.full((9, N), 6.0))


def test_ndarrays_are_followed_by_their_memory(fields):
    loss = fields[2]
    a, b = (qd.ndarray(qd.f64, N, needs_grad=True) for _ in range(2))
    a.fill(0.7)

    @qd.kernel
    def square(p: qd.types.ndarray(dtype=qd.f64, ndim=1), q: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in range(N):
            q[i] = p[i] * p[i]

    @qd.kernel
    def total(p: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in range(N):
            loss[None] += p[i]

    with qd.ad.Tape(loss=loss):
        square(a, b)
        total(b)
    np.testing.assert_allclose(a.grad.to_numpy(), np.full(N, 1.4))
    a.fill(0.7)
    with qd.ad.Tape(loss=loss):
        square(a, b)
        square(b, a)
        total(a)
    np.testing.assert_allclose(a.grad.to_numpy(), np.full(N, 4 * 0.7**3))
    np.testing.assert_allclose(a.to_numpy(), np.full(N, 0.7**4))


def test_methods_with_templates_are_followed(fields):
    x, _, loss, _, _ = fields

    @qd.data_oriented
    class Sim:
        def __init__(self):
            self.x = x

        @qd.kernel
        def step(self, t: qd.i32):
            for i in range(N):
                self.x[t + 1, i] = self.x[t, i] ** 2

        @qd.kernel
        def total(self):
            for i in range(N):
                loss[None] += self.x[3, i]

    sim = Sim()
    with qd.ad.Tape(loss=loss):
        for t in range(3):
            sim.step(t)
        sim.total()
    start = x.to_numpy()[0]
    np.testing.assert_allclose(x.grad.to_numpy()[0], 8 * start**7, rtol=1e-12)
    with qd.ad.Tape(loss=loss):
        for t in (0, 1, 2, 1, 2):
            sim.step(t)
        assert kept_bytes() == 8 * N  # x[2], which the first step from there reads again; nothing does x[3]
        sim.total()
    np.testing.assert_allclose(x.grad.to_numpy()[0], 8 * start**7, rtol=1e-12)


def test_indices_that_are_members_of_an_argument_are_told_apart(fields):
    """Structs and dataclasses are kept as they were; many launches stay one group."""
    x, _, loss, _, total = fields

    @qd.kernel
    def step(w: When):
        for i in range(N):
            x[w.now + 1, i] = qd.sin(x[w.now, i])

    start = x.to_numpy()[0]
    with qd.ad.Tape(loss=loss):
        when = When(now=0, speed=1.0)
        for t in range(8):
            when.now = t
            step(when)
        total(8)
    v, g = start, np.ones(N)
    for _ in range(8):
        g = g * np.cos(v)
        v = np.sin(v)
    np.testing.assert_allclose(x.grad.to_numpy()[0], g * 2 * v, rtol=1e-12)
    with qd.ad.Tape(loss=loss):
        for t in (0, 1, 0):
            step(When(now=t, speed=2.0))
        assert kept_bytes() == 8 * N
        total(2)
    value, slope = sines(start, 2)
    np.testing.assert_allclose(x.grad.to_numpy()[0], 2 * value * slope, rtol=1e-12)


def test_the_check_is_near_linear_in_the_launches(fields):
    x, _, loss, _, _ = fields

    @qd.kernel
    def add(w: qd.types.vector(2, qd.f64)):
        for i in range(N):
            loss[None] += w[0] * x[0, i] * x[0, i]

    def tape(n):
        with qd.ad.Tape(loss=loss):
            for k in range(n):
                add(qd.Vector([1.0, float(k)]))

    tape(10)
    few, many = (calls(tape, n)[1] for n in (100, 1000))
    assert many < 1.1 * 10 * few


def test_a_number_assigned_over_a_copy_stops_the_gradient_of_the_copy(fields):
    """Also if both assignments stand between the same two launches."""
    x, y, loss, _, _ = fields
    z = qd.field(qd.f64, shape=N, needs_grad=True, name="z")

    @qd.kernel
    def total():
        for i in y:
            loss[None] += y[i] ** 3

    @qd.ad.no_grad
    @qd.kernel
    def cut():
        y[0] = 0.5

    values = np.random.default_rng(0).normal(size=N)
    for order in (1, 0):
        z.from_numpy(values)
        with qd.ad.Tape(loss=loss):
            for k in (0, 1):
                if k == order:
                    y[2] = 0.7
                else:
                    y.copy_from(z)
            total()
        expected = 3 * values**2
        expected[2] *= order == 0
        np.testing.assert_allclose(z.grad.to_numpy(), expected, rtol=1e-13)
    with (
        pytest.raises(
            qd.DifferentiationError, match=r"`cut` has no gradient .* overwrites `y` here, which Python copied before"
        ),
        qd.ad.Tape(loss=loss),
    ):
        y.copy_from(z)
        cut()
        total()
    del x


M = 2**31 - 1
WRAPPED = {  # an index of x from 0 to 8, the types of its arguments, the arguments of each launch
    "a sum of i32": ("a + b + c", "qd.i32", (M, M, 3)),
    "a sum of u32": ("a + b + c", "qd.u32", (2**32 - 1, 1, 1)),
    "a product": ("a * b + c", "qd.i32", (2**16, 2**16, 1)),
    "a shift": ("(a << b) + c", "qd.i32", (1, 32, 0)),
    "a sum of u8": ("a + b + c", "qd.u8", (200, 50, 7)),
    "a wide sum of narrow ones": ("qd.i64(a + b) + qd.i64(c)", "qd.i32", (M, M, 3)),
    "a remainder": ("(a + b) % c", "qd.i32", (5, 3, 7)),
    "a quotient": ("(a + b) // c", "qd.i32", (-1, 4, 3)),
    "a choice": ("a if b > c else b", "qd.i32", (1, 3, 2)),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_indices_are_compared_as_the_kernel_computes_them(fields, name):
    """Reading x[1] and then writing it keeps it, however its index is computed; writing x[2] does not."""
    x, _, loss, _, _ = fields
    index, dtype, args = WRAPPED[name]
    kernels = compile_source(
        f"@qd.kernel\ndef read(a: {dtype}, b: {dtype}, c: {dtype}):\n    loss[None] += x[{index}, 0] ** 2\n\n"
        "@qd.kernel\ndef write(a: qd.i32):\n    x[a, 0] = 5.0\n",
        x=x,
        loss=loss,
    )
    before = x.to_numpy()[:, 0]
    with qd.ad.Tape(loss=loss):
        kernels["read"](*args)
        kernels["write"](2)
        assert kept_bytes() == 0
    np.testing.assert_allclose(x.grad.to_numpy()[1, 0], 2 * before[1])
    assert np.count_nonzero(x.grad.to_numpy()) == 1
    with qd.ad.Tape(loss=loss):
        kernels["read"](*args)
        kernels["write"](1)
        assert kept_bytes() == 8
    np.testing.assert_allclose(x.grad.to_numpy()[1, 0], 2 * before[1])


def test_two_buffers_are_told_apart_by_a_remainder_of_the_step(fields):
    x, _, loss, _, _ = fields
    kernels = compile_source(
        "@qd.kernel\ndef peek(t: qd.i32):\n    loss[None] += x[t % 2, 0] ** 2\n\n"
        "@qd.kernel\ndef put(t: qd.i32):\n    x[1 - t % 2, 0] = 5.0\n",
        x=x,
        loss=loss,
    )
    before = x.to_numpy()[:, 0]
    with qd.ad.Tape(loss=loss):
        kernels["peek"](3)
        kernels["put"](7)
        assert kept_bytes() == 0
    np.testing.assert_allclose(x.grad.to_numpy()[1, 0], 2 * before[1])
    with qd.ad.Tape(loss=loss):
        kernels["peek"](3)
        kernels["put"](8)
        assert kept_bytes() == 8
    np.testing.assert_allclose(x.grad.to_numpy()[1, 0], 2 * before[1])


def test_a_tape_that_is_recorded_again_is_not_checked_again(fields, monkeypatch):
    monkeypatch.setattr(known_tapes, "WORTH", 0)
    x, _, loss, step, total = fields
    looked: list[int] = []
    launching = Overwritten.launching
    monkeypatch.setattr(Overwritten, "launching", lambda self, number, *a: looked.append(number) or launching(self, number, *a))
    for _ in range(3):
        x.from_numpy(np.random.default_rng().uniform(0.5, 1.5, (9, N)))
        looked.clear()
        with qd.ad.Tape(loss=loss):
            for t in range(8):
                step(t)
            total(8)
        value, slope = sines(x.to_numpy()[0], 8)
        np.testing.assert_allclose(x.grad.to_numpy()[0], slope * 2 * value, rtol=1e-12)
    assert looked == []


@pytest.mark.parametrize("how", ["kernel", "index", "number", "python", "array"])
def test_a_tape_that_leaves_the_one_before_is_checked(fields, how, monkeypatch):
    monkeypatch.setattr(known_tapes, "WORTH", 0)
    _, _, loss, _, _ = fields
    x = qd.field(qd.f64, shape=(5, N), needs_grad=True)
    a, b, c, d = (qd.ndarray(qd.f64, N, needs_grad=True) for _ in range(4))
    start = np.random.default_rng().uniform(0.5, 1.5, N)

    @qd.kernel
    def step(t: qd.i32, scale: qd.f64):
        for i in range(N):
            x[t + 1, i] = scale * qd.sin(x[t, i])

    @qd.kernel
    def double(t: qd.i32):
        for i in range(N):
            x[t, i] = 2 * x[0, i]

    @qd.kernel
    def of_arrays(source: Array, target: Array):
        for i in range(N):
            target[i] = 0.9 * qd.sin(source[i])

    @qd.kernel
    def total():
        for i in range(N):
            loss[None] += x[2, i] * x[2, i] + c[i] * c[i]

    def run(scale: float, leaves: bool) -> None:
        x.fill(0)
        for tensor in (a, b, c, d):
            tensor.fill(0)
        a.from_numpy(start)
        x.from_numpy(np.stack([start] + [0 * start] * 4))
        d.from_numpy(2 * start)
        with qd.ad.Tape(loss=loss):
            for t in range(2):
                of_arrays(*((a, b), (b, c))[t]) if how == "array" else step(t, scale)
            if leaves and how == "kernel":
                double(1)
            elif leaves and how == "python":
                x[1, 1] = 7.0
            elif leaves and how == "array":
                of_arrays(d, b)
            elif leaves:
                step(0, 0.4)  # overwrites x[1], which the gradient of step(1) reads
            total()
        inner = scale * np.sin(start)
        want = 2 * scale * np.sin(inner) * scale * np.cos(inner) * scale * np.cos(start)
        got = a.grad.to_numpy() if how == "array" else x.grad.to_numpy()[0]
        np.testing.assert_allclose(got, want, rtol=1e-12)

    for leaves in (False, False, True, False, True, True):
        run(0.9 if how != "number" else np.random.default_rng().uniform(0.2, 0.9), leaves)


def test_the_check_of_a_tape_finds_what_comparing_all_pairs_finds():
    draw = random.Random()

    def uses(amount: int) -> Uses:
        found = Uses()
        for k in range(amount):
            when = sorted(draw.sample(range(9), draw.choice([1, 2, 4])))
            axes = [None if draw.random() < 0.3 else np.array([draw.randrange(4) for _ in when]) for _ in range(2)]
            windows = np.sort([draw.randrange(2) for _ in when]) if draw.random() < 0.2 else None
            spot = MemoryRegion(
                0, draw.choice(["", "", (0, (4,), (8,)), (24, (4,), (8,)), (64, (4,), (8,))]), draw.choice([0, 8])
            )
            add_use(
                found, spot, Use(np.array(when, float), tuple(axes), str(k), "k", None, windows, constant=draw.random() < 0.3)
            )
        return found

    def meet(spot: MemoryRegion, use: Use, there: MemoryRegion, other: Use) -> bool:
        if spot.layout != there.layout:
            compared = may_meet(spot.layout, there.layout) and [()]
        else:
            compared = spot == there and [(p, q) for p, q in zip(use.axes, other.axes) if p is not None and q is not None]
        for m, n in itertools.product(range(len(use.when)), range(len(other.when))) if compared is not False else ():
            windows = [0 if u.window is None else u.window[k] for u, k in ((use, m), (other, n))]
            if (
                use.when[m] < other.when[n]
                and windows[0] == windows[1]
                and all(p[m] == q[n] for p, q in filter(None, compared))
            ):
                return True
        return False

    seen = []
    for _ in range(300):
        mine, others, earlier = uses(draw.randrange(1, 4)), uses(draw.randrange(1, 5)), draw.random() < 0.5
        found = first_conflict(mine, others, lambda use: not use.constant, earlier=earlier)
        pairs = [
            (use, other)
            for (spot, use), (there, other) in itertools.product(all_uses(mine), list(all_uses(others)))
            if not other.constant and (meet(there, other, spot, use) if earlier else meet(spot, use, there, other))
        ]
        assert (found is None) == (not pairs)
        assert found is None or (found[0] is pairs[0][0] and any(found[1] is other for _, other in pairs))
        seen.append(found is None)
    assert len(set(seen)) == 2
