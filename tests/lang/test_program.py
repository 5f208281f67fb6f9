"""Programs: options, memory, several of them at once in threads, closing, forking, the same bits on any number of threads."""

import contextvars
import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.options import compile_choices, make_options
from qdrun.compiler.runtime.registry import devices


@pytest.fixture(autouse=True)
def no_program():
    qd.reset()
    yield
    qd.reset()


def start(**options):
    return qd.init(arch=qd.cpu, **{"offline_cache": False, **options})


@qd.kernel
def recur(x: qd.types.ndarray(dtype=qd.f64, ndim=1), y: qd.types.ndarray(dtype=qd.f64, ndim=1), n: qd.i32):
    for i in x:
        a = x[i]
        for j in range(n):
            a = qd.sin(a) * x[i] + 0.1 * j
        y[0] += a


def run_recur(size, n, seed):
    """The recurrence and its gradient in the current program."""
    x, y = qd.ndarray(qd.f64, size, needs_grad=True), qd.ndarray(qd.f64, 1, needs_grad=True)
    x.from_numpy(np.random.default_rng(seed).uniform(-1, 1, size))
    recur(x, y, n)
    y.grad.fill(1)
    recur.grad(x, y, n)
    return y.to_numpy()[0], x.grad.to_numpy()


# ---- current or not


def test_with_makes_a_program_current_and_closes_it():
    with start() as program:
        assert qd.current_program() is program
        x = qd.field(qd.f32, shape=3)
        x[0] = 1
    assert program.closed
    with pytest.raises(qd.QdrunRuntimeError, match="no program in this thread"):
        qd.current_program()
    with pytest.raises(qd.QdrunRuntimeError, match="closed"):
        x[0]


def test_the_program_around_is_current_again_after_an_inner_one():
    with start() as outer:
        x = qd.field(qd.f32, shape=3)
        with start(default_fp=qd.f64) as inner:
            assert qd.current_program() is inner
            with outer:
                x[1] = 2
            assert qd.current_program() is inner and not outer.closed
        assert inner.closed and qd.current_program() is outer and x[1] == 2
    assert outer.closed


def test_a_program_is_closed_also_after_an_error():
    with pytest.raises(ZeroDivisionError), start() as program:
        1 / 0
    assert program.closed


def test_reset_closes_and_may_be_called_at_any_time():
    program = start()
    qd.reset()
    qd.reset()
    assert program.closed
    with pytest.raises(qd.QdrunRuntimeError, match=r"qd\.init"):
        qd.field(qd.f32, shape=3)
    with pytest.raises(qd.QdrunRuntimeError, match=r"qd\.init"):
        recur(np.zeros(1), np.zeros(1), 1)


def test_what_belongs_to_a_closed_program_is_refused():
    start()
    x, a = qd.field(qd.f64, shape=3, needs_grad=True), qd.ndarray(qd.f64, 1)

    @qd.kernel
    def k():
        for i in x:
            x[i] += 1

    k()
    k()
    qd.reset()
    for use in (lambda: x[0], x.to_numpy, lambda: x.grad.fill(0), lambda: a[0], lambda: a.fill(1), k):
        with pytest.raises(qd.QdrunRuntimeError):
            use()
    start()
    for use in (lambda: x[0], lambda: recur(np.zeros(1), a, 1), k):
        with pytest.raises(qd.QdrunRuntimeError, match="closed"):
            use()
    assert run_recur(3, 2, 0)[1].shape == (3,)


def test_one_kernel_in_program_after_program():
    """A kernel at module level is compiled for each program; the launcher of a dead one is never used."""
    results = []
    for k in range(6):
        with start(default_fp=(qd.f32, qd.f64)[k % 2], cpu_max_num_threads=1 + k % 2):
            results.append(run_recur(40, 5, 0))
            results.append(run_recur(40, 5, 0))
    for value, grad in results[1:]:
        assert value == results[0][0] or abs(value - results[0][0]) < 1e-6
        np.testing.assert_allclose(grad, results[0][1], rtol=1e-6)


# ---- threads


