"""Recorded launches: native code that walks a list of them. ``sequence.py`` makes the list.

A row of the list is three addresses: code, the words that the code is called with, and the status record that it may write to. A write from
Python is a row, too: its code is ``qd_write`` or ``qd_clear``.

The rows of a batched program have chunk functions as their code. The list is walked for one group of trials after another, each by one
thread: what a group works on stays in the caches, and no trial waits for another one.
"""

from __future__ import annotations

from ...codegen.builder import I64, Builder, Ptr, Value, external, function

ROW_WORDS = 3
# words of a write: how many runs of bytes, bytes of a run, address of the first one, bytes from one to the next, and the same two of the
# source; bytes of the source that repeat in a run; for one group of trials also: trials of a group, bytes from one group to the next, and
# the same of the source
_RUNS, _BYTES, _TO, _STEP, _FROM, _STRIDE, _TILE, _WIDTH, _APART, _SOURCE_APART = range(10)
_memmove = external("memmove", "ptr", "ptr", "ptr", "i64")
_memset = external("memset", "ptr", "ptr", "i32", "i64")


@function("i64")
def qd_replay(f: Builder, rows: Ptr, n: I64) -> None:
    """Run rows one after another. Returns the number of the first one that has failed, behind which nothing ran, or -1."""
    with f.range(n) as k:
        row = rows.words(k * ROW_WORDS)
        code, args, status = row.load("ptr"), row.words(1).load("ptr"), row.words(2).load("ptr")
        f.call_address(code, "void", args)
        f.ret(k, unless=status[0] == 0)
    f.ret(-1)


def _write(f: Builder, args: Value, to: Value, source: Value) -> None:
    nbytes, step, stride, tile = args[_BYTES], args[_STEP], args[_STRIDE], args[_TILE]
    tiles = (nbytes + (tile - 1)) // tile
    with f.range(args[_RUNS]) as k, f.range(tiles) as n:
        at = n * tile
        f.call(_memmove, to + k * step + at, source + k * stride, f.min(tile, nbytes - at))


def _clear(f: Builder, args: Value, to: Value) -> None:
    nbytes, step = args[_BYTES], args[_STEP]
    with f.range(args[_RUNS]) as k:
        f.call(_memset, to + k * step, 0, nbytes)


@function("void")
def qd_write(f: Builder, args: Ptr) -> None:
    """A write: runs of bytes."""
    _write(f, args, args[_TO], args[_FROM])


@function("void")
def qd_clear(f: Builder, args: Ptr) -> None:
    """Zeros to runs of bytes."""
    _clear(f, args, args[_TO])


@function("void")
def qd_write_trials(f: Builder, args: Ptr, trial: I64, end: I64, worker: I64) -> None:
    """``qd_write`` for one group of trials."""
    group = trial // args[_WIDTH]
    to, source = args[_TO] + args[_APART] * group, args[_FROM] + args[_SOURCE_APART] * group
    f.ret(when=source == to)  # the first group, which others copy meanwhile
    _write(f, args, to, source)


@function("void")
def qd_clear_trials(f: Builder, args: Ptr, trial: I64, end: I64, worker: I64) -> None:
    """``qd_clear`` for one group of trials."""
    _clear(f, args, args[_TO] + args[_APART] * (trial // args[_WIDTH]))


@function("void")
def qd_replay_trials(f: Builder, frame: Ptr, begin: I64, end: I64, worker: I64) -> None:
    """All rows for one group of trials after another. The frame: rows, how many, trials of a group."""
    rows, n, width = frame[0], frame[1], frame[2]
    trial = f.var(begin)
    with f.loop():
        first = trial.value
        f.leave(unless=first < end)
        after = first + width
        last = f.min(after, end)
        with f.range(n) as k:
            row = rows.words(k * ROW_WORDS)
            f.call_address(row.load("ptr"), "void", row.words(1).load("ptr"), first, last, worker)
        trial.value = after


EXPORTS = (qd_replay, qd_replay_trials, qd_write, qd_clear, qd_write_trials, qd_clear_trials)
