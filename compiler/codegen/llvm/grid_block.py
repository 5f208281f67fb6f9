"""Loops whose threads meet: barriers, and memory that the threads of a block share.

Iteration n is thread ``n % block`` of block ``n // block``, and a block takes all of its iterations at the same time. In the last block,
threads may have no iteration. They come to every barrier like the others, and do nothing else: the statements of a block of code that has
a barrier in it run one by one, and those that touch memory under the condition that the thread has an iteration. What decides whether
a barrier is reached must therefore be the same for all threads of a block.

A failed iteration becomes one of these threads, so that the others do not wait for it for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import QdrunSyntaxError
from ...ir.nodes import Assert, Block, Buffer, Const, If, Local, LocalStore, Loop, Op, Operand, Place, Stmt, Task
from ...ir.ops import TABLE
from ...ir.walk import cooperates, is_barrier, place_of, walk
from .gpu import GpuTarget
from .prologue import constant, literal_count
from .uniform import analyse

if TYPE_CHECKING:
    from .grid import GridEmitter


@dataclass(frozen=True, slots=True)
class Meeting:
    """How the threads of a task meet. ``varying``: what may differ between the threads of a block; ``open``: the blocks of code, by
    identity, that all threads go through; ``whole``: every thread has an iteration.
    """

    varying: set[Op | Local | Loop]
    open: set[int]
    whole: bool

    def same(self, x: Operand) -> bool:
        """Whether a value is the same for all threads of a block."""
        return isinstance(x, Const) or x not in self.varying


def threads_of(task: Task, target: GpuTarget) -> int:
    """Threads of a block of a task. A loop's wish is followed but where adstacks are laid out for other blocks, or a tree of sums needs a
    power of two; blocks that meet have their size from the program.
    """
    if not task.parallel:
        return 1
    if cooperates(task):
        return task.block
    wish = task.block if target.block > 1 else 0
    if not wish or task.stacks or (task.reductions and wish & (wish - 1)):
        return target.block
    return wish


def meeting(task: Task) -> Meeting | None:
    """How the threads of a task meet; None: they do not.

    Raises:
        QdrunSyntaxError: a barrier that not all threads of a block would come to.
    """
    if not cooperates(task):
        return None
    shapes = analyse(task, frozenset(_same_in_a_block(task)))
    out = Meeting(shapes.varying, set(), (literal_count(task) or 1) % task.block == 0)
    loads: Counter[Local] = Counter(_reads(task.body))
    _open(task.body, out, loads)
    return out


def _same_in_a_block(task: Task) -> Iterator[Op]:
    """Quotients of the iteration's number that are the number of the block, or of a group of blocks."""
    numbers = {s for s in walk(task.body) if isinstance(s, Op) and s.op == "iter"}
    begin = constant(task.axes[0].begin) if len(task.axes) == 1 else None
    if begin is not None and begin >= 0 and begin % task.block == 0:
        numbers.add(task.axes[0].index)
    for s in walk(task.body):
        if not isinstance(s, Op) or not s.args or not isinstance(s.args[0], Op) or s.args[0] not in numbers:
            continue
        by = constant(s.args[1]) if len(s.args) == 2 else None
        if s.op == "cast" and s.dtype.kind in "iu" and s.dtype.bits >= 32:
            numbers.add(s)
        elif by is not None and by > 0:
            by = 1 << by if s.op in ("shr", "sar") and by < 31 else by if s.op in ("floordiv", "cdiv") else 1
            if by % task.block == 0:
                yield s


def _reads(block: Block) -> Iterator[Local]:
    for s in walk(block):
        if isinstance(s, Op) and isinstance(s.attr, Local):
            yield s.attr
        elif isinstance(s, Loop) and s.exit is not None:
            yield s.exit


def _open(block: Block, out: Meeting, loads: Counter[Local]) -> None:
    """Mark a block that all threads go through, and those in it."""
    out.open.add(id(block))
    for s in block:
        if not isinstance(s, (If, Loop)):
            continue
        barrier = next((x for x in walk([s]) if is_barrier(x)), None)
        same = out.same(s.cond) if isinstance(s, If) else s not in out.varying
        if barrier is not None and not same:
            assert isinstance(barrier, Op)
            raise QdrunSyntaxError(
                f"simt.block.sync() stands in {'a condition' if isinstance(s, If) else 'a loop'} that may differ between the threads of a"
                f" block (line {s.loc.line if s.loc else '?'}): those that come to it would wait for the others for ever",
                barrier.loc,
                "put it where all threads come by: end the `if` before it, and let the loops around it run over literals, arguments,"
                " shapes, or what is read at an index that all threads share; `continue`, `break` and `return` count as conditions",
            )
        if barrier is not None or (same and _decides(s, out, loads)):
            for inner in (s.then, s.orelse) if isinstance(s, If) else (s.body,):
                _open(inner, out, loads)


