"""From the sweep section to its points: pure, ordered, and the same for the same seed."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .config import Axis, SweepSection
from .yaml_lines import KeyPath

MAX_TRIALS = 100_000


class SweepError(ValueError):
    """A sweep that cannot be expanded; ``path`` is the key inside the sweep section that is wrong."""

    def __init__(self, path: KeyPath, what: str, allowed: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(what)
        self.path, self.what, self.allowed, self.hint = path, what, tuple(allowed), hint


@dataclass(frozen=True)
class Point:
    """One point of a sweep: the swept values by (dotted) name, and which repetition of them it is."""

    values: dict[str, Any]
    replicate: int = 0


def expand(sweep: SweepSection | None) -> list[Point]:
    """All points of a sweep, in order: the last axis changes fastest, repetitions come last. No sweep is one empty point.

    Raises:
        SweepError: the sweep is empty, larger than 100000 trials, has two equal trials, or its keys contradict each other.
    """
    if sweep is None:
        return [Point({})]
    _check_keys(sweep)
    combinations = {"grid": _grid, "zip": _zipped, "random": _random, "list": _listed}[sweep.method](sweep)
    if len(combinations) * sweep.repeat > MAX_TRIALS:
        raise SweepError((), f"{len(combinations) * sweep.repeat} trials are more than {MAX_TRIALS}", hint="split the sweep")
    return _numbered(combinations, sweep)


def _check_keys(sweep: SweepSection) -> None:
    if sweep.method == "list":
        if not sweep.trials or sweep.params or sweep.zip:
            raise SweepError(
                (), "method `list` needs `trials` and nothing in `params` or `zip`", hint="trials: [{name: value}, ...]"
            )
    elif sweep.trials is not None:
        raise SweepError(("trials",), f"`trials` belongs to method `list`, not to `{sweep.method}`", hint="set method: list")
    elif not sweep.params:
        raise SweepError(
            ("params",), "the sweep is empty", hint="name at least one parameter, or leave `sweep` out for one trial"
        )
    if (sweep.method == "random") != (sweep.samples is not None):
        raise SweepError((), "`samples` is needed by method `random`, and by no other")
    if sweep.zip and sweep.method != "grid":
        raise SweepError(("zip",), "groups in `zip` belong to method `grid`")


def axis_values(name: str, axis: Axis, seed: int) -> list[Any]:
    """The values of one axis of a grid. Draws depend on the seed and the name alone, not on the other axes.

    Raises:
        SweepError: a ``uniform`` or ``normal`` does not say how many values it draws, or a value is not finite.
    """
    values = _values_of(name, axis, seed)
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        raise SweepError(("params", name), f"`{name}` has a value that is not finite", hint="sweeps are over finite numbers")
    return values


def _values_of(name: str, axis: Axis, seed: int) -> list[Any]:
    form, parts = axis.form
    if form in ("grid", "list"):
        return list(parts)
    if len(parts) == 2:
        raise SweepError(("params", name), f"`{form}` in a grid needs how many values to draw as its third number")
    first, second, count = parts
    if form == "linspace":
        values = np.linspace(first, second, count).tolist()
        whole = isinstance(first, int) and isinstance(second, int) and all(float(value).is_integer() for value in values)
        return [int(value) for value in values] if whole else values
    if form == "logspace":
        with np.errstate(over="ignore"):
            return np.logspace(first, second, count).tolist()
    return _draw(form, first, second, _stream(seed, name), count)


def _draw(form: str, first: float, second: float, stream: np.random.Generator, count: int) -> list[float]:
    return (stream.uniform(first, second, count) if form == "uniform" else stream.normal(first, second, count)).tolist()


def _stream(seed: int, name: str) -> np.random.Generator:
    word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.default_rng(np.random.SeedSequence([seed, word]))


def _grid(sweep: SweepSection) -> list[dict[str, Any]]:
    columns = {name: axis_values(name, axis, sweep.seed) for name, axis in sweep.params.items()}
    groups = _zip_groups(sweep, columns)
    size = 1
    blocks = []
    for group in groups:
        block = [dict(zip(group, row)) for row in zip(*(columns[name] for name in group))]
        size *= len(block)
        blocks.append(block)
    if size > MAX_TRIALS:
        raise SweepError(("params",), f"{size} trials are more than {MAX_TRIALS}", hint="use fewer values, or method: random")
    return [{key: value for part in parts for key, value in part.items()} for parts in itertools.product(*blocks)]


def _zip_groups(sweep: SweepSection, columns: dict[str, list[Any]]) -> list[tuple[str, ...]]:
    """The axes in the order of ``params``; a group stands where its first member does."""
    owner: dict[str, tuple[str, ...]] = {}
    for index, group in enumerate(sweep.zip):
        for name in group:
            if name not in columns:
                raise SweepError(("zip", index), f"`{name}` is not a swept parameter", allowed=tuple(columns))
            if name in owner or group.count(name) > 1:
                raise SweepError(("zip", index), f"`{name}` stands in `zip` twice")
            if len(columns[name]) != len(columns[group[0]]):
                counts = ", ".join(f"{member} {len(columns[member])}" for member in group if member in columns)
                raise SweepError(("zip", index), f"zipped parameters need equally many values: {counts}")
        owner.update(dict.fromkeys(group, tuple(group)))
    return list(dict.fromkeys(owner.get(name, (name,)) for name in columns))


def _zipped(sweep: SweepSection) -> list[dict[str, Any]]:
    columns = {name: axis_values(name, axis, sweep.seed) for name, axis in sweep.params.items()}
    if len({len(values) for values in columns.values()}) > 1:
        counts = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
        raise SweepError(("params",), f"zipped parameters need equally many values: {counts}")
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _random(sweep: SweepSection) -> list[dict[str, Any]]:
    assert sweep.samples is not None
    columns: dict[str, list[Any]] = {}
    for name, axis in sweep.params.items():
        form, parts = axis.form
        stream = _stream(sweep.seed, name)
        if form in ("uniform", "normal"):
            if len(parts) != 2:
                raise SweepError(("params", name), f"`{form}` in method `random` takes two numbers; `samples` says how many")
            columns[name] = _draw(form, parts[0], parts[1], stream, sweep.samples)
        else:
            values = axis_values(name, axis, sweep.seed)
            columns[name] = [values[i] for i in stream.integers(len(values), size=sweep.samples)]
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _listed(sweep: SweepSection) -> list[dict[str, Any]]:
    return [dict(values) for values in sweep.trials or []]


def _numbered(combinations: list[dict[str, Any]], sweep: SweepSection) -> list[Point]:
    """Repetitions get numbers; equal points are repetitions among random draws and a mistake anywhere else."""
    seen: dict[str, int] = {}
    points = []
    for values in combinations:
        key = json.dumps(values, sort_keys=True)
        first = seen.get(key, 0)
        if first and sweep.method != "random":
            raise SweepError((), f"two trials are equal: {json.dumps(values)}", hint="use `repeat` to run the same trial again")
        seen[key] = first + sweep.repeat
        points += [Point(values, first + number) for number in range(sweep.repeat)]
    return points
