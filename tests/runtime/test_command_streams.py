"""What all command streams have in common, with both encoders: on Mesa's llvmpipe, and on the stand-in for Metal."""

import ctypes
import threading

import numpy as np
import pytest

from qdrun.compiler.codegen.metal.source import KernelFacts, head_of
from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime.gpu.commands import stream as streams
from qdrun.compiler.runtime.gpu.commands import words as w
from qdrun.tests.metal_driver.conftest import apple, library  # noqa: F401 - fixtures
from qdrun.tests.vulkan_driver.conftest import Rig, add_text, has_device  # noqa: F401 - the same

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)


class Streams:
    """A driver with one stream, and a function that adds the sum of its words to a total."""

    def __init__(self, driver, function, target):
        self.driver, self.function, self.target = driver, function, target
        self.stream = driver.stream(ordered=False)
        self.inner = driver._streams[self.stream]

    def launch(self, words):
        """Launch it as a kernel's entry does; returns the code."""
        given = (ctypes.c_uint64 * (1 + len(words)))(self.target(self), *words)
        size = ctypes.c_uint64(8 * len(given))
        extra = (ctypes.c_uint64 * 5)(1, ctypes.addressof(given), 2, ctypes.addressof(size), 0)
        launch = LAUNCH(self.driver.launch_address)
        return launch(self.function(self, len(given)), 1, 1, 1, 1, 1, 1, 0, self.stream, None, ctypes.addressof(extra))

    @property
    def last(self):
        """The number of the last submission."""
        return self.inner._words[w.LAST]


@pytest.fixture
def on_vulkan(has_device):  # noqa: F811 - a fixture
    rig, functions, totals = Rig(), {}, []

    def function(_, count):
        if count not in functions:
            functions[count] = rig.function(add_text(count), "add")[0].handle
        return functions[count]

    def target(made):
        if not totals:
            zero = np.zeros(1, np.uint64)
            totals.append(rig.driver.allocate(8, made.stream))
            rig.driver.upload(totals[0], zero.ctypes.data, 8, made.stream)
        return totals[0]

    def total():
        out = np.zeros(1, np.uint64)
        made.driver.download(out.ctypes.data, target(made), 8, made.stream)
        return int(out[0])

    made = Streams(rig.driver, function, target)
    made.total = total
    yield made
    rig.close()


@pytest.fixture
def on_metal(apple):  # noqa: F811 - a fixture
    from qdrun.compiler.runtime.metal.driver import MetalDriver

    driver, sums = MetalDriver(), []
    driver.open(0)
    text = "kernel void k(constant ulong* qw [[buffer(0)]])\n{\n}\n"
    facts = head_of({"k": KernelFacts(threads=64, by_address=True)})
    module = driver.load_module(f"{facts}#include <metal_stdlib>\nusing namespace metal;\n{text}".encode(), "k")

    def run(launch):
        found = launch.contents
        if found.name == b"k":  # how many words there are is the first of them
            at = np.ctypeslib.as_array((ctypes.c_uint64 * 1).from_address(found.words[0]))
            sums.append(int(np.ctypeslib.as_array((ctypes.c_uint64 * int(at[0])).from_address(found.words[0]))[1:].sum()))
        return 0

    def total():
        driver.synchronize(made.stream)
        return sum(sums)

    counts = []

    def function(_, count):
        return driver.function(module, "k").handle

    made = Streams(driver, function, lambda _: counts[-1])
    launch = made.launch

    def counted(words):
        counts.append(1 + len(words))
        return launch(words)

    made.launch, made.total = counted, total
    apple.run(run)
    yield made
    driver.close(made.stream)
    driver.unload(module)


@pytest.fixture(params=["vulkan", "metal"])
def rig(request):
    return request.getfixturevalue(f"on_{request.param}")


def test_an_idle_device_gets_a_few_launches_and_the_host_never_waits(rig):
    rig.launch([0])
    rig.inner.synchronize()
    before, waits = rig.last, rig.inner.waits
    for _ in range(w.FEW - 1):
        assert rig.launch([1]) == 0
    assert rig.last == before
    assert rig.launch([1]) == 0
    assert rig.last == before + 1 and rig.inner.waits == waits
    assert rig.total() == w.FEW


def test_a_slot_is_used_again_once_its_submission_has_ended(rig):
    rig.launch([0])
    rig.inner.synchronize()
    for k in range(3 * w.SLOT_COUNT + 5):
        assert rig.launch([k]) == 0
        assert rig.inner.submit() == rig.last
        assert rig.last - rig.inner._words[w.DONE] <= w.SLOT_COUNT
    assert rig.total() == sum(range(3 * w.SLOT_COUNT + 5))
    assert rig.inner.done() == rig.inner.pending() and rig.inner.idle


