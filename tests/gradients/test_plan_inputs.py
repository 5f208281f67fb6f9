"""A plan is made once for each content of what it reads: kept while nothing changed, made again as soon as something did."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import qdrun as qd

OPTIONS = {"default_fp": qd.f64, "cpu_max_num_threads": 1, "cpu_lanes": 1}


class Setup:
    """A kernel whose loop runs ``count[i]`` times, for i in 0..7, and kernels that write ``count``."""

    def __init__(self, arch=qd.cpu, **options):
        self.program = qd.init(arch=arch, **OPTIONS, **options)
        self.x, self.y = (qd.field(qd.f64, shape=8, needs_grad=True) for _ in range(2))
        self.count, self.other = qd.field(qd.i32, shape=8), qd.field(qd.i32, shape=8)
        x, y, count, other = self.x, self.y, self.count, self.other
        x.fill(0.3)

        @qd.kernel
        def k(scale: qd.f64):
            for i in x:
                v = x[i]
                for _ in range(count[i]):
                    v = qd.sin(v) * scale
                y[i] = v

        @qd.kernel
        def put(i: qd.i32, n: qd.i32):
            count[i] = n

        @qd.kernel
        def put_other(i: qd.i32, n: qd.i32):
            other[i] = n

        @qd.kernel
        def fails(n: qd.i32):
            for i in range(1):
                count[i] = n
                assert n < 0, "as it should"

        self.k, self.put, self.put_other, self.fails = k, put, put_other, fails

    def plan(self):
        return self.k.grad.plan(1.0)

    def slots(self):
        return [r["bound"] for r in self.plan().rows()]

    def check(self):
        """The gradient of sum(y) by the chain rule, and the planned bytes are the used bytes."""
        counts = self.count.to_numpy()
        self.x.grad.fill(0.0)
        self.k(0.9)
        self.y.grad.fill(1.0)
        self.k.grad(0.9)
        expected = np.ones(8)
        for i, n in enumerate(counts):
            v = 0.3
            for _ in range(n):
                expected[i] *= 0.9 * np.cos(v)
                v = 0.9 * np.sin(v)
        np.testing.assert_allclose(self.x.grad.to_numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("arch", [qd.cpu, qd.python], ids=["cpu", "python"])
def test_writes_by_kernels_drop_a_plan_and_writes_that_change_nothing_keep_it(arch):
    s = Setup(arch)
    s.count.from_numpy(np.arange(8, dtype=np.int32))
    first = s.plan()
    assert s.slots() == [7]
    assert s.plan() is first
    for _ in range(3):  # the second launch on is native
        s.put(2, 2)
    assert s.plan() is first, "the content is what it was"
    s.put(2, 30)
    assert s.slots() == [30]
    s.check()
    s.put(2, 2)
    assert s.plan() == first


def test_writes_from_python_are_seen():
    s = Setup()
    for write, slots in [
        (lambda: s.count.fill(3), 3),
        (lambda: s.count.__setitem__(1, 9), 9),
        (lambda: s.count.from_numpy(np.full(8, 4, np.int32)), 4),
        (lambda: s.count.copy_from(s.other), 0),
        (lambda: s.other.fill(50), 0),
        (lambda: s.count.copy_from(s.other), 50),
    ]:
        write()
        assert s.slots() == [slots]
        s.check()


def test_a_failed_launch_counts_as_a_write():
    s = Setup(debug=True)
    s.count.fill(3)
    assert s.slots() == [3]
    for n in (12, 13):
        with pytest.raises(qd.QdrunAssertionError, match="as it should"):
            s.fails(n)
        assert s.slots() == [n]


def test_kernels_that_are_compiled_later_are_seen():
    s = Setup()
    s.count.fill(3)
    first = s.plan()
    count = s.count

    @qd.kernel
    def add(n: qd.i32):
        for i in count:
            qd.atomic_add(count[i], n)

    add(0)
    assert s.plan() is first
    for _ in range(2):
        add(2)
    assert s.slots() == [7]
    s.check()


def test_writes_to_something_else_do_not_look_at_the_content(monkeypatch):
    s = Setup()
    s.count.fill(3)
    first = s.plan()
    gradient = next(iter(s.program.variants[s.k.token].values())).gradient
    monkeypatch.setattr(type(gradient._inputs), "changed", None)  # would raise
    s.put_other(1, 100)
    s.put_other(1, 101)
    assert s.k.grad.plan(0.5) is first, "a real argument that no bound uses"


def test_memory_that_was_handed_out_is_compared_each_time():
    s = Setup()
    s.count.fill(3)
    first = s.plan()
    view = s.count.to_numpy(copy=False)
    assert s.plan() is first
    view[3] = 20
    assert s.slots() == [20]
    s.check()
    view[3] = 3
    assert s.plan() == first


def test_arrays_that_are_arguments_are_compared_each_time():
    qd.init(**OPTIONS)
    x = qd.field(qd.f64, shape=4, needs_grad=True)
    y = qd.field(qd.f64, shape=4, needs_grad=True)

    @qd.kernel
    def k(count: qd.types.ndarray(qd.i32, ndim=1)):
        for i in x:
            v = x[i]
            for _ in range(count[i]):
                v = qd.sin(v)
            y[i] = v

    a, b = np.full(4, 3, np.int32), np.full(4, 5, np.int32)
    own = qd.ndarray(qd.i32, 4)
    own.from_numpy(np.full(4, 8, np.int32))
    for array, slots in ((a, 3), (b, 5), (a, 3), (own, 8)):
        assert [r["bound"] for r in k.grad.plan(array).rows()] == [slots]
    a[2] = 40
    assert [r["bound"] for r in k.grad.plan(a).rows()] == [40]
    own[1] = 11
    assert [r["bound"] for r in k.grad.plan(own).rows()] == [11]


def test_a_large_array_is_evaluated_again_and_an_equal_plan_is_the_same_plan(monkeypatch):
    monkeypatch.setattr("qdrun.compiler.program.plans.plan_guard.MOST_COMPARED", 8)
    s = Setup()
    s.count.fill(3)
    first = s.plan()
    s.put(0, 3)
    assert s.plan() is first
    s.put(0, 4)
    assert s.slots() == [4]
    s.check()


def test_launches_on_other_threads_are_seen():
    s = Setup()
    s.count.fill(3)
    s.put(0, 3)
    first = s.plan()

    def work(i):
        with s.program:
            for n in range(200):
                s.put(i, n % 4)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert s.plan() is first or s.plan() == first
    s.put(7, 60)
    assert s.slots() == [60]
    variant = next(iter(s.program.variants[s.put.token].values()))
    assert int(variant.executable.context[15]) == 802


def test_two_programs_do_not_share_versions():
    a, b = Setup(), None
    a.count.fill(3)
    a.put(0, 3)
    first = a.plan()
    b = Setup()
    b.count.fill(6)
    b.put(0, 9)
    assert b.slots() == [9]
    with a.program:
        assert a.plan() is first
        a.put(0, 10)
        assert a.slots() == [10]


def test_random_writes_always_plan_what_a_fresh_plan_would():
    s = Setup()
    rng = np.random.default_rng(5)
    for _ in range(150):
        what, i, n = rng.integers(0, 6), int(rng.integers(0, 8)), int(rng.integers(0, 12))
        if what == 0:
            s.put(i, n)
        elif what == 1:
            s.count[i] = n
        elif what == 2:
            s.other[i] = n
        elif what == 3:
            s.put_other(i, n)
        elif what == 4 and n == 0:
            s.count.copy_from(s.other)
        assert s.slots() == [max(0, s.count.to_numpy().max())]


@pytest.mark.parametrize("of_array", [True, False], ids=["array", "argument"])
def test_a_zero_of_the_other_sign_is_another_content(of_array):
    program = qd.init(default_fp=qd.f64, cpu_max_num_threads=2, cpu_lanes=1)
    x, y = (qd.field(qd.f64, shape=64, needs_grad=True) for _ in range(2))
    d = qd.field(qd.f64, shape=64)
    x.fill(0.3)

    @qd.kernel
    def k(n: qd.i32, s: qd.f64):
        for i in x:
            if 1.0 / d[i] + 1.0 / s > 0.0:
                v = x[i]
                for _ in range(n):
                    v = qd.sin(v)
                y[i] = v

    for zero in (-0.0, 0.0, -0.0):
        d.fill(zero if of_array else 1.0)
        s = 1.0 if of_array else zero
        passes = not np.signbit(zero)
        assert k.grad.plan(200, s).bytes == passes * min(program.state.own_machine().workers, 64) * 200 * 8
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        k.grad(200, s)
        assert (x.grad.to_numpy() != 0.0).all() == passes


def test_a_nan_that_stays_keeps_its_plan():
    qd.init(default_fp=qd.f64, cpu_max_num_threads=2, cpu_lanes=1)
    x, y = (qd.field(qd.f64, shape=64, needs_grad=True) for _ in range(2))
    d = qd.field(qd.f32, shape=64)
    d.fill(float("nan"))

    @qd.kernel
    def k(n: qd.i32, s: qd.f64):
        for i in x:
            if d[i] > s:
                v = x[i]
                for _ in range(n):
                    v = qd.sin(v)
                y[i] = v

    first = k.grad.plan(200, float("nan"))
    variant = next(iter(qd.current_program().variants[k.token].values()))
    known = dict(variant.plans._known)
    d.fill(float("nan"))
    assert k.grad.plan(200, float("nan")) is first
    assert variant.plans._known == known, "the same key"
