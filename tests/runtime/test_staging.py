"""Large copies through pinned buffers: every size, the order of the stream, several threads, failures in the middle, the end.

The emulated driver copies pinned memory as late as it may, so a buffer that is filled again too early is seen.
"""

import ctypes
import gc
import threading

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime.cuda.results import device_error as failure
from qdrun.compiler.runtime.gpu.device import GpuDevice
from qdrun.compiler.runtime.gpu.memory import deferred_release, staging
from qdrun.compiler.runtime.gpu.memory.device_memory import release_abandoned
from qdrun.compiler.runtime.gpu.memory.staging import Staging
from qdrun.tests.devices.processor.driver import EmulatedDriver

CHUNK = 4096
SIZES = [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1, 3 * CHUNK, 7 * CHUNK + 13]
OUT_OF_MEMORY, OPERATING_SYSTEM, INVALID_VALUE, ILLEGAL_ADDRESS = 2, 304, 1, 700


@pytest.fixture
def device(monkeypatch):
    gc.collect()
    release_abandoned()  # programs that other tests have left: their end would be seen as events and waits of these
    monkeypatch.setattr(deferred_release, "_devices", {})  # what other tests have pinned is not given to these
    monkeypatch.setattr(staging, "CHUNK", CHUNK)
    monkeypatch.setattr(staging, "THRESHOLD", 1)
    made = GpuDevice(EmulatedDriver(), "emulated")
    yield made
    made.driver.machine.heal()
    made.close()


def data(n, seed=0):
    return np.random.default_rng([n, seed]).integers(0, 256, n, np.uint8)


def upload(device, a, values):
    """From memory that changes at once."""
    sent = values.copy()
    device.upload(a.ptr, sent.ctypes.data, sent.nbytes)
    sent[:] = 0x55


def download(device, a, n):
    out = np.full(n + 2, 0x77, np.uint8)
    device.download(out.ctypes.data + 1, a.ptr, n)
    assert out[0] == out[-1] == 0x77
    return out[1:-1]


@pytest.mark.parametrize("n", SIZES)
def test_every_size_arrives_and_comes_back(device, n):
    a = device.allocate(n, "adstack")
    for seed in range(2):
        values = data(n, seed)
        upload(device, a, values)
        assert (download(device, a, n) == values).all()
    assert device.usage() == {"adstack": n, "staging": 2 * CHUNK}


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_a_copy_may_have_any_number_of_threads(device, threads, monkeypatch):
    monkeypatch.setattr(staging, "PART", 1000)
    own = Staging(device.driver, device.stream, device._holdings.shared, chunk=10_000, threads=threads)
    a, values, out = device.allocate(123_457, "adstack"), data(123_457), np.zeros(123_457, np.uint8)
    assert own.upload(a.ptr, values.ctypes.data, values.nbytes)
    assert own.download(out.ctypes.data, a.ptr, out.nbytes)
    assert (out == values).all() and own.nbytes == 20_000
    own.release()
    assert own.nbytes == 0


def test_copies_are_in_the_order_of_the_stream(device):
    n = 5 * CHUNK
    a, b = device.allocate(n, "adstack"), device.allocate(n, "adstack")
    device.memset(a.ptr, 1, n, 1)
    device.copy(b.ptr, a.ptr, n)
    values = data(n)
    upload(device, a, values)
    device.memset(a.ptr + CHUNK, 9, 3, 1)
    values[CHUNK : CHUNK + 3] = 9
    assert (download(device, a, n) == values).all() and (download(device, b, n) == 1).all()


def test_a_program_counts_the_buffers_apart_from_its_memory(device):
    with qd.init(arch=qd.cuda, device="emulated", memory_limit=100_000) as program:
        x = qd.field(qd.u8, 50_000)
        assert "staging" not in program.usage()
        x.from_numpy(data(50_000))
        held, pinned = program.device.used_bytes, program.device.occupied().pinned
        assert program.usage()["staging"] == 2 * CHUNK and program.peak_bytes < 100_000
        assert held == sum(n for k, n in program.usage().items() if k != "staging")
        assert "staging" not in program.peaks() and pinned >= 2 * CHUNK
        assert (x.to_numpy() == data(50_000)).all()
    assert program.usage() == {}


