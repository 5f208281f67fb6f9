"""The driver: memory in the order of a stream, copies, launches with their words, events, graphs, and when the device gets to work."""

import ctypes
import threading

import numpy as np
import pytest

from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime.gpu.commands import words

from .conftest import COPY, MEMSET, add_text


def test_freed_memory_is_used_again_in_the_order_of_the_stream_and_nothing_waits(rig):
    first = rig.block(np.arange(1 << 16, dtype=np.uint32))
    second = rig.driver.allocate(1 << 18, rig.stream)
    waits = rig.inner.waits
    rig.driver.copy(second, first, 1 << 18, rig.stream)
    rig.driver.free(first, rig.stream)  # while the copy from it is still queued
    again = rig.driver.allocate(1 << 18, rig.stream)
    assert again == first and rig.inner.waits == waits
    rig.driver.memset(again, 7, 1 << 16, 4, rig.stream)
    assert (rig.read(second, 1 << 16) == np.arange(1 << 16)).all() and (rig.read(again, 1 << 16) == 7).all()


def test_freed_memory_goes_back_to_the_device_when_the_work_before_has_run(rig, monkeypatch):
    destroyed, destroy = [], rig.inner.shared.buffers.destroy
    monkeypatch.setattr(
        rig.inner.shared.buffers, "destroy", lambda b: (destroyed.append((b.address, rig.inner.done())), destroy(b))
    )
    block = rig.driver.allocate(1 << 20, rig.stream)
    rig.driver.memset(block, 1, 1 << 18, 4, rig.stream)
    rig.driver.free(block, rig.stream)
    value = rig.inner.pending()
    rig.driver.trim()
    assert not destroyed, "what was put into the stream before the free has not run"
    rig.driver.synchronize(rig.stream)
    assert not destroyed and rig.driver.pool_bytes() == (0, 1 << 20), "so little is kept"
    rig.driver.trim()
    assert destroyed == [(block, value)] and rig.driver.pool_bytes() == (0, 0)


def test_a_block_over_a_limit_of_the_device_is_refused_with_the_limit(rig):
    limit = rig.info.most_bytes
    with pytest.raises(DeviceError, match=rf"one allocation may have {limit:,} bytes \({rig.info.most_bytes_name}\)") as e:
        rig.driver.allocate(limit + 256, rig.stream)
    assert rig.driver.kind.results.is_full(e.value) and not e.value.restart


