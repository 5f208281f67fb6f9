"""The host stays near the stream: it waits for what it launched some time ago, the more often the longer launches take."""

import threading
from collections import Counter
from ctypes import c_int64

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.codegen.abi import CTX_WEIGHT
from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime.gpu.pacing.pace import AHEAD, LEAST_US, MARK_US, Pace
from qdrun.compiler.runtime.gpu.pacing.throttle import Interval, Throttle
from qdrun.compiler.runtime.native.launch_ir import S_AHEAD


class Queue:
    """A driver whose stream is a list, and where an event is how long that was; work takes a millisecond."""

    def __init__(self):
        self.made, self.marks, self.waits, self.length = [], {}, [], 0

    def event(self, sleeps=False):
        self.made.append(sleeps)
        return len(self.made)

    def record(self, event, stream):
        self.marks[event] = self.length

    def event_wait(self, event):
        self.waits.append(self.marks[event])

    def elapsed_ms(self, begin, end):
        return float(self.marks[end] - self.marks[begin])

    def event_free(self, event):
        self.made.remove(True)


def test_each_mark_waits_for_the_one_before_it_asleep_and_tells_how_long_that_took():
    queue = Queue()
    throttle = Throttle(queue, 7)
    ended = []
    for queue.length in (256, 512, 800, 1024, 1025):
        ended.append(throttle([queue.length]))
    assert queue.waits == [256, 512, 800, 1024]
    assert queue.made == [True] * 3
    # an interval is known when the mark at its end has passed
    assert ended == [None, None, Interval([512], 256e3), Interval([800], 288e3), Interval([1024], 224e3)]
    throttle.release()
    assert queue.made == []


# ---- how long launches take
def simulated(times, sequence, launches):
    """Microseconds of the device that are ahead when the host has waited: the most of them, and marks; after the first hundred marks."""
    pace, counts, marks, ahead, out, since = Pace(), Counter(), [], 0, [], 0
    for n in range(launches):
        key = sequence(n)
        counts[key] += 1
        ahead += times(key, n)
        since += pace.weight(key)
        if since >= MARK_US:
            marks.append((ahead, counts))
            out.append((ahead - (marks[-2][0] if len(marks) > 1 else 0), n))
            counts, since = Counter(), 0
            if len(marks) > 2:
                pace.learn(marks[-2][1], marks[-2][0] - marks[-3][0])
    return out


@pytest.mark.parametrize("us", [1.0, 5.0, 79.0])
def test_short_launches_have_marks_as_rarely_as_there_can_be(us):
    found = simulated(lambda key, n: us, lambda n: n % 7, 20_000)
    gaps = np.diff([n for _, n in found])
    assert set(gaps[30:]) == {AHEAD} and len(gaps) < 20_000 / AHEAD + 30


@pytest.mark.parametrize("us", [200.0, 3_000.0, 19_000.0])
def test_long_launches_have_marks_that_are_as_far_apart_as_they_are_to_be(us):
    found = simulated(lambda key, n: us, lambda n: 0, 3_000)
    assert all(MARK_US <= taken <= MARK_US + 2 * us for taken, _ in found[10:])
    assert all(taken <= MARK_US + us for taken, _ in found)


def test_launches_that_are_longer_than_that_have_one_each():
    found = simulated(lambda key, n: 10 * MARK_US, lambda n: n % 3, 50)
    assert [n for _, n in found] == list(range(50))


def test_a_mixture_is_bounded_by_the_time_of_all():
    times = {0: 4.0, 1: 900.0, 2: 30.0, 3: 12_000.0}
    found = simulated(lambda key, n: times[key], lambda n: (0, 0, 1, 0, 2, 0, 0, 3)[n % 8], 40_000)
    assert all(taken <= 3 * MARK_US for taken, _ in found)
    assert np.mean([taken for taken, _ in found[100:]]) > MARK_US / 2