def test_arrays_of_numpy_as_arguments_go_through_the_buffers(device):
    n = 4 * CHUNK + 7

    @qd.kernel
    def add(a: qd.types.ndarray(qd.i32, 1), b: qd.types.ndarray(qd.i32, 1)):
        for i in a:
            a[i] += 2 * b[i]

    with qd.init(arch=qd.cuda, device="emulated") as program:
        a, b = (np.random.default_rng(k).integers(0, 1000, n).astype(np.int32) for k in range(2))
        want = a + 2 * b
        add(a, b)
        assert (a == want).all() and program.usage()["staging"] == 2 * CHUNK


def test_small_copies_make_no_buffers(device, monkeypatch):
    monkeypatch.setattr(staging, "THRESHOLD", 1000)
    a = device.allocate(999, "adstack")
    upload(device, a, data(999))
    assert (download(device, a, 999) == data(999)).all() and "staging" not in device.usage()


def test_buffers_go_from_program_to_program_and_nobody_waits_for_that(device):
    machine = device.driver.machine
    upload(device, device.allocate(3 * CHUNK, "adstack"), data(3 * CHUNK))
    pinned, events, waits = set(machine.pinned), set(machine.events), machine.waits.copy()
    for close in (True, False, True):
        other = GpuDevice(EmulatedDriver(), "emulated")
        a = other.allocate(3 * CHUNK, "adstack")
        upload(other, a, data(3 * CHUNK))
        assert (download(other, a, 3 * CHUNK) == data(3 * CHUNK)).all()
        assert other.usage()["staging"] == 2 * CHUNK and set(machine.events) > events
        assert len(set(machine.pinned) - pinned) == 1  # the buffers of one program, which the next one has
        if close:
            other.close()
        del other, a
        gc.collect()
        device.synchronize()  # gives back what nobody has closed
        assert set(machine.events) == events
    assert device._holdings.shared.spare_bytes == 2 * CHUNK
    assert machine.waits == waits


def test_when_no_program_is_open_few_buffers_stay(device, monkeypatch):
    machine, here = device.driver.machine, device._holdings.shared
    before = set(machine.pinned) - {a for a, _ in here._spare}
    monkeypatch.setattr(deferred_release, "KEEP_PINNED", 2 * CHUNK)
    programs = [device, *(GpuDevice(EmulatedDriver(), "emulated") for _ in range(2))]
    for one in programs:
        upload(one, one.allocate(CHUNK, "adstack"), data(CHUNK))
    for one in programs[:-1]:
        one.close()
    assert here.spare_bytes == 4 * CHUNK and len(set(machine.pinned) - before) == 3
    waits = machine.waits["host_free"]
    programs[-1].close()
    assert here.spare_bytes == 2 * CHUNK and len(set(machine.pinned) - before) == 1
    assert machine.waits["host_free"] == waits + 2


