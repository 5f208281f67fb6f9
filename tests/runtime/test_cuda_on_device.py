"""NVIDIA's driver itself: runs where there is a device, with or without ``--arch cuda``."""

import ctypes
import importlib.metadata
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.errors import DeviceError, OutOfMemory
from qdrun.compiler.runtime.cuda.backend import BACKEND
from qdrun.compiler.runtime.cuda.driver import CudaDriver
from qdrun.compiler.runtime.cuda.ptx import compile_ptx, target_cpu
from qdrun.compiler.runtime.gpu.code import frame_bytes
from qdrun.compiler.runtime.gpu.device import GpuDevice
from qdrun.compiler.runtime.gpu.find import find, rows
from qdrun.compiler.runtime.gpu.memory import staging
from qdrun.compiler.runtime.registry import _find_cuda

pytestmark = pytest.mark.skipif(
    not (_find_cuda() and any(b.usable for b in rows(BACKEND))), reason="needs an NVIDIA device, its driver and cuda-python"
)
MEMSET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
FRAME = """
define ptx_kernel void @big(ptr %x, i64 %i) {
entry:
  %a = alloca [1024 x i32], align 4
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %loop ]
  %p = getelementptr i32, ptr %a, i64 %k
  %v = load volatile i32, ptr %x
  store volatile i32 %v, ptr %p
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, 1024
  br i1 %more, label %loop, label %done
done:
  %q = getelementptr i32, ptr %a, i64 %i
  %w = load volatile i32, ptr %q
  store i32 %w, ptr %x
  ret void
}
"""


@pytest.fixture
def device():
    made = GpuDevice(CudaDriver(), 0)
    yield made
    made.close()


def read(device, address, nbytes):
    out = np.zeros(nbytes, np.uint8)
    device.download(out.ctypes.data, address, nbytes)
    return out


def test_a_device_is_what_the_driver_says(device):
    info = device.info
    assert (
        info.sms > 0
        and info.threads_per_sm >= 1024
        and info.memory_bytes > 1 << 30
        and int(info.chip.removeprefix("sm_")) >= 70
    )
    assert info.driver_version >= 12000
    assert info.uuid.startswith("GPU-") and len(info.uuid) == 40
    for name in (info.uuid, info.pci, info.uuid[:12], str(info.index)):
        assert find(device.driver, name) == info


def test_memory_is_zero_and_keeps_what_is_written(device):
    rng = np.random.default_rng(0)
    for nbytes in (1, 3, 64, 5000, 1 << 20, (64 << 20) + 5):
        a = device.allocate(nbytes, "adstack")
        assert not read(device, a.ptr, nbytes).any()
        data = rng.integers(0, 256, nbytes, np.uint8)
        device.upload(a.ptr, data.ctypes.data, nbytes)
        sent, data = data.copy(), np.zeros(1, np.uint8)  # the source may go at once
        assert (read(device, a.ptr, nbytes) == sent).all()
        device.free(a)
    assert device.used_bytes == 0


def test_the_pool_counts_to_the_byte_and_gives_back(device):
    before = device.driver.pool_bytes()[0]
    a = device.allocate(10_000_001, "adstack")
    assert 10_000_001 <= device.driver.pool_bytes()[0] - before <= 10_000_001 + 4096
    assert device.occupied().reserved >= 10_000_001
    device.free(a)
    device.memory.trim()
    assert device.driver.pool_bytes()[0] == before


def test_a_full_device_stays_usable_and_holds_nothing_back(device):
    free = device.driver.memory_info()[0]
    with pytest.raises(OutOfMemory, match=r"has no more: [\d,]+ of [\d,]+ bytes are free, [\d,]+ are reserved by this program"):
        device.allocate(free + (1 << 30), "adstack")
    assert device.driver.memory_info()[0] > free - (256 << 20)
    a = device.allocate(1 << 20, "adstack")
    assert not read(device, a.ptr, 1 << 20).any()


def test_pinned_words_are_at_one_address_for_both_sides(device):
    w, a = device.host_words(16, "context"), device.allocate(128, "adstack")
    w.view[:] = np.arange(128, dtype=np.uint8)
    device.copy(a.ptr, w.ptr, 128)
    device.memset(w.ptr, 7, 64, 1)
    device.synchronize()
    assert w.view.tolist() == [7] * 64 + list(range(64, 128)) and read(device, a.ptr, 128).tolist() == list(range(128))


