"""Programs on an Apple GPU, through the whole stack down to the stand-in for Metal.

Kernels do nothing here: the stand-in notes their words. With ``compiled`` it runs them by clang.
"""

import numpy as np
import pytest

import qdrun as qd
from qdrun.tests.stand_in_programs import StandInPrograms, kernels

MIB = 1 << 20


def start(**options):
    return qd.init(arch=qd.metal, default_fp=qd.f32, **options)


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


# ---- with clang behind Metal's compiler


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


class TestPrograms(StandInPrograms):
    """Behind the others: a device that is lost gives nothing back."""