def test_several_threads_copy_at_once(device):
    n, wrong = 6 * CHUNK + 5, []
    blocks = [device.allocate(n, "adstack") for _ in range(4)]

    def work(k):
        for seed in range(10):
            values = data(n, 10 * k + seed)
            upload(device, blocks[k], values)
            if not (download(device, blocks[k], n) == values).all():
                wrong.append((k, seed))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("call", ["upload", "record", "event_wait", "fetch"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_after_a_failure_in_the_middle_copies_are_right_again(device, call, after, monkeypatch):
    n, driver = 9 * CHUNK, device.driver
    a = device.allocate(n, "adstack")
    upload(device, a, data(n))
    left, real = [after], getattr(driver, call)

    def failing(*args):
        left[0] -= 1
        if left[0] == -1:
            driver.machine.fail_next(call, INVALID_VALUE)
        return real(*args)

    monkeypatch.setattr(driver, call, failing)
    with pytest.raises(DeviceError, match="INVALID_VALUE"):
        upload(device, a, data(n, 1))
        download(device, a, n)
    for seed in (2, 3):
        upload(device, a, data(n, seed))
        assert (download(device, a, n) == data(n, seed)).all()


def test_a_failure_that_stays_ends_the_device(device):
    a = device.allocate(3 * CHUNK, "adstack")
    device.driver.machine.fail_next("event_wait", ILLEGAL_ADDRESS)
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS") as caught:
        upload(device, a, data(3 * CHUNK))
    assert caught.value.restart and device.dead
    with pytest.raises(DeviceError, match="the device has failed before"):
        download(device, a, 3 * CHUNK)


@pytest.mark.parametrize("call", ["upload", "fetch"])
def test_an_interrupted_copy_does_no_harm(device, monkeypatch, call):
    n, calls = 8 * CHUNK, []
    a, real = device.allocate(n, "adstack"), getattr(device.driver, call)
    upload(device, a, data(n))

    def interrupted(*args):
        real(*args)
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt  # the copy is in the stream, no event comes after it

    monkeypatch.setattr(device.driver, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        upload(device, a, data(n))
        download(device, a, n)
    upload(device, a, data(n, 1))
    assert (download(device, a, n) == data(n, 1)).all()


def test_a_copy_in_the_middle_of_another_one_goes_another_way(device, monkeypatch):
    """A signal handler of Python's, say."""
    n, inside = 5 * CHUNK, []
    a, b, real = device.allocate(n, "adstack"), device.allocate(n, "adstack"), device.driver.event_wait

    def nested(event):
        real(event)
        if not inside:
            inside.append(True)
            upload(device, b, data(n, 1))

    monkeypatch.setattr(device.driver, "event_wait", nested)
    upload(device, a, data(n))
    assert inside and (download(device, a, n) == data(n)).all() and (download(device, b, n) == data(n, 1)).all()


@pytest.mark.parametrize("code", [OUT_OF_MEMORY, OPERATING_SYSTEM])
def test_where_no_memory_can_be_pinned_the_driver_copies(device, code, monkeypatch):
    def refused(nbytes):
        raise failure(code, f"pinning {nbytes:,} bytes of host memory failed")

    a = device.allocate(3 * CHUNK, "adstack")
    monkeypatch.setattr(device.driver, "host_allocate", refused)
    upload(device, a, data(3 * CHUNK))
    assert (download(device, a, 3 * CHUNK) == data(3 * CHUNK)).all() and "staging" not in device.usage()


@pytest.mark.parametrize("threshold", [1, 1 << 30])
def test_pinned_memory_of_others_may_change_when_the_call_returns(device, monkeypatch, threshold):
    monkeypatch.setattr(staging, "THRESHOLD", threshold)
    n = 3 * CHUNK
    a, ptr = device.allocate(n, "adstack"), device.driver.host_allocate(n)
    pinned = np.ctypeslib.as_array((ctypes.c_uint8 * n).from_address(ptr))
    pinned[:] = data(n)
    device.upload(a.ptr, ptr, n)
    pinned[:] = 0
    assert (download(device, a, n) == data(n)).all()
    device.download(ptr, a.ptr, n)
    assert (pinned == data(n)).all()
    device.driver.host_free(ptr)


def test_a_graph_refuses_large_copies_as_before(device):
    @qd.kernel
    def add():
        for i in x:
            x[i] += 1

    with qd.init(arch=qd.cuda, device="emulated"):
        x = qd.field(qd.i32, 5000)
        add()
        qd.sync()
        with pytest.raises(qd.QdrunRuntimeError, match="the host writes 20,000 bytes of many values to the device"):
            qd.capture(lambda: (add(), x.from_numpy(np.arange(5000, dtype=np.int32))))
        x.from_numpy(np.arange(5000, dtype=np.int32))
        graph = qd.capture(add)
        graph()
        x.from_numpy(np.arange(5000, dtype=np.int32))
        graph()
        graph()
        assert (x.to_numpy() == np.arange(5000) + 2).all()
