"""The HIP driver through the true hip-python, on a stand-in for ROCm's library: what is called, with what, and what a failure becomes."""

import ctypes
import threading

import numpy as np
import pytest

from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime.amdgpu import driver as hip
from qdrun.compiler.runtime.amdgpu import results
from qdrun.compiler.runtime.gpu.driver import Driver

MIB = 1 << 20


def image(*names: str) -> bytes:
    """What the stand-in takes for a code object with these kernels: the header of an ELF file, and the names of their descriptors."""
    body = b"".join(f"{n}.kd".encode() + b"\0" for n in names)
    head = bytearray(64)
    head[:4], head[40:48] = b"\x7fELF", (64 + len(body)).to_bytes(8, "little")
    return bytes(head) + body


@pytest.fixture
def driver(rocm):
    made: Driver = hip.HipDriver()
    made.open(0)
    rocm.calls()
    return made


def test_a_device_is_described_by_what_hip_says(rocm):
    rocm.setup(devices=3)
    made = hip.HipDriver()
    assert made.device_count() == 3
    first, second, third = (made.describe(k) for k in range(3))
    assert (first.name, first.chip, first.uuid, first.pci) == (
        "AMD Test Card",
        "gfx942",
        "GPU-00000000000012ab",
        "0000:c0:00.0",
    )
    assert (first.sms, first.threads_per_sm, first.memory_bytes, first.driver_version) == (4, 2048, 1 << 30, 71_500_000)
    assert second.uuid == "GPU-00000000000012cd"
    assert third.uuid == "GPU-0000:c2:00.0", "a card without a number of its own is known by its address"
    assert made.kind.speaks(first) == "HIP 7.15"


def test_opening_makes_a_pool_of_our_own_that_keeps_little(rocm):
    rocm.setup(devices=2)
    made = hip.HipDriver()
    made.open(1)
    (pool,) = rocm.calls("hipMemPoolCreate")
    assert pool.args[:4] == (1, 0, 1, 1), "pinned in the device, no handle for other processes, on device 1"
    made.allocate(4096, made.stream(ordered=False))
    assert made.pool_bytes() == (4096, 4096)


def test_the_pool_keeps_64_mib_over_a_wait_and_nothing_over_a_trim(rocm, driver):
    stream = driver.stream(ordered=False)
    for nbytes, kept in ((64 * MIB, 64 * MIB), (65 * MIB, 0)):
        driver.free(driver.allocate(nbytes, stream), stream)
        driver.synchronize(stream)
        assert driver.pool_bytes() == (0, kept)
    driver.free(driver.allocate(MIB, stream), stream)
    driver.synchronize(stream)
    driver.trim()
    assert driver.pool_bytes() == (0, 0)


def test_a_free_comes_after_what_was_put_into_the_stream_before_it(rocm, driver):
    """Row 8 and 19 of the acceptance table: nothing waits, and the block lives until the work before the free has run."""
    stream = driver.stream(ordered=False)
    a, b = driver.allocate(4096, stream), driver.allocate(4096, stream)
    driver.memset(a, 0x01020304, 1024, 4, stream)
    driver.copy(b, a, 4096, stream)
    rocm.calls()
    driver.free(a, stream)
    assert [c.name for c in rocm.calls()] == ["hipFreeAsync"], "it waits for nothing"
    assert rocm.live().device_bytes == 8192, "the copy from it has not run"
    out = np.zeros(1024, np.uint32)
    driver.download(out.ctypes.data, b, 4096, stream)
    assert (out == 0x01020304).all() and rocm.live().device_bytes == 4096


def test_memory_that_was_freed_is_not_read_any_more(rocm, driver):
    """The stand-in ends the device where work touches a block after its free; so the test above could fail."""
    stream = driver.stream(ordered=False)
    a, b = driver.allocate(4096, stream), driver.allocate(4096, stream)
    driver.free(a, stream)
    driver.copy(b, a, 4096, stream)
    with pytest.raises(DeviceError, match="it read or wrote memory that is not its own"):
        driver.synchronize(stream)


