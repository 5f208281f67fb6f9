"""Gradients that are launched natively: by what their plans read, and when Python must look again."""

from __future__ import annotations

import gc
import random
import threading

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.compile.cache import CACHE
from qdrun.compiler.program.plans.gradient_executable import GradientExecutable
from qdrun.compiler.program.plans.gradient_plans import GradientPlans
from qdrun.compiler.runtime.cpu.device import CpuDevice

N = 8


class Counts:
    """How often Python launches a gradient, prepares one for a native launch, and plans."""

    def __init__(self, monkeypatch):
        self.launched = self.prepared = self.planned = 0
        for cls, name, counter in (
            (GradientExecutable, "launch_gradient", "launched"),
            (GradientExecutable, "prepare", "prepared"),
            (GradientPlans, "_make_plan", "planned"),
        ):
            monkeypatch.setattr(cls, name, self._counted(getattr(cls, name), counter))

    def _counted(self, f, counter):
        def call(*args, **kwargs):
            setattr(self, counter, getattr(self, counter) + 1)
            return f(*args, **kwargs)

        return call

    def take(self):
        out = self.launched, self.prepared, self.planned
        self.launched = self.prepared = self.planned = 0
        return out


@pytest.fixture
def counts(monkeypatch):
    return Counts(monkeypatch)


class Chain:
    """``v = c sin(v)``, ``n`` times, where ``alive``."""

    def __init__(self, **options):
        kind = {"arch": qd.cuda, "device": "emulated"} if options.pop("emulated", False) else {"cpu_max_num_threads": 2}
        self.program = qd.init(default_fp=qd.f64, **kind, **options)
        x, y = self.x, self.y = tuple(qd.field(qd.f64, shape=N, needs_grad=True) for _ in range(2))
        alive = self.alive = qd.field(qd.i32, shape=N)
        self.start = np.random.default_rng(3).uniform(0.2, 0.9, N)
        x.from_numpy(self.start)
        y.grad.fill(1.0)
        alive.fill(1)

        @qd.kernel
        def chain(n: qd.i32, c: qd.f64, unused: qd.i32):
            for i in x:
                v = x[i]
                for _ in range(n):
                    v = qd.sin(v) * c
                y[i] += v + unused

        @qd.kernel
        def gated(n: qd.i32):
            for i in x:
                if alive[i] == 1:
                    v = x[i]
                    for _ in range(n):
                        v = qd.sin(v)
                    y[i] += v

        @qd.kernel
        def wake(i: qd.i32, on: qd.i32):
            alive[i] = on

        self.chain, self.gated, self.wake = chain, gated, wake

    def slope(self, n, c=1.0):
        v, d = self.start.copy(), np.ones(N)
        for _ in range(n):
            v, d = c * np.sin(v), d * c * np.cos(v)
        return d

    def taken(self):
        """The gradient so far; it is cleared."""
        got = self.x.grad.to_numpy()
        self.x.grad.fill(0.0)
        return got


@pytest.mark.parametrize("emulated", [False, True], ids=["cpu", "emulated"])
def test_launches_with_the_same_plan_are_native_whatever_the_other_numbers_are(counts, emulated):
    s = Chain(emulated=emulated)
    s.chain.grad(400, 0.9, 0)
    counts.take()
    s.taken()
    for c, unused in ((0.9, 0), (1.0, 3), (0.5, 7), (1.1, -2)):
        s.chain.grad(400, c, unused)
        np.testing.assert_allclose(s.taken(), s.slope(400, c), rtol=1e-9, atol=1e-300)
    assert counts.take() == (0, 1, 0), "armed by the second launch, then native"


@pytest.mark.parametrize("emulated", [False, True], ids=["cpu", "emulated"])
def test_another_bound_is_planned_once_and_then_only_set(counts, emulated):
    s = Chain(emulated=emulated)
    r = np.random.default_rng(5)
    bounds = [0, 3, 40, 300, 700]
    for n in bounds:
        s.chain.grad(n, 1.0, 0)
    s.taken()
    assert counts.take()[2] == len(bounds)
    for _ in range(40):
        n, c = int(r.choice(bounds)), float(r.uniform(0.9, 1.1))
        s.chain.grad(n, c, int(r.integers(100)))
        np.testing.assert_allclose(s.taken(), s.slope(n, c), rtol=1e-8, atol=1e-300)
    launched, _, planned = counts.take()
    assert (launched, planned) == (0, 0)
    assert s.program.usage()["adstack"] == max(s.chain.grad.plan(n, 1.0, 0).bytes for n in bounds)