def test_a_new_thread_has_no_program_until_it_is_given_one():
    seen = {}

    def work():
        try:
            recur(np.zeros(1), np.zeros(1), 1)
        except qd.QdrunRuntimeError as e:
            seen["error"] = str(e)
        with program:
            seen["program"] = qd.current_program()
            seen["value"] = run_recur(4, 2, 1)[0]

    with start() as program:
        recur(np.zeros(1), np.zeros(1), 1)
        recur(np.zeros(1), np.zeros(1), 1)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert "no program in this thread" in seen["error"] and "with program:" in seen["error"]
    assert seen["program"] is program and np.isfinite(seen["value"])


def worker(seed, rounds, threads):
    """A program of its own: fields, arrays, kernels of its own and the shared one, again and again; all must agree."""
    rng = np.random.default_rng(seed)
    size, n = int(rng.integers(20, 300)), int(rng.integers(2, 12))
    with start(cpu_max_num_threads=threads, default_fp=qd.f64, random_seed=seed):
        x, loss = qd.field(qd.f64, shape=size, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
        x.from_numpy(rng.uniform(-1, 1, size))

        @qd.kernel
        def own():
            for i in x:
                a = x[i]
                for _ in range(n):
                    a = a * a + x[i] * 0.5
                    a = qd.cos(a)
                loss[None] += a

        first = None
        for _ in range(rounds):
            with qd.ad.Tape(loss=loss):
                own()
            mine = (loss[None], *x.grad.to_numpy(), *run_recur(size, n, seed)[1])
            first = first or mine
            assert mine == first
    return first


def test_programs_side_by_side_in_threads_give_what_they_give_alone():
    alone = [worker(seed, 1, 1) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(worker, range(4), [25] * 4, [1, 2, 1, 2]))
    assert together == alone


@pytest.mark.slow
def test_programs_side_by_side_many_times():
    alone = [worker(seed, 1, 1) for seed in range(8)]
    for _ in range(10):
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(worker, range(8), [60] * 8, [1, 2] * 4)) == alone


def test_two_threads_launch_the_same_kernel_object_in_their_own_programs():
    """The native launcher of one program must hand the calls of the other to Python, whichever ran last."""
    barrier, out = threading.Barrier(2), {}

    def work(number):
        with start(cpu_max_num_threads=1):
            x, y = qd.ndarray(qd.f64, 8), qd.ndarray(qd.f64, 1)
            x.fill(number)
            barrier.wait()
            for _ in range(3000):
                recur(x, y, 0)
            out[number] = y[0]

    threads = [threading.Thread(target=work, args=(k,)) for k in (1, 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert out == {1: 3000 * 8, 2: 3000 * 16}


def test_tapes_of_two_programs_do_not_see_each_other():
    with start() as one:
        x, loss = (qd.field(qd.f32, shape=(), needs_grad=True) for _ in range(2))

        @qd.kernel
        def k(w: qd.f32):
            loss[None] += w * x[None]

        @qd.ad.no_grad
        def elsewhere():
            with start() as two:
                assert run_recur(3, 1, 0)[1].size == 3 and two.recorders.tape is None

        with qd.ad.Tape(loss=loss):
            k(2.0)
            elsewhere()
            with start(), pytest.raises(qd.QdrunRuntimeError, match="`recur` is launched in another program while a tape"):
                run_recur(3, 1, 0)
            assert one.recorders.tape is not None
        assert x.grad[None] == 2


def test_a_context_keeps_its_program():
    with start() as program:
        context = contextvars.copy_context()
    with start():
        assert context.run(qd.current_program) is program


# ---- options


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"default_fb": qd.f32}, KeyError, "did you mean `default_fp`?"),
        ({"nonsense_option_xyz": 1}, KeyError, "known: "),
        ({"default_fp": qd.i32}, qd.QdrunRuntimeError, "default_fp="),
        ({"default_ip": qd.i8}, qd.QdrunRuntimeError, "default_ip="),
        ({"ad_checkpoint_levels": 4}, qd.QdrunRuntimeError, "ad_checkpoint_levels=4 is not one of 1, 2, 3"),
        ({"memory_limit": -1}, qd.QdrunRuntimeError, "memory_limit=-1 is negative"),
        ({"cpu_lanes": 3}, qd.QdrunRuntimeError, "cpu_lanes=3"),
    ],
)
def test_wrong_options_are_refused_by_name(options, error, text):
    with pytest.raises(error) as caught:
        start(**options)
    assert text in str(caught.value)