def test_a_device_without_pools_allocates_directly(rocm):
    rocm.setup(pools=False)
    made = hip.HipDriver()
    made.open(0)
    stream = made.stream(ordered=False)
    rocm.calls()
    made.free(made.allocate(100, stream), stream)
    made.trim()
    assert [c.name for c in rocm.calls()] == ["hipMalloc", "hipFree"] and made.pool_bytes() == (0, 0)


@pytest.mark.parametrize("width, word", [(1, 0xF7), (2, 0x8001), (4, 0xFFFFFFFE)])
def test_fills_of_each_width_reach_their_bytes_and_no_others(driver, width, word):
    stream, kind = driver.stream(ordered=False), {1: np.uint8, 2: np.uint16, 4: np.uint32}[width]
    block, out = driver.allocate(4096, stream), np.zeros(4096 // width, kind)
    driver.memset(block, 0, 1024, 4, stream)
    driver.memset(block + 8, word, 5, width, stream)
    driver.memset_rows(block + 1024, 64, word, 3, width, 4, stream)
    driver.download(out.ctypes.data, block, 4096, stream)
    expected = np.zeros_like(out)
    expected[8 // width : 8 // width + 5] = word
    for row in range(4):
        expected[(1024 + 64 * row) // width :][:3] = word
    assert (out == expected).all()


def test_copies_of_each_direction(driver):
    stream, rng = driver.stream(ordered=False), np.random.default_rng(3)
    data, out = rng.integers(0, 255, 4096).astype(np.uint8), np.zeros(4096, np.uint8)
    a, b = driver.allocate(4096, stream), driver.allocate(4096, stream)
    driver.upload(a, data.ctypes.data, 4096, stream)
    source, expected = data.copy(), data.copy()
    data[:] = 0  # memory that is not pinned may be changed after the call
    driver.copy(b, a, 4096, stream)
    driver.copy_rows(b + 100, 50, a, 10, 7, 9, stream)
    for row in range(9):
        expected[100 + 50 * row :][:7] = source[10 * row :][:7]
    driver.download(out.ctypes.data, b, 4096, stream)
    assert (out == expected).all()


def test_pinned_memory_is_read_and_written_in_the_order_of_the_stream(rocm, driver):
    stream = driver.stream(ordered=False)
    pinned, block = driver.host_allocate(64), driver.allocate(64, stream)
    flags = rocm.calls("hipHostMalloc")[0].args[1]
    assert flags == 0x1 | 0x2 | 0x40000000, "portable, mapped, coherent"
    view = (ctypes.c_uint64 * 8).from_address(pinned)
    view[0] = 1
    driver.upload(block, pinned, 64, stream)
    view[0] = 7  # before the copy's turn
    driver.fetch(pinned + 8, block, 8, stream)
    assert view[1] != 7
    driver.synchronize(stream)
    assert view[1] == 7
    assert driver.is_pinned(pinned) and driver.is_pinned(pinned + 63)
    assert not driver.is_pinned(block) and not driver.is_pinned(np.zeros(1).ctypes.data)
    driver.host_free(pinned)
    assert rocm.live().host_blocks == 0


def test_the_default_stream_waits_for_ordered_ones_only(driver):
    alone, ordered = driver.stream(ordered=False), driver.stream(ordered=True)
    pinned = driver.host_allocate(16)
    view = (ctypes.c_uint32 * 4).from_address(pinned)
    view[:] = [0] * 4
    block = driver.allocate(16, alone)
    driver.memset(block, 5, 4, 4, alone)
    driver.synchronize(alone)
    driver.fetch(pinned, block, 4, alone)
    driver.fetch(pinned + 4, block, 4, ordered)
    driver.synchronize(0)
    assert list(view)[:2] == [0, 5]


def test_a_kernel_takes_its_words_by_value_when_it_is_launched(rocm, driver):
    """Row 16: the words of a launch that is still queued are not those that the caller has written since."""
    stream = driver.stream(ordered=False)
    module = driver.load_module(image("step_0", "step_1"), "step")
    found = driver.function(module, "step_1")
    assert (found.local_bytes, found.registers, found.shared_bytes) == (0, 48, 1024)
    launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)(
        driver.launch_address
    )
    words, size = (ctypes.c_int64 * 3)(11, -2, 1 << 40), ctypes.c_uint64(24)
    extra = (ctypes.c_uint64 * 5)(1, ctypes.addressof(words), 2, ctypes.addressof(size), 3)
    assert launch(found.handle, 7, 1, 1, 256, 1, 1, 512, stream, None, ctypes.addressof(extra)) == 0
    words[:] = [0, 0, 0]
    driver.synchronize(stream)
    ran = rocm.last()
    assert (ran.name, ran.blocks, ran.threads, ran.shared, ran.bytes) == (b"step_1", 7, 256, 512, 24)
    assert list(ctypes.cast(ran.words, ctypes.POINTER(ctypes.c_int64))[:3]) == [11, -2, 1 << 40]
    extra[4] = 0  # as CUDA's ends
    assert launch(found.handle, 7, 1, 1, 256, 1, 1, 512, stream, None, ctypes.addressof(extra)) == 1, (
        "HIP's `extra` ends with 3"
    )
    fill = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)(
        driver.memset_address
    )
    block, out = driver.allocate(64, stream), np.zeros(16, np.uint32)
    assert fill(block, 0xDEADBEEF, 16, stream) == 0
    driver.download(out.ctypes.data, block, 64, stream)
    assert (out == 0xDEADBEEF).all()
    copy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)(
        driver.native_copy(stream)
    )
    assert fill(block, 1, 1, stream) == copy(block + 33, block, 4, stream) == 0
    driver.download(out.ctypes.data, block, 64, stream)
    assert out[0] == 1 and bytes(out[8:10]) == b"\xef\x01\0\0\0\xbe\xad\xde"
    driver.unload(module)
    assert rocm.live().modules == 0


