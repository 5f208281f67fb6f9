"""Removes break, continue and return: structured ifs and one exit local per loop, so that every block has a single exit.

The exit local of a loop is 0 while the body falls through, ``CONTINUE`` after a continue, and a positive number, one for each place in the
source, after a break or a return. The body resets it at its top; the loop is left if it is positive after the body. A return
is an exit of every loop around it.

An arm of an ``if`` that always leaves takes the rest of the block into the other arm. When it always leaves through one place, the
``if`` is marked with that place (``site``, ``site_local``), so that a backward pass, which knows how each iteration ended, needs no
condition. Where arms leave only sometimes, the rest is guarded by ``exit == 0``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from ..ir.nodes import Block, Const, Exit, If, Kernel, Loc, Local, LocalStore, Loop, Op, Stmt
from ..ir.types import i32, u1
from ..ir.verify import verified
from ..ir.walk import walk

CONTINUE = -1
RETURN_SITES = 1 << 20
"""Sites from here on are returns: they leave the loop around, too."""

_ALL = ("break", "continue", "return")


@verified()
def lower_exits(kernel: Kernel) -> Kernel:
    """Rewrite every task of ``kernel`` in place; a block without exits is left as it is.

    A continue or a return at the level of a parallel loop's body skips the rest of the iteration. Returns the same kernel.
    """
    for task in kernel.tasks:
        task.prologue = lower_block(task.prologue)
        task.body = lower_block(task.body)
    return kernel


def lower_block(block: Block) -> Block:
    """``block`` without exits, for a block that is not inside any loop: a continue or a return skips the rest of it."""
    if not any(isinstance(s, Exit) for s in walk(block)):
        return block
    exit_local = Local(i32, "exit") if _leaves(block) else None
    body, _ = _lower(block, exit_local, count(1))
    return body if exit_local is None else [LocalStore(exit_local, Const(0, i32)), *body]


def leaves(block: Block, kind: str) -> bool:
    """Whether the body of a loop may leave it in one way: ``break`` of its own, or a ``return`` of any loop in it."""
    return _leaves(block, (kind,))


def _leaves(block: Block, kinds: tuple[str, ...] = _ALL) -> bool:
    """Whether the block may leave through an exit of its own loop, or through a return of any loop in it."""
    for s in block:
        if isinstance(s, Exit) and s.kind in kinds:
            return True
        if isinstance(s, If) and (_leaves(s.then, kinds) or _leaves(s.orelse, kinds)):
            return True
        if isinstance(s, Loop) and "return" in kinds and _leaves(s.body, ("return",)):
            return True
    return False


def _lower(block: Block, exit_local: Local | None, sites: Iterator[int]) -> tuple[Block, int]:
    """The block without exits, and the code with which it ALWAYS leaves (0: it may fall through, or leaves with several)."""
    out: Block = []
    for position, s in enumerate(block):
        if isinstance(s, Exit):
            assert exit_local is not None
            code = {"break": next(sites), "return": RETURN_SITES + next(sites), "continue": CONTINUE}[s.kind]
            out.append(LocalStore(exit_local, Const(code, i32), s.loc))
            return out, code
        if isinstance(s, Loop):
            returns = _leaves(s.body, ("return",))
            out += _lower_loop(s, sites)
            if returns and s.exit is not None and exit_local is not None:
                out += _pass_return_on(s, block[position + 1 :], exit_local, sites)
                return out, 0
        elif isinstance(s, If) and (_leaves(s.then) or _leaves(s.orelse)):
            assert exit_local is not None
            out += _lower_if(s, block[position + 1 :], exit_local, sites)
            return out, 0
        elif isinstance(s, If):
            s.then = _lower(s.then, exit_local, sites)[0]
            s.orelse = _lower(s.orelse, exit_local, sites)[0]
            out.append(s)
        else:
            out.append(s)
    return out, 0


def _lower_loop(s: Loop, sites: Iterator[int]) -> list[Stmt]:
    """The loop with a lowered body; before it, its exit local as 0 for the case that it runs no iteration."""
    if not any(isinstance(inner, Exit) for inner in walk(s.body)):
        return [s]
    if not _leaves(s.body):
        s.body = _lower(s.body, None, sites)[0]
        return [s]
    s.exit = Local(i32, "exit")
    s.body = [LocalStore(s.exit, Const(0, i32), s.loc), *_lower(s.body, s.exit, sites)[0]]
    return [LocalStore(s.exit, Const(0, i32), s.loc), s]


def _pass_return_on(s: Loop, rest: Block, exit_local: Local, sites: Iterator[int]) -> list[Stmt]:
    """After a loop that may have been left by a return: leave this level too, else run the rest."""
    code = Op("load", (), i32, s.exit, s.loc)
    returned = Op("ge", (code, Const(RETURN_SITES, i32)), u1, None, s.loc)
    site = RETURN_SITES + next(sites)
    tail, _ = _lower(rest, exit_local, sites)
    leave: Block = [LocalStore(exit_local, Const(site, i32), s.loc)]
    return [code, returned, If(returned, leave, tail, site, exit_local, s.loc)]


def _lower_if(s: If, rest: Block, exit_local: Local, sites: Iterator[int]) -> list[Stmt]:
    """An ``if`` that may leave, and the rest of its block."""
    then_leaves = _leaves(s.then)  # asked first: lowering edits the loops inside
    then, code = _lower(s.then, exit_local, sites)
    if code:  # what follows belongs to the other arm
        tail, _ = _lower(s.orelse + rest, exit_local, sites)
        return [_marked(s, s.cond, then, tail, code, exit_local)]
    orelse, code = _lower(s.orelse, exit_local, sites)
    if code:
        negated = Op("not", (s.cond,), u1, None, s.loc)
        if then_leaves:
            tail = _guarded(then, rest, exit_local, sites, s.loc)
        else:
            tail, _ = _lower(then + rest, exit_local, sites)
        return [negated, _marked(s, negated, orelse, tail, code, exit_local)]
    return [If(s.cond, then, orelse, loc=s.loc), *_guarded([], rest, exit_local, sites, s.loc)]


def _marked(s: If, cond: Op | Const, leaving: Block, other: Block, code: int, exit_local: Local) -> If:
    """An ``if`` whose first arm always leaves; marked with the site unless that is a continue."""
    if code > 0:
        return If(cond, leaving, other, code, exit_local, s.loc)
    return If(cond, leaving, other, loc=s.loc)


def _guarded(first: Block, rest: Block, exit_local: Local, sites: Iterator[int], loc: Loc | None) -> Block:
    """``first`` (lowered, may have left), then the rest unless it has."""
    tail, _ = _lower(rest, exit_local, sites)
    if not tail:
        return first
    code = Op("load", (), i32, exit_local, loc)
    falls_through = Op("eq", (code, Const(0, i32)), u1, None, loc)
    return [*first, code, falls_through, If(falls_through, tail, loc=loc)]