NO_GPU = [("cuda", "CUDA cannot be used: ", {}), ("gpu", "qd.init: no GPU can be used: ", {"enable_fallback": False})]


@pytest.mark.parametrize("arch, text, options", NO_GPU)
def test_without_a_gpu_it_is_said_what_is_missing(arch, text, options):
    if next(b for b in devices() if b.name == "cuda").usable:
        pytest.skip("there is a GPU")
    with pytest.raises(qd.QdrunRuntimeError, match=f"{text}.*\n  do: "):
        qd.init(arch=getattr(qd, arch), **options)


def test_any_gpu_falls_back_to_the_cpu_with_a_warning_that_says_why():
    if next(b for b in devices() if b.name == "cuda").usable:
        pytest.skip("there is a GPU")
    with pytest.warns(RuntimeWarning, match="no GPU can be used: .*\n  the program runs on the CPU") as caught:
        program = qd.init(arch=qd.gpu)
    assert program.arch is qd.cpu and caught[0].filename == __file__
    said = "qd.init: cuda cannot be used: cuda: .*\n  the program runs on the CPU; .*enable_fallback=False"
    with pytest.warns(RuntimeWarning, match=said) as caught:
        program = qd.init(arch=qd.cuda, enable_fallback=True)
    assert program.arch is qd.cpu and caught[0].filename == __file__


@pytest.mark.parametrize(
    "given, text",
    [
        ("abacus", "no backend 'abacus'\n  do: give one of cpu, python, cuda"),
        ("cuda12", "no backend 'cuda12'\n  do: did you mean 'cuda'\\?"),
    ],
)
def test_an_unknown_arch_is_refused_with_what_there_is(given, text):
    with pytest.raises(qd.QdrunRuntimeError, match=text):
        qd.init(arch=given)


def test_options_of_the_peer_are_taken_and_ignored():
    assert start(fast_math=False, ad_stack_experimental_enabled=True, device_memory_GB=1).options.default_fp is qd.f32


def test_variables_of_the_environment_fill_what_is_left_out(monkeypatch):
    for name, text in [("DEBUG", "1"), ("CPU_MAX_NUM_THREADS", "1"), ("MEMORY_LIMIT", "12345678"), ("RANDOM_SEED", "9")]:
        monkeypatch.setenv(f"QD_{name}", text)
    o = start().options
    assert o.debug and o.check_out_of_bound and (o.cpu_max_num_threads, o.memory_limit, o.random_seed) == (1, 12345678, 9)
    assert start(debug=False, random_seed=3).options.random_seed == 3
    monkeypatch.setenv("QD_DEBUG", "0")
    assert not start().options.debug


@pytest.mark.parametrize("name, text", [("DEBUG", "yes please"), ("MEMORY_LIMIT", "1GB")])
def test_a_variable_that_is_no_number_is_named(monkeypatch, name, text):
    monkeypatch.setenv(f"QD_{name}", text)
    with pytest.raises(qd.QdrunRuntimeError, match=f"QD_{name}"):
        start()


# ---- memory


def test_usage_counts_by_category():
    with start() as program:
        qd.field(qd.f32, shape=100, needs_grad=True)
        qd.Vector.field(3, dtype=qd.f64, shape=10)
        a = qd.ndarray(qd.f64, (5, 5), needs_grad=True)
        program.materialize()
        usage = program.usage()
        assert usage["fields"] >= 400 + 240 and usage["gradients"] >= 400 + 200 and usage["ndarrays"] == 200
        del a
        assert "ndarrays" not in program.usage() and program.peak_bytes >= sum(program.usage().values())


def test_more_than_the_limit_is_refused_with_the_bytes_and_the_program_goes_on():
    with start(memory_limit=100_000) as program:
        a = qd.ndarray(qd.f64, 1000)
        with pytest.raises(qd.OutOfMemory, match=r"800.?000|800000"):
            qd.ndarray(qd.f64, 100_000)
        with pytest.raises(MemoryError):
            qd.ndarray(qd.f64, 12_000, needs_grad=True)
        before = program.usage()
        big = qd.field(qd.f64, shape=50_000)
        with pytest.raises(qd.OutOfMemory):
            big[0] = 1
        assert program.usage() == before
        a.fill(2)
        y = qd.ndarray(qd.f64, 1)
        with pytest.raises(qd.OutOfMemory):  # the field still waits for its place
            recur(a, y, 0)


