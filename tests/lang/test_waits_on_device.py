"""What a program does that makes all other programs of its device wait: loading code, once; nothing else. On the emulated device, which
counts such calls (`EmulatedMachine.waits`) and whether there was something to wait for (`held_up`).
"""

import gc

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.runtime import cache
from qdrun.compiler.runtime.gpu.memory import deferred_release, staging
from qdrun.compiler.runtime.gpu.memory.device_memory import release_abandoned
from qdrun.tests.devices.processor.machine import emulated_machine


@pytest.fixture
def machine(monkeypatch):
    """With nothing loaded, pinned or left open by other tests; whoever waits for everything really does."""
    gc.collect()
    release_abandoned()
    monkeypatch.setattr(deferred_release, "_devices", {})
    monkeypatch.setattr(cache, "LOADED", cache.CodeTable())
    made = emulated_machine()
    before, made.waiting = made.waits.copy(), True
    made.waits.clear()
    made.held_up.clear()
    yield made
    made.waiting = False
    made.waits.update(before)


def program(**options):
    return qd.init(arch=qd.cuda, device="emulated", offline_cache=False, **options)


def trial(budget):
    """A trial of two kernels, with a gradient and copies through pinned buffers; its gradient."""
    steps = 41 if budget else 40  # kernels of its own
    with program(memory_budget=budget):
        x, y = (qd.field(qd.f64, shape=64, needs_grad=True) for _ in range(2))
        loss = qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def first():
            for i in x:
                v = x[i]
                for _ in range(steps):
                    v = qd.sin(v) + 0.1
                y[i] = v

        @qd.kernel
        def second():
            for i in y:
                loss[None] += y[i] ** 2

        x.from_numpy(np.linspace(0, 1, 64))
        with qd.ad.Tape(loss):
            first()
            second()
        return x.grad.to_numpy()


@pytest.mark.parametrize("budget", [0, "16KiB"])
def test_a_second_trial_of_the_same_shape_holds_nobody_up(machine, monkeypatch, budget):
    monkeypatch.setattr(staging, "CHUNK", 128)
    monkeypatch.setattr(staging, "THRESHOLD", 1)
    with program():  # another lane
        one = trial(budget)
        loads = machine.waits["load_module"]
        assert loads >= 2 and set(machine.waits) == {"load_module"}
        gc.collect()
        for _ in range(3):
            np.testing.assert_array_equal(trial(budget), one)
            gc.collect()
        assert machine.waits == {"load_module": loads}


def busy(k):
    """Another lane with launches that have not run."""
    other = program()
    z = qd.field(qd.f64, shape=8)

    @qd.kernel
    def add():
        for i in z:
            z[i] += k

    add()
    return other, z, add


def test_kernels_that_are_compiled_on_other_threads_are_loaded_and_run(machine):
    other, z, _ = busy(1.0)
    with program():
        x = qd.field(qd.f64, shape=8, needs_grad=True)
        loss = qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def total():
            for i in x:
                loss[None] += x[i] ** 2

        @qd.kernel
        def grow():
            for i in x:
                x[i] *= 2.0

        qd.compile(total, grow, gradients=True)
        loads = machine.waits["load_module"]
        x.fill(1.5)
        loss.grad[None] = 1.0
        total()
        total.grad()
        assert loss[None] == 18.0 and x.grad.to_numpy().tolist() == [3.0] * 8
        grow()
        assert x.to_numpy().tolist() == [3.0] * 8 and machine.waits["load_module"] == loads >= 4
    with other:
        assert z.to_numpy().tolist() == [1.0] * 8
    other.close()


# ---- the default stream
def test_streams_are_in_order_with_other_libraries_from_when_memory_is_shared(machine):
    made = program()
    device = made.device
    device.dlpack = (2, 0)
    x = qd.field(qd.f64, shape=8)

    @qd.kernel
    def add():
        for i in x:
            x[i] += 1.0

    add()
    first = device.stream
    other, z, add_z = busy(5.0)
    with made:
        x.fill(4.0)
    assert not machine.streams[first].ordered
    device.driver.synchronize(0)  # another library waits for what it has launched: not for us
    assert machine.streams[first].queue and machine.streams[other.device.stream].queue
    with made:
        face = x.__cuda_array_interface__
        assert device.stream == face["stream"] != first and first not in machine.streams
        assert machine.streams[device.stream].ordered and not machine.streams[other.device.stream].ordered
        add()
        assert machine.streams[device.stream].queue
        device.driver.synchronize(0)  # what comes after us there
        assert not machine.streams[device.stream].queue
        assert x.to_numpy().tolist() == [5.0] * 8  # and we wait for what others have put there: it may have written
        second = device.stream
        assert x.__cuda_array_interface__["stream"] == second == device.stream
    assert machine.streams[other.device.stream].queue  # nobody has waited for the other program
    with other:
        add_z()
        assert z.to_numpy().tolist() == [10.0] * 8
    made.close()
    other.close()
    assert not machine.waits.keys() - {"load_module", "unload"}


def test_memory_that_is_shared_while_a_graph_is_recorded_is_in_order_afterwards(machine):
    with program() as made:
        device = made.device
        device.dlpack = (2, 0)
        x = qd.field(qd.f64, shape=8)

        @qd.kernel
        def add():
            for i in x:
                x[i] += 1.0

        x.fill(0.0)
        add()

        def record():
            add()
            device.join()
            assert not machine.streams[device.stream].ordered
            add()

        graph = qd.capture(record)
        assert machine.streams[device.stream].ordered and made.device.table[0] == device.stream
        graph()
        graph()
        assert x.to_numpy().tolist() == [5.0] * 8


def test_memory_and_pinned_words_go_along_to_the_other_stream(machine):
    """What was freed before may be given out again, and what is allocated later is of the new stream."""
    with program() as made:
        device = made.device
        kept, gone = device.allocate(100_000, "fields"), device.allocate(100_000, "fields")
        words = device.host_words(4, "context")
        device.free(gone)
        freed = words.ptr
        device.free(words)
        device.join()
        assert device.memory.stream == device._staging.stream == device._holdings.throttle.stream == device.stream
        again = [device.allocate(100_000, "fields") for _ in range(3)]
        assert device.host_words(4, "context").ptr == freed  # the first stream was waited for
        for a in (kept, *again):
            device.free(a)
    assert device.used_bytes == 0


@pytest.mark.parametrize("planned", [True, False])
def test_the_code_that_a_plan_takes_can_be_loaded_before(machine, planned):
    """States of a long loop lie in the heap, not on chip: that is other code, which ``prepare`` does not know of."""
    with program():
        x, loss = (qd.field(qd.f64, shape=n, needs_grad=True) for n in (8, ()))
        small = 1e-4 if planned else 2e-4  # kernels of their own

        @qd.kernel
        def chain(n: qd.i32):
            for i in x:
                v = x[i]
                for _ in range(n):
                    v += small * qd.sin(v)
                loss[None] += v

        steps = 5000
        x.fill(0.3)
        chain.grad.prepare(steps)
        if planned:
            chain.grad.load(steps)
        machine.waits.clear()
        loss.grad[None] = 1.0
        chain(steps)
        chain.grad(steps)
        assert x.grad.to_numpy().any() and chain.grad.plan(steps).bytes > 0
        assert machine.waits["load_module"] == (0 if planned else 1)
