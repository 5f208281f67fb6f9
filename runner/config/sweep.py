"""From the sweep section to its points: pure, ordered, and the same for the same seed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np

from ..value_columns import ABSENT, Array, ValueColumn, columns_of_rows
from .axes import FORMS, MOST, Axis, SweepSection
from .point_files import PointFileError, columns_of, values_of
from .values import is_number
from .yaml_lines import KeyPath, did_you_mean

MAX_TRIALS, HERE = MOST, Path()
T = TypeVar("T")
CLOSE = 1e-9
"""Reals that differ by no more than this part are one value to ``exclude``: 0.3 is the fourth of linspace [0, 1, 11]."""


class SweepError(ValueError):
    """A sweep that cannot be expanded; ``path`` is the key inside the sweep section that is wrong."""

    def __init__(self, path: KeyPath, what: str, allowed: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(what)
        self.path, self.what, self.allowed, self.hint = path, what, tuple(allowed), hint


class Point(NamedTuple):
    """One point of a sweep: the swept values by (dotted) name, which repetition of them it is, and of ``trials`` which item."""

    values: dict[str, Any]
    replicate: int = 0
    item: int = 0


@dataclass(frozen=True)
class SweepPoints(Sequence[Point]):
    """The points of a sweep, in order, as columns.

    Attributes:
        columns: the swept values by name, ``ABSENT`` where a point does not set it.
        replicates, items: (points,), see ``Point``.
    """

    columns: Mapping[str, ValueColumn]
    replicates: Array
    items: Array

    @classmethod
    def of(cls, points: Sequence[Point]) -> SweepPoints:
        """SweepPoints that were made one by one."""
        if isinstance(points, SweepPoints):
            return points
        replicates, items = [point.replicate for point in points], [point.item for point in points]
        return cls(columns_of_rows([point.values for point in points]), np.array(replicates), np.array(items))

    def __len__(self) -> int:
        return len(self.replicates)

    @overload
    def __getitem__(self, place: int) -> Point: ...
    @overload
    def __getitem__(self, place: slice) -> list[Point]: ...
    def __getitem__(self, place: int | slice) -> Point | list[Point]:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        values = {name: value for name, column in self.columns.items() if (value := column[place]) is not ABSENT}
        return Point(values, int(self.replicates[place]), int(self.items[place]))


def expand(sweep: SweepSection | None, folder: Path = HERE) -> SweepPoints:
    """All points of a sweep, in order: the last axis changes fastest, repetitions come last. No sweep is one empty point.

    Args:
        sweep: the section.
        folder: in which relative paths of its files begin.

    Raises:
        SweepError: the sweep is empty, larger than ``MAX_TRIALS``, has two equal trials, or its keys contradict each other.
    """
    if sweep is None:
        return SweepPoints({}, np.zeros(1, np.int32), np.zeros(1, np.int32))
    _check_keys(sweep)
    columns = {"grid": _grid, "zip": _zipped, "random": _random, "list": _listed}[sweep.method](sweep, folder)
    kept = _not_excluded(columns, sweep)
    if len(kept) * sweep.repeat > MAX_TRIALS:
        raise SweepError((), f"{len(kept) * sweep.repeat} trials are more than {MAX_TRIALS}", hint="split the sweep")
    if sweep.exclude:
        columns = {name: column.take(kept) for name, column in columns.items()}
    ranks = ranks_of(columns, len(kept))
    if ranks.any() and not (sweep.method == "random" or any(axis.draws for axis in sweep.params.values())):
        values = SweepPoints(columns, ranks, ranks)[int(np.flatnonzero(ranks)[0])].values
        raise SweepError((), f"two trials are equal: {json.dumps(values)}", hint="use `repeat` to run the same trial again")
    if sweep.repeat == 1:
        return SweepPoints(columns, ranks, kept if sweep.method == "list" else np.broadcast_to(np.int32(0), len(kept)))
    each = np.repeat(np.arange(len(kept), dtype=np.int32), sweep.repeat)
    replicates = ranks[each] * sweep.repeat + np.tile(np.arange(sweep.repeat, dtype=np.int32), len(kept))
    items = kept[each] if sweep.method == "list" else np.zeros(len(each), np.int32)
    return SweepPoints({name: column.take(each) for name, column in columns.items()}, replicates, items)


def _check_keys(sweep: SweepSection) -> None:
    if sweep.method == "list":
        if (sweep.trials is None) == (sweep.table is None) or sweep.params or sweep.zip:
            what = "method `list` needs one of `trials` and `table`, and nothing in `params` or `zip`"
            raise SweepError((), what, hint="trials: [{name: value}, ...]")
    elif sweep.trials is not None or sweep.table is not None:
        name = "trials" if sweep.trials is not None else "table"
        raise SweepError((name,), f"`{name}` belongs to method `list`, not to `{sweep.method}`", hint="set method: list")
    elif not sweep.params:
        raise SweepError(
            ("params",), "the sweep is empty", hint="name at least one parameter, or leave `sweep` out for one trial"
        )
    if sweep.zip and sweep.method != "grid":
        raise SweepError(("zip",), "groups in `zip` belong to method `grid`", hint="set method: grid, or leave `zip` out")
    _check_samples(sweep)


def _check_samples(sweep: SweepSection) -> None:
    """``samples`` says how many trials are drawn, or how many values an axis draws that does not say so itself."""
    if sweep.method == "random":
        if sweep.samples is None:
            raise SweepError((), "`samples` is needed by method `random`: how many trials", hint="add samples: 20")
        for name, axis in sweep.params.items():
            if axis.draws and axis.count is not None:
                what = f"`{axis.form[0]}` in method `random` takes no number of values of its own; `samples` says how many"
                raise SweepError(("params", name), what, hint=f"leave the {axis.count} out, or use method: grid")
    elif sweep.samples is not None and not any(axis.draws and axis.count is None for axis in sweep.params.values()):
        forms = [form for form in FORMS if FORMS[form].draws]
        what = "nothing is drawn with `samples`: no parameter has a form that draws and does not say how many"
        raise SweepError(("samples",), what, forms, "leave it out, or set method: random")


def axis_column(name: str, axis: Axis, seed: int, samples: int | None = None, folder: Path = HERE) -> ValueColumn:
    """The values of one axis. Draws depend on the seed and the name alone, not on the other axes; more of them begin with the same.

    Args:
        name: of the parameter.
        axis: its form.
        seed: of the sweep.
        samples: number of draws, if the axis does not give one.
        folder: in which the path of a file begins.

    Raises:
        SweepError: the number of draws is not given, there are too many values, one is not finite, or a file cannot be read.
    """
    form, parts = axis.form
    if form == "file":
        values = ValueColumn(_read(("params", name), lambda: values_of(folder / parts, axis.column)))
    elif form in ("grid", "list"):
        values = ValueColumn(list(parts))
    elif axis.draws:
        count = axis.count or samples
        if count is None:
            what = f"`{form}` draws values and nothing says how many"
            raise SweepError(("params", name), what, hint="add samples: 5 beside it, or to the sweep")
        values = draw(form, parts, count, seed, name, axis.shape)
    else:
        values = ValueColumn(_spaced(name, form, parts))
    if not _finite(values.values):
        raise SweepError(("params", name), f"`{name}` has a value that is not finite", hint="sweeps are over finite numbers")
    return values


def _read(path: KeyPath, read: Callable[[], T]) -> T:
    """What a file of the section at ``path`` gives."""
    try:
        return read()
    except PointFileError as error:
        raise SweepError((*path, "file"), error.what, error.allowed, error.hint) from error


def _finite(values: Sequence[Any] | Array) -> bool:
    """Whether none of the values is a number that is not finite, or a list with one."""
    if isinstance(values, np.ndarray):
        return bool(np.isfinite(values).all())
    if {float}.issuperset(map(type, values)):
        return bool(np.isfinite(np.array(values)).all())
    if {list}.issuperset(map(type, values)):
        return all(map(_finite, values))
    return not any(isinstance(value, int | float) and not isinstance(value, bool) and not is_number(value) for value in values)


def _spaced(name: str, form: str, parts: list[Any]) -> list[Any]:
    if form == "range":
        return _range(name, *parts)
    first, second, count = parts
    if form == "linspace":
        values = np.linspace(first, second, count).tolist()
        whole = isinstance(first, int) and isinstance(second, int) and all(float(value).is_integer() for value in values)
        return [int(value) for value in values] if whole else values
    with np.errstate(over="ignore"):
        return np.logspace(first, second, count).tolist()


def _range(name: str, first: float, end: float, step: float = 1) -> list[Any]:
    """As Python's ``range``, and of reals, too: an end that is met but for rounding is left out as well."""
    steps = (end - first) / step
    if not steps <= MAX_TRIALS:  # also infinite: the quotient is no float any more
        many = math.ceil(steps) if math.isfinite(steps) else "endlessly many"
        raise SweepError(("params", name), f"`range` has {many} values, more than {MAX_TRIALS}", hint="take larger steps")
    count = math.ceil(steps - CLOSE * max(1.0, abs(steps)))
    return [first + number * step for number in range(max(count, 1))]


