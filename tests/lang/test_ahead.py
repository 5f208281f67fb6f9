"""Compiling ahead: the same code as one kernel after another, errors at the caller, nothing left behind."""

import gc
import importlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.compile import ahead
from qdrun.compiler.compile.cache import CACHE
from qdrun.compiler.ir.process import while_compiling
from qdrun.compiler.runtime import jit


@pytest.fixture(params=[1, 3], ids=["one processor", "several"])
def processors(request, monkeypatch):
    """Work runs here and now, or on threads, whatever this machine has."""
    monkeypatch.setattr(ahead, "processors", lambda: request.param)
    monkeypatch.setattr(ahead, "AHEAD", ahead.Ahead())
    return request.param


def make():
    x = qd.field(qd.f64, shape=16, needs_grad=True)
    y = qd.field(qd.f64, shape=16, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    x.from_numpy(np.linspace(0.1, 1.6, 16))

    @qd.kernel
    def first(k: qd.f64):
        for i in x:
            y[i] = qd.sin(x[i]) * k

    @qd.kernel
    def second():
        for i in y:
            loss[None] += y[i] * y[i]

    return x, y, loss, first, second


def test_compile_makes_kernels_and_gradients_ready(processors):
    with qd.init(arch=qd.cpu, offline_cache=False):
        x, _, loss, first, second = make()
        qd.compile((first, 2.0), second, gradients=True)
        made = [v for kernel in (first, second) for v in kernel.variants().values()]
        assert len(made) == 2 and all(v.compiled_kernel.reversed for v in made)
        with qd.ad.Tape(loss=loss):
            first(2.0)
            second()
        values = np.linspace(0.1, 1.6, 16)
        np.testing.assert_allclose(x.grad.to_numpy(), 8.0 * np.sin(values) * np.cos(values), rtol=1e-12)


def test_gradients_and_methods_can_be_named(processors):
    @qd.data_oriented
    class Body:
        def __init__(self):
            self.x = qd.field(qd.f64, shape=4, needs_grad=True)
            self.y = qd.field(qd.f64, shape=4, needs_grad=True)

        @qd.kernel
        def step(self, k: qd.f64):
            for i in self.x:
                self.y[i] = self.x[i] * k

    with qd.init(arch=qd.cpu, offline_cache=False):
        body = Body()
        qd.compile((body.step.grad, 3.0))
        (variant,) = type(body).step.variants().values()
        assert variant.compiled_kernel.reversed
        body.y.grad.fill(1.0)
        body.step.grad(3.0)
        np.testing.assert_array_equal(body.x.grad.to_numpy(), np.full(4, 3.0))


def test_errors_come_to_the_caller(processors):
    with qd.init(arch=qd.cpu, offline_cache=False):
        x, _, _, first, _ = make()

        @qd.kernel
        def wrong():
            for i in x:
                x[i] = undefined_name  # noqa: F821

        @qd.kernel
        def refused():
            qd.loop_config(serialize=True)
            for _ in range(2):
                for i in range(16):
                    x[i] = x[i] * x[i]

        with pytest.raises(qd.QdrunNameError, match="undefined_name"):
            qd.compile((first, 1.0), wrong)
        with pytest.raises(qd.DataAccessError, match="overwrites"):
            qd.compile(refused, gradients=True)
        with pytest.raises(qd.QdrunTypeError, match="takes kernels and tuples"):
            qd.compile(3)
        first(1.0)


def test_kernels_without_a_gradient_are_no_error(processors):
    with qd.init(arch=qd.cpu, offline_cache=False):
        n = qd.field(qd.i32, shape=4)

        @qd.kernel
        def count():
            for i in n:
                n[i] += 1

        qd.compile(count, gradients=True)
        count()
        assert n.to_numpy().tolist() == [1, 1, 1, 1]


def test_a_tape_begins_its_gradients_before_it_ends(monkeypatch):
    monkeypatch.setattr(ahead, "processors", lambda: 2)
    begun = []
    pool = ahead.Ahead()
    monkeypatch.setattr(pool, "submit", begun.append)
    kernels = importlib.import_module("qdrun.compiler.program.variant")
    monkeypatch.setattr(kernels, "AHEAD", pool)
    CACHE.clear()
    with qd.init(arch=qd.cpu, offline_cache=False):
        _, _, loss, first, second = make()
        with qd.ad.Tape(loss=loss):
            first(1.0)
            second()
            assert len(begun) == 2, "the gradients of new kernels are compiled while the tape records"
        assert all(v.compiled_kernel.reversed for kernel in (first, second) for v in kernel.variants().values())
        begun.clear()
        with qd.ad.Tape(loss=loss):
            first(1.0)
            second()
        assert not begun


def test_a_gradient_that_is_refused_on_a_thread_is_refused_at_its_launch():
    with qd.init(arch=qd.cpu, offline_cache=False):
        x, _, loss, _, _ = make()

        @qd.kernel
        def bad():
            qd.loop_config(serialize=True)
            for _ in range(2):
                for i in range(16):
                    x[i] = x[i] * x[i]

        with pytest.raises(qd.DataAccessError, match="overwrites"), qd.ad.Tape(loss=loss):
            bad()


def module(k):
    lines = "\n".join(f"  %v{n} = fadd double %v{n - 1}, {float(n % 7 + k)}" for n in range(1, 400))
    return f"define double @f(double %v0) {{\n{lines}\n  ret double %v399\n}}\n"


def test_threads_compile_the_same_bytes_as_one():
    """LLVM runs outside llvmlite's lock: each thread has a context of its own."""
    texts = [module(k) for k in range(8)]
    alone = [jit.compile_text(t, "f") for t in texts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(lambda t: jit.compile_text(t, "f"), texts)) == alone


def test_invalid_text_is_refused_in_every_thread():
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(jit.compile_text, "define i32 @f() { ret i64 0 }", "f") for _ in range(6)]
        for f in futures:
            with pytest.raises(qd.QdrunRuntimeError, match="invalid LLVM text"):
                f.result()


def test_the_collector_is_paused_once_for_all_threads():
    inside, leave = threading.Barrier(3), threading.Event()

    def work():
        with while_compiling():
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    inside.wait()
    assert not gc.isenabled()
    leave.set()
    for t in threads:
        t.join()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_fork_waits_for_what_is_being_compiled(monkeypatch):
    monkeypatch.setattr(ahead, "processors", lambda: 2)
    done = []
    release = threading.Event()

    def slow():
        release.wait(60)
        done.append(1)

    assert ahead.AHEAD.submit(slow) is not None
    threading.Timer(0.05, release.set).start()
    child = os.fork()
    if child == 0:
        os._exit(0 if ahead.AHEAD._pool is None and done else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert done == [1]
