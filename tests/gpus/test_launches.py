"""What a peer project was asked for of launches and reports, on every GPU. docs/gpu-requests.md has the whole list."""

import numpy as np
import pytest

import qdrun as qd


@pytest.mark.parametrize("n, block", [(65_700, 192), (2_500, 1024), (641, 96)])
def test_iterations_that_are_no_multiple_of_a_block(gpu, n, block):
    """Row 26: threads beyond the last iteration leave at once and touch nothing."""

    def work():
        x = qd.field(qd.i32, shape=n + 300)

        @qd.kernel
        def k(n: qd.i32):
            qd.loop_config(block_dim=block)
            for i in range(n):
                x[i] = i + 1

        k(n)
        return x.to_numpy()

    found, cpu = gpu.both(work)
    assert (found == np.where(np.arange(n + 300) < n, np.arange(n + 300) + 1, 0)).all() and (found == cpu).all()


def test_asserts_and_indices_are_checked_and_the_earliest_iteration_is_named(gpu):
    """Row 36: all threads of a wave may fail at once, and share a program counter: none may wait for the report of another."""
    with gpu.init(debug=True):
        x = qd.field(qd.i32, shape=100)

        @qd.kernel
        def checked(limit: qd.i32):
            for i in x:
                x[i] = i
                assert i < limit, f"i is {i}"

        @qd.kernel
        def outside(n: qd.i32):
            for i in range(n):
                x[i + 1] = i

        checked(100)
        qd.sync()
        with pytest.raises(qd.QdrunAssertionError, match=r"i is 7\b"):
            checked(7)
            qd.sync()
        assert (x.to_numpy() == np.arange(100)).all()
        with pytest.raises(qd.QdrunAssertionError, match="index 100 but extent 100"):
            outside(100)
            qd.sync()
        outside(99)
        qd.sync()


def test_prints_come_when_the_host_waits_and_no_launch_waits_for_them(gpu, program, capfd):
    """Rows 37 and 42."""
    x = qd.field(qd.i32, shape=70)

    @qd.kernel
    def speak(k: qd.i32):
        for i in x:
            x[i] = i
            if i % 32 == k:
                print("thread", i, "of launch", k)

    speak(1)
    assert capfd.readouterr().out == ""
    qd.sync()
    assert len(capfd.readouterr().out.splitlines()) == 3
    launched = gpu.emulated() and gpu.emulated().launches
    for k in (2, 3):
        speak(k)
    assert capfd.readouterr().out == ""
    assert not gpu.emulated() or gpu.emulated().launches < launched + 2, "the last one is in the queue"
    qd.sync()
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == sorted(f"thread {i} of launch {k}" for k in (2, 3) for i in range(k, 70, 32))


@pytest.mark.parametrize("dtype", [qd.f32, qd.f64], ids=str)
def test_random_numbers_are_those_of_the_cpu(gpu, dtype):
    """Row 52: numbers come from counters; there is nothing to initialise."""
    if dtype is qd.f64 and not gpu.wide:
        dtype = qd.i32

    def work():
        x = qd.field(dtype, shape=300)

        @qd.kernel
        def k():
            for i in x:
                x[i] = qd.random(dtype)

        k()
        return x.to_numpy()

    found, cpu = gpu.both(work)
    assert (found == cpu).all() and len({*cpu.tolist()}) > (299 if dtype is qd.f64 else 290)
