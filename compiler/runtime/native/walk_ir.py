"""The module of the log of a tape: what launches that follow it call, and the walk of its gradients. See ``log.py``."""

from __future__ import annotations

from collections.abc import Mapping

from ...codegen.builder import Builder, NativeModule, Ptr, function
from .launch_ir import F_SLOW, PYTHON, T_CONTEXT, T_FLAGS, dec_ref, go
from .log_ir import (
    C_ARGS,
    C_COPIES,
    C_COUNT,
    C_GRADIENT,
    C_WORDS,
    L_AT,
    L_LAUNCHES,
    L_MOST,
    NO_GRADIENT,
    first_changed,
    follows,
    forget,
    keep,
    note,
    put_back,
    reversed_launch,
)


@function("i64")
def walk_back(f: Builder, log: Ptr) -> None:
    """Launch the gradients of a log from ``L_AT`` down to its first launch. Returns ``L_AT``, where Python must run one; 0: all have run.

    -1: one has raised, and ``L_AT`` counts it.
    """
    buffer = f.stack(log[L_MOST] + 1)
    with f.loop():
        at = log[L_AT]
        f.ret(0, when=at == 0)
        launch = log[L_LAUNCHES].words((at - 1) * C_WORDS)
        table = launch[C_GRADIENT]
        f.call(put_back, log, launch.words(C_COPIES), 0)
        with f.if_(table != NO_GRADIENT):
            f.ret(at, when=table == 0)
            flag, count = table[T_FLAGS].words(F_SLOW), launch[C_COUNT]
            f.ret(at, unless=flag[0] == 0)
            buffer[0] = table[T_CONTEXT]
            f.copy(buffer.words(1), launch[C_ARGS], count << 3)
            result = f.call(go, table, buffer, count + 1, flag)
            f.ret(at, when=result == PYTHON)
            f.ret(-1, when=result == 0)
            f.call(dec_ref, result)
        f.call(reversed_launch, log, at)


_EXPORTS = follows, keep, note, put_back, reversed_launch, walk_back, first_changed, forget


def log_module(offsets: Mapping[str, int]) -> NativeModule:
    """The module for an interpreter whose objects have these byte offsets."""
    return NativeModule(_EXPORTS, offsets)
