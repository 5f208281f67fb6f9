"""Launches recorded as one graph: what runs, what is part of it, what is refused."""

import threading

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.runtime.gpu.constants import MOST, fills

N = 300


def opened(request, **options):
    if request.config.getoption("--arch") == "cuda":
        device = request.config.getoption("--device")
        return qd.init(arch=qd.cuda, **({} if device is None else {"device": device}) | options)
    return qd.init(arch=qd.cuda, device="emulated", **options)


@pytest.fixture(params=["gpu", "cpu"])
def program(request):
    made = opened(request) if request.param == "gpu" else qd.init(arch=qd.cpu)
    yield made
    if not made.closed:
        made.close()


class Chain:
    """y[t + 1] = sin(..) of y[t], ``count`` times each, through a tape."""

    def __init__(self, count=20):
        self.x = qd.field(qd.f32, shape=N, needs_grad=True)
        self.y = qd.field(qd.f32, shape=(5, N), needs_grad=True)
        self.loss = qd.field(qd.f32, shape=(), needs_grad=True)
        self.count = qd.field(qd.i32, shape=())
        self.count[None] = count
        x, y, loss, n = self.x, self.y, self.loss, self.count

        @qd.kernel
        def first():
            for i in x:
                y[0, i] = x[i]

        @qd.kernel
        def step(t: qd.i32, c: qd.f32):
            for i in x:
                v = y[t, i]
                for _ in range(n[None]):
                    v = qd.sin(v) + c * x[i]
                y[t + 1, i] = v

        @qd.kernel
        def last():
            for i in x:
                loss[None] += y[4, i]

        self.first, self.step, self.last = first, step, last

    def __call__(self, c):
        with qd.ad.Tape(self.loss):
            self.first()
            for t in range(4):
                self.step(t, c)
            self.last()

    def result(self):
        return self.loss[None], self.x.grad.to_numpy()


def data(seed):
    return np.random.default_rng(seed).uniform(-1, 1, N).astype(np.float32)


def test_a_tape_is_one_graph_with_the_same_bits(program):
    chain = Chain()
    chain.x.from_numpy(data(1))
    chain(0.05)
    graph = qd.capture(chain, 0.05)
    assert repr(graph) == "<graph of `Chain`: 12 launches>"
    for seed in (2, 3):
        chain.x.from_numpy(data(seed))
        chain(0.05)
        loss, gradient = chain.result()
        chain.x.grad.fill(7.0)  # the graph clears gradients, as the tape does
        graph()
        again = chain.result()
        assert again[0] == loss and np.array_equal(again[1], gradient) and np.abs(gradient).max() > 1e-4


def test_recording_runs_nothing_and_numbers_are_those_of_the_recording(program):
    x = qd.field(qd.f32, shape=8)
    total = qd.field(qd.f32, shape=())

    @qd.kernel
    def add(a: qd.f32):
        for i in x:
            x[i] += a + total[None]

    def work(a):
        total[None] = 0.5
        add(a)
        add(2 * a)
        total.fill(0.25)

    work(1.0)
    x.fill(0.0)
    graph = qd.capture(work, 3.0)
    assert x.to_numpy().tolist() == [0.0] * 8 and total[None] == 0.25
    total[None] = 100.0
    graph()
    assert x.to_numpy().tolist() == [10.0] * 8 and total[None] == 0.25
    assert x[3] == 10.0
    graph()
    assert x[3] == 20.0 and graph.launches == 2


def test_a_graph_keeps_what_it_was_given(program):
    @qd.kernel
    def add(a: qd.types.ndarray(dtype=qd.f32, ndim=1), b: qd.types.ndarray(dtype=qd.f32, ndim=1)):
        for i in range(16):
            a[i] += b[i]

    out, given = qd.ndarray(qd.f32, (16,)), [qd.ndarray(qd.f32, (16,))]
    given[0].fill(1.0)
    add(out, given[0])
    graph = qd.capture(lambda: add(out, given[0]))
    given.clear()
    others = [qd.ndarray(qd.f32, (16,)) for _ in range(4)]
    for other in others:
        other.fill(50.0)
    graph()
    graph()
    assert out.to_numpy().tolist() == [3.0] * 16


def test_gradients_of_other_kernels_see_what_a_graph_has_written(program):
    """The plan of a gradient reads a field that a graph writes."""
    x, loss = qd.field(qd.f32, shape=N, needs_grad=True), qd.field(qd.f32, shape=(), needs_grad=True)
    count = qd.field(qd.i32, shape=())
    x.from_numpy(data(5))

    @qd.kernel
    def more():
        for _ in range(1):
            count[None] += 40

    @qd.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(count[None]):
                v = qd.sin(v) + 0.05
            loss[None] += v

    more()
    graph = qd.capture(more)
    loss.grad.fill(1.0)
    run.grad()
    for _ in range(3):
        graph()
    x.grad.fill(0.0)
    run.grad()
    v, slope = data(5).astype(float), np.ones(N)
    for _ in range(160):
        v, slope = np.sin(v) + 0.05, slope * np.cos(v)
    assert count[None] == 160 and np.allclose(x.grad.to_numpy(), slope, rtol=1e-3)