def test_a_name_that_the_code_lacks_and_damaged_code(driver):
    module = driver.load_module(image("f"), "k")
    with pytest.raises(DeviceError, match=r"kernel function `g` is not in its code: .*\(hipErrorNotFound\)"):
        driver.function(module, "g")
    with pytest.raises(DeviceError, match=r"the code of kernel `k` cannot be loaded: the code is damaged"):
        driver.load_module(b"nothing", "k")


def test_events_pass_in_order_and_have_times(rocm, driver):
    stream = driver.stream(ordered=False)
    first, second = driver.event(), driver.event(sleeps=True)
    assert [c.args[0] for c in rocm.calls("hipEventCreateWithFlags")] == [0, 1]
    driver.record(first, stream)
    driver.memset(driver.allocate(64, stream), 0, 16, 4, stream)
    driver.record(second, stream)
    driver.event_wait(second)
    assert 0 <= driver.elapsed_ms(first, second) < 1000
    driver.event_free(first)
    driver.event_free(second)


def test_a_captured_graph_runs_when_it_is_launched(rocm, driver):
    """Row 49: nothing of a recording runs, each launch of the graph does all of it, and only this thread's calls are watched."""
    stream = driver.stream(ordered=False)
    block, out = driver.allocate(64, stream), np.zeros(16, np.uint32)
    driver.memset(block, 1, 16, 4, stream)
    driver.synchronize(stream)
    rocm.calls()
    driver.capture_begin(stream)
    driver.memset(block, 2, 8, 4, stream)
    driver.copy(block + 32, block, 32, stream)
    graph = driver.capture_end(stream)
    names = [c.name for c in rocm.calls()]
    assert names[0] == "hipStreamBeginCapture" and names[-3:] == [
        "hipStreamEndCapture",
        "hipGraphInstantiateWithFlags",
        "hipGraphDestroy",
    ]
    driver.download(out.ctypes.data, block, 64, stream)
    assert (out == 1).all()
    driver.graph_launch(graph, stream)
    driver.download(out.ctypes.data, block, 64, stream)
    assert (out == 2).all()
    driver.graph_free(graph)
    with pytest.raises(DeviceError, match="recording a graph failed"):
        driver.capture_end(stream)


