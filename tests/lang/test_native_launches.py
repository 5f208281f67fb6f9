"""Which calls are launched natively: kernels of several programs, methods, gradients of both; and that they see every change."""

import contextlib
import gc
import os
import random
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.lang import native_admission
from qdrun.compiler.lang.kernel import KernelFunction, KernelGradient


@qd.kernel
def scale(x: qd.types.ndarray(), y: qd.types.ndarray(), n: qd.i32):
    for i in x:
        v = x[i]
        for _ in range(n):
            v = v * x[i]
        y[i] += v


def start(**how):
    return qd.init(arch=qd.cpu, default_fp=qd.f64, cpu_max_num_threads=1, offline_cache=False, **how)


def array(values, dtype=qd.f64, needs_grad=False):
    out = qd.ndarray(dtype, shape=len(values), needs_grad=needs_grad)
    out.from_numpy(np.asarray(values, out.to_numpy().dtype))
    return out


@contextlib.contextmanager
def no_python(monkeypatch):
    """A block in which every launch is a native one."""

    def refuse(self, *args, **kwargs):
        raise AssertionError(f"{self} was launched in Python")

    with monkeypatch.context() as m:
        for cls in (KernelFunction, KernelGradient):
            m.setattr(cls, "slow_call", refuse)
        yield


@qd.kernel
def blend(x: qd.types.ndarray(), a: qd.f64, y: qd.types.ndarray(), n: qd.i32 = 3, b: float = -0.5):
    for i in x:
        y[i] = a * x[i] ** n + b


def test_every_form_of_a_call_is_a_native_launch(monkeypatch):
    rng = np.random.default_rng()
    with start():
        x, y = array(rng.uniform(0.5, 1.5, 4), needs_grad=True), array(np.zeros(4), needs_grad=True)
        y.grad.fill(1.0)
        blend(x, 1.0, y, 2, 0.5)
        blend.grad(x, 1.0, y, 2, 0.5)
        slopes = x.grad.to_numpy()
        monkeypatch.setattr(KernelFunction, "_launch", lambda *args, **kwargs: pytest.fail("launched in Python"))
        monkeypatch.setattr(KernelGradient, "_ready", lambda *args, **kwargs: pytest.fail("launched in Python"))
        for _ in range(3):
            a, n, b = float(rng.normal()), int(rng.integers(1, 5)), float(rng.normal())
            forms = [
                ((x, a, y, n, b), {}, n, b),
                ((x, a), {"b": b, "y": y, "n": n}, n, b),
                ((), {"y": y, "b": b, "x": x, "a": a}, 3, b),
                ((x, a, y), {}, 3, -0.5),
                ((x,), {"a": a, "y": y, "n": n}, n, -0.5),
            ]
            for args, kwargs, power, shift in forms:
                y.fill(0.0)
                blend(*args, **kwargs)
                assert np.allclose(y.to_numpy(), a * x.to_numpy() ** power + shift, rtol=1e-13)
                y.grad.fill(1.0)  # a store takes it away
                blend.grad(*args, **kwargs)
                slopes += a * power * x.to_numpy() ** (power - 1)
        assert np.allclose(x.grad.to_numpy(), slopes, rtol=1e-12)
        for wrong, said in (({"c": 1.0}, "`c` is not a parameter"), ({"x": x}, "`x` was given twice"), ({}, "is missing `y`")):
            with pytest.raises(qd.QdrunTypeError, match=said):
                blend(x, 1.0, **wrong)


Pair = qd.types.struct(count=qd.i32, place=qd.types.vector(3, qd.f64))


@qd.kernel
def give_real(x: qd.f64) -> qd.f64:
    return 2.0 * x


@qd.kernel
def give_byte(x: qd.f64) -> qd.u8:
    return qd.cast(x, qd.u8)


@qd.kernel
def give_truth(x: qd.f64) -> qd.u1:
    return x > 3.0


@qd.kernel
def give_vector(x: qd.f64) -> qd.types.vector(2, qd.f32):
    return qd.Vector([x, -x])