def draw(form: str, parts: list[Any], count: int, seed: int, name: str, shape: int | list[int] | None = None) -> ValueColumn:
    """``count`` random values of a form; they depend on seed and name alone. ``shape``: of each; None: single ones."""
    stream = _stream(seed, name)
    size = (count, *([shape] if isinstance(shape, int) else shape or ()))
    if form == "choice":
        places = stream.integers(len(parts), size=size)
        return ValueColumn(parts, places) if shape is None else ValueColumn(_picked(parts, places.tolist()))
    first, second = parts[:2]
    draws: dict[str, Callable[[], Array]] = {
        "uniform": lambda: stream.uniform(first, second, size),
        "loguniform": lambda: np.exp(stream.uniform(math.log(first), math.log(second), size)).clip(first, second),
        "normal": lambda: stream.normal(first, second, size),
        "randint": lambda: stream.integers(first, second, size),
    }
    return ValueColumn(draws[form]())


def _picked(parts: list[Any], numbers: list[Any]) -> list[Any]:
    return [_picked(parts, one) if isinstance(one, list) else parts[one] for one in numbers]


def _stream(seed: int, name: str) -> np.random.Generator:
    word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.default_rng(np.random.SeedSequence([seed, word]))


def _columns(sweep: SweepSection, folder: Path) -> dict[str, ValueColumn]:
    return {name: axis_column(name, axis, sweep.seed, sweep.samples, folder) for name, axis in sweep.params.items()}


