"""The base class of a job: parameters in, a program built, ``run`` and its outputs, gradients by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin

import numpy as np
from pydantic import BaseModel

from ..planning.explain import Explanation, explain
from ..planning.memory_plan import Launches, MemoryPlan, PlanEntry
from ..planning.plan import make_plan, used
from ..planning.windows import COPIES, plan_window, snapshots_of
from .debug import Debug
from .declared import as_array, same
from .declaring import Declaring
from .inputs import JobFiles
from .optimizer import Optimizer, OptimizerSpec
from .outcome import Outcome
from .recorded import Recorded
from .watch import Watch

P = TypeVar("P", bound=BaseModel)
_OWN = {
    "params": "its parameters",
    "wanted": "the gradients asked for",
    "program": "the open program",
    "window": "the time steps that its arrays hold",
    "watch": "its progress",
}
"""Attributes that ``build`` reads and must not assign, and what they are."""
_CALLED = ("run", "simulate", "fill", "save", "saves", "set", "plan", "explain", "launches", "allocates", "used")
"""Methods that are called after ``build``, which must not hide them."""
NO_MEMORY = MemoryPlan()
"""The plan of every trial without a program. Shared, because it is frozen and slow to create."""


class Job(Declaring, JobFiles, Generic[P]):
    """One differentiable simulation. Subclass it as ``class Mine(Job[MineParams])`` and give it ``build`` and ``simulate``.

    ``build`` declares what goes in and out (``input``, ``objective``, ``output``), ``simulate`` launches kernels; first values, gradients
    and the outcome follow from that. A job that must do more in a run than launch kernels overrides ``run`` instead of ``simulate``.

    Attributes of the class:
        Params: the model of the parameters; taken from ``Job[...]``, or from a generic job, ``Mine[...]``.
        gradients: the names of the gradients that ``run`` can give.
        precision: the default float type of the program.
        horizon: the parameter that counts time steps, if there is one: `qdrun check` shortens it.
        needs_compiler: False for a job that uses no kernels; ``program`` is then None.

    Attributes of a job:
        params: the validated parameters of this trial.
        wanted: the gradients asked for, a part of ``gradients``.
        seed: a number of this trial alone. The random numbers of kernels (``qd.random``) come from it; a job need not read it for that.
        program: the open program, while the job is open.
        window: time steps that the arrays of ``build`` hold; all of them unless a memory budget says less.
        snapshot_bytes: of a job with fewer, the budget of its ``qd.ad.checkpointed_steps``; else None.
        artifacts: a folder for files of this trial.
        watch: its progress, and a requested stop.
        machine_code: plans compile the kernels, and count their code; False: they compile nothing.
        opened_with: options of ``opened``: all that are about its device and its checks, and the memory limit.
        jacobian: ``reverse`` or ``forward``: its program computes the Jacobian of the residuals in this mode; empty: it does not.
        tangents: of forward mode the direction of each trial, (B, ...) for each input that has one.
        optimizer_spec: of a batched program that runs the steps of an optimiser, too; ``optimizer``: it, while the program is open, on a
            device that has f64.
    """

    Params: ClassVar[type[BaseModel]]
    gradients: ClassVar[tuple[str, ...]] = ()
    precision: Literal["f32", "f64"] = "f64"
    horizon: ClassVar[str] = "steps"
    needs_compiler: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in vars(cls).get("__orig_bases__", ()):  # not those of a base class, which may have another Params than this
            origin = get_origin(base)
            model = get_args(base)[0] if isinstance(origin, type) and issubclass(origin, Job) else None
            if isinstance(model, type) and issubclass(model, BaseModel):
                cls.Params = model
        text = cls.gradients
        if isinstance(text, str):
            raise TypeError(f'{cls.__name__}.gradients is text, not a tuple of names\n  do: write gradients = ("{text}",)')

    def __init__(self, params: P, *, wanted: Sequence[str] | None = None, seed: int = 0) -> None:
        names = tuple(self.gradients if wanted is None else wanted)
        for name in names:
            if name not in self.gradients:
                allowed = ", ".join(self.gradients) or "none"
                raise ValueError(f"{type(self).__name__} has no gradient `{name}`\n  do: ask for one of: {allowed}")
        self.params = self._real_params = params
        self.wanted = names
        self._seed, self._seed_used, self._made = seed, False, False
        self.program: Any = None
        self.watch = Watch()
        self._begin_files()
        self.window = self.time_steps()
        self.snapshot_bytes: int | None = None
        self.machine_code = True
        self._steps: Any = None  # the plan of the time steps
        self._declared = self._new_declarations()
        self._recorded: dict[bool, Recorded] = {}  # the launches of a run, without gradients and with them
        self._launches: dict[bool, Launches] = {}  # those of ``simulate``, with and without gradients
        self._first: Any = None  # what a run begins with, once one has begun
        self._sequences: dict[bool, int] = {}  # what ``simulate`` launches, likewise
        self._copies: dict[bool, int] = {}  # bytes of the copies that its gradients keep
        self._backwards: Any = None  # the rehearsal of a run with gradients
        self._kept_by_tape = 0  # bytes of overwritten elements
        self._repeats = False  # whether it launches the same again
        self._ran, self._why = False, ""  # in the open program; why it cannot run there again
        self._filled: Any = None  # the parameters whose values the inputs have got since the last run
        self._logs = False  # ``simulate`` calls ``log``
        self.opened_with: Mapping[str, Any] = {}
        self.jacobian = ""
        self.optimizer_spec: OptimizerSpec | None = None
        self.optimizer: Optimizer | None = None
        self.tangents: Mapping[str, np.ndarray] = {}
        self._given = frozenset(vars(self)) | {"_given"}

    @property
    def seed(self) -> int:
        """See the class. A job that reads it while it is built is built for each."""
        self._seed_used = self._seed_used or not self._made
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._seed, self._seed_used = seed, True

    def give_seed(self, seed: int) -> None:
        """The open job is that of another trial, with this seed. It has not read the one before."""
        self._seed = self.program.seeds.random_seed = seed

    @property
    def ran(self) -> bool:
        """Whether a run has begun in the open program."""
        return self._ran

    @property
    def steps_plan(self) -> Any:
        """The ``StepsPlan`` of an open job whose time steps were fitted into a memory budget; else None."""
        return self._steps

    @classmethod
    def declares(cls) -> bool:
        """Whether ``run`` is left to what the job declares."""
        return cls.simulate is not Job.simulate and cls.run is Job.run

    def build(self) -> None:
        """Create the fields and kernels of this trial in the current program. Runs no kernel."""
        raise NotImplementedError(f"{type(self).__name__} has no build()\n  do: write `def build(self) -> None` in it")

    def fill(self) -> None:
        """Give the fields first values, after ``build``. Runs no kernel. A job that overrides it is built again for each run."""

    def save(self) -> None:
        """Write files to ``artifacts``. Called once, after the run, when fields hold its results; it reads them and launches no kernel."""

    def saves(self) -> bool:
        """Whether the job has a ``save`` of its own."""
        return type(self).save is not Job.save

    def save_once(self) -> None:
        """Call ``save``.

        Raises:
            QdrunRuntimeError: it launches a kernel, or writes to a field.
        """
        if self.saves():
            with nullcontext() if self.program is None else self.program.reading(f"{type(self).__name__}.save()"):
                self.save()

    def set(self, params: P) -> bool:
        """Give an open job other parameters: ``run`` then gives what it would in a job built with them.

        Returns:
            Whether that is possible: only inputs differ, of the same shapes, and whole numbers among them do not, as they may bound loops;
            and the job can run again (``why_built_again``). Else the parameters are what they were, and the job must be built again.
        """
        given = self._as_inputs(params)
        if given is None or self.why_built_again():
            return False
        self.params = self._filled = params
        self._declared.fill(params, self.program, given=given)
        return True

    def _as_inputs(self, params: P) -> dict[str, np.ndarray] | None:
        """The arrays among these parameters, by name, if they have values for the open job's inputs and are its own otherwise."""
        now, before, inputs = vars(params), vars(self.params), self._declared.inputs
        arrays = dict[str, np.ndarray]()
        for name in type(params).model_fields:
            a, b = now[name], before[name]
            if a is b or (type(a) is float and type(b) is float and (name in inputs or same(a, b))):
                continue
            if name not in inputs:
                if not same(a, b):
                    return None
                continue
            arrays[name] = given = as_array(a)
            if given.shape != self._declared.shape(name, self.program):
                return None
            if given.dtype.kind != "f" and not same(a, b):
                return None
        own = getattr(self.shape_key, "__func__", None) is not getattr(Job.shape_key, "__func__", None)
        return arrays if not own or self.shape_key(params) == self.shape_key(self.params) else None

    def why_built_again(self) -> str:
        """Why the open job cannot run again, as a phrase; it is then built for each run. Empty if it can.

        The effects of a run are known only for launches of ``simulate``.
        """
        if not self.declares():
            return "it overrides run()"
        if type(self).fill is not Job.fill:
            return "it overrides fill()"
        if self.program is not None and self.program.recorders.active():
            return "launches are checked one by one"
        return self._why_not_again()

    def run(self) -> Outcome:
        """Run the simulation and its gradients once. Called after ``build``, and again after ``set``.

        Here: ``simulate`` and what was declared. Another run begins where the first one began.
        """
        if not self.declares():
            raise NotImplementedError(
                f"{type(self).__name__} has no simulate() and no run()\n  do: write `def simulate(self) -> None` in it"
            )
        why = self.why_built_again() if self._ran else ""
        if why:
            raise RuntimeError(f"{type(self).__name__} cannot run again: {why}\n  do: open it again")
        if self._filled is not self.params:
            self._declared.fill(self.params, self.program)
        self._filled = None
        self.simulate_once()
        return self._declared.outcome(self.wanted, self.program)

    def checkpoint(self) -> None:
        """Call it at the start of each time step, on the host: it counts the step, and ends the run if a stop was requested.

        Recomputed steps of a gradient are not counted.

        Raises:
            Stopped: a stop was requested.
        """
        if self.program is not None and (self.program.replay.running or self.program.recorders.rehearsal is not None):
            self.watch.check()
            return
        self.watch.step()

    def log(self, *, step: int | None = None, **values: Any) -> None:
        """Log numbers by name, as in ``self.log(loss=0.5, height=self.height)``: they are seen while the trial runs, and kept.

        A step has one point: a name that is logged again in the same step has the new value. Recomputed steps of a gradient log nothing.
        A field is read when there is time for it: reads take 1 % of the time since the trial began at most. The runs of a job whose
        ``simulate`` logs are launched one by one, because a record of launches runs no Python.

        Args:
            step: by default that of the optimisation, if the job is optimised, else the number of time steps that
                ``checkpoint`` has counted.
            values: numbers, or 0-d fields of the job's program. In a batch a field has a value for each trial.

        Raises:
            TypeError: a value is neither a number nor a 0-d field.
        """
        program = self.program
        if program is not None and (program.replay.running or program.recorders.rehearsal is not None):
            self._logs |= program.recorders.rehearsal is not None
            return
        for value in values.values():
            if type(value) is not float:
                found = {name: self._number(name, value) for name, value in values.items()}
                values = {name: value for name, value in found.items() if value is not None}
                break
        self.watch.log(values, step)

    def launches(self) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        """Every kernel that ``run`` launches, in that order, with arguments as large as any it gets: ``[(self.step, (0,)), ...]``.

        The plan takes the adstack heaps of their gradients from here, and the few words that each compiled kernel keeps. A job with a
        ``simulate`` need not write it: what that launches is found by calling it while no launch runs.

        Raises:
            QdrunRuntimeError: ``simulate`` does something else than launch kernels.
        """
        return self.rehearsed() if self.declares() else ()

    def allocates(self) -> Iterable[PlanEntry]:
        """The memory that ``run`` allocates in the program besides gradient heaps.

        By default the snapshots of time steps, see ``logs``, and what the gradients of implicit steps keep.
        """
        if not self.wanted:
            return []
        found = snapshots_of(self) if self.snapshot_bytes else []
        if self.declares():
            self.rehearsed()
        if copies := self._copies.get(True, 0):
            how = "copies of temporaries and of the states of fixed points"
            found.append(PlanEntry(kind="snapshots", bytes=copies, source=COPIES, formula=how))
        if self._kept_by_tape:
            how = "elements that later launches overwrite, and what they hold at the end"
            found.append(PlanEntry(kind="tape", bytes=self._kept_by_tape, source="simulate()", formula=how))
        return found

    def plan(self, *, arch: str | None = None) -> MemoryPlan:
        """Every byte by kind, without running: what ``build`` allocated, what kernels keep, the heap of the gradients of ``launches``.

        Args:
            arch: plan for another backend, which need not be there; None: for the program's own.

        Raises:
            OutOfMemory: nothing fits the program's ``memory_budget``; names the smallest that would work.
        """
        return NO_MEMORY if self.program is None else make_plan(self, arch)

    def gradient_paths(self) -> tuple[Any, ...]:
        """Say for each wanted gradient whether the objective depends on the input, and where the derivative is cut; runs nothing.

        Each is a ``qd.ad.GradientPath``. None of them for a job that overrides ``run``, and without gradients.

        Raises:
            QdrunRuntimeError: ``simulate`` does something else than launch kernels.
        """
        if not self.wanted or not self.declares() or self.program is None:
            return ()
        self.rehearsed()
        inputs = [(name, self._declared.inputs[name]) for name in self.wanted]
        return self.program.gradient_paths(self._backwards, inputs, self._declared.loss, "the objective")

    def explain(self, *, arch: str | None = None) -> Explanation:
        """The plan taken apart: fields, kernels, loops with their lines, and what each remedy would save. Raises what ``plan`` does."""
        return explain(self, arch)

    def used(self) -> dict[str, int]:
        """The most bytes that the program held of each kind: what the plan is compared with."""
        return {} if self.program is None else used(self.program)

    def peak_bytes(self) -> int | None:
        """The most bytes that the program held at once; None for a job without a program."""
        return None if self.program is None else int(self.program.peak_bytes)

    @classmethod
    def shape_key(cls, params: P) -> dict[str, Any]:
        """The part of the parameters that decides how much memory a trial needs: trials with equal keys are planned once.

        Here: everything but the values of floats (lists count with their shapes). A job whose floats decide sizes overrides it.
        """
        return {name: _shape_of(value) for name, value in params.model_dump(mode="json").items()}

    @contextmanager
    def opened(
        self,
        *,
        backend: str = "cpu",
        device: int | str | None = None,
        threads: int | None = None,
        memory_limit_bytes: int | None = None,
        memory_budget_bytes: int | None = None,
        arch: str | None = None,
        machine_code: bool = True,
        debug: Debug | Mapping[str, bool] | bool | None = None,
        batch: int | None = None,
    ) -> Iterator[Job[P]]:
        """Open a program of its own, build the job in it, and close it at the end.

        Args:
            backend: the name of the backend, as in ``device.backend`` of a config.
            device: which of its devices, as in ``device.id`` of a config; None for the first.
            threads: CPU threads of the program; None leaves the choice to the compiler.
            memory_limit_bytes: the program raises ``OutOfMemory`` beyond it; None for no limit.
            memory_budget_bytes: what the program is planned into: gradients recompute more where they would keep too much; None: no budget.
            arch: choose the window of the time steps for this backend, which need not be there; None: for ``backend``.
            machine_code: False: plans compile no kernels; they lack ``code`` and, on a GPU, ``frames``, no part of their ``bytes``.
            debug: what the kernels check while they run, see ``Debug``; True: indices, asserts, and where a NaN comes from.
            batch: trials of the program, see ``qd.init``; None: it is not batched. ``batch.BatchSession`` runs such a job.

        Raises:
            OutOfMemory: the fields of ``build`` do not fit ``memory_limit_bytes``, or time steps not ``memory_budget_bytes``.
        """
        how = {
            "backend": backend,
            "device": device,
            "threads": threads,
            "debug": debug,
            "arch": arch,
            "machine_code": machine_code,
        }
        self.opened_with = how | {"memory_limit_bytes": memory_limit_bytes}
        checks = Debug.of(debug)
        options: dict[str, Any] = {"cpu_max_num_threads": threads, "device": device, "batch": batch}
        options |= {} if checks is None else checks.options()
        self.machine_code = machine_code
        self._fit(backend, options, memory_budget_bytes, arch)
        with self._in_program(backend, options | {"memory_limit": memory_limit_bytes, "memory_budget": memory_budget_bytes}):
            yield self

    def _fit(self, backend: str, options: dict[str, Any], budget: int | None, arch: str | None) -> None:
        """Choose the window of the time steps."""
        self.window, self.snapshot_bytes, self._steps = self.time_steps(), None, None
        if budget and self.window > 2:
            where = backend, *options.values()
            self._steps = plan_window(self, budget, where, lambda: self._in_program(backend, options), arch)
            self.window = self._steps.window
            self.snapshot_bytes = self._steps.snapshot_bytes or None

    @contextmanager
    def _in_program(self, backend: str, options: dict[str, Any]) -> Iterator[None]:
        with _program(self.precision, backend, options) if self.needs_compiler else nullcontext() as program:
            self.program, self._made = program, False
            self._declared, self._launches, self._recorded = self._new_declarations(), {}, {}
            self._first, self._ran, self._repeats, self._why, self._filled = None, False, False, "", None
            self._logs = False
            try:
                self._build()
                self._made = True
                if program is not None and self.optimizer_spec is not None and program.has_doubles(self.opened_with["arch"]):
                    declared = self._declared
                    self.optimizer = Optimizer(program, self.optimizer_spec, declared.inputs, self.wanted, declared.outputs)
                if program is not None:
                    program.seeds.random_seed = self._seed
                self._declared.fill(self.params, program)
                self.fill()
                yield
            finally:
                self.program = self._first = self.optimizer = None

    def _build(self) -> None:
        self._real_params = self.params
        if not self.declares():
            self.build()
        else:
            if self.jacobian == "forward":
                # fields get duals with their memory, which they may have before ``build`` ends
                self.program.state.tangents = True
            with self._watching():
                own = {name: getattr(self, name) for name in _OWN}
                self.build()
                self._check_own(own)
            self._declared.check(self.gradients)

    def _check_own(self, before: Mapping[str, Any]) -> None:
        changed = [(name, _OWN[name]) for name, value in before.items() if getattr(self, name) is not value]
        for name, what in [*changed, *((name, f"its method {name}()") for name in _CALLED if name in vars(self))]:
            raise ValueError(
                f"{type(self).__name__}.build() assigns `self.{name}`, which every job has: {what}\n"
                "  do: give the attribute of this job another name"
            )


def _program(precision: str, backend: str, options: dict[str, Any]) -> Any:
    import qdrun as qd

    given = {name: value for name, value in options.items() if value is not None}
    return qd.init(arch=getattr(qd, backend), default_fp=getattr(qd, precision), **given)


def _shape_of(value: Any) -> Any:
    if isinstance(value, float):
        return "float"
    if isinstance(value, list):
        inner = [_shape_of(item) for item in value]
        return [len(value), inner[0]] if inner and all(item == inner[0] for item in inner) else inner
    if isinstance(value, dict):
        return {key: _shape_of(item) for key, item in value.items()}
    return value