def test_a_gradient_heap_over_the_limit_is_refused_and_a_smaller_one_fits():
    with start(memory_limit=400_000, cpu_max_num_threads=1, cpu_lanes=1) as program:
        x, y = qd.ndarray(qd.f64, 4, needs_grad=True), qd.ndarray(qd.f64, 1, needs_grad=True)
        x.fill(0.5)
        recur(x, y, 10)
        y.grad.fill(1)
        need = recur.grad.plan(x, y, 1_000_000).bytes
        with pytest.raises(qd.OutOfMemory) as caught:
            recur.grad(x, y, 1_000_000)
        assert f"{need}" in str(caught.value).replace(",", "").replace("_", "") and not x.grad.to_numpy().any()
        recur.grad(x, y, 100)
        assert x.grad.to_numpy().all() and program.usage()["adstack"] == recur.grad.plan(x, y, 100).bytes


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_the_planned_bytes_are_the_bytes_that_are_allocated(levels):
    with start(ad_checkpoint_levels=levels, cpu_max_num_threads=2) as program:
        x, y = qd.ndarray(qd.f64, 50, needs_grad=True), qd.ndarray(qd.f64, 1, needs_grad=True)
        most = 0
        for n in (3, 50, 1000, 7, 2000):
            plan = recur.grad.plan(x, y, n)
            recur.grad(x, y, n)
            most = max(most, plan.bytes)
            assert program.usage()["adstack"] == most and sum(plan.planes.values()) == plan.bytes


def test_heaps_of_two_kernels_grow_to_the_larger_of_each_plane():
    with start(cpu_max_num_threads=1) as program:
        x, y = qd.ndarray(qd.f64, 5, needs_grad=True), qd.ndarray(qd.f64, 1, needs_grad=True)
        h, g = qd.ndarray(qd.f32, 5, needs_grad=True), qd.ndarray(qd.f32, 1, needs_grad=True)

        @qd.kernel
        def narrow(x: qd.types.ndarray(dtype=qd.f32, ndim=1), y: qd.types.ndarray(dtype=qd.f32, ndim=1), n: qd.i32):
            for i in x:
                a = x[i]
                for _ in range(n):
                    a = qd.sin(a) * x[i]
                y[0] += a

        plans = []
        for kernel, args in [(recur, (x, y, 40)), (narrow, (h, g, 90)), (recur, (x, y, 10)), (narrow, (h, g, 200))]:
            plans.append(kernel.grad.plan(*args).planes)
            kernel.grad(*args)
            expected = sum(max(p.get(plane, 0) for p in plans) for plane in {k for p in plans for k in p})
            assert program.usage()["adstack"] == expected
        first = (x.grad.fill(0), y.grad.fill(1), recur.grad(x, y, 40), x.grad.to_numpy())[-1]
        with start():
            x2, y2 = qd.ndarray(qd.f64, 5, needs_grad=True), qd.ndarray(qd.f64, 1, needs_grad=True)
            y2.grad.fill(1)
            recur.grad(x2, y2, 40)
            np.testing.assert_array_equal(x2.grad.to_numpy(), first)


def test_programs_that_come_and_go_leave_no_memory_behind():
    def rss():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def one():
        with start() as program:
            x = qd.field(qd.f64, shape=1_000_000, needs_grad=True)
            x.fill(1)
            x.grad.fill(1)
        assert program.usage() == {}

    one()
    before = rss()
    for _ in range(12):
        one()
    assert rss() - before < 40e6


# ---- the same bits


def test_sums_and_gradients_have_the_same_bits_on_one_thread_and_on_two():
    results = []
    for threads in (1, 2, 2, 1):
        with start(cpu_max_num_threads=threads):
            results.append(run_recur(5000, 6, 3))
    for value, grad in results[1:]:
        assert value == results[0][0]
        np.testing.assert_array_equal(grad, results[0][1])


