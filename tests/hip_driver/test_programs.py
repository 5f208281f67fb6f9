"""Programs on an AMD device, through the whole stack down to hip-python and the stand-in for ROCm's library.

Kernels do nothing here, unless a test says otherwise: the stand-in notes their argument words. What their code does is tested on the
emulator (``pytest --arch amdgpu``).
"""

import ctypes
import tempfile

import numpy as np
import pytest

import qdrun as qd

MIB = 1 << 20


def start(**options):
    return qd.init(arch=qd.amdgpu, default_fp=qd.f32, **options)


def kernels(n):
    """A field of so many numbers, and a kernel that scales it."""
    x = qd.field(qd.f32, shape=n)

    @qd.kernel
    def scale(k: qd.i32, by: qd.f32):
        for i in x:
            x[i] = x[i] * by + k

    return x, scale


def test_a_program_reaches_the_driver_and_its_kernels_get_their_words(rocm):
    with start() as program:
        assert (program.device.arch, program.device.name) == ("amdgpu", "AMD Test Card")
        x, scale = kernels(1000)
        x.from_numpy(np.arange(1000, dtype=np.float32))
        scale(7, 2.5)
        qd.sync()
        ran = rocm.last()
        assert ran.name == b"qd_scale_0" and ran.blocks * ran.threads >= 1000 and ran.bytes % 8 == 0
        words = list(ran.words[: ran.bytes // 8])
        assert 7 in [w & 0xFFFFFFFF for w in words]
        assert int(np.float32(2.5).view(np.uint32)) in [w & 0xFFFFFFFF for w in words]
        assert x.to_numpy().tolist() == list(range(1000)), "the field went there and back"


def test_nothing_waits_for_a_launch(rocm):
    """Row 42: after the first launch of a kernel, a launch is one call of the driver; events of the pacing may come between."""
    with start():
        _x, scale = kernels(100)
        for k in range(3):
            scale(k, 1.0)
        rocm.calls()
        for k in range(50):
            scale(k, 1.0)
        names = [c.name for c in rocm.calls()]
        assert names.count("hipModuleLaunchKernel") == 50
        assert set(names) <= {"hipModuleLaunchKernel", "hipEventRecord", "hipEventSynchronize", "hipEventElapsedTime"}
        qd.sync()


@pytest.mark.slow
def test_memory_is_flat_over_200_programs(rocm):
    """Row 50: pools are destroyed, streams and memory given back; the code of the one kernel stays for the next program."""
    seen = []
    for k in range(200):
        with start():
            _x, scale = kernels(10_000)
            scale(k, 1.0)
            qd.sync()
        seen.append(rocm.live()[:4])
        pools = rocm.calls("hipMemPoolCreate", "hipMemPoolDestroy")
        assert [c.name for c in pools] == ["hipMemPoolCreate", "hipMemPoolDestroy"]
    device_bytes, host_blocks, modules, streams = seen[0]
    assert set(seen) == {seen[0]} and (device_bytes, modules, streams) == (0, 1, 0) and host_blocks <= 1, seen[:5]


def test_a_full_device_is_out_of_memory_and_the_program_goes_on(rocm):
    """Row 51: the pool's refusal is an OutOfMemory with the bytes, and smaller allocations still work."""
    rocm.setup(total=64 * MIB)
    rocm.others(60 * MIB)
    with start():
        with pytest.raises(qd.OutOfMemory, match="8,000,000 bytes"):
            qd.ndarray(qd.f32, 2_000_000)
        _x, scale = kernels(1000)
        scale(1, 1.0)
        qd.sync()
        rocm.others(0)
        qd.ndarray(qd.f32, 2_000_000)


def test_the_pool_is_trimmed_before_an_allocation_is_refused(rocm):
    """What was freed and kept makes room."""
    rocm.setup(total=64 * MIB)
    with start() as program:
        device = program.device
        device.free(device.allocate(40 * MIB, "fields"))
        rocm.calls()
        device.free(device.allocate(50 * MIB, "fields"))
        names = [c.name for c in rocm.calls("hipMallocFromPoolAsync", "hipMemPoolTrimTo", "hipStreamSynchronize")]
        assert names[:4] == ["hipMallocFromPoolAsync", "hipStreamSynchronize", "hipMemPoolTrimTo", "hipMallocFromPoolAsync"]


def test_a_lost_device_names_the_kernel_and_stays_lost(rocm):
    with start():
        _x, scale = kernels(100)
        scale(1, 1.0)
        qd.sync()
        rocm.run(lambda launch: 719)
        scale(2, 1.0)
        with pytest.raises(qd.DeviceError) as e:
            qd.sync()
        assert str(e.value) == (
            "kernel `scale` failed on AMD Test Card: it was stopped by the device (a trap, or a fault without a name)"
            " (hipErrorLaunchFailure)\n"
            "  the device cannot be used any more by this process\n"
            "  do: restart the process; run the kernel with qd.init(debug=True), which checks every index"
        )
        assert e.value.restart and e.value.bounds
        with pytest.raises(qd.DeviceError, match="hipErrorLaunchFailure"):
            scale(3, 1.0)
            qd.sync()
    with pytest.raises(qd.DeviceError, match="the device cannot be used any more by this process"):
        start()


def test_a_refused_launch_names_the_kernel_and_the_program_goes_on(rocm):
    with start():
        _x, scale = kernels(100)
        scale(1, 1.0)
        qd.sync()
        rocm.fail("hipModuleLaunchKernel", 701)
        with pytest.raises(qd.DeviceError, match=r"kernel `scale` could not be launched: .*\(hipErrorLaunchOutOfResources\)"):
            scale(2, 1.0)
        scale(3, 1.0)
        qd.sync()


def test_a_graph_is_captured_by_hip_and_launched_as_one(rocm):
    """Row 49."""
    with start():
        _x, scale = kernels(100)

        def steps():
            scale(1, 2.0)
            scale(2, 2.0)

        steps()
        graph = qd.capture(steps)
        graph()
        qd.sync()
        rocm.calls()
        before = rocm.live().launches
        for _ in range(5):
            graph()
        qd.sync()
        names = [c.name for c in rocm.calls()]
        assert names.count("hipGraphLaunch") == 5 and "hipModuleLaunchKernel" not in names
        assert rocm.live().launches == before + 10


@qd.func
def step(v):
    return qd.sin(v) + 0.3


def test_a_heap_that_grows_waits_for_nothing(rocm):
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
        rocm.calls()
        heaps = []
        for steps in (400, 900, 2000):
            swing(steps)
            swing.grad(steps)
            heaps.append(swing.grad.plan(steps).bytes)
        names = [c.name for c in rocm.calls()]
        assert heaps == sorted(heaps) and heaps[0] > 0
        assert names.count("hipFreeAsync") >= 2 and names.count("hipMallocFromPoolAsync") >= 3
        assert not {"hipStreamSynchronize", "hipFree"} & set(names)
        qd.sync()


def test_code_goes_to_the_driver_from_memory(rocm, monkeypatch, tmp_path):
    """Row 51: no file of code is written for the driver."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with start(offline_cache=False):
        _x, scale = kernels(77)
        scale(1, 1.0)
        qd.sync()
        assert ctypes.string_at(rocm.last().image, 4) == b"\x7fELF" and rocm.last().image_bytes > 1000
    assert not list(tmp_path.iterdir())
