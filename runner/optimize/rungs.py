"""Descents of a sweep that are compared with each other at some of their steps, the rungs, so that those behind the others end there.

The rules are asynchronous: a descent is compared with what others have reached by then, and waits for none. Successive halving in this form
is that of Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020; the median rule that of Golovin et al., Google
Vizier, KDD 2017, with the best loss of each descent instead of its average.

What was reached is in the run's folder, in ``rungs/<worker>.jsonl``: each line has a step, and the best loss so far of each trial that has
reached it. A worker writes its own file and reads those of the others.

Which runs end depends on their order. So a run that repeats an earlier one ends each where it ended then: ``ends.json`` has these steps.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np
from pydantic_core import to_json

from ..config.optimize_section import TrialsSection
from ..store.encoding import NewLines, sealed, unsealed
from ..store.files import Files, StorageFull, escaped
from ..store.interface import Growing

FOLDER, ENDS = "rungs", "ends.json"
READ_EVERY_S = 0.5
"""Between two looks at the files of other workers."""
SYNC_EVERY_S = 5.0
"""Between two writes to a store without append, which writes a file again."""


def is_rung(rule: TrialsSection, step: int) -> bool:
    """Whether descents are compared at a step: of ``halving`` first, first * factor, first * factor^2, .., rounded up; of ``median`` all
    multiples of ``first``.
    """
    if rule.rule == "median":
        return step > 0 and step % rule.first == 0
    rung = float(rule.first)
    while np.ceil(rung) < step:
        rung *= rule.factor
    return np.ceil(rung) == step


def behind(rule: TrialsSection, losses: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which descents end at a rung.

    Args:
        rule: how they are compared.
        losses: (descents,), the best of each so far.
        known: (others,), those of all that have reached this rung, these included.

    Returns:
        (descents,), booleans: of ``halving`` those outside of the best 1 / factor of all, of ``median`` those above the median.
    """
    if len(known) < rule.least:
        return np.zeros(len(losses), bool)
    return losses > np.quantile(known, 0.5 if rule.rule == "median" else 1.0 / rule.factor)


class Rungs:
    """What the descents of a run have reached. Safe to call from several threads.

    Args:
        files: of the run; None: only the descents of this object are compared.
        name: of this worker's file.
        check: is called before each write, and refuses a lost owner.
    """

    def __init__(self, files: Files | None = None, name: str = "", check: Callable[[], None] = lambda: None) -> None:
        self._files, self._path, self._check = files, f"{FOLDER}/{escaped(name)}.jsonl", check
        self._losses = defaultdict[int, dict[str, float]](dict)  # by step, then by trial
        self._lines = None if files is None else NewLines(files)
        self._file: Growing | None = None
        self._read_due = self._sync_due = 0.0
        self._lock = threading.Lock()

    @cached_property
    def ends(self) -> dict[str, int] | None:
        """The step at which each trial that is behind ends, where an earlier run decides; None: they are compared."""
        if self._files is None or not self._files.exists(ENDS):
            return None
        return json.loads(self._files.read(ENDS))

    def reached(self, step: int, losses: Mapping[str, float]) -> np.ndarray:
        """Note the best losses of trials at a rung. Returns those of all trials that are known to have reached it."""
        with self._lock:
            self._losses[step] |= losses
            if self._files is not None:
                with suppress(StorageFull, OSError):  # the store is full or away: those of this worker are compared
                    self._write(step, losses)
                    self._look()
            return np.fromiter(self._losses[step].values(), float)

    def _write(self, step: int, losses: Mapping[str, float]) -> None:
        assert self._files is not None
        self._check()
        if self._file is None:
            self._file = self._files.grow(self._path)
        self._file.append(sealed(to_json({"step": step, "losses": losses}), looked_through=True) + b"\n")
        if not self._file.immediate and time.monotonic() >= self._sync_due:
            self._file.sync()
            self._sync_due = time.monotonic() + SYNC_EVERY_S

    def _look(self) -> None:
        """Read what others have written since the last look."""
        assert self._files is not None
        assert self._lines is not None
        if time.monotonic() < self._read_due:
            return
        for path, size in self._files.below(FOLDER).items():
            for line in self._lines.of(path, size) if path != self._path else ():
                with suppress(ValueError):  # a damaged line
                    found = unsealed(line)
                    self._losses[found["step"]] |= found["losses"]
        self._read_due = time.monotonic() + READ_EVERY_S

    def close(self) -> None:
        """Write what is left."""
        with self._lock, suppress(StorageFull, OSError):
            if self._file is not None:
                self._file.close()
                self._file = None


def compared(
    rule: TrialsSection, rungs: Rungs, step: int, trials: Sequence[str], best: np.ndarray, running: np.ndarray
) -> np.ndarray:
    """Which of the descents of a group end at a step: (descents,), booleans.

    Args:
        rule: how they are compared.
        rungs: what others have reached.
        step: of all of them.
        trials: their ids.
        best: (descents,), the best loss of each so far.
        running: (descents,), whether it has not ended.
    """
    out = np.zeros(len(trials), bool)
    rows = np.flatnonzero(running & np.isfinite(best)).tolist()
    if rows and rungs.ends is not None:
        out[rows] = [rungs.ends.get(trials[row]) == step for row in rows]
    elif rows and is_rung(rule, step):
        known = rungs.reached(step, {trials[row]: float(best[row]) for row in rows})
        out[rows] = behind(rule, best[rows], known)
    return out


__all__ = ["ENDS", "FOLDER", "Rungs", "behind", "compared", "is_rung"]
