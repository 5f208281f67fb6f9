"""Barriers need uniform control flow: finds the code that all threads of a block execute, and lays out the arrays that they share.

A condition that decides whether a barrier is reached must be uniform over the block. ``grid_block`` writes the code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...errors import QdrunSyntaxError
from ...ir.nodes import Block, Buffer, Const, If, Local, LocalStore, Loop, Op, Operand, Place, Stmt, Task
from ...ir.walk import cooperates, fills_blocks, meets, meets_in_grid, place_of, walk
from ..llvm.uniform import analyse
from .hardware import GpuTarget
from .prologue import where
from .waves import Waves, same_in_groups


@dataclass(frozen=True, slots=True)
class BlockCooperation:
    """The facts about the cooperation of a task's threads.

    ``varying``: values that may differ between the threads of a block; ``open``: the blocks of code, by identity, that all threads execute;
    ``whole``: every thread has an iteration; ``waves``: those of ``open`` that whole waves execute, and not the whole block.
    """

    varying: set[Op | Local | Loop]
    open: set[int]
    whole: bool
    waves: set[int] = field(default_factory=set)

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


def meeting(task: Task, lanes: int, may_fail: bool) -> BlockCooperation | None:
    """Analyse the cooperation of a task's threads; None: they do not cooperate.

    Args:
        task: the task.
        lanes: threads of a wave that exchange values by instructions, or 0.
        may_fail: an iteration may fail, and its thread has none from then on.

    Raises:
        QdrunSyntaxError: not all threads of a block would reach a barrier.
    """
    if not cooperates(task):
        return None
    shapes = analyse(task, frozenset(same_in_groups(task, task.block)))
    out = BlockCooperation(shapes.varying, set(), fills_blocks(task))
    alone = any(isinstance(s, Op) and s.op in ("shuffle", "ballot") for s in walk(task.body))
    waves = None
    if alone and lanes and task.block % lanes == 0:
        waves = Waves(task, lanes, out.varying, out.whole and not may_fail)
    if meets_in_grid(task):
        _check_grid(task)
    loads: Counter[Local] = Counter(_reads(task.body))
    _open(task.body, out, loads, waves)
    return out


def _of_block(s: Op) -> bool:
    place = place_of(s)
    return place is not None and place.buffer.kind == "block"


def _check_grid(task: Task) -> None:
    """See that all threads of the loop come to the barriers of the grid.

    Raises:
        QdrunSyntaxError: only the device knows how many threads there are, or a condition may differ between blocks.
    """
    first = next(s for s in walk(task.body) if isinstance(s, Op) and s.op == "barrier" and s.attr == "grid")
    if where(task) != "host":
        raise QdrunSyntaxError(
            "simt.grid.sync() stands in a loop whose length only the device knows: it must run all iterations at the same time",
            first.loc,
            "let the loop run over a field, a literal, an argument or a shape",
        )
    apart = frozenset(s for s in walk(task.body) if isinstance(s, Op) and s.op == "gload" and _of_block(s))
    varying = analyse(task, apart=apart).varying
    for s in walk(task.body):
        decides = s.cond if isinstance(s, If) else s
        if isinstance(s, (If, Loop)) and not isinstance(decides, Const) and decides in varying:
            inner = next((x for x in walk([s]) if isinstance(x, Op) and x.op == "barrier" and x.attr == "grid"), None)
            if inner is not None:
                raise _refused(s, inner, "the loop")


def _reads(block: Block) -> Iterator[Local]:
    for s in walk(block):
        if isinstance(s, Op) and isinstance(s.attr, Local):
            yield s.attr
        elif isinstance(s, Loop) and s.exit is not None:
            yield s.exit


def _open(block: Block, out: BlockCooperation, loads: Counter[Local], waves: Waves | None, alone: bool = False) -> None:
    """Mark a block that all threads execute, and the blocks in it. ``alone``: a wave does so without the others of its block."""
    out.open.add(id(block))
    if alone:
        out.waves.add(id(block))
    for s in block:
        if not isinstance(s, (If, Loop)):
            continue
        barriers = [x for x in walk([s]) if meets(x)]
        barrier = next((x for x in barriers if not _of_wave(x)), barriers[0] if barriers else None)
        decides = s.cond if isinstance(s, If) else s
        same, apart = isinstance(decides, Const) or decides not in out.varying, alone
        if not same and waves is not None and (barrier is None or _of_wave(barrier)) and waves.same(decides):
            same = apart = True
        if barrier is not None and not same:
            assert isinstance(barrier, Op)
            raise _refused(s, barrier, "a block")
        if barrier is not None or (same and _decides(s, out, loads, waves)):
            for inner in (s.then, s.orelse) if isinstance(s, If) else (s.body,):
                _open(inner, out, loads, waves, apart)


def _refused(around: If | Loop, barrier: Op, who: str) -> QdrunSyntaxError:
    """The error of a barrier that not all threads of ``who`` reach."""
    return QdrunSyntaxError(
        f"{_called(barrier)} stands in {'a condition' if isinstance(around, If) else 'a loop'} that may differ between the threads of"
        f" {who} (line {around.loc.line if around.loc else '?'}): the threads that reach it would wait forever for the others",
        barrier.loc,
        "put it where all threads reach it: end the `if` before it, and let the loops around it run over literals, arguments,"
        " shapes, or what is read at an index that all threads share; `continue`, `break` and `return` count as conditions",
    )


def _of_wave(s: Stmt) -> bool:
    """Whether a statement waits for the threads of its wave only."""
    return isinstance(s, Op) and (s.op in ("shuffle", "ballot") or s.attr == "wave")


def _called(s: Op) -> str:
    if s.op != "barrier" or s.attr in ("wave", "exchange"):
        return "an operation of qd.simt.subgroup"
    return "simt.grid.sync()" if s.attr == "grid" else "simt.block.sync()"


def _decides(s: If | Loop, out: BlockCooperation, loads: Counter[Local], waves: Waves | None) -> bool:
    """Whether a statement without a barrier sets a variable that all threads of the block, or of a wave, have in common, and that is read
    elsewhere: those without an iteration must know it, too.
    """
    own = Counter(_reads([s]))
    stored = {x.local for x in walk([s]) if isinstance(x, LocalStore)}
    common = (x for x in stored if x not in out.varying or (waves is not None and waves.same(x)))
    return any(loads[x] > own[x] for x in common)


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