@pytest.mark.parametrize("emulated", [False, True], ids=["cpu", "emulated"])
def test_a_gate_is_counted_again_when_its_field_may_have_changed(counts, emulated):
    s = Chain(emulated=emulated)
    r = np.random.default_rng(6)
    alive = np.ones(N, np.int32)
    view = None
    for turn in range(120):
        what, i = int(r.integers(5)) if turn else 0, int(r.integers(N))
        if what == 1:
            alive[i] ^= 1
            s.wake(i, int(alive[i]))
        elif what == 2:
            alive[i] ^= 1
            s.alive[i] = int(alive[i])
        elif what == 3 and turn % 3 == 0:
            alive[:] = r.integers(0, 2, N)
            s.alive.from_numpy(alive)
        elif what == 4 and turn > 60 and not emulated:  # from here on anybody may write to it
            view = s.alive.to_numpy(copy=False) if view is None else view
            alive[i] ^= 1
            view[i] = alive[i]
        s.gated.grad(300)
        np.testing.assert_allclose(s.taken(), np.where(alive == 1, s.slope(300), 0.0), rtol=1e-9)
    if not emulated:
        assert view is not None and counts.launched < 110
    else:
        assert counts.launched < 10


def test_a_field_that_is_not_written_keeps_the_launch_native(counts):
    s = Chain()
    s.gated.grad(300)
    s.gated.grad(300)
    counts.take()
    for k in range(5):
        s.x.fill(0.1 * k)  # another field
        s.gated.grad(300)
    assert counts.take() == (0, 0, 0)


def test_a_kernel_that_is_compiled_later_is_seen(counts):
    s = Chain()
    s.alive.fill(0)
    for _ in range(3):
        s.gated.grad(300)
    counts.take()
    alive = s.alive

    @qd.kernel
    def all_of_them():
        for i in alive:
            alive[i] = 1

    all_of_them()
    s.taken()
    s.gated.grad(300)
    np.testing.assert_allclose(s.taken(), s.slope(300), rtol=1e-9)
    assert counts.planned == 1


def test_a_launch_with_a_budget_does_not_last(counts):
    s = Chain()
    for _ in range(3):
        s.chain.grad(600, 1.0, 0)
    s.taken()
    s.chain.grad(600, 1.0, 0)
    whole = s.taken()
    small = s.chain.grad.remedies(600, 1.0, 0)["the smallest budget"].bytes
    executable = next(iter(s.program.variants[s.chain.token].values())).gradient
    for _ in range(3):
        s.chain.grad(600, 1.0, 0, budget=small)
        assert executable._set.bytes == small and s.taken().tobytes() == whole.tobytes()
        s.chain.grad(600, 1.0, 0)
        assert executable._set.bytes > small and s.taken().tobytes() == whole.tobytes()


