"""The driver for Apple's GPUs on a stand-in for Metal: which messages it sends, in which order, and what a failure becomes."""

import ctypes
import threading

import numpy as np
import pytest

from qdrun.compiler.codegen.metal.source import KernelFacts, head_of
from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime.gpu.driver import Driver
from qdrun.compiler.runtime.metal import driver as metal
from qdrun.compiler.runtime.metal import results

MIB = 1 << 20
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
MEMSET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)


@pytest.fixture
def driver(apple):
    made: Driver = metal.MetalDriver()
    made.open(0)
    return made


@pytest.fixture
def stream(driver):
    made = driver.stream(ordered=False)
    yield made
    driver.close(made)


def source(*names, **facts):
    """A source with kernels of these names."""
    kernels = "".join(f"kernel void {n}(constant ulong* qw [[buffer(0)]])\n{{\n}}\n" for n in names)
    head = head_of({n: KernelFacts(**{"threads": 64} | facts) for n in names})
    return f"{head}#include <metal_stdlib>\nusing namespace metal;\n{kernels}".encode()


def launch(driver, stream, function, words=(), blocks=1, threads=32, shared=0):
    """As a kernel's entry does it."""
    buffer, size = (ctypes.c_uint64 * max(1, len(words)))(*words), ctypes.c_uint64(8 * len(words))
    extra = (ctypes.c_uint64 * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    given = ctypes.addressof(extra) if words else None
    return LAUNCH(driver.launch_address)(function, blocks, 1, 1, threads, 1, 1, shared, stream, None, given)


def read(driver, stream, address, nbytes):
    out = np.empty(nbytes, np.uint8)
    driver.download(out.ctypes.data, address, nbytes, stream)
    return out


def write(driver, stream, address, data):
    data = np.ascontiguousarray(data)
    driver.upload(address, data.ctypes.data, data.nbytes, stream)


# ---- devices
def test_a_device_is_described_by_what_metal_says(apple):
    apple.setup(devices=2, family=9, total=3 << 30)
    made = metal.MetalDriver()
    assert made.device_count() == 2
    info = made.describe(1)
    assert (info.name, info.chip, info.uuid, info.memory_bytes) == ("Apple Test", "apple9", "GPU-1234567800000001", 3 << 30)
    assert made.kind.speaks(info) == "Metal of macOS 15.4"
    assert made.kind.target(info).name == "metal"


@pytest.mark.parametrize(("family", "unified"), [(6, True), (9, False), (0, False)])
def test_gpus_that_are_not_of_an_apple_processor_from_the_m1_on_are_refused_by_name(apple, family, unified):
    apple.setup(family=family, unified=unified)
    made = metal.MetalDriver()
    with pytest.raises(
        DeviceError, match=r"Apple Test cannot be used: code is made for Apple's own processors, from the M1 on\n  do: "
    ):
        made.kind.target(made.describe(0))


def test_an_older_macos_is_refused_by_its_version(apple, monkeypatch):
    monkeypatch.setattr(metal, "system_version", lambda: 1406)
    monkeypatch.setattr(metal.platform, "mac_ver", lambda: ("14.6.1", ("", "", ""), "arm64"))
    with pytest.raises(DeviceError, match=r"this is macOS 14\.6\.1, and 15 is needed\n  do: update macOS"):
        metal.MetalDriver()
    monkeypatch.undo()
    monkeypatch.setattr(metal.platform, "mac_ver", lambda: ("15.4", ("", "", ""), "arm64"))
    assert metal.system_version() == 1504


# ---- memory
def test_blocks_come_from_a_heap_that_they_share_and_large_ones_have_their_own(apple, driver, stream):
    small = [driver.allocate(n, stream) for n in (1, 5000, MIB)]
    assert apple.live().objects["heap"] == 1 and len({*small}) == 3
    large = driver.allocate(20 * MIB, stream)
    assert apple.live().objects["heap"] == 2 and driver.pool_bytes() == (1 + 5000 + 21 * MIB, 36 * MIB)
    driver.free(large, stream)
    assert apple.live().objects["heap"] == 1, "nothing uses the heap of a large block"
    for ptr in small:
        driver.free(ptr, stream)
    assert driver.pool_bytes() == (0, 16 * MIB)
    driver.trim()
    assert driver.pool_bytes() == (0, 0) and apple.live().heap_bytes == 0


def test_a_refused_block_names_its_bytes_and_the_limit(apple, driver, stream):
    apple.setup(total=64 * MIB, longest=48 * MIB)
    doing = r"allocating 50,331,649 bytes of device memory failed: the device has no more memory \(MTLCommandBufferErrorOutOfMemory\)"
    driver2 = metal.MetalDriver()
    driver2.open(0)
    other = driver2.stream(ordered=False)
    refused = doing + r"\n  newBufferWithLength:50331649 has given nil; maxBufferLength is 50,331,648 bytes"
    with pytest.raises(DeviceError, match=refused) as e:
        driver2.allocate(48 * MIB + 1, other)
    assert driver2.kind.results.is_full(e.value)
    held = driver2.allocate(40 * MIB, other)
    with pytest.raises(DeviceError, match="newBufferWithLength:41943040 has given nil; maxBufferLength is 50,331,648"):
        driver2.allocate(40 * MIB, other)
    apple.fail("newBufferWithLength:options:", stays=True)
    with pytest.raises(DeviceError, match="newBufferWithLength:1048576 has given nil"):
        driver2.allocate(MIB, other)
    apple.fail("")
    assert driver2.memory_info() == (24 * MIB, 64 * MIB), "the heap of a block that was refused is gone"
    driver2.free(held, other)
    driver2.close(other)


def test_the_heap_of_a_freed_block_goes_when_the_work_that_uses_it_has_ended(apple, driver, stream):
    large = driver.allocate(20 * MIB, stream)
    driver.memset(large, 7, 100, 4, stream)
    driver.free(large, stream)
    assert apple.live().objects["heap"] == 1
    driver.synchronize(stream)
    assert apple.live().objects["heap"] == 0


def test_a_heap_that_is_made_while_launches_are_encoded_is_resident_for_the_next(driver, stream):
    first = driver.allocate(1000, stream)
    driver.memset(first, 1, 1000, 1, stream)
    second = driver.allocate(20 * MIB, stream)
    driver.memset(second, 2, 1000, 1, stream)
    pinned = driver.host_allocate(20 * MIB)
    driver.fetch(pinned, second, 1000, stream)
    driver.synchronize(stream)
    assert (np.ctypeslib.as_array((ctypes.c_uint8 * 1000).from_address(pinned)) == 2).all()
    driver.host_free(pinned)


def test_shared_memory_has_another_address_for_kernels(driver, stream):
    host = driver.host_allocate(4096)
    device = driver.device_address(host + 100)
    assert device - 100 != host and driver.is_pinned(host + 4095) and not driver.is_pinned(host + 4096)
    driver.memset(device, 9, 10, 1, stream)
    driver.synchronize(stream)
    assert ctypes.string_at(host + 100, 10) == bytes([9] * 10)
    driver.host_free(host)
    with pytest.raises(DeviceError, match="InvalidHandle"):
        driver.host_free(host)


def test_what_the_host_writes_while_work_waits_does_not_touch_memory_that_this_work_reads(driver, stream):
    """A freed block is the device's at once; what an upload writes on the host's side is never taken from it."""
    a, b = driver.allocate(MIB, stream), driver.allocate(MIB, stream)
    write(driver, stream, a, np.full(MIB, 3, np.uint8))
    driver.copy(b, a, MIB, stream)
    driver.free(a, stream)
    c = driver.allocate(MIB, stream)
    assert c == a
    write(driver, stream, c, np.full(MIB, 5, np.uint8))
    assert (read(driver, stream, b, MIB) == 3).all() and (read(driver, stream, c, MIB) == 5).all()


# ---- copies and fills
def test_an_upload_into_an_idle_stream_launches_nothing_and_one_behind_work_keeps_the_order(apple, driver, stream):
    ptr, before = driver.allocate(4096, stream), apple.live().launches
    write(driver, stream, ptr, np.arange(512.0))
    assert apple.live().launches == before
    driver.memset(ptr, 0, 1024, 4, stream)
    write(driver, stream, ptr + 8, np.ones(3))
    driver.memset(ptr + 16, 0, 2, 4, stream)
    assert read(driver, stream, ptr, 40).view(float).tolist() == [0, 1, 0, 1, 0]


def test_shared_memory_is_read_when_the_turn_of_its_copy_comes(driver, stream):
    host, ptr = driver.host_allocate(64), driver.allocate(64, stream)
    view = np.ctypeslib.as_array((ctypes.c_uint8 * 64).from_address(host))
    view[:] = 1
    driver.upload(ptr, host, 64, stream)
    view[:] = 2
    assert (read(driver, stream, ptr, 64) == 2).all()


def test_fills_and_copies_of_rows_are_those_of_numpy(driver, stream):
    rng = np.random.default_rng()
    size = 1 << 14
    ptr, expected = driver.allocate(size, stream), np.zeros(size, np.uint8)
    driver.memset(ptr, 0, size, 1, stream)
    for _ in range(60):
        width, rows = int(rng.choice([1, 2, 4])), int(rng.integers(1, 9))
        count = int(rng.integers(0, 40))
        step = width * int(rng.integers(max(1, count), 60))
        at, word = width * int(rng.integers(0, 1000)), int(rng.integers(0, 1 << 32))
        driver.memset_rows(ptr + at, step, word, count, width, rows, stream)
        for r in range(rows):
            row = expected[at + r * step : at + r * step + count * width].view(f"u{width}")
            row[:] = word & (1 << 8 * width) - 1
        n, rows = int(rng.integers(0, 100)), int(rng.integers(1, 9))
        to, source = int(rng.integers(8192, 9000)), int(rng.integers(0, 7000))
        far, near = int(rng.integers(n, 400)), int(rng.integers(0, 100))
        if rng.random() < 0.5:
            n, to, source, far, near = (8 * (x // 8) for x in (n, to, source, far, near))
        driver.copy_rows(ptr + to, far, ptr + source, near, n, rows, stream)
        for r in range(rows):
            expected[to + r * far : to + r * far + n] = expected[source + r * near : source + r * near + n]
    assert (read(driver, stream, ptr, size) == expected).all()


# ---- launches
def test_a_kernel_takes_its_words_by_value_when_it_is_launched(apple, driver, stream):
    module = driver.load_module(source("k"), "k")
    function = driver.function(module, "k").handle
    assert launch(driver, stream, function, [5, 1 << 63], blocks=70, threads=64) == 0
    driver.synchronize(stream)
    ran = apple.last()
    assert (ran.name, ran.blocks, ran.threads, ran.shared, ran.bytes, ran.words[:2]) == (b"k", 70, 64, 0, 16, [5, 1 << 63])
    driver.unload(module)


@pytest.mark.parametrize("count", [512, 513, 3000])
def test_more_words_than_set_bytes_takes_come_through_a_buffer(apple, driver, stream, count):
    module = driver.load_module(source("k"), "k")
    function = driver.function(module, "k").handle
    words = np.random.default_rng().integers(0, 1 << 63, count).tolist()
    for _ in range(3):
        assert launch(driver, stream, function, words) == 0
    driver.synchronize(stream)
    assert apple.last().words[:count] == words
    driver.unload(module)


def test_a_packed_kernel_gets_the_address_of_its_words_in_memory_of_the_device(apple, driver, stream):
    seen = []

    def run(found):
        launched = found.contents
        seen.append((launched.bytes, np.ctypeslib.as_array((ctypes.c_uint64 * 3).from_address(launched.words[0])).tolist()))
        return 0

    module = driver.load_module(source("k", by_address=True), "k")
    function = driver.function(module, "k").handle
    apple.run(run)
    for k in range(20):
        assert launch(driver, stream, function, [k, 2, 3]) == 0
    driver.synchronize(stream)
    assert seen == [(8, [k, 2, 3]) for k in range(20)]
    driver.unload(module)


def test_on_chip_memory_is_the_kernel_s_own_and_what_the_launch_asks_for(apple, driver, stream):
    module = driver.load_module(source("k", shared=100), "k")
    found = driver.function(module, "k")
    assert found.shared_bytes == 100
    launch(driver, stream, found.handle, [1], shared=33)
    driver.synchronize(stream)
    assert apple.last().shared == 144
    driver.unload(module)


def test_launches_go_to_the_device_in_command_buffers_of_8_at_first_and_of_256_then(apple, driver, stream):
    module = driver.load_module(source("k"), "k")
    function = driver.function(module, "k").handle
    apple.calls()
    for k in range(7):
        launch(driver, stream, function, [k])
    assert apple.calls("commit") == []
    launch(driver, stream, function, [7])
    for _ in range(255):
        launch(driver, stream, function, [8])
    assert apple.calls("commit", "waitUntilCompleted") == ["commit"], "nothing waits for a launch"
    launch(driver, stream, function, [9])
    assert apple.calls("commit") == ["commit"]
    launch(driver, stream, function, [10])
    driver.synchronize(stream)
    assert apple.live().launches == 265
    driver.unload(module)


def test_threads_that_launch_at_the_same_time_lose_nothing(apple, driver, stream):
    module = driver.load_module(source("a", "b"), "k")
    handles = [driver.function(module, n).handle for n in "ab"]
    seen = []
    apple.run(lambda found: seen.append((found.contents.name, found.contents.words[0])) or 0)
    ptr = driver.allocate(4096, stream)

    def work(k):
        for n in range(400):
            assert launch(driver, stream, handles[k % 2], [n]) == 0
            if n % 50 == 0:
                driver.memset(ptr, n, 4, 4, stream)
            if n % 100 == 99:
                driver.synchronize(stream)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    driver.synchronize(stream)
    for name in (b"a", b"b"):
        assert sorted(w for n, w in seen if n == name) == sorted([*range(400)] * 2)
    driver.unload(module)


def test_programs_that_take_shared_memory_at_the_same_time_do_not_wait_for_each_other_for_ever(apple):
    """New heaps are told to all streams, whose locks other threads hold."""
    apple.setup(total=4 << 30)

    def work(seed):
        rng, made = np.random.default_rng(seed), metal.MetalDriver()
        made.open(0)
        stream = made.stream(ordered=False)
        ptr = made.allocate(20 * MIB, stream)
        for _ in range(25):
            made.memset(ptr, 1, 64, 4, stream)
            write(made, stream, ptr, np.full(int(rng.integers(1, 18)) * MIB, seed, np.uint8))
            host = made.host_allocate(int(rng.integers(1, 9)) * MIB)
            made.fetch(host, ptr, 1 << 20, stream)
            made.synchronize(stream)
            seen.append((ctypes.string_at(host, 3), seed))
            made.host_free(host)
        made.free(ptr, stream)
        made.close(stream)

    seen = []
    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in (1, 2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert len(seen) == 75 and all(data == bytes([seed] * 3) for data, seed in seen)


def test_events_pass_with_the_work_before_them_and_tell_the_time_between(driver, stream):
    first, last = driver.event(), driver.event(sleeps=True)
    ptr = driver.allocate(64, stream)
    driver.record(first, stream)
    driver.memset(ptr, 1, 4, 4, stream)
    driver.record(last, stream)
    driver.event_wait(last)
    assert driver.elapsed_ms(first, last) > 0
    driver.event_wait(last)
    driver.event_free(first)
    driver.event_free(last)


# ---- graphs
def test_a_graph_is_replayed_by_machine_code_as_often_as_it_is_launched(apple, driver, stream):
    module = driver.load_module(source("k"), "k")
    function = driver.function(module, "k").handle
    ptr = driver.allocate(4096, stream)
    driver.memset(ptr, 0, 1024, 4, stream)
    copier = driver.native_copy(stream)
    driver.synchronize(stream)
    before = apple.live().launches
    driver.capture_begin(stream)
    for k in range(300):
        launch(driver, stream, function, [k, 7], shared=64)
    MEMSET(driver.memset_address)(ptr, 0xABCD, 100, stream)
    driver.copy(ptr + 2000, ptr, 3, stream)
    assert COPY(copier)(ptr + 3000, ptr, 8, stream) == 0
    graph = driver.capture_end(stream)
    driver.synchronize(stream)
    assert apple.live().launches == before, "nothing of it runs while it is recorded"
    seen = []
    apple.run(lambda found: seen.append((found.contents.name, found.contents.words[0], found.contents.shared)) or 0)
    for _ in range(2):
        driver.graph_launch(graph, stream)
    driver.synchronize(stream)
    ours = [(b"qd_fill_4", ptr, 64), (b"qd_copy_1", ptr + 2000, 64), (b"qd_copy_4", ptr + 3000, 64)]
    once = [(b"k", k, 64) for k in range(300)] + ours
    assert [(n, w) for n, w, _ in seen] == [(n, w) for n, w, _ in once * 2]
    driver.graph_free(graph)
    driver.unload(module)


def test_what_waits_cannot_be_part_of_a_graph(driver, stream):
    ptr = driver.allocate(64, stream)
    driver.capture_begin(stream)
    data = np.zeros(8)
    for call in (
        lambda: driver.synchronize(stream),
        lambda: driver.download(data.ctypes.data, ptr, 64, stream),
        lambda: driver.upload(ptr, data.ctypes.data, 64, stream),
        lambda: driver.allocate(64, stream),
    ):
        with pytest.raises(DeviceError, match="it cannot be part of a graph"):
            call()
    driver.graph_free(driver.capture_end(stream))


# ---- failures
@pytest.mark.parametrize("error", [True, False])
def test_a_refused_library_names_the_kernel_the_bytes_of_its_source_and_what_the_compiler_says(apple, driver, error):
    text = source("k")
    apple.fail("newLibraryWithSource:options:error:", 3, "program_source:7: error: unknown type", error)
    said = "program_source:7: error: unknown type" if error else r"Metal gives no reason \(no NSError\)"
    doing = rf"kernel `k` \({len(text):,} bytes of MSL\) cannot be loaded: Metal's compiler has made no library"
    with pytest.raises(DeviceError, match=rf"{doing} \(no MTLLibrary\)\n  {said}\n  do: ") as e:
        driver.load_module(text, "k")
    assert not e.value.restart and e.value.code == results.NO_LIBRARY
    driver.unload(driver.load_module(text, "k"))


@pytest.mark.parametrize("error", [True, False])
def test_a_refused_pipeline_names_the_kernel_the_bytes_of_its_source_and_the_reason(apple, driver, error):
    text = source("k")
    module = driver.load_module(text, "k")
    apple.fail("newComputePipelineStateWithFunction:error:", 2, "Compiler encountered an internal error", error)
    said = "Compiler encountered an internal error" if error else "Metal gives no reason"
    with pytest.raises(
        DeviceError, match=rf"kernel `k` \({len(text):,} bytes of MSL\) cannot be loaded: function `k`: .*\n  {said}"
    ) as e:
        driver.function(module, "k")
    assert not e.value.restart
    assert driver.function(module, "k").handle, "the next try may succeed"
    with pytest.raises(DeviceError, match=r"function `other`: .*\n  the library has no such function"):
        driver.function(module, "other")
    driver.unload(module)


def test_a_pipeline_for_smaller_blocks_than_the_kernel_has_is_refused(apple, driver):
    apple.setup(threads=48)
    module = driver.load_module(source("k"), "k")
    with pytest.raises(DeviceError, match="the pipeline takes blocks of 48 threads, and the kernel needs 64"):
        driver.function(module, "k")
    driver.unload(module)


@pytest.mark.parametrize(
    ("code", "restart", "what"),
    [
        (3, True, "it read or wrote memory that is not its own"),
        (8, False, "the device has no more memory"),
        (2, True, "it ran longer than macOS allows"),
    ],
)
def test_failed_work_is_raised_where_the_host_waits_with_what_metal_says(apple, driver, stream, code, restart, what):
    ptr = driver.allocate(64, stream)
    driver.memset(ptr, 1, 4, 4, stream)
    apple.fail_work(code, "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)")
    with pytest.raises(
        DeviceError, match=rf"work on the device failed: {what} \(MTLCommandBufferError\w+\)\n  Caused GPU Address Fault"
    ) as e:
        driver.synchronize(stream)
    assert e.value.restart is restart and e.value.code == code
    driver.synchronize(stream)


@pytest.mark.parametrize("name", ["commandBuffer", "computeCommandEncoder"])
def test_a_launch_without_a_command_buffer_fails_with_a_code_and_the_next_one_runs(apple, driver, stream, name):
    module = driver.load_module(source("k"), "k")
    function = driver.function(module, "k").handle
    apple.fail(name)
    assert launch(driver, stream, function, [1]) == results.NO_OBJECT
    assert launch(driver, stream, function, [2]) == 0
    driver.synchronize(stream)
    assert apple.last().words[0] == 2
    driver.unload(module)


def test_nothing_is_left_of_a_closed_device(apple):
    def use():
        made = metal.MetalDriver()
        made.open(0)
        stream = made.stream(ordered=False)
        module = made.load_module(source("k"), "k")
        launch(made, stream, made.function(module, "k").handle, range(1000))
        ptrs = [made.allocate(n, stream) for n in (100, 30 * MIB)]
        write(made, stream, ptrs[1], np.zeros(1000))
        for ptr in ptrs:
            made.free(ptr, stream)
        made.unload(module)
        made.close(stream)
        return apple.live()

    first, second = use(), use()  # our own kernels, and a heap for rings, stay for the next program
    assert second.objects == first.objects and second.heap_bytes == first.heap_bytes == 16 * MIB
