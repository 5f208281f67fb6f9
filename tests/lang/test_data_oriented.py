"""Classes whose methods are kernels: their members, inheritance, properties, static methods, ndarrays that are replaced."""

import dataclasses
import re
from typing import NamedTuple

import numpy as np
import pytest

import qdrun as qd


@pytest.fixture(autouse=True)
def program():
    with qd.init(arch=qd.cpu, default_fp=qd.f64) as p:
        yield p


def array(values, **how):
    out = qd.ndarray(qd.f64, shape=len(values), **how)
    out.from_numpy(np.asarray(values, float))
    return out


@qd.data_oriented
class Part:
    def __init__(self, values):
        self.a = array(values)


@qd.data_oriented
class Solver:
    FACTOR = 2.0

    def __init__(self, values, by):
        self.n, self.by = len(values), by
        self.x = qd.field(qd.f64, shape=self.n, needs_grad=True)
        self.a = array(values, needs_grad=True)
        self.part = Part(values)
        self.list = [array(values), array(values)]
        self.t = qd.tensor(qd.f64, shape=(self.n,), backend=qd.Backend.NDARRAY)

    @property
    def twice(self):
        return self.by * 2

    @property
    @qd.kernel
    def answer(self) -> qd.i32:
        return 42

    @staticmethod
    @qd.kernel
    def static_kernel(v: qd.f64) -> qd.f64:
        return v * 3

    @staticmethod
    @qd.func
    def half(v):
        return v * 0.5

    @classmethod
    @qd.kernel
    def of_the_class(cls) -> qd.f64:
        return cls.FACTOR * 10

    @qd.func
    def step(self, i):
        return self.half(self.a[i]) * self.twice + self.part.a[i]

    @qd.kernel
    def run(self, extra: qd.f64):
        for i in range(self.n):
            self.x[i] += self.step(i) + extra + self.list[1][i] * self.FACTOR
            self.t[i] = self.a.shape[0]


class Derived(Solver):
    FACTOR = 0.0

    @qd.func
    def step(self, i):
        return self.a[i] * 100

    def run_twice(self):
        self.run(0.0)
        self.run(0.0)


def test_members_properties_and_static_methods():
    s = Solver([1, 2, 3], 3.0)
    s.run(0.5)
    assert s.x.to_numpy().tolist() == [6.5, 12.5, 18.5] and s.t.to_numpy().tolist() == [3, 3, 3]
    assert s.answer == 42 and s.static_kernel(2.0) == 6.0 and Solver.static_kernel(1.0) == 3.0
    assert Solver.of_the_class() == 20 and Derived.of_the_class() == 0


def test_subclasses_override_functions_and_constants():
    d = Derived([1, 2], 1.0)
    d.run_twice()
    assert d.x.to_numpy().tolist() == [200, 400]


def test_ndarrays_may_be_replaced_by_others_of_any_type():
    s = Solver([1, 2, 3], 1.0)
    s.run(0.0)
    s.part.a = array([10, 20, 30])
    s.list[1] = array([100, 0, 0])
    s.run(0.0)
    assert s.x.to_numpy().tolist() == [2 + 2 + 1 + 10 + 200, 4 + 4 + 2 + 20, 6 + 6 + 3 + 30]
    before = len(Solver.run.variants())
    s.part.a = qd.ndarray(qd.i32, shape=3)
    s.run(0.0)
    s.run(0.0)
    assert len(Solver.run.variants()) == before + 1
    assert s.x.to_numpy()[1] == 30 + 2 * 2


def test_one_array_in_two_places_is_one_argument():
    s = Solver([1, 2], 1.0)
    s.part.a = s.a
    s.run(0.0)
    assert s.x.to_numpy().tolist() == [4, 8]
    s.part.a = array([5, 5])
    s.run(0.0)
    assert s.x.to_numpy().tolist() == [4 + 8, 8 + 11]


def test_objects_are_template_arguments_and_nest():
    @qd.func
    def total(s, i):
        return s.a[i] + s.part.a[i]

    @qd.kernel
    def k(s: qd.template(), out: qd.types.ndarray()):
        for i in range(s.n):
            out[i] = total(s, i) * s.by

    out = np.zeros(2)
    for s in (Solver([1, 2], 10.0), Solver([3, 4], 1.0)):
        k(s, out)
        assert out.tolist() == [2 * s.a[0] * s.by, 2 * s.a[1] * s.by]


def test_named_tuples_and_slots():
    @qd.data_oriented
    class State(NamedTuple):
        x: object
        n: int

    @qd.data_oriented
    class Slotted:
        __slots__ = ("y",)

        def __init__(self, y):
            self.y = y

    @qd.kernel
    def k(s: qd.template(), t: qd.template()):
        for i in range(s.n):
            s.x[i] += t.y[i]

    x = array([1, 2, 3])
    t = Slotted(array([1, 1, 1]))
    k(State(x, 2), t)
    t.y = array([10, 10, 10])
    k(State(x, 3), t)
    assert x.to_numpy().tolist() == [12, 13, 13]