def test_a_loop_over_nothing_and_over_one_element():
    for threads in (1, 2):
        with start(cpu_max_num_threads=threads):
            assert run_recur(0, 3, 0)[1].size == 0
            assert run_recur(1, 0, 0)[1].tolist() == [1.0]


# ---- processes


def test_a_forked_child_can_launch_what_its_parent_launched():
    with start(cpu_max_num_threads=2):
        x = np.random.default_rng(0).uniform(-1, 1, 5000)
        y = np.zeros(1)
        recur(x, y, 3)
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            z = np.zeros(1)
            try:
                recur(x, z, 3)
                with start(cpu_max_num_threads=2):
                    recur(x, z, 3)
            finally:
                os.write(writer, z.tobytes())
                os._exit(0)
        os.close(writer)
        received = os.read(reader, 8)
        os.waitpid(child, 0)
        assert np.frombuffer(received)[0] == pytest.approx(2 * y[0], rel=1e-15)
        again = np.zeros(1)
        recur(x, again, 3)
        assert again[0] == y[0]


def test_a_process_that_ends_with_programs_open_exits_cleanly(tmp_path):
    script = tmp_path / "ends.py"
    script.write_text(
        "import threading, numpy as np, qdrun as qd\n"
        "@qd.kernel\n"
        "def k(x: qd.types.ndarray()):\n"
        "    for i in x:\n"
        "        x[i] += 1\n"
        "def work():\n"
        "    qd.init(offline_cache=False)\n"
        "    a = qd.field(qd.f32, shape=9)\n"
        "    k(np.zeros(5000))\n"
        "t = threading.Thread(target=work)\n"
        "t.start()\n"
        "work()\n"
        "t.join()\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")


def test_a_closed_program_is_not_kept_alive_by_the_kernels_that_ran_in_it():
    alive = []
    for _ in range(5):
        with start() as program:
            run_recur(10, 3, 0)
            alive.append(weakref.ref(program))
        del program
    gc.collect()
    assert sum(r() is not None for r in alive) <= 1  # the launcher of the last one


def test_a_heap_that_cannot_grow_leaves_the_smaller_one_to_the_kernels_that_use_it():
    with start(default_fp=qd.f64, memory_limit=60_000, cpu_max_num_threads=1):
        x = qd.field(qd.f64, shape=4, needs_grad=True)
        y = qd.field(qd.f64, shape=4, needs_grad=True)

        @qd.kernel
        def short():
            for i in range(4):
                v = x[i]
                for _ in range(10):
                    v = qd.sin(v)
                y[i] = v

        @qd.kernel
        def long():
            for i in range(4):
                v = x[i]
                for _ in range(100_000):
                    v = qd.sin(v)
                y[i] = v

        def gradient(kernel):
            x.grad.fill(0.0)
            y.grad.fill(1.0)
            kernel.grad()
            return x.grad.to_numpy()

        x.from_numpy(np.array([0.3, 0.5, 0.7, 0.9]))
        short()
        expect = gradient(short)
        gradient(short)  # launched natively from now on
        with pytest.raises(qd.OutOfMemory, match="`long_grad` needs an adstack heap of 800,000 bytes"):
            gradient(long)
        np.testing.assert_array_equal(gradient(short), expect)


# ---- several threads in one program


def in_threads(program, works):
    errors = []

    def run(work):
        try:
            with program:
                work()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def test_with_borrows_a_program_that_is_in_use_and_leaves_it_open():
    first = start()
    x = qd.field(qd.f64, shape=2)
    second = start()
    y = qd.field(qd.f64, shape=2)
    for _ in range(2):
        with first:
            x[0] += 1
        with second:
            y[0] += 1
            assert qd.current_program() is second
    assert not first.closed and not second.closed and qd.current_program() is second
    first.close()
    second.close()


def test_threads_that_overlap_in_one_program_leave_it_open():
    program = start()
    barrier = threading.Barrier(3)

    def work():
        for _ in range(50):
            barrier.wait()
            with program:
                recur(np.zeros(1), np.zeros(1), 1)

    in_threads(program, [work] * 3)
    assert not program.closed and qd.current_program() is program


