"""The log of a tape, as native launches follow it: see ``log.py``."""

from __future__ import annotations

from ...codegen.builder import I64, Builder, Ptr, Value, Variable, external, function

# a log: the number of the next launch, how many there are, where they are, the thread that launches, whether a launch has raised, the most
# words of arguments that one has, the memory of the copies; what copies in the queue of a device (0: the host does), the queue, the code of
# a copy that has failed; the addresses of ``follows``, ``keep`` and ``note``, which only programs with a log load
L_AT, L_COUNT, L_LAUNCHES, L_THREAD, L_FAILED, L_MOST, L_KEPT = range(7)
L_COPY, L_QUEUE, L_CODE, L_FOLLOWS, L_KEEP, L_NOTE, L_WORDS = range(7, 14)

# a launch of a log: its table and that of its gradient, how many words its arguments have, where they are, where the bits of them are
# that are compared, how many objects were given with the kernel, where they are kept, how many marks it has, where they are; its copies,
# see ``K_*``
C_TABLE, C_GRADIENT, C_COUNT, C_ARGS, C_COMPARED, C_OBJECTS, C_KEPT, C_MARKS, C_MARKS_AT, C_COPIES = range(10)
C_WORDS = C_COPIES + 4

# a mark of an array that Python may change unseen: the word of the arguments that has its address, its bytes, the mark
M_WORD, M_BYTES, M_MARK, M_WORDS = range(4)
MARKED = 1 << 13
"""8-byte words that a mark is made of: all of an array of at most so many, else words at equal distances."""
_LANES = 4
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)  # odd: a change of one word changes the mark

# copies of what a launch overwrites: how many runs of bytes, where they are, how many counters of writes, where their addresses are
K_RUNS, K_RUNS_AT, K_COUNTERS, K_COUNTERS_AT = range(4)

# a run: where it is, where its copy is in the memory of the copies, bytes, whether it is put back after the gradient of the launch, and
# not before
R_AT, R_OFFSET, R_BYTES, R_LATE, R_WORDS = range(5)

NO_GRADIENT = 1
"""In the place of the table of a gradient: there is nothing to differentiate. 0: Python runs it."""

_inc_ref = external("Py_IncRef", "void", "ptr")
_dec_ref = external("Py_DecRef", "void", "ptr")
_this_thread = external("PyThreadState_Get", "ptr")


@function("ptr")
def next_launch(f: Builder, log: Ptr, table: Ptr) -> None:
    """The next launch of a log, if it has this table; else null. ``log``: may be null."""
    f.ret(0, when=log == 0)
    at = log[L_AT]
    f.ret(0, unless=at < log[L_COUNT])
    launch = log[L_LAUNCHES].words(at * C_WORDS)
    f.ret(0, unless=launch[C_TABLE] == table)
    f.ret(0, unless=f.call(_this_thread) == log[L_THREAD])
    f.ret(launch)


@function("i1")
def follows(f: Builder, launch: Ptr, words: Ptr) -> None:
    """Whether arguments are those of a launch of the log, as far as they are compared. The log takes the others over."""
    known, compared, count = launch[C_ARGS], launch[C_COMPARED], launch[C_COUNT]
    with f.range(count) as k:
        f.ret(False, unless=(known[k] ^ words[k]) & compared[k] == 0)
    f.copy(known, words, count << 3)
    f.ret(True)


@function("i64")
def mark_of(f: Builder, content: Ptr, nbytes: I64) -> None:
    """A number that differs, but for a chance, where the content does."""
    words = nbytes >> 3
    step = (words + (MARKED - 1)) // MARKED
    lanes = [f.var(nbytes + k) for k in range(_LANES)]  # a multiplication takes longer than a load

    def mix(lane: Variable, word: Value) -> None:
        mixed = lane.value * _FACTOR + word
        lane.value = mixed ^ (mixed >> 29)

    at = f.var(0)
    with f.loop():
        k = at.value
        last = k + step * (_LANES - 1)
        f.leave(unless=last < words)
        for n, lane in enumerate(lanes):
            mix(lane, content[k + step * n])
        at.value = last + step
    with f.loop():
        k = at.value
        f.leave(unless=k < words)
        mix(lanes[0], content[k])
        at.value = k + step
    with f.range(nbytes, words << 3) as k:
        mix(lanes[0], (content + k).load("i8").to("i64"))
    for lane in lanes[1:]:
        mix(lanes[0], lane.value)
    f.ret(lanes[0].value)