def test_numbers_that_come_with_each_launch():
    @qd.data_oriented(stable_members=True, template_primitives=False)
    class Clock:
        def __init__(self):
            self.dt, self.n, self.on = 0.5, 3, True
            self.x = qd.field(qd.f64, shape=4)

        @qd.kernel
        def tick(self):
            for i in range(self.n):
                if self.on:
                    self.x[i] += self.dt

        @qd.kernel
        def unrolled(self):
            for i in qd.static(range(self.n)):
                self.x[i] = 0

    c = Clock()
    c.tick()
    c.dt, c.n = 2.0, 1
    c.tick()
    c.on = False
    c.tick()
    assert c.x.to_numpy().tolist() == [2.5, 0.5, 0.5, 0] and len(Clock.tick.variants()) == 1
    with pytest.raises(qd.QdrunTypeError, match=r"cannot be unrolled|not known at compile time"):
        c.unrolled()


@dataclasses.dataclass
class Gains:
    k: float
    n: int


@qd.data_oriented
class Motor:
    def __init__(self, gains):
        self.gains, self.speed = gains, np.float32(1.5)


@qd.data_oriented(template_primitives=False)
class Robot:
    def __init__(self):
        self.scale, self.gains = 2, Gains(0.5, 3)
        self.motors = [Motor(Gains(1.0, 1)), Motor(Gains(2.0, 2))]
        self.out = qd.field(qd.f64, shape=())

    @qd.kernel
    def run(self):
        total = 0.0
        for m in qd.static(self.motors):
            total += m.gains.k * m.gains.n * m.speed
        self.out[None] = self.scale * self.gains.k * self.gains.n + total

    def expected(self):
        return self.scale * self.gains.k * self.gains.n + sum(m.gains.k * m.gains.n * float(m.speed) for m in self.motors)


def test_numbers_of_what_an_object_holds_come_with_each_launch_too():
    """``template_primitives=False`` holds for dataclasses, marked objects and numpy numbers at any depth, replaced ones included."""
    r = Robot()

    def ran():
        r.run()
        return r.out[None]

    assert ran() == r.expected()
    r.gains.n, r.gains.k, r.motors[1].gains.n, r.motors[0].speed = 9, 1.25, 7, np.float32(0.25)
    assert ran() == r.expected()
    r.gains, r.motors[1].gains = Gains(-3.0, 5), Gains(0.125, 6)
    assert ran() == r.expected() and len(Robot.run.variants()) == 1
    r.scale = 1.5  # a number of another type is another specialisation
    assert ran() == r.expected() and len(Robot.run.variants()) == 2
    r.gains.n = 1 << 40
    with pytest.raises(qd.QdrunTypeError, match=r"kernel `run`, argument `self`: `gains.n`: 1099511627776 does not fit i32"):
        r.run()


def test_a_class_that_is_not_marked_is_refused():
    class Plain:
        @qd.kernel
        def k(self):
            pass

    for call in (lambda: Plain().k(), Plain().k.grad, lambda: Plain.k(Plain())):
        with pytest.raises(qd.QdrunSyntaxError, match=r"class Plain is not marked(.|\n)*@qd\.data_oriented"):
            call()


def test_recursion_is_refused_with_its_chain():
    @qd.data_oriented
    class Loop:
        @qd.func
        def a(self, n):
            return self.b(n)

        @qd.func
        def b(self, n):
            return self.a(n - 1)

        @qd.kernel
        def k(self) -> qd.i32:
            return self.a(3)

    @qd.func
    def own(n):
        return own(n - 1)

    @qd.kernel
    def k() -> qd.i32:
        return own(3)

    with pytest.raises(qd.QdrunSyntaxError) as caught:
        Loop().k()
    assert str(caught.value).startswith("`a` calls itself: `a` -> `b` -> `a`; functions are inlined, so recursion has no end")
    assert re.search(r"test_data_oriented\.py:\d+", str(caught.value))
    with pytest.raises(qd.QdrunSyntaxError, match="`own` calls itself: functions are inlined"):
        k()


def test_gradients_through_members_and_replaced_arrays():
    s = Solver([1, 2, 3], 3.0)
    s.run(0.0)
    s.x.grad.fill(1.0)
    s.run.grad(0.0)
    assert s.a.grad.to_numpy().tolist() == [3.0] * 3


def test_a_tape_remembers_the_arrays_of_each_launch():
    @qd.data_oriented
    class Sum:
        def __init__(self):
            self.x = array([1.0, 2.0], needs_grad=True)
            self.loss = qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def add(self):
            for i in self.x:
                self.loss[None] += self.x[i] ** 2

        @qd.ad.grad_replaced
        def twice(self):
            self.add()
            self.add()

        @qd.ad.grad_for(twice)
        def twice_backwards(self):
            self.add.grad()

    s = Sum()
    first, second = s.x, array([3.0, 4.0], needs_grad=True)
    with qd.ad.Tape(loss=s.loss):
        s.add()
        s.x = second
        s.add()
    assert first.grad.to_numpy().tolist() == [2, 4] and second.grad.to_numpy().tolist() == [6, 8]
    with qd.ad.Tape(loss=s.loss):
        s.twice()
    assert s.loss[None] == 50 and second.grad.to_numpy().tolist() == [6, 8]