# ---- refused
def things(on_host):
    """Names, what is done while a graph is recorded, and how it is refused; None: only on a GPU."""
    x = qd.field(qd.f32, shape=200)
    cold = qd.field(qd.f32, shape=4, needs_grad=True)

    @qd.kernel
    def fill(a: qd.f32):
        for i in x:
            x[i] = a

    @qd.kernel
    def total() -> qd.f32:
        s = 0.0
        for i in range(4):
            s += x[i]
        return s

    @qd.kernel
    def draw():
        for i in x:
            x[i] = qd.random()

    @qd.kernel
    def say():
        for i in range(1):
            print(x[i])

    @qd.kernel
    def take(a: qd.types.ndarray(dtype=qd.f32, ndim=1)):
        for i in range(4):
            a[i] += 1.0

    @qd.kernel
    def new():
        for i in x:
            x[i] = 3.0

    @qd.kernel
    def square():
        for i in cold:
            x[i] = cold[i] * cold[i]

    for warm in (lambda: fill(1.0), total, draw, say, square, lambda: take(np.zeros(4, np.float32))):
        warm()
    qd.sync()
    reads = "Python reads memory, which launches" if on_host else "the host reads memory of the device"
    waits = "Python waits for what was launched" if on_host else "the host waits for the device"
    foreign = "of another library, while the graph" if on_host else "that is copied to the device"
    draws = "kernel `draw` draws random numbers: each launch of the graph would draw the same ones"
    do = {
        "element": (lambda: x[3], reads),
        "array": (x.to_numpy, reads),
        "sync": (qd.sync, f"{waits} while a graph is recorded"),
        "returns": (total, "kernel `total` returns values, which the host waits for, while the graph of `.*work` is recorded"),
        "random": (draw, None if on_host else draws),
        "print": (say, "kernel `say` prints, while the graph"),
        "numpy": (lambda: take(np.zeros(4, np.float32)), f"kernel `take` is given an array {foreign}"),
        "allocation": (
            lambda: qd.ndarray(qd.f32, (1000,)),
            "ndarrays needs 4,000 bytes while a graph is recorded\n  do: run the",
        ),
        "compile": (new, "<kernel .*new> is not compiled for these arguments yet, while the graph"),
        "gradient": (square.grad, "the gradient of kernel `square` is not compiled yet, while the graph"),
        "values": (
            lambda: x.from_numpy(np.arange(200, dtype=np.float32)),
            None if on_host else "the host writes 800 bytes of many values",
        ),
        "nested": (lambda: qd.capture(fill, 1.0), "`fill` cannot be recorded while another graph is recorded"),
    }
    return fill, x, do


NAMES = "element array sync returns random print numpy allocation compile gradient values nested".split()


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_in_a_graph_is_refused_by_name(program, name):
    fill, x, do = things(program.device.on_host)
    act, message = do[name]
    if message is None:
        pytest.skip("the CPU does it, see test_graph_on_host")

    def work():
        fill(5.0)
        act()

    x.fill(1.0)
    with pytest.raises(qd.QdrunRuntimeError, match=message):
        qd.capture(work)
    assert x[0] == 1.0  # nothing has run, and the program goes on
    fill(2.0)
    assert x[0] == 2.0
    graph = qd.capture(fill, 9.0)
    graph()
    assert x.to_numpy().tolist() == [9.0] * 200


def test_other_threads_wait_until_the_graph_is_recorded(program):
    x, y = qd.field(qd.f32, shape=200), qd.field(qd.f32, shape=3)

    @qd.kernel
    def fill(a: qd.f32):
        for i in x:
            x[i] = a

    def body():
        with program:
            y.fill(4.0)
            fill(2.0)
            qd.sync()

    def work():
        fill(5.0)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        fill(6.0)

    fill(1.0)
    thread = threading.Thread(target=body)
    graph = qd.capture(work)
    thread.join()
    assert (x[7], y[1], graph.launches) == (2.0, 4.0, 2)
    graph()
    assert x[7] == 6.0


def test_a_heap_is_not_sized_in_a_graph(program):
    chain = Chain(count=2000)
    chain.x.from_numpy(data(1))
    chain.first()
    chain.step(0, 0.1)
    chain.step.grad.prepare(0, 0.1)
    if chain.step.grad.plan(0, 0.1).bytes == 0:
        pytest.skip("the tape fits on chip")
    with pytest.raises(
        qd.QdrunRuntimeError, match=r"the gradient `step_grad` needs [\d,]+ bytes of adstack heap and the program has 0"
    ):
        qd.capture(chain.step.grad, 0, 0.1)


