"""``qd.profiler``: which launches are counted, that their times are those of a clock, and that it costs nothing when it is off."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import qdrun as qd

DEVICES = [
    {},
    {"arch": "python"},
    {"batch": 3},
    {"arch": "cuda", "device": "emulated"},
    pytest.param({"arch": "cuda", "device": "emulated", "batch": 3}, marks=pytest.mark.slow),
    pytest.param({"arch": "vulkan", "device": "llvmpipe"}, marks=pytest.mark.slow),
    pytest.param({"arch": "amdgpu", "device": "emulated:gfx942"}, marks=pytest.mark.slow),
]


def made(n: int = 8):
    """Fields, a kernel that takes longer the larger its argument is, and one that draws and returns."""
    x = qd.field(qd.f64, shape=n, needs_grad=True, needs_dual=True)
    y = qd.field(qd.f64, shape=(), needs_grad=True, needs_dual=True)

    @qd.kernel
    def work(steps: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(steps):
                v = qd.sin(v) + 0.5
            y[None] += v

    @qd.kernel
    def draw() -> qd.f64:
        return qd.random(qd.f64)

    return x, y, work, draw


def counts() -> dict[str, int]:
    return {one.name: one.counter for one in qd.current_program().profiler.times()}


@pytest.mark.parametrize("options", DEVICES)
def test_every_launch_is_counted_under_its_kernel(options):
    program = qd.init(default_fp=qd.f64, kernel_profiler=True, **options)
    x, y, work, draw = made()
    for _ in range(3):
        work(2)
    with qd.ad.Tape(y):
        for _ in range(2):
            work(2)
    with qd.ad.FwdMode(y, x, np.ones(8)):
        work(2)
    draw()
    assert counts() == {"work": 5, "work.grad": 2, "work_tangent": 1, "draw": 1}
    times = program.profiler.times()
    assert abs(sum(one.share for one in times) - 1) < 1e-9 and times == sorted(times, key=lambda one: -one.total)
    assert all(0 < one.min <= one.avg <= one.max and abs(one.total - one.counter * one.avg) < 1e-9 for one in times)
    qd.profiler.clear_kernel_profiler_info()
    assert counts() == {} and qd.profiler.get_kernel_profiler_total_time() == 0
    if program.device.native:
        graph = qd.capture(lambda: (work(2), work(3)))
        graph()
        graph()
        (name,) = counts()
        assert name.startswith("graph of ") and counts()[name] == 2
    for _ in range(300):
        work(1)
    assert qd.profiler.query_kernel_profiler_info("work").counter == 300


def test_times_are_those_of_a_clock():
    qd.init(default_fp=qd.f64, kernel_profiler=True, cpu_max_num_threads=1)
    _, _, work, _ = made(64)
    work(1)
    qd.profiler.clear_kernel_profiler_info()
    begin, busy = time.perf_counter(), time.thread_time()  # on a busy machine, most of a wall clock's time is that of others
    for steps in (1_000_000, 2_000):
        work(steps)
    wall, busy = 1e3 * (time.perf_counter() - begin), 1e3 * (time.thread_time() - busy)
    found = qd.profiler.query_kernel_profiler_info("work")
    assert 0.2 * busy < found.total <= wall and abs(1e3 * qd.profiler.get_kernel_profiler_total_time() - found.total) < 1e-9
    assert found.max > 2 * found.min


def test_launches_of_several_threads_and_those_that_fail():
    qd.init(default_fp=qd.f64, kernel_profiler=True, debug=True)
    x = qd.field(qd.f64, shape=4)

    @qd.kernel
    def put(k: qd.i32):
        for _ in range(1):
            x[k] = 1.0

    program = qd.current_program()

    def many():
        program.activate()
        for k in range(50):
            put(k % 4)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    with pytest.raises(qd.QdrunAssertionError):
        put(7)
    put(1)
    assert 201 <= qd.profiler.query_kernel_profiler_info("put").counter <= 202


def test_what_is_printed(capsys):
    qd.init(kernel_profiler=True)
    _, _, work, _ = made()
    work(1)
    work(1)
    qd.profiler.print_kernel_profiler_info()
    head, columns, line = capsys.readouterr().out.splitlines()
    assert head == "kernel times by the host's clock around each launch, in ms"
    assert columns.split() == ["share", "calls", "min", "mean", "max", "total", "kernel"]
    assert line.split()[:2] == ["100.0%", "2"] and line.split()[-1] == "work"
    qd.profiler.print_kernel_profiler_info("trace")
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[2:]] == ["work", "work"]
    with pytest.raises(qd.QdrunTypeError, match="mode='sum'"):
        qd.profiler.print_kernel_profiler_info("sum")
    assert qd.profiler.query_kernel_profiler_info("rest") == qd.profiler.KernelTimes("rest")
    with pytest.raises(qd.QdrunTypeError, match=r"`profiler.set_kernel_profiler_toolkit` is not available.*hardware"):
        qd.profiler.set_kernel_profiler_toolkit("cupti")


def test_without_the_option_launches_are_native_and_nothing_is_known():
    launches = {}
    for on in (False, True):
        program = qd.init(kernel_profiler=on)
        _, _, work, _ = made()
        work(1)
        launches[on] = len(program.native_launches.get(work.token, []))
    assert launches == {False: 1, True: 0}
    qd.init()
    with pytest.raises(qd.QdrunRuntimeError, match=r"profiler is off\n  do: qd.init\(kernel_profiler=True\)"):
        qd.profiler.query_kernel_profiler_info("work")
    for silent in (qd.profiler.print_kernel_profiler_info, qd.profiler.clear_kernel_profiler_info):
        with pytest.warns(RuntimeWarning, match="profiler is off"):
            silent()
