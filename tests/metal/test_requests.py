"""What a peer project was asked for on Metal, where code must run: on the emulated Apple GPU, which has no f64."""

import re
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.plans import device_reducer
from qdrun.compiler.program.plans.device_reducer import DeviceReducers
from qdrun.compiler.program.plans.gradient_plans import GradientPlans

APPLE = {"arch": qd.metal, "device": "emulated"}


@pytest.fixture
def program():
    with qd.init(default_fp=qd.f32, **APPLE) as made:
        yield made


def both(work):
    """The results of the same work on the GPU and on the CPU."""
    out = []
    for options in (APPLE, {"arch": qd.cpu}):
        with qd.init(default_fp=qd.f32, **options):
            out.append(work())
    return out


# ---- types
def line_of(text):
    return next(n for n, line in enumerate(Path(__file__).read_text(encoding="utf-8").splitlines(), 1) if line.endswith(text))


def test_a_kernel_with_f64_is_refused_with_its_line_and_the_next_one_runs(program):
    """Row 4."""
    x, wide = qd.field(qd.f32, shape=8), qd.field(qd.f64, shape=8)

    @qd.kernel
    def both_types():
        for i in x:
            wide[i] = 2.0 * x[i]  # here

    @qd.kernel
    def plain():
        for i in x:
            x[i] += 1.0

    with pytest.raises(qd.QdrunTypeError) as e:
        both_types()
    text = str(e.value)
    assert re.search(r"kernel `both_types` computes in f64, and the device \(metal\) has no f64", text), text
    assert f"test_requests.py:{line_of('wide[i] = 2.0 * x[i]  # here')}" in text
    assert "do: use f32" in text
    plain()
    assert (x.to_numpy() == 1.0).all()


def test_an_atomic_of_8_bytes_is_refused_with_its_line_and_plain_integers_of_8_bytes_are_not(program):
    """Row 4: device code has integers of 64 bits, but no atomics of them."""
    x, total = qd.field(qd.i64, shape=100), qd.field(qd.i64, shape=3)

    @qd.kernel
    def fill():
        for i in x:
            x[i] = (i + 1) * 10_000_000_000

    @qd.kernel
    def add():
        for i in x:
            total[i % 3] += x[i]  # wide

    fill()
    assert x.to_numpy().tolist() == [(i + 1) * 10_000_000_000 for i in range(100)]
    with pytest.raises(qd.QdrunTypeError, match=r"changes `total` by an atomic of 8 bytes \(i64\)") as e:
        add()
    assert f"test_requests.py:{line_of('total[i % 3] += x[i]  # wide')}" in str(e.value) and "do: use i32 for `total`" in str(
        e.value
    )


