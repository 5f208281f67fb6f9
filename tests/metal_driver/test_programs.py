"""Programs on an Apple GPU, through the whole stack down to the stand-in for Metal.

Kernels do nothing here, unless a test says otherwise: the stand-in notes their words. With ``compiled`` it runs them: what the driver has
given to Metal's compiler is given to clang.
"""

import contextlib
import ctypes
import traceback

import numpy as np
import pytest

import qdrun as qd
from qdrun.tests.devices.metal import executor

MIB = 1 << 20


@pytest.fixture
def compiled(apple):
    """The stand-in with a GPU that runs what it is given."""
    with contextlib.suppress(qd.DeviceError):
        executor.clang()
        loaded = {}

        def run(launch):
            found = launch.contents
            try:
                if found.source not in loaded:
                    image = executor.image_of(ctypes.string_at(found.source, found.source_bytes).decode(), "k")
                    loaded[found.source] = executor.MetalExecutor().load(image, "k")
                code = loaded[found.source][found.name.decode()]
                words = found.words[0] if code.facts.by_address else ctypes.addressof(found.words)
                live = executor.ends_of(apple.ranges())
                code.run_on(words, found.blocks, found.threads, found.shared - code.facts.shared // 16 * 16, live)
            except Exception:
                traceback.print_exc()
                return 3
            return 0

        apple.run(run)
        return apple
    pytest.skip("clang is not installed")


def start(**options):
    return qd.init(arch=qd.metal, default_fp=qd.f32, **options)


def kernels(n, more=0):
    """A field of so many numbers, and a kernel that scales it; ``more`` makes another one of it."""
    x = qd.field(qd.f32, shape=n)

    @qd.kernel
    def scale(k: qd.i32, by: qd.f32):
        for i in x:
            x[i] = x[i] * by + k + more

    return x, scale


def test_a_program_reaches_metal_and_its_kernels_get_their_words(apple):
    with start() as program:
        assert (program.device.arch, program.device.name) == ("metal", "Apple Test")
        x, scale = kernels(1000)
        x.from_numpy(np.arange(1000, dtype=np.float32))
        scale(7, 2.5)
        qd.sync()
        ran = apple.last()
        assert ran.name == b"qd_scale_0" and ran.blocks * ran.threads >= 1000 and ran.bytes % 8 == 0
        words = list(ran.words[: ran.bytes // 8])
        assert 7 in [w & 0xFFFFFFFF for w in words]
        assert int(np.float32(2.5).view(np.uint32)) in [w & 0xFFFFFFFF for w in words]
        assert x.to_numpy().tolist() == list(range(1000)), "the field went there and back"


def test_nothing_waits_for_a_launch(apple):
    """Row 42: after the first launch of a kernel, a launch is a few messages from machine code."""
    with start():
        _x, scale = kernels(100)
        for k in range(20):
            scale(k, 1.0)
        qd.sync()
        apple.calls()
        for k in range(50):
            scale(k, 1.0)
        names = apple.calls()
        assert names.count("dispatchThreadgroups:threadsPerThreadgroup:") == names.count("setBytes:length:atIndex:") == 50
        assert names.count("waitUntilCompleted") < 10, "marks of the pacing"
        assert names.count("setComputePipelineState:") < 10
        qd.sync()


def test_memory_is_flat_over_200_programs(apple):
    """Row 50's like: streams, heaps, fences and command buffers are given back; the code of the one kernel stays for the next program."""
    seen = []
    for k in range(200):
        with start():
            _x, scale = kernels(10_000)
            scale(k, 1.0)
            qd.sync()
        live = apple.live()
        seen.append((live.heap_bytes, {n: c for n, c in live.objects.items() if c}))
        apple.library.standin_sweep()
    assert all(s == seen[1] for s in seen[1:]), (seen[1], seen[-1])
    assert not {"queue", "commands", "encoder", "fence", "string", "error"} & set(seen[1][1])


def test_a_full_device_is_out_of_memory_with_both_numbers_and_the_program_goes_on(apple):
    """Row 11."""
    apple.setup(total=64 * MIB, longest=48 * MIB)
    apple.others(30 * MIB)
    with start():
        with pytest.raises(qd.OutOfMemory, match=r"40,000,000 bytes.*maxBufferLength is 50,331,648 bytes"):
            qd.ndarray(qd.f32, 10_000_000)
        with pytest.raises(qd.OutOfMemory, match=r"60,000,000 bytes.*maxBufferLength is 50,331,648 bytes"):
            qd.ndarray(qd.f32, 15_000_000)
        x, scale = kernels(1000)
        scale(1, 1.0)
        assert x.to_numpy().shape == (1000,)
        apple.others(0)
        qd.ndarray(qd.f32, 5_000_000)


@pytest.mark.parametrize("error", [True, False])
@pytest.mark.parametrize("name", ["newLibraryWithSource:options:error:", "newComputePipelineStateWithFunction:error:"])
def test_a_refused_kernel_is_named_with_its_bytes_and_the_program_goes_on(apple, name, error):
    """Rows 12 and 35."""
    with start(offline_cache=False) as program:
        x, scale = kernels(77, int(np.random.default_rng().integers(1 << 30)))
        x.fill(1.0)
        qd.sync()
        apple.fail(name, 1, "out of registers", error)
        said = "out of registers" if error else r"Metal gives no reason \(no NSError\)"
        with pytest.raises(
            qd.DeviceError, match=rf"kernel `scale` \([\d,]+ bytes of MSL\) cannot be loaded.*\n  {said}\n  do: report it"
        ):
            scale(1, 1.0)
        scale(1, 1.0)
        qd.sync()
        assert apple.last().name == b"qd_scale_0" and program.device.dead is False


def test_a_lost_device_names_the_kernel_and_stays_lost(apple):
    with start():
        _x, scale = kernels(100)
        scale(1, 1.0)
        qd.sync()
        apple.fail_work(3, "Caused GPU Address Fault Error")
        scale(2, 1.0)
        with pytest.raises(qd.DeviceError) as e:
            qd.sync()
        assert str(e.value) == (
            "kernel `scale` failed on Apple Test: it read or wrote memory that is not its own (MTLCommandBufferErrorPageFault)\n"
            "  the device cannot be used any more by this process\n"
            "  do: restart the process; run the kernel with qd.init(debug=True), which checks every index"
        )
        assert e.value.restart and e.value.bounds
        with pytest.raises(qd.DeviceError, match="MTLCommandBufferErrorPageFault"):
            scale(3, 1.0)
            qd.sync()
    with pytest.raises(qd.DeviceError, match="the device cannot be used any more by this process"):
        start()


def test_a_launch_without_a_command_buffer_names_the_kernel_and_the_program_goes_on(apple):
    with start():
        _x, scale = kernels(100)
        scale(1, 1.0)
        qd.sync()
        apple.fail("commandBuffer")
        with pytest.raises(qd.DeviceError, match=r"kernel `scale` could not be launched: Metal has given no object"):
            scale(2, 1.0)
        scale(3, 1.0)
        qd.sync()


@qd.func
def step(v):
    return qd.sin(v) + 0.3


def test_a_heap_that_grows_waits_for_nothing(apple):
    """Row 8: a gradient whose heap is too small for its next launch frees it in the order of the stream, under queued launches."""
    with start():
        x, total = qd.field(qd.f32, shape=300, needs_grad=True), qd.field(qd.f32, shape=(), needs_grad=True)

        @qd.kernel
        def swing(steps: qd.i32):
            for i in x:
                v = x[i]
                for _ in range(steps):
                    v = step(v)
                total[None] += v

        for steps in (2, 40):  # the code of both plans
            swing(steps)
            swing.grad(steps)
        qd.sync()
        apple.calls()
        heaps = []
        for steps in (400, 900, 20_000):
            swing(steps)
            swing.grad(steps)
            heaps.append(swing.grad.plan(steps).bytes)
        names = apple.calls()
        assert heaps == sorted(heaps) and heaps[0] > 0
        assert names.count("newBufferWithLength:options:") >= 3
        assert "waitUntilCompleted" not in names
        qd.sync()


# ---- with clang behind Metal's compiler
def swing(n, start):
    x, total = qd.field(qd.f32, shape=n, needs_grad=True), qd.field(qd.f32, shape=(), needs_grad=True)

    @qd.kernel
    def steps(count: qd.i32):
        for i in x:
            v = x[i]
            for k in range(count):
                v = v + 0.05 * v * (1.0 - v) if v > 0.3 else v * 1.01 + 0.001 * k
            total[None] += v

    x.from_numpy(start)
    with qd.ad.Tape(loss=total):
        steps(5)
    return total[None], x.grad.to_numpy()


def test_a_gradient_has_the_bits_of_the_cpu(compiled):
    start_at = np.random.default_rng().uniform(0.0, 1.0, 70).astype(np.float32)
    with start():
        loss, found = swing(70, start_at)
    launches = compiled.live().launches
    with qd.init(arch=qd.cpu, default_fp=qd.f32):
        expected_loss, expected = swing(70, start_at)
    assert launches >= 2 and (found == expected).all() and loss == pytest.approx(expected_loss, rel=1e-5)


def test_a_failed_assert_comes_back_through_shared_memory(compiled):
    """Row 36."""
    with start(debug=True):

        @qd.kernel
        def check(n: qd.i32):
            for i in range(n):
                assert i != 5, "it is five"

        check(5)
        qd.sync()
        with pytest.raises(AssertionError, match="it is five"):
            check(9)
            qd.sync()


def test_a_graph_runs_its_kernels_again(compiled):
    with start():
        x = qd.field(qd.i32, shape=70)

        @qd.kernel
        def add(k: qd.i32):
            for i in x:
                x[i] += k * i

        def both():
            add(1)
            add(10)

        both()
        graph = qd.capture(both)
        graph()
        graph()
        assert x.to_numpy().tolist() == [33 * i for i in range(70)]


def test_prints_come_when_the_host_waits(compiled, capfd):
    """Row 37."""
    with start():

        @qd.kernel
        def say(n: qd.i32):
            for i in range(n):
                print("number", i)

        say(3)
        qd.sync()
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "number 0", "number 1", "number 2"]


def test_a_batch_has_a_trial_in_each_column(compiled):
    with start(batch=5) as program:
        x, total = qd.field(qd.f32, shape=30, needs_grad=True), qd.field(qd.f32, shape=(), needs_grad=True)

        @qd.kernel
        def squares(k: qd.f32):
            for i in x:
                total[None] += k * x[i] ** 2

        data = np.random.default_rng().uniform(0.0, 1.0, (5, 30)).astype(np.float32)
        assert program.trials is not None
        x.from_numpy(data)
        with qd.ad.Tape(loss=total):
            squares(3.0)
        assert np.allclose(x.grad.to_numpy(), 6 * data, rtol=1e-6)