@qd.kernel
def give_struct(x: qd.f64) -> Pair:
    return Pair(count=qd.cast(x, qd.i32), place=qd.Vector([x, 2.0 * x, 3.0 * x]))


@qd.data_oriented
class Meter:
    def __init__(self, x):
        self.x = x

    @qd.kernel
    def read(self, k: qd.i32) -> qd.f64:
        return self.x[k] * 0.5


def test_what_a_kernel_returns_comes_with_its_native_launch(monkeypatch):
    with start() as program:
        if not program.device.on_host:
            pytest.skip("Python waits for what a queue returns")
        meter, given = Meter(array([3.0, 5.0, 7.0])), (1.5, 2.0, 4.25, 200.0)
        kernels = (give_real, give_byte, give_truth, give_vector, give_struct)
        for k in kernels:
            k(1.0)
        meter.read(0)
        with no_python(monkeypatch):
            for x in given:
                assert (give_real(x), give_byte(x), give_truth(x)) == (2.0 * x, int(x), x > 3.0)
                assert type(give_real(x)) is float and type(give_byte(x)) is int and type(give_truth(x)) is bool
                assert give_vector(x).to_numpy().tolist() == [x, -x]
                pair = give_struct(x)
                assert pair.count == int(x) and pair.place.to_numpy().tolist() == [x, 2.0 * x, 3.0 * x]
            assert [meter.read(k) for k in range(3)] == [1.5, 2.5, 3.5]
            meter.x = array([9.0, 11.0])
            assert meter.read(1) == 5.5
    with start(batch=3):
        x = qd.field(qd.f64, ())

        @qd.kernel
        def back() -> qd.f64:
            return x[None] * 2.0

        x.from_numpy(np.array([1.0, 2.0, 3.0]))
        assert [back().tolist() for _ in range(3)] == [[2.0, 4.0, 6.0]] * 3


@dataclass
class Grid:
    cell: qd.types.ndarray(qd.f64, 1)
    size: qd.f64


@dataclass(frozen=True, slots=True)
class Fluid:
    grid: Grid
    out: qd.types.ndarray(qd.f64, 1)
    steps: qd.i32
    order: qd.template()


@qd.kernel
def advance(a: qd.f64, fluid: Fluid):
    for i in fluid.out:
        v = fluid.grid.cell[i]
        for _ in range(fluid.steps):
            v = v * fluid.grid.size
        fluid.out[i] = a * v**fluid.order


def random_fluid(rng, order=2, size=4):
    grid = Grid(array(rng.uniform(0.5, 1.5, size), needs_grad=True), float(rng.uniform(0.5, 1.5)))
    return Fluid(grid, array(np.zeros(size), needs_grad=True), int(rng.integers(0, 4)), order)


def expected(a, fluid):
    scale = fluid.grid.size**fluid.steps
    x = fluid.grid.cell.to_numpy()
    return a * (x * scale) ** fluid.order, a * fluid.order * x ** (fluid.order - 1) * scale**fluid.order


def check_fluid(a, fluid):
    value, slope = expected(a, fluid)
    advance(a, fluid)
    assert np.allclose(fluid.out.to_numpy(), value, rtol=1e-13)
    fluid.grid.cell.grad.fill(0.0)
    fluid.out.grad.fill(1.0)
    advance.grad(a, fluid)
    assert np.allclose(fluid.grid.cell.grad.to_numpy(), slope, rtol=1e-12)


