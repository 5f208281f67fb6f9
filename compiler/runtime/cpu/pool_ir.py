"""The thread pool in LLVM text. ``pool.py`` owns the records and says how many threads there are.

The protocol. ``state`` is ``epoch << 32 | active``; an odd epoch is open. The caller takes ``busy``, writes the job, adds one epoch
(open), wakes sleepers if there are any, takes chunks itself until none is left, adds one epoch (closed) and waits until ``active``
is 0. A worker that sees a new odd epoch joins with ``cmpxchg state, state + 1``, takes chunks, and leaves with ``state - 1``. A
closed job cannot be joined, so the caller never waits for a thread that has not started. Before it sleeps a worker counts itself in
``sleepers`` and looks at ``state`` once more; the caller changes ``state`` first and reads ``sleepers`` after: one of them sees the other.

A job may be limited to the workers of a number below ``JOB_LIMIT`` (the caller is number 0): the others see it and do not join. The limit
is written before the epoch opens; a worker that reads a later job's limit finds, when it joins, that its epoch is over.

Threads start with the first job, in native code: a forked child, whose record was reset, gets new ones the same way.
"""

from __future__ import annotations

# Byte offsets in a pool's record. What different threads write often lies on different cache lines (128: a pair on x86, one on Apple).
STATE, NEXT, JOB_FN, JOB_FRAME, JOB_N, JOB_CHUNK, JOB_LIMIT = 0, 128, 256, 264, 272, 280, 288
SLEEPERS, NUMBERS, MUTEX, COND = 384, 388, 448, 512
BUSY, STARTED, THREADS, SPIN_NS, ATTR, MASK, OLD_MASK = 640, 644, 648, 656, 672, 768, 896
RECORD_BYTES = 1024

# Runs every chunk in the caller, as worker 0: one iteration range at a time, because reductions keep a partial result per chunk.
SERIAL_IR = r"""
define internal void @serial(ptr %fn, ptr %frame, i64 %n, i64 %chunk) {
entry:
  br label %loop
loop:
  %begin = phi i64 [0, %entry], [%after, %do]
  %more = icmp slt i64 %begin, %n
  br i1 %more, label %do, label %out
do:
  %after = add i64 %begin, %chunk
  %end = call i64 @llvm.smin.i64(i64 %after, i64 %n)
  call void %fn(ptr %frame, i64 %begin, i64 %end, i64 0)
  br label %loop
out:
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)
"""

# For platforms without pthreads.
SERIAL_ENTRY_IR = r"""
define void @qd_parallel_for(ptr %pool, ptr %fn, ptr %frame, i64 %n, i64 %chunk) {
  call void @serial(ptr %fn, ptr %frame, i64 %n, i64 %chunk)
  ret void
}
define void @qd_parallel_for_up_to(ptr %pool, ptr %fn, ptr %frame, i64 %n, i64 %chunk, i64 %limit) {
  call void @serial(ptr %fn, ptr %frame, i64 %n, i64 %chunk)
  ret void
}
"""

