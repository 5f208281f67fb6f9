"""Streams and events: programs that use them run in the order of their launches, and give the same numbers."""

import numpy as np
import pytest

import qdrun as qd


@pytest.fixture(autouse=True)
def program():
    with qd.init(default_fp=qd.f64, offline_cache=False) as program:
        yield program


@qd.kernel
def scale(x: qd.types.ndarray(qd.f64, ndim=1), by: qd.f64):
    for i in range(x.shape[0]):
        x[i] *= by


@qd.kernel
def add(x: qd.types.ndarray(qd.f64, ndim=1), y: qd.types.ndarray(qd.f64, ndim=1)):
    for i in range(x.shape[0]):
        y[i] += x[i] ** 2


def arrays():
    x, y = (qd.ndarray(qd.f64, shape=7, needs_grad=True) for _ in range(2))
    x.from_numpy(np.random.default_rng().uniform(0.5, 1.5, 7))
    return x, y


def test_launches_on_streams_with_events():
    x, y = arrays()
    want = (2.0 * x.to_numpy()) ** 2
    with qd.create_stream() as first, qd.create_stream() as second, qd.create_event() as event:
        scale(x, 2.0, qd_stream=first)
        event.record(first)
        event.wait(qd_stream=second)
        add(x=x, y=y, qd_stream=second)
        event.synchronize()
        second.synchronize()
        assert "stream" in repr(first) and "event" in repr(event)
    np.testing.assert_allclose(y.to_numpy(), want, rtol=1e-14)
    scale(x, 1.0, qd_stream=None)
    later = qd.create_event()
    later.wait()
    later.record()


def test_gradients_of_launches_on_streams():
    x, y = arrays()
    stream = qd.create_stream()
    y.grad.fill(1.0)
    add(x, y, qd_stream=stream)
    add.grad(x, y, qd_stream=stream)
    np.testing.assert_allclose(x.grad.to_numpy(), 2.0 * x.to_numpy(), rtol=1e-14)


def test_a_method_takes_a_stream_and_a_parameter_keeps_its_name():
    @qd.data_oriented
    class Holder:
        def __init__(self):
            self.x = qd.field(qd.f64, shape=3)

        @qd.kernel
        def put(self, value: qd.f64):
            for i in self.x:
                self.x[i] = value

    holder = Holder()
    holder.put(4.0, qd_stream=qd.create_stream())
    assert holder.x.to_numpy().tolist() == [4.0] * 3

    @qd.kernel
    def mine(qd_stream: qd.i32) -> qd.i32:
        return qd_stream + 1

    assert mine(qd_stream=3) == 4


def test_what_is_no_stream_of_the_program_is_refused(program):
    x, _ = arrays()
    stream, event = qd.create_stream(), qd.create_event()
    assert stream.handle == getattr(program.device, "stream", 0)
    with pytest.raises(qd.QdrunTypeError, match=r"qd_stream=3 is no stream\n  do: make one: qd.create_stream\(\)"):
        scale(x, 1.0, qd_stream=3)
    with pytest.raises(qd.QdrunTypeError, match=r"stream of another library \(Stream\(0x10\)\)(.|\n)*do: leave it out"):
        qd.Stream(16)
    with qd.init(), pytest.raises(qd.QdrunRuntimeError, match="this stream belongs to another program\n  do: make it in"):
        qd.create_event().record(stream)
    event.destroy()
    event.destroy()
    with pytest.raises(qd.QdrunRuntimeError, match="this event was destroyed\n  do: destroy it after its last use"):
        event.wait()
    program.close()
    with pytest.raises(qd.QdrunRuntimeError, match=r"belongs to a program that is closed\n  do: make it after qd.init\(\)"):
        stream.synchronize()


def test_a_stream_synchronises_what_was_launched_and_raises_what_it_reports():
    with qd.init(default_fp=qd.f64, debug=True, offline_cache=False):
        x = qd.ndarray(qd.f64, shape=3)
        stream = qd.create_stream()

        @qd.kernel
        def far(x: qd.types.ndarray(qd.f64, ndim=1), k: qd.i32):
            for i in range(1):
                x[i + k] = 1.0

        with pytest.raises(qd.QdrunAssertionError, match="axis 0 of `x`"):
            far(x, 5, qd_stream=stream)
            stream.synchronize()
