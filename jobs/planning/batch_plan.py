"""The memory of batches, for every number of trials, from builds of a few trials. No device of the backend is needed, and nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from ..core.job import Job
from ..core.optimizer import OptimizerSpec
from .groups import why_not_batched
from .memory_plan import MemoryPlan
from .plan import differentiated, heap_planes, launches_of

ADSTACK = "adstack"
SMALL = 8
"""Trials of the smaller one of two planned batches: on every backend whole groups of the largest width."""
MOST_TRIALS = 2**31 - 1
"""No program has more: kernels count trials in 32 bits of what a GPU can launch."""


@dataclass(frozen=True)
class HeapPiece:
    """The heap of batches from ``first`` groups on, up to the next piece: ``bytes``, and ``more`` for each further group."""

    first: int
    bytes: int
    more: int


@dataclass(frozen=True)
class BatchPlan:
    """The memory of batches of one job: ``fixed + ceil(B / width) * width * per_trial + heap`` bytes for B trials.

    Attributes:
        width: trials of a group, which are adjacent in memory. Memory is allocated for whole groups. On a CPU, fewer trials than
            ``width`` are one group of 1, 2, 4, ... trials.
        per_trial: bytes of one trial: its fields and their gradients, its temporaries, its seed and its failure.
        fixed: bytes that all trials share.
        heap: the adstack heap: a row belongs to a worker, so it grows until all workers are busy.
        memory: the plan of a small batch, whose entries say what asks for the bytes.
        most: the most trials of one program, whatever its memory.
        narrow: the adstack heap of one group of 1, 2, 4, ... trials; empty where all groups have ``width`` trials.
    """

    width: int
    per_trial: int
    fixed: int
    heap: tuple[HeapPiece, ...]
    memory: MemoryPlan
    most: int = MOST_TRIALS
    narrow: tuple[int, ...] = ()

    def bytes(self, trials: int) -> int:
        """The peak bytes of a program with that many trials.

        Raises:
            ValueError: there are fewer trials than one, or more than ``most``.
        """
        if not 1 <= trials <= self.most:
            raise ValueError(f"a batch of {trials} trials\n  do: plan 1 to {self.most:,} trials")
        for k in range((trials - 1).bit_length(), len(self.narrow)):
            return self._of_narrow(k)
        groups = -(-trials // self.width)
        piece = next(p for p in reversed(self.heap) if p.first <= groups)
        return self._of(piece, groups)

    def _of(self, piece: HeapPiece, groups: int) -> int:
        heap = piece.bytes + (groups - piece.first) * piece.more
        return self.fixed + groups * self.width * self.per_trial + heap

    def _of_narrow(self, k: int) -> int:
        """Bytes of one group of ``2**k`` trials."""
        return self.fixed + (self.per_trial << k) + self.narrow[k]

    def max_batch(self, limit: int) -> int:
        """The most trials whose program holds at most ``limit`` bytes; 0: not even one fits. The exact inverse of ``bytes``."""
        last = -(-self.most // self.width)
        for piece in reversed(self.heap):
            first = self._of(piece, piece.first)
            if first <= limit:
                each = self.width * self.per_trial + piece.more
                groups = min(last, piece.first + (limit - first) // each) if each > 0 else last
                return min(groups * self.width, self.most)
            last = piece.first - 1
        return max((1 << k for k in range(len(self.narrow)) if self._of_narrow(k) <= limit), default=0)


def batch_plan(
    job: type[Job[Any]],
    params: BaseModel,
    *,
    wanted: Sequence[str] | None = None,
    backend: str = "cpu",
    threads: int | None = None,
    arch: str | None = None,
    optimizer: OptimizerSpec | None = None,
) -> BatchPlan:
    """Plan the batches of the group that ``params`` belongs to, without a device of ``arch``. Nothing runs.

    The bounds of loops may depend on what fields hold: then the plan is that of trials which all are as ``params`` says.

    Args:
        job: the class.
        params: of any trial of the group.
        wanted: gradients; None: all of ``Job.gradients``.
        backend: where the job is built for its plan, as in ``Job.opened``.
        threads: CPU threads of the program; None: as many as the compiler takes.
        arch: plan for this backend, which need not be there; None: for ``backend``.
        optimizer: its steps run in the program, too.

    Raises:
        ValueError: the job cannot run in batches, see ``why_not_batched``.
    """
    why = why_not_batched(job, params, wanted=wanted)
    if why:
        raise ValueError(f"{job.__name__} cannot run in batches: {why}\n  do: plan one trial: Job.plan()")
    made = job(params, wanted=wanted)
    made.optimizer_spec = optimizer
    with made.opened(backend=backend, threads=threads, arch=arch, batch=SMALL):
        small = made.plan(arch=arch)
        program, own = made.program, made.program.trials
        width, other = program.trials_of(SMALL, arch).width, {} if arch is None else {"arch": arch}
        launches = differentiated(made, launches_of(made))

        def heap(count: int) -> int:
            trials = program.trials_of(count, arch)
            return sum(heap_planes([kernel.grad.plan(*args, trials=trials, **other) for kernel, args in launches]).values())

        pieces = pieces_of(lambda groups: heap(groups * width), program.most_groups(arch))
        widths = [1 << k for k in range((width - 1).bit_length())]
        narrow = tuple(heap(count) for count in widths if program.trials_of(count, arch).width == count)
    with made.opened(backend=backend, threads=threads, arch=arch, batch=SMALL + 1):
        more = _beside_heap(made.plan(arch=arch)) - _beside_heap(small)
    per_trial = more // own.width
    return BatchPlan(width, per_trial, _beside_heap(small) - own.padded * per_trial, pieces, small, narrow=narrow)


def _beside_heap(plan: MemoryPlan) -> int:
    return plan.bytes - plan.by_kind().get(ADSTACK, 0)


def pieces_of(heap: Callable[[int], int], last: int) -> tuple[HeapPiece, ...]:
    """The heap as pieces of straight lines.

    Args:
        heap: bytes for so many groups.
        last: from so many groups on it is the same.
    """
    known: dict[int, int] = {}

    def at(groups: int) -> int:
        if groups not in known:
            known[groups] = heap(groups)
        return known[groups]

    pieces: list[HeapPiece] = []
    waiting = [(1, last)]
    while waiting:
        a, b = waiting.pop()
        if b - a <= 1:
            pieces.append(HeapPiece(a, at(a), at(b) - at(a)))
            continue
        more, rest = divmod(at(b) - at(a), b - a)
        inner = (a + 1, (a + b) // 2, b - 1)
        if rest == 0 and all(at(x) == at(a) + (x - a) * more for x in inner):
            pieces.append(HeapPiece(a, at(a), more))
        else:
            waiting += [((a + b) // 2, b), (a, (a + b) // 2)]
    whole = [p for p in pieces if p.first < last] + [HeapPiece(last, at(last), 0)]
    return tuple(p for k, p in enumerate(whole) if not k or _differs(whole[k - 1], p))


def _differs(before: HeapPiece, piece: HeapPiece) -> bool:
    """Whether a piece does not go on with the line before it."""
    return piece.more != before.more or piece.bytes != before.bytes + (piece.first - before.first) * before.more


__all__ = ["BatchPlan", "HeapPiece", "batch_plan", "pieces_of"]