def test_dataclasses_of_arrays_and_numbers_are_launched_natively_object_after_object(monkeypatch):
    rng = np.random.default_rng()
    with start():
        check_fluid(1.0, Fluid(Grid(array([1.0], needs_grad=True), 0.5), array([0.0], needs_grad=True), 3, 2))
        advance(1.0, first := random_fluid(rng))
        with monkeypatch.context() as m:
            m.setattr(KernelFunction, "slow_call", lambda *args, **kwargs: pytest.fail("launched in Python"))
            for _ in range(20):
                fluid = random_fluid(rng, size=int(rng.integers(1, 9)))
                advance(2.0, fluid)
                assert np.allclose(fluid.out.to_numpy(), expected(2.0, fluid)[0], rtol=1e-13)
                first.grid.size, first.grid.cell = float(rng.uniform(0.5, 1.5)), fluid.grid.cell
                first = Fluid(first.grid, fluid.out, 1, 2)
                advance(3.0, first)
                assert np.allclose(first.out.to_numpy(), expected(3.0, first)[0], rtol=1e-13)
        for order in (2, 3, 2, 1, 3):  # another constant is another kernel
            check_fluid(float(rng.normal()), random_fluid(rng, order))
        fluid = random_fluid(rng)
        fluid.grid.size = 1  # a number of another type, which Python converts
        check_fluid(1.5, fluid)
        fluid.grid.size = "wide"
        with pytest.raises(qd.QdrunTypeError, match="member `grid`: member `size`: expected f64, got 'wide'"):
            advance(1.5, fluid)
        del fluid.grid.size
        with pytest.raises(AttributeError):
            advance(1.5, fluid)
        fluid.grid.size, fluid.grid.cell = 1.0, qd.ndarray(qd.f32, 4)
        with pytest.raises(qd.QdrunTypeError, match="member `cell`"):
            advance(1.5, fluid)
        with pytest.raises(qd.QdrunTypeError, match="expected a Fluid"):
            advance(1.5, fluid.grid)


def test_arrays_that_another_thread_replaces_live_until_the_launch_ends():
    @dataclass
    class Held:
        x: qd.types.ndarray(qd.f64, 1)
        y: qd.types.ndarray(qd.f64, 1)

    @qd.kernel
    def total(held: Held, n: qd.i32) -> qd.f64:
        s = 0.0
        qd.loop_config(serialize=True)
        for _ in range(n):
            for i in held.x:
                s += held.x[i] - held.y[i]
        return s

    with start() as program:
        held, going = Held(array(np.ones(500)), array(np.zeros(500))), threading.Event()
        total(held, 1)

        def replace():
            with program:
                while not going.is_set():
                    held.x, held.y = array(np.ones(500)), array(np.zeros(500))

        other = threading.Thread(target=replace)
        other.start()
        try:
            assert {total(held, 40) for _ in range(300)} == {40 * 500.0}
        finally:
            going.set()
            other.join()


@dataclass
class Odd:
    x: qd.types.ndarray(qd.f64, 1)

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


@qd.kernel
def double_odd(odd: Odd):
    for i in odd.x:
        odd.x[i] *= 2.0


def test_a_dataclass_whose_attributes_run_python_is_read_in_python():
    with start() as program:
        odd = Odd(array([1.0, 3.0]))
        double_odd(odd)
        double_odd(odd)
        assert odd.x.to_numpy().tolist() == [4.0, 12.0]
        assert not program.native_launches.get(double_odd.token)


def test_threads_of_one_program_get_what_their_own_launch_returned():
    with start() as program:
        assert give_real(1.0) == 2.0
        wrong = []

        def work(number):
            with program:
                for k in range(2000):
                    x = float(number * 10_000 + k)
                    if give_real(x) != 2.0 * x or give_vector(x).to_numpy()[1] != -x:
                        wrong.append(x)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong


def test_programs_in_turn_launch_a_kernel_and_its_gradient_natively(monkeypatch):
    rng, programs = np.random.default_rng(), [start() for _ in range(3)]
    given = []
    for program in programs:
        with program:
            x, y = array(rng.uniform(0.5, 1.5, 4), needs_grad=True), array(np.zeros(4), needs_grad=True)
            y.grad.fill(1.0)
            scale(x, y, 2)
            scale.grad(x, y, 2)
            given.append((x, y))
    with no_python(monkeypatch):
        for _ in range(20):
            for program, (x, y) in zip(programs, given):
                with program:
                    scale(x, y, 2)
                    scale.grad(x, y, 2)
    for program, (x, y) in zip(programs, given):
        with program:
            assert np.allclose(y.to_numpy(), 21 * x.to_numpy() ** 3, rtol=1e-13)
            assert np.allclose(x.grad.to_numpy(), 21 * 3 * x.to_numpy() ** 2, rtol=1e-13)
            assert len(program.native_launches[scale.token]) == len(program.native_gradients[scale.token]) == 1
            program.close()
            assert not program.native_launches and not program.native_gradients


