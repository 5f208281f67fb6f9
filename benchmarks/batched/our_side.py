"""Losses and gradients of many trials by this package: as a batch, or one after the other in one open job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.batched.jax_side import Sweep
from benchmarks.batched.model import Columns, Model

WAYS = ("batch", "alone")


@contextmanager
def opened(model: Model, way: str, columns: Columns, arch: str, threads: int, device: str | None) -> Iterator[Sweep]:
    """A function that runs the trials of such columns, while its program is open.

    Args:
        model: the simulation.
        way: ``batch``, or ``alone`` for one trial after the other.
        columns: parameters of all trials.
        arch: the backend.
        threads: of the CPU.
        device: of a GPU, see ``Job.opened``; ``emulated`` tries it without one.
    """
    kind, fixed = model.job()
    rows = [kind.Params(**fixed, **{name: column[i].tolist() for name, column in columns.items()}) for i in _rows(columns)]
    options: dict[str, Any] = {"backend": arch, "threads": threads if arch == "cpu" else None, "device": device}
    if way == "batch":
        from qdrun.jobs.core.batch import BatchSession

        with BatchSession.open(kind, rows[0], len(rows), wanted=model.wanted, **options) as session:
            yield lambda columns: _batch(session, columns)
    else:
        from qdrun.jobs.base import Session

        with Session(kind(rows[0], wanted=model.wanted), **options) as session:
            yield lambda _: _alone(session, rows, model)


def _rows(columns: Columns) -> range:
    return range(len(next(iter(columns.values()))))


def _batch(session: Any, columns: Columns) -> tuple[np.ndarray, Columns]:
    outcome = session.run_columns(columns)
    if outcome.errors:
        row, error = next(iter(outcome.errors.items()))
        raise RuntimeError(f"{len(outcome.errors)} trials failed, the first in row {row}") from error
    return outcome.losses, dict(outcome.gradients)


def _alone(session: Any, rows: list[Any], model: Model) -> tuple[np.ndarray, Columns]:
    found = [session.run(row) for row in rows]
    return np.array([o.loss for o in found]), {n: np.array([o.gradients[n] for o in found]) for n in model.wanted}