def test_a_gradient_that_keeps_states_of_8_bytes_is_refused_with_its_loop_before_anything_runs(program):
    """Row 4."""
    x, y = (qd.field(qd.f32, shape=8, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            v, c = x[i], qd.cast(i, qd.i64)
            for _ in range(n):  # keeps c
                c = (c * 5 + 3) % 8
                v = v * x[qd.cast(c, qd.i32)]
            y[i] = v

    x.fill(0.5)
    k(3)
    with pytest.raises(qd.QdrunTypeError, match="keeps i64 states, and metal has no i64") as e:
        k.grad(3)
    assert f"test_requests.py:{line_of('for _ in range(n):  # keeps c')}" in str(e.value)
    assert "use f32 and i32 for the variables of this loop" in str(e.value)


# ---- heaps
def test_loops_with_states_of_several_types_beside_each_other():
    """Rows 5, 6, 13 and 27: six sibling loops, each with an integer and a truth value that decide branches."""
    rng = np.random.default_rng()
    start, n = rng.uniform(0.2, 0.9, 20).astype(np.float32), int(rng.integers(2, 4))

    def work():
        x, y = qd.field(qd.f32, shape=20, needs_grad=True), qd.field(qd.f32, shape=(), needs_grad=True)

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                v = x[i]
                for group in qd.static(range(6)):
                    count = i % 3
                    odd = i % 2 == 1
                    for j in range(n + group % 2):
                        if count > 1:
                            v = v * (1.5 - v)
                        elif odd:
                            v = 0.95 * v
                        else:
                            v = 0.9 * v + 0.05 * v * v
                        count = (count * 7 + j + group) % 4
                        odd = not odd
                y[None] += v

        x.from_numpy(start)
        with qd.ad.Tape(loss=y):
            k(n)
        return x.grad.to_numpy(), k.grad.plan(n).bytes

    (gpu, heap), (cpu, _) = both(work)
    assert (gpu == cpu).all() and np.abs(cpu).min() > 0
    assert heap == 20 * sum(3 * 4 * (n + group % 2) for group in range(6)), "three states of 4 bytes: v, count, odd"


@pytest.mark.parametrize("rows", [0, 7, 65, 130])
def test_gated_iterations_alone_have_rows(rows):
    """Rows 20 and 30: a row for each iteration that passes, and none is written twice."""
    chosen = np.zeros(130, np.int32)
    chosen[np.random.default_rng().permutation(130)[:rows]] = 1

    def work():
        x, flag = qd.field(qd.f32, shape=130, needs_grad=True), qd.field(qd.i32, shape=130)
        y = qd.field(qd.f32, shape=(), needs_grad=True)

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                if flag[i] > 0:
                    v = x[i]
                    for _ in range(n):
                        v = v * (1.4 - v)
                    y[None] += v

        x.from_numpy(np.linspace(0.1, 0.9, 130, dtype=np.float32))
        flag.from_numpy(chosen)
        with qd.ad.Tape(loss=y):
            k(3)
        return x.grad.to_numpy(), k.grad.plan(3).bytes

    (gpu, heap), (cpu, _) = both(work)
    assert (gpu == cpu).all() and np.count_nonzero(cpu) == rows and heap == rows * 3 * 4


def test_a_gate_over_more_iterations_than_threads(program, monkeypatch):
    """Rows 21, 22 and 25: 200,000 iterations, of which 2,000 pass; the launch has 65,536 threads at most."""
    asked, run = [], DeviceReducers.run
    monkeypatch.setattr(device_reducer, "SMALL_ARRAY", 0)
    monkeypatch.setattr(DeviceReducers, "run", lambda *args: (asked.append(1), run(*args))[1])
    n = 200_000
    x, flag, y = (
        qd.field(qd.f32, shape=n, needs_grad=True),
        qd.field(qd.i32, shape=n),
        qd.field(qd.f32, shape=(), needs_grad=True),
    )

    @qd.kernel
    def k(m: qd.i32):
        for i in x:
            if flag[i] > 0:
                v = x[i]
                for _ in range(m):
                    v = v * (1.4 - v)
                y[None] += v

    x.fill(0.5)
    flag.from_numpy((np.arange(n) % 100 == 99).astype(np.int32))
    y.grad.fill(1.0)
    k.grad(3)
    found = x.grad.to_numpy()
    assert asked and np.count_nonzero(found) == 2000 and len(set(found.tolist())) == 2
    assert program.usage()["adstack"] == 2000 * 3 * 4


def test_a_row_that_is_missing_is_reported_and_never_used(program, monkeypatch):
    """Row 20: the gate opens for more iterations than the plan knows of."""
    x, y = (qd.field(qd.f32, shape=100, needs_grad=True) for _ in range(2))
    flag = qd.field(qd.i32, shape=100)

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            if flag[i] > 0:
                v = x[i]
                for _ in range(n):
                    v = v * (1.4 - v)
                y[i] = v

    x.fill(0.5)
    flag.from_numpy((np.arange(100) < 10).astype(np.int32))
    stale = k.grad.plan(20)
    assert stale.rows()[0]["rows"] == 10
    flag.from_numpy((np.arange(100) < 30).astype(np.int32))
    with monkeypatch.context() as m:
        m.setattr(GradientPlans, "plan", lambda self, *args, **options: stale)
        with pytest.raises(qd.AdStackOverflow, match=r"`k_grad`"):
            k.grad(20)
            qd.sync()
    x.grad.fill(0.0)
    y.grad.fill(1.0)
    k.grad(20)
    assert np.count_nonzero(x.grad.to_numpy()) == 30 and program.usage()["adstack"] == 30 * 20 * 4


def test_debug_lines_of_the_heap_are_those_of_every_backend(program, monkeypatch, capfd):
    """Row 28."""
    monkeypatch.setenv("QDRUN_DEBUG_ADSTACK", "1")
    x, y = (qd.field(qd.f32, shape=70, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = v * (1.4 - v)
            y[i] = v

    k.grad(5)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[adstack]")]
    assert "plane=f4 rows=70 slots=5 words=5 bytes=1400" in line


@pytest.mark.parametrize("n, block", [(65_700, 192), (641, 96)])
def test_iterations_that_are_no_multiple_of_a_block(n, block):
    """Row 26."""

    def work():
        x = qd.field(qd.i32, shape=n + 300)

        @qd.kernel
        def k(n: qd.i32):
            qd.loop_config(block_dim=block)
            for i in range(n):
                x[i] = i + 1

        k(n)
        return x.to_numpy()

    gpu, cpu = both(work)
    assert (gpu == np.where(np.arange(n + 300) < n, np.arange(n + 300) + 1, 0)).all() and (gpu == cpu).all()


def test_a_loop_without_iterations_has_no_heap_and_launches_nothing(program):
    """Row 9."""
    x, y = (qd.field(qd.f32, shape=30, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(n: qd.i32, m: qd.i32):
        for i in range(m):
            v = x[i]
            for _ in range(n):
                v = v * (1.4 - v)
            y[i] = v

    k(5, 0)
    k.grad(5, 0)
    qd.sync()
    assert k.grad.plan(5, 0).bytes == program.usage().get("adstack", 0) == 0
    y.grad.fill(1.0)
    k.grad(0, 30)
    assert (x.grad.to_numpy() == 1.0).all()


def test_a_tape_of_4096_slots_runs():
    """Row 2: what a thread takes on the device does not depend on the length of its tape."""

    def work():
        x, y = (qd.field(qd.f32, shape=3, needs_grad=True) for _ in range(2))

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                v = x[i]
                for _ in range(n):
                    v = v * (1.0001 - 0.0001 * v)
                y[i] = v

        x.from_numpy(np.linspace(0.3, 0.9, 3, dtype=np.float32))
        y.grad.fill(1.0)
        k.grad(4096)
        assert k.grad.plan(4096).rows()[0]["slots"]["tape"] == 4096
        return x.grad.to_numpy()

    gpu, cpu = both(work)
    assert (gpu == cpu).all() and np.abs(cpu).min() > 0.1


def test_literal_bounds_need_no_stack_size(program):
    """Row 53."""
    with qd.init(default_fp=qd.f32, ad_stack_size=1, **APPLE):
        x, y = qd.field(qd.f32, shape=4, needs_grad=True), qd.field(qd.f32, shape=(), needs_grad=True)

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
        assert x.grad.to_numpy() == pytest.approx(32 * 0.9**31, rel=1e-5)


def test_a_plan_of_600_000_iterations_is_under_one_buffer_s_limit(program):
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

    assert k.grad.plan(256).bytes <= 65_536 * 256 * 8


# ---- reports
def test_an_overflow_is_raised_and_the_next_launch_is_well():
    """Row 29: the status record lies in memory that has another address on the GPU."""
    with qd.init(default_fp=qd.f32, ad_stack_size=4, **APPLE):
        x, y = (qd.field(qd.f32, shape=8, needs_grad=True) for _ in range(2))

        @qd.kernel
        def many(n: qd.i32):
            for i in x:
                v, k = x[i], 0
                while k < n:
                    v = v * v
                    k += 1
                y[i] = v

        x.fill(1.0)
        for n in (9, 3, 9):
            x.grad.fill(0.0)
            y.grad.fill(1.0)
            many.grad(n)
            if n > 4:
                with pytest.raises(qd.AdStackOverflow, match="more iterations than its adstack holds, which is 4"):
                    qd.sync()
            else:
                assert x.grad.to_numpy().tolist() == [8.0] * 8


def test_asserts_and_indices_are_checked_and_the_earliest_iteration_is_named(program):
    """Row 36."""
    with qd.init(debug=True, default_fp=qd.f32, **APPLE):
        x = qd.field(qd.i32, shape=100)

        @qd.kernel
        def checked(limit: qd.i32):
            for i in x:
                x[i] = i
                assert i < limit, f"i is {i}"

        @qd.kernel
        def outside(n: qd.i32):
            for i in range(n):
                x[i + 1] = i

        checked(100)
        qd.sync()
        with pytest.raises(qd.QdrunAssertionError, match=r"i is 7\b"):
            checked(7)
            qd.sync()
        with pytest.raises(qd.QdrunAssertionError, match="index 100 but extent 100"):
            outside(100)
            qd.sync()
        outside(99)
        qd.sync()


def test_random_numbers_are_those_of_the_cpu():
    def work():
        x = qd.field(qd.f32, shape=300)

        @qd.kernel
        def k():
            for i in x:
                x[i] = qd.random(qd.f32)

        k()
        return x.to_numpy()

    gpu, cpu = both(work)
    assert (gpu == cpu).all() and len(set(cpu.tolist())) > 290


def test_on_other_systems_there_is_one_clear_line():
    import sys

    if sys.platform == "darwin":
        pytest.skip("this system has Metal")
    with pytest.raises(qd.DeviceError) as e:
        qd.init(arch=qd.metal)
    assert str(e.value) == (
        f"Metal cannot be used: it is a part of macOS, and this is {sys.platform}\n"
        "  do: use another backend, or device='emulated' for a slow test on the processor"
    )
    with pytest.raises(qd.DeviceError, match="no Apple GPU `m1` is emulated"):
        qd.init(arch=qd.metal, device="emulated:m1")


def test_shared_arrays_of_two_loops_use_the_same_memory_and_too_large_ones_are_refused(program):
    x = qd.field(qd.f32, shape=128)

    @qd.kernel
    def two(size: qd.template()):
        qd.loop_config(block_dim=64)
        for i in range(128):
            a = qd.simt.block.SharedArray(size, qd.f32)
            a[i % 64] = 1.0 * i
            qd.simt.block.sync()
            x[i] = a[63 - i % 64]
        qd.loop_config(block_dim=32)
        for i in range(128):
            b = qd.simt.block.SharedArray(size, qd.f32)
            b[i % 32] = x[i]
            qd.simt.block.sync()
            x[i] = b[31 - i % 32]

    two(5000)
    expected = np.arange(128.0).reshape(2, 64)[:, ::-1].reshape(4, 32)[:, ::-1].ravel()
    assert x.to_numpy().tolist() == expected.tolist()
    with pytest.raises(
        qd.QdrunRuntimeError,
        match=r"a loop of kernel `two` needs 36,000 bytes of on-chip memory for a block; Apple's GPUs have 32,768",
    ):
        two(9000)
