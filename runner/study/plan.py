"""Plans the memory of a sweep before it runs: one job is built for each shape, and none is run."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, SkipValidation

from ...jobs.base import Job, MemoryPlan
from ...jobs.core.inputs import InputFiles, located
from ...jobs.planning.gradient_notes import GradientNote, notes_of
from ..config.model import Loaded
from ..optimize.descent import optimized, section_data
from ..optimize.jacobian import Jacobian, choose
from ..user_lines import described
from ..value_columns import Places, ValueColumn, array_of, group_numbers, places_in, places_of, ranges_of
from .devices import AutoChoice, ChosenDevice, emulated
from .requests import Points, curve
from .target import Target
from .trial_list import BatchColumns, Trial, Trials

T = TypeVar("T")
R = TypeVar("R")
TRIED = 4
"""Trials of one shape that are built until one of them can be: values of floats are no part of a shape, and `build` may refuse some."""
TOO_SLOW = "Timeout: "
"""The prefix of the error of a shape with a plan that takes longer than a trial may take."""


class PlannedGroup(BaseModel):
    """Trials of one shape, by their places in the sweep, and their common plan, which is that of ``first``.

    ``plan`` is None where the job could not be built for any trial that was tried; ``error`` says why, with the user's line. ``data``: the
    names of the files that the job was built from, see ``Job.data``. ``gradients``: what is known of gradients that something cuts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    places: Annotated[Places, SkipValidation]
    first: int
    example: str
    plan: MemoryPlan | None
    error: str = ""
    data: tuple[str, ...] = ()
    gradients: tuple[GradientNote, ...] = ()

    def stored(self) -> dict[str, Any]:
        """The group as plain data: its places as ranges, ``first`` before the others."""
        others = array_of(self.places)
        at = np.append(self.first, others[others != self.first])
        return self.model_dump(mode="json", exclude={"places", "first"}) | {"at": ranges_of(at)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> PlannedGroup:
        """The group of what ``stored`` gives."""
        at = places_in(data["at"])
        rest = {name: value for name, value in data.items() if name != "at"}
        return cls(places=places_of(np.sort(at)), first=int(at[0]), **rest)


_CANONICAL = json.JSONEncoder(sort_keys=True).encode
Planned = tuple[PlannedGroup, Points]
"""A group, and the points that its trials may ask for."""


class Prepared(BaseModel):
    """A config that is right, with everything that follows from it: target, trials, gradients, and the memory plans."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    loaded: Loaded
    target: Target
    place: ChosenDevice
    gradients: tuple[str, ...]
    trials: Annotated[Trials, SkipValidation, BeforeValidator(Trials.of)]
    inputs: InputFiles
    choice: AutoChoice | None = None  # where ``device.backend: auto`` had several to choose from
    beside: tuple[ChosenDevice, ...] = ()  # places of other backends that run trials, too: ``device.together``

    @property
    def backend(self) -> str:
        """The kind of device that the trials run on."""
        return self.place.backend

    @property
    def arch(self) -> str:
        """The ``arch`` of their programs: the backend, or the interpreter."""
        return self.place.arch

    @property
    def each(self) -> dict[str, Prepared]:
        """The same sweep on each of its backends alone, by backend; that of ``place`` first."""
        places = (self.place, *self.beside)
        return {place.backend: self.model_copy(update={"place": place, "beside": ()}) for place in places}

    @property
    def where(self) -> str:
        """The backends, for people."""
        return " and ".join((self.arch, *(place.backend for place in self.beside)))

    @property
    def ray_devices(self) -> int:
        """Devices of this machine that Ray hands out, see ``ChosenDevice.devices``."""
        return sum(place.devices for place in (self.place, *self.beside))

    @property
    def may_list_later(self) -> bool:
        """Whether the list of trials may be written while they run: nothing reads it meanwhile, and the config alone gives it again."""
        config = self.loaded.config
        return not (config.export or config.callbacks or (config.sweep is not None and config.sweep.files))

    @property
    def byte_limits(self) -> dict[str, int | None]:
        """The limits of a trial's plan in bytes, by the name of the key in the config."""
        config = self.loaded.config
        return {"limits.memory": config.limits.memory, "memory_budget": config.budget_bytes}

    @property
    def resolved(self) -> dict[str, Any]:
        """The config as it was understood, as plain data: defaults filled in, overrides applied."""
        config = self.loaded.config
        data = config.model_dump(mode="json", by_alias=True, exclude_none=True) | {
            "gradients": list(self.gradients),
            "job": {"target": self.target.text, "params": config.job.params},
        }
        data["device"]["backend"] = list(self.each) if self.beside else self.arch
        if config.optimize is not None:
            data["optimize"] = self.descent(self.trials.params(0))
        return data | ({"overrides": list(self.loaded.overrides)} if self.loaded.overrides else {})

    def spec(self, trial: Trial) -> dict[str, Any]:
        """The spec of ``trial`` for a worker, as plain data."""
        own = BatchColumns(trial.params, {}, [trial.seed], self.descent(trial.params))
        return self.shared_spec() | own.own_spec(trial.id, 0)

    def columns(self, places: Places) -> BatchColumns:
        """What a worker is told of trials that differ in inputs alone."""
        params, columns = self.trials.params(places[0]), self.trials.columns_at(places) if len(places) > 1 else {}
        inputs = {name: column.tolist() for name, column in columns.items() if not all_same(column)}
        return BatchColumns(params, inputs, self.trials.seeds_at(places), self.descent(params))

    def descent(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """What trials with such parameters descend by, see ``section_data``; None: they run once."""
        return section_data(self.loaded.config.optimize, self.gradients, params)

    def shared_spec(self) -> dict[str, Any]:
        """The part of ``spec`` that all trials have in common."""
        config = self.loaded.config
        return {
            "target": self.target.model_dump(),
            "gradients": list(self.gradients),
            "backend": self.arch,
            "device": self.place.device,
            "threads": config.device.threads,
            "memory_limit_bytes": config.limits.memory,
            "memory_budget_bytes": config.budget_bytes,
            "debug": None if config.debug is None else config.debug.model_dump(),
            **self.inputs.as_spec(),
        }


def learns_frames(prepared: Prepared) -> bool:
    """Whether the first shape is planned with its machine code: on a GPU that is here it says how large the frames of the kernels are,
    which the process of a worker takes of the device, see ``MemoryPlan.footprint``.
    """
    return prepared.backend != "cpu" and prepared.place.present and not emulated(prepared.place.device)


def make_plan(prepared: Prepared, job: type[Job[Any]], arch: str | None = None) -> list[PlannedGroup]:
    """Plan one trial of each shape, see ``plan_each``."""
    return [group for group, _ in plan_each(prepared, job, arch=arch, curves=False)]


def plan_all(
    prepared: Prepared, job: type[Job[Any]], limit_s: float | None = None, *, threads: int | None = None
) -> list[Planned]:
    """Plan one trial of each shape, and with ``memory_budget: auto`` its curve, see ``plan_each``."""
    return list(plan_each(prepared, job, limit_s, threads=threads))


def plan_each(
    prepared: Prepared,
    job: type[Job[Any]],
    limit_s: float | None = None,
    *,
    arch: str | None = None,
    threads: int | None = None,
    curves: bool = True,
) -> Iterator[Planned]:
    """Plan one trial of each shape. Compiles nothing, but for ``learns_frames``.

    A job that cannot be planned, or takes longer than ``limit_s`` seconds to build, gives a group with an error; its trials meet it again.

    Args:
        prepared: what ``prepare`` gave.
        job: the class, too.
        limit_s: see above.
        arch: plan for this backend, which need not be there, instead of the config's.
        threads: of the CPU; None: those of the config.
        curves: with ``memory_budget: auto``, find the curve of each shape.
    """
    groups, trials = shapes(prepared, job), prepared.trials
    learns = learns_frames(prepared) and arch in (None, prepared.backend)
    other, config = planned_for(prepared, arch), prepared.loaded.config

    def work(group: Places) -> Planned:
        code = learns and group is groups[0]

        def plan_of(trial: Trial) -> tuple[MemoryPlan, Points, tuple[str, ...], tuple[GradientNote, ...]]:
            with opened(prepared, job, trial, config.budget_bytes, arch, threads=threads, machine_code=code) as made:
                plan = with_jacobian(prepared, made, trial, made.plan(**({} if other is None else {"arch": other})))
                points = curve(made, plan, other) if curves and config.elastic else ()
                return plan, points, tuple(made.asked), notes_of(made)

        first, (plan, points, data, notes) = first_that_works(group, lambda place: plan_of(trials[place]))
        head = {"places": group, "first": first, "example": trials[first].label}
        return PlannedGroup(**head, plan=plan, data=data, gradients=notes), points

    for group, found in zip(groups, each_within(work, groups, limit_s), strict=True):
        if isinstance(found, KeyboardInterrupt):
            raise found
        if isinstance(
            found, BaseException
        ):  # a user's code: shown by `plan`, and met again, as the trial's own error, by `submit`
            error = f"{TOO_SLOW}planning this shape: {found}" if isinstance(found, Hung) else described(found)
            head = {"places": group, "first": group[0], "example": trials[group[0]].label}
            found = PlannedGroup(**head, plan=None, error=error), ()
        yield found


def with_jacobian(prepared: Prepared, made: Job[Any], trial: Trial, plan: MemoryPlan) -> MemoryPlan:
    """The plan of an open job, and with the rule that needs it the program of its Jacobian.

    Raises:
        NoResiduals: the job declares none.
    """
    section = prepared.loaded.config.optimize
    if section is None or section.rule != "levenberg_marquardt":
        return plan
    names = optimized(section, prepared.gradients, trial.params)
    jacobian = Jacobian(made, names, choose(made, plan, names), plan.bytes)
    try:
        return plan.model_copy(update={"entries": (*plan.entries, jacobian.entry)})
    finally:
        jacobian.close()


def all_same(column: ValueColumn) -> bool:
    """Whether all values of a column are the same to the bit: ``0.0`` is not ``-0.0``, nor 1 or true 1.0."""
    if column.is_shared:
        return True
    if isinstance(column.values, np.ndarray):
        used = column.values if column.places is None else column.values[column.places]
        bits = np.ascontiguousarray(used).view(np.int64)
        return bool((bits == bits[0]).all())
    codes = column.codes()
    return bool((codes == codes[0]).all())


def all_reals(column: ValueColumn) -> bool:
    """Whether values are floats, or flat lists of equally many."""
    numbers = column.distinct_numbers()
    return numbers is not None and numbers.dtype.kind == "f" and numbers.ndim <= 2


def shapes(prepared: Prepared, job: type[Job[Any]]) -> list[Places]:
    """The trials in groups that need equal memory, see ``Job.shape_key``."""
    groups: dict[str, list[int]] = {}
    trials, files = prepared.trials, prepared.inputs
    own = getattr(job.shape_key, "__func__", None) is not getattr(Job.shape_key, "__func__", None)
    alike = [all_reals(column) or all_same(column) for column in trials.columns.values()]
    if not own and trials.uneven is None and all(alike):
        return [range(len(trials))]  # as of most sweeps: values of floats decide no shape
    for place in range(len(trials)):
        key = job.shape_key(located(job.Params.model_validate(trials.params(place)), files))
        groups.setdefault(_CANONICAL(key), []).append(place)
    return [places_of(np.array(group)) for group in groups.values()]


def first_that_works(group: Places, work: Callable[[int], T]) -> tuple[int, T]:
    """The first trial of one shape with which ``work`` succeeds, by its place, and what it returns.

    Up to ``TRIED`` trials, spread evenly, are tried while their errors differ. Equal errors of the first two end the search, as does a
    lack of memory, which is that of the shape.

    Raises:
        BaseException: what ``work`` raised for the first trial, when it raised for all that were tried.
    """
    count = min(TRIED, len(group))
    picked = [group[k * (len(group) - 1) // max(1, count - 1)] for k in range(count)]
    order = [picked[0], picked[-1], *picked[1:-1]][:count]
    first: BaseException | None = None
    for place in order:
        try:
            return place, work(place)
        except (Exception, SystemExit) as error:
            same = first is not None and (type(error), str(error)) == (type(first), str(first))
            first = first or error
            if same or isinstance(error, MemoryError):
                break
    assert first is not None
    raise first


def planned_for(prepared: Prepared, arch: str | None) -> str | None:
    """The backend to plan for where the program of ``opened`` is of another one; None where it is its own."""
    wanted = arch or prepared.backend
    return None if wanted == built_on(prepared, wanted) else wanted


def built_on(prepared: Prepared, wanted: str) -> str:
    """The backend on which a job is built to be planned: the trials' own where this machine has it, else the CPU."""
    return wanted if wanted == prepared.backend and prepared.place.present else "cpu"


def opened(
    prepared: Prepared,
    job: type[Job[Any]],
    trial: Trial,
    budget: int | None,
    arch: str | None = None,
    *,
    threads: int | None = None,
    machine_code: bool = True,
) -> AbstractContextManager[Job[Any]]:
    """Open a trial's job in its own program, like a worker, with this ``memory_budget``.

    Without ``limits.memory``, so that all of it is seen. ``arch``: the backend that it is planned for, None for that of the trials.
    ``threads``: of the CPU, None for those of the config. ``machine_code``: see ``Job.opened``.
    """
    params = located(job.Params.model_validate(trial.params), prepared.inputs)
    made = job(params, wanted=prepared.gradients, seed=trial.seed)
    config, backend = prepared.loaded.config, built_on(prepared, arch or prepared.backend)
    own = backend == prepared.backend
    other = planned_for(prepared, arch)
    return made.opened(
        backend=prepared.arch if own else backend,
        device=prepared.place.device if own else None,
        threads=threads or config.device.threads,
        memory_budget_bytes=budget,
        arch=other,
        machine_code=machine_code,
        debug=config.debug,
    )


class PlannedBytes:
    """The planned bytes of each trial, by its place; None where its job could not be built, or is in no group."""

    def __init__(self, groups: Sequence[PlannedGroup] = ()) -> None:
        self._numbers = group_numbers([group.places for group in groups])
        self._bytes = [None if group.plan is None else group.plan.bytes for group in groups]

    def __bool__(self) -> bool:
        return bool(self._bytes)

    def __getitem__(self, place: int) -> int | None:
        number = self._numbers[place] if place < len(self._numbers) else -1
        return None if number < 0 else self._bytes[number]


class Hung(Exception):
    """A piece of work took too long; its thread was left alone."""


def each_within(work: Callable[[T], R], items: Sequence[T], limit_s: float | None) -> Iterator[R | Hung | BaseException]:
    """Run ``work`` on each item in another thread, one after the other.

    A thread cannot be stopped: a hanging thread is abandoned (it ends with the process), and a new one continues with the next item.

    Args:
        work: the function.
        items: its arguments.
        limit_s: maximum seconds per item; None: unlimited.

    Yields:
        The result of ``work``, its exception, or ``Hung``.
    """
    start = 0
    while start < len(items):
        back: queue.SimpleQueue[R | BaseException] = queue.SimpleQueue()
        over = threading.Event()
        threading.Thread(target=_all, args=(work, items[start:], back, over), name="planning", daemon=True).start()
        for _ in items[start:]:
            start += 1
            try:
                yield back.get(timeout=limit_s)
            except queue.Empty:
                over.set()
                yield Hung(f"it took longer than {limit_s:g} s")
                break


def _all(work: Callable[[T], R], items: Sequence[T], back: queue.SimpleQueue[R | BaseException], over: threading.Event) -> None:
    for item in items:
        try:
            done: R | BaseException = work(item)
        except BaseException as error:
            done = error
        if over.is_set():
            return
        back.put(done)
