"""Trials: a point of the sweep with its resolved parameters, a stable id, and a seed of its own."""

from __future__ import annotations

import hashlib
import json
import secrets
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from ...jobs.base import Job
from ...jobs.core import paths
from ..collector import paused
from ..config.limits import as_numbers, limits_of
from ..config.model import Loaded, OptimizeSection, explain
from ..config.sweep import Point, SweepError, SweepPoints, expand, ranks_of
from ..config.yaml_lines import ConfigError, ConfigProblem, KeyPath, did_you_mean, dotted
from ..optimize.descent import optimized
from ..value_columns import ABSENT, Array, ValueColumn, joined, narrowed
from .trial_list import PLAIN, Trial, TrialNames, Trials, filled, members, short, texts

MAX_PROBLEMS = 8
MOST_LOOKED_AT = 64
"""Of the points that are refused together so many are validated by themselves: for what is wrong with them."""
AT_ONCE = 2048
_TEXT = json.JSONEncoder().encode
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Once for all trials: ``json.dumps`` makes an encoder for each call that has options."""


class RowsRefusedError(ValueError):
    """Points whose values the job's parameters do not take, or only perhaps; ``rows``: their places, the first ones."""

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__(f"{len(rows)} rows")
        self.rows = rows


def counted(number: int, what: str) -> str:
    """A number of things, in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def trial_id(params: dict[str, Any], replicate: int) -> str:
    """Twelve hexadecimal digits that depend on the resolved parameters and the replicate number, and on nothing else."""
    return hashlib.sha256(_CANONICAL([params, replicate]).encode()).hexdigest()[:12]


def trial_seed(sweep_seed: int, identity: str) -> int:
    """The seed of one trial, from the seed of the sweep and the trial's id: below 2**63."""
    return int.from_bytes(hashlib.sha256(f"{sweep_seed}:{identity}".encode()).digest()[:8], "little") >> 1


def wanted_gradients(loaded: Loaded, job: type[Job[Any]]) -> tuple[str, ...]:
    """The gradients that the config asks for, all of the job's when it does not say.

    Raises:
        ConfigError: the job has no gradient of that name, or a name stands twice.
    """
    wanted = loaded.config.gradients
    if wanted is None:
        return job.gradients
    problems = []
    for index, name in enumerate(wanted):
        here: KeyPath = ("gradients", index)
        if name not in job.gradients:
            hint = did_you_mean(name, job.gradients)
            problems.append(
                loaded.document.problem(here, f"the job has no gradient `{name}`", allowed=job.gradients, hint=hint)
            )
        elif name in wanted[:index]:
            problems.append(loaded.document.problem(here, f"`{name}` stands twice"))
    if problems:
        raise loaded.document.error(*problems)
    return tuple(wanted)


def make_trials(loaded: Loaded, job: type[Job[Any]]) -> Trials:
    """Expand the sweep and validate the parameters of every trial.

    Raises:
        ConfigError: the sweep is wrong, or a parameter is unknown, of the wrong type or out of its range.
    """
    config = loaded.config
    try:
        points = expand(config.sweep, loaded.folder)
    except SweepError as error:
        problem = loaded.document.problem(("sweep", *error.path), error.what, allowed=error.allowed, hint=error.hint)
        raise loaded.document.error(problem) from error
    with paused():
        return _made(loaded, job, points)


def _made(loaded: Loaded, job: type[Job[Any]], points: SweepPoints) -> Trials:
    """The trials of points, in their order. Raises as ``make_trials``."""
    config = loaded.config
    seed = config.sweep.seed if config.sweep is not None else 0
    try:
        columns = resolved_together(job, config.job.params, points)
    except RowsRefusedError as error:  # told at once, however many points are before them
        _one_by_one(loaded, job, [points[row] for row in error.rows[:MOST_LOOKED_AT]], seed)
        columns = None
    if columns is None:
        return Trials.of(_one_by_one(loaded, job, points, seed))
    equal = _first_equal(columns, points)
    if equal is not None:
        raise _equal_error(loaded, *(points[row] for row in equal))
    replicates = array("q", points.replicates.astype(np.int64).tobytes())

    def make(start: int, stop: int) -> tuple[list[str], Sequence[int]]:
        rows = range(start, stop)
        ids = trial_ids({name: column.take(rows) for name, column in columns.items()}, replicates[start:stop])
        return ids, trial_seeds(seed, ids)

    names = TrialNames(len(points), make)
    return Trials(names.ids, range(len(points)), replicates, names.seeds, points.columns, columns, names=names)


