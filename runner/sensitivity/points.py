"""The points of a sweep with their losses and gradients, from the rows of a run; repeats of a point are put together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...compiler.errors import QdrunError

Row = Mapping[str, Any]


class NothingToSee(QdrunError, ValueError):
    """A run has no finished trial with a gradient of a parameter."""


@dataclass(frozen=True)
class Samples:
    """The finished trials of a run, by point. Trials at one point are repeats: they differ by the seed alone.

    Attributes:
        names: the parameters with a gradient.
        values: of each, (trials, numbers) f64.
        gradients: of each, (trials, numbers) f64.
        losses: (trials,) f64.
        point: of each trial the number of its point, from 0.
        trials: the ids.
        swept: the plain numbers among the parameters that have several values, with or without a gradient: (trials,) f64.
        steps: time steps of each trial, where a parameter says so; else empty.
        skipped: trials that have not finished, or have no number somewhere.
    """

    names: tuple[str, ...]
    values: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray]
    losses: np.ndarray
    point: np.ndarray
    trials: tuple[str, ...]
    swept: Mapping[str, np.ndarray]
    steps: np.ndarray
    skipped: int = 0
    others: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    """Of each trial the number of what it has besides the swept numbers: lines of the sweep have one in common."""

    @property
    def points(self) -> int:
        """The number of points."""
        return int(self.point.max()) + 1

    @property
    def repeats(self) -> np.ndarray:
        """The trials of each point, (points,)."""
        return np.bincount(self.point)

    def mean(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers of trials, averaged over the repeats of each point: (points,)."""
        return np.bincount(self.point, numbers) / self.repeats

    def error(self, numbers: np.ndarray) -> np.ndarray:
        """The standard error of ``mean``, (points,), from the spread of repeats; NaN where a point has one trial."""
        counts, mean = self.repeats, self.mean(numbers)
        square = np.bincount(self.point, (numbers - mean[self.point]) ** 2)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.sqrt(square / (counts - 1) / counts)


def samples_of(rows: Iterable[Row], run: str) -> Samples:
    """The samples of a run.

    Args:
        rows: of the run, with their arrays.
        run: its name, for messages.

    Raises:
        NothingToSee: no finished trial has a gradient of a parameter.
    """
    rows = [_where_it_ended(row) for row in rows]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    names = [name[5:] for name in columns if name.startswith("grad.") and f"param.{name[5:]}" in columns]
    done = [row for row in rows if row["status"] == "done" and np.isfinite(_number(row.get("loss")))]
    names = [name for name in names if any(_fits(row, name) for row in done)]
    kept = [row for row in done if names and all(_fits(row, name) for name in names)]
    if not kept:
        raise NothingToSee(
            f"{run} has no finished trial with a loss and a gradient of a parameter\n"
            "  do: name parameters under `gradients` of the config; `qdrun results` shows what the run has"
        )
    params = [name for name in columns if name.startswith("param.")]
    swept = {name[6:]: _column(kept, name) for name in params if _is_swept(kept, name)}
    fixed = [name for name in params if name[6:] not in swept]
    return Samples(
        names=tuple(names),
        values={name: _matrix(kept, f"param.{name}") for name in names},
        gradients={name: _matrix(kept, f"grad.{name}") for name in names},
        losses=_column(kept, "loss"),
        point=_numbered(kept, params),
        trials=tuple(row["trial"] for row in kept),
        swept=swept,
        steps=_column(kept, "param.steps") if all(_number(row.get("param.steps")) > 0 for row in kept) else np.zeros(0),
        skipped=len(rows) - len(kept),
        others=_numbered(kept, fixed),
    )


def _where_it_ended(row: Row) -> Row:
    """The row of an optimised trial with the parameters that were found: its loss and its gradients are those of that point."""
    found = {f"param.{name[8:]}": row[name] for name in row if name.startswith("out.opt.") and f"param.{name[8:]}" in row}
    return {**row, **found} if found else row


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")


def _flat(value: Any) -> np.ndarray:
    try:
        return np.asarray(value, np.float64).ravel()
    except (TypeError, ValueError):
        return np.full(1, np.nan)


def _fits(row: Row, name: str) -> bool:
    """Whether a row has finite numbers and as many derivatives."""
    value, slope = _flat(row.get(f"param.{name}")), _flat(row.get(f"grad.{name}"))
    return value.shape == slope.shape and bool(value.size) and bool(np.isfinite(value).all())


def _column(rows: Sequence[Row], name: str) -> np.ndarray:
    return np.array([_number(row.get(name)) for row in rows])


def _matrix(rows: Sequence[Row], name: str) -> np.ndarray:
    parts = [_flat(row[name]) for row in rows]
    out = np.zeros((len(parts), max(part.size for part in parts)))  # shorter ones end with zeros, which change no sum
    for line, part in zip(out, parts, strict=True):
        line[: part.size] = part
    return out


def _is_swept(rows: Sequence[Row], name: str) -> bool:
    column = _column(rows, name)
    return bool(np.isfinite(column).all()) and np.unique(column).size > 1


def _numbered(rows: Sequence[Row], names: Sequence[str]) -> np.ndarray:
    """Of each row the number of its values of these columns, from 0 on."""
    known: dict[str, int] = {}
    keys = (json.dumps([row.get(name) for name in names], default=str) for row in rows)
    return np.array([known.setdefault(key, len(known)) for key in keys])


__all__ = ["NothingToSee", "Samples", "samples_of"]
