"""Several threads of one process: one specialisation for each call, lists that grow while they are read, forks while others compile."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.ir import threads
from qdrun.compiler.program import variant as variants

COMPILER = Path(__file__).parents[2] / "compiler"
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def at_once(count, work):
    """The results of some threads that begin together, each in the current program."""
    program, begin = qd.current_program(), threading.Barrier(count)

    def one(k):
        with program:
            begin.wait()
            return work(k)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def in_child(work, seconds=20):
    """The exit status of a forked child that does some work; one that hangs is ended by a signal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        try:
            status = 0 if work() else 1
        except BaseException:
            status = 2
        os._exit(status)
    return os.waitpid(child, 0)[1]


def test_threads_that_make_the_same_call_at_once_share_one_specialisation(monkeypatch):
    made, begin = [], variants.Variant.__init__

    def slowly(self, *arguments):
        made.append(self)
        threading.Event().wait(0.02)
        begin(self, *arguments)

    monkeypatch.setattr(variants.Variant, "__init__", slowly)

    @qd.kernel
    def fill(out: qd.types.ndarray(), c: qd.f64):
        for i in out:
            out[i] = c * i

    with qd.init(arch=qd.cpu, offline_cache=False) as program:
        outs = np.zeros((4, 5))
        at_once(4, lambda k: fill(outs[k], float(k)))
        assert len(made) == len(fill.variants()) == 1
        assert outs.tolist() == [[k * i for i in range(5)] for k in range(4)]
        assert program.usage()["context"] == sum(v.executable.held()["context"] for v in made)


def test_programs_may_be_opened_while_the_gate_of_a_device_is_closed():
    living, stop = threads.Living(), threading.Event()

    class Thing:
        pass

    def grow():
        while not stop.is_set():
            for _ in range(200):
                living.add(Thing())

    kept = [Thing() for _ in range(500)]
    for one in kept:
        living.add(one)
    other = threading.Thread(target=grow)
    other.start()
    try:
        for _ in range(300):
            assert len(list(living)) >= 500
    finally:
        stop.set()
        other.join()
    assert set(kept) <= set(living) and all(x in living for x in kept)


@needs_fork
def test_a_child_has_every_lock_anew_whatever_threads_of_its_parent_held():
    """All locks of the compiler are held by another thread when the process forks; the child compiles, plans and launches."""

    @qd.kernel
    def power(x: qd.types.ndarray(), y: qd.types.ndarray(), n: qd.i32):
        for i in x:
            v = 1.0
            for _ in range(n):
                v = v * x[i]
            y[i] = v

    def work(x):
        xs, ys = (qd.ndarray(qd.f64, shape=3, needs_grad=True) for _ in range(2))
        xs.from_numpy(x)
        ys.grad.fill(1.0)
        power(xs, ys, 3)
        power.grad(xs, ys, 3)
        return bool(np.allclose(ys.to_numpy(), x**3) and np.allclose(xs.grad.to_numpy(), 3 * x**2))

    x = np.random.default_rng().uniform(0.5, 1.5, 3)
    with qd.init(arch=qd.cpu, offline_cache=False, cpu_max_num_threads=1):
        power(np.zeros(2), np.zeros(2), 1)
        held, over = threading.Event(), threading.Event()

        def hold():
            owners = [r() for r in threads._locks.keyrefs()]
            locks = [getattr(o, name) for o in owners if o is not None for name in threads._locks[o] if hasattr(o, name)]
            for one in locks:
                one.acquire()
            held.set()
            over.wait()
            for one in reversed(locks):
                one.release()

        gc.collect()  # a destructor that the collector calls in this thread would wait for the other one
        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        try:
            status = in_child(lambda: work(x))
        finally:
            over.set()
            holder.join()
        assert status == 0 and work(x)


COLLECTING_FORK = """
import gc, os, signal, threading

class Locked:
    def __init__(self):
        self.lock, self.itself = threads.new_lock(self, "lock"), self
    def __del__(self):
        with self.lock:
            pass

def litter():
    kept.clear()  # what is left is a cycle, which only the collector frees

def allocate():
    signal.alarm(20)
    [[] for _ in range(100_000)]

os.register_at_fork(before=litter, after_in_child=allocate)  # earlier than the compiler's: the last one before, the first one after
from qdrun.compiler.ir import threads

kept, held, over = [Locked()], threading.Event(), threading.Event()

def hold(lock):
    with lock:
        held.set()
        over.wait()

holder = threading.Thread(target=hold, args=(kept[0].lock,))
holder.start()
held.wait()
gc.collect()
child = os.fork()
if child == 0:
    os._exit(0 if gc.isenabled() else 1)
status = os.waitpid(child, 0)[1]
over.set()
holder.join()
gc.disable()
if os.fork() == 0:
    os._exit(0)
os.wait()
print(status, gc.isenabled())
"""


@needs_fork
def test_the_collector_rests_in_a_child_until_its_locks_are_open(tmp_path):
    path = tmp_path / "fork.py"
    path.write_text(COLLECTING_FORK)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["0", "False"], done.stderr


@needs_fork
@pytest.mark.slow
def test_children_forked_while_other_threads_compile_can_compile():
    stop = threading.Event()

    def make():
        @qd.kernel
        def k(x: qd.types.ndarray(), c: qd.template()):
            for i in x:
                x[i] += c

        return k

    shared = make()

    def compiling(_):
        with qd.init(arch=qd.cpu, offline_cache=False, cpu_max_num_threads=1):
            n = 0
            while not stop.is_set():
                n += 1
                shared(np.zeros(2), n)

    def child():
        with qd.init(arch=qd.cpu, offline_cache=False, cpu_max_num_threads=1):
            x = np.zeros(2)
            shared(x, -1)
            make()(x, -2)
            return x.tolist() == [-3, -3]

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(compiling, k) for k in range(2)]
        try:
            assert [in_child(child) for _ in range(20)] == [0] * 20
        finally:
            stop.set()
        for run in runs:
            run.result()


def test_every_lock_of_the_compiler_is_one_that_a_fork_makes_anew():
    found = [
        f"{path.name}:{n}"
        for path in COMPILER.rglob("*.py")
        if path.name not in ("threads.py", "blocks.py")  # a block's threads are of a device, which is lost after a fork
        for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"threading\.(R?Lock|Condition|Semaphore)\(|@.*cached_property|WeakSet", line)
    ]
    assert found == [], "use new_lock, Turns, once and Living of compiler/ir/threads.py"


LAUNCH = """
import sys
import numpy as np
import qdrun as qd

@qd.kernel
def k(x: qd.types.ndarray()):
    for i in x:
        x[i] += 1.0

qd.init(arch=qd.cpu)
x, before = np.zeros(2), {name for name in sys.modules if name.startswith("numpy")}
k(x)
assert x.tolist() == [1.0, 1.0]
print(sorted({name for name in sys.modules if name.startswith("numpy")} - before))
try:
    k(np.ma.array([1.0, 2.0], mask=[0, 1]))
except qd.QdrunTypeError as e:
    print(e)
"""


def test_a_launch_with_a_numpy_array_imports_nothing_of_numpy(tmp_path):
    """A child that is forked while another thread imports a module inherits the module's lock, which nothing opens there."""
    path = tmp_path / "launch.py"
    path.write_text(LAUNCH)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    imported, refusal = done.stdout.split("\n", 1)
    assert imported == "[]" and "a masked array has no place for its mask" in refusal