def _first_equal(columns: Mapping[str, ValueColumn], points: SweepPoints) -> tuple[int, int] | None:
    """The first trial that is equal to one before it, and that one: the values of points differ, and may be equal as parameters."""
    if all(name in columns and columns[name].values is column.values for name, column in points.columns.items()):
        return None
    known = {name: column for name, column in columns.items() if not column.is_shared}
    known["replicate of trials"] = ValueColumn(points.replicates.astype(np.int64))
    again = np.flatnonzero(ranks_of(known, len(points)))
    if not len(again):
        return None
    row = int(again[0])
    same = np.logical_and.reduce([codes == codes[row] for codes in (column.codes() for column in known.values())])
    return row, int(np.flatnonzero(same)[0])


def _equal_error(loaded: Loaded, one: Point, other: Point) -> ConfigError:
    what = f"two trials are equal: {json.dumps(one.values)} and {json.dumps(other.values)}"
    return loaded.document.error(loaded.document.problem(("sweep",), what, hint="use `repeat` to run the same trial again"))


def _one_by_one(loaded: Loaded, job: type[Job[Any]], points: Sequence[Point], seed: int) -> list[Trial]:
    """The trials of points that are validated one after the other, which tells the problems of each. Raises as ``make_trials``."""
    trials: dict[str, tuple[Trial, Point]] = {}
    problems: dict[str, ConfigProblem] = {}
    for index, point in enumerate(points):
        try:
            params = resolve(job, loaded.config.job.params, point.values)
        except (ValidationError, paths.PathError) as error:
            problems = {problem.path: problem for problem in _problems(loaded, job, error, point)} | problems
            if len(problems) >= MAX_PROBLEMS:
                break
            continue
        identity = trial_id(params, point.replicate)
        if identity in trials:
            raise _equal_error(loaded, point, trials[identity][1])
        numbers = {"index": index, "replicate": point.replicate, "seed": trial_seed(seed, identity)}
        trials[identity] = Trial(id=identity, swept=point.values, params=params, **numbers), point
    if problems:
        raise loaded.document.error(*problems.values())
    return [trial for trial, _ in trials.values()]


def trial_ids(columns: Mapping[str, ValueColumn], replicates: Sequence[int] | Array) -> list[str]:
    """As ``trial_id``, of trials whose parameters are columns."""
    ids, numbers = list[str](), ValueColumn(np.asarray(replicates, np.int64))
    for start in range(0, len(numbers), AT_ONCE):
        rows = range(start, min(start + AT_ONCE, len(numbers)))
        named = {name: columns[name].take(rows) for name in sorted(columns)}
        parts = ["[", *members(named, _CANONICAL), ",", texts(numbers.take(rows), _CANONICAL), "]"]
        own = next((k for k, part in enumerate(parts) if not isinstance(part, str)), len(parts))
        begun = hashlib.sha256("".join(map(str, parts[:own])).encode())  # the part that is equal in all of them
        digests = list[bytes]()
        for text in filled(parts[own:], len(rows)):
            one = begun.copy()
            one.update(text.encode())
            digests.append(one.digest()[:6])
        digits = b"".join(digests).hex()
        ids += [digits[k : k + 12] for k in range(0, len(digits), 12)]
    return ids


def trial_seeds(sweep_seed: int, ids: Iterable[str]) -> Sequence[int]:
    """As ``trial_seed``, of many trials."""
    begun, digests = hashlib.sha256(f"{sweep_seed}:".encode()), list[bytes]()
    for identity in ids:
        one = begun.copy()
        one.update(identity.encode())
        digests.append(one.digest()[:8])
    return array("q", (np.frombuffer(b"".join(digests), "<u8") >> np.uint64(1)).astype(np.int64).tobytes())


