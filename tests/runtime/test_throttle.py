"""The host stays near the stream: every so many native launches it waits for what it launched long ago, without the interpreter's lock."""

import threading

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime.cuda.throttle import AHEAD, Throttle


class Queue:
    """A driver whose stream is a list, and where an event is how long that was."""

    def __init__(self):
        self.made, self.marks, self.waits, self.length = [], {}, [], 0

    def event(self, sleeps=False):
        self.made.append(sleeps)
        return len(self.made)

    def record(self, event, stream):
        self.marks[event] = self.length

    def event_wait(self, event):
        self.waits.append(self.marks[event])

    def event_free(self, event):
        self.made.remove(True)


def test_each_mark_waits_for_the_one_before_it_asleep():
    queue = Queue()
    throttle = Throttle(queue, 7)
    for queue.length in (256, 512, 768, 1024):
        throttle()
    assert queue.waits == [256, 512, 768]
    assert queue.made == [True, True]
    throttle.release()
    assert queue.made == []


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


def test_launches_wait_once_in_so_many_and_none_is_lost(adding, monkeypatch):
    _program, add, x = adding
    calls = []
    real = Throttle.__call__
    monkeypatch.setattr(Throttle, "__call__", lambda self: (calls.append(threading.get_ident()), real(self)))
    count = 5 * AHEAD
    for _ in range(count):
        add(1.0)
    assert len(calls) == 5
    np.testing.assert_array_equal(x.to_numpy(), float(count))


def test_several_threads_of_one_program_count_together(adding, monkeypatch):
    program, add, x = adding
    calls = []
    real = Throttle.__call__
    monkeypatch.setattr(Throttle, "__call__", lambda self: (calls.append(0), real(self)))

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
    assert 1 <= len(calls) <= 4  # launches that wait for those of another thread are made in Python, and not counted


def test_nothing_waits_while_a_graph_is_recorded(adding, monkeypatch):
    program, _add, _x = adding
    monkeypatch.setattr(Throttle, "__call__", lambda self: pytest.fail("a graph cannot wait"))
    program.device.capturing = True
    try:
        program.device.throttle()
    finally:
        program.device.capturing = False


def test_a_failure_that_the_wait_meets_is_raised_by_the_launch(adding, monkeypatch):
    _program, add, x = adding

    def broken(self):
        raise DeviceError("work on the device failed: made up", "CUDA_ERROR_UNKNOWN", 999, False)

    monkeypatch.setattr(Throttle, "__call__", broken)
    with pytest.raises(DeviceError, match="made up"):
        for _ in range(AHEAD + 1):
            add(1.0)
    monkeypatch.undo()
    add(1.0)  # nothing of the program's state was left behind
    assert x[0] >= 2.0