def _decides(s: If | Loop, out: Meeting, loads: Counter[Local]) -> bool:
    """Whether a statement without a barrier sets a variable that all threads have in common, and that is read elsewhere: those without an
    iteration must know it, too.
    """
    own = Counter(_reads([s]))
    stored = {x.local for x in walk([s]) if isinstance(x, LocalStore)}
    return any(x not in out.varying and loads[x] > own[x] for x in stored)


# -- memory of a block


def arrays(task: Task) -> dict[Buffer, tuple[int, int]]:
    """The shared arrays of a task: where each begins, and its bytes, both multiples of 16."""
    sizes: dict[Buffer, int] = {}
    for place in filter(None, map(place_of, walk(task.body))):
        if place.buffer.kind == "block":
            sizes[place.buffer] = max(sizes.get(place.buffer, 0), _end(place))
    out: dict[Buffer, tuple[int, int]] = {}
    begin = 0
    for buffer, size in sizes.items():
        size = -(-size // 16) * 16
        out[buffer] = begin, size
        begin += size
    return out


def _end(place: Place) -> int:
    assert place.shape is not None and place.strides is not None
    return place.offset + sum((n - 1) * s for n, s in zip(place.shape, place.strides)) + place.dtype.size


# -- code


def run(e: GridEmitter, s: Stmt, m: Meeting) -> None:
    """One statement of a block of code that all threads go through."""
    if not e.part or _harmless(s, m):
        e.statement(s)
        return
    inside, skip = e.label("active"), e.label("passive")
    value = e.slot(e.ty(s.dtype, False)) if isinstance(s, Op) else ""
    if value:
        assert isinstance(s, Op)
        e.put(f"store {e.ty(s.dtype, False)} zeroinitializer, ptr {value}")
    e.branch(e.is_active(), inside, skip)
    e.at(inside)
    e.way_out = skip
    e.statement(s)
    e.way_out = ""
    if value:
        assert isinstance(s, Op)
        e.put(f"store {e.ty(s.dtype, False)} {e.operand(s, False)}, ptr {value}")
    e.jump(skip)
    e.at(skip)
    if value:
        assert isinstance(s, Op)
        e.values[s] = (e.t(f"load {e.ty(s.dtype, False)}, ptr {value}"), False)


def _harmless(s: Stmt, m: Meeting) -> bool:
    """Whether threads without an iteration run a statement: it touches no memory, or does what all threads do."""
    match s:
        case If():
            return id(s.then) in m.open
        case Loop():
            return id(s.body) in m.open
        case Op(op="gload"):
            return all(map(m.same, s.args))
        case Op():
            return s.op in ("barrier", "load") or TABLE[s.op].pure
        case Assert():
            return m.same(s.cond)
        case LocalStore():
            return True
    return False


def iterations(e: GridEmitter, m: Meeting, unset: list[Local], begins: list[str], sizes: list[str], count: str) -> None:
    """Block after block, each with all of its threads; where the grid has as many blocks as there are, each takes one."""
    threads, body, out = e.threads_of_block, e.label("block"), e.label("done")
    ty = "i32" if e.narrow_count(begins) else "i64"
    at = e.slot(ty)
    number, blocks, mine = (
        e.t(f"zext i32 {x} to i64") if ty == "i64" else x
        for x in (e.hardware.block_number(e), e.hardware.blocks(e), e.hardware.thread_in_block(e))
    )
    every = e.t(f"add {ty} {count}, {threads - 1}")
    every = e.t(f"udiv {ty} {every}, {threads}")
    e.put(f"store {ty} {number}, ptr {at}")
    e.branch(e.t(f"icmp slt {ty} {number}, {every}"), body, out)
    e.at(body)
    now = e.t(f"load {ty}, ptr {at}")
    iteration = e.t(f"add {ty} {e.t(f'mul {ty} {now}, {threads}')}, {mine}")
    e.start_iteration(iteration, ty, begins, sizes)
    e.part = "" if m.whole else e.t(f"icmp slt {ty} {iteration}, {count}")
    if e.may_fail:
        slot = e.slot("i1")
        e.put(f"store i1 {e.part or 'true'}, ptr {slot}")
        e.part = slot
    for x in unset:
        e.reset(x)
    e.block(e.task.body)
    following = e.t(f"add {ty} {now}, {blocks}")
    e.put(f"store {ty} {following}, ptr {at}")
    again = e.label("again")
    e.branch(e.t(f"icmp slt {ty} {following}, {every}"), again, out)
    e.at(again)
    e.hardware.barrier(e)  # the memory of this block is that of the next one
    e.jump(body)
    e.at(out)
