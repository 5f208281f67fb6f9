"""Graphs of the CPU: what they do beyond those of a GPU, and what only they can get wrong."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams

N = 37


@pytest.fixture(params=[1, 2])
def program(request):
    made = qd.init(arch=qd.cpu, cpu_max_num_threads=request.param, random_seed=5)
    yield made
    if not made.closed:
        made.close()


class Drawn:
    """A walk of random steps through a tape, and its loss."""

    def __init__(self):
        self.x = qd.field(qd.f64, shape=(6, N), needs_grad=True)
        self.scale = qd.field(qd.f64, shape=(), needs_grad=True)
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True)
        x, scale, loss = self.x, self.scale, self.loss

        @qd.kernel
        def step(t: qd.i32):
            for i in range(N):
                v = x[t, i]
                for _ in range(3):
                    v = qd.sin(v) + scale[None] * qd.randn(qd.f64)
                x[t + 1, i] = v

        @qd.kernel
        def total():
            for i in range(N):
                loss[None] += x[5, i] ** 2

        self.step, self.total = step, total
        scale[None] = 0.3

    def __call__(self):
        with qd.ad.Tape(self.loss):
            for t in range(5):
                self.step(t)
            self.total()

    def result(self):
        return self.loss[None], self.scale.grad[None], self.x.grad.to_numpy()


def test_a_graph_draws_what_the_function_would_draw(program):
    walk = Drawn()
    walk()
    graph, found = qd.capture(walk), []
    for launch in (walk, graph, graph, walk, graph):
        launch()
        found.append((*walk.result(), program.seeds.drawn))
    program.seeds.drawn = 5  # as after the first call
    for loss, slope, gradient, launches in found:
        walk()
        expected = walk.result()
        assert (loss, slope, launches) == (*expected[:2], program.seeds.drawn) and np.array_equal(gradient, expected[2])
    assert len({loss for loss, *_ in found}) == 5
    gradients = []
    for launch in (walk, graph):  # a gradient alone is that of the last launch
        program.seeds.drawn = 0
        launch()
        walk.x.grad.fill(1.0)
        walk.step.grad(4)
        gradients.append(walk.x.grad.to_numpy())
    assert np.array_equal(*gradients)


def test_a_gradient_of_random_numbers_from_outside_is_refused(program):
    walk = Drawn()
    walk()
    message = "`step_grad` repeats the random numbers of a launch that is not part of it, while the graph of `work` is recorded"

    def work():
        walk.step.grad(4)

    with pytest.raises(qd.QdrunRuntimeError, match=message):
        qd.capture(work)
    walk.x.grad.fill(1.0)
    before, launches = walk.x.grad.to_numpy(), program.seeds.drawn
    walk.step.grad(4)  # the seed is still known
    assert program.seeds.drawn == launches and not np.array_equal(walk.x.grad.to_numpy(), before)


def test_launches_of_one_gradient_with_different_plans(program):
    """Each has the parameters of its own plan, whatever was launched since."""
    x, y = qd.field(qd.f64, shape=N, needs_grad=True), qd.field(qd.f64, shape=N, needs_grad=True)

    @qd.kernel
    def run(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = qd.sin(v) + 0.1
            y[i] = v

    def work():
        for n in (3, 40, 7):
            run(n)
            y.grad.fill(1.0)
            run.grad(n)

    def slopes(counts):
        out = np.zeros(N)
        for n in counts:
            v, slope = start.copy(), np.ones(N)
            for _ in range(n):
                v, slope = np.sin(v) + 0.1, slope * np.cos(v)
            out += slope
        return out

    start = np.random.default_rng(2).uniform(-1, 1, N)
    x.from_numpy(start)
    work()
    graph = qd.capture(work)
    for _ in range(2):
        x.grad.fill(0.0)
        run.grad(5)  # changes the parameters in the context of the program
        x.grad.fill(0.0)
        graph()
        assert np.allclose(x.grad.to_numpy(), slopes((3, 40, 7)), rtol=1e-12)
    x.grad.fill(0.0)
    y.grad.fill(1.0)
    run.grad(11)
    assert np.allclose(x.grad.to_numpy(), slopes((11,)), rtol=1e-12)


def test_an_error_ends_the_graph_as_it_ends_the_function():
    with qd.init(arch=qd.cpu, check_out_of_bound=True):
        x, y, at = qd.field(qd.i32, shape=N), qd.field(qd.i32, shape=()), qd.field(qd.i32, shape=())

        @qd.kernel
        def look(t: qd.i32):
            for i in x:
                x[i] = x[(i + at[None] * t) % (N + 3)]

        @qd.kernel
        def count():
            for _ in range(1):
                y[None] += 1

        def work():
            for t in range(4):
                count()
                look(t)

        work()
        graph = qd.capture(work)
        for offset, ran in ((1, 2), (0, 4), (1, 2)):
            errors = []
            for launch in (work, graph):
                y[None], at[None] = 0, offset
                if offset:
                    with pytest.raises(qd.QdrunAssertionError, match="axis 0 of `x` has index 37") as e:
                        launch()
                    errors.append((str(e.value), e.value.line))
                else:
                    launch()
                assert y[None] == ran
            assert len(set(errors)) == bool(offset)


def test_an_error_says_which_launch_of_the_tape_it_was():
    with qd.init(arch=qd.cpu, check_out_of_bound=True):
        x, at, loss = (
            qd.field(qd.f64, shape=N, needs_grad=True),
            qd.field(qd.i32, shape=2),
            qd.field(qd.f64, shape=(), needs_grad=True),
        )

        @qd.kernel
        def total(t: qd.i32):
            for i in range(4):
                loss[None] += x[i + at[t]]

        def work():
            with qd.ad.Tape(loss):
                for t in range(2):
                    total(t)

        work()
        graph, texts = qd.capture(work), []
        at[1] = N
        for launch in (work, graph):
            with pytest.raises(qd.QdrunAssertionError) as e:
                launch()
            texts.append((str(e.value), e.value.fault.launch))
        assert texts[0] == texts[1] and texts[0][1] == 2


def test_an_overflow_says_what_was_planned_for_that_launch():
    with qd.init(arch=qd.cpu, ad_stack_size=16):
        x, y = qd.field(qd.f64, shape=4, needs_grad=True), qd.field(qd.f64, shape=4, needs_grad=True)
        n = qd.field(qd.i32, shape=())

        @qd.kernel
        def run():
            for i in x:
                v, k = x[i], 0
                while k < n[None]:
                    v = qd.sin(v) + 0.1
                    k += 1
                y[i] = v

        n[None] = 3
        run()
        run.grad()
        graph = qd.capture(run.grad)
        graph()
        n[None] = 40
        texts = []
        for launch in (run.grad, graph):
            with pytest.raises(qd.AdStackOverflow, match="ran more iterations than its adstack holds") as e:
                launch()
            texts.append(str(e.value))
        assert texts[0] == texts[1]


# ---- what Python writes
def test_whole_arrays_parts_and_interleaved_fields_are_written(program):
    x, y, w = qd.field(qd.f32), qd.field(qd.f64), qd.field(qd.f64, shape=N)
    qd.root.dense(qd.i, N).place(x, y)
    m = qd.Matrix.field(2, 3, qd.f32, shape=(4,))
    z = qd.field(qd.i32, shape=(5, 6), order="ji")
    a = qd.ndarray(qd.f32, (N,))
    b = qd.Vector.ndarray(2, qd.f64, (700,))
    numbers = np.arange(30, dtype=np.int32).reshape(5, 6)
    matrix, given = np.arange(6, dtype=np.float32).reshape(2, 3), np.linspace(0, 1, N, dtype=np.float32)

    @qd.kernel
    def grow(c: qd.types.ndarray(dtype=qd.f32, ndim=1)):
        for i in x:
            x[i] += 1.0
            w[i] = 3.0 * x[i] + i
            c[i] += y[i]

    def work():
        x.fill(2.5)
        y.from_numpy(np.arange(N))
        y[3] = -1.0
        m.fill(matrix)
        m[2] = 2 * matrix
        z.from_numpy(numbers)
        z[4, 1] = 77
        a.from_numpy(given)
        b.fill([1.0, -2.0])
        b[699] = [5.0, 6.0]
        grow(a)
        y.copy_from(w)

    def content():
        return [t.to_numpy().tolist() for t in (x, y, w, m, z, a, b)]

    def spoil():
        for t in (x, y, w, m, z, a, b):
            t.fill(9)

    work()
    expected = content()
    spoil()
    before = content()
    graph = qd.capture(work)
    assert content() == before  # recording has written nothing
    for _ in range(2):
        spoil()
        graph()
        assert content() == expected


def test_random_writes_are_those_of_numpy(program):
    """Fields of every form, and elements of them."""
    rng = np.random.default_rng(11)
    for _ in range(60):
        shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(1, 4)))
        element = tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 3)))
        dtype = (qd.f64, qd.f32, qd.i32, qd.u8)[rng.integers(4)]
        order = "".join(rng.permutation(list("ijk"[: len(shape)])))
        make = {0: qd.field, 1: qd.Vector.field, 2: qd.Matrix.field}[len(element)]
        x = make(*element, dtype, shape=shape, order=order)
        content, value = rng.integers(0, 200, x.to_numpy().shape), rng.integers(0, 120, element)
        at = tuple(int(rng.integers(n)) for n in shape)
        writes = [
            lambda x=x, content=content: x.from_numpy(content),
            lambda x=x, value=value: x.fill(value if value.ndim else int(value)),
            lambda x=x, value=value, at=at: x.__setitem__(at, 2 * value if value.ndim else int(value) + 1),
        ]
        order_of = rng.permutation(3)

        def work(writes=writes, order_of=order_of):
            for k in order_of:
                writes[k]()

        work()
        expected = x.to_numpy()
        x.fill(0)
        graph = qd.capture(work)
        assert not x.to_numpy().any()
        graph()
        assert np.array_equal(x.to_numpy(), expected)


def test_a_write_through_an_element_from_before_is_refused(program):
    x = qd.Vector.field(2, qd.f32, shape=4)
    y = qd.field(qd.f32, shape=4)
    element = x[1]

    @qd.kernel
    def add():
        for i in y:
            y[i] += x[i][1]

    add()

    def work():
        element[1] = 4.0
        add()

    for act in (work, lambda: element.fill(1.0)):
        with pytest.raises(qd.QdrunRuntimeError, match="has written to `x` through an element, or a view, that it had before"):
            qd.capture(act)
    x.fill(1.0)
    qd.capture(add)()
    assert y[2] == 1.0


def test_bounds_that_the_graph_itself_writes_are_refused(program):
    """Also in an ndarray that the kernel refers to by name."""
    count = qd.ndarray(qd.i32, (1,))
    x, y = qd.field(qd.f64, shape=3, needs_grad=True), qd.field(qd.f64, shape=3, needs_grad=True)

    @qd.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(count[0]):
                v = qd.sin(v) + 0.1
            y[i] = v

    def work():
        count[0] = 9
        run()
        run.grad()

    count[0] = 3
    run()
    run.grad()
    with pytest.raises(qd.QdrunRuntimeError, match="plans its adstack heap from an array that may have been written"):
        qd.capture(work)
    assert count[0] == 3


def test_the_robot_walks_the_same_way(program):
    """A job, with its parameters in fields."""
    with MassSpring(MassSpringParams(steps=30)).opened(backend="cpu") as job:
        job.fill()

        def trial():
            for array in job.scratch():
                array.fill(0.0)
            with qd.ad.Tape(loss=job.loss):
                job.simulate()

        trial()
        graph, found = qd.capture(trial), []
        rng = np.random.default_rng(4)
        for _ in range(3):
            job.stiffness[None] = rng.uniform(500, 1500)
            job.amplitude.from_numpy(rng.uniform(0.1, 0.4, 4))
            for launch in (trial, graph):
                launch()
                found.append((job.loss[None], job.stiffness.grad[None], *job.amplitude.grad.to_numpy()))
        assert found[0::2] == found[1::2] and len(set(found)) == 3 and all(map(np.all, found))


def test_a_tape_with_a_kernel_that_has_no_gradient_is_recorded(program):
    x, drive = qd.field(qd.f64, shape=N, needs_grad=True), qd.field(qd.f64, shape=())
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def push(t: qd.i32):
        drive[None] = qd.sin(0.5 * t)

    @qd.kernel
    def energy():
        for i in x:
            loss[None] += drive[None] * x[i] ** 2

    def run():
        with qd.ad.Tape(loss):
            push(1)
            energy()

    x.from_numpy(np.linspace(-1.0, 2.0, N))
    run()
    graph, wanted = qd.capture(run), x.grad.to_numpy()
    x.grad.fill(7.0)
    drive[None] = 0.0
    graph()
    assert np.array_equal(x.grad.to_numpy(), wanted)
    assert np.allclose(wanted, 2.0 * np.sin(0.5) * np.linspace(-1.0, 2.0, N), rtol=1e-6)