@pytest.mark.parametrize("emulated", [False, True], ids=["cpu", "emulated"])
def test_under_a_memory_budget_launches_are_native_until_something_else_is_allocated_or_freed(counts, emulated):
    s = Chain(emulated=emulated, memory_budget=1 << 20)
    s.chain.grad(400, 0.9, 0)
    s.chain.grad(400, 0.9, 0)
    s.taken()
    counts.take()
    for c in (0.9, 1.0, 1.1):
        s.chain.grad(400, c, 0)
        np.testing.assert_allclose(s.taken(), s.slope(400, c), rtol=1e-9, atol=1e-300)
    assert counts.take() == (0, 0, 0)

    whole = s.chain.grad.plan(400, 1.0, 0).bytes
    held = sum(s.program.usage().values())
    large = qd.ndarray(qd.u8, shape=(1 << 20) - held + whole // 2)  # what is left for the heap is half of what it has
    s.chain.grad(400, 1.0, 0)
    np.testing.assert_allclose(s.taken(), s.slope(400), rtol=1e-9, atol=1e-300)
    assert counts.take()[2] == 1
    assert s.chain.grad.plan(400, 1.0, 0).bytes <= whole // 2
    assert sum(s.program.usage().values()) <= 1 << 20
    del large
    gc.collect()
    s.chain.grad(400, 1.0, 0)
    np.testing.assert_allclose(s.taken(), s.slope(400), rtol=1e-9, atol=1e-300)
    assert s.chain.grad.plan(400, 1.0, 0).bytes == whole


def test_a_heap_that_shrinks_under_a_memory_budget_is_planned_again():
    free = Chain()
    need = {n: free.chain.grad.plan(n, 1.0, 0).bytes for n in (0, 100, 500)}
    held = sum(free.program.usage().values())
    s = Chain(memory_budget=held + need[500] // 2 + 65536)
    for n in (500, 0, 100, 500, 500, 0, 100):
        s.chain.grad(n, 1.0, 0)
        np.testing.assert_allclose(s.taken(), s.slope(n), rtol=1e-9)
    a = qd.ndarray(qd.f64, 4000)  # takes room that the heap had
    for n in (500, 500, 0, 100):
        s.chain.grad(n, 1.0, 0)
        np.testing.assert_allclose(s.taken(), s.slope(n), rtol=1e-9)
    assert sum(s.program.usage().values()) <= s.program.options.memory_budget
    assert a.shape == (4000,)


def test_an_overflow_is_raised_by_native_launches_too(counts):
    qd.init(default_fp=qd.f64, ad_stack_size=8, cpu_max_num_threads=1)
    x, y = (qd.field(qd.f64, shape=4, needs_grad=True) for _ in range(2))
    x.fill(0.5)

    @qd.kernel
    def until(n: qd.i32):
        for i in x:
            v, k = x[i], 0
            while k < n and v > -1.0:
                v = qd.sin(v)
                k += 1
            y[i] = v

    for _ in range(3):
        until.grad(5)
    assert counts.launched == 1
    for _ in range(3):
        with pytest.raises(qd.AdStackOverflow, match="until"):
            until.grad(50)
    until.grad(5)
    assert counts.launched == 1


class Products:
    def __init__(self):
        qd.init(default_fp=qd.f64)
        y = self.y = qd.field(qd.f64, shape=N, needs_grad=True)
        y.grad.fill(1.0)

        @qd.kernel
        def product(a: qd.types.ndarray(qd.f64, ndim=1), b: qd.types.ndarray(qd.f64, ndim=1)):
            for i in y:
                y[i] += a[i] * b[i]

        @qd.kernel
        def move(a: qd.types.ndarray(qd.f64, ndim=1), b: qd.types.ndarray(qd.f64, ndim=1)):
            for i in range(N):
                b[i] += a[i] * a[i]

        self.product, self.move = product, move
        self.a, self.b = (qd.ndarray(qd.f64, N, needs_grad=True) for _ in range(2))
        self.a.from_numpy(np.arange(1.0, N + 1))
        self.b.from_numpy(np.arange(2.0, N + 2))


def test_gradients_of_several_arrays_are_native(counts):
    s = Products()
    for _ in range(4):
        s.product.grad(s.a, s.b)
    assert counts.launched == 1
    np.testing.assert_allclose(s.a.grad.to_numpy(), 4 * s.b.to_numpy())
    s.product.grad(s.a, s.a)  # both are only read
    np.testing.assert_allclose(s.a.grad.to_numpy(), 4 * s.b.to_numpy() + 2 * s.a.to_numpy())
    assert counts.launched == 1


def test_one_array_twice_is_refused_after_native_launches_too(counts):
    s = Products()
    s.b.grad.fill(1.0)
    for _ in range(3):
        s.move.grad(s.a, s.b)
    assert counts.launched == 1
    np.testing.assert_allclose(s.a.grad.to_numpy(), 6 * s.a.to_numpy())
    for _ in range(2):
        with pytest.raises(qd.DataAccessError, match="got one array as `b` and `a`, and writes to `b`"):
            s.move.grad(s.a, s.a)
    s.move.grad(s.a, s.b)
    assert counts.launched == 1
    np.testing.assert_allclose(s.a.grad.to_numpy(), 8 * s.a.to_numpy())


def test_bounds_in_extents_and_specialisations_by_turns(counts):
    qd.init(default_fp=qd.f64)
    y = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def fold(a: qd.types.ndarray()):
        for _ in range(1):
            v = a[0]
            for j in range(a.shape[0]):
                v = qd.sin(v) + a[j]
            y[None] += v

    arrays = {(t, n): qd.ndarray(t, n, needs_grad=True) for t in (qd.f32, qd.f64) for n in (3, 50, 200)}
    for a in arrays.values():
        a.fill(0.25)
    y.grad[None] = 1.0
    for _ in range(2):
        for a in arrays.values():
            fold.grad(a)
    first = {key: a.grad.to_numpy() / 2 for key, a in arrays.items()}
    counts.take()
    for _ in range(3):
        for a in arrays.values():
            fold.grad(a)
    assert counts.take()[::2] == (0, 0)
    for (t, n), a in arrays.items():
        np.testing.assert_allclose(a.grad.to_numpy(), 5 * first[t, n], rtol=1e-5 if t is qd.f32 else 1e-12, atol=1e-30)
        w, d = 0.25, np.zeros(n)
        d[0] = 1.0
        for j in range(n):
            d *= np.cos(w)
            d[j] += 1.0
            w = np.sin(w) + 0.25
        np.testing.assert_allclose(first[t, n], d, rtol=1e-4 if t is qd.f32 else 1e-12, atol=1e-30)


def test_threads_that_launch_with_other_bounds_get_their_own_plans():
    s = Chain()
    bounds, many = (2, 60, 300, 900), 60

    def work(n):
        with s.program:
            for _ in range(many):
                s.chain.grad(n, 1.0, 0)

    threads = [threading.Thread(target=work, args=(n,)) for n in bounds]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    np.testing.assert_allclose(s.taken(), many * sum(map(s.slope, bounds)), rtol=1e-9)


def test_programs_by_turns_and_closed_ones(counts):
    first = Chain()
    first.chain.grad(300, 1.0, 0)
    other = qd.init(default_fp=qd.f64)
    with pytest.raises(qd.QdrunRuntimeError, match="another program"):
        first.chain.grad(300, 1.0, 0)
    first.taken()
    with first.program:
        for _ in range(3):
            first.chain.grad(300, 1.0, 0)
        np.testing.assert_allclose(first.taken(), 3 * first.slope(300), rtol=1e-9)
    first.program.close()
    with pytest.raises(qd.QdrunRuntimeError):
        first.chain.grad(300, 1.0, 0)
    other.close()


# ---- plans before anything is compiled
@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels that are compiled. Nothing is known of those of other tests."""
    CACHE.clear()
    names, real = [], CpuDevice.compile

    def compile_(self, kernel, options):
        names.append(kernel.name)
        return real(self, kernel, options)

    monkeypatch.setattr(CpuDevice, "compile", compile_)
    return names


def test_a_plan_compiles_nothing(compiled):
    s = Chain(offline_cache=False)
    own = s.chain.grad.plan(500, 1.0, 0)
    far = s.chain.grad.plan(500, 1.0, 0, arch="cuda")
    assert own.bytes > 0 and far.rows()[0]["bound"] == 500 and s.chain.grad.remedies(500, 1.0, 0)
    assert s.gated.grad.plan(300).bytes > 0
    assert compiled == [] and s.program.kernels() == [] and "context" not in {k for k, n in s.program.usage().items() if n}
    s.chain.grad(500, 1.0, 0)
    assert sorted(compiled) == ["chain", "chain_grad"]
    assert s.program.usage()["adstack"] == own.bytes
    np.testing.assert_allclose(s.taken(), s.slope(500), rtol=1e-9)
    s.chain.grad.prepare(500, 1.0, 0)
    s.chain(1, 1.0, 0)
    assert len(compiled) == 2


def test_threads_that_want_the_same_code_compile_it_once(compiled):
    s = Chain(offline_cache=False)
    s.chain.grad.plan(5, 1.0, 0)
    gate = threading.Barrier(4)

    def work():
        with s.program:
            gate.wait()
            s.chain.grad(5, 1.0, 0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(compiled) == ["chain", "chain_grad"]
    np.testing.assert_allclose(s.taken(), 4 * s.slope(5), rtol=1e-12)


def test_lanes_that_a_plan_must_know_are_compiled(compiled):
    s = Chain(cpu_lanes=4, offline_cache=False)
    bytes_ = s.chain.grad.plan(500, 1.0, 0).bytes
    assert compiled == ["chain_grad"]
    s.chain.grad(500, 1.0, 0)
    assert s.program.usage()["adstack"] == bytes_


def test_a_graph_takes_no_kernel_that_was_planned_only():
    s = Chain(emulated=True)
    s.chain.grad.plan(5, 1.0, 0)
    with pytest.raises(qd.QdrunRuntimeError, match="not compiled"):
        qd.capture(s.chain, 5, 1.0, 0)
    with pytest.raises(qd.QdrunRuntimeError, match="the gradient of kernel `chain` is not compiled yet"):
        qd.capture(s.chain.grad, 5, 1.0, 0)


@pytest.mark.usefixtures("compiled")
def test_a_kernel_that_is_refused_by_the_device_is_tried_again(monkeypatch):
    s = Chain(offline_cache=False)
    real = CpuDevice.compile

    def refuse(self, kernel, options):
        raise qd.QdrunRuntimeError(f"no code for {kernel.name}")

    monkeypatch.setattr(CpuDevice, "compile", refuse)
    for _ in range(2):
        with pytest.raises(qd.QdrunRuntimeError, match="no code for chain"):
            s.chain(2, 1.0, 0)
    monkeypatch.setattr(CpuDevice, "compile", real)
    s.chain(2, 1.0, 0)
    np.testing.assert_allclose(s.y.to_numpy(), np.sin(np.sin(s.start)), rtol=1e-14)


# ---- tapes
def test_a_tape_of_launches_with_defaults_and_mixed_numbers():
    qd.init(default_fp=qd.f64)
    x = qd.field(qd.f64, shape=40, needs_grad=True)
    a = qd.ndarray(qd.f64, 40, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def step(t: qd.i32, a: qd.types.ndarray(qd.f64, ndim=1), c: qd.f64 = 2.0, by: qd.i32 = 1):
        x[t + 1] = c * by * qd.sin(x[t]) + a[t]

    @qd.kernel
    def end():
        loss[None] = x[9]

    x[0] = 0.3
    rest = [(), (1.5,), (1,), (2.0, 2), (), (0.5, 1), (3, 3), (True,), (1.0,)]
    calls = [(t, a, *more) for t, more in enumerate(rest)]
    with qd.ad.Tape(loss):
        for call in calls:
            step(*call)
        end()
    slope, value, adjoints = 1.0, 0.3, []
    for more in rest:
        c, by = [*more, 2.0, 1][: len(more)] + [2.0, 1][len(more) :]
        adjoints = [s * c * by * np.cos(value) for s in adjoints] + [1.0]
        slope *= c * by * np.cos(value)
        value = c * by * np.sin(value)
    assert np.isclose(loss[None], value, rtol=1e-12) and np.isclose(x.grad[0], slope, rtol=1e-12)
    np.testing.assert_allclose(a.grad.to_numpy()[:9], adjoints, rtol=1e-12)
    with qd.ad.Tape(loss):
        for call in (*calls, (4, a, 1.0, 1)):  # x[5] was read by the launch at 5
            step(*call)
        end()
    assert np.isclose(x.grad[0], slope, rtol=1e-12)


def _clear_while_memory_comes_and_goes(program):
    rng, kept = random.Random(), 0
    seed = rng.randrange(1 << 30)
    rng.seed(seed)
    arrays, trees = [], []
    plain = qd.field(qd.f32, shape=5, needs_grad=True)
    mixed = qd.Vector.field(3, qd.f64)  # its gradient has others between its elements
    other = qd.field(qd.f32)
    qd.root.dense(qd.i, 100).place(mixed, other, mixed.grad, other.grad)
    for step in range(30):
        what = rng.choice(["array", "tree", "drop", "", "", "", "", ""])
        if what == "array":
            arrays.append(qd.ndarray(qd.f32, (rng.randrange(1, 5), 3), needs_grad=True))
        elif what == "tree":
            made, builder = qd.field(qd.f16, needs_grad=True), qd.FieldsBuilder()
            builder.dense(qd.i, 7).place(made)
            trees.append((builder.finalize(), made))
        elif what == "drop" and arrays:
            arrays.pop(rng.randrange(len(arrays)))
        elif what == "drop" and trees:
            trees.pop()[0].destroy()
        grads = [x.grad for x in (plain, mixed, other, *arrays, *(made for _, made in trees))]
        for grad in grads:
            grad.fill(1.5)
        counters = [c for grad in grads for c in program.data.writes_to(grad)]
        before = [c.value for c in counters]
        kept += callable(program.arrays.clearing)
        qd.ad.clear_all_gradients()
        assert all((grad.to_numpy() == 0).all() for grad in grads), f"seed {seed}, step {step}"
        assert all(c.value > b for c, b in zip(counters, before)), f"seed {seed}, step {step}"
    for _ in range(4):
        qd.ad.clear_all_gradients()
    assert kept or callable(program.arrays.clearing)
    x = qd.ndarray(qd.f64, 4, needs_grad=True)
    grad = x.grad
    for _ in range(4):
        qd.ad.clear_all_gradients()
    del x
    gc.collect()
    grad.fill(2.0)
    qd.ad.clear_all_gradients()
    assert (grad.to_numpy() == 2.0).all()  # nothing has this gradient any more


@pytest.mark.parametrize("options", [{}, {"batch": 3}, {"arch": qd.cuda, "device": "emulated"}])
def test_gradients_are_cleared_as_fields_and_arrays_come_and_go(options):
    """How to clear them is kept from the third time on, until memory comes or goes."""
    with qd.init(default_fp=qd.f64, **options) as program:
        _clear_while_memory_comes_and_goes(program)