def test_threads_in_one_program_get_their_own_results():
    """Returned numbers, temporaries between loops, failed asserts, the heap of gradients: memory that launches share."""
    program = start(default_fp=qd.f64, debug=False)

    @qd.kernel
    def count(n: qd.i32) -> qd.f64:
        s = 0.0
        for _ in range(n):
            s += 1.0
        return s

    @qd.kernel
    def spread(out: qd.types.ndarray(), n: qd.i32):
        s = 0.0
        for _ in range(n):
            s += 1.0
        for i in out:
            out[i] = s

    def counts(n):
        def work():
            out = np.zeros(3)
            for _ in range(400):
                assert count(n) == n
                spread(out, n)
                assert (out == n).all()

        return work

    def gradients(seed):
        alone = run_recur(64, 20 + seed, seed)

        def work():
            for _ in range(60):
                value, gradient = run_recur(64, 20 + seed, seed)
                assert value == alone[0] and (gradient == alone[1]).all()

        return work

    in_threads(program, [counts(1000), counts(2000), counts(777)])
    in_threads(program, [gradients(k) for k in range(3)])


def test_the_collector_may_free_ndarrays_at_any_time():
    """In the middle of an allocation, say, with the device's lock held."""
    program = start()

    class Ring:
        def __init__(self):
            self.me, self.x = self, qd.ndarray(qd.f64, 3, needs_grad=True)

    def work():
        before = gc.get_threshold()
        gc.set_threshold(1, 1, 1)
        try:
            with program:
                for k in range(300):
                    Ring()
                    program.device.owner(k)
                    program.usage()
        finally:
            gc.set_threshold(*before)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    gc.collect()
    assert not program.usage()


def test_closing_waits_for_launches_of_other_threads():
    program = start(cpu_max_num_threads=1)
    x = qd.field(qd.f64, shape=4_000_000 if program.device.on_host else 4_000)  # a device's launches end after their calls

    @qd.kernel
    def long(rounds: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(rounds):
                v = v * 1.0001 + 1.0
            x[i] = v

    long(1)
    long(1)
    begun, refused = threading.Event(), []

    def work():
        with program:
            try:
                for _ in range(1_000_000):
                    begun.set()
                    long(30)
            except qd.QdrunRuntimeError as e:
                refused.append(str(e))

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    program.close()
    thread.join()
    assert len(refused) == 1 and "closed" in refused[0]


def test_fast_math_is_part_of_the_keys_of_code(monkeypatch):
    plain, fast = make_options({}), make_options({"fast_math": True})
    assert not plain.fast_math
    assert compile_choices(plain) != compile_choices(fast)
    monkeypatch.setenv("QD_FAST_MATH", "1")
    assert make_options({}).fast_math
    start(fast_math=True)  # accepted where it changes nothing


@pytest.mark.parametrize("arch", ["cpu", "python"])
@pytest.mark.parametrize("count", [10**16, 10**20])  # more than an address space has: a machine may promise 24 TB
def test_fields_that_cannot_be_allocated_are_named_and_leave_the_program_as_it_was(arch, count):
    program = qd.init(arch=getattr(qd, arch))
    small = qd.field(qd.f64, 8)
    small.fill(1.0)
    before = dict(program.usage())
    large = qd.Vector.field(3, qd.f32, shape=(count, 2), needs_grad=True)
    qd.field(qd.i32, 5)

    @qd.kernel
    def touch():
        for i in small:
            large[i, 0][1] = 1.0

    for _ in range(2):
        with pytest.raises(qd.OutOfMemory) as caught:
            touch()
        said = str(caught.value)
        assert f"  the largest is `{large.name}` of shape ({count}, 2) and type f32: {count * 24:,} of " in said
        assert "\n  do: give it a smaller shape or type" in said
        assert dict(program.usage()) == before and small.to_numpy().tolist() == [1.0] * 8


def test_fields_without_room_for_their_gradients_are_given_back():
    program = qd.init(arch=qd.cpu, memory_limit=1000)
    x = qd.field(qd.f64, 100, needs_grad=True)
    for _ in range(2):
        with pytest.raises(
            qd.OutOfMemory, match=r"gradients needs 800 bytes; 800 are in use \(fields 800\); the limit is 1,000"
        ):
            x[0] = 1.0
        assert not any(program.usage().values())