def test_a_graph_whose_bounds_have_changed_is_refused(program):
    chain = Chain(count=20)
    chain.x.from_numpy(data(1))
    chain(0.1)
    graph = qd.capture(chain, 0.1)
    graph()
    chain.count[None] = 1500
    with pytest.raises(qd.QdrunRuntimeError, match="for the gradient `step_grad`, which has another plan now") as e:
        graph()
    assert "do: capture it again" in str(e.value)
    chain.count[None] = 20
    graph()
    chain.count[None] = 1500
    chain(0.1)
    expected = chain.result()
    again = qd.capture(chain, 0.1)
    chain.x.grad.fill(3.0)
    again()
    assert np.array_equal(chain.result()[1], expected[1])


def test_a_graph_whose_heap_is_gone_is_refused(program):
    chain, larger = Chain(count=1200), Chain(count=4000)
    for c in (chain, larger):
        c.x.from_numpy(data(1))
    chain(0.1)
    if not program.usage().get("adstack"):
        pytest.skip("the tape fits on chip")
    graph = qd.capture(chain, 0.1)
    graph()
    larger(0.1)
    larger.step.grad(0, 0.1, budget="1GiB")
    if chain.step.grad.plan(0, 0.1).bytes >= program.usage()["adstack"]:
        pytest.skip("both need the same heap")
    with pytest.raises(qd.QdrunRuntimeError, match="uses an adstack heap that the program has replaced by another since"):
        graph()


def test_graphs_and_tapes(program):
    chain = Chain()
    chain(0.1)
    graph = qd.capture(chain, 0.1)
    with pytest.raises(qd.QdrunRuntimeError, match="cannot be launched while a tape records"), qd.ad.Tape(chain.loss):
        graph()
    with pytest.raises(qd.QdrunRuntimeError, match="cannot be recorded while a tape records"), qd.ad.Tape(chain.loss):
        qd.capture(chain.first)


def test_an_exception_of_the_function_leaves_no_graph(program):
    chain = Chain()
    chain(0.1)

    def broken():
        chain.first()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        qd.capture(broken)
    graph = qd.capture(chain, 0.1)
    graph()
    graph.close()
    program.close()
    with pytest.raises(qd.QdrunRuntimeError, match="belongs to a program that is closed"):
        graph()


def test_launches_after_one_that_has_failed_are_whole(request):
    """Tasks behind a failed one are left out in its launch alone, also where each launch of a graph has the same number."""
    with opened(request, check_out_of_bound=True):
        x, y = qd.field(qd.i32, shape=N), qd.field(qd.i32, shape=N)
        total, ahead = qd.field(qd.i32, shape=()), qd.field(qd.i32, shape=())

        @qd.kernel
        def both():
            for i in x:
                total[None] += x[(i + ahead[None]) % (N + 1)]
            for i in x:
                y[i] += 1

        def check(launch):
            total[None], ahead[None] = 0, 0
            before = y[3]
            for _ in range(2):
                launch()
            qd.sync()
            assert total[None] == 4 * N and y.to_numpy().tolist() == [before + 2] * N
            ahead[None] = 1
            launch()
            with pytest.raises(qd.QdrunAssertionError, match="axis 0 of `x` has index 300"):
                qd.sync()
            assert y.to_numpy().tolist() == [before + 2] * N

        x.fill(2)
        check(both)
        first, second = qd.capture(both), qd.capture(both)
        for launch in (first, first, second, both, second):
            check(launch)


def test_no_graph_without_a_device_that_has_them():
    with qd.init(arch=qd.python), pytest.raises(qd.QdrunRuntimeError, match="the python backend has no graphs"):
        qd.capture(print)


def test_no_graph_while_launches_are_checked_one_by_one():
    with qd.init(arch=qd.cuda, device="emulated", debug=True):
        with pytest.raises(qd.QdrunRuntimeError, match=r"launches are checked one by one; do: qd.init\(debug=False\)"):
            qd.capture(print)


def test_host_writes_become_fills():
    rng = np.random.default_rng(3)
    for _ in range(200):
        n, to = int(rng.integers(1, 40)), int(rng.integers(0, 5))
        data = rng.integers(0, 2, n).astype(np.uint8)
        memory = np.full(64, 9, np.uint8)
        for at, word, count, width in fills(to, data):
            memory[at : at + count * width] = np.frombuffer(word.to_bytes(width, "little") * count, np.uint8)
            assert at % width == 0
        assert np.array_equal(memory[to : to + n], data) and (memory[:to] == 9).all() and (memory[to + n :] == 9).all()
    assert fills(0, np.arange(4 * MOST + 4, dtype=np.uint32).view(np.uint8)) is None
    assert fills(0, np.zeros(1 << 20, np.uint8)) == [(0, 0, 1 << 18, 4)]


