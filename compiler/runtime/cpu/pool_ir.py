"""The native code of the thread pool. ``pool.py`` owns the records and says how many threads there are.

The protocol. ``state`` is ``epoch << 32 | active``; an odd epoch is open. The caller takes ``busy``, writes the job, adds one epoch
(open), wakes sleepers if there are any, takes chunks itself until none is left, adds one epoch (closed) and waits until ``active``
is 0. A worker that sees a new odd epoch joins with ``cmpxchg state, state + 1``, takes chunks, and leaves with ``state - 1``. A
closed job cannot be joined, so the caller never waits for a thread that has not started. Before it sleeps a worker counts itself in
``sleepers`` and looks at ``state`` once more; the caller changes ``state`` first and reads ``sleepers`` after: one of them sees the other.

A job may be limited to the workers of a number below ``JOB_LIMIT`` (the caller is number 0): the others see it and do not join. The limit
is written before the epoch opens; a worker that reads a later job's limit finds, when it joins, that its epoch is over.

In a job whose chunks add in order (``qd_parallel_for_in_order``), a chunk waits for the one before. If another process has the core of
that one, all wait. So a chunk that waits for long sets ``JOB_ALONE``: the workers leave the job to the caller, and until ``ALONE_UNTIL``
such jobs run on their callers alone.

Threads start with the first job, in native code: a forked child, whose record was reset, gets new ones the same way.
"""

from __future__ import annotations

from ...codegen.abi import ALL_THREADS, LOG_CAME, LOG_COUNT, LOG_HEAD
from ...codegen.builder import I64, Builder, NativeModule, Ptr, Variable, external, function

# Byte offsets in a pool's record. What different threads write often lies on different cache lines (128: a pair on x86, one on Apple).
STATE, NEXT, JOB_FN, JOB_FRAME, JOB_N, JOB_CHUNK, JOB_LIMIT, JOB_ALONE, ALONE_UNTIL = 0, 128, 256, 264, 272, 280, 288, 296, 304
SLEEPERS, NUMBERS, MUTEX, COND = 384, 388, 448, 512
BUSY, STARTED, THREADS, SPIN_NS, ATTR, MASK, OLD_MASK = 640, 644, 648, 656, 672, 768, 896
RECORD_BYTES = 1024

_EPOCH, _ACTIVE_MASK = 1 << 32, (1 << 32) - 1
_SPINS = 64
"""Turns of a waiting loop between two calls of ``sched_yield``."""
_LONG_NS, _ALONE_NS = 50_000, 50_000_000
"""A chunk that waits longer than the first has met another process. For the second such loops run alone then."""
_NONE, _X86, _ARM = -1, 1, 2
_PROCESSORS = {"x86_64": _X86, "aarch64": _ARM, "arm64": _ARM}
"""By the first part of their triple."""

_SHORT = "noinline optnone"
"""Of functions that run once for a chunk, or wait: LLVM takes a third of the time, and a chunk microseconds."""

_x86_pause = external("llvm.x86.sse2.pause", "void")
_arm_hint = external("llvm.aarch64.hint", "void", "i32")
_mutex_lock = external("pthread_mutex_lock", "i32", "ptr")
_mutex_unlock = external("pthread_mutex_unlock", "i32", "ptr")
_cond_wait = external("pthread_cond_wait", "i32", "ptr", "ptr")
_cond_broadcast = external("pthread_cond_broadcast", "i32", "ptr")
_create = external("pthread_create", "i32", "ptr", "ptr", "ptr", "ptr")
_detach = external("pthread_detach", "i32", "ptr")
_sigmask = external("pthread_sigmask", "i32", "i32", "ptr", "ptr")
_sched_yield = external("sched_yield", "i32")
_usleep = external("usleep", "i32", "i32")
_clock_gettime = external("clock_gettime", "i32", "i32", "ptr")


@function("void", attributes=_SHORT)
def serial(f: Builder, fn: Ptr, frame: Ptr, n: I64, chunk: I64) -> None:
    """Run every chunk in the caller, as worker 0: one after the other, as reductions keep a partial result per chunk."""
    begin = f.var(0)
    with f.loop():
        here = begin.value
        f.leave(unless=here < n)
        after = here + chunk
        f.call_address(fn, "void", frame, here, f.min(after, n), 0)
        begin.value = after


@function("i64", attributes=_SHORT)
def now(f: Builder) -> None:
    """Nanoseconds of the monotonic clock."""
    time = f.stack(2)
    f.call(_clock_gettime, f.constants["MONOTONIC"], time)
    f.ret(time[0] * 1_000_000_000 + time[1])


@function("void", attributes=_SHORT)
def drain(f: Builder, pool: Ptr, worker: I64) -> None:
    """Take chunks until none is left."""
    fn, frame = (pool + JOB_FN).load("ptr"), (pool + JOB_FRAME).load("ptr")
    n, chunk, following = (pool + JOB_N).load(), (pool + JOB_CHUNK).load(), pool + NEXT
    with f.loop():
        f.leave(when=(worker != 0) & ((pool + JOB_ALONE).load(order="monotonic") != 0))
        begin = following.update("add", chunk, "monotonic")
        f.leave(unless=begin < n)
        f.call_address(fn, "void", frame, begin, f.min(begin + chunk, n), worker)


