"""The trials of a run: an object per trial on demand, and columns for operations on many of them."""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from ...compiler.errors import QdrunError
from ..value_columns import ABSENT, Places, ValueColumn, columns_of_rows

T = TypeVar("T")
BLOCK = 1 << 15
"""So many ids and seeds are made at once."""
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


class TrialNames:
    """The ids and seeds of trials, made in blocks, in order, when they are asked for and by the thread that asks.

    Args:
        count: of the trials.
        make: the ids and seeds from one place to another.

    Raises:
        SameId: two trials have one id; of all that ask.
    """

    def __init__(self, count: int, make: Callable[[int, int], tuple[list[str], Sequence[int]]]) -> None:
        self.count, self.made_ids, self.made_seeds = count, list[str](), array("q")
        self.ids, self.seeds = Made[str](self, self.made_ids), Made[int](self, self.made_seeds)
        self.later = False
        """Whether the list of the run is written in blocks, too."""
        self.write: Callable[[], bool] = lambda: True
        """Writes to the list what was made since; whether there was room."""
        self._make, self._lock, self._known = make, threading.Lock(), set[str]()
        self._writing = threading.Lock()  # another one: who asks for an id does not wait for a store that stalls

    def before(self, stop: int) -> None:
        """Make those before a place."""
        while len(self.made_seeds) < min(stop, self.count):
            with self._lock:
                start = len(self.made_seeds)
                if start < min(stop, self.count):
                    self._block(start, min(start + BLOCK, self.count))

    def _block(self, start: int, stop: int) -> None:
        ids, seeds = self._make(start, stop)
        self._known.update(ids)
        if len(self._known) < stop:
            seen = dict[str, int]()
            place = next(k for k, name in enumerate([*self.made_ids, *ids]) if seen.setdefault(name, k) != k)
            name = ids[place - start]
            raise SameId(
                f"trials {seen[name]} and {place} of the sweep have the same id, {name}, though their parameters differ: it has 12 digits\n"
                "  do: set another `sweep.seed`, or split the sweep"
            )
        self.made_ids += ids
        self.made_seeds.extend(seeds)

    def finish(self) -> bool:
        """Make and write all, block by block; whether there was room."""
        while True:
            self.before(len(self.made_seeds) + 1)
            whole = len(self.made_seeds) == self.count
            with self._writing:
                has_room = self.write()
            if whole:
                return has_room

    def begin(self) -> None:
        """Make and write all in a thread. What it raises, the end of the run raises as well."""

        def work() -> None:
            with suppress(SameId, OSError):
                self.finish()

        threading.Thread(target=work, name="trials", daemon=True).start()


class SameId(QdrunError, ValueError):
    """Two trials have one id."""


class Made(Sequence[T]):
    """The ids, or the seeds, of ``TrialNames``."""

    def __init__(self, names: TrialNames, made: Sequence[T]) -> None:
        self._names, self._made = names, made

    def __len__(self) -> int:
        return self._names.count

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if isinstance(place, slice):
            self._names.before(max(place.indices(len(self))[:2]))
        else:
            self._names.before(place + 1 if place >= 0 else len(self))
        return self._made[place]

    def __iter__(self) -> Iterator[T]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


@dataclass(frozen=True)
class Trials(Sequence[Trial]):
    """The trials of a run, in the order of the sweep, as columns. A ``Trial`` is made each time one is asked for.

    Attributes:
        ids, indices, replicates, seeds: a value for each.
        swept: what the sweep sets, by (dotted) name; ``ABSENT`` where it does not.
        columns: the parameters by name: of the names that the first trial has.
        uneven: the parameters of each trial, where not all have the same names.
        names: what makes ids and seeds, where they are made when they are asked for.
    """

    ids: Sequence[str]
    indices: Sequence[int]
    replicates: Sequence[int]
    seeds: Sequence[int]
    swept: Mapping[str, ValueColumn]
    columns: Mapping[str, ValueColumn]
    uneven: Sequence[dict[str, Any]] | None = None
    names: TrialNames | None = field(default=None, compare=False, repr=False)

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
        places = range(start, stop)
        swept = {name: column.take(places) for name, column in self.swept.items()}
        heads = (self.ids[start:stop], self.indices[start:stop], self.replicates[start:stop], self.seeds[start:stop])
        return Trials(*heads, swept, self.columns_at(places), self.uneven and self.uneven[start:stop])

    def columns_at(self, places: Places) -> Mapping[str, ValueColumn]:
        """The parameters of some trials."""
        if places == range(len(self)):
            return self.columns
        return {name: column.take(places) for name, column in self.columns.items()}

    def ids_at(self, places: Places) -> tuple[str, ...]:
        """The ids of some trials."""
        return tuple(_at(self.ids, places))

    def seeds_at(self, places: Places) -> list[int]:
        """The seeds of some trials."""
        return list(_at(self.seeds, places))

    def listed(self) -> bool:
        """Make the ids of all, and write those that the list of the run does not have; whether there was room."""
        with suppress(SameId):
            return self.names is None or self.names.finish()
        return True

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each trial in the sweep, by its id."""
        return {name: place for place, name in enumerate(self.ids)}

    @cached_property
    def named(self) -> Mapping[str, Trial]:
        """The trials by their ids."""
        return _Named(self)


def _at(values: Sequence[Any], places: Places) -> Sequence[Any]:
    return values[places.start : places.stop] if isinstance(places, range) else [values[place] for place in places]


@dataclass(frozen=True)
class _Named(Mapping[str, Trial]):
    trials: Trials

    def __getitem__(self, name: str) -> Trial:
        return self.trials[self.trials.places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.trials.ids)

    def __len__(self) -> int:
        return len(self.trials)


class BatchColumns(NamedTuple):
    """The trials of a batch as columns: they differ in inputs and seeds alone, and run at once in one program. One trial has a row, too.

    Attributes:
        params: of the first trial, as plain data.
        inputs: the parameters that are not the same in all, with a value for each trial.
        seeds: of each trial.
        optimize: what each descends by, see ``section_data``; None: they run once.
    """

    params: Mapping[str, Any]
    inputs: Mapping[str, list[Any]]
    seeds: list[int]
    optimize: Mapping[str, Any] | None = None

    def own_spec(self, trial: str, row: int) -> dict[str, Any]:
        """What of ``Prepared.spec`` is a trial's own."""
        return {"trial": trial, "params": self.params_of(row), "seed": self.seeds[row], "optimize": self.optimize}

    def params_of(self, row: int) -> dict[str, Any]:
        """The parameters of a trial."""
        return {**self.params, **{name: values[row] for name, values in self.inputs.items()}}

    def part(self, row: int) -> BatchColumns:
        """The columns of one trial."""
        return BatchColumns(self.params_of(row), {}, [self.seeds[row]], self.optimize)


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


__all__ = ["BatchColumns", "SameId", "Trial", "TrialNames", "Trials", "filled", "members", "short", "texts"]
