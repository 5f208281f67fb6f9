"""What a peer project was asked for of a gradient's memory, on the emulated gfx942. docs/gpu-requests.md has the whole list."""

import re

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.plans.gradient_plans import GradientPlans
from qdrun.compiler.program.state import ProgramState
from qdrun.tests.devices.processor.machine import emulated_machine

CARD = {"arch": qd.amdgpu, "device": "emulated:gfx942", "default_fp": qd.f64}
SIZE = 70


@pytest.fixture
def program():
    with qd.init(**CARD) as made:
        yield made


def chain(size=SIZE, start=None):
    """A kernel with a loop of n states in each iteration; x, y and the gradient for given arguments, from a fresh start."""
    x, y = (qd.field(qd.f64, shape=size, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = v * (1.4 - v)
            y[i] = v

    if size:
        x.from_numpy(np.linspace(0.1, 0.9, size) if start is None else start)

    def gradient(n, **options):
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        k.grad(n, **options)
        return x.grad.to_numpy()

    return k, gradient


def gated(size):
    """The same behind a gate for each iteration: the kernel, x, y and the flags."""
    x, y = (qd.field(qd.f64, shape=size, needs_grad=True) for _ in range(2))
    flag = qd.field(qd.i32, shape=size)

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            if flag[i] > 0:
                v = x[i]
                for _ in range(n):
                    v = v * (1.4 - v)
                y[i] = v

    x.from_numpy(np.linspace(0.1, 0.9, size))
    return k, x, y, flag


def expected(n, size=SIZE):
    """The same gradient in NumPy, with its operations in its order."""
    states, v = [], np.linspace(0.1, 0.9, size)
    for _ in range(n):
        states.append(v)
        v = v * (1.4 - v)
    slope = np.ones(size)
    for v in reversed(states):
        slope = slope * (1.4 - 2.0 * v)
    return slope


def test_a_heap_that_the_card_refuses_leaves_the_one_before_and_the_program_goes_on(program, monkeypatch):
    """Row 7."""
    k, gradient = chain()
    wanted = gradient(10)
    held = program.usage()["adstack"]
    assert held == k.grad.plan(10).bytes == SIZE * 10 * 8
    arena, asked = emulated_machine().arena, []
    allocate = arena.allocate

    def refuse(nbytes):
        asked.append(nbytes)
        if nbytes > 10 << 20:
            raise MemoryError
        return allocate(nbytes)

    with monkeypatch.context() as m:
        m.setattr(arena, "allocate", refuse)
        with pytest.raises(qd.OutOfMemory, match=r"the gradient `k_grad` needs an adstack heap of 11,200,000 bytes"):
            gradient(20_000)
    assert SIZE * 20_000 * 8 in asked and set(asked) <= {SIZE * 20_000 * 8, held}, "to the byte, and the one before is put back"
    assert program.usage()["adstack"] == held
    assert (gradient(10) == wanted).all()
    np.testing.assert_allclose(gradient(50), expected(50), rtol=1e-12)
    assert program.usage()["adstack"] == SIZE * 50 * 8


def test_a_heap_grows_while_a_launch_that_uses_it_is_in_the_queue(program, monkeypatch):
    """Rows 8 and 19: the emulated card runs queued work as late as it may, and poisons what is freed."""
    x, y = (qd.field(qd.f64, shape=SIZE, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = v * (1.4 - v)
            y[i] += v

    x.from_numpy(np.linspace(0.1, 0.9, SIZE))
    y.grad.fill(1.0)
    grow, waiting = ProgramState.grow_heap, []

    def grown(*args, **options):
        waiting.append(sum(len(s.queue) for s in emulated_machine().streams.values()))
        return grow(*args, **options)

    monkeypatch.setattr(ProgramState, "grow_heap", grown)
    for n in (7, 30, 90):
        k.grad(n)
    assert len(waiting) == 3 and all(waiting), waiting
    np.testing.assert_allclose(x.grad.to_numpy(), expected(7) + expected(30) + expected(90), rtol=1e-12)


def test_no_iterations_take_no_memory_and_no_time_of_the_card(program):
    """Row 9."""
    a, b = (qd.ndarray(qd.f64, SIZE, needs_grad=True) for _ in range(2))

    @qd.kernel
    def few(a: qd.types.ndarray(qd.f64, 1), b: qd.types.ndarray(qd.f64, 1), first: qd.i32, n: qd.i32):
        for i in range(first, SIZE):
            v = a[i]
            for _ in range(n):
                v = v * (1.4 - v)
            b[i] = v

    assert few.grad.plan(a, b, SIZE, 1000).bytes == 0
    qd.sync()
    launched = emulated_machine().launches
    few.grad(a, b, SIZE, 1000)
    qd.sync()
    assert emulated_machine().launches == launched and program.usage().get("adstack", 0) == 0


@pytest.mark.parametrize("shape, rows", [((2, 3), 6), ((70_000,), 65_536)])
def test_a_plan_has_a_row_for_each_iteration_in_flight(program, shape, rows):
    """Rows 10 and 25."""
    x, y = (qd.field(qd.f64, shape=shape, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(n: qd.i32):
        for i in qd.grouped(x):
            v = x[i]
            for _ in range(n):
                v = v * (1.4 - v)
            y[i] = v

    (row,) = k.grad.plan(100).rows()
    assert row["rows"] == rows and k.grad.plan(100).bytes == rows * 100 * 8


def test_stacks_of_several_types_beside_each_other_do_not_touch(program):
    """Rows 13 and 27: f64, f32 and integer states in one iteration, each to the last slot of its own."""
    x, y = qd.field(qd.f64, shape=SIZE, needs_grad=True), qd.field(qd.f32, shape=SIZE, needs_grad=True)
    total = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def k(n: qd.i32, m: qd.i32):
        for i in x:
            v, w, count = x[i], y[i], i % 5
            for _ in range(n):
                v = v * (1.4 - v) if count % 3 == 0 else v * 0.9
                count = count * 3 + 1
            for _ in range(m):
                w = w * (qd.f32(1.5) - w)
            total[None] += v + w

    start = np.linspace(0.1, 0.9, SIZE)
    x.from_numpy(start)
    y.from_numpy(start.astype(np.float32))
    total.grad[None] = 1.0
    k.grad(31, 17)
    plan = k.grad.plan(31, 17)
    assert {p: n for p, n in plan.planes.items() if n} == {"f8": SIZE * 31 * 8, "f4": SIZE * 17 * 4, "i4": SIZE * 31 * 4}
    assert program.usage()["adstack"] == plan.bytes
    v, slope, w, narrow = start.copy(), np.ones(SIZE), start.astype(np.float32), np.ones(SIZE)
    count = np.arange(SIZE) % 5
    for _ in range(31):
        grows = count % 3 == 0
        slope, v = slope * np.where(grows, 1.4 - 2 * v, 0.9), np.where(grows, v * (1.4 - v), v * 0.9)
        count = (count * 3 + 1).astype(np.int32)
    for _ in range(17):
        narrow, w = narrow * (1.5 - 2 * w), w * (np.float32(1.5) - w)
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-12)
    np.testing.assert_allclose(y.grad.to_numpy(), narrow, rtol=1e-3)


def test_a_heap_over_the_limit_names_the_smallest_budget(program):
    """Row 14."""
    _, gradient = chain()
    wanted = gradient(400)
    held = program.device.used_bytes - program.usage()["adstack"]
    with qd.init(**CARD, memory_limit=held + 60_000) as limited:
        _, gradient = chain()
        with pytest.raises(qd.OutOfMemory, match=r"needs an adstack heap of 224,000 bytes") as error:
            gradient(400)
        budget = int(re.search(r"`budget=` of (\d+) bytes or more", str(error.value))[1])
        assert (gradient(400, budget=budget) == wanted).all() and limited.usage()["adstack"] <= budget


def test_a_heap_is_not_sized_while_a_graph_is_recorded(program):
    """Row 17."""
    k, gradient = chain()
    gradient(3)
    with pytest.raises(
        qd.QdrunRuntimeError, match=r"the gradient `k_grad` needs [\d,]+ bytes of adstack heap and the program has"
    ):
        qd.capture(k.grad, 50)
    np.testing.assert_allclose(gradient(3), expected(3), rtol=1e-12)
    graph = qd.capture(k.grad, 3)
    graph()
    qd.sync()


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.5, 1.0])
def test_iterations_behind_a_gate_claim_rows_of_their_own(program, fraction):
    """Rows 20 and 30: as many rows as iterations pass; each thread claims one, and none is used twice."""
    size = 400
    k, x, y, flag = gated(size)

    passing = np.zeros(size, np.int32)
    passing[np.random.default_rng().permutation(size)[: int(fraction * size)]] = 1
    flag.from_numpy(passing)
    y.grad.fill(1.0)
    plan = k.grad.plan(40)
    assert plan.bytes == passing.sum() * 40 * 8
    k.grad(40)
    np.testing.assert_allclose(x.grad.to_numpy(), np.where(passing, expected(40, size), 0.0), rtol=1e-12)
    assert program.usage().get("adstack", 0) == plan.bytes


def test_a_row_that_is_missing_is_reported_and_never_used(program, monkeypatch):
    """Row 20: the gate opens for more iterations than the plan knows of."""
    size = 100
    k, x, y, flag = gated(size)
    passing = np.zeros(size, np.int32)
    passing[:10] = 1
    flag.from_numpy(passing)
    stale, plan = k.grad.plan(20), GradientPlans.plan
    assert stale.rows()[0]["rows"] == 10
    passing[:30] = 1
    flag.from_numpy(passing)
    with monkeypatch.context() as m:
        m.setattr(GradientPlans, "plan", lambda self, *args, **options: stale)
        with pytest.raises(qd.AdStackOverflow, match=r"`k_grad`"):
            k.grad(20)
            qd.sync()
    assert GradientPlans.plan is plan
    x.grad.fill(0.0)
    y.grad.fill(1.0)
    k.grad(20)
    np.testing.assert_allclose(x.grad.to_numpy(), np.where(passing, expected(20, size), 0.0), rtol=1e-12)


def test_debug_lines_of_the_heap_are_those_of_every_backend(program, monkeypatch, capfd):
    """Row 28."""
    monkeypatch.setenv("QDRUN_DEBUG_ADSTACK", "1")
    _, gradient = chain()
    gradient(5)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[adstack]")]
    assert "kernel=k_grad task=k_0_grad plane=f8 rows=70 slots=5 words=5 bytes=2800" in line


def test_an_overflow_is_raised_by_the_next_wait_and_leaves_nothing_behind(program):
    """Row 29."""
    with qd.init(**CARD, ad_stack_size=8) as short:
        x, y = (qd.field(qd.f64, shape=SIZE, needs_grad=True) for _ in range(2))

        @qd.kernel
        def fall(least: qd.f64):
            for i in x:
                v = x[i]
                while v > least:
                    v = v * (0.8 + 0.1 * v)
                y[i] = v

        x.fill(1.0)
        y.grad.fill(1.0)
        with pytest.raises(qd.AdStackOverflow, match=r"8 \(ad_stack_size: while\)"):
            fall.grad(1e-3)
            short.synchronize()
        x.grad.fill(0.0)
        fall.grad(0.85)
        short.synchronize()
        assert x.grad.to_numpy() == pytest.approx(np.full(SIZE, (0.8 + 0.2) * (0.8 + 0.2 * 0.9)))


def test_a_gate_that_cannot_be_counted_says_why(program):
    """Row 31: its index is no variable of the loop, so the plan has a row for each iteration."""
    x, y = (qd.field(qd.f64, shape=SIZE, needs_grad=True) for _ in range(2))
    flag = qd.field(qd.i32, shape=SIZE)

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            if flag[i * i % SIZE] > qd.random(qd.i32):
                v = x[i]
                for _ in range(n):
                    v = v * (1.4 - v)
                y[i] = v

    (row,) = k.grad.plan(30).rows()
    assert row["rows"] == SIZE and re.search(r"not counted|cannot be counted|written", row["rows_from"]), row["rows_from"]


def test_prints_come_when_the_host_waits_and_no_launch_waits_for_them(program, capfd):
    """Rows 37 and 42."""
    x = qd.field(qd.i32, shape=SIZE)

    @qd.kernel
    def speak(k: qd.i32):
        for i in x:
            x[i] = i
            if i % 32 == k:
                print("thread", i, "of launch", k)

    speak(1)
    qd.sync()
    assert len(capfd.readouterr().out.splitlines()) == 3
    launched = emulated_machine().launches
    for k in (2, 3):
        speak(k)
    assert emulated_machine().launches < launched + 2 and capfd.readouterr().out == "", "the last one is in the queue"
    qd.sync()
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == sorted(f"thread {i} of launch {k}" for k in (2, 3) for i in range(k, SIZE, 32))
