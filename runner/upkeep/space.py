"""Disk space: the minimum that a run will write, checked before the first trial starts.

Every number comes from the plan and the parameters. The gradient with respect to a parameter has the parameter's shape; of another
gradient only an upper bound is known before the job runs, the plan's ``gradients``. A run is refused if even the minimum does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..store.attempts import INLINE_BYTES
from ..store.files import Files, StorageFull
from ..study.plan import PlannedGroup
from ..study.trial_list import Trial, Trials
from ..value_columns import Array, index_of

LINE_BYTES = 1500
"""Bytes of a trial without its arrays: its lines in the journal (measured: 1.1 to 1.4 KB), including its plan by kind, and its row."""
TEXT_BYTES = 20
"""Bytes of a number in a line of the journal."""
BLOCK_BYTES = 4096
"""Bytes of a small file on a disk."""
NUMBER_BYTES = 8
SPARE_BYTES = 16 << 20
"""Bytes that must remain free: logs, the table, the next plan."""


@dataclass(frozen=True)
class Estimate:
    """Bytes that a run will write: at ``least``, and at ``most`` as far as its plan says; of ``trials`` trials."""

    least: int
    most: int
    trials: int


def estimate(trials: Iterable[Trial], groups: Iterable[PlannedGroup], gradients: Iterable[str]) -> Estimate:
    """Bytes of the records of ``trials``.

    Args:
        trials: the trials of the run.
        groups: their plans.
        gradients: the names of the gradients that are kept.
    """
    wanted, made = tuple(gradients), Trials.of(trials)
    names = [name for name in wanted if name in made.columns]
    numbers = np.zeros(len(made), np.int64)
    for name in names:
        column = made.columns[name]
        known = column.distinct_numbers()
        each = list(map(_numbers, column.distinct())) if known is None else [math.prod(known.shape[1:])] * len(known)
        counts = np.array(each, np.int64)
        numbers += counts if column.places is None else counts[column.places]
    low = record_bytes(numbers + len(wanted) - len(names))
    least = int(low.sum())
    if len(names) == len(wanted):
        return Estimate(least, least, len(made))
    larger = np.zeros(len(made), np.int64)
    for group in groups:
        larger[index_of(group.places)] = _bound(group) // NUMBER_BYTES
    return Estimate(least, int(np.maximum(low, record_bytes(larger)).sum()), len(made))


def _bound(group: PlannedGroup) -> int:
    """The bytes of all gradients of a trial, at most, as far as the plan says."""
    return group.plan.by_kind().get("gradients", 0) if group.plan is not None else 0


def _numbers(value: Any) -> int:
    if type(value) is float or (type(value) is list and {float}.issuperset(map(type, value))):
        return len(value) if type(value) is list else 1
    if isinstance(value, Mapping):
        return sum(_numbers(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(_numbers(item) for item in value)
    return 1


def record_bytes(numbers: Array) -> Array:
    """Bytes of the records of trials with so many numbers: as text in the journal and in the table, or as a file."""
    inline, apart = numbers * (TEXT_BYTES + NUMBER_BYTES), 4 * BLOCK_BYTES + numbers * NUMBER_BYTES
    return LINE_BYTES + np.where(numbers * NUMBER_BYTES <= INLINE_BYTES, inline, apart)


def check_room(files: Files, wanted: Estimate) -> str:
    """Compare a run with the room there is; gives a warning where it may not suffice, else nothing. An object store is never full.

    Raises:
        StorageFull: there is less than the run will write at least; nothing was started.
    """
    free = files.free_bytes()
    if free is None:
        return ""
    need = wanted.least + SPARE_BYTES
    if free < need:
        raise StorageFull(
            f"not enough room in {files.root}: {wanted.trials} trials will write at least {_amount(wanted.least)} "
            f"({_amount(wanted.least // max(1, wanted.trials))} each, and {_amount(SPARE_BYTES)} must be left), {_amount(free)} are free\n"
            "  do: make room, set `output` to another disk, or ask for fewer `gradients`; nothing was started"
        )
    if free < wanted.most + SPARE_BYTES:
        return (
            f"{files.root} has {_amount(free)} free; gradients as large as the plan's would take up to {_amount(wanted.most)}: "
            "the run will pause when the disk is full"
        )
    return ""


def _amount(number: int) -> str:
    size = float(number)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
