"""Programs on the driver: limits, growth, failures, waits, and many programs one after the other."""

import resource
import threading
from dataclasses import replace

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.errors import DeviceError, OutOfMemory
from qdrun.compiler.runtime.gpu import failing
from qdrun.compiler.runtime.gpu.commands import words
from qdrun.compiler.runtime.vulkan import encoder, instance
from qdrun.tests.on_gpus import Changed

from .conftest import NAME, add_text


@pytest.fixture
def change(has_device, monkeypatch):
    """Replaces functions of the loader, as Python calls them."""
    api = instance.instance().api
    return lambda **others: monkeypatch.setattr(api, "lib", Changed(api.lib, **others))


def stream_of(program):
    return program.device.driver._streams[program.device.stream]


def adder(shape=64, kind=None):
    x = qd.field(kind or qd.f32, shape=shape)

    @qd.kernel
    def add(by: qd.f32):
        for i in x:
            x[i] += by

    return x, add


def test_a_field_over_the_limit_of_one_allocation_is_out_of_memory_with_the_limit(start):
    program = start()
    limit, name = program.device.info.most_bytes, program.device.info.most_bytes_name
    with pytest.raises(OutOfMemory, match=rf"ndarrays? needs .*; one block on .* has at most {limit:,} bytes \({name}\)"):
        qd.ndarray(qd.f32, shape=(limit // 4 + 1,))
    x, add = adder()
    add(2.0)
    assert x.to_numpy().tolist() == [2.0] * 64


def test_a_full_device_is_out_of_memory_and_the_program_goes_on(start, change):
    start()
    x, add = adder()
    add(1.0)
    real = instance.instance().api.lib.vkAllocateMemory
    change(vkAllocateMemory=lambda d, info, a, m: -2 if info.allocationSize > 1 << 20 else real(d, info, a, m))
    with pytest.raises(OutOfMemory, match="has no more"):
        qd.ndarray(qd.f32, shape=(1 << 20,))
    small = qd.ndarray(qd.f32, shape=(1 << 10,))
    small[3] = 4.0
    add(1.0)
    assert x.to_numpy().tolist() == [2.0] * 64 and small[3] == 4.0


def test_a_heap_that_grows_under_queued_launches_waits_for_nothing(start, monkeypatch):
    """Row 8: launches that use the old heap are still queued when a larger one is allocated; gradients are right, as waiting for each."""
    program = start(default_fp=qd.f64)
    x = qd.field(qd.f64, shape=2000, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def grow(steps: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(steps):
                v = v * v * 0.5 + 0.25
            loss[None] += v

    def gradients(waiting):
        x.from_numpy(np.linspace(0.1, 0.9, 2000))
        x.grad.fill(0.0)
        loss.grad[None] = 1.0
        for steps in (3, 12, 50, 200):
            grow.grad(steps)
            if waiting:
                qd.sync()
        return x.grad.to_numpy()

    expected = gradients(True)
    again = gradients(False)
    assert (again == expected).all() and program.usage()["adstack"] >= 200 * 2000 * 8
    stream = stream_of(program)
    monkeypatch.setattr(program.device._holdings, "throttle", lambda keys: None)  # by which the host stays near the device
    x.grad.fill(0.0)
    qd.sync()
    waits = stream.waits
    for steps in (300, 500):
        grow.grad(steps)
    assert stream.waits == waits, "growing the heap waits for nothing"
    qd.sync()


def test_no_launch_waits_and_a_tape_is_few_command_buffers(start, monkeypatch):
    """Row 42."""
    program = start()
    x, add = adder()
    add(1.0)
    qd.sync()
    stream = stream_of(program)
    monkeypatch.setattr(program.device._holdings, "throttle", lambda keys: None)  # by which the host stays near the device
    waits, sent = stream.waits, stream._words[words.LAST]
    for _ in range(100):
        add(1.0)
    assert stream.waits == waits and stream._words[words.LAST] - sent <= 100 // 4
    assert x[5] == 101.0 and stream.waits == waits + 1, "reading waits once"


@pytest.mark.skipif(NAME != "llvmpipe", reason="a fault of this driver")
def test_a_loop_that_llvmpipe_ends_is_an_error_when_the_host_waits_and_the_program_goes_on(start):
    """It ends all loops of a thread after 65,536 iterations in sum, and the threads that it computes side by side end together."""
    start()
    x, left = qd.field(qd.i32, shape=20), qd.field(qd.i32, shape=20)

    @qd.kernel
    def count(outer: qd.i32, inner: qd.i32):
        for i in x:
            total = 0
            for _ in range(outer):
                for _ in range(inner):
                    total += 1
                    if total > 1_000_000:
                        break
            x[i] = total

    @qd.kernel
    def collatz(start: qd.i32):
        for i in left:
            n = start + i
            while n > 1:
                n = n // 2 if n % 2 == 0 else n - 1
            left[i] = n

    for outer, inner in ((1, 65_000), (250, 250), (4, 16_000)):
        count(outer, inner)
        assert (x.to_numpy() == outer * inner).all()
    count(1, 70_000)
    try:
        assert (x.to_numpy() == 70_000).all()
        pytest.skip("this version of llvmpipe ends no loops")
    except DeviceError:
        pass
    for outer, inner in ((1, 70_000), (300, 300), (4, 16_400)):
        count(outer, inner)
        with pytest.raises(DeviceError, match=r"llvmpipe has ended a loop.*after 65,536 iterations in sum") as e:
            qd.sync()
        assert "\n  do: fewer iterations in each thread" in str(e.value) and not e.value.restart
        assert x.to_numpy().max() < outer * inner, "it was ended, and said once"
    collatz(1000)
    assert (left.to_numpy() == 1).all()


def test_no_iterations_are_no_dispatch_and_no_allocation(start):
    """Row 9."""
    program = start()
    x = qd.ndarray(qd.f32, shape=(4,))

    @qd.kernel
    def add(a: qd.types.ndarray(dtype=qd.f32, ndim=1), n: qd.i32):
        for i in range(n):
            a[i] += 1.0

    add(x, 2)
    qd.sync()
    stream = stream_of(program)
    before = program.device.driver.pool_bytes()
    stream._words[encoder.BOUND] = 0
    add(x, 0)
    assert stream._words[encoder.BOUND] == 0 and program.device.driver.pool_bytes() == before, "no pipeline was bound"
    assert x.to_numpy().tolist() == [1.0, 1.0, 0.0, 0.0]


def test_a_refused_pipeline_is_an_error_with_the_kernel_and_its_bytes_and_the_program_goes_on(start, change):
    """Rows 12 and 35, at loading and at a launch."""
    start()
    x, add = adder()
    y, other = adder()
    add(1.0)
    real = instance.instance().api.lib
    change(vkCreateComputePipelines=lambda *args: -13)
    said = r"(?s)the driver refuses the pipeline of `.*` of kernel `add` \([\d,]+ bytes of SPIR-V\).*VK_ERROR_UNKNOWN"
    with pytest.raises(DeviceError, match=said):
        other(1.0)
        qd.sync()
    with pytest.raises(DeviceError, match=said):
        other(1.0)
        qd.sync()
    change(vkCreateComputePipelines=real.vkCreateComputePipelines)
    add(1.0)
    other(3.0)
    assert x.to_numpy().tolist() == [2.0] * 64 and y.to_numpy().tolist() == [3.0] * 64


def test_pipelines_are_kept_on_disk_for_their_driver(rig, change, tmp_path, monkeypatch):
    """llvmpipe keeps nothing itself: what stands for the driver's data is given back for the same pipeline of the same driver alone."""
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path))
    api, given, blob = instance.instance().api, [], bytes(range(60))
    real = api.lib

    def create(device, info, allocator, made):
        given.append(bytes(api.ffi.buffer(info.pInitialData, info.initialDataSize)) if info.initialDataSize else b"")
        info.initialDataSize = 0
        return real.vkCreatePipelineCache(device, info, allocator, made)

    def data(device, cache, size, out):
        if out != api.ffi.NULL:
            api.ffi.memmove(out, blob, len(blob))
        size[0] = len(blob)
        return 0

    change(vkCreatePipelineCache=create, vkGetPipelineCacheData=data)
    pipelines = rig.driver._here.pipelines
    newer = replace(pipelines._physical, cache_uuid="0" * 32)
    for keep, block, physical, expected in (
        *((False, 32, pipelines._physical, b""), (True, 32, pipelines._physical, b""), (True, 32, pipelines._physical, blob)),
        *((True, 64, pipelines._physical, b""), (True, 32, newer, b""), (False, 32, pipelines._physical, b"")),
    ):
        monkeypatch.setattr(pipelines, "_physical", physical)
        module = rig.function(add_text(2), "add", keep=keep)[1]
        rig.driver._here.make_pipeline(rig.driver._here.function(module, "add"), block, 0)
        assert given.pop() == expected and not given
        rig.driver.unload(module)


def test_a_lost_device_says_which_kernel_and_stays_lost(start, change, monkeypatch):
    monkeypatch.setattr(failing, "_failed", {})
    start()
    add = adder()[1]
    add(1.0)
    qd.sync()
    add(1.0)
    real = instance.instance().api.lib
    change(vkWaitSemaphores=lambda *args: -4)
    with pytest.raises(DeviceError, match=r"(?s)kernel `add` failed on .*VK_ERROR_DEVICE_LOST.*restart the process") as e:
        qd.sync()
    assert e.value.restart
    with pytest.raises(DeviceError, match="VK_ERROR_DEVICE_LOST"):
        add(1.0)
        qd.sync()
    change(vkWaitSemaphores=real.vkWaitSemaphores)
    qd.reset()
    with pytest.raises(DeviceError, match="has failed before"):
        start()


def test_200_programs_share_one_instance_and_memory_stays_flat(start):
    """Row 39."""
    made, peaks = set(), []
    for k in range(200):
        program = start()
        x, add = adder()
        add(float(k))
        assert x[7] == float(k)
        made.add((id(instance.instance()), id(program.device.driver._here)))
        blocks = len(program.device.driver._here.buffers._blocks)
        qd.reset()
        peaks.append((blocks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
    assert len(made) == 1
    assert peaks[-1][0] <= peaks[20][0] and peaks[-1][1] - peaks[20][1] < 40_000, "kilobytes"


def test_programs_on_several_threads_run_side_by_side(start):
    errors = []

    def work(k):
        try:
            with start():
                x, add = adder(shape=512)
                for _ in range(50):
                    add(float(k))
                assert x.to_numpy().tolist() == [50.0 * k] * 512
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def test_iterations_that_are_no_multiple_of_a_block_leave_the_rest_alone(start):
    """Row 26: blocks of 192 threads and 65,700 iterations; threads beyond the plan's leave at once."""
    n, steps = 65_700, 5
    start(default_fp=qd.f64)
    x = qd.field(qd.f64, shape=n + 100, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def grow(count: qd.i32, steps: qd.i32):
        qd.loop_config(block_dim=192)
        for i in range(count):
            v = x[i]
            for _ in range(steps):
                v = v * 1.5
            loss[None] += v

    x.fill(1.0)
    with qd.ad.Tape(loss=loss):
        grow(n, steps)
    assert loss[None] == n * 1.5**steps
    assert (x.grad.to_numpy() == np.where(np.arange(n + 100) < n, 1.5**steps, 0.0)).all()