@function("void")
def mark_given(f: Builder, launch: Ptr) -> None:
    """Mark the arrays of a launch that was made."""
    marks, args = launch[C_MARKS_AT], launch[C_ARGS]
    with f.range(launch[C_MARKS]) as k:
        mark = marks.words(k * M_WORDS)
        mark[M_MARK] = f.call(mark_of, args[mark[M_WORD]], mark[M_BYTES])


@function("i64")
def first_changed(f: Builder, log: Ptr, n: I64) -> None:
    """The first of ``n`` launches an array of which has changed since; -1: none."""
    with f.range(n) as i:
        launch = log[L_LAUNCHES].words(i * C_WORDS)
        marks, args = launch[C_MARKS_AT], launch[C_ARGS]
        with f.range(launch[C_MARKS]) as k:
            mark = marks.words(k * M_WORDS)
            f.ret(i, unless=f.call(mark_of, args[mark[M_WORD]], mark[M_BYTES]) == mark[M_MARK])
    f.ret(-1)


@function("void")
def note(f: Builder, log: Ptr, launch: Ptr, kernel: Ptr, args: Ptr, result: Ptr) -> None:
    """A launch of the log was made. Keep what it was given: no other array may come to lie where one of these lies."""
    f.ret(when=log == 0)
    with f.if_(result == 0):
        log[L_FAILED] = 1
        f.ret()
    f.call(mark_given, launch)
    kept = launch[C_KEPT]
    f.call(_inc_ref, kernel)
    kept[0] = kernel
    with f.range(launch[C_OBJECTS], 1) as k:
        one = args[k - 1]
        f.call(_inc_ref, one)
        kept[k] = one
    log[L_AT] = log[L_AT] + 1


@function("void")
def copy_run(f: Builder, log: Ptr, to: Ptr, source: Ptr, nbytes: I64) -> None:
    """Copy a run, in the queue of a device with memory of its own."""
    copy = log[L_COPY]
    with f.if_(copy == 0):
        f.copy(to, source, nbytes)
        f.ret()
    code = f.call_address(copy, "i32", to, source, nbytes, log[L_QUEUE])
    with f.if_(code != 0):
        log[L_CODE] = code.to("i64")
    f.ret()


@function("void")
def keep(f: Builder, log: Ptr, copies: Ptr) -> None:
    """Copy what a launch will overwrite."""
    runs, kept = copies[K_RUNS_AT], log[L_KEPT]
    with f.range(copies[K_RUNS]) as k:
        run = runs.words(k * R_WORDS)
        f.call(copy_run, log, kept + run[R_OFFSET], run[R_AT], run[R_BYTES])


@function("void")
def put_back(f: Builder, log: Ptr, copies: Ptr, late: I64) -> None:
    """Put back the early or the late runs of a launch, and count that as writes."""
    count, runs, counters, kept = copies[K_RUNS], copies[K_RUNS_AT], copies[K_COUNTERS_AT], log[L_KEPT]
    f.ret(when=count == 0)
    with f.range(count) as k:
        run = runs.words(k * R_WORDS)
        with f.if_(run[R_LATE] == late):
            f.call(copy_run, log, run[R_AT], kept + run[R_OFFSET], run[R_BYTES])
    with f.range(copies[K_COUNTERS]) as k:
        counter = counters[k]
        counter[0] = counter[0] + 1


@function("void")
def reversed_launch(f: Builder, log: Ptr, at: I64) -> None:
    """The gradient of launch ``at - 1`` has run."""
    launch = log[L_LAUNCHES].words((at - 1) * C_WORDS)
    f.call(put_back, log, launch.words(C_COPIES), 1)
    log[L_AT] = at - 1


@function("void")
def forget(f: Builder, log: Ptr, n: I64) -> None:
    """Let go of what the first ``n`` launches were given."""
    with f.range(n) as i:
        launch = log[L_LAUNCHES].words(i * C_WORDS)
        kept = launch[C_KEPT]
        with f.range(launch[C_OBJECTS]) as k:
            one = kept[k]
            kept[k] = 0
            f.call(_dec_ref, one)
