"""Copies of forward code inside a reverse program: sweeps and replays. A copy never has a side effect of the primal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...ir.builder import StatementBuilder
from ...ir.nodes import Assert, Const, GlobalStore, If, Local, LocalStore, Loop, Op, Operand, Stmt
from ...ir.types import i64
from ...ir.walk import loop_names, walk
from .slices import Keep

Env = dict[Op, Operand]


def at(env: Env, x: Operand) -> Operand:
    """The copy of ``x`` that is current in ``env`` (a literal or a value from outside is itself)."""
    return env.get(x, x) if isinstance(x, Op) else x


def trip_count(b: StatementBuilder, begin: Operand, end: Operand, step: int) -> Operand:
    """max(0, ceil((end - begin) / step)) in i64. Where the difference of two 64-bit ends may wrap, they are compared."""
    lo, hi = b.cast(begin, i64), b.cast(end, i64)
    if begin.dtype.bits == 64 and not (isinstance(begin, Const) and begin.value == 0 and begin.dtype is i64 and step > 0):
        runs = b.op("lt" if step > 0 else "gt", begin, end)
        lo, hi = b.op("select", runs, lo, Const(0, i64)), b.op("select", runs, hi, Const(0, i64))
    span = b.op("sub", hi, lo) if step > 0 else b.op("sub", lo, hi)
    if abs(step) != 1:
        span = b.op("floordiv", b.op("add", span, Const(abs(step) - 1, i64)), Const(abs(step), i64))
    return b.op("max", span, Const(0, i64))


def index_at(b: StatementBuilder, loop: Loop, begin: Operand, k: Operand) -> Operand:
    """The loop index of iteration ``k`` (i64): begin + k * step, in the index's type."""
    offset = b.cast(k, loop.index.dtype)
    if loop.step != 1:
        offset = b.op("mul", offset, Const(loop.step, loop.index.dtype))
    return mark(b, loop, b.op("add", begin, offset))


def mark(b: StatementBuilder, loop: Loop, index: Operand) -> Operand:
    """Mark the loop's index for messages, if they need it."""
    if b.marks:
        b.op("mark", index, dtype=index.dtype, attr=loop_names(loop.loc)[0])
    return index


@contextmanager
def layer(env: Env, loop: Loop) -> Iterator[Env]:
    """``env`` for a copy of a loop's body: afterwards it holds what it held before. Costs what the body costs, not what ``env`` holds."""
    own = [loop.index]
    for s in walk(loop.body):
        if isinstance(s, Op):
            own.append(s)
        elif isinstance(s, Loop):
            own.append(s.index)
    before = {x: env[x] for x in own if x in env}
    try:
        yield env
    finally:
        for x in own:
            env.pop(x, None)
        env.update(before)


def copy_plain(b: StatementBuilder, block: list[Stmt], env: Env, keep: Keep, inside: Local | None = None) -> None:
    """A sweep copy: the statements of ``keep``, with fresh values.

    ``inside``: the exit local of the loop being refilled, whose exits are known not to be taken.
    """
    for s in block:
        if id(s) not in keep:
            continue
        b.loc = getattr(s, "loc", None)
        match s:
            case Op():
                env[s] = b.op(s.op, *(at(env, a) for a in s.args), dtype=s.dtype, attr=s.attr)
            case LocalStore():
                b.store(s.local, at(env, s.value))
            case GlobalStore():
                b.gstore(s.place, tuple(at(env, i) for i in s.index), at(env, s.value))
            case Assert():
                b.put(Assert(at(env, s.cond), s.message, tuple(at(env, a) for a in s.args), s.loc, s.kind, s.loops))
            case If() if s.site and inside is not None and s.site_local is inside:
                copy_plain(b, s.orelse, env, keep, inside)
            case If():
                new = If(at(env, s.cond))
                b.put(new)
                for source, target in ((s.then, new.then), (s.orelse, new.orelse)):
                    with b.into(target):
                        copy_plain(b, source, env, keep, inside)
            case Loop():
                _copy_loop(b, s, env, keep)


def _copy_loop(b: StatementBuilder, s: Loop, env: Env, keep: Keep) -> None:
    if s.exit:
        b.store(s.exit, Const(0, s.exit.dtype))
    index = env[s.index] = Op("index", (), s.index.dtype, None, s.loc)
    end = None if s.end is None else at(env, s.end)
    new = Loop(index, at(env, s.begin), end, exit=s.exit, step=s.step, loc=s.loc)
    b.put(new)
    with b.into(new.body):
        mark(b, s, index)
        copy_plain(b, s.body, env, keep)
