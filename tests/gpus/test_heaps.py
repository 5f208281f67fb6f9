"""What a peer project was asked for of a gradient's memory, on every GPU. docs/gpu-requests.md has the whole list."""

import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.plans import device_reducer
from qdrun.compiler.program.plans.device_reducer import DeviceReducers
from qdrun.compiler.program.plans.gradient_plans import GradientPlans

sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))
from device_guard import check_kernel

SIZE = 70


def chain(gpu, size=SIZE):
    """A kernel with a loop of n states in each iteration, and its gradient for given arguments, from a fresh start."""
    x, y = (qd.field(gpu.real, shape=size, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = v * (1.4 - v)
            y[i] = v

    x.from_numpy(np.linspace(0.1, 0.9, size))

    def gradient(n, **options):
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        k.grad(n, **options)
        return x.grad.to_numpy()

    return k, gradient


def gated(gpu, size, kind=qd.i32, shut=0):
    """The same behind a gate for each iteration, which is open above a number; also x, y and the gates."""
    x, y = (qd.field(gpu.real, shape=size, needs_grad=True) for _ in range(2))
    gate = qd.field(kind, shape=size)

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            if gate[i] > shut:
                v = x[i]
                for _ in range(n):
                    v = v * (1.4 - v)
                y[i] = v

    x.from_numpy(np.linspace(0.1, 0.9, size))
    y.grad.fill(1.0)
    return k, x, y, gate


def expected(gpu, n, size=SIZE):
    """The same gradient in NumPy, with its operations in its order."""
    states, v = [], np.linspace(0.1, 0.9, size).astype(gpu.real.numpy)
    for _ in range(n):
        states.append(v)
        v = v * (gpu.real.numpy.type(1.4) - v)
    slope = np.ones(size)
    for v in reversed(states):
        slope = slope * (1.4 - 2.0 * v)
    return slope


def close(gpu, found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-12 if gpu.wide else 1e-4, atol=0 if gpu.wide else 1e-6)


@pytest.mark.slow
def test_loops_with_states_of_several_types_beside_each_other(gpu):
    """Rows 1, 4, 5, 6, 13 and 27: six sibling loops with branches; states of several types, each of which fills its tape."""
    siblings, real = 6 if gpu.quick else 2, gpu.real
    whole = qd.i64 if gpu.wide else qd.i32
    rng = np.random.default_rng()
    start, n = rng.uniform(0.2, 0.9, 20), gpu.on_chip + int(rng.integers(2, 5))

    def work():
        x, y = qd.field(real, shape=20, needs_grad=True), qd.field(real, shape=(), needs_grad=True)

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                v, w = x[i], qd.cast(x[i], qd.f32)
                for group in qd.static(range(siblings)):
                    count = qd.cast(i % 3, whole)
                    odd = i % 2 == 1
                    for j in range(n + group % 2):
                        if count > 1:
                            v = v * (1.5 - v)
                        elif odd:
                            w = w * (qd.f32(1.25) - w)
                        else:
                            v = 0.9 * v + 0.05 * v * v
                        count = (count * 7 + j + group) % 4
                        odd = not odd
                y[None] += v + qd.cast(w, real)

        x.from_numpy(start)
        with qd.ad.Tape(loss=y):
            k(n)
        return x.grad.to_numpy(), k.grad.plan(n), qd.current_program().usage().get("adstack", 0)

    (found, plan, heap), (cpu, _, _) = gpu.both(work)
    assert (found == cpu).all() and np.abs(cpu).min() > 0
    slots = 20 * sum(n + group % 2 for group in range(siblings))
    sizes = Counter({"i4": 4 * slots})
    for plane, nbytes in ((f"f{gpu.nbytes}", gpu.nbytes), ("f4", 4), (f"i{gpu.nbytes}", gpu.nbytes)):
        sizes[plane] += nbytes * slots
    assert {plane: nbytes for plane, nbytes in plan.planes.items() if nbytes} == sizes
    assert heap == plan.bytes


def test_a_tape_of_4096_slots_runs(gpu):
    """Row 2: what a thread takes on the device does not depend on the length of its tape."""

    def work():
        x, y = (qd.field(gpu.real, shape=3, needs_grad=True) for _ in range(2))

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                v = x[i]
                for _ in range(n):
                    v = v * (1.0001 - 0.0001 * v)
                y[i] = v

        x.from_numpy(np.linspace(0.3, 0.9, 3))
        y.grad.fill(1.0)
        k.grad(4096)
        assert k.grad.plan(4096).rows()[0]["slots"]["tape"] == 4096
        return x.grad.to_numpy()

    found, cpu = gpu.both(work)
    assert (found == cpu).all() and np.abs(cpu).min() > 0.1


def test_a_heap_that_the_device_refuses_leaves_the_one_before_and_the_program_goes_on(gpu, program, monkeypatch):
    """Row 7: it is asked for to the byte of its plan, and the one before is put back."""
    (k, gradient), n = chain(gpu), gpu.on_chip + 10
    wanted, held = gradient(n), program.usage()["adstack"]
    assert held == k.grad.plan(n).bytes == SIZE * n * gpu.nbytes
    large = SIZE * 40_000 * gpu.nbytes
    with monkeypatch.context() as m:
        asked = gpu.refuse(m, large // 2)
        with pytest.raises(qd.OutOfMemory, match=rf"the gradient `k_grad` needs an adstack heap of {large:,} bytes"):
            gradient(40_000)
    if gpu.emulated():  # which has no pools
        assert large in asked and set(asked) <= {large, held}
    assert any(nbytes >= large for nbytes in asked) and program.usage()["adstack"] == held
    assert (gradient(n) == wanted).all() and program.usage()["adstack"] == held
    close(gpu, gradient(50), expected(gpu, 50))
    assert program.usage()["adstack"] == SIZE * 50 * gpu.nbytes


def test_a_loop_without_iterations_has_no_heap_and_launches_nothing(gpu, program):
    """Row 9."""
    a, b = (qd.ndarray(gpu.real, SIZE, needs_grad=True) for _ in range(2))

    @qd.kernel
    def few(a: qd.types.ndarray(gpu.real, 1), b: qd.types.ndarray(gpu.real, 1), first: qd.i32, n: qd.i32):
        for i in range(first, SIZE):
            v = a[i]
            for _ in range(n):
                v = v * (1.4 - v)
            b[i] = v

    few(a, b, SIZE, 5)
    qd.sync()
    launched = gpu.emulated() and gpu.emulated().launches
    few(a, b, SIZE, 5)
    few.grad(a, b, SIZE, 1000)
    qd.sync()
    assert few.grad.plan(a, b, SIZE, 1000).bytes == program.usage().get("adstack", 0) == 0
    assert launched == (gpu.emulated() and gpu.emulated().launches)
    b.grad.fill(1.0)
    few.grad(a, b, 0, 0)
    assert (a.grad.to_numpy() == 1.0).all()


@pytest.mark.parametrize("shape, rows", [((2, 3), 6), ((70_000,), 65_536)])
@pytest.mark.parametrize("gpu", ["amdgpu", "metal", "vulkan"], indirect=True)
def test_a_plan_has_a_row_for_each_iteration_in_flight(gpu, program, shape, rows):
    """Rows 10 and 25."""
    x, y = (qd.field(gpu.real, shape=shape, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(n: qd.i32):
        for i in qd.grouped(x):
            v = x[i]
            for _ in range(n):
                v = v * (1.4 - v)
            y[i] = v

    (row,) = k.grad.plan(100).rows()
    assert row["rows"] == rows and k.grad.plan(100).bytes == rows * 100 * gpu.nbytes


def test_a_heap_over_the_limit_names_the_smallest_budget(gpu, program):
    """Row 14."""
    _, gradient = chain(gpu)
    wanted = gradient(100)
    held = program.device.used_bytes - program.usage()["adstack"]
    with gpu.init(memory_limit=held + 15_000) as limited:
        _, gradient = chain(gpu)
        needed = 100 * SIZE * gpu.nbytes
        with pytest.raises(qd.OutOfMemory, match=rf"needs an adstack heap of {needed:,} bytes") as error:
            gradient(100)
        budget = int(re.search(r"`budget=` of (\d+) bytes or more", str(error.value))[1])
        assert (gradient(100, budget=budget) == wanted).all() and limited.usage()["adstack"] <= budget


def test_a_heap_is_not_sized_while_a_graph_is_recorded(gpu, program):
    """Row 17."""
    k, gradient = chain(gpu)
    gradient(3)
    needs = r"the gradient `k_grad` needs [\d,]+ bytes of adstack heap and the program has"
    with pytest.raises(qd.QdrunRuntimeError, match=needs):
        qd.capture(k.grad, 50)
    close(gpu, gradient(3), expected(gpu, 3))
    graph = qd.capture(k.grad, 3)
    graph()
    qd.sync()


RANDOM = [
    *(("metal", 3), ("vulkan", 3)),
    *(pytest.param("metal", n, marks=pytest.mark.slow) for n in (1, 4, 1001, 1002)),
    *(pytest.param("vulkan", n, marks=pytest.mark.slow) for n in (1000, 1002)),
]


@pytest.mark.parametrize("gpu, number", RANDOM, indirect=["gpu"])
def test_no_thread_of_a_random_kernel_leaves_its_rows(gpu, number):
    """Row 18: between guard words, under seven plans."""
    counts = Counter()
    with np.errstate(all="ignore"):
        check_kernel(number, counts, arch=gpu.options["arch"], device=gpu.device if gpu.wide else "emulated:f64")
    assert counts["plans"] == 7 and counts["of which took another branch"] <= 0.01 * counts["components"]


@pytest.mark.parametrize("rows", [0, 7, 200, 400])
def test_gated_iterations_alone_have_rows(gpu, rows):
    """Rows 20 and 30: a row for each iteration that passes, and none is used twice."""
    chosen, n = np.zeros(400, np.int32), gpu.on_chip + 20
    chosen[np.random.default_rng().permutation(400)[:rows]] = 1

    def work():
        k, x, _, gate = gated(gpu, 400)
        gate.from_numpy(chosen)
        k.grad(n)
        return x.grad.to_numpy(), k.grad.plan(n).bytes, qd.current_program().usage().get("adstack", 0)

    (found, planned, used), (cpu, _, _) = gpu.both(work)
    assert (found == cpu).all() and np.count_nonzero(cpu) == rows and planned == used == rows * n * gpu.nbytes
    close(gpu, found, np.where(chosen, expected(gpu, n, 400), 0.0))


def test_a_row_that_is_missing_is_reported_and_never_used(gpu, program, monkeypatch):
    """Row 20: the gate opens for more iterations than the plan knows of."""
    (k, x, y, gate), n = gated(gpu, 100), gpu.on_chip + 20
    gate.from_numpy((np.arange(100) < 10).astype(np.int32))
    stale, plan = k.grad.plan(n), GradientPlans.plan
    assert stale.rows()[0]["rows"] == 10
    passing = np.arange(100) < 30
    gate.from_numpy(passing.astype(np.int32))
    with monkeypatch.context() as m:
        m.setattr(GradientPlans, "plan", lambda self, *args, **options: stale)
        with pytest.raises(qd.AdStackOverflow, match=r"`k_grad`"):
            k.grad(n)
            qd.sync()
    assert GradientPlans.plan is plan
    x.grad.fill(0.0)
    y.grad.fill(1.0)
    k.grad(n)
    close(gpu, x.grad.to_numpy(), np.where(passing, expected(gpu, n, 100), 0.0))
    assert program.usage()["adstack"] == 30 * n * gpu.nbytes


def test_gates_are_counted_on_the_device_over_more_iterations_than_threads(gpu, program, monkeypatch):
    """Rows 21, 22, 23 and 25: a launch has 65,536 threads at most. Gates are numbers that a kernel has written."""
    asked, run = [], DeviceReducers.run
    monkeypatch.setattr(device_reducer, "SMALL_ARRAY", 0)
    monkeypatch.setattr(DeviceReducers, "run", lambda *args: (asked.append(1), run(*args))[1])
    (n, every), steps = (200_000, 100) if gpu.quick else (500, 10), gpu.on_chip + 3
    k, x, _, gate = gated(gpu, n, gpu.real, 0.5)

    @qd.kernel
    def mark(above: gpu.real):
        for i in gate:
            gate[i] = above if i % every == every - 1 else gpu.real(0.5)

    mark(float(np.nextafter(gpu.real.numpy.type(0.5), gpu.real.numpy.type(1))))
    x.fill(0.5)
    k.grad(steps)
    found = x.grad.to_numpy()
    assert asked and np.count_nonzero(found) == n // every and len({*found.tolist()}) == 2
    assert program.usage()["adstack"] == n // every * steps * gpu.nbytes


def test_debug_lines_of_the_heap_are_those_of_every_backend(gpu, program, monkeypatch, capfd):
    """Row 28."""
    monkeypatch.setenv("QDRUN_DEBUG_ADSTACK", "1")
    n = gpu.on_chip + 5
    chain(gpu)[1](n)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[adstack]")]
    size = f"plane=f{gpu.nbytes} rows=70 slots={n} words={n} bytes={70 * n * gpu.nbytes}"
    assert f"kernel=k_grad task=k_0_grad {size}" in line


def test_an_overflow_is_raised_when_the_host_waits_and_the_next_launch_is_clean(gpu):
    """Row 29: the status record lies in memory that may have another address on the GPU."""
    with gpu.init(ad_stack_size=4):
        x, y = (qd.field(gpu.real, shape=8, needs_grad=True) for _ in range(2))

        @qd.kernel
        def many(n: qd.i32):
            for i in x:
                v, k = x[i], 0
                while k < n:
                    v = v * v
                    k += 1
                y[i] = v

        at = np.linspace(0.5, 1.2, 8)
        x.from_numpy(at)
        for n in (9, 3, 9):
            x.grad.fill(0.0)
            y.grad.fill(1.0)
            if n > 4:
                with pytest.raises(qd.AdStackOverflow, match=r"than its adstack holds, which is 4 \(ad_stack_size: while\)"):
                    many.grad(n)  # a GPU that is fast has reported it before the call returns
                    qd.sync()
            else:
                many.grad(n)
                close(gpu, x.grad.to_numpy(), 8 * at**7)  # of x ** 8


def test_a_gate_that_cannot_be_counted_says_why(gpu, program):
    """Row 31: its index is no variable of the loop, so the plan has a row for each iteration."""
    x, y = (qd.field(gpu.real, shape=SIZE, needs_grad=True) for _ in range(2))
    flag = qd.field(qd.i32, shape=SIZE)

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            if flag[i * i % SIZE] > qd.random(qd.i32):
                v = x[i]
                for _ in range(n):
                    v = v * (1.4 - v)
                y[i] = v

    (row,) = k.grad.plan(gpu.on_chip + 30).rows()
    assert row["rows"] == SIZE and re.search(r"not counted|cannot be counted|written", row["rows_from"]), row["rows_from"]


def test_literal_bounds_need_no_stack_size(gpu):
    """Row 53."""
    with gpu.init(ad_stack_size=1):
        x, y = qd.field(gpu.real, shape=4, needs_grad=True), qd.field(gpu.real, shape=(), needs_grad=True)

        @qd.kernel
        def k():
            for i in x:
                v = x[i]
                for _ in range(5):
                    v = v * v
                y[None] += v

        x.fill(0.9)
        with qd.ad.Tape(loss=y):
            k()
        assert x.grad.to_numpy() == pytest.approx(32 * 0.9**31, rel=1e-12 if gpu.wide else 1e-5)


def test_a_plan_of_600_000_iterations_fits_one_allocation(gpu, program):
    """Row 54: an integer state of each iteration, for a request of 41,305,523,712 bytes elsewhere."""
    x, y = qd.field(qd.f32, shape=600_000, needs_grad=True), qd.field(qd.f32, shape=(), needs_grad=True)

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            v, c = x[i], i
            for _ in range(n):
                if c % 3 == 1:
                    v = v * v
                c = c * 5 + 1
            y[None] += v

    needed, limit = k.grad.plan(256).bytes, program.device.info.most_bytes
    assert 0 < needed <= 65_536 * 256 * 8 and (not limit or needed < limit)