@function("i1", attributes=_SHORT)
def joinable(f: Builder, pool: Ptr, number: I64, state: I64, seen: I64) -> None:
    """Whether ``state`` is a job for the worker that it has not yet looked at: an odd epoch, not ``seen``, and a limit above its number."""
    epoch = state >> 32
    f.ret(epoch.to("i1") & (epoch != seen) & (number < (pool + JOB_LIMIT).load(order="monotonic")))


def _pause(f: Builder) -> None:
    if f.constants["PROCESSOR"] == _X86:
        f.call(_x86_pause)
    elif f.constants["PROCESSOR"] == _ARM:
        f.call(_arm_hint, 1)


def _spin(f: Builder, turn: Variable) -> None:
    """Begin the next turn of a waiting loop with the processor's hint; after ``_SPINS`` of them let other threads run."""
    turn.value = turn.value + 1
    with f.if_(turn.value % _SPINS != 0):
        _pause(f)
        f.again()
    f.call(_sched_yield)


@function("ptr", attributes=_SHORT)
def worker(f: Builder, pool: Ptr) -> None:
    """A thread of the pool."""
    number = ((pool + NUMBERS).update("add", 1, "monotonic", "i32") + 1).to("i64")
    sleepers, mutex, spin = pool + SLEEPERS, pool + MUTEX, (pool + SPIN_NS).load()
    seen, turn = f.var(0), f.var()
    with f.loop():
        idle_since = f.call(now)
        turn.value = 0
        with f.loop():
            state = pool.load(order="acquire")
            mine = f.call(joinable, pool, number, state, seen.value)
            with f.if_(mine), f.if_(pool.exchange_if(state, state + 1, "acq_rel monotonic")):
                f.call(drain, pool, number)
                pool.update("sub", 1, "release")
                seen.value = state >> 32
                f.leave()
            _spin(f, turn)  # yields, too: this thread may have been woken on the core of the caller
            f.again(unless=f.call(now) - idle_since > spin)
            f.call(_mutex_lock, mutex)
            sleepers.update("add", 1, "seq_cst", "i32")
            with f.loop():
                f.leave(when=f.call(joinable, pool, number, pool.load(order="seq_cst"), seen.value))
                f.call(_cond_wait, pool + COND, mutex)
            sleepers.update("sub", 1, "seq_cst", "i32")
            f.call(_mutex_unlock, mutex)
            f.leave()


@function("void", attributes=_SHORT)
def start(f: Builder, pool: Ptr) -> None:
    """Start ``THREADS - 1`` threads with signals blocked, which are for Python's threads. Called with the pool held.

    When the system refuses, fewer run: the caller takes the chunks that they would have taken.
    """
    thread, set_mask = f.stack(1, "ptr"), f.constants["SIG_SETMASK"]
    (pool + STARTED).store(1, "i32")
    threads = (pool + THREADS).load()
    f.call(_sigmask, set_mask, pool + MASK, pool + OLD_MASK)
    with f.range(threads, start=1):
        f.leave(unless=f.call(_create, thread, pool + ATTR, f.symbol(worker), pool) == 0)
        f.call(_detach, thread.load("ptr"))
    f.call(_sigmask, set_mask, pool + OLD_MASK, 0)


@function("void", attributes=_SHORT)
def await_turn(f: Builder, pool: Ptr, turn: Ptr, begin: I64) -> None:
    """Wait until all earlier chunks have made their additions; workers have taken them, as chunks are taken in order.

    It sleeps rather than yields: a thread that yields thousands of times is one that Linux lets run last.
    """
    since, turns = f.call(now), f.var(0)
    with f.loop():
        f.ret(when=turn.load(order="acquire") == begin)
        turns.value = turns.value + 1
        _pause(f)
        f.again(unless=turns.value % _SPINS == 0)
        time = f.call(now)
        f.again(unless=time - since > _LONG_NS)
        (pool + JOB_ALONE).store(1, order="monotonic")
        (pool + ALONE_UNTIL).store(time + _ALONE_NS, order="monotonic")
        f.call(_usleep, 20)


def _add_in_order(f: Builder, pool: Ptr, turn: Ptr, begin: I64, log: Ptr, ty: str) -> None:
    """Make the additions of a chunk's log when its turn has come, and empty the log."""
    if f.constants["PROCESSOR"] != _NONE:
        with f.if_(log[LOG_CAME] == 0):
            f.call(await_turn, pool, turn, begin)
            log[LOG_CAME] = 1
    entry = f.var(log.words(LOG_HEAD))
    with f.range(log[LOG_COUNT]):
        here = entry.value
        element = here.load("ptr")
        element.store(element.load(ty).plus(here.words(1).load(ty)), ty)
        entry.value = here.words(2)
    log[LOG_COUNT] = 0