def resolved_together(job: type[Job[Any]], base: dict[str, Any], points: Sequence[Point]) -> dict[str, ValueColumn] | None:
    """The parameters of all points as columns, each value as ``resolve`` would give it.

    Where the schema declares limits alone, only the first point is validated, and all points share what the sweep does not set. Otherwise
    pydantic validates ``AT_ONCE`` of them in one call.

    None: the points do not set the same parameters to single values.

    Raises:
        RowsRefusedError: some can not be resolved, or only perhaps; ``resolve`` tells why.
    """
    made = SweepPoints.of(points)
    swept = made.columns
    if not swept or any(ABSENT in column.values for column in swept.values() if isinstance(column.values, list)):
        return None
    shared = _within_limits(job, base, made[0], swept)
    if shared is not None:
        return shared
    if not all({float, *PLAIN}.issuperset(map(type, column.distinct())) for column in swept.values()):
        return None
    holes = {name: f"{secrets.token_hex(8)}-{number}" for number, name in enumerate(swept)}
    try:
        template = _TEXT(_placed(job, base, holes))
    except paths.PathError:
        return None
    validator, chunks = TypeAdapter(list[job.Params]), list[dict[str, ValueColumn]]()
    for start in range(0, len(made), AT_ONCE):
        rows = np.arange(start, min(start + AT_ONCE, len(made)))
        parts: list[str | list[str]] = [template]
        for name, column in swept.items():
            at = next(k for k, part in enumerate(parts) if isinstance(part, str) and holes[name] in part)
            before, _, after = str(parts[at]).partition(f'"{holes[name]}"')
            parts[at : at + 1] = [before, texts(column.take(rows), _TEXT), after]
        try:
            found = validator.validate_json("[" + ",".join(filled(parts, len(rows))) + "]", strict=True)
        except ValidationError as error:
            items = error.errors(include_url=False, include_context=False, include_input=False)
            raise RowsRefusedError(sorted({start + int(item["loc"][0]) for item in items if item["loc"]})) from error
        plain = paths.plain_lists(found, validator)
        if any(list(one) != list(plain[0]) for one in plain) or (chunks and list(chunks[0]) != list(plain[0])):
            return None
        chunks.append({name: narrowed([one[name] for one in plain]) for name in plain[0]})
    return {name: joined([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _within_limits(
    job: type[Job[Any]], base: dict[str, Any], first: Point, swept: Mapping[str, ValueColumn]
) -> dict[str, ValueColumn] | None:
    """The columns of ``resolved_together`` of numbers that the schema certainly allows; None: it does not say so."""
    limits = limits_of(job.Params, list(swept))
    if limits is None:
        return None
    known = dict[str, ValueColumn]()
    for name, column in swept.items():
        numbers = as_numbers(column.values, limits.of[name].kind)
        if numbers is None:
            return None
        allowed = limits.certainly_allow({name: numbers})
        if not allowed.all():
            rows = allowed if column.places is None else allowed[column.places]
            raise RowsRefusedError(np.flatnonzero(~rows)[:MOST_LOOKED_AT].tolist())
        known[name] = ValueColumn(numbers, column.places)
    try:
        params = resolve(job, base, first.values)
    except (ValidationError, paths.PathError):
        return None
    count = len(next(iter(swept.values())))
    columns = {name: ValueColumn.shared(value, count) for name, value in params.items()}
    for name, column in known.items():
        top, _, rest = name.partition(".")
        old = columns[top]
        if not rest:
            columns[top] = column
        elif old.is_shared:
            columns[top] = ValueColumn([paths.replaced(old[0], rest, new) for new in column.distinct()], column.places)
        else:
            columns[top] = ValueColumn([paths.replaced(one, rest, new) for one, new in zip(old, column, strict=True)])
    return columns


def _placed(job: type[Job[Any]], base: dict[str, Any], swept: dict[str, Any]) -> dict[str, Any]:
    """``base`` with the swept values set, not checked. Raises ``PathError``."""
    if not any(["." in name for name in (*base, *swept)]):
        return {**base, **swept}  # of most sweeps: nothing within a value changes
    values = {name: _copied(value) for name, value in base.items() if "." not in name}
    dotted_names = {name: value for name, value in base.items() if "." in name}
    for name, value in (*dotted_names.items(), *swept.items()):
        try:
            paths.put(values, name, _copied(value), job.Params)
        except paths.PathError as error:
            error.add_note(name)
            raise
    return values


def resolve(job: type[Job[Any]], base: dict[str, Any], swept: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a trial as plain data: ``base`` with the swept values set, checked strictly, defaults filled in.

    Names with dots lead into nested parameters and items of lists, see ``qdrun.jobs.core.paths``.

    Raises:
        PathError: a dotted name leads nowhere.
        pydantic.ValidationError: they are not the job's parameters.
    """
    return paths.plain_params(job.Params.model_validate_json(_TEXT(_placed(job, base, swept)), strict=True))


def _copied(value: Any) -> Any:
    """A copy of plain data, in a tenth of the time of ``copy.deepcopy``."""
    if type(value) is list:
        return [_copied(item) if type(item) in (list, dict) else item for item in value]
    return {key: _copied(item) for key, item in value.items()} if type(value) is dict else value


def _problems(
    loaded: Loaded, job: type[Job[Any]], error: ValidationError | paths.PathError, point: Point
) -> Iterable[ConfigProblem]:
    if isinstance(error, paths.PathError):
        yield _path_problem(loaded, error, point)
        return
    for item in error.errors(include_url=False):
        what, allowed, hint = explain(item, job.Params)
        name = dotted(tuple(part for part in item["loc"] if isinstance(part, str)))
        if item["type"] == "extra_forbidden":
            what = f"the job has no parameter `{name}`"
        elif item["type"] == "missing":
            what, hint = f"the job needs the parameter `{name}`", f"add `{name}` to job.params or to the sweep"
        sweep, key = loaded.config.sweep, _setter(loaded, item["loc"], point)
        if sweep is not None and sweep.table is not None and (key is None or key in point.values):
            column = "" if key is None else f", column `{(sweep.table.columns or {}).get(key, key)}`"
            what = f"{what} (row {point.item}{column} of {sweep.table.file})"
        yield loaded.document.problem(_place(loaded, item["loc"], point), what, allowed=allowed, hint=hint)


def _path_problem(loaded: Loaded, error: paths.PathError, point: Point) -> ConfigProblem:
    name = error.__notes__[0]
    place = _place(loaded, tuple(name.split(".")), point) if name in point.values else ("job", "params", name)
    return loaded.document.problem(place, error.what, allowed=error.allowed, hint=error.hint)


def _setter(loaded: Loaded, location: tuple[int | str, ...], point: Point) -> str | None:
    """The name under which the sweep, or a dotted name of ``job.params``, sets the parameter at ``location``; None: neither does."""
    where = ".".join(map(str, location))
    for name in sorted((*point.values, *(key for key in loaded.config.job.params if "." in key)), key=len, reverse=True):
        if name == where or name.startswith(where + ".") or where.startswith(name + "."):
            return name
    return None


def _place(loaded: Loaded, location: tuple[int | str, ...], point: Point) -> KeyPath:
    """The key of the config that sets the parameter at ``location``."""
    sweep, name = loaded.config.sweep, _setter(loaded, location, point)
    if name is None:
        return ("job", "params", *location)
    if name not in point.values or sweep is None:
        return ("job", "params", name)
    if sweep.method != "list":
        return ("sweep", "params", name)
    return ("sweep", "table", "file") if sweep.table is not None else ("sweep", "trials", point.item, name)


def check_optimize(loaded: Loaded, job: type[Job[Any]], gradients: Sequence[str], trials: Sequence[Trial]) -> None:
    """The parameters of ``optimize`` are real parameters with a gradient, and every trial starts within their bounds.

    Raises:
        ConfigError: they are not.
    """
    section, document = loaded.config.optimize, loaded.document
    if section is None or not trials:
        return
    names = optimized(section, gradients, trials[0].params)
    possible = tuple(name for name in gradients if paths.has(trials[0].params, name))
    problems = [] if names else [document.problem(("optimize",), "no gradient is a parameter: there is nothing to optimise")]
    named = {("params", i): name for i, name in enumerate(section.params or ())}
    named |= {(part, name): name for part in ("bounds", "scale") for name in getattr(section, part)}
    for place, name in named.items():
        if name not in (possible if place[0] == "params" else names):
            here = possible if place[0] == "params" else tuple(names)
            hint = did_you_mean(name, here) or "name a parameter that `gradients` has, too"
            what = f"`{name}` is not a parameter with a gradient" if place[0] == "params" else f"`{name}` is not optimised"
            problems.append(document.problem(("optimize", *place), what, allowed=here, hint=hint))
        elif place[0] == "params" and (section.params or []).count(name) > 1:
            problems.append(document.problem(("optimize", *place), f"`{name}` stands twice", hint="name it once"))
    if problems:
        raise document.error(*problems)
    made = Trials.of(trials)
    for name in names:
        top, _, rest = name.partition(".")
        column = None if made.uneven is not None else made.columns[top]
        if rest and column is not None:
            column = column.mapped(lambda values, rest=rest: [paths.get(value, rest) for value in values])
        numbers = None if column is None else column.distinct_numbers()
        low, high = section.bounds.get(name, (-np.inf, np.inf))
        if numbers is None or (numbers < low).any() or (numbers > high).any():
            for trial in made:  # the first one that is wrong is named
                _check_start(loaded, section, trial, name)


def _check_start(loaded: Loaded, section: OptimizeSection, trial: Trial, name: str) -> None:
    """The values of a parameter that a trial starts from: real numbers, within the bounds."""
    document, value = loaded.document, paths.get(trial.params, name)
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        what = f"`{name}` is `{short(value)}`: only numbers and lists of them can be optimised"
        raise document.error(document.problem(("optimize", "params"), what, hint="leave it out of optimize.params")) from None
    low, high = section.bounds.get(name, (-np.inf, np.inf))
    if np.any(numbers < low) or np.any(numbers > high):
        what = f"trial {trial.label} starts with {name} = {short(value)}, outside of [{low:g}, {high:g}]"
        raise document.error(document.problem(("optimize", "bounds", name), what, hint="widen the bounds, or start within"))


__all__ = [
    "ConfigError",
    "Trial",
    "check_optimize",
    "make_trials",
    "resolve",
    "short",
    "trial_id",
    "trial_seed",
    "wanted_gradients",
]
