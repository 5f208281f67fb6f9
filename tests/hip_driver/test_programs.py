"""Programs on an AMD device, through the whole stack down to hip-python and the stand-in for ROCm's library.

Kernels do nothing here, unless a test says otherwise: the stand-in notes their argument words. What their code does is tested on the
emulator (``pytest --arch amdgpu``).
"""

import ctypes
import tempfile

import pytest

import qdrun as qd
from qdrun.tests.stand_in_programs import StandInPrograms, kernels

MIB = 1 << 20


def start(**options):
    return qd.init(arch=qd.amdgpu, default_fp=qd.f32, **options)


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


def test_code_goes_to_the_driver_from_memory(rocm, monkeypatch, tmp_path):
    """Row 51: no file of code is written for the driver."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with start(offline_cache=False):
        _x, scale = kernels(77)
        scale(1, 1.0)
        qd.sync()
        assert ctypes.string_at(rocm.last().image, 4) == b"\x7fELF" and rocm.last().image_bytes > 1000
    assert not list(tmp_path.iterdir())


class TestPrograms(StandInPrograms):
    """Behind the others: a device that is lost gives nothing back."""