def test_events_measure(device):
    driver = device.driver
    a, begin, end = device.allocate(1 << 28, "adstack"), driver.event(), driver.event()
    driver.record(begin, device.stream)
    device.memset(a.ptr, 5, a.nbytes // 4, 4)
    driver.record(end, device.stream)
    driver.event_wait(end)
    assert 0.01 < driver.elapsed_ms(begin, end) < 100
    driver.event_free(begin)
    driver.event_free(end)


def test_a_graph_is_recorded_and_replayed(device):
    driver, a = device.driver, device.allocate(64, "adstack")
    driver.capture_begin(device.stream)
    driver.memset(a.ptr, 9, 64, 1, device.stream)
    graph = driver.capture_end(device.stream)
    assert not read(device, a.ptr, 64).any()  # recorded, not run
    driver.graph_launch(graph, device.stream)
    assert (read(device, a.ptr, 64) == 9).all()
    driver.graph_free(graph)


def test_a_large_frame_is_known_before_the_launch(device):
    image = device.driver.assemble(compile_ptx(FRAME, "big", target_cpu(device.info)).encode(), "big")
    module = device.driver.load_module(image, "big")
    function = device.driver.function(module, "big")
    assert function.local_bytes >= 4096 and function.registers > 0 and function.handle
    device.driver.unload(module)


def test_bad_ptx_gives_the_compilers_words_and_hurts_nothing(device):
    bad = b".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry k() { nonsense; }\n"
    for call in (device.driver.assemble, device.driver.load_module):
        with pytest.raises(DeviceError, match=r"kernel `k`(.|\n)*line 4") as e:
            call(bad, "k")
        assert not e.value.restart
    device.synchronize()


def test_programs_launch_from_threads_that_have_never_seen_the_device():
    results = []
    with qd.init(arch=qd.cuda) as program:
        x = qd.field(qd.f32, shape=1000)

        @qd.kernel
        def add(a: qd.f32):
            for i in x:
                x[i] += a

        add(1.0)
        add(1.0)  # by the native launcher

        def work():
            with program:
                for _ in range(50):
                    add(1.0)
                results.append(True)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert results == [True] * 4 and (x.to_numpy() == 202.0).all()


def test_programs_open_and_close_without_a_trace():
    def used():
        with qd.init(arch=qd.cuda) as program:
            x = qd.field(qd.f32, shape=1 << 20)

            @qd.kernel
            def fill(a: qd.f32):
                for i in x:
                    x[i] = a

            fill(2.0)
            assert x[5] == 2.0
            free = program.device.driver.memory_info()[0]
        return free

    first = used()
    assert all(used() > first - (64 << 20) for _ in range(20))


def test_a_kernel_says_what_its_stack_costs():
    with qd.init(arch=qd.cuda) as program:
        x = qd.field(qd.f32, shape=64)

        @qd.kernel
        def fill():
            for i in x:
                x[i] = 1.0

        fill()
        qd.sync()
        (variants,) = program.variants.values()
        compiled = next(iter(variants.values())).executable.compiled
        assert compiled.frames == (0,) and frame_bytes(compiled, program.device.info) == 0


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, from a file: the source of its kernels must be found."""
    file = folder / "program.py"
    file.write_text(program, encoding="utf-8")
    return subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=120)


FATAL = """
import ctypes, sys
import numpy as np
import qdrun as qd
from qdrun.compiler.errors import DeviceError
with qd.init(arch=qd.cuda) as program:
    x = qd.field(qd.i32, shape=8)
    @qd.kernel
    def wild(k: qd.i32):
        for i in range(8):
            x[i + k] = 1
    wild(0); qd.sync()
    wild(1 << 30)
    try:
        qd.sync()
        sys.exit(3)
    except DeviceError as e:
        assert e.restart and "kernel `wild` failed" in str(e) and e.result == "CUDA_ERROR_ILLEGAL_ADDRESS", e
    try:
        wild(0); x.to_numpy()
        sys.exit(4)
    except DeviceError as e:
        assert e.restart and "restart the process" in str(e), e
try:
    qd.init(arch=qd.cuda)
    sys.exit(5)
except DeviceError as e:
    assert e.restart, e
print("as it should be")
"""


def test_an_illegal_address_names_the_kernel_and_asks_for_a_restart(tmp_path):
    done = run(FATAL, tmp_path)
    assert (done.returncode, done.stdout) == (0, "as it should be\n"), done.stdout + done.stderr


FORKED = """
import os, qdrun as qd
from qdrun.compiler.errors import DeviceError
program = qd.init(arch=qd.cuda)
x, y = (qd.field(qd.f32, shape=4, needs_grad=True) for _ in range(2))
@qd.kernel
def double(n: qd.i32):
    for i in x:
        y[i] = 2.0 * x[i]
x[0] = 1.0
for n in range(3):
    double(n); double.grad(n)
pid = os.fork()
if not pid:
    actions = [lambda: double(3), lambda: double.grad(3), lambda: y[0], lambda: x.fill(2.0), y.to_numpy, qd.sync,
        lambda: qd.field(qd.f32, shape=4)[0]]
    for number, action in enumerate(actions):
        try:
            action()
        except DeviceError as e:
            if "forked process" in str(e):
                continue
            print(e, flush=True)
        os._exit(10 + number)
    program.close()
    os._exit(0)
status = os.waitpid(pid, 0)[1]
assert status == 0, status
double(5)
assert y[0] == 2.0
print("fine")
"""


def test_a_forked_process_is_told_so(tmp_path):
    done = run(FORKED, tmp_path)
    assert done.stdout == "fine\n", done.stdout + done.stderr


LIMITED = """
import numpy as np
from qdrun.runner.workers.host_limit import HostLimit, private_bytes
limit = HostLimit(64 << 20)
with limit.trial():
    import qdrun as qd
    with qd.init(arch=qd.cuda, default_fp=qd.f64):
        x, loss = qd.field(qd.f64, shape=1 << 20, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
        @qd.kernel
        def total():
            for i in x:
                loss[None] += qd.sin(x[i])
        given = np.random.default_rng().random(1 << 20)
        x.from_numpy(given)
        with qd.ad.Tape(loss):
            total()
        assert np.allclose(x.grad.to_numpy(), np.cos(given), rtol=1e-14)
    try:
        np.ones(4 << 30, np.uint8)
    except MemoryError:
        print("refused, and the driver had its room")
"""


def test_the_host_limit_of_a_trial_leaves_the_driver_its_room(tmp_path):
    done = run(LIMITED, tmp_path)
    assert done.stdout == "refused, and the driver had its room\n", done.stdout + done.stderr


def test_another_librarys_context_stays_current(device):
    """A thread that works on a context of somebody else keeps it."""
    d, found = device.driver.d, []
    major = int(importlib.metadata.version("cuda-bindings").partition(".")[0])

    def work():
        theirs = d.cuCtxCreate(*([None] if major >= 13 else []), 0, device.info.index)
        assert int(theirs[0]) == 0
        before = int(d.cuCtxGetCurrent()[1])
        a = device.allocate(1 << 20, "adstack")
        device.memset(a.ptr, 1, 1 << 20, 1)
        assert MEMSET(device.driver.memset_address)(a.ptr + 4, 0x02020202, 1, device.stream) == 0  # as machine code does
        found.append((int(d.cuCtxGetCurrent()[1]) == before, read(device, a.ptr + 2, 4).tolist()))
        d.cuCtxDestroy(theirs[1])

    t = threading.Thread(target=work)
    t.start()
    t.join()
    assert found == [(True, [1, 1, 2, 2])]


def test_the_c_functions_are_there(device):
    assert device.driver.launch_address and device.driver.memset_address
    memset = MEMSET(device.driver.memset_address)
    a, codes = device.allocate(64, "adstack"), []
    t = threading.Thread(
        target=lambda: codes.append(memset(a.ptr, 0x01010101, 16, device.stream))
    )  # a thread without a context
    t.start()
    t.join()
    assert codes == [0] and (read(device, a.ptr, 64) == 1).all()
    device.memset(a.ptr, 7, 5, 1)
    assert COPY(device.driver.native_copy(device.stream))(a.ptr + 33, a.ptr + 1, 7, device.stream) == 0
    assert read(device, a.ptr + 32, 9).tolist() == [1, 7, 7, 7, 7, 1, 1, 1, 1]


MIB = 1 << 20


@pytest.mark.parametrize("nbytes", [8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 12 * MIB, 100 * MIB + 13])
def test_large_copies_are_whole_and_in_order(device, nbytes):
    rng = np.random.default_rng(nbytes)
    a, b = (device.allocate(nbytes, "adstack") for _ in range(2))
    for _ in range(3):
        data = rng.integers(0, 256, nbytes, np.uint8)
        sent = data.copy()
        device.upload(a.ptr, sent.ctypes.data, nbytes)
        sent[:] = 0x55  # the source may change
        device.copy(b.ptr, a.ptr, nbytes)
        device.memset(a.ptr, 7, nbytes, 1)
        assert (read(device, b.ptr, nbytes) == data).all() and (read(device, a.ptr, nbytes) == 7).all()
    assert device.usage().get("staging", 0) == (0 if nbytes < staging.THRESHOLD else 2 * staging.CHUNK)


def test_threads_copy_at_once_while_kernels_run(device):
    n, wrong = 20 * MIB + 3, []
    blocks = [device.allocate(n, "adstack") for _ in range(4)]

    def work(k):
        rng = np.random.default_rng(k)
        for _ in range(6):
            data = rng.integers(0, 256, n, np.uint8)
            device.upload(blocks[k].ptr, data.ctypes.data, n)
            if not (read(device, blocks[k].ptr, n) == data).all():
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("nbytes", [4096, 64 * MIB])
def test_pinned_memory_may_change_when_the_call_returns(device, nbytes):
    a, busy = device.allocate(nbytes, "adstack"), device.allocate(1 << 30, "adstack")
    ptr = device.driver.host_allocate(nbytes)
    assert device.driver.is_pinned(ptr) and not device.driver.is_pinned(np.zeros(nbytes, np.uint8).ctypes.data)
    pinned = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(ptr))
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    pinned[:] = data
    for k in range(20):  # the copy's turn comes later
        device.memset(busy.ptr, k, busy.nbytes // 4, 4)
    device.upload(a.ptr, ptr, nbytes)
    pinned[:] = 0
    assert (read(device, a.ptr, nbytes) == data).all()
    device.driver.host_free(ptr)


@pytest.mark.parametrize("dtype", [qd.i32, qd.u32, qd.i64])
def test_a_warp_counts_exactly_in_any_branches(dtype):
    n = 1 << 22
    with qd.init(arch=qd.cuda):
        x, out, counts = qd.field(qd.i32, n), qd.field(qd.i32, n), qd.field(dtype, 4)

        @qd.kernel
        def sort(step: dtype):
            for i in range(n):
                k = 0
                while k < x[i] % 5:  # lanes leave at different times
                    counts[3] += step
                    k += 1
                if x[i] % 3 == 0:
                    out[qd.cast(qd.atomic_add(counts[0], 1), qd.i32)] = i
                elif x[i] % 3 == 1:
                    out[n - 1 - qd.cast(qd.atomic_add(counts[1], 1), qd.i32)] = i
                else:
                    qd.atomic_sub(counts[2], step)
                if counts[2] == 12345:  # keeps the atomics: no sums of each thread's own
                    x[i] = 0

        for seed in range(4):
            values = np.random.default_rng(seed).integers(0, 60, n).astype(np.int32)
            values[: n // 4] = seed * 3  # whole warps alike
            x.from_numpy(values)
            counts.fill(0)
            sort(2)
            found, held = out.to_numpy(), counts.to_numpy().astype(dtype.numpy)
            first, second, third = (np.flatnonzero(values % 3 == k) for k in range(3))
            assert held[0] == len(first) and held[1] == len(second)
            assert held[2] == np.array(-2 * len(third)).astype(dtype.numpy) and held[3] == 2 * (values % 5).sum()
            assert (np.sort(found[: len(first)]) == first).all()
            assert (np.sort(found[n - len(second) :]) == second).all()


@pytest.mark.parametrize("dtype", [qd.f32, qd.f64, qd.i32, qd.i64])
def test_a_warp_folds_exactly_in_any_branches(dtype):
    n = 1 << 20
    with qd.init(arch=qd.cuda):
        x, bins = qd.field(qd.i32, n), qd.field(dtype, 8)

        @qd.kernel
        def fold(at: qd.i32):
            for i in range(n):
                v = qd.cast(x[i], dtype)
                k = 0
                while k < x[i] % 4:
                    if (k + i) % 3 != 0:
                        bins[at] += v
                    k += 1
                if x[i] % 2 == 0:
                    qd.atomic_max(bins[at + 1], v)
                    qd.atomic_min(bins[at + 2], v)
                if bins[at] == 0.5 or bins[at + 1] == 0.5:  # keeps the atomics
                    x[i] = 0

        for seed in range(3):
            values = np.random.default_rng(seed).integers(-6, 8, n).astype(np.int32)  # sums stay small: exact in f32
            x.from_numpy(values)
            bins.fill(0)
            fold(3)
            many = np.zeros(n, np.int64)
            for k in range(4):
                many += (values % 4 > k) & ((k + np.arange(n)) % 3 != 0)
            even = values[values % 2 == 0]
            want = [0, 0, 0, (many * values).sum(), even.max(), even.min(), 0, 0]
            assert bins.to_numpy().tolist() == want