def test_allocating_while_a_graph_is_recorded_is_refused(driver):
    stream = driver.stream(ordered=False)
    driver.capture_begin(stream)
    with pytest.raises(DeviceError, match=r"it cannot be part of a graph \(hipErrorStreamCaptureUnsupported\)"):
        driver.allocate(64, stream)
    driver.graph_free(driver.capture_end(stream))


def test_a_thread_with_another_device_current_keeps_it(rocm):
    """HIP's current device belongs to a thread, and a new thread has device 0; a stream belongs to its device everywhere."""
    rocm.setup(devices=2)
    made = hip.HipDriver()
    made.open(1)
    stream = made.stream(ordered=False)
    seen = []

    def other():
        library = rocm.library
        library.hipSetDevice(0)
        rocm.calls()
        seen.append(made.stream(ordered=False))
        seen.append(made.memory_info())
        with pytest.raises(DeviceError):
            made.stream_free(12345)
        current = ctypes.c_int(-1)
        library.hipGetDevice(ctypes.byref(current))
        seen.append(current.value)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    calls = rocm.calls("hipSetDevice", "hipStreamCreateWithFlags")
    assert [(c.name, c.args[0], c.args[1]) for c in calls[:3]] == [
        ("hipSetDevice", 1, 0),
        ("hipStreamCreateWithFlags", 1, 1),
        ("hipSetDevice", 0, 0),
    ]
    assert seen[2] == 0
    made.synchronize(stream)


def test_waiting_threads_sleep_where_programs_share_a_device(rocm):
    rocm.setup(devices=2)
    made = hip.HipDriver()
    made.share(1)
    assert [c.args[:2] for c in rocm.calls("hipSetDeviceFlags")] == [(4, 1)], "hipDeviceScheduleBlockingSync, of device 1"


def test_out_of_memory_is_full_and_nothing_stays(rocm, driver):
    stream = driver.stream(ordered=False)
    with pytest.raises(DeviceError) as e:
        driver.allocate(2 << 30, stream)
    assert driver.kind.results.is_full(e.value) and not e.value.restart and e.value.result == "hipErrorOutOfMemory"
    assert "allocating 2,147,483,648 bytes of device memory failed: the device has no more memory" in str(e.value)
    assert driver.memory_info() == (1 << 30, 1 << 30)
    rocm.others(300 * MIB)
    assert driver.memory_info() == ((1 << 30) - 300 * MIB, 1 << 30)


def test_closing_gives_the_stream_and_the_pool_back(rocm, driver):
    driver.close(driver.stream(ordered=False))
    assert [c.name for c in rocm.calls()][-2:] == ["hipStreamDestroy", "hipMemPoolDestroy"]
    assert rocm.live() == (0, 0, 0, 0, 0)


STAY = {53, 214, 401, 700, 702, 709, 710, 719, 999, 1053}


def test_the_failures_that_stay_say_that_the_process_must_be_restarted():
    assert {code for code, r in results.RESULTS.known.items() if r.restart} == STAY
    for code, r in results.RESULTS.known.items():
        e = results.device_error(code, "a launch failed")
        assert e.restart == ("restart the process" in str(e)), r.name
        assert e.code == code and e.result == f"hipError{r.name}" and "\n  do: " in str(e)
    assert results.device_error(12345, "x").result == "hipError_t 12345"


@pytest.mark.parametrize("code", sorted(results.RESULTS.known))
def test_the_numbers_are_hips(code):
    assert pytest.importorskip("hip").hip.hipError_t(code).name == f"hipError{results.RESULTS.known[code].name}"