# @field.NAME(ptr) gives the address of a field; $NAME$ is replaced by a number, $PAUSE$ by the processor's spin hint.
POOL_IR = r"""
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
$PAUSE_DECLARATION$

define internal i64 @now() {
  %time = alloca { i64, i64 }
  %rc = call i32 @clock_gettime(i32 $MONOTONIC$, ptr %time)
  %seconds = load i64, ptr %time
  %p = getelementptr i64, ptr %time, i64 1
  %nanos = load i64, ptr %p
  %scaled = mul i64 %seconds, 1000000000
  %ns = add i64 %scaled, %nanos
  ret i64 %ns
}

; takes chunks until none is left
define internal void @drain(ptr %pool, i64 %worker) {
entry:
  %next = getelementptr i8, ptr %pool, i64 $NEXT$
  %pfn = getelementptr i8, ptr %pool, i64 $JOB_FN$
  %fn = load ptr, ptr %pfn
  %pframe = getelementptr i8, ptr %pool, i64 $JOB_FRAME$
  %frame = load ptr, ptr %pframe
  %pn = getelementptr i8, ptr %pool, i64 $JOB_N$
  %n = load i64, ptr %pn
  %pchunk = getelementptr i8, ptr %pool, i64 $JOB_CHUNK$
  %chunk = load i64, ptr %pchunk
  br label %loop
loop:
  %begin = atomicrmw add ptr %next, i64 %chunk monotonic
  %more = icmp slt i64 %begin, %n
  br i1 %more, label %do, label %out
do:
  %after = add i64 %begin, %chunk
  %end = call i64 @llvm.smin.i64(i64 %after, i64 %n)
  call void %fn(ptr %frame, i64 %begin, i64 %end, i64 %worker)
  br label %loop
out:
  ret void
}

; whether %state is a job for the worker that it has not yet looked at: an odd epoch other than %seen, and a limit above its number
define internal i1 @joinable(ptr %pool, i64 %number, i64 %state, i64 %seen) {
  %plimit = getelementptr i8, ptr %pool, i64 $JOB_LIMIT$
  %limit = load atomic i64, ptr %plimit monotonic, align 8
  %wanted = icmp slt i64 %number, %limit
  %epoch = lshr i64 %state, 32
  %open = trunc i64 %epoch to i1
  %new = icmp ne i64 %epoch, %seen
  %fresh = and i1 %open, %new
  %go = and i1 %fresh, %wanted
  ret i1 %go
}

define internal ptr @worker(ptr %pool) {
entry:
  %numbers = getelementptr i8, ptr %pool, i64 $NUMBERS$
  %before = atomicrmw add ptr %numbers, i32 1 monotonic
  %number32 = add i32 %before, 1
  %number = zext i32 %number32 to i64
  %sleepers = getelementptr i8, ptr %pool, i64 $SLEEPERS$
  %mutex = getelementptr i8, ptr %pool, i64 $MUTEX$
  %cond = getelementptr i8, ptr %pool, i64 $COND$
  %pspin = getelementptr i8, ptr %pool, i64 $SPIN_NS$
  %spin = load i64, ptr %pspin
  br label %idle
idle:                                     ; idle since now
  %seen = phi i64 [0, %entry], [%epoch, %ran], [%seen, %awake]
  %since = call i64 @now()
  br label %look
look:
  %k = phi i64 [0, %idle], [%k1, %pause], [%k1, %still]
  %state = load atomic i64, ptr %pool acquire, align 8
  %go = call i1 @joinable(ptr %pool, i64 %number, i64 %state, i64 %seen)
  br i1 %go, label %claim, label %wait
claim:
  %joined = add i64 %state, 1
  %pair = cmpxchg ptr %pool, i64 %state, i64 %joined acq_rel monotonic, align 8
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %run, label %wait
run:
  call void @drain(ptr %pool, i64 %number)
  %left = atomicrmw sub ptr %pool, i64 1 release
  br label %ran
ran:
  %epoch = lshr i64 %state, 32
  br label %idle
wait:
  %k1 = add i64 %k, 1
  %low = and i64 %k1, 63
  %slow = icmp eq i64 %low, 0
  br i1 %slow, label %yield, label %pause
pause:
  $PAUSE$
  br label %look
yield:                                    ; this thread may have been woken on the core of the caller: let it run
  %y = call i32 @sched_yield()
  %now = call i64 @now()
  %idled = sub i64 %now, %since
  %tired = icmp sgt i64 %idled, %spin
  br i1 %tired, label %sleep, label %still
still:
  br label %look
sleep:
  %l = call i32 @pthread_mutex_lock(ptr %mutex)
  %s1 = atomicrmw add ptr %sleepers, i32 1 seq_cst
  br label %check
check:
  %state2 = load atomic i64, ptr %pool seq_cst, align 8
  %go2 = call i1 @joinable(ptr %pool, i64 %number, i64 %state2, i64 %seen)
  br i1 %go2, label %awake, label %doze
doze:
  %w = call i32 @pthread_cond_wait(ptr %cond, ptr %mutex)
  br label %check
awake:
  %s2 = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  %u = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %idle
}

; starts threads - 1 threads with signals blocked (they are for Python's threads); when the system refuses, fewer run: the caller
; takes the chunks that they would have taken. Called with the pool held.
define internal void @start(ptr %pool) {
entry:
  %id = alloca ptr
  %started = getelementptr i8, ptr %pool, i64 $STARTED$
  store i32 1, ptr %started
  %pthreads = getelementptr i8, ptr %pool, i64 $THREADS$
  %threads = load i64, ptr %pthreads
  %attr = getelementptr i8, ptr %pool, i64 $ATTR$
  %mask = getelementptr i8, ptr %pool, i64 $MASK$
  %old = getelementptr i8, ptr %pool, i64 $OLD_MASK$
  %m = call i32 @pthread_sigmask(i32 $SIG_SETMASK$, ptr %mask, ptr %old)
  br label %loop
loop:
  %k = phi i64 [1, %entry], [%k1, %again]
  %more = icmp slt i64 %k, %threads
  br i1 %more, label %create, label %out
create:
  %rc = call i32 @pthread_create(ptr %id, ptr %attr, ptr @worker, ptr %pool)
  %good = icmp eq i32 %rc, 0
  br i1 %good, label %again, label %out
again:
  %thread = load ptr, ptr %id
  %d = call i32 @pthread_detach(ptr %thread)
  %k1 = add i64 %k, 1
  br label %loop
out:
  %r = call i32 @pthread_sigmask(i32 $SIG_SETMASK$, ptr %old, ptr null)
  ret void
}

define void @qd_parallel_for(ptr %pool, ptr %fn, ptr %frame, i64 %n, i64 %chunk) {
  call void @qd_parallel_for_up_to(ptr %pool, ptr %fn, ptr %frame, i64 %n, i64 %chunk, i64 9223372036854775807)
  ret void
}

; with the workers of a number below %limit
define void @qd_parallel_for_up_to(ptr %pool, ptr %fn, ptr %frame, i64 %n, i64 %chunk, i64 %limit) {
entry:
  %pthreads = getelementptr i8, ptr %pool, i64 $THREADS$
  %threads = load i64, ptr %pthreads
  %most = call i64 @llvm.smin.i64(i64 %threads, i64 %limit)
  %alone = icmp sle i64 %most, 1
  %one = icmp sle i64 %n, %chunk
  %here = or i1 %alone, %one
  br i1 %here, label %serial, label %take
take:                                     ; held by another Python thread, or by the loop around this one: run it here
  %busy = getelementptr i8, ptr %pool, i64 $BUSY$
  %pair = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic
  %got = extractvalue { i32, i1 } %pair, 1
  br i1 %got, label %mine, label %serial
serial:
  call void @serial(ptr %fn, ptr %frame, i64 %n, i64 %chunk)
  ret void
mine:
  %pstarted = getelementptr i8, ptr %pool, i64 $STARTED$
  %started = load i32, ptr %pstarted
  %running = icmp ne i32 %started, 0
  br i1 %running, label %open, label %first
first:
  call void @start(ptr %pool)
  br label %open
open:
  %next = getelementptr i8, ptr %pool, i64 $NEXT$
  store atomic i64 0, ptr %next monotonic, align 8
  %pfn = getelementptr i8, ptr %pool, i64 $JOB_FN$
  store ptr %fn, ptr %pfn
  %pframe = getelementptr i8, ptr %pool, i64 $JOB_FRAME$
  store ptr %frame, ptr %pframe
  %pn = getelementptr i8, ptr %pool, i64 $JOB_N$
  store i64 %n, ptr %pn
  %pchunk = getelementptr i8, ptr %pool, i64 $JOB_CHUNK$
  store i64 %chunk, ptr %pchunk
  %plimit = getelementptr i8, ptr %pool, i64 $JOB_LIMIT$
  store atomic i64 %limit, ptr %plimit monotonic, align 8
  %opened = atomicrmw add ptr %pool, i64 4294967296 seq_cst
  %sleepers = getelementptr i8, ptr %pool, i64 $SLEEPERS$
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %any = icmp ne i32 %asleep, 0
  br i1 %any, label %wake, label %work
wake:
  %mutex = getelementptr i8, ptr %pool, i64 $MUTEX$
  %cond = getelementptr i8, ptr %pool, i64 $COND$
  %l = call i32 @pthread_mutex_lock(ptr %mutex)
  %u = call i32 @pthread_mutex_unlock(ptr %mutex)
  %b = call i32 @pthread_cond_broadcast(ptr %cond)
  br label %work
work:
  call void @drain(ptr %pool, i64 0)
  %closed = atomicrmw add ptr %pool, i64 4294967296 acq_rel
  br label %join
join:
  %k = phi i64 [0, %work], [%k1, %pause], [%k1, %yield]
  %state = load atomic i64, ptr %pool acquire, align 8
  %active = and i64 %state, 4294967295
  %done = icmp eq i64 %active, 0
  br i1 %done, label %finish, label %later
later:
  %k1 = add i64 %k, 1
  %low = and i64 %k1, 63
  %slow = icmp eq i64 %low, 0
  br i1 %slow, label %yield, label %pause
pause:
  $PAUSE$
  br label %join
yield:
  %y = call i32 @sched_yield()
  br label %join
finish:
  store atomic i32 0, ptr %busy release, align 4
  ret void
}
"""


def pool_text(architecture: str, monotonic_clock: int, sig_setmask: int) -> str:
    """The pool's module for a processor (first part of its triple) and an operating system's constants."""
    pauses = {
        "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
        "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
    }
    pauses["arm64"] = pauses["aarch64"]
    declaration, pause = pauses.get(architecture, ("", ""))
    values = {k: v for k, v in globals().items() if isinstance(v, int)}
    values |= {"MONOTONIC": monotonic_clock, "SIG_SETMASK": sig_setmask}
    values |= {"PAUSE_DECLARATION": declaration, "PAUSE": pause}
    text = SERIAL_IR + POOL_IR
    for name, value in values.items():
        text = text.replace(f"${name}$", str(value))
    return text