def test_a_closed_program_and_what_was_launched_in_it_go(monkeypatch):
    """A kernel of the module is used by one short-lived program after another."""
    alive = []

    @qd.data_oriented
    class Part:
        def __init__(self):
            self.a = array([1.0, 2.0], needs_grad=True)

        @qd.kernel
        def twice(self):
            for i in self.a:
                self.a[i] *= 2

    for _ in range(30):
        with start() as program:
            x, y, part = array([1.0, 2.0], needs_grad=True), array([0.0, 0.0], needs_grad=True), Part()
            for _ in range(3):
                scale(x, y, 1)
                scale.grad(x, y, 1)
                part.twice()
            assert part.a.to_numpy().tolist() == [8.0, 16.0]
            alive += [weakref.ref(v) for found in program.variants.values() for v in found.values()]
            alive += [weakref.ref(x) for x in (program, part)]
        del program, x, y, part
    gc.collect()
    assert len(alive) == 30 * 4 and not any(x() for x in alive)


@pytest.mark.slow
def test_threads_launch_the_same_kernels_and_methods_in_programs_of_their_own():
    @qd.data_oriented
    class Sum:
        def __init__(self, values):
            self.x, self.total = array(values, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def add(self, by: qd.f64):
            for i in self.x:
                self.total[None] += self.x[i] * by

    begin = threading.Barrier(4)

    def work(seed):
        rng = random.Random(seed)
        for _ in range(3):
            with start():
                s, x, y = Sum([1.0 + seed, 2.0]), array([1.0 + seed, 2.0]), array([0.0, 0.0])
                s.total.grad[None] = 1.0
                sums, powers, slopes = 0.0, np.zeros(2), 0.0
                begin.wait()
                for _ in range(400):
                    by, n = rng.randrange(8) / 4, rng.randrange(3)
                    s.add(by)
                    s.add.grad(by)
                    scale(x, y, n)
                    sums += by * (3 + seed)
                    slopes += by
                    powers += np.array([1.0 + seed, 2.0]) ** (n + 1)
                assert s.total[None] == sums and s.x.grad.to_numpy().tolist() == [slopes, slopes]
                assert y.to_numpy().tolist() == powers.tolist()
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


# ---- methods


@dataclass
class Inner:
    a: qd.types.ndarray()
    weight: float


@qd.data_oriented(template_primitives=False)
class Model:
    def __init__(self, rng):
        self.n, self.dt, self.label = 2, 0.5, "model"
        self.a, self.b = array(rng.uniform(-1, 1, 3)), array(rng.uniform(-1, 1, 3))
        self.y = qd.field(qd.f64, shape=3)
        self.inner = Inner(array(rng.uniform(-1, 1, 3)), 2.0)
        self.parts = [array(rng.uniform(-1, 1, 3)), array(rng.uniform(-1, 1, 3))]
        self.history = []
        self.table = np.arange(3.0)

    @qd.kernel
    def step(self):
        for i in range(3):
            self.y[i] = self.a[i] * self.dt - self.b[i] + self.inner.a[i] * self.inner.weight + self.parts[1][i] * self.n

    def expected(self):
        a, b, inner, part = (x.to_numpy().astype(float) for x in (self.a, self.b, self.inner.a, self.parts[1]))
        return a * self.dt - b + inner * self.inner.weight + part * self.n


def _swap(m, rng):
    m.a, m.b = m.b, m.a


def _twin(m, rng):
    m.b = m.a


CHANGES = [
    lambda m, rng: setattr(m, "a", array(rng.uniform(-1, 1, 3))),
    lambda m, rng: setattr(m, "b", array(rng.integers(-9, 9, 3), qd.i32)),
    lambda m, rng: setattr(m, "b", array(rng.uniform(-1, 1, 3))),
    lambda m, rng: setattr(m.inner, "a", m.a),
    lambda m, rng: setattr(m.inner, "a", array(rng.uniform(-1, 1, 3))),
    lambda m, rng: setattr(m, "inner", Inner(array(rng.uniform(-1, 1, 3)), 3.0)),
    lambda m, rng: setattr(m.inner, "weight", float(rng.uniform(-1, 1))),
    lambda m, rng: setattr(m, "dt", float(rng.uniform(-1, 1))),
    lambda m, rng: setattr(m, "dt", int(rng.integers(1, 9))),
    lambda m, rng: setattr(m, "n", int(rng.integers(1, 10**6))),
    lambda m, rng: setattr(m, "label", str(rng.integers(9))),
    lambda m, rng: m.parts.__setitem__(1, array(rng.uniform(-1, 1, 3))),
    lambda m, rng: setattr(m, "parts", [m.a, array(rng.uniform(-1, 1, 3))]),
    lambda m, rng: m.parts.append(array(rng.uniform(-1, 1, 3))),
    lambda m, rng: m.history.append(1.5),
    lambda m, rng: setattr(m, f"extra{rng.integers(3)}", array(rng.uniform(-1, 1, 3))),
    lambda m, rng: setattr(m, "table", np.arange(4.0)),
    lambda m, rng: m.a.fill(float(rng.uniform())),
    lambda m, rng: m.__dict__.update(dt=0.25),
    lambda m, rng: setattr(m, "__dict__", dict(m.__dict__)),
    _swap,
    _twin,
]


@pytest.mark.parametrize("changes", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_a_method_sees_every_change_of_its_object(changes):
    rng = np.random.default_rng()
    with start():
        m = Model(rng)
        for _ in range(changes):
            change = CHANGES[rng.integers(len(CHANGES))]
            change(m, rng)
            for _ in range(int(rng.integers(1, 4))):
                m.y.fill(np.nan)
                m.step()
                assert np.allclose(m.y.to_numpy(), m.expected(), rtol=1e-6, atol=1e-9), CHANGES.index(change)


def test_methods_and_their_gradients_are_launched_natively_while_the_object_changes(monkeypatch):
    @qd.data_oriented
    class Solver:
        def __init__(self, by):
            self.by, self.table, self.time = by, np.arange(1000.0), 0.0
            self.x = qd.field(qd.f64, shape=2, needs_grad=True)
            self.a, self.b = array([1.0, 2.0], needs_grad=True), array([3.0, 4.0], needs_grad=True)
            self.swapped = [qd.field(qd.f64, shape=2), 7]

        @qd.kernel
        def run(self, c: qd.f64):
            for i in range(2):
                self.x[i] += self.by * self.a[i] * c

    with start():
        one, other = Solver(10.0), Solver(1.0)
        for s in (one, other):
            s.x.grad.fill(1.0)
            s.run(1.0)
            s.run.grad(1.0)
        with no_python(monkeypatch):
            for k in range(10):
                for s in (one, other):
                    s.run(2.0)
                    s.run.grad(0.5)
                    s.a, s.b = s.b, s.a
                    s.time += 0.1
                    s.table[0] = k
                    s.table = s.table.copy()
                run, gradient = one.run, one.run.grad
                run(1.0), gradient(0.5)
        assert one.x.to_numpy().tolist() == [10 * (1 + 2 * 20 + 20), 10 * (2 + 2 * 30 + 30)]
        assert other.x.to_numpy().tolist() == [1 + 2 * 20, 2 + 2 * 30]
        assert (one.a.grad.to_numpy() + one.b.grad.to_numpy()).tolist() == [10 * (1 + 0.5 * 20)] * 2


def test_template_arguments_are_launched_natively(monkeypatch):
    @qd.kernel
    def add(x: qd.template(), n: qd.template(), c: qd.f64):
        for i in x:
            x[i] += n * c

    with start():
        x, y, big = qd.field(qd.f64, shape=3), qd.field(qd.f64, shape=5), 10**6
        calls = ((x, 1), (y, 1), (x, big))
        for f, n in calls:
            add(f, n, 1.0)
        with no_python(monkeypatch):
            for f, n in calls:
                add(f, n, 2.0)
        add(x, int("1000000"), 1.0)  # another object of the same value
        assert x.to_numpy().tolist() == [3 + 4 * 10**6] * 3 and y.to_numpy().tolist() == [3] * 5
        assert len(add.variants()) == 3


def test_there_are_so_many_launches_of_a_kernel_and_all_objects_get_theirs(monkeypatch):
    monkeypatch.setattr(native_admission, "MOST", 4)

    @qd.data_oriented
    class Cell:
        def __init__(self, k):
            self.k, self.x = k, qd.field(qd.f64, shape=())

        @qd.kernel
        def add(self):
            self.x[None] += self.k

    with start() as program:
        cells = [Cell(k) for k in range(7)]
        for _ in range(20):
            for cell in cells:
                cell.add()
            assert len(program.native_launches[Cell.add.token]) == 4
        assert [c.x[None] for c in cells] == [20 * k for k in range(7)]
        for _ in range(native_admission.PATIENCE + 1):
            cells[0].add()
        with no_python(monkeypatch):
            cells[0].add()
        assert cells[0].x[None] == 0 and len(Cell.add.variants()) == 7


def test_a_method_of_an_object_with_slots_goes_through_python_and_is_right():
    @qd.data_oriented
    class Slotted:
        __slots__ = ("a", "x")

        def __init__(self):
            self.a, self.x = array([1.0, 2.0]), qd.field(qd.f64, shape=2)

        @qd.kernel
        def copy(self):
            for i in range(2):
                self.x[i] = self.a[i]

    with start() as program:
        s = Slotted()
        for values in ([1.0, 2.0], [5.0, 6.0], [7.0, 8.0]):
            s.a = array(values)
            s.copy()
            assert s.x.to_numpy().tolist() == values
        assert not program.native_launches.get(Slotted.copy.token)


def test_a_bound_kernel_says_what_it_is():
    @qd.data_oriented
    class Named:
        @qd.kernel
        def method(self):
            pass

    one, other = Named(), Named()
    assert one.method.__name__ == "method" and one.method.__wrapped__ is Named.method.fn
    kept = one.method
    assert other.method.instance is other and kept.instance is one


def test_the_launcher_waits_for_calls_that_pay(tmp_path):
    """Short programs do without the launcher, unless it is on disk; long ones compile it, and their launches are native from then on."""
    program = """
import sys
import qdrun as qd
from qdrun.compiler.lang import kernel as k

k.PATIENCE = 20
qd.init(arch=qd.cpu)
x = qd.field(qd.f64, shape=4)

@qd.kernel
def add(by: qd.f64):
    for i in x:
        x[i] += by

calls, slow = int(sys.argv[1]), []
before = k.KernelFunction.slow_call
k.KernelFunction.slow_call = lambda self, *args: (slow.append(self), before(self, *args))[1]
for _ in range(calls):
    add(0.5)
assert x[3] == 0.5 * calls, x[3]
print(len(slow))
"""

    (tmp_path / "program.py").write_text(program)
    cache = tmp_path / "cache"

    def slow_calls(calls: int) -> int:
        command, where = (
            [sys.executable, str(tmp_path / "program.py"), str(calls)],
            os.environ | {"QDRUN_CACHE_DIR": str(cache)},
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=where)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def has_launcher() -> bool:
        return any(b'"launcher"' in file.read_bytes() for file in cache.rglob("*") if file.is_file())

    assert slow_calls(10) == 10
    assert not has_launcher()
    assert slow_calls(60) == 20
    assert has_launcher()
    assert slow_calls(60) == 1  # it is on disk
