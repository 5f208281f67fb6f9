"""What a program makes for an object or a kernel ends with it: nothing is kept until the program is closed."""

import gc
import weakref

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.compile.cache import CACHE
from qdrun.compiler.program.program import current_program
from qdrun.compiler.runtime.cpu import device


@pytest.fixture(scope="module", autouse=True)
def no_garbage():
    """What other tests have left is collected once, and not visited each time that a test here collects: 160 ms for each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["cpu", "python"])
def program(request):
    with qd.init(arch=getattr(qd, request.param), default_fp=qd.f64) as program:
        yield program


def _counts(program):
    program.lifetimes.reap()
    return {
        "variants": sum(map(len, program.variants.values())),
        "kernels": len(program.data.kernels),
        "launches": sum(map(len, [*program.native_launches.values(), *program.native_gradients.values()])),
        "contexts": len(device._contexts),
        "bytes": sum(program.usage().values()),
        "counters": sum(map(len, program.data.from_python.values())),
    }


def _drops(program, once, times=5):
    """Do something several times: what it made is gone after each, and the counts do not grow."""
    for n in (-1, 0):  # twice: what tests before have left is gone then, too
        once(n)
        gc.collect()
    before = _counts(program)
    for n in range(1, times):
        made = once(n) or ()
        alive = [weakref.ref(x) for x in made]
        del made
        gc.collect()
        assert [x() for x in alive] == [None] * len(alive)
    assert _counts(program) == before


@qd.data_oriented
class Plain:
    def __init__(self):
        self.x = qd.ndarray(qd.f64, 8, needs_grad=True)
        self.loss = qd.ndarray(qd.f64, 1, needs_grad=True)

    @qd.kernel
    def step(self):
        for i in range(8):
            self.loss[0] += self.x[i] * self.x[i]

    def run(self):
        self.x.fill(3.0)
        self.step()
        self.step()
        self.loss.grad.fill(1.0)
        self.step.grad()
        assert self.loss[0] == 144.0 and self.x.grad[1] == 6.0
        return self, self.x, self.loss


class Child:
    def __init__(self, parent):
        self.parent = parent


@qd.data_oriented
class Part:
    def __init__(self, parent):
        self.parent, self.x = parent, qd.ndarray(qd.f64, 8)


@qd.data_oriented
class Cyclic(Plain):
    def __init__(self):
        super().__init__()
        self.part = Part(self)
        self.parts = [Part(self), Part(self)]
        self.hooks = [lambda: self]
        self.pair = (self.x, self.loss)
        self.both = (self, 1)
        self.known = {"me": self}
        self.child = Child(self)


@qd.data_oriented
class Kinds(Plain):
    def __init__(self):
        super().__init__()
        self.parts, self.tuple, self.known = [qd.ndarray(qd.f64, 4)], (qd.ndarray(qd.f64, 4), 3), {"a": qd.ndarray(qd.f64, 4)}
        self.numpy = np.zeros(5)


@pytest.mark.parametrize("cls", [Plain, Cyclic, Kinds])
def test_an_object_is_free_when_it_is_dropped(program, cls):
    _drops(program, lambda n: cls().run())


def test_an_object_is_free_before_the_collector_runs_where_nothing_refers_to_it(program):
    gc.disable()
    try:
        one = Plain()
        one.step()
        one.step()
        alive = weakref.ref(one)
        del one
        assert alive() is None
    finally:
        gc.enable()


def test_an_object_that_comes_to_lie_where_another_was_is_not_taken_for_it(program):
    places = set()
    for n in range(200):
        one = Plain()
        one.x.fill(float(n))
        one.step()
        one.step()
        assert one.loss[0] == 16.0 * n * n
        places.add(id(one))
        del one
    assert len(places) < 200


def test_members_that_come_to_lie_where_others_were_are_looked_at(program):
    owner = Cyclic()
    owner.step()
    for n in range(50):
        owner.part, owner.parts, owner.hooks = None, None, None
        owner.part, owner.parts, owner.hooks = Part(owner), [Part(owner) for _ in range(2)], [n]
        owner.x = qd.ndarray(qd.f64, 8, needs_grad=True)
        owner.x.fill(float(n))
        owner.loss[0] = 0.0
        owner.step()
        assert owner.loss[0] == 8.0 * n * n


def test_an_object_without_weak_references_is_kept(program):
    @qd.data_oriented
    class Slotted:
        __slots__ = ("x",)

        def __init__(self):
            self.x = qd.ndarray(qd.f64, 4)

        @qd.kernel
        def step(self):
            for i in range(4):
                self.x[i] += 1.0

    for n in range(20):
        one = Slotted()
        one.x.fill(float(n))
        one.step()
        assert one.x[0] == n + 1.0


def test_a_kernel_is_free_with_its_closure(program):
    def once(n):
        x = qd.ndarray(qd.f64, 8, needs_grad=True)
        total = qd.ndarray(qd.f64, 1, needs_grad=True)

        @qd.kernel
        def fill(x: qd.types.ndarray(), total: qd.types.ndarray(), a: qd.f64):
            for i in range(8):
                total[0] += x[i] * a + n

        fill(x, total, 2.0)
        fill(x, total, 2.0)
        total.grad.fill(1.0)
        fill.grad(x, total, 2.0)
        assert x.grad[0] == 2.0 and total[0] == 16.0 * n
        return fill, x, total

    _drops(program, once)


def test_objects_that_are_template_arguments_are_free(program):
    class Marker:
        factor = 3.0

    @qd.kernel
    def scaled(x: qd.types.ndarray(), marker: qd.template()):
        for i in x:
            x[i] += marker.factor

    def once(n):
        marker, x = Marker(), qd.ndarray(qd.f64, 4)
        scaled(x, marker)
        scaled(x, marker)
        assert x[0] == 6.0
        return marker, x

    _drops(program, once)


def test_a_destroyed_tree_gives_everything_back(program):
    def once(n):
        builder = qd.FieldsBuilder()
        x, loss = qd.field(qd.f64, needs_grad=True), qd.field(qd.f64, needs_grad=True)
        builder.dense(qd.i, 8).place(x, x.grad)
        builder.place(loss, loss.grad)
        tree = builder.finalize()

        @qd.kernel
        def total():
            for i in x:
                loss[None] += x[i] * x[i]

        x.fill(2.0)
        with qd.ad.Tape(loss=loss):
            total()
        assert x.grad[3] == 4.0
        x[0] = 1.0
        tree.destroy()
        return builder, x

    _drops(program, once)


def test_what_python_writes_to_an_array_is_counted_until_the_array_ends(program):
    def once(n):
        x = qd.ndarray(qd.f64, 8)
        x.fill(2.0)
        x[3] = 1.0

    _drops(program, once)


def test_a_level_of_a_destroyed_tree_takes_no_field(program):
    builder = qd.FieldsBuilder()
    x = qd.field(qd.f64)
    level = builder.dense(qd.i, 8)
    level.place(x)
    builder.finalize().destroy()
    with pytest.raises(qd.QdrunRuntimeError, match="this level has its memory already"):
        level.place(qd.field(qd.f64))


def test_a_plan_sees_what_kernels_that_are_gone_have_written(program):
    """The bound of a loop is read from memory: its versions must not fall when a kernel that wrote it ends."""
    n, x = qd.field(qd.i32, shape=()), qd.field(qd.f64, shape=(), needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def power():
        for _ in range(1):
            v = x[None]
            for _ in range(n[None]):
                v = v * v
            loss[None] += v

    def write(value):
        @qd.kernel
        def put():
            n[None] = value

        put()

    for value in (1, 3, 2, 5, 4, 1, 6):
        write(value)
        gc.collect()
        current_program().lifetimes.reap()
        x[None], loss.grad[None] = 1.01, 1.0
        x.grad[None] = 0.0
        power()
        power.grad()
        assert x.grad[None] == pytest.approx(2**value * 1.01 ** (2**value - 1))


def test_a_graph_keeps_what_it_launches(program):
    if not program.device.native:
        pytest.skip("the interpreter records no graphs")
    one = Plain()
    one.x.fill(1.0)
    one.step()
    graph = qd.capture(one.step)
    loss = one.loss
    del one
    gc.collect()
    program.lifetimes.reap()
    for _ in range(3):
        graph()
    assert loss[0] == 32.0


def test_float_template_arguments_have_a_bound(monkeypatch):
    monkeypatch.setattr("qdrun.compiler.program.memory.lifetimes.MOST_BY_VALUE", 8)
    with qd.init(arch=qd.cpu) as program:

        @qd.kernel
        def scaled(x: qd.types.ndarray(), a: qd.template()):
            for i in x:
                x[i] += a

        x = qd.ndarray(qd.f32, 4)
        for n in range(24):
            x.fill(0.0)
            scaled(x, n + 0.5)
            assert x[0] == n + 0.5
        counts = _counts(program)
        assert counts["variants"] <= 9 and counts["launches"] <= 9 and counts["kernels"] == 0
        x.fill(0.0)
        scaled(x, 0.5)
        assert x[0] == 0.5


def test_lists_of_paths_have_a_bound(monkeypatch):
    monkeypatch.setattr("qdrun.compiler.compile.cache.MOST", 4)
    CACHE.clear()
    with qd.init(arch=qd.cpu, offline_cache=False):
        x = qd.ndarray(qd.f32, 4)

        def once(n):
            @qd.kernel
            def put(x: qd.types.ndarray(), a: qd.template()):
                for i in x:
                    x[i] = a

            put(x, n + 0.25)

        for n in range(10):
            once(n)
        assert len(CACHE._lists) <= 4 and len(CACHE._entries) <= 4


def test_a_program_that_is_never_closed_ends_with_its_last_reference():
    gc.collect()  # programs of other tests
    before = len(device._contexts)

    def once():
        program = qd.init(arch=qd.cpu)
        x = qd.field(qd.f32, shape=4)

        @qd.kernel
        def fill():
            for i in x:
                x[i] = 1.0

        fill()
        return weakref.ref(program)

    alive = [once() for _ in range(5)]
    qd.reset()
    gc.collect()
    assert [x() for x in alive] == [None] * 5
    assert len(device._contexts) == before
