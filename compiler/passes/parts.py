"""Splits a kernel into parts: kernels of some of its tasks each, which run one after another.

Memory may lack a value that it held between two tasks of a kernel and that the backward pass needs. Between two launches a tape keeps such
values. So each part has as many tasks as the backward pass finds all values of in memory, as the part found it or left it. A task in
which memory lacks values is cut between its loops, where no local variable crosses the cut: ``for _ in range(1):`` around two sweeps.

The temporaries of the kernel, through which a task hands values to later ones, are fields of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..errors import DataAccessError
from ..ir.nodes import Block, Buffer, If, Kernel, Local, LocalStore, Loop, Op, Place, Stmt, Task
from ..ir.walk import cooperates, operands, place_of, replace_place, task_blocks, walk
from .clone import clone_task
from .dependence.indexing import extents

WORD = 8
"""Bytes of a temporary, of its gradient, and of its dual."""


@dataclass(frozen=True)
class Parts:
    """A kernel in parts.

    Attributes:
        kernels: the parts in their order; none where it cannot be split.
        passed: the buffer of its temporaries.
        passed_bytes: its size, in each trial of a batch; 0: the kernel has no temporaries.
    """

    kernels: tuple[Kernel, ...]
    passed: Buffer
    passed_bytes: int


def split(kernel: Kernel, check: Callable[[Kernel], object], batched: bool) -> Parts:
    """Split a kernel that has no gradient as a whole, because memory lacks values.

    Args:
        kernel: lowered and simplified; not changed.
        check: reverses a kernel.
        batched: each trial of a batch has temporaries of its own.

    Raises:
        DataAccessError: memory lacks a value within one task.
        DifferentiationError: what else ``check`` raises.
    """
    passed = _Passed(kernel, batched)
    none = Parts((), passed.buffer, 0)
    if not has_parts(kernel):
        return none
    found: list[Kernel] = []
    rest = list(kernel.tasks)
    while rest:
        longest = None
        for end in range(1, len(rest) + 1):
            part = passed.part(rest[:end])
            try:
                check(part)
            except DataAccessError:
                if longest is None and len(pieces_of(rest[0])) == 1:
                    raise
                break
            longest = part
        if longest is None:
            rest[:1] = pieces_of(rest[0])
        else:
            found.append(longest)
            del rest[: len(longest.tasks)]
    return Parts(tuple(found), passed.buffer, passed.nbytes)


def pieces_of(task: Task) -> list[Task]:
    """A task of one iteration as several with the same effects, each with as few statements as share no values; itself where it cannot be
    cut, or has more iterations: they would read what others write.
    """
    if task.prologue or extents(task).several or cooperates(task) or _draws(task):
        return [task]
    ends = _last_uses(task.body)
    pieces: list[Block] = [[]]
    for number, s in enumerate(task.body):
        pieces[-1].append(s)
        if max(ends[: number + 1]) == number and number + 1 < len(task.body):
            pieces.append([])
    return [replace(task, name=f"{task.name}_{k}", body=body) for k, body in enumerate(pieces)] if len(pieces) > 1 else [task]


def _draws(task: Task) -> bool:
    """Whether it draws random numbers: those of later statements follow from those before."""
    return any(isinstance(s, Op) and s.op == "seed" for s in task_blocks(task))


def _last_uses(block: Block) -> list[int]:
    """Of each statement, the number of the last one that uses a value or a local of it."""
    first: dict[Op | Local, int] = {}
    ends = list(range(len(block)))
    for number, s in enumerate(block):
        for inner in walk([s]):
            for x in _touched(inner):
                begin = first.setdefault(x, number)
                ends[begin] = max(ends[begin], number)
    return ends


def _touched(s: Stmt) -> Iterator[Op | Local]:
    """The values and locals that one statement defines or uses; indices of the task's loop are those of all statements."""
    yield from (x for x in operands(s) if isinstance(x, Op) and x.op != "index")
    if isinstance(s, Op):
        yield s
        if isinstance(s.attr, Local):
            yield s.attr
    elif isinstance(s, LocalStore):
        yield s.local
    elif isinstance(s, (Loop, If)) and (local := s.exit if isinstance(s, Loop) else s.site_local) is not None:
        yield local


def has_parts(kernel: Kernel) -> bool:
    """Whether it can be split: one part at most may return a value."""
    several = len(kernel.tasks) > 1 or any(len(pieces_of(task)) > 1 for task in kernel.tasks)
    return several and not kernel.frees and sum(map(_returns, kernel.tasks)) <= 1


def _returns(task: Task) -> bool:
    return any((place := place_of(s)) is not None and place.buffer.kind == "ret" for s in task_blocks(task))


class _Passed:
    """The temporaries of a kernel as fields."""

    def __init__(self, kernel: Kernel, batched: bool) -> None:
        self._kernel, self.buffer = kernel, Buffer("field")
        self.nbytes = 3 * WORD * len(kernel.tmps)
        self._places = {tmp: self._place(tmp, 3 * WORD * k, self.nbytes if batched else 0) for k, tmp in enumerate(kernel.tmps)}

    def _place(self, tmp: Place, at: int, trial_bytes: int) -> Place:
        def at_word(place: Place | None, word: int) -> Place | None:
            return place and replace(place, buffer=self.buffer, offset=at + word * WORD, trial_bytes=trial_bytes)

        where = replace(tmp, buffer=self.buffer, offset=at, trial_bytes=trial_bytes)
        return replace(where, grad=at_word(tmp.grad, 1), dual=at_word(tmp.dual, 2))

    def part(self, tasks: Sequence[Task]) -> Kernel:
        """Some tasks as a kernel of their own, which shares no statement with them."""
        mine = [clone_task(task) for task in tasks]
        for task in mine:
            for s in task_blocks(task):
                replace_place(s, lambda place: self._places.get(place, place))
        returns = self._kernel.returns if any(map(_returns, mine)) else []
        return replace(self._kernel, tasks=mine, tmps=[], returns=returns)
