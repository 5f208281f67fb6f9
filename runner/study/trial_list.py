"""The trials of a run: an object per trial on demand, and columns for operations on many of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import eq
from typing import Any, overload

import numpy as np
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from ..value_columns import ABSENT, ValueColumn, columns_of_rows

PLAIN = (int, str, bool, type(None))


class Trial(BaseModel):
    """One run of the job. ``params`` are all parameters, defaults included; ``swept`` only what the sweep sets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    index: int
    replicate: int
    seed: int
    swept: dict[str, Any]
    params: dict[str, Any]

    @property
    def label(self) -> str:
        """The trial named after its parameters, for people."""
        parts = [f"{name}={short(value)}" for name, value in self.swept.items()]
        parts += [f"replicate={self.replicate}"] if self.replicate else []
        return ",".join(parts)[:120] or "base"


def short(value: Any) -> str:
    """A value in few characters."""
    text = f"{value:.6g}" if isinstance(value, float) else json.dumps(value) if isinstance(value, list | dict) else str(value)
    return text if len(text) <= 24 else text[:21] + "..."


@dataclass(frozen=True)
class Trials(Sequence[Trial]):
    """The trials of a run, in the order of the sweep, as columns. A ``Trial`` is made each time one is asked for.

    Attributes:
        ids, indices, replicates, seeds: a value for each.
        swept: what the sweep sets, by (dotted) name; ``ABSENT`` where it does not.
        columns: the parameters by name: of the names that the first trial has.
        uneven: the parameters of each trial, where not all have the same names.
    """

    ids: Sequence[str]
    indices: Sequence[int]
    replicates: Sequence[int]
    seeds: Sequence[int]
    swept: Mapping[str, ValueColumn]
    columns: Mapping[str, ValueColumn]
    uneven: Sequence[dict[str, Any]] | None = None

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> Trials:
        """Trials that were made one by one."""
        if isinstance(trials, Trials):
            return trials
        made = list(trials)
        names = list(made[0].params) if made else []
        uneven = any(list(trial.params) != names for trial in made)
        columns = {name: ValueColumn.of([trial.params.get(name) for trial in made]) for name in names}
        heads = ([trial.id for trial in made], [trial.index for trial in made], [trial.replicate for trial in made])
        seeds, swept = [trial.seed for trial in made], columns_of_rows([trial.swept for trial in made])
        return cls(*heads, seeds, swept, columns, [trial.params for trial in made] if uneven else None)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> Trial: ...
    @overload
    def __getitem__(self, place: slice) -> list[Trial]: ...
    def __getitem__(self, place: int | slice) -> Trial | list[Trial]:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        head = {"id": self.ids[place], "index": self.indices[place], "replicate": self.replicates[place]}
        swept = {name: value for name, column in self.swept.items() if (value := column[place]) is not ABSENT}
        return Trial.model_construct(**head, seed=self.seeds[place], swept=swept, params=self.params(place))

    def params(self, place: int) -> dict[str, Any]:
        """The parameters of one trial."""
        return {name: column[place] for name, column in self.columns.items()} if self.uneven is None else self.uneven[place]

    def part(self, start: int, stop: int) -> Trials:
        """Some trials that follow one another."""
        places = np.arange(start, stop)
        cut = lambda columns: {name: column.take(places) for name, column in columns.items()}  # noqa: E731
        heads = (self.ids[start:stop], self.indices[start:stop], self.replicates[start:stop], self.seeds[start:stop])
        return Trials(*heads, cut(self.swept), cut(self.columns), self.uneven and self.uneven[start:stop])

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each trial in the sweep, by its id."""
        return {name: place for place, name in enumerate(self.ids)}

    @cached_property
    def named(self) -> Mapping[str, Trial]:
        """The trials by their ids."""
        return _Named(self)

    def picked(self, names: Sequence[str]) -> tuple[Sequence[int], Mapping[str, ValueColumn]]:
        """The places of trials, and the columns of their parameters."""
        if len(names) == len(self) and all(map(eq, names, self.ids)):
            return range(len(self)), self.columns
        places = [self.places[name] for name in names]
        at = np.array(places, np.int64)
        return places, {name: column.take(at) for name, column in self.columns.items()}


@dataclass(frozen=True)
class _Named(Mapping[str, Trial]):
    trials: Trials

    def __getitem__(self, name: str) -> Trial:
        return self.trials[self.trials.places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.trials.ids)

    def __len__(self) -> int:
        return len(self.trials)


def texts(column: Sequence[Any], encode: Callable[[Any], str]) -> str | list[str]:
    """The JSON text of each value of a column, one text where all are one value. Real numbers are written as ``json`` does.

    Args:
        column: at least one value.
        encode: gives the text of a value.
    """
    made = ValueColumn.of(column)
    found = _texts(made, encode)
    if len(found) == 1 and made.is_shared:
        return found[0]
    return found if made.places is None else [found[place] for place in made.places.tolist()]


def _texts(column: ValueColumn, encode: Callable[[Any], str]) -> list[str]:
    """The text of each distinct value of a column."""
    values, numbers = column.distinct(), column.distinct_numbers()
    if numbers is None or not np.isfinite(numbers).all() or numbers.ndim > 2:
        return [encode(value) for value in values]
    if numbers.dtype.kind == "i" and numbers.ndim == 1:
        return list(map(str, values))
    if numbers.dtype.kind != "f":
        return [encode(value) for value in values]
    if numbers.ndim == 1:
        return _reals(values)
    parts, template = iter(_reals(list(chain.from_iterable(values)))), "[" + ",".join(["%s"] * numbers.shape[1]) + "]"
    return list(map(template.__mod__, zip(*[parts] * numbers.shape[1], strict=True)))


def _reals(numbers: Sequence[float]) -> list[str]:
    """``repr`` of finite numbers. Those without an exponent pydantic writes alike, in a seventh of the time."""
    size, found = np.abs(np.array(numbers)), to_json(numbers).decode()[1:-1].split(",")
    for place in np.flatnonzero((size != 0.0) & ((size < 1e-4) | (size >= 1e16))).tolist():
        found[place] = repr(numbers[place])
    return found


def filled(parts: Sequence[str | list[str]], count: int) -> Iterator[str]:
    """So many texts, each made of parts that are equal in all of them and of parts of its own."""
    template = "".join(part.replace("%", "%%") if isinstance(part, str) else "%s" for part in parts)
    own = [part for part in parts if not isinstance(part, str)]
    return map(template.__mod__, zip(*own, strict=True)) if own else iter([template % ()] * count)


def members(columns: Mapping[str, Sequence[Any]], encode: Callable[[Any], str]) -> list[str | list[str]]:
    """The parts of a JSON object for each row of columns, see ``filled``."""
    parts: list[str | list[str]] = ["{"]
    for number, (name, column) in enumerate(columns.items()):
        parts += [f"{',' if number else ''}{encode(name)}:", texts(column, encode)]
    return [*parts, "}"]


__all__ = ["Trial", "Trials", "filled", "members", "short", "texts"]
