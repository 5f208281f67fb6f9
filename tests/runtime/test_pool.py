import ctypes
import os
import threading
from pathlib import Path

import pytest

from qdrun.compiler.runtime.cpu import pool

from .helpers_runtime import load_bodies, parallel_for, parallel_for_up_to, run_python

FORK = """
import ctypes, os, sys
sys.path.insert(0, {folder!r})
from tests.runtime.helpers_runtime import *
code, run, p = load_bodies(), parallel_for(), pool.get_pool(4)
buffer = (ctypes.c_int64 * 10000)()
def go(): run(p.address, code.addresses["count"], ctypes.addressof(buffer), 10000, 7)
for _ in range(200): go()
children = []
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        for _ in range(200): go()
        own = os.listdir("/proc/self/task")
        os._exit(0 if set(buffer) == {{400}} and len(own) == 4 else 1)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
for _ in range(200): go()
assert set(buffer) == {{400}}
print("fine")
"""


@pytest.fixture(scope="module")
def code():
    return load_bodies()


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("n, chunk", [(1, 1), (10, 3), (1000, 1), (4096, 64), (99991, 1009), (5, 100)])
def test_every_iteration_runs_exactly_once(code, threads, n, chunk):
    buffer, run, p = (ctypes.c_int64 * n)(), parallel_for(), pool.get_pool(threads)
    for _ in range(20):
        run(p.address, code.addresses["count"], ctypes.addressof(buffer), n, chunk)
    assert set(buffer) == {20}


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [0, -1, -1000])
def test_no_iterations_call_nothing(code, threads, n):
    buffer = (ctypes.c_int64 * 4)()  # the body counts its first iteration before it looks for the end
    parallel_for()(pool.get_pool(threads).address, code.addresses["count"], ctypes.addressof(buffer), n, 4)
    assert set(buffer) == {0}


@pytest.mark.parametrize("threads", [1, 2, 5, 12])
def test_worker_numbers_are_in_range_and_exclusive_and_chunks_start_at_multiples(code, threads):
    frame, run, p = (ctypes.c_int64 * 64)(threads, 0, 3), parallel_for(), pool.get_pool(threads)
    for _ in range(300):
        run(p.address, code.addresses["exclusive"], ctypes.addressof(frame), 1000, 3)
    assert frame[1] == 0


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_a_limited_job_is_run_by_the_workers_of_the_lowest_numbers(code, limit):
    frame, p, run, limited = (ctypes.c_int64 * 64)(min(limit, 5), 0, 3), pool.get_pool(5), parallel_for(), parallel_for_up_to()
    everybody = (ctypes.c_int64 * 64)(5, 0, 3)
    buffer = (ctypes.c_int64 * 1000)()
    for _ in range(100):  # jobs of all workers in between: who sits out one must not miss the next
        limited(p.address, code.addresses["exclusive"], ctypes.addressof(frame), 1000, 3, limit)
        run(p.address, code.addresses["exclusive"], ctypes.addressof(everybody), 1000, 3)
        limited(p.address, code.addresses["count"], ctypes.addressof(buffer), 1000, 3, limit)
    assert frame[1] == 0 and everybody[1] == 0 and set(buffer) == {100}


def test_a_loop_inside_a_loop_runs_in_its_caller(code):
    p, inner = pool.get_pool(4), (ctypes.c_int64 * 1000)()
    frame = (ctypes.c_int64 * 2)(p.address, ctypes.addressof(inner))
    for _ in range(50):
        parallel_for()(p.address, code.addresses["nested"], ctypes.addressof(frame), 1000, 10)
    assert set(inner) == {50}


def test_two_python_threads_share_a_pool(code):
    run, p = parallel_for(), pool.get_pool(3)
    buffers = [(ctypes.c_int64 * 5000)() for _ in range(4)]

    def work(buffer):
        for _ in range(300):
            run(p.address, code.addresses["count"], ctypes.addressof(buffer), 5000, 13)

    threads = [threading.Thread(target=work, args=(b,)) for b in buffers]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(set(b) == {300} for b in buffers)


@pytest.mark.skipif(not hasattr(os, "fork") or not Path("/proc/self/task").exists(), reason="needs fork and /proc")
def test_a_forked_child_gets_its_own_threads_and_the_parent_keeps_its():
    assert run_python(FORK.format(folder=str(Path(__file__).parents[2]))) == "fine\n"


def test_the_same_number_of_threads_is_the_same_pool():
    assert pool.get_pool(3) is pool.get_pool(3)
    assert pool.get_pool(2) is not pool.get_pool(3)
    assert pool.get_pool(3).workers == 3


def test_the_environment_sets_the_number_of_threads(monkeypatch):
    monkeypatch.setenv("QDRUN_NUM_THREADS", "5")
    assert pool.threads_available() == 5
    monkeypatch.setenv("QDRUN_NUM_THREADS", "none")
    with pytest.raises(ValueError, match="QDRUN_NUM_THREADS"):
        pool.threads_available()
    with pytest.raises(ValueError, match="at least one"):
        pool.get_pool(0)


def test_the_tightest_cpu_quota_of_the_group_and_its_parents_counts(tmp_path):
    group = tmp_path / "cg" / "a" / "b"
    group.mkdir(parents=True)
    (tmp_path / "member").write_text("0::/a/b\n")
    assert pool._cpu_quota(tmp_path / "cg", tmp_path / "member") is None
    (group / "cpu.max").write_text("max 100000\n")
    (group.parent / "cpu.max").write_text("150000 100000\n")
    assert pool._cpu_quota(tmp_path / "cg", tmp_path / "member") == 1.5
    assert pool._cpu_quota(tmp_path / "cg", tmp_path / "nothing") is None


def test_a_quota_of_the_first_version_of_control_groups_counts(tmp_path):
    group = tmp_path / "cg" / "cpu" / "job"
    group.mkdir(parents=True)
    (tmp_path / "member").write_text("5:memory:/x\n4:cpu,cpuacct:/job\n")
    (group / "cpu.cfs_quota_us").write_text("200000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert pool._cpu_quota(tmp_path / "cg", tmp_path / "member") == 2


def test_a_process_with_idle_and_busy_threads_exits_cleanly():
    run_python(
        "from qdrun.compiler.runtime.cpu.pool import get_pool, parallel_for_addresses; get_pool(4); parallel_for_addresses()"
    )
