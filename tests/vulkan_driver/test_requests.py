"""What a peer project was asked for on Vulkan, where code must run: on llvmpipe. docs/gpu-requests.md has the whole list."""

import mmap
from dataclasses import replace

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.plans import device_reducer
from qdrun.compiler.program.plans.device_reducer import DeviceReducers
from qdrun.compiler.program.plans.gradient_plans import GradientPlans
from qdrun.compiler.runtime.base import Allocation
from qdrun.compiler.runtime.gpu.device import GpuDevice

from .conftest import NAME

pytestmark = pytest.mark.usefixtures("heap_tapes")
GPU = {"arch": qd.vulkan, "device": NAME}
NO_RESERVE = 0x4000  # MAP_NORESERVE, which the module does not name


@pytest.fixture
def program(has_device):
    with qd.init(default_fp=qd.f64, **GPU) as made:
        yield made


@pytest.fixture
def both(has_device):
    """Gives the results of the same work on the GPU and on the CPU."""

    def run(work, **more):
        out = []
        for options in (GPU, {"arch": qd.cpu}):
            with qd.init(default_fp=qd.f64, **options, **more):
                out.append(work())
        return out

    return run


def test_loops_with_states_of_several_types_beside_each_other(both):
    """Rows 1, 4, 5, 13 and 27: six sibling loops with branches; states of f64, f32, i64 and truth values, each of which fills its tape."""
    rng = np.random.default_rng()
    start, n = rng.uniform(0.2, 0.9, 20), int(rng.integers(2, 5))

    def work():
        x, y = qd.field(qd.f64, shape=20, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                v, w = x[i], qd.cast(x[i], qd.f32)
                for group in qd.static(range(6)):
                    count = qd.cast(i % 3, qd.i64)
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
                y[None] += v + qd.cast(w, qd.f64)

        x.from_numpy(start)
        with qd.ad.Tape(loss=y):
            k(n)
        return x.grad.to_numpy(), k.grad.plan(n), qd.current_program().usage()["adstack"]

    (gpu, plan, heap), (cpu, _, _) = both(work)
    assert (gpu == cpu).all() and np.abs(cpu).min() > 0
    slots = 20 * sum(n + group % 2 for group in range(6))
    assert {p: size for p, size in plan.planes.items() if size} == {
        "f8": slots * 8,
        "f4": slots * 4,
        "i8": slots * 8,
        "i4": slots * 4,
    }
    assert heap == plan.bytes, "test bytes are the plan's"


def test_a_tape_of_4096_slots_runs(both):
    """Row 2: what a thread takes on the device does not depend on the length of its tape."""

    def work():
        x, y = (qd.field(qd.f64, shape=3, needs_grad=True) for _ in range(2))

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

    gpu, cpu = both(work)
    assert (gpu == cpu).all() and np.abs(cpu).min() > 0.1


@pytest.mark.parametrize("rows", [0, 7, 65, 130])
def test_gated_iterations_alone_have_rows(both, rows):
    """Row 20: a row for each iteration that passes, and each is used once."""
    chosen = np.zeros(130, np.int32)
    chosen[np.random.default_rng().permutation(130)[:rows]] = 1

    def work():
        x, flag = qd.field(qd.f64, shape=130, needs_grad=True), qd.field(qd.i32, shape=130)
        y = qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                if flag[i] > 0:
                    v = x[i]
                    for _ in range(n):
                        v = v * (1.4 - v)
                    y[None] += v

        x.from_numpy(np.linspace(0.1, 0.9, 130))
        flag.from_numpy(chosen)
        with qd.ad.Tape(loss=y):
            k(3)
        return x.grad.to_numpy(), k.grad.plan(3).bytes

    (gpu, heap), (cpu, _) = both(work)
    assert (gpu == cpu).all() and np.count_nonzero(cpu) == rows and heap == rows * 3 * 8


def test_a_gate_of_doubles_is_counted_on_the_device_over_more_iterations_than_threads(program, monkeypatch):
    """Rows 21, 22, 23 and 25: 200,000 iterations, of which 2,000 pass; the launch has 65,536 threads at most."""
    asked, run = [], DeviceReducers.run
    monkeypatch.setattr(device_reducer, "SMALL_ARRAY", 0)
    monkeypatch.setattr(DeviceReducers, "run", lambda *args: (asked.append(1), run(*args))[1])
    n = 200_000
    x, gate = qd.field(qd.f32, shape=n, needs_grad=True), qd.field(qd.f64, shape=n)
    y = qd.field(qd.f32, shape=(), needs_grad=True)

    @qd.kernel
    def k(m: qd.i32):
        for i in x:
            if gate[i] > 0.5:
                v = x[i]
                for _ in range(m):
                    v = v * (1.4 - v)
                y[None] += v

    x.fill(0.5)
    gate.from_numpy(np.where(np.arange(n) % 100 == 99, 0.5 + 1e-15, 0.5))
    y.grad.fill(1.0)
    k.grad(3)
    assert asked and np.count_nonzero(x.grad.to_numpy()) == 2000
    assert program.usage()["adstack"] == 2000 * 3 * 4


def test_a_gate_of_doubles_on_a_device_without_them_is_planned_and_refused_with_its_line(has_device, monkeypatch):
    """Row 23: numpy counts the iterations, as the device cannot. A gate of f32 in the same program is counted on the device."""
    from qdrun.compiler.runtime.vulkan import instance

    found = instance.instance()
    lean = tuple(replace(device, features=device.features - {"shaderFloat64"}) for device in found.devices)
    monkeypatch.setattr(found, "devices", lean, raising=False)
    monkeypatch.setattr(device_reducer, "SMALL_ARRAY", 0)
    asked, run = [], DeviceReducers.run
    monkeypatch.setattr(DeviceReducers, "run", lambda *args: (asked.append(1), run(*args))[1])
    with qd.init(default_fp=qd.f32, **GPU):
        x = qd.field(qd.f32, shape=300, needs_grad=True)
        gate, narrow_gate = qd.field(qd.f64, shape=300), qd.field(qd.f32, shape=300)
        y = qd.field(qd.f32, shape=(), needs_grad=True)

        @qd.kernel
        def wide(m: qd.i32):
            for i in x:
                if gate[i] > 0.5:
                    v = x[i]
                    for _ in range(m):
                        v = v * (1.4 - v)
                    y[None] += v

        @qd.kernel
        def narrow(m: qd.i32):
            for i in x:
                if narrow_gate[i] > 0.5:
                    v = x[i]
                    for _ in range(m):
                        v = v * (1.4 - v)
                    y[None] += v

        x.fill(0.5)
        gate.from_numpy(np.linspace(0.0, 1.0, 300))
        narrow_gate.from_numpy(np.linspace(0.0, 1.0, 300, dtype=np.float32))
        assert wide.grad.plan(3).bytes == 150 * 3 * 4 and not asked
        with pytest.raises(qd.QdrunTypeError, match=r"kernel `wide` computes in f64, and the device .* has no f64") as e:
            wide.grad(3)
        assert "if gate[i] > 0.5:" in str(e.value)
        y.grad.fill(1.0)
        narrow.grad(3)
        assert asked and np.count_nonzero(x.grad.to_numpy()) == 150


def test_a_row_that_is_missing_is_reported_and_never_used(program, monkeypatch):
    """Row 20: the gate opens for more iterations than the plan knows of."""
    x, y = (qd.field(qd.f64, shape=100, needs_grad=True) for _ in range(2))
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
    assert np.count_nonzero(x.grad.to_numpy()) == 30 and program.usage()["adstack"] == 30 * 20 * 8


def test_literal_bounds_need_no_stack_size(program):
    """Row 53."""
    with qd.init(default_fp=qd.f64, ad_stack_size=1, **GPU):
        x, y = qd.field(qd.f64, shape=4, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

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
        assert x.grad.to_numpy() == pytest.approx(32 * 0.9**31, rel=1e-12)


def test_a_plan_of_600_000_iterations_is_under_the_limit_of_one_allocation(program):
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

    assert k.grad.plan(256).bytes <= 65_536 * 256 * 8 < program.device.info.most_bytes


@pytest.mark.skipif(NAME != "llvmpipe", reason="the memory of this process is not the device's")
def test_a_heap_of_more_than_4_gib_is_addressed_in_64_bits(both, monkeypatch):
    """Row 3: bytes and words of the second loop's tape lie beyond 2**32. No driver here allocates so much: it is memory of the process,
    which takes pages where it is written.
    """
    kept, allocate, free = [], GpuDevice._allocate, GpuDevice._free

    def sparse(device, nbytes, category):
        if category != "adstack":
            return allocate(device, nbytes, category)
        memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
        kept.append(np.frombuffer(memory, np.uint8))
        return Allocation(kept[-1].ctypes.data, nbytes, category, kept[-1])

    monkeypatch.setattr(GpuDevice, "_allocate", sparse)
    monkeypatch.setattr(GpuDevice, "_free", lambda self, x: None if x.category == "adstack" else free(self, x))
    rows, slots = 65_536, 66_000
    start = np.random.default_rng().uniform(0.2, 0.9, rows).astype(np.float32)

    def work():
        x, y = (qd.field(qd.f32, shape=rows, needs_grad=True) for _ in range(2))

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                v = x[i]
                while v > 0.7:
                    v = v * (1.4 - v)
                w = x[i]
                for _ in range(n):
                    w = w * (1.4 - w)
                y[i] = v + w

        x.from_numpy(start)
        y.grad.fill(1.0)
        k.grad(3)
        return x.grad.to_numpy(), k.grad.plan(3).bytes

    (gpu, size), (cpu, _) = both(work, ad_stack_size=slots)
    assert size == rows * (slots + 3) * 4 > 4 * 2**32
    assert (gpu == cpu).all() and np.count_nonzero(cpu) == rows
    written = np.flatnonzero(kept[0][4 * rows * slots :].view(np.uint32))
    assert written.size == 3 * rows, "the tape of the second loop lies at the end"


def test_asserts_and_indices_are_checked_and_the_earliest_iteration_is_named(has_device):
    """Row 36."""
    with qd.init(debug=True, **GPU):
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


def test_prints_and_lines_of_the_heap_come_and_no_launch_waits_for_them(program, monkeypatch, capfd):
    """Rows 28 and 37."""
    x, y = (qd.field(qd.f64, shape=70, needs_grad=True) for _ in range(2))

    @qd.kernel
    def speak(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = v * (1.4 - v)
            y[i] = v
            if i == 3:
                print("number", i, "of", n)

    speak(5)
    assert capfd.readouterr().out == ""
    qd.sync()
    assert capfd.readouterr().out == "number 3 of 5\n"
    monkeypatch.setenv("QDRUN_DEBUG_ADSTACK", "1")
    speak.grad(5)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[adstack]")]
    assert "plane=f8 rows=70 slots=5 words=5 bytes=2800" in line


def test_random_numbers_are_those_of_the_cpu(both):
    """Row 52."""

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
