"""Splits a kernel into parts: kernels of some of its tasks each, which run one after another.

Memory may lack a value that it held between two tasks of a kernel and that the backward pass needs. Between two launches a tape keeps such
values. So each part has as many tasks as the backward pass finds all values of in memory, as the part found it or left it.

The temporaries of the kernel, through which a task hands values to later ones, are fields of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..errors import DataAccessError
from ..ir.nodes import Buffer, Kernel, Place, Task
from ..ir.walk import place_of, replace_place, task_blocks
from .clone import clone_task

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
    begin = 0
    while begin < len(kernel.tasks):
        longest = None
        for end in range(begin + 1, len(kernel.tasks) + 1):
            part = passed.part(kernel.tasks[begin:end])
            try:
                check(part)
            except DataAccessError:
                if longest is None:
                    raise
                break
            longest = part
        assert longest is not None
        found.append(longest)
        begin += len(longest.tasks)
    return Parts(tuple(found), passed.buffer, passed.nbytes)


def has_parts(kernel: Kernel) -> bool:
    """Whether it can be split: one part at most may return a value."""
    return len(kernel.tasks) > 1 and not kernel.frees and sum(map(_returns, kernel.tasks)) <= 1


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
