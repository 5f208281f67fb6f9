"""The log of a tape, as native launches follow it: see ``log.py``."""

from __future__ import annotations

from ...codegen.builder import I64, Builder, Ptr, external, function

# a log: the number of the next launch, how many there are, where they are, the thread that launches, whether a launch has raised, the most
# words of arguments that one has, the memory of the copies
L_AT, L_COUNT, L_LAUNCHES, L_THREAD, L_FAILED, L_MOST, L_KEPT, L_WORDS = range(8)

# a launch of a log: its table and that of its gradient, how many words its arguments have, where they are, where the bits of them are
# that are compared, how many objects were given with the kernel, where they are kept; its copies, see ``K_*``
C_TABLE, C_GRADIENT, C_COUNT, C_ARGS, C_COMPARED, C_OBJECTS, C_KEPT, C_COPIES = range(8)
C_WORDS = C_COPIES + 4

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


@function("void")
def note(f: Builder, log: Ptr, launch: Ptr, kernel: Ptr, args: Ptr, result: Ptr) -> None:
    """A launch of the log was made. Keep what it was given: no other array may come to lie where one of these lies."""
    f.ret(when=log == 0)
    with f.if_(result == 0):
        log[L_FAILED] = 1
        f.ret()
    kept = launch[C_KEPT]
    f.call(_inc_ref, kernel)
    kept[0] = kernel
    with f.range(launch[C_OBJECTS], 1) as k:
        one = args[k - 1]
        f.call(_inc_ref, one)
        kept[k] = one
    log[L_AT] = log[L_AT] + 1


@function("void")
def keep(f: Builder, copies: Ptr, kept: Ptr) -> None:
    """Copy what a launch will overwrite."""
    runs = copies[K_RUNS_AT]
    with f.range(copies[K_RUNS]) as k:
        run = runs.words(k * R_WORDS)
        f.copy(kept + run[R_OFFSET], run[R_AT], run[R_BYTES])


@function("void")
def put_back(f: Builder, copies: Ptr, kept: Ptr, late: I64) -> None:
    """Put back the early or the late runs of a launch, and count that as writes."""
    count, runs, counters = copies[K_RUNS], copies[K_RUNS_AT], copies[K_COUNTERS_AT]
    f.ret(when=count == 0)
    with f.range(count) as k:
        run = runs.words(k * R_WORDS)
        with f.if_(run[R_LATE] == late):
            f.copy(run[R_AT], kept + run[R_OFFSET], run[R_BYTES])
    with f.range(copies[K_COUNTERS]) as k:
        counter = counters[k]
        counter[0] = counter[0] + 1


@function("void")
def reversed_launch(f: Builder, log: Ptr, at: I64) -> None:
    """The gradient of launch ``at - 1`` has run."""
    launch = log[L_LAUNCHES].words((at - 1) * C_WORDS)
    f.call(put_back, launch.words(C_COPIES), log[L_KEPT], 1)
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