@pytest.mark.parametrize("width, word", [(1, 0xF7), (2, 0x8001), (4, 0xFFFFFFFE)])
def test_fills_of_each_width_reach_their_bytes_and_no_others(rig, width, word):
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[width]
    block = rig.block(np.zeros(1024, np.uint32))
    rig.driver.memset(block + 8, word, 5, width, rig.stream)
    rig.driver.memset_rows(block + 1024, 64, word, 3, width, 4, rig.stream)
    expected = np.zeros(4096 // width, kind)
    expected[8 // width : 8 // width + 5] = word
    for row in range(4):
        expected[(1024 + 64 * row) // width :][:3] = word
    assert (rig.read(block, 4096 // width, kind) == expected).all()
    fill = MEMSET(rig.driver.memset_address)
    assert fill(block + 4, 0xDEADBEEF, 300, rig.stream) == 0
    assert (rig.read(block + 4, 300) == 0xDEADBEEF).all() and rig.read(block, 1)[0] == 0


@pytest.mark.parametrize("nbytes", [1, 4, 4095, 70_000])
@pytest.mark.parametrize("shift", [0, 1, 4])
def test_machine_code_copies_any_bytes_within_the_device(rig, nbytes, shift):
    data = np.random.default_rng(nbytes).integers(0, 255, nbytes + 8).astype(np.uint8)
    a, b = rig.block(data), rig.block(np.zeros(nbytes + 8, np.uint8))
    assert COPY(rig.driver.native_copy(rig.stream))(b + shift, a + 4, nbytes, rig.stream) == 0
    expected = np.zeros(nbytes + 8, np.uint8)
    expected[shift : shift + nbytes] = data[4 : 4 + nbytes]
    assert (rig.read(b, nbytes + 8, np.uint8) == expected).all()


@pytest.mark.parametrize("nbytes", [1, 4, 4095, 70_000, (5 << 20) + 3])
def test_copies_between_the_host_and_the_device_keep_every_byte(rig, nbytes):
    rng = np.random.default_rng(nbytes)
    data = rng.integers(0, 255, nbytes).astype(np.uint8)
    blocks = []
    for shift in (0, 1, 3):
        source = data.copy()
        blocks.append(rig.driver.allocate(nbytes + 8, rig.stream))
        rig.driver.upload(blocks[-1] + shift, source.ctypes.data, nbytes, rig.stream)
        source[:] = 0  # memory that is not pinned may be changed after the call
    for block, shift in zip(blocks, (0, 1, 3), strict=True):
        assert (rig.read(block + shift, nbytes, np.uint8) == data).all()


@pytest.mark.parametrize("step", [1, 2, 4, 8, 12])
def test_rows_are_copied_by_any_number_of_bytes(rig, step):
    data = np.random.default_rng(step).integers(0, 255, 8192).astype(np.uint8)
    a, b = rig.block(data), rig.block(np.zeros(8192, np.uint8))
    rig.driver.copy_rows(b + 3 * step, 5 * step, a + step, 7 * step, 2 * step, 50, rig.stream)
    expected = np.zeros(8192, np.uint8)
    for row in range(50):
        expected[(3 + 5 * row) * step :][: 2 * step] = data[(1 + 7 * row) * step :][: 2 * step]
    assert (rig.read(b, 8192, np.uint8) == expected).all()


def test_pinned_memory_is_read_and_written_when_its_turn_comes(rig):
    pinned, block = rig.driver.host_allocate(64), rig.block(np.zeros(8, np.uint64))
    view = (ctypes.c_uint64 * 8).from_address(pinned)
    view[0], view[1] = 1, 0
    rig.driver.upload(block, pinned, 8, rig.stream)
    view[0] = 7  # before the copy's turn
    rig.driver.fetch(pinned + 8, block, 8, rig.stream)
    assert view[1] != 7
    rig.driver.synchronize(rig.stream)
    assert view[1] == 7
    assert rig.driver.is_pinned(pinned + 63) and not rig.driver.is_pinned(np.zeros(1).ctypes.data)
    function, module = rig.function(add_text(2), "add")
    assert rig.launch(function, [rig.driver.device_address(pinned + 8), 5], block=1) == 0
    rig.driver.synchronize(rig.stream)
    assert view[1] == 12
    rig.driver.unload(module)
    rig.driver.host_free(pinned)


@pytest.mark.parametrize("count", [1, 2, 16, 17, 200])
def test_a_kernel_takes_its_words_by_value_when_it_is_launched(rig, count):
    """More than 16 words go through memory, of which each command buffer has 64 KiB: here several are filled."""
    total = rig.block(np.zeros(1, np.uint64))
    function, module = rig.function(add_text(count), "add")
    sent = rig.inner._words[words.LAST]
    expected = 0
    for k in range(300):
        given = [total, *(k * 1000 + j for j in range(1, count))]
        expected += sum(given[1:])
        assert rig.launch(function, given, block=1) == 0
    assert rig.read(total, 1, np.uint64)[0] == expected % (1 << 64)
    assert count < 200 or rig.inner._words[words.LAST] - sent > 300 * 8 * count // words.CHUNK
    assert rig.launch(function, [total] * (count + 1), block=1) == 1000011001, "a launch with other words is refused"
    rig.driver.unload(module)


def test_the_device_is_given_work_while_it_has_none_and_else_in_large_parts(rig, monkeypatch):
    function, module = rig.function(add_text(2), "add")
    total = rig.block(np.zeros(1, np.uint64))
    rig.driver.synchronize(rig.stream)

    def submitted(launches):
        before = rig.inner._words[words.LAST]
        for _ in range(launches):
            assert rig.launch(function, [total, 1], block=1) == 0
        return rig.inner._words[words.LAST] - before

    assert submitted(words.FEW - 1) == 0 and submitted(1) == 1, "an idle device gets what there is after a few launches"
    rig.driver.synchronize(rig.stream)
    waits = rig.inner.waits
    assert submitted(2048) <= 2048 // words.FEW and rig.inner.waits == waits, "no launch waits"
    assert submitted(0) == 0 and rig.read(total, 1, np.uint64)[0] == words.FEW + 2048
    rig.driver.unload(module)


def test_a_busy_device_gets_256_launches_at_a_time(rig):
    slow, module = rig.function(SPIN, "spin")
    total = rig.block(np.zeros(1, np.uint64))
    rig.driver.synchronize(rig.stream)
    before = rig.inner._words[words.LAST]
    for _ in range(4 * words.MOST):
        assert rig.launch(slow, [total, 20_000], block=1) == 0
    assert 4 <= rig.inner._words[words.LAST] - before <= 6
    rig.driver.synchronize(rig.stream)
    rig.driver.unload(module)


SPIN = """define void @spin(ptr %p0, i64 %p1) "threads"="any" {
entry:
  %i = alloca i64
  store i64 0, ptr %i
  br label %loop
loop:
  %here = load i64, ptr %i
  %more = icmp ult i64 %here, %p1
  br i1 %more, label %do, label %end
do:
  %next = add i64 %here, 1
  store i64 %next, ptr %i
  store i64 %next, ptr %p0
  br label %loop
end:
  ret void
}
"""


def test_more_command_buffers_than_there_are_wait_for_the_oldest(rig):
    slow, module = rig.function(SPIN, "spin")
    total = rig.block(np.zeros(1, np.uint64))
    waits = rig.inner.waits
    for _ in range(3 * words.SLOT_COUNT):
        assert rig.launch(slow, [total, 50_000], block=1) == 0
        rig.inner.submit()
    assert rig.inner.waits > waits
    assert rig.read(total, 1, np.uint64)[0] == 50_000
    rig.driver.unload(module)


def test_events_pass_in_order_and_have_the_devices_times(rig):
    slow, module = rig.function(SPIN, "spin")
    total = rig.block(np.zeros(1, np.uint64))
    assert rig.launch(slow, [total, 10], block=1) == 0  # the first launch compiles
    events = [rig.driver.event(sleeps=True) for _ in range(3)]
    found = []
    for _ in range(3):  # other processes may take the processor at any time
        for k, event in enumerate(events):
            rig.driver.record(event, rig.stream)
            for _ in range((1, 50, 0)[k]):
                assert rig.launch(slow, [total, 60_000 if k else 10], block=1) == 0
        rig.driver.event_wait(events[2])
        found.append([rig.driver.elapsed_ms(*events[k : k + 2]) for k in range(2)])
    short, long = np.min(found, axis=0)
    assert 0 <= short < long < 10_000
    for event in events:
        rig.driver.event_free(event)
    rig.driver.unload(module)


@pytest.mark.parametrize("count", [2, 40])
def test_a_captured_graph_runs_whenever_it_is_launched(rig, count):
    function, module = rig.function(add_text(count), "add")
    total, out = rig.block(np.zeros(8, np.uint64)), rig.block(np.zeros(8, np.uint64))
    assert rig.launch(function, [total, *[1] * (count - 1)], block=1) == 0  # in the stream before, and not in the graph
    rig.driver.capture_begin(rig.stream)
    for _ in range(400):
        assert rig.launch(function, [total, *[2] * (count - 1)], block=1) == 0
    rig.driver.copy(out, total, 8, rig.stream)
    rig.driver.memset(out + 8, 3, 2, 4, rig.stream)
    for refused in (lambda: rig.driver.synchronize(rig.stream), lambda: rig.driver.record(rig.driver.event(), rig.stream)):
        with pytest.raises(DeviceError, match="it cannot be part of a graph"):
            refused()
    graph = rig.driver.capture_end(rig.stream)
    assert rig.read(total, 1, np.uint64)[0] == count - 1
    for _ in range(3):
        rig.driver.graph_launch(graph, rig.stream)
    rig.driver.graph_free(graph)  # while it is queued
    assert rig.read(out, 2, np.uint64).tolist() == [(1 + 3 * 800) * (count - 1), 3 << 32 | 3]
    with pytest.raises(DeviceError, match="none is being recorded"):
        rig.driver.capture_end(rig.stream)
    rig.driver.unload(module)


def test_threads_may_put_work_into_their_streams_at_once(rig):
    """Streams of one device share its queues, and the tables of its memory."""
    function, module = rig.function(add_text(3), "add")
    driver, errors = rig.driver, []

    def work():
        try:
            stream = driver.stream(ordered=False)
            data, out = np.zeros(1024, np.uint64), np.zeros(1024, np.uint64)
            for k in range(40):
                block = driver.allocate(8192 + 256 * (k % 3), stream)
                data[:] = k
                driver.upload(block, data.ctypes.data, 8192, stream)
                given, size = (ctypes.c_uint64 * 3)(block + 8, 5, 6), ctypes.c_uint64(24)
                extra = (ctypes.c_uint64 * 5)(1, ctypes.addressof(given), 2, ctypes.addressof(size), 0)
                launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
                assert not launch(driver.launch_address)(
                    function.handle, 1, 1, 1, 1, 1, 1, 0, stream, None, ctypes.addressof(extra)
                )
                driver.download(out.ctypes.data, block, 8192, stream)
                driver.free(block, stream)
                assert out[1] == k + 11 and (np.delete(out, 1) == k).all()
            driver.stream_free(stream)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    rig.driver.unload(module)


def test_a_failed_submission_is_the_failure_of_all_that_follows(rig):
    """What was recorded is lost with it: nothing may go on as if it had run."""
    function, module = rig.function(add_text(2), "add")
    total = rig.block(np.zeros(1, np.uint64))
    rig.driver.synchronize(rig.stream)
    rig.inner._words[words.FAILED] = 4
    assert rig.launch(function, [total, 1], block=1) == 4
    with pytest.raises(DeviceError, match="VK_ERROR_DEVICE_LOST") as e:
        rig.driver.memset(total, 0, 2, 4, rig.stream)
    assert e.value.restart
    rig.inner._words[words.FAILED] = 0
    rig.driver.unload(module)


def test_memory_is_of_the_type_that_suits_its_use(rig, monkeypatch):
    """On a card: its own memory for blocks, cached memory of the host for copies, what both see for words; none of an extension's."""
    buffers, gib = rig.inner.shared.buffers, 1 << 30
    local, host, both = 1, 2 | 4, 1 | 2 | 4
    card = [(0, 1), (local | 0x40, 0), (local, 0), (host, 1), (host | 8, 1), (both, 2), (host | 8 | 0xC0, 1)]
    monkeypatch.setattr(buffers, "_types", card)
    monkeypatch.setattr(buffers, "_heaps", [80 * gib, 64 * gib, gib // 4])
    assert [buffers._kind(place, -1) for place in ("device", "host", "words")] == [2, 4, 5]
    assert buffers._kind("words", 0b0011111) == 3, "without such memory, the host's that is only written"
    with pytest.raises(DeviceError, match="the device has no memory for buffers"):
        buffers._kind("device", 0b0000010)
