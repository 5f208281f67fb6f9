"""From the sweep section to its points: pure, ordered, and the same for the same seed."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .axes import FORMS, MOST, Axis, SweepSection
from .point_files import PointFileError, columns_of, values_of
from .values import is_number
from .yaml_lines import KeyPath, did_you_mean

MAX_TRIALS, HERE = MOST, Path()
T = TypeVar("T")
_KEY = json.JSONEncoder(sort_keys=True).encode
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


def expand(sweep: SweepSection | None, folder: Path = HERE) -> list[Point]:
    """All points of a sweep, in order: the last axis changes fastest, repetitions come last. No sweep is one empty point.

    Args:
        sweep: the section.
        folder: in which relative paths of its files begin.

    Raises:
        SweepError: the sweep is empty, larger than 100000 trials, has two equal trials, or its keys contradict each other.
    """
    if sweep is None:
        return [Point({})]
    _check_keys(sweep)
    combinations = {"grid": _grid, "zip": _zipped, "random": _random, "list": _listed}[sweep.method](sweep, folder)
    items = {id(values): number for number, values in enumerate(combinations)} if sweep.method == "list" else {}
    combinations = _without_excluded(combinations, sweep)
    if len(combinations) * sweep.repeat > MAX_TRIALS:
        raise SweepError((), f"{len(combinations) * sweep.repeat} trials are more than {MAX_TRIALS}", hint="split the sweep")
    return _numbered(combinations, sweep, items)


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


def axis_values(name: str, axis: Axis, seed: int, samples: int | None = None, folder: Path = HERE) -> list[Any]:
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
        values = _read(("params", name), lambda: values_of(folder / parts, axis.column))
    elif form in ("grid", "list"):
        values = list(parts)
    elif axis.draws:
        count = axis.count or samples
        if count is None:
            what = f"`{form}` draws values and nothing says how many"
            raise SweepError(("params", name), what, hint="add samples: 5 beside it, or to the sweep")
        values = draw(form, parts, count, seed, name, axis.shape)
    else:
        values = _spaced(name, form, parts)
    if not _finite(values):
        raise SweepError(("params", name), f"`{name}` has a value that is not finite", hint="sweeps are over finite numbers")
    return values


def _read(path: KeyPath, read: Callable[[], T]) -> T:
    """What a file of the section at ``path`` gives."""
    try:
        return read()
    except PointFileError as error:
        raise SweepError((*path, "file"), error.what, error.allowed, error.hint) from error


def _finite(values: list[Any]) -> bool:
    """Whether none of the values is a number that is not finite, or a list with one."""
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


def draw(form: str, parts: list[Any], count: int, seed: int, name: str, shape: int | list[int] | None = None) -> list[Any]:
    """``count`` random values of a form; they depend on seed and name alone. ``shape``: of each; None: single ones."""
    stream = _stream(seed, name)
    size = (count, *([shape] if isinstance(shape, int) else shape or ()))
    if form == "choice":
        return _picked(parts, stream.integers(len(parts), size=size).tolist())
    first, second = parts[:2]
    draws: dict[str, Callable[[], np.ndarray]] = {
        "uniform": lambda: stream.uniform(first, second, size),
        "loguniform": lambda: np.exp(stream.uniform(math.log(first), math.log(second), size)).clip(first, second),
        "normal": lambda: stream.normal(first, second, size),
        "randint": lambda: stream.integers(first, second, size),
    }
    return draws[form]().tolist()


def _picked(parts: list[Any], numbers: list[Any]) -> list[Any]:
    return [_picked(parts, one) if isinstance(one, list) else parts[one] for one in numbers]


def _stream(seed: int, name: str) -> np.random.Generator:
    word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.default_rng(np.random.SeedSequence([seed, word]))


def _columns(sweep: SweepSection, folder: Path) -> dict[str, list[Any]]:
    return {name: axis_values(name, axis, sweep.seed, sweep.samples, folder) for name, axis in sweep.params.items()}


def _grid(sweep: SweepSection, folder: Path) -> list[dict[str, Any]]:
    columns = _columns(sweep, folder)
    groups = _zip_groups(sweep, columns)
    size = math.prod(len(columns[group[0]]) for group in groups)
    if size > MAX_TRIALS:
        raise SweepError(("params",), f"{size} trials are more than {MAX_TRIALS}", hint="use fewer values, or method: random")
    blocks = [[dict(zip(group, row)) for row in zip(*(columns[name] for name in group))] for group in groups]
    return [{key: value for part in parts for key, value in part.items()} for parts in itertools.product(*blocks)]


def _zip_groups(sweep: SweepSection, columns: dict[str, list[Any]]) -> list[tuple[str, ...]]:
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


def _check_equally_many(path: KeyPath, columns: dict[str, list[Any]]) -> None:
    if len({len(values) for values in columns.values()}) > 1:
        counts = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
        raise SweepError(path, f"zipped parameters need equally many values: {counts}", hint="give each the same number")


def _zipped(sweep: SweepSection, folder: Path) -> list[dict[str, Any]]:
    columns = _columns(sweep, folder)
    _check_equally_many(("params",), columns)
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _random(sweep: SweepSection, folder: Path) -> list[dict[str, Any]]:
    count = sweep.samples or 0
    columns: dict[str, list[Any]] = {}
    for name, axis in sweep.params.items():
        values = axis_values(name, axis, sweep.seed, count, folder)
        columns[name] = values if axis.draws else draw("choice", values, count, sweep.seed, name)
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _listed(sweep: SweepSection, folder: Path) -> list[dict[str, Any]]:
    table = sweep.table
    if table is None:
        return list(sweep.trials or [])
    columns = _read(("table",), lambda: columns_of(folder / table.file, table.columns))
    for name, values in columns.items():
        if not _finite(values):
            row = next(k for k, value in enumerate(values) if not _finite([value]))
            what = f"row {row} of {folder / table.file} has a `{name}` that is not finite"
            raise SweepError(("table", "file"), what, hint="sweeps are over finite numbers")
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _without_excluded(combinations: list[dict[str, Any]], sweep: SweepSection) -> list[dict[str, Any]]:
    """The points that no map of ``exclude`` describes. A map that describes none is a mistake."""
    if not sweep.exclude:
        return combinations
    names = tuple(dict.fromkeys(name for values in combinations for name in values))
    for index, rule in enumerate(sweep.exclude):
        for name in rule:
            if name not in names:
                hint = did_you_mean(name, names) or "name swept parameters"
                raise SweepError(("exclude", index, name), f"`{name}` is not a swept parameter", allowed=names, hint=hint)
    described = _described(sweep.exclude, combinations)
    kept = [values for values, rules in zip(combinations, described, strict=True) if not rules]
    used = {index for rules in described for index in rules}
    for index, rule in enumerate(sweep.exclude):
        if index not in used:
            name = next((n for n in rule if not any(_describes({n: rule[n]}, v) for v in combinations)), next(iter(rule)))
            seen = [json.dumps(value) for value in _distinct([v[name] for v in combinations if name in v])]
            shown = (*seen[:12], f".. ({len(seen)} values)") if len(seen) > 12 else tuple(seen)
            what = f"no trial has {json.dumps(rule)}, so nothing is left out"
            raise SweepError(("exclude", index), what, allowed=shown, hint=f"write a value that `{name}` takes")
    if not kept:
        raise SweepError(("exclude",), "all trials are excluded", hint="leave some")
    return kept


def _described(rules: Sequence[dict[str, Any]], combinations: Sequence[dict[str, Any]]) -> list[list[int]]:
    """For each point, the maps that describe it. Maps of the same names share a table of their rounded values, so that each point is
    compared with those alone that are near.
    """
    tables: dict[tuple[str, ...], dict[tuple[Any, ...], list[int]]] = {}
    for index, rule in enumerate(rules):
        names = tuple(sorted(rule))
        tables.setdefault(names, {}).setdefault(tuple(_rounded(rule[name])[0] for name in names), []).append(index)
    found = []
    for values in combinations:
        near = [
            index
            for names, table in tables.items()
            if all(name in values for name in names)
            for key in itertools.product(*(_rounded(values[name]) for name in names))
            for index in table.get(key, ())
        ]
        found.append([index for index in dict.fromkeys(near) if _describes(rules[index], values)])
    return found


def _rounded(value: Any) -> tuple[str, ...]:
    """What a value is looked up by: eight digits of a number, first its own and then those that a number can have which is the same to
    ``_same``; of others its text.
    """
    if isinstance(value, list):
        return (f"list of {len(value)}",)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return (f"{type(value).__name__} {value}",)
    if not is_number(value):
        return (str(value),)
    near = (value, value * (1.0 - 2.0 * CLOSE), value * (1.0 + 2.0 * CLOSE)) if value else (0.0,)
    return tuple(dict.fromkeys(f"{number:.7e}" for number in near))


def _distinct(values: list[Any]) -> list[Any]:
    return [json.loads(text) for text in dict.fromkeys(json.dumps(value) for value in values)]


def _describes(rule: dict[str, Any], values: dict[str, Any]) -> bool:
    return all(name in values and _same(wanted, values[name]) for name, wanted in rule.items())


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


def _numbered(combinations: list[dict[str, Any]], sweep: SweepSection, items: Mapping[int, int]) -> list[Point]:
    """Repetitions get numbers; equal points are repetitions among random draws and a mistake anywhere else. ``items``: by identity."""
    drawn = sweep.method == "random" or any(axis.draws for axis in sweep.params.values())
    if _all_differ(combinations):
        return [Point(values, number, items.get(id(values), 0)) for values in combinations for number in range(sweep.repeat)]
    seen: dict[str, int] = {}
    points = []
    for values in combinations:
        key = _KEY(values)
        first = seen.get(key, 0)
        if first and not drawn:
            raise SweepError((), f"two trials are equal: {json.dumps(values)}", hint="use `repeat` to run the same trial again")
        seen[key] = first + sweep.repeat
        points += [Point(values, first + number, items.get(id(values), 0)) for number in range(sweep.repeat)]
    return points


def _all_differ(combinations: list[dict[str, Any]]) -> bool:
    """Whether points surely differ: they set the same parameters to single values, and no two are equal to Python, to which 1 is 1.0."""
    names = combinations[0].keys()
    try:
        different = len({*map(tuple, map(dict.values, combinations))})
    except TypeError:  # lists
        return False
    return different == len(combinations) and all(values.keys() == names for values in combinations)
