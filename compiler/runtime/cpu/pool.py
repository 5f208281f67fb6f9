"""The thread pool: one per process for each number of threads that a program asks for (nearly always one).

Records are never freed and never move: compiled code and idle threads hold their addresses until the process ends. The caller of a
parallel loop is worker 0; a pool of n threads starts n - 1 more, with its first loop, in native code (``pool_ir``).
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from ...ir.threads import new_lock
from .. import jit
from ..cache import load_cached
from . import pool_ir

SPIN_NS = 150_000  # waking a sleeping thread costs 25-60 us; a loop usually follows the last one sooner than this
_STACK_BYTES = 8 << 20
_FAULTS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP")
_NEEDED = ("pthread_create", "pthread_cond_wait", "pthread_sigmask", "sched_yield", "clock_gettime")

_lock = new_lock(sys.modules[__name__], "_lock")
_pools: dict[int, ThreadPool] = {}
_code: jit.LoadedCode | None = None


@dataclass(frozen=True, slots=True)
class ThreadPool:
    """``address`` goes into word 1 of a context; ``workers`` is how many rows a per-worker heap needs."""

    address: int
    workers: int
    _memory: ctypes.Array[ctypes.c_char]


def threads_available() -> int:
    """The number of threads: ``QDRUN_NUM_THREADS``, else the CPUs of this process, within the container's CPU quota.

    Raises:
        ValueError: ``QDRUN_NUM_THREADS`` is no positive number.
    """
    wanted = os.environ.get("QDRUN_NUM_THREADS", "").strip()
    if wanted:
        if not wanted.isdigit() or int(wanted) < 1:
            raise ValueError(f"QDRUN_NUM_THREADS is {wanted!r}; it must be a whole number of at least 1")
        return int(wanted)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota()
    return max(1, min(cpus, math.ceil(quota)) if quota else cpus)


def _cpu_quota(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """CPUs granted by control groups (both versions): the least along the path from this process's group to the root."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            quotas.append(_quota_of(folder))
            if folder == base:
                break
    found = [q for q in quotas if q]
    return min(found, default=None)


def _quota_of(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        elif (folder / "cpu.cfs_quota_us").exists():
            quota, period = ((folder / f"cpu.cfs_{x}_us").read_text() for x in ("quota", "period"))
        else:
            return None
        return int(quota) / int(period) if quota.strip() != "max" and int(quota) > 0 else None
    except (OSError, ValueError):
        return None  # a file that this kernel writes in another form limits nothing that we know of


def missing() -> str | None:
    """Why parallel loops run on one thread on this platform, or None when they run on several."""
    if os.name != "posix":
        return "this platform has no POSIX threads, so parallel loops run on one thread"
    lacking = [name for name in _NEEDED if not hasattr(jit.libc(), name)]
    return f"the C library lacks {', '.join(lacking)}, so parallel loops run on one thread" if lacking else None


def parallel_for_addresses() -> dict[str, int]:
    """The addresses of the functions that compiled kernels import, by name."""
    with _lock:
        return dict(_load().addresses)


def get_pool(threads: int | None = None) -> ThreadPool:
    """The process's pool with that many threads (all that are available when None). Threads start with its first loop."""
    count = threads_available() if threads is None else threads
    if count < 1:
        raise ValueError(f"a pool needs at least one thread, not {count}")
    with _lock:
        if count not in _pools:
            reason = missing()
            if reason and count > 1:
                warnings.warn(reason, RuntimeWarning, stacklevel=2)
                count = 1
            _load()
            if count not in _pools:
                _pools[count] = _create(count)
        return _pools[count]


def _load() -> jit.LoadedCode:
    """The pool's code, compiled once per process (the lock is held)."""
    global _code
    if _code is None:
        if missing():
            made = pool_ir.serial_module()
        else:
            architecture = jit.host().triple.split("-")[0]
            made = pool_ir.pool_module(architecture, time.CLOCK_MONOTONIC, int(signal.SIG_SETMASK))
        _code, _ = load_cached(made.text, "thread pool", list(made.exports), {})
        _code.make_immortal()
    return _code


def _create(threads: int) -> ThreadPool:
    memory = ctypes.create_string_buffer(pool_ir.RECORD_BYTES + 128)
    jit.keep_for_ever(memory)
    pool = ThreadPool((ctypes.addressof(memory) + 127) & ~127, threads, memory)
    _reset(pool)
    return pool


def _reset(pool: ThreadPool) -> None:
    """Write the record of a pool without threads: no job, no sleeping worker, unlocked locks."""
    ctypes.memset(pool.address, 0, pool_ir.RECORD_BYTES)

    def field(offset: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(pool.address + offset)

    ctypes.c_int64.from_address(pool.address + pool_ir.THREADS).value = pool.workers
    ctypes.c_int64.from_address(pool.address + pool_ir.SPIN_NS).value = SPIN_NS
    if missing():
        return
    libc = jit.libc()
    libc.pthread_mutex_init(field(pool_ir.MUTEX), None)
    libc.pthread_cond_init(field(pool_ir.COND), None)
    libc.pthread_attr_init(field(pool_ir.ATTR))
    libc.pthread_attr_setstacksize(field(pool_ir.ATTR), ctypes.c_size_t(_STACK_BYTES))
    libc.sigfillset(field(pool_ir.MASK))
    for name in _FAULTS:  # a fault in a kernel must still reach faulthandler
        libc.sigdelset(field(pool_ir.MASK), int(getattr(signal, name)))


def _after_fork() -> None:
    """The child has none of the parent's pool threads: every pool starts anew, at the address that contexts hold."""
    for pool in _pools.values():
        _reset(pool)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