def _grid(sweep: SweepSection, folder: Path) -> dict[str, ValueColumn]:
    columns = _columns(sweep, folder)
    groups = _zip_groups(sweep, columns)
    size = math.prod(len(columns[group[0]]) for group in groups)
    if size > MAX_TRIALS:
        raise SweepError(("params",), f"{size} trials are more than {MAX_TRIALS}", hint="use fewer values, or method: random")
    found, inner = dict[str, ValueColumn](), size
    for group in groups:
        count = len(columns[group[0]])
        inner //= count
        places = np.tile(np.repeat(np.arange(count, dtype=np.int32), inner), size // (count * inner))
        found |= {name: columns[name] if count == size else columns[name].take(places) for name in group}
    return found


def _zip_groups(sweep: SweepSection, columns: Mapping[str, ValueColumn]) -> list[tuple[str, ...]]:
    """The axes in the order of ``params``; a group stands where its first member does."""
    owner: dict[str, tuple[str, ...]] = {}
    for index, group in enumerate(sweep.zip):
        for name in group:
            if name not in columns:
                hint = did_you_mean(name, columns) or "name swept parameters"
                raise SweepError(("zip", index), f"`{name}` is not a swept parameter", allowed=tuple(columns), hint=hint)
            if name in owner or group.count(name) > 1:
                raise SweepError(("zip", index), f"`{name}` stands in `zip` twice", hint="name it in one group, once")
        _check_equally_many(("zip", index), {name: columns[name] for name in group})
        owner.update(dict.fromkeys(group, tuple(group)))
    return list(dict.fromkeys(owner.get(name, (name,)) for name in columns))


def _check_equally_many(path: KeyPath, columns: Mapping[str, ValueColumn]) -> None:
    if len({len(values) for values in columns.values()}) > 1:
        counts = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
        raise SweepError(path, f"zipped parameters need equally many values: {counts}", hint="give each the same number")


def _zipped(sweep: SweepSection, folder: Path) -> dict[str, ValueColumn]:
    columns = _columns(sweep, folder)
    _check_equally_many(("params",), columns)
    return columns


def _random(sweep: SweepSection, folder: Path) -> dict[str, ValueColumn]:
    count = sweep.samples or 0
    columns: dict[str, ValueColumn] = {}
    for name, axis in sweep.params.items():
        values = axis_column(name, axis, sweep.seed, count, folder)
        columns[name] = values if axis.draws else draw("choice", values.tolist(), count, sweep.seed, name)
    return columns


def _listed(sweep: SweepSection, folder: Path) -> dict[str, ValueColumn]:
    table = sweep.table
    if table is None:
        return columns_of_rows(sweep.trials or [])
    columns = _read(("table",), lambda: columns_of(folder / table.file, table.columns))
    for name, values in columns.items():
        if not _finite(values):
            row = next(k for k, value in enumerate(values) if not _finite([value]))
            what = f"row {row} of {folder / table.file} has a `{name}` that is not finite"
            raise SweepError(("table", "file"), what, hint="sweeps are over finite numbers")
    return {name: ValueColumn(values) for name, values in columns.items()}


def _not_excluded(columns: Mapping[str, ValueColumn], sweep: SweepSection) -> Array:
    """The places of points that no map of ``exclude`` describes. A map that describes none is a mistake."""
    left = np.ones(len(next(iter(columns.values()), ())) if columns else len(sweep.trials or ()), bool)
    for index, rule in enumerate(sweep.exclude):
        for name in rule:
            if name not in columns:
                hint, names = did_you_mean(name, columns) or "name swept parameters", tuple(columns)
                raise SweepError(("exclude", index, name), f"`{name}` is not a swept parameter", allowed=names, hint=hint)
    known = {name: columns[name].distinct_numbers() for rule in sweep.exclude for name in rule}
    for index, rule in enumerate(sweep.exclude):
        found = {name: _rows_with(columns[name], known[name], wanted) for name, wanted in rule.items()}
        described = np.logical_and.reduce(list(found.values()))
        if not described.any():
            name = next((name for name, rows in found.items() if not rows.any()), next(iter(rule)))
            seen = [json.dumps(value) for value in _distinct(columns[name].distinct())]
            shown = (*seen[:12], f".. ({len(seen)} values)") if len(seen) > 12 else tuple(seen)
            what = f"no trial has {json.dumps(rule)}, so nothing is left out"
            raise SweepError(("exclude", index), what, allowed=shown, hint=f"write a value that `{name}` takes")
        left &= ~described
    if not left.any():
        raise SweepError(("exclude",), "all trials are excluded", hint="leave some")
    return np.flatnonzero(left)


def _rows_with(column: ValueColumn, numbers: Array | None, wanted: Any) -> Array:
    """The rows that have a value, see ``_same``. ``numbers``: the values, where they are numbers of one type."""
    single = isinstance(wanted, int | float) and not isinstance(wanted, bool)
    if numbers is None or numbers.ndim > 1 or not single:
        same = np.array([_same(wanted, value) for value in column.distinct()], bool)
    else:
        same = numbers == wanted
        if is_number(wanted) and (numbers.dtype.kind == "f" or isinstance(wanted, float)):
            same |= np.isfinite(numbers) & (np.abs(numbers - wanted) <= CLOSE * np.maximum(np.abs(numbers), abs(wanted)))
    return same if column.places is None else same[column.places]


def _distinct(values: list[Any]) -> list[Any]:
    return [json.loads(text) for text in dict.fromkeys(json.dumps(value) for value in values if value is not ABSENT)]


def _same(a: Any, b: Any) -> bool:
    """Whether two values of a config are one: numbers but for rounding; true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        real = (isinstance(a, float) or isinstance(b, float)) and is_number(a) and is_number(b)
        return a == b or (real and math.isclose(a, b, rel_tol=CLOSE))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def ranks_of(columns: Mapping[str, ValueColumn], count: int) -> Array:
    """How many points before each one are equal to it."""
    if any(column.all_differ() for column in columns.values()):
        return np.zeros(count, np.int32)
    codes, size = np.zeros(count, np.int64), 1
    for column in columns.values():
        own = column.codes()
        kinds = int(own.max()) + 1
        if size * kinds >= 1 << 62:
            codes = np.unique(codes, return_inverse=True)[1]
            size = count
        codes, size = codes * kinds + own, size * kinds
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(codes[order]) != 0))
    ranks = np.empty(count, np.int32)
    ranks[order] = np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))
    return ranks