def test_an_interval_in_which_nothing_was_there_to_do_does_not_count_for_long():
    pace = Pace()
    pace.learn({1: 10}, 50.0)
    pace.learn({1: 256}, 5e6)  # the host was away for five seconds
    marks = 0
    while pace.weight(1) > LEAST_US:
        pace.learn({1: MARK_US // pace.weight(1)}, 5.0 * (MARK_US // pace.weight(1)))
        marks += 1
    assert marks < 12


def test_new_launches_take_what_known_ones_leave():
    pace = Pace()
    pace.enter(1, 100.0)
    pace.enter(3, None)
    pace.learn({1: 20, 2: 4}, 10_000.0)
    assert pace.us(1) == 100.0 and pace.us(2) == 2_000.0 and pace.us(3) is None
    assert (pace.weight(1), pace.weight(2), pace.weight(3)) == (100, 2_000, MARK_US)


# ---- on a device
@pytest.fixture
def adding():
    """A kernel on the emulated device, launched natively from the next call on."""
    with qd.init(arch=qd.cuda, device="emulated") as program:
        x = qd.field(qd.f64, shape=16)

        @qd.kernel
        def add(a: qd.f64):
            for i in x:
                x[i] += a

        add(0.0)
        add(0.0)
        yield program, add, x


def weigh(program, us):
    """From now on each launch counts as much."""
    device = program.device
    device._pace.learn = lambda counts, us: None
    device._pace.us = lambda key: us
    device._pace.weight = lambda key: us
    for key in device._paced:
        np.ctypeslib.as_array((c_int64 * 2).from_address(key))[CTX_WEIGHT] = us
    program.admission.state[S_AHEAD] = 0


def counted(monkeypatch, program):
    calls = []
    real = Throttle.__call__
    monkeypatch.setattr(Throttle, "__call__", lambda self, keys: (calls.append(len(keys)), real(self, keys))[1])
    program.device._marked = program.device.launches()
    return calls


def test_launches_wait_once_in_so_many_and_none_is_lost(adding, monkeypatch):
    program, add, x = adding
    weigh(program, LEAST_US)
    calls = counted(monkeypatch, program)
    count = 5 * AHEAD
    for _ in range(count):
        add(1.0)
    assert calls == [AHEAD] * 5
    np.testing.assert_array_equal(x.to_numpy(), float(count))


def test_launches_that_are_thought_to_be_long_wait_more_often(adding, monkeypatch):
    program, add, x = adding
    weigh(program, MARK_US // 4)
    calls = counted(monkeypatch, program)
    for _ in range(41):
        add(1.0)
    assert calls == [4] * 10
    np.testing.assert_array_equal(x.to_numpy(), 41.0)


def test_launches_from_python_and_of_graphs_count_too(adding, monkeypatch):
    program, add, x = adding

    @qd.kernel
    def total() -> qd.f64:
        s = 0.0
        for i in x:
            s += x[i]
        return s

    total()
    graph = qd.capture(lambda: [add(1.0) for _ in range(3)])
    weigh(program, MARK_US // 2)
    calls = counted(monkeypatch, program)
    for _ in range(6):
        graph()
    assert calls == [2] * 3
    for _ in range(4):
        total()
    assert calls == [2] * 5


def test_what_a_kernel_takes_is_measured_and_known_to_the_next_program(adding):
    program, add, _x = adding
    for _ in range(3000):
        add(1.0)
    (code,) = {c for c in program.device._paced.values() if c.us is not None}
    known = code.us
    assert known > 0
    with qd.init(arch=qd.cuda, device="emulated") as other:
        x = qd.field(qd.f64, shape=16)

        @qd.kernel
        def add(a: qd.f64):
            for i in x:
                x[i] += a

        add(0.0)
        assert [other.device._pace.us(key) for key in other.device._paced] == [known]


def test_several_threads_of_one_program_count_together(adding, monkeypatch):
    program, add, x = adding
    weigh(program, LEAST_US)
    calls = counted(monkeypatch, program)

    def launch():
        with program:
            for _ in range(AHEAD):
                add(1.0)

    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(x.to_numpy(), float(4 * AHEAD))
    assert 1 <= len(calls) <= 4


def test_nothing_waits_while_a_graph_is_recorded(adding, monkeypatch):
    program, _add, _x = adding
    monkeypatch.setattr(Throttle, "__call__", lambda self, keys: pytest.fail("a graph cannot wait"))
    program.device.capturing = True
    try:
        program.device.throttle()
    finally:
        program.device.capturing = False


def test_a_failure_that_the_wait_meets_is_raised_by_the_launch(adding, monkeypatch):
    _program, add, x = adding

    def broken(self, keys):
        raise DeviceError("work on the device failed: made up", "CUDA_ERROR_UNKNOWN", 999, False)

    monkeypatch.setattr(Throttle, "__call__", broken)
    with pytest.raises(DeviceError, match="made up"):
        for _ in range(AHEAD + 1):
            add(1.0)
    monkeypatch.undo()
    add(1.0)  # nothing of the program's state was left behind
    assert x[0] >= 2.0
