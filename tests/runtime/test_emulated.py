"""The emulated driver: work in streams, memory that the host cannot touch, failures that stay, graphs."""

import ctypes
import subprocess
import sys

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.errors import DeviceError
from qdrun.tests.devices.processor.arena import POISON, Arena, BadAddress
from qdrun.tests.devices.processor.driver import EmulatedDriver

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
ADD_ONE = b"""
define void @add_one(ptr %regs, ptr %words) nounwind {
  %b = getelementptr i64, ptr %regs, i64 1
  %i = load i64, ptr %b
  %x = load ptr, ptr %words
  %np = getelementptr i64, ptr %words, i64 1
  %n = load i64, ptr %np
  %in = icmp slt i64 %i, %n
  br i1 %in, label %a, label %e
a:
  %p = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %p
  %w = fadd float %v, 1.0
  store float %w, ptr %p
  br label %e
e:
  ret void
}
"""


class Bench:
    """A driver with a stream, a block of ten floats and a kernel that adds 1 to the first n of them."""

    def __init__(self):
        self.driver = EmulatedDriver()
        self.stream = self.driver.stream(ordered=False)
        self.module = self.driver.load_module(ADD_ONE, "add_one")
        self.function = self.driver.function(self.module, "add_one").handle
        self.block = self.driver.allocate(40, self.stream)
        self.host = np.arange(10, dtype=np.float32)

    def upload(self):
        self.driver.upload(self.block, self.host.ctypes.data, 40, self.stream)

    def launch(self, n=10, grid=10, block=1, shared=0):
        words = (ctypes.c_int64 * 2)(self.block, n)
        size = ctypes.c_size_t(16)
        extra = (ctypes.c_size_t * 5)(1, ctypes.addressof(words), 2, ctypes.addressof(size), 0)
        call = LAUNCH(self.driver.launch_address)
        return call(self.function, grid, 1, 1, block, 1, 1, shared, self.stream, None, ctypes.addressof(extra))

    def content(self):
        out = np.empty(10, np.float32)
        self.driver.download(out.ctypes.data, self.block, 40, self.stream)
        return out.tolist()


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.driver.machine.heal()
    made.driver.close(made.stream)


def test_work_runs_in_order_and_not_before_somebody_waits(bench):
    bench.upload()
    bench.host[:] = 100.0  # pageable memory was read at the call
    before = bench.driver.machine.launches
    assert bench.launch(n=4) == 0 and bench.launch(n=2) == 0
    assert bench.driver.machine.launches == before
    assert bench.content() == [2, 3, 3, 4, 4, 5, 6, 7, 8, 9]


def test_pinned_memory_is_read_when_the_work_runs(bench):
    pinned = bench.driver.host_allocate(40)
    source = np.ctypeslib.as_array((ctypes.c_float * 10).from_address(pinned))
    assert source.view(np.uint8).tolist() == [POISON] * 40
    source[:] = 1.0
    bench.driver.upload(bench.block, pinned, 40, bench.stream)
    source[:] = 7.0
    assert bench.content() == [7.0] * 10
    event = bench.driver.event()
    bench.driver.memset(bench.block, 0x40400000, 10, 4, bench.stream)
    bench.driver.fetch(pinned, bench.block, 40, bench.stream)
    bench.driver.record(event, bench.stream)
    assert source.tolist() == [7.0] * 10
    bench.driver.event_wait(event)
    assert source.tolist() == [3.0] * 10
    bench.driver.host_free(pinned)


def test_new_and_freed_memory_is_poison(bench):
    assert np.isnan(bench.content()).all()
    bench.upload()
    bench.driver.free(bench.block, bench.stream)
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        bench.content()


def test_a_copy_that_leaves_its_block_is_refused_for_good(bench):
    bench.driver.upload(bench.block + 8, bench.host.ctypes.data, 40, bench.stream)
    for _ in range(2):
        with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS") as e:
            bench.driver.synchronize(bench.stream)
        assert e.value.restart
    assert bench.launch() == 700


def test_a_kernel_that_writes_outside_of_its_block_is_found(bench):
    bench.upload()
    bench.launch(n=11, grid=11)
    bench.driver.free(bench.block, bench.stream)
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        bench.driver.synchronize(bench.stream)


@pytest.mark.parametrize("wrong", [{"grid": 0}, {"block": 1025}, {"shared": 49 << 10}])
def test_launches_that_a_device_refuses(bench, wrong):
    assert bench.launch(**wrong) == 1


def test_a_failure_that_was_ordered(bench):
    bench.driver.machine.fail_next("allocate", 2)
    with pytest.raises(DeviceError, match="OUT_OF_MEMORY"):
        bench.driver.allocate(8, bench.stream)
    bench.driver.free(bench.driver.allocate(8, bench.stream), bench.stream)
    bench.driver.machine.fail_next("launch", 719)
    assert bench.launch() == 719 and bench.launch() == 719


def test_a_graph_runs_what_was_recorded(bench):
    bench.upload()
    bench.driver.capture_begin(bench.stream)
    bench.launch(n=3)
    bench.launch(n=1)
    with pytest.raises(DeviceError, match="STREAM_CAPTURE_UNSUPPORTED"):
        bench.driver.synchronize(bench.stream)
    graph = bench.driver.capture_end(bench.stream)
    assert bench.content() == list(range(10))
    bench.driver.graph_launch(graph, bench.stream)
    bench.driver.graph_launch(graph, bench.stream)
    assert bench.content() == [4, 3, 4, 3, 4, 5, 6, 7, 8, 9]


def test_the_host_cannot_touch_device_memory():
    code = """
import ctypes
from qdrun.tests.devices.processor.driver import EmulatedDriver
d = EmulatedDriver()
ctypes.string_at(d.allocate(8, d.stream(False)), 8)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert ended.returncode < 0 if sys.platform.startswith("linux") else ended.returncode == 0


def test_blocks_do_not_meet_and_come_back():
    arena, r = Arena(1 << 20), np.random.default_rng(0)
    live: dict[int, int] = {}
    for _ in range(500):
        if live and r.random() < 0.5:
            address = list(live)[r.integers(len(live))]
            assert arena.free(address)
            del live[address]
            with pytest.raises(BadAddress):
                arena.check(address, 1)
            continue
        n = int(r.integers(1, 5000))
        try:
            address = arena.allocate(n)
        except MemoryError:
            continue
        assert address % 256 == 0
        assert all(address + n <= a or a + m <= address for a, m in live.items())
        live[address] = n
        arena.check(address, n)
        with pytest.raises(BadAddress):
            arena.check(address, n + 1)
    assert arena.all_intact() and arena.used == sum(live.values())
    for address in live:
        arena.free(address)
    assert arena.free_ranges() == [(0, 1 << 20)]


def test_an_installed_package_says_where_emulated_devices_are(monkeypatch):
    from qdrun.compiler.runtime import registry

    monkeypatch.setattr(registry, "TEST_DEVICES", "qdrun.tests_of_a_wheel.devices")
    with pytest.raises(qd.DeviceError, match=r"no part of an installed qdrun\n  do: clone the repository and `pip install -e"):
        qd.init(arch=qd.cuda, device="emulated")
