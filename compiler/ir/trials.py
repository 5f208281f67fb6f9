"""The memory layout of the trials of a batched program.

A batched program runs ``count`` independent trials. Trials lie in groups of ``width``: within a group every number of a trial stands
beside the same number of the others, so that one vector load reads it for the whole group, and compiled code depends on the width
alone. The memory of the last group is complete: the trials that are missing in it are *padding*.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TRIAL_ALIGNMENT = 8
"""``trial_bytes`` are multiples of this, and so are the offsets of a root's children: groups then start at multiples of 8 widths."""

STACK_LANES, MOST_STACK_LANES, STACK_ROWS = 16, 64, 4096
"""Threads that a trial with adstacks has in recorded launches on a GPU, at most; the same of few trials; rows that few trials may have.
Each thread has a row."""

GPU_WIDTH, GPU_WIDE = 4, 64
"""Trials of a group on a GPU; from how many elements along the last axis of a trial's fields on each trial lies alone, as its own threads
read its elements side by side then."""

TRIALS, SEEDS, FAILED = "trials", "trials.seeds", "trials.failed"
"""Launch parameters of each task of a batched kernel: how many trials there are; the address of what the random seeds of each trial begin
with, a u64; the address of the failures, ``FAILED_WORDS`` words of 8 bytes for each trial. Both lie as places per trial do."""
TRIAL_PARAMS = frozenset((TRIALS, SEEDS, FAILED))
FAILED_WORDS, FAILED_CODE, FAILED_STATUS, FAILED_VALUES = 8, 0, 1, 2
"""The first failure of a trial: the code of the message, the address of its kernel's status record, operands; 0: there is none."""


@dataclass(frozen=True, slots=True)
class TrialLayout:
    """``count`` trials in groups of ``width``.

    The element at byte ``offset`` of a trial (``Place``: offset + sum(i_k * strides[k])), which has ``size`` bytes, lies at
    ``trial // width * width * trial_bytes + width * offset + trial % width * size``.

    ``batched``: whether each trial has its own memory. ``ONE`` alone is not: no axis counts its trial, and no place has bytes per trial.
    """

    count: int
    width: int
    batched: bool = True

    @property
    def leading(self) -> tuple[int, ...]:
        """The first axes of what ``view`` gives: (groups, width)."""
        return (self.padded // self.width, self.width) if self.batched else ()

    def shape(self, one: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that users see of an array of each trial."""
        return (self.count, *one) if self.batched else one

    @property
    def padded(self) -> int:
        """Trials with those of padding."""
        return -(-self.count // self.width) * self.width

    def trial_bytes(self, nbytes: int) -> int:
        """The bytes that each trial has in a buffer which must hold so many for it."""
        return trial_bytes(nbytes) if self.batched else 0

    def bytes(self, trial_bytes: int) -> int:
        """Bytes of a buffer in which each trial has ``trial_bytes``."""
        return self.padded * trial_bytes

    def address(self, trial_bytes: int, offset: int, size: int, trial: int) -> int:
        """The offset of a trial's element in its buffer."""
        group, lane = divmod(trial, self.width)
        return group * self.width * trial_bytes + self.width * offset + lane * size

    def view(
        self,
        memory: np.ndarray,
        dtype: np.dtype,
        trial_bytes: int,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
    ) -> np.ndarray:
        """A buffer as an array of shape ``(*leading, *shape)``, padding included.

        Args:
            memory: the bytes of the buffer, one after another.
            dtype: of an element.
            trial_bytes: see above.
            offset: of the first element of a trial.
            shape: of a trial's array.
            strides: of a trial's array, in bytes.
        """
        w = self.width
        groups = (w * trial_bytes, dtype.itemsize) if self.batched else ()
        return np.ndarray((*self.leading, *shape), dtype, memory.data, w * offset, (*groups, *(w * s for s in strides)))

    def columns(self, copy: np.ndarray) -> np.ndarray:
        """A row-major copy of what ``view`` gives, as an array of shape ``shape(one)``."""
        return copy.reshape(self.padded, *copy.shape[2:])[: self.count] if self.batched else copy

    def of_trial(self, whole: np.ndarray, trial: int) -> np.ndarray:
        """A trial's array in what ``view`` gives."""
        return whole[trial // self.width, trial % self.width, ...] if self.batched else whole

    def assign(self, whole: np.ndarray, columns: np.ndarray) -> None:
        """Write an array of shape ``shape(one)`` to what ``view`` gives; values are cast. Padding repeats the last trial."""
        if not self.batched:
            whole[...] = columns
            return
        full, rest = divmod(self.count, self.width)
        whole[:full] = columns[: full * self.width].reshape(full, *whole.shape[1:])
        if rest:
            whole[full, :rest] = columns[full * self.width :]
            whole[full, rest:] = columns[-1]


ONE = TrialLayout(1, 1, batched=False)
"""The layout of a program that is not batched, and of what all trials of a batched one share."""


def group_width(count: int, lanes: int, most: int) -> int:
    """The trials of a group on a CPU: ``lanes`` if that is not 0, else up to ``most``, and for few trials the next power of two."""
    return lanes or min(most, 1 << (count - 1).bit_length())


def gpu_layout(count: int, extent: int) -> TrialLayout:
    """Trials on any GPU, so that plans need none. ``extent``: of the longest last axis of what each trial has its own of."""
    return TrialLayout(count, 1 if extent >= GPU_WIDE else GPU_WIDTH)


def stack_rows(count: int) -> int:
    """The adstack rows of so many trials on a GPU, if ``gpu_lanes`` asks for none; more trials never have fewer."""
    return max(STACK_LANES * count, min(MOST_STACK_LANES * count, STACK_ROWS))


def stack_lanes(count: int) -> int:
    """The most threads of a trial with adstacks in recorded launches on a GPU: a power of two."""
    return 1 << (stack_rows(count) // max(1, count)).bit_length() - 1


def trial_bytes(nbytes: int) -> int:
    """The bytes that a trial has in a buffer which must hold so many for each."""
    return -(-nbytes // TRIAL_ALIGNMENT) * TRIAL_ALIGNMENT