@pytest.mark.parametrize("program", ["gpu"], indirect=True)
def test_what_the_host_knows_is_not_part_of_a_graph(program):
    """Reads are refused before the first launch, too; and a write of one field in two sends nothing of the other."""
    x, y, z = (qd.field(qd.f32) for _ in range(3))
    qd.root.dense(qd.i, 40).place(x, y)
    qd.root.dense(qd.i, 40).place(z)

    @qd.kernel
    def add():
        for i in x:
            z[i] += x[i] + y[i]

    x.fill(1.0)
    y.fill(2.0)
    add()
    assert y[1] == 2.0 and z[3] == 3.0
    with pytest.raises(qd.QdrunRuntimeError, match="the host reads memory of the device"):
        qd.capture(lambda: y[1])
    graph = qd.capture(x.fill, 5.0)
    y.fill(3.0)
    graph()
    assert (x.to_numpy() == 5.0).all() and (y.to_numpy() == 3.0).all()
    x.fill(1.0)

    def work():
        z.fill(10.0)
        assert z[5] == 10.0  # as it was written in the graph
        add()

    y.fill(4.0)
    graph = qd.capture(work)
    y.fill(6.0)
    graph()
    assert z.to_numpy().tolist() == [17.0] * 40 and y[39] == 6.0


@pytest.mark.parametrize(
    "options",
    [
        {"arch": qd.cpu},
        {"arch": qd.cpu, "batch": 3},
        {},
        {"batch": 3},
        *(pytest.param({"arch": qd.vulkan, "device": "llvmpipe"} | b, marks=pytest.mark.slow) for b in ({}, {"batch": 3})),
    ],
    ids=["cpu", "cpu batch", "gpu", "gpu batch", "vulkan", "vulkan batch"],
)
def test_fields_that_lie_between_others_are_filled_in_a_graph(request, options):
    """Structs with vectors and types of several sizes, and fields at each level of a tree, whose elements have no uniform distance."""
    qd.init(**options) if "arch" in options else opened(request, **options)
    rng = np.random.default_rng()
    inner = qd.types.struct(a=qd.f32, b=qd.types.vector(3, qd.f64))
    parts = qd.types.struct(p=qd.types.matrix(2, 3, qd.f64), q=qd.i8, r=inner, n=qd.i16).field(shape=(3, 5), needs_grad=True)
    more = qd.types.struct(p=qd.types.vector(2, qd.f32), q=qd.f32).field(shape=200)
    top, mid, low = qd.field(qd.f64), qd.field(qd.i32), qd.Vector.field(2, qd.f32)
    level = qd.root.dense(qd.i, 4)
    level.place(top)
    level = level.dense(qd.j, 3)
    level.place(mid)
    level.dense(qd.k, 5).place(low)
    ran = qd.field(qd.i32, shape=3)

    @qd.kernel
    def count():
        for i in ran:
            ran[i] += 1

    number, real, vector = int(rng.integers(1, 100)), float(rng.normal()), rng.normal(size=2).tolist()
    works = {
        "a struct": (lambda: parts.fill(number), [*parts.leaves()]),
        "its gradient": (lambda: parts.r.b.grad.fill(real), [parts.r.b.grad]),
        "a vector": (lambda: more.p.fill(vector), [more.p]),
        "a number": (lambda: more.q.fill(real), [more.q]),
        "levels": (lambda: (low.fill(vector), mid.fill(number)), [low, mid]),
    }
    fields = [*parts.leaves(), parts.r.b.grad, *more.leaves(), top, mid, low]
    for name, (fill, targets) in works.items():

        def work(fill=fill):
            count()
            fill()

        work()
        wanted = {id(t): t.to_numpy() for t in targets}
        for field in fields:
            field.fill(7)
        before = ran.to_numpy()
        graph = qd.capture(work)
        graph()
        graph()
        assert np.array_equal(ran.to_numpy(), before + 2)
        for field in fields:
            want = wanted.get(id(field), np.full_like(field.to_numpy(), 7))
            assert np.array_equal(field.to_numpy(), want), (name, field.name)


def test_a_plan_that_depends_on_the_graph_is_refused(program):
    chain = Chain(count=20)

    @qd.kernel
    def bound():
        for _ in range(1):
            chain.count[None] = 30

    def work():
        bound()
        chain.step.grad(0, 0.1)

    chain.step(0, 0.1)
    work()
    message = (
        "the gradient `step_grad` plans its adstack heap from an array that may have been written since it was planned last"
    )
    with pytest.raises(qd.QdrunRuntimeError, match=message):
        qd.capture(work)
    chain(0.1)
    qd.capture(chain, 0.1)()
