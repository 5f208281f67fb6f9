"""The trials of a run: an object per trial on demand, and columns for operations on many of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from operator import is_
from typing import Any, overload

import numpy as np
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

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
        ids, indices, replicates, seeds, swept: a value for each.
        columns: the parameters by name, a value for each trial: of the names that the first one has.
        uneven: the parameters of each trial, where not all have the same names.
    """

    ids: list[str]
    indices: list[int]
    replicates: list[int]
    seeds: list[int]
    swept: list[dict[str, Any]]
    columns: dict[str, list[Any]]
    uneven: list[dict[str, Any]] | None = None

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> Trials:
        """Trials that were made one by one."""
        if isinstance(trials, Trials):
            return trials
        made = list(trials)
        names = list(made[0].params) if made else []
        uneven = any(list(trial.params) != names for trial in made)
        columns = {name: [trial.params.get(name) for trial in made] for name in names}
        heads = ([trial.id for trial in made], [trial.index for trial in made], [trial.replicate for trial in made])
        seeds, swept = [trial.seed for trial in made], [trial.swept for trial in made]
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
        return Trial(**head, seed=self.seeds[place], swept=self.swept[place], params=self.params(place))

    def params(self, place: int) -> dict[str, Any]:
        """The parameters of one trial."""
        return {name: column[place] for name, column in self.columns.items()} if self.uneven is None else self.uneven[place]

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each trial in the sweep, by its id."""
        return {name: place for place, name in enumerate(self.ids)}

    @cached_property
    def named(self) -> Mapping[str, Trial]:
        """The trials by their ids."""
        return _Named(self)

    def picked(self, names: Sequence[str]) -> tuple[list[int], dict[str, list[Any]]]:
        """The places of trials, and the columns of their parameters."""
        if len(names) == len(self) and list(names) == self.ids:
            return list(range(len(self))), self.columns
        places = [self.places[name] for name in names]
        return places, {name: [column[place] for place in places] for name, column in self.columns.items()}


@dataclass(frozen=True)
class _Named(Mapping[str, Trial]):
    trials: Trials

    def __getitem__(self, name: str) -> Trial:
        return self.trials[self.trials.places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.trials.ids)

    def __len__(self) -> int:
        return len(self.trials)


def is_shared(column: Sequence[Any]) -> bool:
    """Whether all trials have one object in a column, as where the sweep does not set it."""
    return all(map(is_, column, repeat(column[0])))


def texts(column: Sequence[Any], encode: Callable[[Any], str]) -> str | list[str]:
    """The JSON text of each value of a column, one text where all are equal and of one type. Real numbers are written as ``json`` does.

    Args:
        column: at least one value.
        encode: gives the text of a value.
    """
    first = column[0]
    if is_shared(column):
        return encode(first)
    kinds = set(map(type, column))
    if kinds == {float}:
        if not np.isfinite(np.array(column)).all():
            return [encode(value) for value in column]
        return repr(first) if first and column.count(first) == len(column) else _reals(column)
    if len(kinds) == 1 and type(first) in PLAIN and column.count(first) == len(column):
        return encode(first)
    if kinds == {int}:
        return list(map(str, column))
    if kinds == {str} and (joined := "".join(column)).isascii() and joined.isalnum():
        return [f'"{value}"' for value in column]
    if kinds == {list} and len(lengths := set(map(len, column))) == 1:
        inner, width = list(chain.from_iterable(column)), lengths.pop()
        if {float} == set(map(type, inner)) and np.isfinite(np.array(inner)).all():
            numbers, template = iter(_reals(inner)), "[" + ",".join(["%s"] * width) + "]"
            return list(map(template.__mod__, zip(*[numbers] * width, strict=True)))
    return [encode(value) for value in column]


def _reals(numbers: Sequence[float]) -> list[str]:
    """``repr`` of finite numbers. Where none has an exponent pydantic writes the same texts, in a seventh of the time."""
    size = np.abs(np.array(numbers))
    if not ((size == 0.0) | ((size >= 1e-4) & (size < 1e16))).all():
        return list(map(repr, numbers))
    return to_json(numbers).decode()[1:-1].split(",")


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


__all__ = ["Trial", "Trials", "filled", "is_shared", "members", "short", "texts"]