@function("void")
def qd_add_in_order_f64(f: Builder, pool: Ptr, turn: Ptr, begin: I64, log: Ptr) -> None:
    """``_add_in_order`` for additions of f64."""
    _add_in_order(f, pool, turn, begin, log, "double")


@function("void")
def qd_add_in_order_f32(f: Builder, pool: Ptr, turn: Ptr, begin: I64, log: Ptr) -> None:
    """``_add_in_order`` for additions of f32."""
    _add_in_order(f, pool, turn, begin, log, "float")


@function("void", attributes=_SHORT)
def qd_parallel_for(f: Builder, pool: Ptr, fn: Ptr, frame: Ptr, n: I64, chunk: I64) -> None:
    """Run a loop with all workers."""
    f.call(qd_parallel_for_up_to, pool, fn, frame, n, chunk, ALL_THREADS)


@function("void", attributes=_SHORT)
def qd_parallel_for_up_to(f: Builder, pool: Ptr, fn: Ptr, frame: Ptr, n: I64, chunk: I64, limit: I64) -> None:
    """Run a loop with the workers of a number below ``limit``; here if another thread, or a loop around this one, holds the pool."""
    busy = pool + BUSY
    parallel = (f.min((pool + THREADS).load(), limit) > 1) & (n > chunk)
    with f.if_(parallel), f.if_(busy.exchange_if(0, 1, "acquire monotonic", "i32")):
        with f.if_((pool + STARTED).load("i32") == 0):
            f.call(start, pool)
        (pool + NEXT).store(0, order="monotonic")
        (pool + JOB_FN).store(fn)
        (pool + JOB_FRAME).store(frame)
        (pool + JOB_N).store(n)
        (pool + JOB_CHUNK).store(chunk)
        (pool + JOB_LIMIT).store(limit, order="monotonic")
        (pool + JOB_ALONE).store(0, order="monotonic")
        pool.update("add", _EPOCH, "seq_cst")
        with f.if_((pool + SLEEPERS).load("i32", order="seq_cst") != 0):
            f.call(_mutex_lock, pool + MUTEX)
            f.call(_mutex_unlock, pool + MUTEX)
            f.call(_cond_broadcast, pool + COND)
        f.call(drain, pool, 0)
        pool.update("add", _EPOCH, "acq_rel")
        turn = f.var(0)
        with f.loop():
            f.leave(when=pool.load(order="acquire") & _ACTIVE_MASK == 0)
            _spin(f, turn)
        busy.store(0, "i32", order="release")
        f.ret()
    f.call(serial, fn, frame, n, chunk)


@function("void", attributes=_SHORT)
def qd_parallel_for_in_order(f: Builder, pool: Ptr, fn: Ptr, frame: Ptr, n: I64, chunk: I64, limit: I64) -> None:
    """``qd_parallel_for_up_to`` for a loop whose chunks add in order; here while other processes have had this one's cores."""
    until = (pool + ALONE_UNTIL).load(order="monotonic")
    with f.if_(until != 0), f.if_(f.call(now) < until):
        f.call(serial, fn, frame, n, chunk)
        f.ret()
    f.call(qd_parallel_for_up_to, pool, fn, frame, n, chunk, limit)


@function("void", attributes=_SHORT, name=qd_parallel_for.name)
def _serial_for(f: Builder, pool: Ptr, fn: Ptr, frame: Ptr, n: I64, chunk: I64) -> None:
    f.call(serial, fn, frame, n, chunk)


@function("void", attributes=_SHORT, name=qd_parallel_for_up_to.name)
def _serial_for_up_to(f: Builder, pool: Ptr, fn: Ptr, frame: Ptr, n: I64, chunk: I64, limit: I64) -> None:
    f.call(serial, fn, frame, n, chunk)


@function("void", attributes=_SHORT, name=qd_parallel_for_in_order.name)
def _serial_for_in_order(f: Builder, pool: Ptr, fn: Ptr, frame: Ptr, n: I64, chunk: I64, limit: I64) -> None:
    f.call(serial, fn, frame, n, chunk)


_ADDERS = (qd_add_in_order_f32, qd_add_in_order_f64)


def serial_module() -> NativeModule:
    """The module for platforms without pthreads."""
    return NativeModule((_serial_for, _serial_for_up_to, _serial_for_in_order, *_ADDERS), {"PROCESSOR": _NONE})


def pool_module(architecture: str, monotonic_clock: int, sig_setmask: int) -> NativeModule:
    """The pool's module for a processor (first part of its triple) and an operating system's constants."""
    constants = {"PROCESSOR": _PROCESSORS.get(architecture, 0), "MONOTONIC": monotonic_clock, "SIG_SETMASK": sig_setmask}
    return NativeModule((qd_parallel_for, qd_parallel_for_up_to, qd_parallel_for_in_order, *_ADDERS), constants)
