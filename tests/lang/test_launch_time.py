"""The predicted time of a launch: what is counted, how often loops run, and that more work is never predicted to take less time."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import qdrun as qd
from benchmarks import launch_time
from qdrun.compiler.compile.pipeline import device_input
from qdrun.compiler.passes.task_work import task_work
from qdrun.compiler.program.plans.gradient_plans import LaunchHost
from qdrun.compiler.tape.cost import GUESSED_TRIPS, GUESSED_WHILE
from qdrun.compiler.tape.launch_time import CHIPS, LaunchTime, Load, TaskTime, mean_trips, task_time

CPU, CUDA = CHIPS["cpu"], CHIPS["cuda"]
N = 1000


@pytest.fixture(autouse=True)
def program():
    return qd.init(default_fp=qd.f32, cpu_max_num_threads=2)


def counted(kernel, *args):
    """What is counted of the only task of a kernel, and what a plan may ask about the launch."""
    variant, bound = kernel.variant(args, {})
    reduced, how = device_input(variant.compiled_kernel.ir, variant.program.options)
    (task,) = reduced.tasks
    return task_work(reduced, task, how.plain), LaunchHost(bound.call, variant.owners)


def vectors(count=2, shape=N, needs_grad=True):
    return [qd.field(qd.f32, shape=shape, needs_grad=needs_grad) for _ in range(count)]


# ---- counts
def test_straight_code_is_counted_exactly():
    x, y = vectors()

    @qd.kernel
    def saxpy(a: qd.f32):
        for i in range(N):
            y[i] = a * x[i] + y[i]

    found, _ = counted(saxpy, 0.5)
    assert found.work.counts == (2, 0, 0, 2, 1), "a product and a sum, two loads, a store"
    assert (found.work.moved, found.work.atomics, found.work.loops) == (12, 0, ())
    assert found.straight and found.parallel and len(found.places) == 2 and found.wide == 0


def test_a_loop_has_counts_of_its_own_and_a_chain():
    x, y = vectors()

    @qd.kernel
    def sines(n: qd.i32):
        for i in range(N):
            v = x[i]
            for _ in range(n):
                v = qd.sin(v) / 2.0
            y[i] = v

    found, host = counted(sines, 77)
    assert found.work.counts == (0, 0, 0, 1, 1) and not found.straight
    ((loop, weight, body),) = found.work.loops
    assert (weight, body.counts, body.path) == (1, (0, 1, 1, 0, 0), (0, 1, 1, 0, 0)), "the next iteration waits for both"
    assert mean_trips(loop, found.axes, host) == 77


def test_the_arms_of_an_if_count_one_half():
    x, y = vectors()

    @qd.kernel
    def either():
        for i in range(N):
            if x[i] > 0.5:
                y[i] = qd.exp(x[i])

    found, _ = counted(either)
    simple, division, function, load, update = found.work.counts
    assert (division, function, update) == (0, 0.5, 0.5) and simple >= 1 and load >= 1 and not found.straight


def test_atomics_that_other_threads_meet_are_counted_and_sums_are_not():
    x, y = vectors()
    bins, total = qd.field(qd.i32, shape=N), qd.field(qd.f32, shape=())

    @qd.kernel
    def histogram():
        for i in range(N):
            y[bins[i]] += x[i]

    @qd.kernel
    def own():
        for i in range(N):
            y[i] += x[i]

    @qd.kernel
    def add():
        for i in range(N):
            total[None] += x[i]

    found, _ = counted(histogram)
    assert (found.work.atomics, found.work.moved, found.straight) == (1, 4 + 4 + 8, False)
    assert counted(own)[0].work.atomics == counted(add)[0].work.atomics == 0
    assert counted(own)[0].straight and not counted(add)[0].straight, "a sum is made one after the other"
    assert counted(add)[0].work.counts == (1, 0, 0, 1, 1), "the sum of each thread, and what becomes of it"


def test_the_part_in_8_bytes():
    x, y = vectors()
    z = qd.field(qd.f64, shape=N)

    @qd.kernel
    def narrow():
        for i in range(N):
            y[i] = x[i] * x[i]

    @qd.kernel
    def wide():
        for i in range(N):
            z[i] = z[i] * z[i]

    assert (counted(narrow)[0].wide, counted(wide)[0].wide) == (0, 1)


# ---- loops
def loop_of(kernel, *args):
    found, host = counted(kernel, *args)
    ((loop, _, _),) = found.work.loops
    return mean_trips(loop, found.axes, host)


def test_counts_from_arguments_fields_and_indices():
    x, y = vectors()
    count, start = qd.field(qd.i32, shape=()), qd.field(qd.i32, shape=65)
    count[None] = 31
    start.from_numpy((np.arange(65) * 5).astype(np.int32))

    @qd.kernel
    def in_a_field():
        for i in range(N):
            for _ in range(count[None]):
                y[i] += x[i]

    @qd.kernel
    def triangle():
        for i in range(N):
            for j in range(i):
                y[i] += x[j]

    @qd.kernel
    def window():
        for i in range(N - 5):
            for j in range(i, i + 5):
                y[i] += x[j]

    @qd.kernel
    def ragged():
        for i in range(64):
            for j in range(start[i], start[i + 1]):
                y[i] += x[j]

    assert loop_of(in_a_field) == 31
    assert loop_of(triangle) == pytest.approx((N - 1) / 2, rel=0.01), "the mean, not the most"
    assert loop_of(window) == 5 and loop_of(ragged) == 5


def test_what_only_running_can_tell_is_guessed():
    x, y = vectors()

    @qd.kernel
    def halves():
        for i in range(N):
            v = x[i]
            while v > 0.1:
                v *= 0.5
            y[i] = v

    @qd.kernel
    def data():
        for i in range(N):
            for _ in range(qd.cast(x[i], qd.i32)):
                y[i] += 1.0

    assert loop_of(halves) is None and loop_of(data) is None
    launch = qd.current_program().launch_time
    guessed = [launch(k, ()).tasks[0].load.alone for k in (halves, data)]
    assert guessed[0] > guessed[1] * GUESSED_WHILE / GUESSED_TRIPS / 10


# ---- formulas
def test_threads_of_a_cpu_are_used_where_there_is_work_for_them():
    small, large = (Load("t", n, alone=10.0, share=0.0) for n in (100, 100_000))
    assert task_time(small, CPU, 8).nanoseconds == CPU.start + 1000.0, "no thread is woken for a microsecond"
    assert task_time(large, CPU, 8).nanoseconds == CPU.start + 1_000_000.0 / 8
    assert task_time(replace(large, threads=1), CPU, 8).nanoseconds == CPU.start + 1_000_000.0
    lanes = task_time(replace(large, lanes=8), CPU, 1)
    assert lanes.nanoseconds == CPU.start + 1_000_000.0 / (1 + 7 * CPU.simd) and lanes.by == "work"


def test_a_gpu_takes_the_longest_of_chain_share_and_bytes():
    load = Load("t", 1e6, alone=100.0, share=0.01, moved=8, footprint=1e12)
    assert (task_time(load, CUDA).by, task_time(load, CUDA).nanoseconds) == ("work", CUDA.start + 10_000)
    assert task_time(replace(load, wide=1.0), CUDA).nanoseconds == CUDA.start + 10_000 * CUDA.wide
    few = task_time(replace(load, iterations=10.0, alone=5e4), CUDA)
    assert (few.by, few.nanoseconds) == ("chain", CUDA.start + 5e4), "ten iterations take as long as one"
    rounds = task_time(replace(load, iterations=CUDA.resident + 1.0, alone=5e5), CUDA)
    assert rounds.nanoseconds == CUDA.start + 2 * 5e5
    bytes_ = task_time(replace(load, moved=4200.0), CUDA)
    assert (bytes_.by, bytes_.nanoseconds) == ("memory", CUDA.start + 1e6 * 4200 / CUDA.memory)
    assert task_time(replace(load, moved=4200.0, footprint=1e6), CUDA).by == "work", "no more than the arrays hold"


def test_programs_side_by_side_gain_where_the_device_is_not_full():
    small, full = TaskTime("a", 1000, 1e6), TaskTime("b", 1e6, 1e6)
    launch = LaunchTime((small, full))
    assert launch.seconds == pytest.approx(2e-3)
    assert launch.beside(3, 4.5, 270_336) == pytest.approx(1e-3 / 3 + 1e-3)
    assert launch.beside(16, 4.5, 270_336) == pytest.approx(1e-3 / 4.5 + 1e-3)
    assert launch.beside(1, 4.5, 270_336) == launch.seconds


# ---- predictions
def chains(n):
    """A kernel over n elements that keeps states."""
    x, y = vectors(shape=n)

    @qd.kernel
    def chain(k: qd.i32):
        for i in range(n):
            v = x[i]
            for _ in range(k):
                v = qd.sin(v) + 0.1
            y[i] = v

    return chain


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("arch", ["cpu", "cuda"])
def test_more_work_is_never_predicted_to_take_less(arch, gradient):
    seconds = {}
    for n in (1, 30, 1000, 70_000, 300_000, 1_000_000):
        program, chain = qd.current_program(), chains(n)
        for k in (1, 20, 500, 4000):
            seconds[n, k] = program.launch_time(chain, (k,), gradient=gradient, arch=arch).seconds
    for (n, k), (m, j) in itertools.product(seconds, repeat=2):
        if n <= m and k <= j:
            assert seconds[n, k] <= seconds[m, j], ((n, k), (m, j))
    assert seconds[1_000_000, 4000] > 100 * seconds[30, 20]


def test_a_gradient_takes_longer_than_its_kernel_and_a_small_budget_takes_longer_still():
    chain, program = chains(1000), qd.current_program()
    for arch in ("cpu", "cuda"):
        forward = program.launch_time(chain, (500,), arch=arch).seconds
        usual = program.launch_time(chain, (500,), gradient=True, arch=arch).seconds
        assert forward < usual
    least = chain.grad.plan(500).bytes // 10
    assert (
        program.launch_time(chain, (500,), gradient=True, budget=least).seconds
        > program.launch_time(chain, (500,), gradient=True).seconds
    )


def test_a_small_launch_is_for_the_cpu_and_a_large_one_for_the_gpu():
    program = qd.current_program()
    small, large = chains(16), chains(200_000)
    for gradient in (False, True):
        times = [program.launch_time(small, (4,), gradient=gradient, arch=arch).seconds for arch in ("cpu", "cuda")]
        assert times[0] < times[1]
        times = [program.launch_time(large, (2000,), gradient=gradient, arch=arch).seconds for arch in ("cpu", "cuda")]
        assert times[0] > 10 * times[1]


def test_nothing_is_compiled_for_a_prediction():
    chain = chains(100)
    qd.current_program().launch_time(chain, (50,), gradient=True, arch="cuda")
    qd.current_program().launch_time(chain, (50,))
    (variant,) = chain.variants().values()
    assert variant.compiled_kernel.forward.made is None and not variant.compiled_kernel.reversed


def test_methods_are_predicted_too():
    @qd.data_oriented
    class Box:
        def __init__(self):
            self.x, self.y = vectors()

        @qd.kernel
        def double(self):
            for i in range(N):
                self.y[i] = 2.0 * self.x[i]

    (task,) = qd.current_program().launch_time(Box().double, ()).tasks
    assert (task.iterations, task.load.moved, task.load.footprint) == (N, 8, 8 * N)


# ---- the benchmark that compares predictions with a clock
class Queue:
    """A device whose launches return at once, and the clock beside it."""

    def __init__(self, seconds):
        self.seconds, self.now, self.end, self.launches = seconds, 0.0, 0.0, 0

    def launch(self):
        self.launches += 1
        self.now += 4e-6
        self.end = max(self.end, self.now) + self.seconds

    def sync(self):
        self.now = max(self.end, self.now)


@pytest.mark.parametrize("seconds", [1e-6, 3e-5, 1e-3, 0.02, 1.0])
def test_launches_that_return_at_once_are_measured_in_time(seconds, monkeypatch):
    queue = Queue(seconds)
    monkeypatch.setattr(launch_time.qd, "sync", queue.sync)
    monkeypatch.setattr(launch_time.time, "perf_counter", lambda: queue.now)
    found = launch_time.seconds(queue.launch, "cuda", 5)
    assert found == pytest.approx(max(seconds, 4e-6), rel=0.1)
    assert queue.now < 0.1 + 10 * seconds and queue.launches < 10_000


def test_lines_are_printed_when_they_are_known_and_what_there_is_no_time_for_is_named(monkeypatch, capsys):
    times = iter([0.0, 1.0, 2.0, 56.0, 57.0])
    monkeypatch.setattr(launch_time.time, "perf_counter", lambda: next(times))
    clock = launch_time.Clock(55.0)
    assert [clock.over(name) for name in ("a", "b", "c", "d")] == [False, False, True, True] and clock.left_out == ["c", "d"]

    def rows():
        for k in range(3):
            yield {"kernel": f"k{k}", "what": "forward", "predicted": 2e-6, "measured": 1e-6, "tasks": []}
            assert f"k{k}" in capsys.readouterr().out

    assert len(launch_time.shown(rows(), as_json=False)) == 3