@pytest.mark.parametrize("count", [20, 200])
def test_arguments_find_room_in_each_submission_and_rooms_grow(rig, monkeypatch, count):
    """Here a slot has 1 KiB: less than the arguments of some launches."""
    monkeypatch.setattr(w, "CHUNK", 1 << 10)
    rng, expected = np.random.default_rng(), 0
    for size in (20, count, 20, count):
        for _ in range(60):
            given = rng.integers(0, 1 << 40, size - 1).tolist()
            expected += sum(given)
            assert rig.launch(given) == 0
    assert rig.total() == expected
    assert rig.inner._words[w.ROOM_SIZE] == max(1 << 10, -(-8 * count // w.ROOM_ALIGN) * w.ROOM_ALIGN)


def test_what_is_done_later_waits_for_what_was_in_the_streams_and_keeps_its_order(rig):
    done, driver = [], rig.driver
    handle = driver.stream(ordered=False)
    other, block = driver._streams[handle], driver.allocate(64, handle)
    driver.memset(block, 0, 16, 4, handle)
    rig.launch([1])
    rig.inner.later(lambda: done.append("first"))
    streams.after_all([rig.inner, other], lambda: done.append("both"))
    rig.inner.later(lambda: done.append("second"))
    rig.inner.retire()
    assert not done, "the launch was not submitted"
    rig.inner.synchronize()
    assert done == ["first", "second"], "the other stream has not run"
    other.synchronize()
    streams.after_all([rig.inner, other], lambda: done.append("at once"))
    streams.after_all([], lambda: done.append("none"))
    assert done == ["first", "second", "both", "at once", "none"]
    driver.free(block, handle)
    driver.stream_free(handle)


def test_a_graph_is_a_list_of_launches_that_other_graphs_may_contain(rig):
    rig.launch([5, 6])
    rig.inner.begin_capture()
    for k in range(300):
        assert rig.launch([k]) == 0
    assert rig.launch(list(range(30))) == 0
    inner = rig.inner.end_capture()
    assert rig.total() == 11, "nothing of it has run"
    once = sum(range(300)) + sum(range(30))
    rig.inner.begin_capture()
    rig.inner.replay(inner)
    assert rig.launch([7]) == 0
    rig.inner.replay(inner)
    outer = rig.inner.end_capture()
    rig.inner.replay(outer)
    rig.inner.replay(inner)
    rig.inner.begin_capture()
    empty = rig.inner.end_capture()
    rig.inner.replay(empty)
    assert not empty and rig.total() == 11 + 3 * once + 7


def test_what_cannot_be_part_of_a_graph_is_refused_by_name(rig):
    with pytest.raises(
        DeviceError, match=r"recording a graph failed: it cannot be part of a graph.*\n  none is being recorded"
    ):
        rig.inner.end_capture()
    rig.inner.begin_capture()
    with pytest.raises(DeviceError, match=r"recording a graph failed: it cannot be part of a graph.*\n  one is being recorded"):
        rig.inner.begin_capture()
    for call in (rig.inner.submit, rig.inner.synchronize):
        with pytest.raises(DeviceError, match="work on the device failed: it cannot be part of a graph"):
            call()
    assert not rig.inner.end_capture()


def test_a_launch_without_room_for_its_arguments_says_why_and_the_next_one_runs(rig, monkeypatch):
    def refuse(nbytes):
        raise rig.inner.results.error(rig.inner.results.full, f"{nbytes:,} bytes of room are missing")

    with monkeypatch.context() as change:
        change.setattr(type(rig.inner.device), "make_room", lambda self, nbytes: refuse(nbytes))
        assert rig.launch([1] * 20) == rig.inner.results.full
    assert f"{w.CHUNK * w.SLOT_COUNT:,} bytes of room are missing" in rig.driver.explain() and rig.driver.explain() == ""
    assert rig.launch([1] * 20) == 0 and rig.total() == 20


def test_threads_share_a_stream_and_lose_nothing(rig):
    """Some launch, some wait and some launch a graph."""
    rig.launch([0])
    rig.inner.begin_capture()
    for _ in range(10):
        rig.launch([1])
    graph, errors = rig.inner.end_capture(), []

    def work(k):
        try:
            for n in range(60):
                if k:
                    assert rig.launch([1]) == 0
                else:
                    rig.inner.replay(graph)
                if n % 20 == 19:
                    rig.inner.synchronize()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not errors and rig.total() == 60 * (10 + 1 + 1)
